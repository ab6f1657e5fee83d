"use strict";
// The form of the explorer. It is built once: choosing something never rebuilds the control that was used.
const Controls = (() => {
  const { h } = Chip;
  const { PASTE, MOST_BESIDE, state, known, heard, byId, configurations, addBeside, removeBeside } = Question;
  const STEPS = { batch: [0, 10], prompt: [0, 17], output: [0, 13] }; // powers of two, and what lies halfway between
  const showing = []; // what brings each control up to date with the state

  function refresh() {
    for (const show of showing) show();
  }
  const digits = (v) => (v < 10 ? v.toFixed(1) : v.toFixed(0));
  const options = (values) =>
    values.map((value) => {
      const [v, text] = Array.isArray(value) ? value : [value, value];
      return h("option", { value: v }, text);
    });
  /** groups: [[name, values]]; a value is text, or [value, text]. */
  function choice(id, title, groups, selected, chosen) {
    const select = h(
      "select",
      { id, onchange: (e) => chosen(e.target.value) },
      groups.map(([name, values]) => (name ? h("optgroup", { label: name }, options(values)) : options(values))),
    );
    select.value = selected;
    return h("div", { class: "field" }, h("label", { for: id }, title), select);
  }
  /** A choice that is one key of the state; a value that a link brought and nobody lists is listed. */
  function bound(name, id, title, groups) {
    const field = choice(id, title, groups, state[name], (value) => {
      state[name] = typeof state[name] === "number" ? Number(value) : value;
      refresh();
      heard.change();
    });
    const select = field.querySelector("select");
    showing.push(() => {
      const value = String(state[name]);
      if (![...select.options].some((o) => o.value === value)) select.append(h("option", { value }, value));
      if (select.value !== value) select.value = value;
    });
    return field;
  }

  // -- numbers
  function steps(size) {
    const [low, high] = STEPS[size],
      out = [];
    for (let e = low; e <= high; e++) {
      out.push(2 ** e);
      if (e > 0 && e < high) out.push(1.5 * 2 ** e);
    }
    return out;
  }
  /** Says what is wrong beside the box, to those who see it and to those who do not. */
  function complaint(box, id) {
    const said = h("div", { id: `${id}-wrong`, class: "wrong", role: "alert", hidden: true });
    box.setAttribute("aria-describedby", said.id);
    return {
      said,
      say(text) {
        said.hidden = !text;
        said.textContent = text;
        if (text) box.setAttribute("aria-invalid", "true");
        else box.removeAttribute("aria-invalid");
      },
    };
  }
  function slider(size, title) {
    const values = steps(size),
      most = known.defaults.limits[size];
    const nearest = (v) =>
      values.reduce((best, w, i) => (Math.abs(Math.log(w / v)) < Math.abs(Math.log(values[best] / v)) ? i : best), 0);
    const range = h("input", { type: "range", min: 0, max: values.length - 1, "aria-label": `${title}, slider` });
    const box = h("input", { type: "number", id: size, min: 1, max: most });
    const wrong = complaint(box, size);
    const show = () => {
      if (document.activeElement !== box) box.value = state[size];
      range.value = nearest(state[size]);
      range.setAttribute("aria-valuetext", String(state[size]));
    };
    range.addEventListener("input", () => {
      state[size] = values[range.value];
      wrong.say("");
      show();
      heard.change();
    });
    box.addEventListener("input", () => {
      const v = Number(box.value);
      if (box.value === "" || !Number.isInteger(v) || v < 1 || v > most)
        return wrong.say(`a whole number from 1 to ${Chip.grouped(most)}; still answered for ${state[size]}`);
      wrong.say("");
      state[size] = v;
      show();
      return heard.change();
    });
    box.addEventListener("blur", () => {
      wrong.say("");
      show();
    });
    showing.push(show);
    const row = h("div", { class: "row" }, range, box);
    return h("div", { class: "field" }, h("label", { for: size }, title), row, wrong.said);
  }
  function limit(name, title) {
    const box = h("input", { type: "number", id: `limit-${name}`, min: 0, step: "any", placeholder: "none" });
    const wrong = complaint(box, `limit-${name}`);
    box.addEventListener("input", () => {
      const bad = box.value !== "" && !(Number(box.value) > 0);
      wrong.say(bad || box.validity.badInput ? "milliseconds above 0, or empty for no limit" : "");
      if (bad) return;
      state[name] = box.value;
      heard.change();
    });
    showing.push(() => {
      if (document.activeElement !== box) box.value = state[name];
    });
    return h("div", { class: "field" }, h("label", { for: `limit-${name}` }, title), box, wrong.said);
  }

  // -- the model
  function paste() {
    const name = h("input", { type: "text", id: "pasted-name", maxlength: 60 });
    name.addEventListener("input", () => {
      state.name = name.value.replace(/[^\w.-]+/g, "-") || "my-model";
      heard.change();
    });
    const text = h("textarea", {
      id: "pasted",
      rows: 7,
      spellcheck: "false",
      class: "mono",
      placeholder: '{"architectures": ["LlamaForCausalLM"], …}',
    });
    const take = (value) => {
      state.config = value;
      state.dtype = "auto"; // what another model was asked in says nothing of this one
      refresh();
      heard.change();
    };
    text.addEventListener("input", () => take(text.value));
    text.addEventListener("dragover", (e) => e.preventDefault());
    text.addEventListener("drop", async (e) => {
      const [file] = e.dataTransfer.files;
      if (!file) return;
      e.preventDefault();
      text.value = await file.text();
      take(text.value);
    });
    const box = h(
      "div",
      { class: "field", id: "paste-box" },
      h("label", { for: "pasted" }, "config.json of the model: paste it, or drop the file"),
      text,
      h("label", { for: "pasted-name" }, "its name"),
      name,
    );
    showing.push(() => {
      box.hidden = state.model !== PASTE;
      if (document.activeElement !== text && text.value !== state.config) text.value = state.config;
      if (document.activeElement !== name) name.value = state.name;
    });
    return box;
  }
  /** Bundled models by their names, a config of one's own, or a hub id. */
  function model() {
    const { field, show } = Models.box({
      id: "model-name",
      title: "Model: type to search, or a hub id",
      groups: [["", [[PASTE, PASTE]]], ...families()],
      now: () => state.model,
      chosen: (value) => {
        state.model = value;
        refresh();
        heard.change();
      },
      other: (typed) => (Models.HUB_ID.test(typed) ? [typed, `${typed}, from the Hugging Face hub`] : null),
    });
    showing.push(show);
    return field;
  }
  function families() {
    const found = new Map();
    for (const m of known.models) {
      const family = m.name.split("-")[0].replace(/[\d.]+$/, "");
      found.set(family, [...(found.get(family) || []), [m.name, `${m.name} (${digits(m.parameters / 1e9)} B)`]]);
    }
    return [...found];
  }
  /** GPUs by what their numbers rest on. */
  function gpuGroups() {
    const of = (basis) => known.gpus.filter((g) => g.rests_on === basis).map((g) => [g.name, g.title]);
    return [
      ["Measured by CHIP", of("measured")],
      ["From imported tables", of("imported")],
      ["From a GPU of the same chip", of("same chip")],
      ["From the datasheet", of("datasheet")],
    ].filter(([, values]) => values.length);
  }

  // -- what is compared
  function beside() {
    const list = h("ul", { class: "chips", "aria-label": "Compared configurations" });
    const field = choice("beside", "Compare with", [["", [["", "add a GPU …"]]], ...gpuGroups()], "", (gpu) => {
      const added = gpu && addBeside({ gpu, tp: state.tp, dtype: state.dtype });
      field.querySelector("select").value = "";
      if (!added) return;
      refresh();
      heard.change();
    });
    const select = field.querySelector("select");
    showing.push(() => {
      const held = configurations();
      select.disabled = held.length > MOST_BESIDE;
      list.replaceChildren(
        ...held.slice(1).map((c) => {
          const name = `${c.tp > 1 ? `${c.tp} × ` : ""}${c.gpu}, ${c.dtype}`;
          const remove = h("button", { type: "button", "aria-label": `Remove ${name}` }, "×");
          remove.addEventListener("click", () => {
            removeBeside(c);
            refresh();
            heard.change();
            select.focus();
          });
          return h("li", {}, name, remove);
        }),
      );
    });
    field.append(list);
    return field;
  }

  function build() {
    showing.length = 0;
    const tps = [1, 2, 4, 8].map((n) => [String(n), String(n)]);
    byId("controls").replaceChildren(
      h("h2", { class: "visually-hidden" }, "Question"),
      model(),
      paste(),
      slider("prompt", "Prompt: tokens each"),
      slider("output", "Output: tokens each"),
      h("div", { class: "pair2" }, limit("ttft", "TTFT at most, ms"), limit("tpot", "TPOT at most, ms")),
      bound("engine", "engine", "Engine", [["", known.engines.map((e) => e.name)]]),
      h("h3", {}, "One configuration"),
      bound("gpu", "gpu", "GPU", gpuGroups()),
      h(
        "div",
        { class: "pair2" },
        bound("dtype", "dtype", "dtype", [["", known.defaults.dtypes]]),
        bound("tp", "tp", "GPUs a layer (tp)", [["", tps]]),
      ),
      slider("batch", "Batch: requests at once"),
      beside(),
    );
    refresh();
  }

  return { build, refresh, choice, complaint };
})();
