"use strict";
// How far off: for each class a box from a quarter to three quarters of its predictions, a line from the 5th to the 95th
// percentile, over an axis of ratios with a line at 1.
const Strips = (() => {
  const { h, s, number } = Chip;
  const { redrawn } = Plots;
  const LETTER = 6.7, // pixels, at most
    ROW = 30,
    TOP = 6,
    FOOT = 34;
  const TICKS = [1, 0.5, 2, 0.25, 4, 0.8, 1.25, 0.65, 1.5], // those that matter most first
    APART = 46; // pixels between two

  /** rows: of the summary's spreads; title: what a reader hears of it. */
  function strips(rows, title) {
    const figure = h("div", { class: "figure" });
    redrawn(figure, Math.min(1180, Math.max(280, innerWidth - 60)), (W) => figure.replaceChildren(drawn(rows, title, W)));
    return figure;
  }
  function drawn(rows, title, W) {
    const narrow = W < 620,
      left = narrow ? 6 : Math.min(0.4 * W, Math.max(...rows.map((r) => r.name.length)) * LETTER + 14),
      right = 66,
      each = narrow ? ROW + 16 : ROW,
      H = rows.length * each + TOP + FOOT;
    const most = Math.max(1.3, ...rows.flatMap((r) => [r.p95, 1 / Math.max(r.p5, 0.01)])),
      end = Math.log(Math.min(most * 1.05, 8));
    const at = (ratio) => left + ((Math.max(-end, Math.min(end, Math.log(Math.max(ratio, 1e-6)))) + end) / (2 * end)) * (W - left - right);
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "plot strips", role: "img", "aria-label": title });
    svg.append(s("rect", { x: at(0.9), y: 0, width: at(1.1) - at(0.9), height: H - FOOT, class: "within" }));
    const ticks = [];
    for (const v of TICKS) {
      if (Math.abs(Math.log(v)) > end || ticks.some((u) => Math.abs(at(u) - at(v)) < APART)) continue;
      ticks.push(v);
      svg.append(s("line", { x1: at(v), x2: at(v), y1: 0, y2: H - FOOT, class: v === 1 ? "one" : "grid" }));
      svg.append(s("text", { x: at(v), y: H - FOOT + 16, "text-anchor": "middle", class: "tick" }, `${v} ×`));
    }
    svg.append(s("text", { x: (left + W - right) / 2, y: H - 3, "text-anchor": "middle", class: "axis" }, "predicted over measured"));
    rows.forEach((r, i) => {
      const y = TOP + i * each + (narrow ? 28 : ROW / 2);
      const name = narrow ? { x: left, y: y - 13, "text-anchor": "start" } : { x: left - 8, y: y + 4, "text-anchor": "end" };
      const row = s("g", { class: r.who === "chip" ? (r.bound === "gpu" ? "own" : "own host") : "peer" });
      row.append(
        s("title", {}, `${r.name}: median ${number(r.median, 3)}, from ${number(r.p5, 3)} to ${number(r.p95, 3)}`),
        s("line", { x1: at(r.p5), x2: at(r.p95), y1: y, y2: y, class: "whisker" }),
        s("rect", { x: at(r.p25), y: y - 6, width: Math.max(1, at(r.p75) - at(r.p25)), height: 12, class: "box" }),
        s("rect", { x: at(r.median) - 1.25, y: y - 9, width: 2.5, height: 18, class: "median" }),
      );
      svg.append(row, s("text", { ...name, class: "axis" }, r.name), s("text", { x: W - right + 8, y: y + 4, class: "tick" }, `n ${number(r.points)}`));
    });
    return svg;
  }
  return { strips };
})();
