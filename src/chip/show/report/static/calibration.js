"use strict";
// Ceilings beside the datasheet, calibration factors, and the measured curves.
const Calibration = (() => {
  const { h, known, shared, percent, number, quantity } = Chip;
  const { plot, reach, drawable } = Plots;
  const { bars, strip } = Bars;
  const { tables, empty, tableOf, words, select, unique, COLORS } = Report;

  function calibration() {
    const table = tables.ceilings;
    if (!table.rows.length)
      return empty("No hardware profile is among the results. On the device:", "chip calibrate --full -o my-gpu.json");
    const all = table.objects(),
      sources = unique(all.filter((c) => c.group === "ceiling").map((c) => c.source));
    const box = h("div");
    let source = sources[0];
    const draw = () => {
      const own = all.filter((c) => c.source === source);
      const promised = own.filter((c) => c.group === "ceiling" && known(c.share_of_datasheet));
      const factors = own.filter((c) => c.group === "factor");
      const curves = tables.curves.objects().filter((c) => c.source === source);
      box.replaceChildren(
        sources.length > 1
          ? h(
              "div",
              { class: "tools screen" },
              select("Profile", sources, source, (v) => {
                source = v;
                draw();
              }),
            )
          : "",
        h(
          "div",
          { class: "sides" },
          h(
            "div",
            {},
            h("h3", {}, "Measured share of the datasheet"),
            bars(
              promised.map((c) => ({
                name: c.name,
                value: c.share_of_datasheet,
                title: c.method,
                color: c.name.endsWith("_settled") ? "var(--sky)" : COLORS[0],
                text: `${shared(quantity(c.value, c.unit), "of", quantity(c.datasheet, c.unit))} · ${percent(c.share_of_datasheet)}`,
              })),
              1,
            ),
          ),
          h(
            "div",
            {},
            h("h3", {}, "Calibration factors: realistic over ideal"),
            h(
              "div",
              { class: "bars" },
              factors.map((c) => [
                h("span", { title: c.method }, c.name),
                strip(c.low, c.value, c.high, Math.max(1, c.high)),
                h("span", { class: "num" }, `${number(c.value, 3)} (${number(c.low, 3)} – ${number(c.high, 3)})`),
              ]),
            ),
          ),
        ),
        curves.length ? h("h3", {}, "Curves") : "",
        h(
          "div",
          { class: "sides" },
          unique(curves.map((c) => c.curve)).map((name) =>
            curve(
              name,
              curves.filter((c) => c.curve === name),
            ),
          ),
        ),
      );
    };
    draw();
    return [
      box,
      h("h3", {}, "Every ceiling, factor, power and host term"),
      tableOf(
        "ceilings",
        "calibration",
        words("device group name value low high datasheet share_of_datasheet samples source"),
        words("group source"),
        "",
      ),
    ];
  }
  function curve(name, all) {
    const { x_name: xName, x_unit: xUnit, y_name: yName, y_unit: yUnit } = all[0];
    const points = all.filter((p) => drawable(p.x) && drawable(p.y));
    const xs = points.map((p) => p.x),
      ys = points.map((p) => p.y);
    const most = (values) => values.reduce((a, b) => Math.max(a, b), 1e-12),
      least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
    const wide = most(xs) / least(xs) > 20 && name !== "staircase";
    const plain = (u) => u === "1" || u === "FLOP/B";
    const format = (u) => (v) => (plain(u) ? number(v) : quantity(v, u));
    const label = (name_, u) => (u === "FLOP/B" ? `${name_}, FLOP/B` : name_);
    const sorted = [...points].sort((a, b) => a.x - b.x),
      single = sorted.every((p, i) => !i || p.x > sorted[i - 1].x * 1.01);
    return h(
      "div",
      {},
      h("h4", {}, name.replaceAll("_", " ")),
      plot({
        title: `${name}: ${yName} over ${xName}`,
        width: 560,
        height: 300,
        x: {
          label: label(xName, xUnit),
          format: format(xUnit),
          range: wide ? reach(xs, 1.3) : [0, most(xs) * 1.03],
          log: wide,
          binary: xUnit === "B",
        },
        y: { label: label(yName, yUnit), format: format(yUnit), range: [0, most(ys) * 1.08], log: false },
        lines: single ? [{ points: sorted.map((p) => [p.x, p.y]), color: "var(--blue)", width: 1.2 }] : [],
        series: [
          {
            name,
            color: "var(--blue)",
            points: points.map((p) => ({
              x: p.x,
              y: p.y,
              tell: () => [
                [label(xName, xUnit), format(xUnit)(p.x)],
                [label(yName, yUnit), format(yUnit)(p.y)],
              ],
            })),
          },
        ],
      }),
    );
  }

  return { calibration };
})();
