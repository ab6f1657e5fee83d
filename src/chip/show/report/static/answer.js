"use strict";
// The answer: up to six predictions as cards, memory, breakdown, roofline and commands.
const Answer = (() => {
  const { h, shared, si, duration, bytes, percent, number, meaningful, rounded, save } = Chip;
  const { plot, legend, reach, roofLines } = Plots;
  const { bars, strip } = Bars;
  const { PASTE, state, known, byId, command, python, configurations } = Question;
  const METRICS = [
    ["ttft_ms", "First token (TTFT)", (v, n) => duration(v / 1e3, n), "ttft"],
    ["tpot_ms", "Per token (TPOT)", (v, n) => duration(v / 1e3, n), "tpot"],
    ["tokens_per_s", "Throughput", (v, n) => `${rounded(v, n)} tok/s`],
    ["e2e_ms", "End to end", (v, n) => duration(v / 1e3, n)],
    ["energy_j_per_token", "Energy", (v, n) => `${rounded(v, n)} J/tok`],
  ];
  const BOUNDS = { // colour, pattern and shape: no two are told apart by colour alone
    compute: { color: "var(--red)", pattern: "solid", shape: 1 },
    memory: { color: "var(--blue)", pattern: "rising", shape: 0 },
    launch: { color: "var(--yellow)", pattern: "falling", shape: 2 },
    link: { color: "var(--purple)", pattern: "dotted", shape: 4 },
    host: { color: "var(--green)", pattern: "upright", shape: 3 },
  };
  const MEMORY = [
    ["weights_bytes", "weights", "var(--blue)", "solid"],
    ["kv_bytes", "KV cache", "var(--orange)", "rising"],
    ["activation_bytes", "activations", "var(--green)", "upright"],
    ["context_bytes", "CUDA context", "var(--purple)", "dotted"],
  ];
  const PHASES = [
    ["ttft", "prefill"],
    ["tpot", "decode"],
  ];
  const OPEN_NOTES = 2;
  const SIDES = ["A", "B", "C", "D", "E", "F"];
  const keyed = (names) => names.map((b) => ({ name: `${b}-bound`, ...BOUNDS[b] }));
  const digitsOf = (a, key) => meaningful(a[key], a.interval[key]);
  // -- the answer
  let shares = []; // of the memory that the engine may use, by configuration
  function show({ predictions: answers, against_first: against, roofs }) {
    shares = against.map((a) => a.usable_share);
    byId("said").textContent = answers
      .map(
        (a) =>
          `${title(a.gpu)}: ${METRICS.slice(0, 3)
            .filter(([key]) => Chip.known(a[key]))
            .map(([key, name, format]) => `${name} ${format(a[key], digitsOf(a, key))}`)
            .join(", ")}`,
      )
      .join("; ");
    byId("answer").replaceChildren(
      headline(answers, against),
      memory(answers),
      breakdown(answers, against),
      rooflines(answers, roofs),
      commands(answers),
    );
  }
  const who = (a, i, many, name) =>
    many ? h("div", { class: "who" }, h("b", { class: "side" }, SIDES[i]), name || named(a)) : "";
  const named = (a) => `${a.tp > 1 ? `${a.tp} × ` : ""}${title(a.gpu)}, ${a.dtype}`;
  const briefly = (a) => `${a.tp > 1 ? `${a.tp} × ` : ""}${a.gpu} ${a.dtype}`;
  const title = (gpu) => known.gpus.find((g) => g.name === gpu)?.title || gpu;
  const part = (name, lead, ...children) =>
    h("section", { class: "panel" }, h("h2", {}, name), lead ? h("p", { class: "lead" }, lead) : "", children);

  function headline(answers, against) {
    const a = answers[0],
      gpus = answers.map((b) => (b.tp > 1 ? `${b.tp} × ` : "") + title(b.gpu)).join(" against ");
    // why it does not fit is told below, with the share of the memory that the engine may use
    const notes = [...new Set(answers.flatMap((b) => b.notes))].filter((n) => !n.startsWith("does not fit: needs"));
    const full = answers.map((b, i) => [b, i]).filter(([b]) => !b.memory.fits);
    return h(
      "section",
      { class: "panel" },
      h("h2", {}, `${a.model} on ${gpus}`),
      h(
        "p",
        { class: "lead" },
        `${a.engine}, ${a.dtype}, ${number(a.batch)} × (${number(a.prompt)} tokens in, ${number(a.output)} out); 90 % intervals`,
      ),
      h("p", {}, answers.map((b, i) => [i ? " " : "", answers.length > 1 ? `${SIDES[i]} ` : "", Rank.badge(b.rests_on)])),
      full.map(([b, i]) => h("p", { class: "note bad" }, `${answers.length > 1 ? `${briefly(b)} ` : ""}does not fit: needs ${told(b, i)}. Times are as if it did.`)),
      h(
        "div",
        { class: "metrics" },
        METRICS.map((m) => metric(answers, against, ...m)),
      ),
      toldNotes(notes),
      Sure.table(answers, SIDES),
    );
  }
  /** Few notes stand open; many would stand between a reader and the rest. */
  function toldNotes(notes) {
    const all = notes.map((n) => h("p", { class: "note" }, n));
    return notes.length > OPEN_NOTES ? h("details", { class: "notes" }, h("summary", {}, `${notes.length} notes on what these figures rest on`), all) : all;
  }
  /** "73.6 GiB a GPU; vllm may use 72.0 GiB (90 %) of its 80.0 GiB" */
  function told(a, i) {
    const m = a.memory,
      share = shares[i];
    const may = share < 0.9995 ? `${a.engine} may use ${bytes(m.usable_bytes)} (${Math.round(100 * share)} %) of its ${bytes(m.capacity_bytes)}` : `it has ${bytes(m.capacity_bytes)}`;
    return `${bytes(m.total_bytes)} a GPU; ${may}`;
  }
  /** Against the first: a ratio, or a tie where the intervals overlap. */
  function ratio({ ratio: of, tie }, key) {
    return key in of ? h("div", { class: "span" }, `${rounded(of[key], 3)} × A${tie[key] ? ", tie" : ""}`) : "";
  }
  function metric(answers, against, key, name, format, bound) {
    const given = answers.filter((a) => Chip.known(a[key]));
    if (!given.length)
      return key === "energy_j_per_token"
        ? ""
        : h("div", { class: "metric" }, h("h3", {}, name), h("div", { class: "muted" }, "one token only"));
    const high = Math.max(...given.map((a) => a.interval[key][1]));
    return h(
      "div",
      { class: "metric", id: `metric-${key}` },
      h("h3", {}, name),
      answers.map((a, i) => {
        if (!Chip.known(a[key])) return [who(a, i, true, briefly(a)), h("div", { class: "muted" }, "not measured")];
        const [low, up] = a.interval[key],
          limit = bound && a.bound[bound],
          n = digitsOf(a, key);
        const [value, unit] = format(a[key], n).split(" ");
        return [
          who(a, i, answers.length > 1, briefly(a)),
          h("div", { class: "value", "data-value": a[key] }, value, " ", h("small", {}, unit)),
          strip(low, a[key], up, high),
          h("div", { class: "span" }, shared(format(low, n), "–", format(up, n))),
          i ? ratio(against[i], key) : "",
          limit ? h("div", { class: "span" }, `${limit}-bound`) : "",
          Sure.beside(a, key),
        ];
      }),
    );
  }
  function memory(answers) {
    const parts = MEMORY.filter(([key]) => answers.some((a) => a.memory[key]));
    return part(
      "Memory of a GPU",
      "",
      legend([
        ...parts.map(([, name, color, pattern]) => ({ name, color, pattern })),
        { name: "what the engine may use", color: "var(--ink)", pattern: "tick-usable" },
        { name: "what the GPU has", color: "var(--red)", pattern: "tick-capacity" },
      ]),
      h(
        "div",
        { class: "sides" },
        answers.map((a, i) => {
          const m = a.memory,
            whole = Math.max(m.capacity_bytes, m.total_bytes);
          const mark = (value, kind, text) =>
            h("b", { class: `limit ${kind}`, title: text, style: { left: `${(100 * value) / whole}%` } });
          const bar = h(
            "div",
            { class: "stack", role: "img", "aria-label": `needs ${told(a, i)}` },
            parts.map(([key, name, color, pattern]) =>
              h("i", {
                class: pattern,
                title: `${name} ${bytes(m[key])}`,
                style: { color, flex: `0 0 ${(100 * m[key]) / whole}%` },
              }),
            ),
            m.usable_bytes < m.capacity_bytes ? mark(m.usable_bytes, "usable", `${a.engine} may use ${bytes(m.usable_bytes)}`) : "",
            m.total_bytes > m.capacity_bytes ? mark(m.capacity_bytes, "capacity", `the GPU has ${bytes(m.capacity_bytes)}`) : "",
          );
          const rest = parts
            .filter(([key]) => m[key])
            .map(([key, name]) => `${name} ${bytes(m[key])}`)
            .join(" + ");
          return h(
            "div",
            {},
            who(a, i, answers.length > 1),
            bar,
            h(
              "div",
              {},
              h("strong", {}, m.fits ? "fits" : "does not fit"),
              `: ${told(a, i)}`,
              `, largest batch ${number(m.max_batch)}`,
            ),
            h("div", { class: "span" }, `${rest}; KV ${bytes(m.kv_bytes_per_token)} a token`),
          );
        }),
      ),
    );
  }

  function breakdown(answers, against) {
    const phases = [
      ["ttft", "To the first token"],
      ["tpot", "A decode step (mean)"],
    ].filter(([p]) => answers.some((a) => a.breakdown[p].length));
    const bounds = Object.keys(BOUNDS).filter((b) =>
      answers.some((a) => phases.some(([p]) => a.breakdown[p].some((r) => r.bound === b))),
    );
    return part(
      "Where the time goes",
      "Each operator's share of the step, coloured by what bounds it.",
      legend(keyed(bounds)),
      phases.map(([phase, name]) => [h("h3", {}, name), answers.length > 1 ? aligned(answers, against, phase) : rows(answers[0].breakdown[phase])]),
      h(
        "p",
        { class: "span" },
        answers.map(
          (a) =>
            `${answers.length > 1 ? `${title(a.gpu)}: ` : ""}time by source of its numbers: ${Object.entries(a.sources)
              .map(([k, v]) => `${percent(v)} ${k}`)
              .join(", ")}. `,
        ),
      ),
    );
  }
  function rows(lines) {
    const sorted = [...lines].sort((a, b) => b.us - a.us);
    return bars(
      sorted.map((r) => ({
        name: r.role,
        value: r.us,
        color: BOUNDS[r.bound]?.color || "var(--muted)",
        pattern: BOUNDS[r.bound]?.pattern,
        title: `${r.op}, ${r.bound}-bound, ${r.source}`,
        text: `${duration(r.us / 1e6, 3)} · ${percent(r.share)} · ${r.bound}`,
      })),
    );
  }
  /** The same operator of every configuration in one row, longest first, against the first configuration. */
  function aligned(answers, against, phase) {
    const of = answers.map((a) => new Map(a.breakdown[phase].map((r) => [r.role, r])));
    const longest = Math.max(...answers.flatMap((a) => a.breakdown[phase].map((r) => r.us)), 1e-9);
    const roles = [...new Set(answers.flatMap((a) => a.breakdown[phase].map((r) => r.role)))];
    const most = (role) => Math.max(...of.map((m) => m.get(role)?.us || 0));
    roles.sort((a, b) => most(b) - most(a));
    const cell = (r, i) => {
      if (!r) return h("td", { class: "muted" }, Chip.NONE);
      const look = BOUNDS[r.bound] || { color: "var(--muted)", pattern: "solid" };
      const times = against[i].operators[phase][r.role],
        beside = i && times ? ` · ${rounded(times, 2)} ×` : "";
      return h(
        "td",
        { title: `${r.op}, ${r.bound}-bound, ${r.source}` },
        h("i", { class: `bar ${look.pattern}`, style: { color: look.color, width: `${(100 * r.us) / longest}%` } }),
        h("span", { class: "span" }, `${duration(r.us / 1e6, 3)}${beside} · ${r.bound}`),
      );
    };
    return h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `Operators of ${PHASES.find(([p]) => p === phase)[1]} side by side` },
      h(
        "table",
        { class: "aligned" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "operator"), answers.map((a, i) => h("th", { scope: "col" }, h("b", { class: "side" }, SIDES[i]), ` ${briefly(a)}`)))),
        h("tbody", {}, roles.map((role) => h("tr", {}, h("th", { scope: "row" }, role), of.map((m, i) => cell(m.get(role), i))))),
      ),
    );
  }

  function rooflines(answers, roofs) {
    const points = answers.map((a) =>
      PHASES.flatMap(([phase, name]) =>
        a.breakdown[phase]
          .filter((r) => r.flops && r.bytes)
          .map((r) => ({
            x: r.flops / r.bytes,
            y: r.flops / (r.us * 1e-6),
            r: 3 + 9 * Math.sqrt(r.share),
            title: r.role,
            phase,
            bound: r.bound,
            tell: () => [
              ["phase", name],
              ["time", duration(r.us / 1e6)],
              ["share", percent(r.share)],
              ["work", si(r.flops, "FLOP")],
              ["moved", si(r.bytes, "B")],
              ["bound", r.bound],
              ["source", r.source],
            ],
          })),
      ),
    );
    const series = (own) =>
      PHASES.flatMap(([phase, name]) =>
        Object.entries(BOUNDS).map(([bound, { color, shape }]) => ({
          name,
          color,
          shape,
          hollow: phase === "tpot",
          points: own.filter((p) => p.phase === phase && p.bound === bound),
        })),
      );
    const found = answers.map((a) => roofs[a.gpu]);
    const shown = answers.map((a, i) => dtypeRoofs(found[i], a.dtype));
    const xs = reach(
      [
        ...points.flat().map((p) => p.x),
        ...shown.flatMap((c, i) => c.map((r) => r.value / memoryRoofs(found[i])[0].value)),
      ],
      2.5,
    );
    const ys = reach([...points.flat().map((p) => p.y), ...shown.flatMap((c) => c.map((r) => r.value))], 2);
    return part(
      "Roofline",
      "Operators of both phases under the GPU's roofs: full lines were measured, dashed ones come from a datasheet. A larger mark is a larger share of its phase. Arrow keys walk through them.",
      legend([
        { name: "prefill", color: "var(--muted)" },
        { name: "decode", color: "var(--muted)", hollow: true },
        ...Object.keys(BOUNDS)
          .filter((b) => points.flat().some((p) => p.bound === b))
          .map((b) => ({ name: `${b}-bound`, color: BOUNDS[b].color, shape: BOUNDS[b].shape })),
      ]),
      h(
        "div",
        { class: "sides" },
        answers.map((a, i) =>
          h(
            "div",
            {},
            who(a, i, answers.length > 1),
            h("p", { class: "span basis" }, found[i].source === "datasheet" ? `Dashed roofs: ${found[i].title}, never measured` : `Full roofs: ${found[i].title}`),
            plot({
              title: `Roofline of ${title(a.gpu)}: prefill and decode operators of ${a.model}`,
              width: answers.length > 1 ? 560 : 860,
              height: answers.length > 1 ? 380 : 420,
              x: { label: "FLOP per byte", format: (v) => number(v), range: xs },
              y: { label: "FLOP/s", format: (v) => si(v, ""), range: ys },
              lines: roofLines(shown[i], memoryRoofs(found[i]), xs, found[i].source === "datasheet" ? "6 5" : null),
              series: series(points[i]),
            }),
          ),
        ),
      ),
    );
  }
  const memoryRoofs = (found) => Object.values(found.memory).map((m) => ({ name: m.name, value: m.bytes_per_s }));
  function dtypeRoofs(found, dtype) {
    const wanted = { int8: "bf16", int4: "bf16" }[dtype] || dtype;
    const names = Object.keys(found.compute).filter((n) => [`matmul_${wanted}`, "vector_fp32"].includes(n));
    return (names.length ? names : Object.keys(found.compute).slice(0, 1)).map((n) => ({
      name: n.replace("matmul_", "").replace("_", " "),
      value: found.compute[n].flops_per_s,
    }));
  }

  /** A command whose options stay whole where the line breaks. */
  const unbroken = (text) =>
    text.split(/ (?=--)/).map((piece, i) => [i ? " " : "", h("span", { class: "whole" }, piece)]);
  async function copied(button, text) {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => {
      button.textContent = before;
    }, 1500);
  }
  function copyable(text, label, kind = "command") {
    const button = h("button", { type: "button" }, "Copy");
    button.addEventListener("click", () => copied(button, text));
    return h("div", { class: "copy" }, h("code", { class: kind, "aria-label": label }, kind === "python" ? text : unbroken(text)), button);
  }
  /** The question as other places ask it, and the answer as it came. */
  function commands(answers) {
    const saved = state.model === PASTE ? `Save the pasted config as ${state.name}.json first.` : "";
    const shown = configurations();
    const json = h("button", { type: "button" }, "JSON of the answers");
    json.addEventListener("click", () => save("predictions.json", "application/json", `${JSON.stringify(answers, null, 1)}\n`));
    const table = h("button", { type: "button" }, "CSV of the breakdown");
    table.addEventListener("click", () => {
      const columns = ["role", "op", "count", "us", "share", "flops", "bytes", "bound", "source"];
      const lines = answers.flatMap((a) => PHASES.flatMap(([phase, name]) => a.breakdown[phase].map((r) => [a.gpu, a.tp, a.dtype, name, ...columns.map((c) => r[c])])));
      save("breakdown.csv", "text/csv", Chip.csv(["gpu", "tp", "dtype", "phase", ...columns], lines));
    });
    return part(
      "The same elsewhere",
      saved,
      shown.map((c, i) => copyable(command(c), `Command for ${named(answers[i])}`)),
      copyable(python(shown[0]), "The same in Python", "python"),
      h("div", { class: "tools" }, json, table),
    );
  }

  return { show, copyable, copied, title };
})();
