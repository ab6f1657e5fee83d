"use strict";
// The explorer: a form, the answers of /api/predict for one or two GPUs, always those to the latest question.
(() => {
  const { h } = Chip;
  const { state, known, heard, byId, ask, listed, question, readLink, writeLink, form } = Question;
  const roofs = new Map(); // GPU -> its roofs

  // -- asking: one question at a time, always the latest
  let waiting = false,
    busy = false;
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
          Promise.all(
            gpus.map(
              async (gpu) => roofs.has(gpu) || roofs.set(gpu, await ask(`/api/gpus/${encodeURIComponent(gpu)}`)),
            ),
          ),
        ]);
        if (!waiting) Answer.show(answers, roofs);
      } catch (error) {
        if (!waiting)
          byId("answer").replaceChildren(
            h("div", { class: "panel" }, h("p", { class: "note bad", role: "alert" }, error.message)),
          );
      }
      byId("answer").setAttribute("aria-busy", "false");
    }
    busy = false;
  }

  // -- start
  async function start() {
    document.querySelector(".top > div").append(Chip.themeButton());
    const [models, gpus, engines, ops, defaults] = await Promise.all(
      ["models", "gpus", "engines", "ops", "defaults"].map(listed),
    );
    Object.assign(known, { models, gpus, engines, ops, defaults });
    heard.change = changed;
    for (const key of ["gpu", "engine", "dtype"]) state[key] = defaults.defaults[key];
    readLink();
    form();
    Operator.form();
    changed();
    Operator.changed();
    addEventListener("hashchange", () => {
      if (location.hash.startsWith("#?")) {
        readLink();
        form();
        changed();
      }
    });
    byId("controls").addEventListener("change", (e) => {
      if (e.target.id === "gpu") Operator.changed();
    });
  }
  start().catch((error) =>
    byId("answer").replaceChildren(
      h("p", { class: "note bad", role: "alert" }, `The server did not answer: ${error.message}`),
    ),
  );
})();
