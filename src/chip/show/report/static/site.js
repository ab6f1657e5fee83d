"use strict";
// The explorer without a server: answers that were worked out beforehand lie beside the page, a file for each model.
const Site = (() => {
  const { h } = Chip;
  const { state, known, heard, byId, elsewhere, hold, held, keyOf, command, configurations } = Question;
  const grid = known.grid;
  const loaded = new Map(); // model -> a promise of its answers
  const arrived = new Map(); // model -> what to call when its file has come
  const choices = new Map(); // model -> the questions of one configuration that are held

  const single = (path, asked) => path === "/api/compare" && asked.configurations.length === 1;
  /** What a file of answers calls. */
  function take(model, text) {
    arrived.get(model)?.(Packed.open(text));
  }
  function load(model) {
    if (!grid.models.includes(model)) throw outside();
    if (!loaded.has(model))
      loaded.set(
        model,
        new Promise((done, failed) => {
          arrived.set(model, done);
          const script = h("script", { src: `${grid.answers}/${model}.js` });
          script.addEventListener("error", () => failed(new Error(`${script.getAttribute("src")} is missing beside this page.`)));
          document.head.append(script);
        }).then((answers) => {
          hold(answers);
          choices.set(model, answers.filter(([path, asked]) => single(path, asked)).map(([, asked]) => asked));
        }),
      );
    return loaded.get(model);
  }
  function outside() {
    const error = new Error(`This copy of the explorer holds ${stated()}. Ask for anything else with \`chip serve\`, or: ${command(configurations()[0])}`);
    error.empty = true;
    return error;
  }
  async function ask(path, asked) {
    await load(asked.model);
    const found = held.get(keyOf(path, asked));
    if (found) return found;
    if (path === "/api/compare") return beside(asked);
    throw outside();
  }
  // -- how one stands to the first, as chip.show.serve.compare works it out; a test holds both against each other
  const METRICS = ["ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s", "energy_j_per_token"];
  const short = (v) => Number(v.toPrecision(7));
  const overlap = (a, b) => a[0] <= b[1] && b[0] <= a[1];
  function operators(first, one) {
    const before = new Map(first.map((r) => [r.role, r.us]));
    return Object.fromEntries(one.filter((r) => before.get(r.role)).map((r) => [r.role, short(r.us / before.get(r.role))]));
  }
  function against(first, one) {
    const both = METRICS.filter((key) => Chip.known(first[key]) && Chip.known(one[key]));
    return {
      ratio: Object.fromEntries(both.map((key) => [key, short(one[key] / first[key])])),
      tie: Object.fromEntries(both.map((key) => [key, overlap(first.interval[key], one.interval[key])])),
      operators: Object.fromEntries(["ttft", "tpot"].map((phase) => [phase, operators(first.breakdown[phase], one.breakdown[phase])])),
    };
  }
  /** Several configurations from the answers for each. */
  function beside(asked) {
    const found = asked.configurations.map((one) => held.get(keyOf("/api/compare", { ...asked, configurations: [one] })));
    if (found.some((one) => !one)) throw outside();
    const predictions = found.map((one) => one.predictions[0]);
    return {
      predictions,
      against_first: found.map((one, i) => ({ ...against(predictions[0], predictions[i]), usable_share: one.against_first[0].usable_share })),
      roofs: Object.assign({}, ...found.map((one) => one.roofs)),
    };
  }
  const same = (a, b) => a.gpu === b.gpu && a.tp === b.tp && a.dtype === b.dtype;
  const here = () => (choices.get(state.model) || []).filter((q) => q.prompt === state.prompt && q.output === state.output);
  /** Whether a configuration, with its batch, can be shown. */
  const holds = (c) => here().some((q) => same(q.configurations[0], c) && q.batch === c.batch);
  /** The grid, as a clause that begins with the models. */
  function stated() {
    const most = Object.entries(grid.limits).map(([k, v]) => `${k.replace("_ms", "").toUpperCase()} up to ${v} ms`);
    const loads = grid.workloads.map(([prompt, output]) => `${prompt} tokens in and ${output} out`);
    const precisions = grid.precisions.map((p) => (p === "auto" ? "the config's own precision" : p));
    return [
      `${grid.models.length === 1 ? grid.models[0] : `${grid.models.length} models`} on ${grid.engine}, ${loads.join(" or ")}`,
      `a ranking of ${grid.gpus.length} GPUs at splits of ${grid.splits.join(", ")} in ${precisions.join(" and ")}, within ${most.join(" and ")}`,
      `and, for ${loads[0]}, details of ${grid.detailed_gpus.length} GPUs at batch ${grid.batches.join(", ")} and at their best`,
    ].join("; ");
  }

  // -- its form
  const named = (c, batch) => `${c.tp > 1 ? `${c.tp} × ` : ""}${c.gpu}, ${c.dtype}, batch ${batch}`;
  const valued = (c, batch) => [c.gpu, c.tp, c.dtype, batch].join("~");
  const parsed = (value) => {
    const [gpu, tp, dtype, batch] = value.split("~");
    return { gpu, tp: Number(tp), dtype, batch: Number(batch) };
  };
  function filled(select, options, value) {
    select.replaceChildren(...options.map(([v, text]) => h("option", { value: v }, text)));
    select.value = value;
  }
  /** What changes with the model and the workload is known once its answers are there. */
  async function refresh(move = false) {
    try {
      await load(state.model);
    } catch {
      return; // the answer says what is missing
    }
    const all = here(),
      now = configurations()[0];
    if (move && all.length && !holds({ ...now, batch: state.batch })) {
      const { configurations: [first], batch } = all.find((q) => q.configurations[0].gpu === state.gpu && q.batch === state.batch) || all[0];
      Object.assign(state, first, { batch, beside: "" });
      heard.change();
    }
    const one = configurations()[0];
    filled(byId("configuration"), all.map((q) => [valued(q.configurations[0], q.batch), named(q.configurations[0], q.batch)]), valued(one, state.batch));
    const others = all.filter((q) => q.batch === state.batch && !same(q.configurations[0], one));
    filled(byId("beside"), [["", "add a configuration …"], ...others.map((q) => [valued(q.configurations[0], q.batch), named(q.configurations[0], q.batch)])], "");
    byId("compared").hidden = !state.beside;
  }
  function build() {
    const field = (id, title, options, value, chosen) => Controls.choice(id, title, [["", options]], value, chosen);
    const changed = () => {
      heard.change();
      refresh(true);
    };
    const none = h("button", { type: "button", id: "compared" }, "Compare with nothing");
    none.addEventListener("click", () => {
      state.beside = "";
      changed();
    });
    byId("controls").replaceChildren(
      h("h2", { class: "visually-hidden" }, "Question"),
      Models.box({
        id: "model-name",
        title: "Model: type to search",
        groups: [["", grid.models.map((m) => [m, m])]],
        now: () => state.model,
        chosen: (value) => {
          Object.assign(state, { model: value, beside: "" });
          changed();
        },
      }).field,
      field("workload", "Workload", grid.workloads.map(([p, o]) => [`${p}~${o}`, `${p} tokens in, ${o} out`]), `${state.prompt}~${state.output}`, (value) => {
        const [prompt, output] = value.split("~").map(Number);
        Object.assign(state, { prompt, output, beside: "" });
        changed();
      }),
      field("configuration", "Configuration", [], "", (value) => {
        Object.assign(state, parsed(value), { beside: "" });
        changed();
      }),
      field("beside", "Compare with", [], "", (value) => {
        if (value && Question.addBeside(parsed(value))) changed();
      }),
      none,
    );
    byId("grid").textContent = `This page has no server; its answers were worked out beforehand. It holds ${stated()}. \`chip serve\` answers anything else.`;
    byId("grid").hidden = false;
    for (const id of ["operator", "rank-controls", "operator-link", "traffic-controls", "api-link"]) byId(id).hidden = true;
    byId("report-link").hidden = false;
    refresh();
  }

  elsewhere.ask = ask;
  return { take, build, refresh, holds, ask };
})();
