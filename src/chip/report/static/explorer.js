"use strict";
// The explorer: a form, the answers of /api/predict for one or two GPUs, and the command that gives the same numbers.
(() => {
  const { h, s, shared, si, duration, bytes, percent, number, plot, legend, reach, roofLines } = Chip;
  const SIZES = ["batch", "prompt", "output"];
  const STEPS = { batch: [0, 10], prompt: [0, 17], output: [0, 13] }; // powers of two, and what lies halfway between
  const METRICS = [
    ["ttft_ms", "First token (TTFT)", (v) => duration(v / 1e3), "ttft"],
    ["tpot_ms", "Per token (TPOT)", (v) => duration(v / 1e3), "tpot"],
    ["tokens_per_s", "Throughput", (v) => `${number(v)} tok/s`],
    ["e2e_ms", "End to end", (v) => duration(v / 1e3)],
    ["energy_j_per_token", "Energy", (v) => `${number(v, 3)} J/tok`],
  ];
  const BOUNDS = { compute: "var(--red)", memory: "var(--blue)", launch: "var(--yellow)", link: "var(--purple)", host: "var(--green)" };
  const MEMORY = [
    ["weights_bytes", "weights", "var(--blue)"], ["kv_bytes", "KV cache", "var(--orange)"],
    ["activation_bytes", "activations", "var(--green)"], ["context_bytes", "CUDA context", "var(--purple)"],
  ];
  const PHASES = [["ttft", "prefill"], ["tpot", "decode"]];
  const SIDES = ["A", "B"];
  const PASTE = "paste a config.json …";
  const byId = (id) => document.getElementById(id);
  const state = { model: "llama-3.1-8b", gpu: "", gpu2: "", engine: "", dtype: "", tp: 1, batch: 8, prompt: 1024, output: 128 };
  const pasted = { name: "my-model", text: "" };
  const roofs = new Map();
  let known;

  // -- talking to the server -----------------------------------------------------------------------------------------
  async function ask(path, question) {
    const options = question && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) };
    const response = await fetch(path, options);
    const found = await response.json();
    if (!response.ok) throw new Error(found.error || `status ${response.status}`);
    return found;
  }
  const listed = async (what) => ask(`/api/${what}`);

  // -- the question ----------------------------------------------------------------------------------------------------
  function question(gpu) {
    const asked = { gpu, engine: state.engine, dtype: state.dtype, tp: state.tp };
    for (const size of SIZES) asked[size] = state[size];
    if (state.model !== PASTE) return { model: state.model, ...asked };
    let config;
    try { config = JSON.parse(pasted.text); } catch { throw new Error("what is pasted is not JSON"); }
    return { model: pasted.name, config, ...asked };
  }
  const quoted = (word) => (/^[\w.:@/+-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`);
  function command(gpu) {
    const model = state.model === PASTE ? `${pasted.name}.json` : state.model;
    const options = ["gpu", "engine", "batch", "prompt", "output", "dtype", "tp"].map((key) => `--${key} ${quoted(key === "gpu" ? gpu : state[key])}`);
    return `chip predict ${quoted(model)} ${options.join(" ")}`;
  }
  function readLink() {
    if (!location.hash.startsWith("#?")) return;
    const asked = new URLSearchParams(location.hash.slice(2));
    for (const key of Object.keys(state)) {
      const value = asked.get(key);
      if (value === null) continue;
      state[key] = typeof state[key] === "number" ? Math.max(1, Math.round(Number(value)) || 1) : value;
    }
  }
  function writeLink() {
    const asked = new URLSearchParams();
    for (const [key, value] of Object.entries(state)) if (value !== "" && value !== PASTE) asked.set(key, value);
    history.replaceState(null, "", `#?${asked}`);
  }

  // -- the form --------------------------------------------------------------------------------------------------------
  function choice(id, title, groups, selected, chosen) {
    const option = (value) => {
      const [v, text] = Array.isArray(value) ? value : [value, value];
      return h("option", { value: v, selected: v === selected }, text);
    };
    const select = h("select", { id, onchange: (e) => chosen(e.target.value) }, groups.map(([name, values]) =>
      name ? h("optgroup", { label: name }, values.map(option)) : values.map(option)));
    return h("div", { class: "field" }, h("label", { for: id }, title), select);
  }
  function steps(size) {
    const [low, high] = STEPS[size], out = [];
    for (let e = low; e <= high; e++) { out.push(2 ** e); if (e > 0 && e < high) out.push(1.5 * 2 ** e); }
    return out;
  }
  function slider(size, title) {
    const values = steps(size), most = known.defaults.limits[size];
    const nearest = (v) => values.reduce((best, w, i) => (Math.abs(Math.log(w / v)) < Math.abs(Math.log(values[best] / v)) ? i : best), 0);
    const range = h("input", { type: "range", min: 0, max: values.length - 1, value: nearest(state[size]), "aria-label": `${title}, slider` });
    const box = h("input", { type: "number", id: size, min: 1, max: most, value: state[size] });
    const describe = () => range.setAttribute("aria-valuetext", String(state[size]));
    range.addEventListener("input", () => { state[size] = values[range.value]; box.value = state[size]; describe(); changed(); });
    box.addEventListener("input", () => {
      const v = Math.round(Number(box.value));
      if (!(v >= 1 && v <= most)) return;
      state[size] = v; range.value = nearest(v); describe(); changed();
    });
    describe();
    return h("div", { class: "field" }, h("label", { for: size }, title), h("div", { class: "row" }, range, box));
  }
  function form() {
    const set = (key) => (value) => { state[key] = typeof state[key] === "number" ? Number(value) : value; form(); changed(); };
    const families = new Map();
    for (const m of known.models) {
      const family = m.name.split("-")[0].replace(/[\d.]+$/, "");
      families.set(family, [...(families.get(family) || []), [m.name, `${m.name} (${digits(m.parameters / 1e9)} B)`]]);
    }
    const named = (measured) => known.gpus.filter((g) => g.measured === measured).map((g) => [g.name, g.title]);
    const gpus = [["Measured", named(true)], ["From the datasheet", named(false)]];
    const other = known.gpus.some((g) => g.name === state.gpu) ? [] : [["Given by link", [state.gpu]]];
    byId("controls").replaceChildren(
      h("h2", { class: "visually-hidden" }, "Question"),
      choice("model-name", "Model", [["", [PASTE]], ...families], state.model, set("model")),
      state.model === PASTE ? paste() : "",
      choice("gpu", "GPU", [...other, ...gpus], state.gpu, set("gpu")),
      choice("gpu2", "Beside it", [["", [["", "nothing"]]], ...gpus], state.gpu2, set("gpu2")),
      choice("engine", "Engine", [["", known.engines.map((e) => e.name)]], state.engine, set("engine")),
      h("div", { class: "pair2" },
        choice("dtype", "dtype", [["", known.defaults.dtypes]], state.dtype, set("dtype")),
        choice("tp", "GPUs a layer (tp)", [["", [...new Set([1, 2, 4, 8, state.tp])].sort((a, b) => a - b).map((n) => [n, String(n)])]], state.tp, set("tp"))),
      slider("batch", "Batch: requests at once"),
      slider("prompt", "Prompt: tokens each"),
      slider("output", "Output: tokens each"),
    );
  }
  const digits = (v) => (v < 10 ? v.toFixed(1) : v.toFixed(0));
  function paste() {
    const name = h("input", { type: "text", id: "pasted-name", value: pasted.name, maxlength: 60 });
    name.addEventListener("input", () => { pasted.name = name.value.replace(/[^\w.-]+/g, "-") || "my-model"; changed(); });
    const text = h("textarea", { id: "pasted", rows: 8, spellcheck: "false", class: "mono", placeholder: '{"architectures": ["LlamaForCausalLM"], …}' });
    text.value = pasted.text;
    text.addEventListener("input", () => { pasted.text = text.value; changed(); });
    return h("div", { class: "field" },
      h("label", { for: "pasted" }, "config.json of the model"), text,
      h("label", { for: "pasted-name" }, "its name"), name);
  }

  // -- asking: one question at a time, always the latest ----------------------------------------------------------------
  let waiting = false, busy = false;
  function changed() {
    writeLink();
    waiting = true;
    if (!busy) run();
  }
  async function run() {
    busy = true;
    while (waiting) {
      waiting = false;
      byId("answer").setAttribute("aria-busy", "true");
      try {
        const gpus = [state.gpu, ...(state.gpu2 && state.gpu2 !== state.gpu ? [state.gpu2] : [])];
        const [answers] = await Promise.all([
          Promise.all(gpus.map((gpu) => ask("/api/predict", question(gpu)))),
          Promise.all(gpus.map(async (gpu) => roofs.has(gpu) || roofs.set(gpu, await ask(`/api/gpus/${encodeURIComponent(gpu)}`)))),
        ]);
        if (!waiting) show(answers);
      } catch (error) {
        if (!waiting) byId("answer").replaceChildren(h("div", { class: "panel" }, h("p", { class: "note bad", role: "alert" }, error.message)));
      }
      byId("answer").setAttribute("aria-busy", "false");
    }
    busy = false;
  }

  // -- the answer --------------------------------------------------------------------------------------------------------
  function show(answers) {
    byId("said").textContent = answers.map((a) => `${title(a.gpu)}: ${METRICS.slice(0, 3).filter(([key]) => Chip.known(a[key])).map(([key, name, format]) => `${name} ${format(a[key])}`).join(", ")}`).join("; ");
    byId("answer").replaceChildren(headline(answers), memory(answers), breakdown(answers), rooflines(answers), commands(answers));
  }
  const who = (a, i, many, name) => (many ? h("div", { class: "who" }, h("b", { class: "side" }, SIDES[i]), name || title(a.gpu)) : "");
  const title = (gpu) => known.gpus.find((g) => g.name === gpu)?.title || gpu;
  const part = (name, lead, ...children) => h("section", { class: "panel" }, h("h2", {}, name), lead ? h("p", { class: "lead" }, lead) : "", children);

  function headline(answers) {
    const a = answers[0], gpus = answers.map((b) => (b.tp > 1 ? `${b.tp} × ` : "") + title(b.gpu)).join(" against ");
    const notes = [...new Set(answers.flatMap((b) => b.notes))];
    return h("section", { class: "panel" },
      h("h2", {}, `${a.model} on ${gpus}`),
      h("p", { class: "lead" }, `${a.engine}, ${a.dtype}, ${number(a.batch)} × (${number(a.prompt)} tokens in, ${number(a.output)} out); 90 % intervals`),
      notes.map((n) => h("p", { class: n.startsWith("does not fit") ? "note bad" : "note" }, n)),
      h("div", { class: "metrics" }, METRICS.map((m) => metric(answers, ...m))));
  }
  function metric(answers, key, name, format, bound) {
    const given = answers.filter((a) => Chip.known(a[key]));
    if (!given.length) return key === "energy_j_per_token" ? "" : h("div", { class: "metric" }, h("h3", {}, name), h("div", { class: "muted" }, "one token only"));
    const high = Math.max(...given.map((a) => a.interval[key][1]));
    return h("div", { class: "metric", id: `metric-${key}` }, h("h3", {}, name), answers.map((a, i) => {
      if (!Chip.known(a[key])) return [who(a, i, true, a.gpu), h("div", { class: "muted" }, "not measured")];
      const [low, up] = a.interval[key], limit = bound && a.bound[bound];
      const [value, unit] = format(a[key]).split(" ");
      return [
        who(a, i, answers.length > 1, a.gpu),
        h("div", { class: "value", "data-value": a[key] }, value, " ", h("small", {}, unit)),
        strip(low, a[key], up, high),
        h("div", { class: "span" }, shared(format(low), "–", format(up))),
        limit ? h("div", { class: "span" }, `${limit}-bound`) : "",
      ];
    }));
  }
  /** Low to high as a band, the value as a mark; both GPUs on one scale from zero. */
  function strip(low, value, high, most) {
    const at = (v) => (v / most) * 196 + 2;
    return s("svg", { class: "strip", viewBox: "0 0 200 14", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("rect", { x: 2, y: 6, width: 196, height: 2, fill: "var(--line)" }),
      s("rect", { x: at(low), y: 3, width: Math.max(1.5, at(high) - at(low)), height: 8, class: "band", rx: 2 }),
      s("rect", { x: at(value) - 1.25, y: 0, width: 2.5, height: 14, class: "mark" }));
  }

  function memory(answers) {
    const parts = MEMORY.filter(([key]) => answers.some((a) => a.memory[key]));
    return part("Memory of a GPU", "", legend(parts.map(([, name, color]) => ({ name, color }))),
      h("div", { class: "sides" }, answers.map((a, i) => {
        const m = a.memory, whole = Math.max(m.capacity_bytes, m.total_bytes);
        const bar = h("div", { class: "stack", role: "img", "aria-label": `${bytes(m.total_bytes)} of ${bytes(m.capacity_bytes)}` },
          parts.map(([key, name, color]) => h("i", { title: `${name} ${bytes(m[key])}`, style: { color, flex: `0 0 ${(100 * m[key]) / whole}%` } })));
        const rest = parts.filter(([key]) => m[key]).map(([key, name]) => `${name} ${bytes(m[key])}`).join(" + ");
        return h("div", {}, who(a, i, answers.length > 1), bar,
          h("div", {}, h("strong", {}, `${bytes(m.total_bytes)} of ${bytes(m.capacity_bytes)}`), m.fits ? ": fits" : ": does not fit", `, largest batch ${number(m.max_batch)}`),
          h("div", { class: "span" }, `${rest}; KV ${bytes(m.kv_bytes_per_token)} a token`));
      })));
  }

  function breakdown(answers) {
    const phases = [["ttft", "To the first token"], ["tpot", "A decode step (mean)"]].filter(([p]) => answers.some((a) => a.breakdown[p].length));
    const bounds = Object.keys(BOUNDS).filter((b) => answers.some((a) => phases.some(([p]) => a.breakdown[p].some((r) => r.bound === b))));
    return part("Where the time goes", "Each operator's share of the step, coloured by what bounds it.",
      legend(bounds.map((b) => ({ name: `${b}-bound`, color: BOUNDS[b] }))),
      phases.map(([phase, name]) => {
        const longest = Math.max(...answers.flatMap((a) => a.breakdown[phase].map((r) => r.us)));
        return [h("h3", {}, name), h("div", { class: "sides" }, answers.map((a, i) =>
          h("div", {}, who(a, i, answers.length > 1), rows(a.breakdown[phase], longest))))];
      }),
      h("p", { class: "span" }, answers.map((a) =>
        `${answers.length > 1 ? `${title(a.gpu)}: ` : ""}time by source of its numbers: ${Object.entries(a.sources).map(([k, v]) => `${percent(v)} ${k}`).join(", ")}. `)));
  }
  function rows(lines, longest) {
    const sorted = [...lines].sort((a, b) => b.us - a.us);
    return h("div", { class: "bars" }, sorted.map((r) => [
      h("span", { title: r.op }, r.role),
      h("span", { title: `${r.bound}-bound, ${r.source}` }, h("i", { class: "bar", style: { display: "block", color: BOUNDS[r.bound] || "var(--muted)", width: `${(100 * r.us) / longest}%` } })),
      h("span", { class: "num" }, `${duration(r.us / 1e6)} · ${percent(r.share)}`),
    ]));
  }

  function rooflines(answers) {
    const points = answers.map((a) => PHASES.flatMap(([phase, name]) => a.breakdown[phase].filter((r) => r.flops && r.bytes).map((r) => ({
      x: r.flops / r.bytes, y: r.flops / (r.us * 1e-6), r: 3 + 9 * Math.sqrt(r.share), title: r.role, phase, bound: r.bound,
      tell: () => [["phase", name], ["time", duration(r.us / 1e6)], ["share", percent(r.share)], ["work", si(r.flops, "FLOP")], ["moved", si(r.bytes, "B")], ["bound", r.bound], ["source", r.source]],
    }))));
    const series = (own) => PHASES.flatMap(([phase, name]) => Object.entries(BOUNDS).map(([bound, color]) => ({
      name, color, hollow: phase === "tpot", points: own.filter((p) => p.phase === phase && p.bound === bound),
    })));
    const found = answers.map((a) => roofs.get(a.gpu));
    const shown = answers.map((a, i) => dtypeRoofs(found[i], a.dtype));
    const xs = reach([...points.flat().map((p) => p.x), ...shown.flatMap((c, i) => c.map((r) => r.value / memoryRoofs(found[i])[0].value))], 2.5);
    const ys = reach([...points.flat().map((p) => p.y), ...shown.flatMap((c) => c.map((r) => r.value))], 2);
    return part("Roofline", "Operators of both phases under the GPU's roofs; a larger dot is a larger share of its phase. Arrow keys walk through them.",
      legend([{ name: "prefill", color: "var(--muted)" }, { name: "decode", color: "var(--muted)", hollow: true },
        ...Object.keys(BOUNDS).filter((b) => points.flat().some((p) => p.bound === b)).map((b) => ({ name: `${b}-bound`, color: BOUNDS[b] }))]),
      h("div", { class: "sides" }, answers.map((a, i) => h("div", {}, who(a, i, answers.length > 1), plot({
        title: `Roofline of ${title(a.gpu)}: prefill and decode operators of ${a.model}`, width: answers.length > 1 ? 560 : 860, height: answers.length > 1 ? 380 : 420,
        x: { label: "FLOP per byte", format: (v) => number(v), range: xs }, y: { label: "FLOP/s", format: (v) => si(v, ""), range: ys },
        lines: roofLines(shown[i], memoryRoofs(found[i]), xs),
        series: series(points[i]),
      })))));
  }
  const memoryRoofs = (found) => Object.values(found.memory).map((m) => ({ name: m.name, value: m.bytes_per_s }));
  function dtypeRoofs(found, dtype) {
    const wanted = { int8: "bf16", int4: "bf16" }[dtype] || dtype;
    const names = Object.keys(found.compute).filter((n) => [`matmul_${wanted}`, "vector_fp32"].includes(n));
    return (names.length ? names : Object.keys(found.compute).slice(0, 1)).map((n) => ({ name: n.replace("matmul_", "").replace("_", " "), value: found.compute[n].flops_per_s }));
  }

  /** A command whose options stay whole where the line breaks. */
  const unbroken = (text) => text.split(/ (?=--)/).map((piece, i) => [i ? " " : "", h("span", { class: "whole" }, piece)]);
  function copyable(text, label) {
    const button = h("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select and copy"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    return h("div", { class: "copy" }, h("code", { class: "command", "aria-label": label }, unbroken(text)), button);
  }
  function commands(answers) {
    const saved = state.model === PASTE ? `Save the pasted config as ${pasted.name}.json first.` : "";
    return part("The same on the command line", saved, answers.map((a) => copyable(command(a.gpu), `Command for ${title(a.gpu)}`)));
  }

  // -- one operator ------------------------------------------------------------------------------------------------------
  const operator = { op: "linear", axes: { m: "8", n: "4096", k: "4096" } };
  const EXAMPLES = { batch: 8, heads: 32, kv_heads: 8, head_dim: 128, q_len: 1, kv_len: 4096, rows: 4096, cols: 4096, m: 8, n: 4096, k: 4096 };
  function operatorForm() {
    const op = known.ops.find((o) => o.name === operator.op);
    const axes = op.axes.split(" ").filter(Boolean);
    const required = new Set(op.required.split(" "));
    const fields = axes.map((name) => {
      const box = h("input", { type: "text", id: `axis-${name}`, value: operator.axes[name] || "", placeholder: required.has(name) ? "" : "default" });
      box.addEventListener("input", () => { operator.axes[name] = box.value.trim(); operatorChanged(); });
      return h("div", { class: "field" }, h("label", { for: `axis-${name}` }, name), box);
    });
    byId("operator-controls").replaceChildren(
      choice("op", "Operator", [["", known.ops.map((o) => o.name)]], operator.op, (name) => {
        operator.op = name;
        const wanted = known.ops.find((o) => o.name === name).required.split(" ").filter(Boolean);
        operator.axes = Object.fromEntries(wanted.map((axis) => [axis, String(EXAMPLES[axis] || 16)]));
        operatorForm(); operatorChanged();
      }),
      h("p", { class: "span" }, op.what), h("div", { class: "metrics" }, fields));
  }
  const typed = (text) => (text === "true" ? true : text === "false" ? false : /^\d{1,15}$/.test(text) ? Number(text) : text);
  async function operatorChanged() {
    const axes = Object.entries(operator.axes).filter(([, v]) => v !== "");
    const asked = { op: operator.op, gpu: state.gpu, ...Object.fromEntries(axes.map(([k, v]) => [k, typed(v)])) };
    let shown;
    try {
      const a = await ask("/api/estimate", asked);
      const line = `chip estimate ${a.op} ${axes.map(([k, v]) => quoted(`${k}=${v}`).replace(/^'(\w+=[\w.]+)'$/, "$1")).join(" ")} --gpu ${quoted(a.gpu)}`;
      const seconds = a.us / 1e6;
      const facts = [
        ["90 % interval", shared(duration(a.interval[0] / 1e6), "–", duration(a.interval[1] / 1e6))], ["bound by", a.bound], ["source", a.source],
        ["work", `${si(a.flops, "FLOP")}, ${si(a.bytes, "B")}`], ["intensity", `${number(a.intensity)} FLOP/B, ridge at ${number(a.ridge_flop_per_byte)}`],
        ["achieves", seconds ? `${si(a.flops / seconds, "FLOP/s")}, ${si(a.bytes / seconds, "B/s")}` : Chip.NONE],
      ];
      const [value, unit] = duration(seconds).split(" ");
      shown = [
        h("div", { class: "metric" }, h("h3", {}, `${a.op} on ${title(a.gpu)}`), h("div", { class: "value", id: "operator-us", "data-value": a.us }, value, " ", h("small", {}, unit)),
          strip(a.interval[0], a.us, a.interval[1], a.interval[1]),
          h("table", {}, h("tbody", {}, facts.map(([k, v]) => h("tr", {}, h("th", { scope: "row" }, k), h("td", { class: "num" }, v)))))),
        h("p", {}), copyable(line, "Command for this operator"),
      ];
    } catch (error) {
      shown = [h("p", { class: "note bad", role: "alert" }, error.message)];
    }
    byId("operator-answer").replaceChildren(...shown);
  }

  // -- start -------------------------------------------------------------------------------------------------------------
  async function start() {
    document.querySelector(".top > div").append(Chip.themeButton());
    const [models, gpus, engines, ops, defaults] = await Promise.all(["models", "gpus", "engines", "ops", "defaults"].map(listed));
    known = { models, gpus, engines, ops, defaults };
    for (const key of ["gpu", "engine", "dtype"]) state[key] = defaults.defaults[key];
    readLink();
    form();
    operatorForm();
    changed();
    operatorChanged();
    addEventListener("hashchange", () => { if (location.hash.startsWith("#?")) { readLink(); form(); changed(); } });
    byId("controls").addEventListener("change", (e) => { if (e.target.id === "gpu") operatorChanged(); });
  }
  start().catch((error) => byId("answer").replaceChildren(h("p", { class: "note bad", role: "alert" }, `The server did not answer: ${error.message}`)));
})();
