"use strict";
// How sure: the runs nearest to a question whose predictions were held against measurements, and how far off they were.
const Sure = (() => {
  const { h, number } = Chip;
  const ERRORS = [
    ["ttft_error", "TTFT"],
    ["tpot_error", "TPOT"],
    ["e2e_error", "end to end"],
  ];

  /** -0.0103 -> "−1.0 %": above 0 the prediction was too slow. */
  const signed = (error) => `${error < 0 ? "−" : "+"}${(100 * Math.abs(error)).toFixed(1)} %`;
  const ran = (r) =>
    `${r.model} on ${r.tp > 1 ? `${r.tp} × ` : ""}${Answer.title(r.gpu)}, ${`${r.engine} ${r.version}`.trim()}, ${number(r.batch)} × (${number(r.prompt)} in, ${number(r.output)} out)`;

  /** Beside a figure: what the prediction of the nearest run erred by. */
  function beside(answer, key) {
    const run = answer.nearest_validated[0], // none where nothing comparable was validated
      error = run?.[key.replace("_ms", "_error")];
    if (!Chip.known(error)) return "";
    const other = [run.model === answer.model ? "" : run.model, run.gpu === answer.gpu ? "" : run.gpu].filter(Boolean).join(", ");
    return h("div", { class: "span sure", "data-value": error }, `nearest run${other ? ` (${other})` : ""} ${signed(error)}`);
  }
  function row(r, who) {
    return h(
      "tr",
      {},
      who ? h("td", {}, h("b", { class: "side" }, who)) : "",
      h("th", { scope: "row" }, ran(r)),
      ERRORS.map(([key]) =>
        Chip.known(r[key]) ? h("td", { class: "num", "data-value": r[key] }, signed(r[key])) : h("td", { class: "num muted" }, Chip.NONE),
      ),
      h("td", {}, r.source),
    );
  }
  /** In which settings no run was validated. */
  function none(answers, sides) {
    return answers.map((a, i) => {
      if (a.nearest_validated.length) return "";
      const gpus = a.gpus > 1 ? `${a.gpus} GPUs` : "one GPU",
        side = answers.length > 1 ? [h("b", { class: "side" }, sides[i]), " "] : "";
      return h("p", { class: "note" }, side, `No run of ${a.engine} in ${a.dtype} on ${gpus} of this kind was held against a prediction.`);
    });
  }
  /** The runs of every answer, nearest first. */
  function table(answers, sides) {
    const many = answers.length > 1;
    if (!answers.some((a) => a.nearest_validated.length)) return h("div", { class: "how-sure" }, h("h3", {}, "How sure"), none(answers, sides));
    const heads = [...(many ? [""] : []), "nearest validated run", ...ERRORS.map(([, name]) => name), "source"];
    return h(
      "div",
      { class: "how-sure" },
      h("h3", {}, "How sure"),
      h("p", { class: "lead" }, "How far predictions of the nearest measured runs were off: predicted over measured, less 1."),
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Nearest validated runs" },
        h(
          "table",
          {},
          h("thead", {}, h("tr", {}, heads.map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))))),
          h("tbody", {}, answers.map((a, i) => a.nearest_validated.map((r) => row(r, many ? sides[i] : "")))),
        ),
      ),
      none(answers, sides),
    );
  }
  return { beside, table, signed, ERRORS };
})();
