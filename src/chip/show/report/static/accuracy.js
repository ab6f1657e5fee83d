"use strict";
// Predicted against measured: the scatter, the errors, every prediction.
const Accuracy = (() => {
  const { h, known, number, quantity } = Chip;
  const { plot, legend, reach } = Plots;
  const { tables, empty, tableOf, words, select, unique, hasValues, folded, COLORS, OTHER } = Report;

  function accuracy() {
    const out = [],
      table = tables.predictions;
    if (table.rows.length) out.push(errors(), stages(), folded("Predicted over measured, point by point", scatter));
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
    const all = tables.spreads.objects(),
      metrics = unique(all.map((r) => r.metric)),
      box = h("div");
    if (!all.length) return "";
    const draw = (metric) => {
      const rows = all.filter((r) => r.metric === metric);
      box.replaceChildren(
        h("div", { class: "tools screen" }, select("Metric", metrics, metric, draw)),
        Strips.strips(rows, `Predicted over measured ${metric}, by predictor and class`),
        h("p", { class: "span" }, "Left of 1 less was predicted than was measured, right of it more. A box holds half of the predictions, its line nine tenths; the band is 10 % either way. Orange: the host is the limit. Grey: other predictors, on the points that they were asked."),
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
            y: 1 + p.error_percent / 100,
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
      const unit = here[0]?.unit || "",
        ratios = { label: "predicted over measured", format: (v) => `${number(v, 3)} ×`, range: reach(here.map((p) => 1 + p.error_percent / 100), 1.1) };
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
          title: `Predicted over measured ${metric} against what was measured; on the line at 1 they are equal`,
          width: 1180,
          height: 480,
          x: { label: `measured ${metric}`, format: (v) => quantity(v, unit), range: reach(here.map((p) => p.measured), 1.5) },
          y: ratios,
          lines: [1, 0.9, 1.1].map((k) => ({
            points: [
              [Math.min(...here.map((p) => p.measured)) / 1.5, k],
              [Math.max(...here.map((p) => p.measured)) * 1.5, k],
            ],
            color: k === 1 ? "var(--ink)" : "var(--muted)",
            width: k === 1 ? 1.6 : 1,
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
