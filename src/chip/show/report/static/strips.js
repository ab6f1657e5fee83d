"use strict";
// Error strips: every prediction as a mark at its signed error, one row for each predictor.
const Strips = (() => {
  const { h, s, known, quantity } = Chip;
  const L = 190,
    R = 96,
    ROW = 34,
    MOST = 100; // percent; what is further off stands at the edge and is counted

  const middle = (sorted) => sorted[Math.floor((sorted.length - 1) / 2)];
  /** groups: [{name, points: [{error, title}]}] */
  function strips(groups, title) {
    const W = Math.min(1180, Math.max(320, innerWidth - 60)),
      left = W < 600 ? 108 : L,
      right = W < 600 ? 64 : R,
      H = groups.length * ROW + 34;
    const at = (percent) => left + ((Math.max(-MOST, Math.min(MOST, percent)) + MOST) / (2 * MOST)) * (W - left - right);
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "plot strips", role: "img", "aria-label": title });
    svg.append(s("rect", { x: at(-10), y: 0, width: at(10) - at(-10), height: H - 30, class: "within" }));
    for (const v of W < 600 ? [-100, 0, 100] : [-100, -50, 0, 50, 100]) {
      svg.append(s("line", { x1: at(v), x2: at(v), y1: 0, y2: H - 30, class: "grid" }));
      svg.append(s("text", { x: at(v), y: H - 14, "text-anchor": "middle", class: "tick" }, `${v > 0 ? "+" : ""}${v} %`));
    }
    groups.forEach((group, i) => {
      const y = i * ROW + ROW / 2;
      const errors = group.points.map((p) => p.error).sort((a, b) => a - b);
      svg.append(s("text", { x: left - 8, y: y + 4, "text-anchor": "end", class: "axis" }, short(group.name, W < 600 ? 15 : 28)));
      group.points.forEach((p, n) => {
        const jitter = ((n * 7) % 11) - 5; // spread, the same every time
        const dot = s("circle", { cx: at(p.error), cy: y + jitter, r: 2.6, class: group.own ? "own" : "peer" });
        dot.append(s("title", {}, `${p.title}: ${quantity(p.error, "%")}`));
        svg.append(dot);
      });
      svg.append(s("rect", { x: at(middle(errors)) - 1.5, y: y - 12, width: 3, height: 24, class: "median" }));
      const off = errors.filter((e) => Math.abs(e) > MOST).length;
      svg.append(s("text", { x: W - right + 8, y: y + 4, class: "tick" }, off ? `${off} beyond` : `${errors.length}`));
    });
    return h("div", { class: "figure" }, svg);
  }
  const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  /** Rows of the summary's predictions, by predictor; CHIP's own first, one row for each engine. */
  function byPredictor(rows) {
    const groups = new Map();
    const point = (p) => `${p.model}, ${p.engine}, ${p.batch} × (${p.prompt} + ${p.output}), ${p.metric}`;
    const asked = new Set(rows.filter((p) => p.who !== "chip").map(point)); // what others were asked, too
    const add = (name, order, p) => {
      if (!groups.has(name)) groups.set(name, { name, order, own: p.who === "chip", points: [] });
      groups.get(name).points.push({ error: p.error_percent, title: point(p) });
    };
    for (const p of rows) {
      if (!known(p.error_percent)) continue;
      if (p.who !== "chip") add(p.who, 2, p);
      else {
        add(`CHIP, ${p.engine}, all`, 0, p);
        if (asked.has(point(p))) add(`CHIP, the others' points`, 1, p);
      }
    }
    return [...groups.values()].sort((a, b) => a.order - b.order || Chip.byText(a.name, b.name));
  }

  return { strips, byPredictor };
})();
