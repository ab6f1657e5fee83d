"use strict";
// The question of the explorer: its form, its address, the command that asks the same.
const Question = (() => {
  const { h } = Chip;
  const SIZES = ["batch", "prompt", "output"];
  const STEPS = { batch: [0, 10], prompt: [0, 17], output: [0, 13] }; // powers of two, and what lies halfway between
  const PASTE = "paste a config.json …";
  const byId = (id) => document.getElementById(id);
  const state = {
    model: "llama-3.1-8b",
    gpu: "",
    gpu2: "",
    engine: "",
    dtype: "",
    tp: 1,
    batch: 8,
    prompt: 1024,
    output: 128,
  };
  const pasted = { name: "my-model", text: "" };
  const known = {}; // models, gpus, engines, ops, defaults: what the server has
  const heard = { change: () => {} }; // who is told of a change

  // -- talking to the server
  async function ask(path, body) {
    const options = body && {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    };
    const response = await fetch(path, options);
    const found = await response.json();
    if (!response.ok) throw new Error(found.error || `status ${response.status}`);
    return found;
  }
  const listed = async (what) => ask(`/api/${what}`);

  // -- the question
  function question(gpu) {
    const asked = { gpu, engine: state.engine, dtype: state.dtype, tp: state.tp };
    for (const size of SIZES) asked[size] = state[size];
    if (state.model !== PASTE) return { model: state.model, ...asked };
    let config;
    try {
      config = JSON.parse(pasted.text);
    } catch {
      throw new Error("what is pasted is not JSON");
    }
    return { model: pasted.name, config, ...asked };
  }
  const quoted = (word) => (/^[\w.:@/+-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`);
  function command(gpu) {
    const model = state.model === PASTE ? `${pasted.name}.json` : state.model;
    const options = ["gpu", "engine", "batch", "prompt", "output", "dtype", "tp"].map(
      (key) => `--${key} ${quoted(key === "gpu" ? gpu : state[key])}`,
    );
    return `chip predict ${quoted(model)} ${options.join(" ")}`;
  }
  function readLink() {
    if (!location.hash.startsWith("#?")) return;
    const asked = new URLSearchParams(location.hash.slice(2));
    for (const key of Object.keys(state)) {
      const value = asked.get(key);
      if (value === null) continue;
      state[key] = typeof state[key] === "number" ? Math.max(1, Math.round(Number(value)) || 1) : value;
    }
  }
  function writeLink() {
    const asked = new URLSearchParams();
    for (const [key, value] of Object.entries(state)) if (value !== "" && value !== PASTE) asked.set(key, value);
    history.replaceState(null, "", `#?${asked}`);
  }

  // -- the form
  function choice(id, title, groups, selected, chosen) {
    const option = (value) => {
      const [v, text] = Array.isArray(value) ? value : [value, value];
      return h("option", { value: v, selected: v === selected }, text);
    };
    const select = h(
      "select",
      { id, onchange: (e) => chosen(e.target.value) },
      groups.map(([name, values]) => (name ? h("optgroup", { label: name }, values.map(option)) : values.map(option))),
    );
    return h("div", { class: "field" }, h("label", { for: id }, title), select);
  }
  function steps(size) {
    const [low, high] = STEPS[size],
      out = [];
    for (let e = low; e <= high; e++) {
      out.push(2 ** e);
      if (e > 0 && e < high) out.push(1.5 * 2 ** e);
    }
    return out;
  }
  function slider(size, title) {
    const values = steps(size),
      most = known.defaults.limits[size];
    const nearest = (v) =>
      values.reduce((best, w, i) => (Math.abs(Math.log(w / v)) < Math.abs(Math.log(values[best] / v)) ? i : best), 0);
    const range = h("input", {
      type: "range",
      min: 0,
      max: values.length - 1,
      value: nearest(state[size]),
      "aria-label": `${title}, slider`,
    });
    const box = h("input", { type: "number", id: size, min: 1, max: most, value: state[size] });
    const describe = () => range.setAttribute("aria-valuetext", String(state[size]));
    range.addEventListener("input", () => {
      state[size] = values[range.value];
      box.value = state[size];
      describe();
      heard.change();
    });
    box.addEventListener("input", () => {
      const v = Math.round(Number(box.value));
      if (!(v >= 1 && v <= most)) return;
      state[size] = v;
      range.value = nearest(v);
      describe();
      heard.change();
    });
    describe();
    return h("div", { class: "field" }, h("label", { for: size }, title), h("div", { class: "row" }, range, box));
  }
  function form() {
    const set = (key) => (value) => {
      state[key] = typeof state[key] === "number" ? Number(value) : value;
      form();
      heard.change();
    };
    const families = new Map();
    for (const m of known.models) {
      const family = m.name.split("-")[0].replace(/[\d.]+$/, "");
      families.set(family, [...(families.get(family) || []), [m.name, `${m.name} (${digits(m.parameters / 1e9)} B)`]]);
    }
    const named = (measured) => known.gpus.filter((g) => g.measured === measured).map((g) => [g.name, g.title]);
    const gpus = [
      ["Measured", named(true)],
      ["From the datasheet", named(false)],
    ];
    const other = known.gpus.some((g) => g.name === state.gpu) ? [] : [["Given by link", [state.gpu]]];
    byId("controls").replaceChildren(
      h("h2", { class: "visually-hidden" }, "Question"),
      choice("model-name", "Model", [["", [PASTE]], ...families], state.model, set("model")),
      state.model === PASTE ? paste() : "",
      choice("gpu", "GPU", [...other, ...gpus], state.gpu, set("gpu")),
      choice("gpu2", "Beside it", [["", [["", "nothing"]]], ...gpus], state.gpu2, set("gpu2")),
      choice("engine", "Engine", [["", known.engines.map((e) => e.name)]], state.engine, set("engine")),
      h(
        "div",
        { class: "pair2" },
        choice("dtype", "dtype", [["", known.defaults.dtypes]], state.dtype, set("dtype")),
        choice(
          "tp",
          "GPUs a layer (tp)",
          [["", [...new Set([1, 2, 4, 8, state.tp])].sort((a, b) => a - b).map((n) => [n, String(n)])]],
          state.tp,
          set("tp"),
        ),
      ),
      slider("batch", "Batch: requests at once"),
      slider("prompt", "Prompt: tokens each"),
      slider("output", "Output: tokens each"),
    );
  }
  const digits = (v) => (v < 10 ? v.toFixed(1) : v.toFixed(0));
  function paste() {
    const name = h("input", { type: "text", id: "pasted-name", value: pasted.name, maxlength: 60 });
    name.addEventListener("input", () => {
      pasted.name = name.value.replace(/[^\w.-]+/g, "-") || "my-model";
      heard.change();
    });
    const text = h("textarea", {
      id: "pasted",
      rows: 8,
      spellcheck: "false",
      class: "mono",
      placeholder: '{"architectures": ["LlamaForCausalLM"], …}',
    });
    text.value = pasted.text;
    text.addEventListener("input", () => {
      pasted.text = text.value;
      heard.change();
    });
    return h(
      "div",
      { class: "field" },
      h("label", { for: "pasted" }, "config.json of the model"),
      text,
      h("label", { for: "pasted-name" }, "its name"),
      name,
    );
  }

  return {
    PASTE,
    state,
    pasted,
    known,
    heard,
    byId,
    ask,
    listed,
    question,
    quoted,
    command,
    readLink,
    writeLink,
    choice,
    form,
  };
})();
