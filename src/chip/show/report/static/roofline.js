"use strict";
// Measured operators and kernels under the roofs of their device.
const Roofline = (() => {
  const { h, known, si, duration, percent, number, quantity } = Chip;
  const { plot, legend, reach, roofLines } = Plots;
  const { tables, writeLink, stateOf, empty, select, unique, COLORS, OTHER } = Report;

  function roofline() {
    const ops = tables.operators.objects().filter((o) => o.status === "ok" && known(o.flops_per_s));
    const kernels = tables.kernels.objects().filter((k) => known(k.intensity) && known(k.flops_per_s));
    const devices = unique([...ops, ...kernels].map((o) => o.device)).concat(
      unique(tables.roofs.objects().map((r) => r.device)),
    );
    if (!devices.length)
      return empty(
        "No roofs and no measured operators are among the results. On the device:",
        "chip calibrate -o my-gpu.json",
        "chip profile --suite llm -o operators.jsonl",
      );
    const asked = stateOf("roofline");
    const state = {
      device: asked.device || devices[0],
      context: asked.context || (ops.some((o) => o.context === "cold") ? "cold" : "all"),
      q: asked.q || "",
      off: new Set((asked.off || "").split(",").filter(Boolean)),
    };
    const box = h("div"),
      search = h("input", {
        type: "search",
        placeholder: "Filter operators …",
        "aria-label": "Filter the roofline",
        value: state.q,
      });
    search.addEventListener("input", () => {
      state.q = search.value;
      draw(true);
    });
    const counts = new Map();
    for (const o of ops) counts.set(o.op, (counts.get(o.op) || 0) + 1);
    const kinds = [...counts].sort((a, b) => b[1] - a[1]).map(([k]) => k),
      chief = kinds.slice(0, COLORS.length);
    const seriesOf = (o) => (chief.includes(o.op) ? o.op : "others");
    const picture = h("div");
    function draw(changed) {
      if (changed)
        writeLink(
          "roofline",
          Object.fromEntries(
            [
              ["device", state.device],
              ["context", state.context],
              ["q", state.q],
              ["off", [...state.off].join(",")],
            ].filter(([, v]) => v),
          ),
        );
      const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
      const here = ops.filter(
        (o) =>
          o.device === state.device &&
          (state.context === "all" || o.context === state.context) &&
          words.every((w) => `${o.label} ${o.implementation} ${o.dtype} ${o.bound}`.toLowerCase().includes(w)),
      );
      const drawn = here.filter((o) => o.flops > 0);
      const roofs = tables.roofs.objects().filter((r) => r.device === state.device);
      const own = roofs.filter((r) => r.source === roofs[0].source);
      const compute = own.filter((r) => r.kind === "compute" && !state.off.has(r.name)),
        memory = own.filter((r) => r.kind === "memory" && !state.off.has(r.name));
      const point = (o) => ({
        x: o.intensity,
        y: o.flops_per_s,
        title: o.label,
        label: o.label,
        tell: () => [
          ["implementation", `${o.implementation}, ${o.context}`],
          ["P50", duration(o.p50_us / 1e6)],
          ["achieves", si(o.flops_per_s, "FLOP/s")],
          ["", si(o.bytes_per_s, "B/s")],
          ["intensity", `${number(o.intensity)} FLOP/B`],
          ["of its roof", `${percent(o.share_of_roof)} (${o.roof})`],
          ["bound", o.bound],
        ],
      });
      const names = unique(drawn.map(seriesOf)).sort(
        (a, b) => ((chief.indexOf(a) + 99) % 99) - ((chief.indexOf(b) + 99) % 99),
      );
      const series = names.map((name, i) => ({
        name,
        color: COLORS[chief.indexOf(name)] || OTHER,
        shape: i,
        off: state.off.has(name),
        points: drawn.filter((o) => seriesOf(o) === name).map(point),
      }));
      const pairs = kernels.filter((k) => k.device === state.device).map((k) => kernelPair(k));
      if (pairs.length)
        series.push(
          { name: "kernels: baseline", color: OTHER, points: pairs.map((p) => p[0]) },
          { name: "kernels: ours", color: "var(--ink)", points: pairs.map((p) => p[1]) },
        );
      const visible = series.filter((one) => !state.off.has(one.name));
      const xs = reach(
        [
          ...visible.flatMap((one) => one.points.map((p) => p.x)),
          ...compute.flatMap((c) => memory.map((m) => c.value / m.value)),
        ],
        2.5,
      );
      const ys = reach([...visible.flatMap((one) => one.points.map((p) => p.y)), ...compute.map((c) => c.value)], 2);
      const toggle = (item) => {
        if (state.off.has(item.name)) state.off.delete(item.name);
        else state.off.add(item.name);
        draw(true);
      };
      const roofItems = own
        .filter((r) => r.kind !== "launch")
        .map((r) => ({
          name: r.name,
          color: r.kind === "memory" ? OTHER : "var(--ink)",
          off: state.off.has(r.name),
          hollow: true,
        }));
      picture.replaceChildren(
        legend(
          series.map((one) => ({ ...one, off: state.off.has(one.name) })),
          toggle,
        ),
        legend(roofItems, toggle),
        plot({
          title: `Roofline of ${state.device} with ${drawn.length} operators`,
          width: 1180,
          height: 560,
          x: { label: "FLOP per byte", format: (v) => number(v), range: xs },
          y: { label: "FLOP/s", format: (v) => si(v, ""), range: ys },
          lines: compute.length && memory.length ? roofLines(compute, memory, xs) : [],
          series: visible,
          pairs,
          picked: (p) => {
            location.hash = `operators?q=${encodeURIComponent(p.label || "")}`;
          },
        }),
        h(
          "p",
          { class: "span" },
          `${number(drawn.length)} operators; ${here.length - drawn.length ? `${here.length - drawn.length} without arithmetic are not drawn; ` : ""}roofs from ${roofs[0] ? `${roofs[0].source}, ${roofs[0].basis}` : "nowhere"}. A click on a dot, or Enter, finds it in the table.`,
        ),
      );
    }
    box.append(
      h(
        "div",
        { class: "tools screen" },
        search,
        devices.length > 1
          ? select("Device", unique(devices), state.device, (v) => {
              state.device = v;
              draw(true);
            })
          : "",
        select("Context", ["all", ...unique(ops.map((o) => o.context))], state.context, (v) => {
          state.context = v;
          draw(true);
        }),
      ),
      picture,
    );
    draw(false);
    return box;
  }
  function kernelPair(k) {
    const tell = (who, p50, rate) => () => [
      ["shape", `${k.shape} ${k.dtype || ""}`],
      ["", who],
      ["P50", duration(p50 / 1e6)],
      ["achieves", si(rate, "FLOP/s")],
      ["speedup", quantity(k.speedup_p50, "x")],
    ];
    const title = `${k.kernel} ${k.step || ""}`;
    return [
      {
        x: k.intensity,
        y: k.baseline_flops_per_s,
        title,
        tell: tell(k.baseline, k.baseline_p50_us, k.baseline_flops_per_s),
      },
      { x: k.intensity, y: k.flops_per_s, title, tell: tell("ours", k.optimised_p50_us, k.flops_per_s) },
    ];
  }

  return { roofline };
})();
