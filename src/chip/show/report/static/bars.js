"use strict";
// Bars: one value each, an interval each, or a sum that leads from one level to the next.
const Bars = (() => {
  const { h, s, duration } = Chip;

  /** Low to high as a band, the value as a mark, on one scale from zero; a band that is longer than the scale ends in a
   *  point. */
  function strip(low, value, high, most) {
    const at = (v) => (Math.min(v, most) / most) * 196 + 2;
    return s(
      "svg",
      { class: "strip", viewBox: "0 0 200 14", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("rect", { x: 2, y: 6, width: 196, height: 2, fill: "var(--line)" }),
      s("rect", { x: at(low), y: 3, width: Math.max(1.5, at(high) - at(low)), height: 8, class: "band", rx: 2 }),
      high > most ? s("path", { d: "M192 0L200 7L192 14Z", class: "mark" }) : "",
      s("rect", { x: at(value) - 1.25, y: 0, width: 2.5, height: 14, class: "mark" }),
    );
  }

  /** rows: [{name, value, text, color, title}] as horizontal bars on one scale. */
  function bars(rows, most) {
    const scale = most || Math.max(...rows.map((r) => r.value), 1e-300);
    return h(
      "div",
      { class: "bars" },
      rows.map((r) => [
        h("span", {}, r.name),
        h(
          "span",
          { class: "track", title: r.title },
          h("i", {
            class: r.pattern ? `bar ${r.pattern}` : "bar",
            style: {
              color: r.color || "var(--blue)",
              width: `${Math.min(100, (100 * r.value) / scale)}%`,
            },
          }),
        ),
        h("span", { class: "num" }, r.text),
      ]),
    );
  }
  /** Levels as bars from zero, signed steps as bars that hang between them. */
  function waterfall(terms) {
    let at = 0;
    const rows = terms.map((t) => {
      const from = t.total ? 0 : at,
        to = t.total ? t.us : at + t.us;
      at = to;
      return { ...t, from: Math.min(from, to), to: Math.max(from, to) };
    });
    const most = Math.max(...rows.map((r) => r.to), 1e-9);
    return h(
      "div",
      { class: "bars" },
      rows.map((r) => [
        h("span", {}, r.term),
        h(
          "span",
          { class: "track" },
          h("i", {
            class: "bar",
            style: {
              color: r.total ? "var(--ink)" : r.order === 1 ? "var(--muted)" : r.us < 0 ? "var(--green)" : "var(--red)",
              marginLeft: `${(100 * Math.max(0, r.from)) / most}%`,
              width: `${(100 * (r.to - Math.max(0, r.from))) / most}%`,
            },
          }),
        ),
        h(
          "span",
          { class: "num" },
          `${r.us > 0 && !r.total && r.order > 1 ? "+" : r.us < 0 ? "−" : ""}${named(Math.abs(r.us) / 1e6)}`,
        ),
      ]),
    );
  }

  const named = (seconds) => duration(seconds).replace(" ", "\u00a0");

  return { bars, strip, waterfall };
})();
