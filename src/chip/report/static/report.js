"use strict";
// The report: every section is drawn from the tables of the summary, and says how to make them where they are empty.
(() => {
  const { h, s, known, drawable, shared, si, duration, percent, number, quantity, plot, legend, reach, roofLines } = Chip;
  const { Table, grid, choices } = Grid;
  const COLORS = ["var(--blue)", "var(--red)", "var(--green)", "var(--purple)", "var(--orange)", "var(--sky)"];
  const OTHER = "var(--muted)";
  const MOST_ROWS = 12;
  const data = JSON.parse(document.getElementById("data").textContent);
  const tables = Object.fromEntries(Object.entries(data.tables).map(([name, found]) => [name, new Table(name, found)]));
  const link = { section: "", params: {} };

  // -- address ---------------------------------------------------------------------------------------------------------
  function readLink() {
    const [section, asked] = location.hash.slice(1).split("?");
    link.section = section;
    link.params = Object.fromEntries(new URLSearchParams(asked || ""));
  }
  const stateOf = (section) => (link.section === section ? link.params : {});
  function writeLink(section, params) {
    const asked = new URLSearchParams(params).toString();
    history.replaceState(null, "", `#${section}${asked ? `?${asked}` : ""}`);
  }

  // -- pieces ----------------------------------------------------------------------------------------------------------
  const empty = (what, ...commands) => h("div", { class: "empty" }, h("p", {}, what), commands.map((c) => h("pre", {}, h("code", {}, c))));
  const tableOf = (name, section, show, filters, sort) => grid(tables[name], { show, filters, sort, state: stateOf(section), changed: (state) => writeLink(section, state) });
  function select(title, values, chosen, changed) {
    return h("label", { class: "inline" }, `${title} `, h("select", { onchange: (e) => changed(e.target.value) }, values.map((v) => h("option", { value: v, selected: v === chosen }, v))));
  }
  /** rows: [{name, value, text, color, title}] as horizontal bars on one scale. */
  function bars(rows, most) {
    const scale = most || Math.max(...rows.map((r) => r.value), 1e-300);
    return h("div", { class: "bars" }, rows.map((r) => [
      h("span", {}, r.name),
      h("span", { class: "track", title: r.title }, h("i", { class: "bar", style: { display: "block", color: r.color || COLORS[0], width: `${Math.min(100, (100 * r.value) / scale)}%` } })),
      h("span", { class: "num" }, r.text),
    ]));
  }
  const unique = (values) => [...new Set(values)].filter((v) => v !== null && v !== "");
  const named = (seconds) => duration(seconds).replace(" ", "\u00a0");

  // -- sections ----------------------------------------------------------------------------------------------------------
  function about() {
    const read = tables.sources.objects().filter((f) => f.status === "read");
    const devices = unique(read.map((f) => f.device)), days = unique(read.map((f) => f.made && String(f.made).slice(0, 10))).sort();
    const when = days.length > 1 ? `, ${days[0]} to ${days[days.length - 1]}` : days.length ? `, ${days[0]}` : "";
    return `${read.length} ${read.length === 1 ? "file" : "files"} of results${devices.length ? `, measured on ${devices.join(", ")}` : ""}${when}.`;
  }
  function overview() {
    const cards = tables.headlines.objects();
    if (!cards.length) return empty("None of the files has a figure for a card.");
    return h("div", { class: "metrics wide" }, cards.map((c) => {
      const [value, ...unit] = quantity(c.value, c.unit).split(" ");
      return h("a", { class: "metric", href: `#${c.section}` }, h("h3", {}, c.name), h("div", { class: "value" }, value, " ", h("small", {}, unit.join(" "))), h("div", { class: "span" }, c.detail));
    }));
  }

  function accuracy() {
    const out = [], table = tables.predictions;
    if (table.rows.length) out.push(scatter());
    else out.push(empty("No prediction was held against a real run yet. On a machine with the model's engine:", "chip bench llama-3.1-8b --engine hf-graph -o runs.json", "chip validate runs.json --json > validation.json"));
    if (tables.accuracy.rows.length) {
      out.push(h("h3", {}, "Errors"), tableOf("accuracy", "errors", ["kind", "who", "name", "points", "median_percent", "p90_percent", "bias_percent", "coverage", "target_median_percent", "target_p90_percent", "met"].filter(hasValues(tables.accuracy)), ["kind", "who"], ""));
    }
    if (table.rows.length) out.push(h("h3", {}, "Every prediction"), tableOf("predictions", "accuracy", ["who", "model", "engine", "batch", "prompt", "output", "metric", "predicted", "measured", "error_percent", "inside", "bound"], ["who", "engine", "metric", "model"], ""));
    return out;
  }
  const hasValues = (table) => (column) => table.rows.some((row) => table.get(row, column) !== null && table.get(row, column) !== "");
  function scatter() {
    const box = h("div"), all = tables.predictions.objects().filter((p) => known(p.predicted) && known(p.measured) && p.predicted > 0 && p.measured > 0);
    const metrics = unique(all.map((p) => p.metric));
    let metric = metrics.includes("tpot") ? "tpot" : metrics[0];
    const off = new Set();
    const draw = () => {
      const here = all.filter((p) => p.metric === metric);
      const series = unique(here.map((p) => (p.who === "chip" ? p.engine : p.who))).map((name, i) => ({
        name, color: COLORS[i] || OTHER, off: off.has(name),
        points: here.filter((p) => (p.who === "chip" ? p.engine : p.who) === name).map((p) => ({
          x: p.measured, y: p.predicted, title: `${p.model}, ${p.engine}`,
          tell: () => [["point", `${p.batch} × (${p.prompt} in, ${p.output} out)`], ["predictor", p.who], ["predicted", quantity(p.predicted, p.unit)], ["90 % interval", known(p.low) ? `${quantity(p.low, p.unit)} – ${quantity(p.high, p.unit)}` : Chip.NONE], ["measured", quantity(p.measured, p.unit)], ["error", quantity(p.error_percent, "%")], ["bound", p.bound || Chip.NONE]],
        })),
      }));
      const range = reach(here.flatMap((p) => [p.predicted, p.measured]), 1.5), unit = here[0]?.unit || "";
      box.replaceChildren(
        h("div", { class: "tools screen" }, select("Metric", metrics, metric, (v) => { metric = v; draw(); })),
        legend(series, (item) => { if (off.has(item.name)) off.delete(item.name); else off.add(item.name); draw(); }),
        plot({
          title: `Predicted against measured ${metric}; on the line they are equal`, width: 1180, height: 560,
          x: { label: `measured ${metric}`, format: (v) => quantity(v, unit), range }, y: { label: `predicted ${metric}`, format: (v) => quantity(v, unit), range },
          lines: [1, 0.9, 1.1].map((k) => ({ points: [[range[0], k * range[0]], [range[1], k * range[1]]], color: k === 1 ? "var(--ink)" : "var(--muted)", width: 1.2, dash: k === 1 ? null : "4 4" })),
          series: series.filter((one) => !one.off),
        }));
    };
    draw();
    return box;
  }

  function roofline() {
    const ops = tables.operators.objects().filter((o) => o.status === "ok" && known(o.flops_per_s));
    const kernels = tables.kernels.objects().filter((k) => known(k.intensity) && known(k.flops_per_s));
    const devices = unique([...ops, ...kernels].map((o) => o.device)).concat(unique(tables.roofs.objects().map((r) => r.device)));
    if (!devices.length) return empty("No roofs and no measured operators are among the results. On the device:", "chip calibrate -o my-gpu.json", "chip profile --suite llm -o operators.jsonl");
    const asked = stateOf("roofline");
    const state = { device: asked.device || devices[0], context: asked.context || (ops.some((o) => o.context === "cold") ? "cold" : "all"), q: asked.q || "", off: new Set((asked.off || "").split(",").filter(Boolean)) };
    const box = h("div"), search = h("input", { type: "search", placeholder: "Filter operators …", "aria-label": "Filter the roofline", value: state.q });
    search.addEventListener("input", () => { state.q = search.value; draw(true); });
    const counts = new Map();
    for (const o of ops) counts.set(o.op, (counts.get(o.op) || 0) + 1);
    const kinds = [...counts].sort((a, b) => b[1] - a[1]).map(([k]) => k), chief = kinds.slice(0, COLORS.length);
    const seriesOf = (o) => (chief.includes(o.op) ? o.op : "others");
    const picture = h("div");
    function draw(changed) {
      if (changed) writeLink("roofline", Object.fromEntries([["device", state.device], ["context", state.context], ["q", state.q], ["off", [...state.off].join(",")]].filter(([, v]) => v)));
      const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
      const here = ops.filter((o) => o.device === state.device && (state.context === "all" || o.context === state.context) && words.every((w) => `${o.label} ${o.implementation} ${o.dtype} ${o.bound}`.toLowerCase().includes(w)));
      const drawn = here.filter((o) => o.flops > 0);
      const roofs = tables.roofs.objects().filter((r) => r.device === state.device);
      const own = roofs.filter((r) => r.source === roofs[0].source);
      const compute = own.filter((r) => r.kind === "compute" && !state.off.has(r.name)), memory = own.filter((r) => r.kind === "memory" && !state.off.has(r.name));
      const point = (o) => ({
        x: o.intensity, y: o.flops_per_s, title: o.label, label: o.label,
        tell: () => [["implementation", `${o.implementation}, ${o.context}`], ["P50", duration(o.p50_us / 1e6)], ["achieves", si(o.flops_per_s, "FLOP/s")], ["", si(o.bytes_per_s, "B/s")], ["intensity", `${number(o.intensity)} FLOP/B`], ["of its roof", `${percent(o.share_of_roof)} (${o.roof})`], ["bound", o.bound]],
      });
      const names = unique(drawn.map(seriesOf)).sort((a, b) => (chief.indexOf(a) + 99) % 99 - (chief.indexOf(b) + 99) % 99);
      const series = names.map((name) => ({ name, color: COLORS[chief.indexOf(name)] || OTHER, off: state.off.has(name), points: drawn.filter((o) => seriesOf(o) === name).map(point) }));
      const pairs = kernels.filter((k) => k.device === state.device).map((k) => kernelPair(k));
      if (pairs.length) series.push({ name: "kernels: baseline", color: OTHER, points: pairs.map((p) => p[0]) }, { name: "kernels: ours", color: "var(--ink)", points: pairs.map((p) => p[1]) });
      const visible = series.filter((one) => !state.off.has(one.name));
      const xs = reach([...visible.flatMap((one) => one.points.map((p) => p.x)), ...compute.flatMap((c) => memory.map((m) => c.value / m.value))], 2.5);
      const ys = reach([...visible.flatMap((one) => one.points.map((p) => p.y)), ...compute.map((c) => c.value)], 2);
      const toggle = (item) => { if (state.off.has(item.name)) state.off.delete(item.name); else state.off.add(item.name); draw(true); };
      const roofItems = own.filter((r) => r.kind !== "launch").map((r) => ({ name: r.name, color: r.kind === "memory" ? OTHER : "var(--ink)", off: state.off.has(r.name), hollow: true }));
      picture.replaceChildren(
        legend(series.map((one) => ({ ...one, off: state.off.has(one.name) })), toggle), legend(roofItems, toggle),
        plot({
          title: `Roofline of ${state.device} with ${drawn.length} operators`, width: 1180, height: 560,
          x: { label: "FLOP per byte", format: (v) => number(v), range: xs }, y: { label: "FLOP/s", format: (v) => si(v, ""), range: ys },
          lines: compute.length && memory.length ? roofLines(compute, memory, xs) : [], series: visible, pairs,
          picked: (p) => { location.hash = `operators?q=${encodeURIComponent(p.label || "")}`; },
        }),
        h("p", { class: "span" }, `${number(drawn.length)} operators; ${here.length - drawn.length ? `${here.length - drawn.length} without arithmetic are not drawn; ` : ""}roofs from ${roofs[0] ? `${roofs[0].source}, ${roofs[0].basis}` : "nowhere"}. A click on a dot, or Enter, finds it in the table.`));
    }
    box.append(h("div", { class: "tools screen" }, search,
      devices.length > 1 ? select("Device", unique(devices), state.device, (v) => { state.device = v; draw(true); }) : "",
      select("Context", ["all", ...unique(ops.map((o) => o.context))], state.context, (v) => { state.context = v; draw(true); })), picture);
    draw(false);
    return box;
  }
  function kernelPair(k) {
    const tell = (who, p50, rate) => () => [["shape", `${k.shape} ${k.dtype || ""}`], ["", who], ["P50", duration(p50 / 1e6)], ["achieves", si(rate, "FLOP/s")], ["speedup", quantity(k.speedup_p50, "x")]];
    const title = `${k.kernel} ${k.step || ""}`;
    return [
      { x: k.intensity, y: k.baseline_flops_per_s, title, tell: tell(k.baseline, k.baseline_p50_us, k.baseline_flops_per_s) },
      { x: k.intensity, y: k.flops_per_s, title, tell: tell("ours", k.optimised_p50_us, k.flops_per_s) },
    ];
  }

  function calibration() {
    const table = tables.ceilings;
    if (!table.rows.length) return empty("No hardware profile is among the results. On the device:", "chip calibrate --full -o my-gpu.json");
    const all = table.objects(), sources = unique(all.filter((c) => c.group === "ceiling").map((c) => c.source));
    const box = h("div");
    let source = sources[0];
    const draw = () => {
      const own = all.filter((c) => c.source === source);
      const promised = own.filter((c) => c.group === "ceiling" && known(c.share_of_datasheet));
      const factors = own.filter((c) => c.group === "factor");
      const curves = tables.curves.objects().filter((c) => c.source === source);
      box.replaceChildren(
        sources.length > 1 ? h("div", { class: "tools screen" }, select("Profile", sources, source, (v) => { source = v; draw(); })) : "",
        h("div", { class: "sides" },
          h("div", {}, h("h3", {}, "Measured share of the datasheet"), bars(promised.map((c) => ({
            name: c.name, value: c.share_of_datasheet, title: c.method, color: c.name.endsWith("_settled") ? "var(--sky)" : COLORS[0],
            text: `${shared(quantity(c.value, c.unit), "of", quantity(c.datasheet, c.unit))} · ${percent(c.share_of_datasheet)}`,
          })), 1)),
          h("div", {}, h("h3", {}, "Calibration factors: realistic over ideal"), h("div", { class: "bars" }, factors.map((c) => [
            h("span", { title: c.method }, c.name), strip(c.low, c.value, c.high), h("span", { class: "num" }, `${number(c.value, 3)} (${number(c.low, 3)} – ${number(c.high, 3)})`),
          ])))),
        curves.length ? h("h3", {}, "Curves") : "",
        h("div", { class: "sides" }, unique(curves.map((c) => c.curve)).map((name) => curve(name, curves.filter((c) => c.curve === name)))));
    };
    draw();
    return [box, h("h3", {}, "Every ceiling, factor, power and host term"), tableOf("ceilings", "calibration", ["device", "group", "name", "value", "low", "high", "datasheet", "share_of_datasheet", "samples", "source"], ["group", "source"], "")];
  }
  function strip(low, value, high) {
    const most = Math.max(1, high), at = (v) => (v / most) * 196 + 2;
    return s("svg", { class: "strip", viewBox: "0 0 200 14", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("rect", { x: 2, y: 6, width: 196, height: 2, fill: "var(--line)" }),
      s("rect", { x: at(low), y: 3, width: Math.max(1.5, at(high) - at(low)), height: 8, class: "band", rx: 2 }),
      s("rect", { x: at(value) - 1.25, y: 0, width: 2.5, height: 14, class: "mark" }));
  }
  function curve(name, all) {
    const { x_name: xName, x_unit: xUnit, y_name: yName, y_unit: yUnit } = all[0];
    const points = all.filter((p) => drawable(p.x) && drawable(p.y));
    const xs = points.map((p) => p.x), ys = points.map((p) => p.y);
    const most = (values) => values.reduce((a, b) => Math.max(a, b), 1e-12), least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
    const wide = most(xs) / least(xs) > 20 && name !== "staircase";
    const plain = (u) => u === "1" || u === "FLOP/B";
    const format = (u) => (v) => (plain(u) ? number(v) : quantity(v, u));
    const label = (name_, u) => (u === "FLOP/B" ? `${name_}, FLOP/B` : name_);
    const sorted = [...points].sort((a, b) => a.x - b.x), single = sorted.every((p, i) => !i || p.x > sorted[i - 1].x * 1.01);
    return h("div", {}, h("h4", {}, name.replaceAll("_", " ")), plot({
      title: `${name}: ${yName} over ${xName}`, width: 560, height: 300,
      x: { label: label(xName, xUnit), format: format(xUnit), range: wide ? reach(xs, 1.3) : [0, most(xs) * 1.03], log: wide, binary: xUnit === "B" },
      y: { label: label(yName, yUnit), format: format(yUnit), range: [0, most(ys) * 1.08], log: false },
      lines: single ? [{ points: sorted.map((p) => [p.x, p.y]), color: "var(--blue)", width: 1.2 }] : [],
      series: [{ name, color: "var(--blue)", points: points.map((p) => ({ x: p.x, y: p.y, tell: () => [[label(xName, xUnit), format(xUnit)(p.x)], [label(yName, yUnit), format(yUnit)(p.y)]] })) }],
    }));
  }

  function operators() {
    if (!tables.operators.rows.length) return empty("No measured operators are among the results. On the device:", "chip profile --suite llm -o operators.jsonl");
    return tableOf("operators", "operators", ["label", "implementation", "context", "p50_us", "p95_us", "flops_per_s", "bytes_per_s", "share_of_roof", "bound", "verdict"], ["op", "context", "dtype", "bound", "status", "source"], "");
  }

  function kernels() {
    const table = tables.kernels;
    if (!table.rows.length) return empty("No kernels of our own were measured yet. On an NVIDIA GPU with nvcc and Triton:", "chip kernels bench -o artifacts");
    const ladder = table.objects().filter((k) => k.step && known(k.flops_per_s));
    const groups = unique(ladder.map((k) => `${k.kernel}, ${k.shape} ${k.dtype || ""}`));
    return [
      h("div", { class: "sides" }, groups.slice(0, 8).map((name) => {
        const steps = ladder.filter((k) => `${k.kernel}, ${k.shape} ${k.dtype || ""}` === name);
        const memory = steps.every((k) => known(k.bytes_per_s) && k.intensity < 20);
        const value = (k) => (memory ? k.bytes_per_s : k.flops_per_s);
        return h("div", {}, h("h3", {}, name), bars(steps.map((k) => ({ name: k.step, value: value(k), text: `${si(value(k), memory ? "B/s" : "FLOP/s")} · ${known(k.speedup_p50) ? `${number(k.speedup_p50, 3)} x ${k.baseline}` : ""}` }))));
      })),
      tableOf("kernels", "kernels", ["kernel", "step", "shape", "dtype", "baseline", "baseline_p50_us", "optimised_p50_us", "speedup_p50", "speedup_p95", "verdict", "max_abs_error", "share_of_roof"], ["kernel", "dtype", "baseline"], ""),
    ];
  }

  function replay() {
    const found = tables.replays.objects();
    if (!found.length) return empty("No step was captured and replayed yet. On the device:", "chip capture bloom-560m --batch 1 --prompt 5 -o trace.json", "chip replay trace.json", "chip explain trace.json replay.json");
    return found.map((r) => {
      const own = (name) => tables[name].objects().filter((t) => t.title === r.title && t.source === r.source);
      const tiers = own("replay_tiers"), worst = own("replay_kernels").slice(0, 10);
      return h("div", {}, h("h3", {}, r.title),
        h("p", { class: "lead" }, `whole step ${duration(r.full_model_us / 1e6)}, sum of its kernels ${duration(r.from_kernels_us / 1e6)}: ${quantity(r.error_percent, "%")}. Unexplained: ${quantity(r.unexplained_percent, "%")}. Replayed: ${percent(r.launches_covered)} of launches, ${percent(r.time_covered)} of GPU time.`),
        h("div", { class: "sides" },
          h("div", {}, h("h4", {}, "Tiers"), bars(tiers.map((t, i) => ({ name: t.tier, value: t.total_us, color: COLORS[i] || OTHER, title: t.method, text: `${named(t.total_us / 1e6)} · ${number(t.unique_kernels)} unique` })))),
          h("div", {}, h("h4", {}, "From kernels to wall time"), waterfall(own("replay_terms").sort((a, b) => a.order - b.order)))),
        worst.length ? [h("h4", {}, "Kernels that replay worst"), h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["kernel", "tier", "launches", "captured", "replayed", "error"].map((c, i) => h("th", { scope: "col", class: i > 1 ? "num" : null }, c)))),
          h("tbody", {}, worst.map((k) => h("tr", {}, h("td", {}, k.kernel), h("td", {}, k.tier), h("td", { class: "num" }, number(k.launches)), h("td", { class: "num" }, quantity(k.captured_us, "us")), h("td", { class: "num" }, quantity(k.replayed_us, "us")), h("td", { class: "num" }, quantity(k.error_percent, "%")))))))] : "");
    });
  }
  /** Levels as bars from zero, signed steps as bars that hang between them. */
  function waterfall(terms) {
    let at = 0;
    const rows = terms.map((t) => {
      const from = t.total ? 0 : at, to = t.total ? t.us : at + t.us;
      at = to;
      return { ...t, from: Math.min(from, to), to: Math.max(from, to) };
    });
    const most = Math.max(...rows.map((r) => r.to), 1e-9);
    return h("div", { class: "bars" }, rows.map((r) => [
      h("span", {}, r.term),
      h("span", { class: "track" }, h("i", { class: "bar", style: { display: "block", color: r.total ? "var(--ink)" : r.order === 1 ? "var(--muted)" : r.us < 0 ? "var(--green)" : "var(--red)", marginLeft: `${(100 * Math.max(0, r.from)) / most}%`, width: `${(100 * (r.to - Math.max(0, r.from))) / most}%` } })),
      h("span", { class: "num" }, `${r.us > 0 && !r.total && r.order > 1 ? "+" : r.us < 0 ? "−" : ""}${named(Math.abs(r.us) / 1e6)}`),
    ]));
  }

  function runs() {
    const table = tables.runs;
    if (!table.rows.length) return empty("No model was run for real yet. On a machine with the engine:", "chip bench llama-3.1-8b --engine hf-graph -o runs.json");
    const ok = table.objects().filter((r) => r.status === "ok");
    const engines = unique(ok.map((r) => r.engine));
    const top = [...ok].sort((a, b) => b.tokens_per_s - a.tokens_per_s).slice(0, MOST_ROWS);
    return [
      top.length ? [h("h3", {}, top.length < ok.length ? `Throughput: the ${top.length} fastest of ${ok.length} runs` : "Throughput"),
        legend(engines.map((name, i) => ({ name, color: COLORS[i] || OTHER }))),
        bars(top.map((r) => ({ name: `${r.model}, ${r.batch} × (${r.prompt} + ${r.output})`, value: r.tokens_per_s, color: COLORS[engines.indexOf(r.engine)] || OTHER, text: `${number(r.tokens_per_s)} tok/s`, title: `${r.engine} ${r.variant}` })))] : "",
      tableOf("runs", "runs", ["model", "gpu", "engine", "variant", "batch", "prompt", "output", "tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms", "latency_p50_ms", "latency_p95_ms", "vram_bytes", "joules_per_token", "status"].filter((c) => c !== "variant" || hasValues(table)(c)), ["model", "engine", "dtype", "gpu", "status", "source"], ""),
    ];
  }

  function comparisons() {
    if (!tables.comparisons.rows.length) return empty("There are no two runs of the same model and scenario. Run it again, or with another engine:", "chip bench llama-3.1-8b --engine hf-eager -o other.json");
    return tableOf("comparisons", "compared", ["model", "point", "first", "second", "metric", "first_value", "second_value", "ratio", "low", "high", "verdict"], ["model", "metric", "verdict"], "");
  }

  function provenance() {
    return tableOf("sources", "provenance", ["file", "schema", "status", "reason", "records", "made", "device", "torch", "cuda", "driver", "id"], ["status", "schema"], "");
  }

  // [id, name in the bar, title, lead, what draws it]
  const SECTIONS = [
    ["overview", "Overview", "Overview", about(), overview],
    ["accuracy", "Accuracy", "Predicted and measured", "Predictions against real runs. On the line they are equal, above it the prediction was too slow; the dashed lines are 10 % off.", accuracy],
    ["roofline", "Roofline", "Roofline", "Measured operators under the device's measured roofs. Hide and show series and roofs with their buttons; arrow keys walk through the dots.", roofline],
    ["calibration", "Calibration", "Calibration", "What the device really does, beside what its datasheet promises.", calibration],
    ["operators", "Operators", "Operators", "Every measured operator, with what bounds it.", operators],
    ["kernels", "Kernels", "Kernels", "Kernels of our own, against PyTorch and cuBLAS.", kernels],
    ["replay", "Replay", "Capture and replay", "Whether the kernels of a step explain its time, and what the rest is.", replay],
    ["runs", "Benchmark", "LLM benchmark", "Models run for real.", runs],
    ["compared", "Compared", "Runs compared", "Runs of one model and scenario, two by two. A ratio below 1 means that the second is faster; unclear means that the samples do not tell.", comparisons],
    ["provenance", "Provenance", "Provenance", "Every file behind this page, and where it was measured.", provenance],
  ];

  /** What cannot be drawn costs its own section only. */
  function drawn(make) {
    try { return make(); } catch (error) { return h("p", { class: "note bad" }, `This section could not be drawn: ${error.message}. Its figures are in summary.csv.`); }
  }
  function draw() {
    readLink();
    const main = document.getElementById("report"), nav = document.querySelector(".top nav");
    nav.replaceChildren(...SECTIONS.map(([id, short]) => h("a", { href: `#${id}` }, short)));
    main.replaceChildren(...SECTIONS.map(([id, , title, lead, make]) => h("section", { class: "panel", id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), lead ? h("p", { class: "lead" }, lead) : "", drawn(make))),
      h("footer", { class: "muted" }, `Made by chip ${data.chip}. All figures are in `, h("a", { href: "summary.json" }, "summary.json"), " and ", h("a", { href: "summary.csv" }, "summary.csv"), "."));
    const wanted = link.section && document.getElementById(link.section === "errors" ? "accuracy-table" : link.section);
    if (wanted) wanted.scrollIntoView();
  }
  document.querySelector(".top > div").append(Chip.themeButton());
  draw();
  addEventListener("hashchange", () => {
    readLink();
    if (Object.keys(link.params).length) draw();
  });
  addEventListener("beforeprint", () => document.documentElement.classList.add("printing"));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
