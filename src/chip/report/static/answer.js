"use strict";
// The answer: one or two predictions as cards, memory, breakdown, roofline and commands.
const Answer = (() => {
  const { h, shared, si, duration, bytes, percent, number } = Chip;
  const { plot, legend, reach, roofLines } = Plots;
  const { bars, strip } = Bars;
  const { PASTE, state, pasted, known, byId, command } = Question;
  const METRICS = [
    ["ttft_ms", "First token (TTFT)", (v) => duration(v / 1e3), "ttft"],
    ["tpot_ms", "Per token (TPOT)", (v) => duration(v / 1e3), "tpot"],
    ["tokens_per_s", "Throughput", (v) => `${number(v)} tok/s`],
    ["e2e_ms", "End to end", (v) => duration(v / 1e3)],
    ["energy_j_per_token", "Energy", (v) => `${number(v, 3)} J/tok`],
  ];
  const BOUNDS = {
    compute: "var(--red)",
    memory: "var(--blue)",
    launch: "var(--yellow)",
    link: "var(--purple)",
    host: "var(--green)",
  };
  const MEMORY = [
    ["weights_bytes", "weights", "var(--blue)"],
    ["kv_bytes", "KV cache", "var(--orange)"],
    ["activation_bytes", "activations", "var(--green)"],
    ["context_bytes", "CUDA context", "var(--purple)"],
  ];
  const PHASES = [
    ["ttft", "prefill"],
    ["tpot", "decode"],
  ];
  const SIDES = ["A", "B"];
  // -- the answer
  function show(answers, roofs) {
    byId("said").textContent = answers
      .map(
        (a) =>
          `${title(a.gpu)}: ${METRICS.slice(0, 3)
            .filter(([key]) => Chip.known(a[key]))
            .map(([key, name, format]) => `${name} ${format(a[key])}`)
            .join(", ")}`,
      )
      .join("; ");
    byId("answer").replaceChildren(
      headline(answers),
      memory(answers),
      breakdown(answers),
      rooflines(answers, roofs),
      commands(answers),
    );
  }
  const who = (a, i, many, name) =>
    many ? h("div", { class: "who" }, h("b", { class: "side" }, SIDES[i]), name || title(a.gpu)) : "";
  const title = (gpu) => known.gpus.find((g) => g.name === gpu)?.title || gpu;
  const part = (name, lead, ...children) =>
    h("section", { class: "panel" }, h("h2", {}, name), lead ? h("p", { class: "lead" }, lead) : "", children);

  function headline(answers) {
    const a = answers[0],
      gpus = answers.map((b) => (b.tp > 1 ? `${b.tp} × ` : "") + title(b.gpu)).join(" against ");
    const notes = [...new Set(answers.flatMap((b) => b.notes))];
    return h(
      "section",
      { class: "panel" },
      h("h2", {}, `${a.model} on ${gpus}`),
      h(
        "p",
        { class: "lead" },
        `${a.engine}, ${a.dtype}, ${number(a.batch)} × (${number(a.prompt)} tokens in, ${number(a.output)} out); 90 % intervals`,
      ),
      notes.map((n) => h("p", { class: n.startsWith("does not fit") ? "note bad" : "note" }, n)),
      h(
        "div",
        { class: "metrics" },
        METRICS.map((m) => metric(answers, ...m)),
      ),
    );
  }
  function metric(answers, key, name, format, bound) {
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
        if (!Chip.known(a[key])) return [who(a, i, true, a.gpu), h("div", { class: "muted" }, "not measured")];
        const [low, up] = a.interval[key],
          limit = bound && a.bound[bound];
        const [value, unit] = format(a[key]).split(" ");
        return [
          who(a, i, answers.length > 1, a.gpu),
          h("div", { class: "value", "data-value": a[key] }, value, " ", h("small", {}, unit)),
          strip(low, a[key], up, high),
          h("div", { class: "span" }, shared(format(low), "–", format(up))),
          limit ? h("div", { class: "span" }, `${limit}-bound`) : "",
        ];
      }),
    );
  }
  function memory(answers) {
    const parts = MEMORY.filter(([key]) => answers.some((a) => a.memory[key]));
    return part(
      "Memory of a GPU",
      "",
      legend(parts.map(([, name, color]) => ({ name, color }))),
      h(
        "div",
        { class: "sides" },
        answers.map((a, i) => {
          const m = a.memory,
            whole = Math.max(m.capacity_bytes, m.total_bytes);
          const bar = h(
            "div",
            { class: "stack", role: "img", "aria-label": `${bytes(m.total_bytes)} of ${bytes(m.capacity_bytes)}` },
            parts.map(([key, name, color]) =>
              h("i", { title: `${name} ${bytes(m[key])}`, style: { color, flex: `0 0 ${(100 * m[key]) / whole}%` } }),
            ),
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
              h("strong", {}, `${bytes(m.total_bytes)} of ${bytes(m.capacity_bytes)}`),
              m.fits ? ": fits" : ": does not fit",
              `, largest batch ${number(m.max_batch)}`,
            ),
            h("div", { class: "span" }, `${rest}; KV ${bytes(m.kv_bytes_per_token)} a token`),
          );
        }),
      ),
    );
  }

  function breakdown(answers) {
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
      legend(bounds.map((b) => ({ name: `${b}-bound`, color: BOUNDS[b] }))),
      phases.map(([phase, name]) => {
        const longest = Math.max(...answers.flatMap((a) => a.breakdown[phase].map((r) => r.us)));
        return [
          h("h3", {}, name),
          h(
            "div",
            { class: "sides" },
            answers.map((a, i) => h("div", {}, who(a, i, answers.length > 1), rows(a.breakdown[phase], longest))),
          ),
        ];
      }),
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
  function rows(lines, longest) {
    const sorted = [...lines].sort((a, b) => b.us - a.us);
    return bars(
      sorted.map((r) => ({
        name: r.role,
        value: r.us,
        color: BOUNDS[r.bound] || "var(--muted)",
        title: `${r.op}, ${r.bound}-bound, ${r.source}`,
        text: `${duration(r.us / 1e6)} · ${percent(r.share)}`,
      })),
      longest,
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
        Object.entries(BOUNDS).map(([bound, color]) => ({
          name,
          color,
          hollow: phase === "tpot",
          points: own.filter((p) => p.phase === phase && p.bound === bound),
        })),
      );
    const found = answers.map((a) => roofs.get(a.gpu));
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
      "Operators of both phases under the GPU's roofs; a larger dot is a larger share of its phase. Arrow keys walk through them.",
      legend([
        { name: "prefill", color: "var(--muted)" },
        { name: "decode", color: "var(--muted)", hollow: true },
        ...Object.keys(BOUNDS)
          .filter((b) => points.flat().some((p) => p.bound === b))
          .map((b) => ({ name: `${b}-bound`, color: BOUNDS[b] })),
      ]),
      h(
        "div",
        { class: "sides" },
        answers.map((a, i) =>
          h(
            "div",
            {},
            who(a, i, answers.length > 1),
            plot({
              title: `Roofline of ${title(a.gpu)}: prefill and decode operators of ${a.model}`,
              width: answers.length > 1 ? 560 : 860,
              height: answers.length > 1 ? 380 : 420,
              x: { label: "FLOP per byte", format: (v) => number(v), range: xs },
              y: { label: "FLOP/s", format: (v) => si(v, ""), range: ys },
              lines: roofLines(shown[i], memoryRoofs(found[i]), xs),
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
  function copyable(text, label) {
    const button = h("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select and copy";
      }
      setTimeout(() => {
        button.textContent = "Copy";
      }, 1500);
    });
    return h("div", { class: "copy" }, h("code", { class: "command", "aria-label": label }, unbroken(text)), button);
  }
  function commands(answers) {
    const saved = state.model === PASTE ? `Save the pasted config as ${pasted.name}.json first.` : "";
    return part(
      "The same on the command line",
      saved,
      answers.map((a) => copyable(command(a.gpu), `Command for ${title(a.gpu)}`)),
    );
  }

  return { show, copyable, title };
})();
