"use strict";
// Predicted against measured: the scatter, the errors, every prediction.
const Accuracy = (() => {
  const { h, known, quantity } = Chip;
  const { plot, legend, reach } = Plots;
  const { tables, empty, tableOf, words, select, unique, hasValues, folded, COLORS, OTHER } = Report;

  function accuracy() {
    const out = [],
      table = tables.predictions;
    if (table.rows.length) out.push(errors(), stages(), folded("Predicted against measured, point by point", scatter));
    else
      out.push(
        empty(
          "No validation is among the results: predictions held against real runs.",
          ...(tables.runs.rows.length ? [] : ["chip bench llama-3.1-8b --engine hf-graph -o runs.json"]),
          "chip validate runs.json -o validation.json",
        ),
      );
    if (tables.accuracy.rows.length) {
      out.push(
        tableOf(
          "accuracy",
          "errors",
          words(
            "kind who name points median_percent p90_percent bias_percent coverage target_median_percent target_p90_percent met",
          ).filter(hasValues(tables.accuracy)),
          words("kind who"),
          "",
        ),
      );
    }
    if (table.rows.length)
      out.push(
        tableOf(
          "predictions",
          "accuracy",
          words("who model engine batch prompt output metric predicted measured error_percent inside bound"),
          words("who engine metric model"),
          "",
        ),
      );
    return out;
  }
  /** What each stage buys: the median error of every class with the predictor cut down to it, the whole one last. */
  function stages() {
    const rows = tables.accuracy.objects().filter((r) => r.kind === "stage" && known(r.median_percent)),
      split = (r) => r.name.split(": ");
    if (!rows.length) return "";
    const classes = unique(rows.map((r) => split(r).slice(1).join(": "))),
      box = h("div", { id: "stages" });
    const draw = (chosen) =>
      box.replaceChildren(
        h("h3", {}, "What each stage buys"),
        h("div", { class: "tools screen" }, select("Class", classes, chosen, draw)),
        Bars.bars(
          rows
            .filter((r) => split(r).slice(1).join(": ") === chosen)
            .map((r) => ({ name: split(r)[0], value: r.median_percent, text: `${quantity(r.median_percent, "%")} median, ${quantity(r.p90_percent, "%")} p90` })),
        ),
      );
    draw(classes[0]);
    return box;
  }
  /** How wrong each predictor is: the same metric for all, on one axis. */
  function errors() {
    const all = tables.predictions.objects(),
      metrics = unique(all.map((p) => p.metric)),
      box = h("div");
    const draw = (metric) => {
      const groups = Strips.byPredictor(all.filter((p) => p.metric === metric));
      box.replaceChildren(
        h("div", { class: "tools screen" }, select("Metric", metrics, metric, draw)),
        groups.length ? Strips.strips(groups, `Signed errors of ${metric} by predictor`) : empty("No errors of this metric."),
        h("p", { class: "span" }, "Left of 0 less was predicted than was measured, right of it more. The band is 10 % either way, the bar the median, the figure at the right how many points."),
      );
    };
    draw(metrics.includes("tpot") ? "tpot" : metrics[0]);
    return box;
  }
  function scatter() {
    const box = h("div"),
      all = tables.predictions
        .objects()
        .filter((p) => known(p.predicted) && known(p.measured) && p.predicted > 0 && p.measured > 0);
    const metrics = unique(all.map((p) => p.metric));
    let metric = metrics.includes("tpot") ? "tpot" : metrics[0];
    const off = new Set();
    const draw = () => {
      const here = all.filter((p) => p.metric === metric);
      const series = unique(here.map((p) => (p.who === "chip" ? p.engine : p.who))).map((name, i) => ({
        name,
        color: COLORS[i] || OTHER,
        shape: i,
        off: off.has(name),
        points: here
          .filter((p) => (p.who === "chip" ? p.engine : p.who) === name)
          .map((p) => ({
            x: p.measured,
            y: p.predicted,
            title: `${p.model}, ${p.engine}`,
            tell: () => [
              ["point", `${p.batch} × (${p.prompt} in, ${p.output} out)`],
              ["predictor", p.who],
              ["predicted", quantity(p.predicted, p.unit)],
              ["90 % interval", known(p.low) ? `${quantity(p.low, p.unit)} – ${quantity(p.high, p.unit)}` : Chip.NONE],
              ["measured", quantity(p.measured, p.unit)],
              ["error", quantity(p.error_percent, "%")],
              ["bound", p.bound || Chip.NONE],
            ],
          })),
      }));
      const range = reach(
          here.flatMap((p) => [p.predicted, p.measured]),
          1.5,
        ),
        unit = here[0]?.unit || "";
      box.replaceChildren(
        h(
          "div",
          { class: "tools screen" },
          select("Metric", metrics, metric, (v) => {
            metric = v;
            draw();
          }),
        ),
        legend(series, (item) => {
          if (off.has(item.name)) off.delete(item.name);
          else off.add(item.name);
          draw();
        }),
        plot({
          title: `Predicted against measured ${metric}; on the line they are equal`,
          width: 1180,
          height: 560,
          x: { label: `measured ${metric}`, format: (v) => quantity(v, unit), range },
          y: { label: `predicted ${metric}`, format: (v) => quantity(v, unit), range },
          lines: [1, 0.9, 1.1].map((k) => ({
            points: [
              [range[0], k * range[0]],
              [range[1], k * range[1]],
            ],
            color: k === 1 ? "var(--ink)" : "var(--muted)",
            width: 1.2,
            dash: k === 1 ? null : "4 4",
          })),
          series: series.filter((one) => !one.off),
        }),
      );
    };
    draw();
    return box;
  }

  return { accuracy };
})();
