"use strict";
// One operator: what `chip estimate` answers.
const Operator = (() => {
  const { h, shared, si, duration, number } = Chip;
  const { strip } = Bars;
  const { state, known, byId, ask, quoted } = Question;
  const { choice } = Controls;
  const { copyable, title } = Answer;
  const operator = { op: "linear", axes: { m: "8", n: "4096", k: "4096" } };
  const EXAMPLES = {
    batch: 8,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    q_len: 1,
    kv_len: 4096,
    rows: 4096,
    cols: 4096,
    m: 8,
    n: 4096,
    k: 4096,
  };
  function form() {
    const op = known.ops.find((o) => o.name === operator.op);
    const axes = op.axes.split(" ").filter(Boolean);
    const required = new Set(op.required.split(" "));
    const fields = axes.map((name) => {
      const box = h("input", {
        type: "text",
        id: `axis-${name}`,
        value: operator.axes[name] || "",
        placeholder: required.has(name) ? "" : "default",
      });
      box.addEventListener("input", () => {
        operator.axes[name] = box.value.trim();
        changed();
      });
      return h("div", { class: "field" }, h("label", { for: `axis-${name}` }, name), box);
    });
    byId("operator-controls").replaceChildren(
      choice("op", "Operator", [["", known.ops.map((o) => o.name)]], operator.op, (name) => {
        operator.op = name;
        const wanted = known.ops
          .find((o) => o.name === name)
          .required.split(" ")
          .filter(Boolean);
        operator.axes = Object.fromEntries(wanted.map((axis) => [axis, String(EXAMPLES[axis] || 16)]));
        form();
        changed();
      }),
      h("p", { class: "span" }, op.what),
      h("div", { class: "metrics" }, fields),
    );
  }
  const typed = (text) =>
    text === "true" ? true : text === "false" ? false : /^\d{1,15}$/.test(text) ? Number(text) : text;
  async function changed() {
    const axes = Object.entries(operator.axes).filter(([, v]) => v !== "");
    const asked = { op: operator.op, gpu: state.gpu, ...Object.fromEntries(axes.map(([k, v]) => [k, typed(v)])) };
    let shown;
    try {
      const a = await ask("/api/estimate", asked);
      const line = `chip estimate ${a.op} ${axes.map(([k, v]) => quoted(`${k}=${v}`).replace(/^'(\w+=[\w.]+)'$/, "$1")).join(" ")} --gpu ${quoted(a.gpu)}`;
      const digits = Chip.meaningful(a.us, a.interval),
        time = (us) => duration(us / 1e6, digits);
      const facts = [
        ["90 % interval", shared(time(a.interval[0]), "–", time(a.interval[1]))],
        ["bound by", a.bound],
        ["source", a.source],
        ["work", `${si(a.flops, "FLOP")}, ${si(a.bytes, "B")}`],
        ["intensity", `${number(a.intensity)} FLOP/B, ridge at ${number(a.ridge_flop_per_byte)}`],
      ];
      const [value, unit] = time(a.us).split(" ");
      shown = [
        h(
          "div",
          { class: "metric" },
          h("h3", {}, `${a.op} on ${title(a.gpu)}`),
          h("div", { class: "value", id: "operator-us", "data-value": a.us }, value, " ", h("small", {}, unit)),
          strip(a.interval[0], a.us, a.interval[1], a.interval[1]),
          h(
            "table",
            {},
            h(
              "tbody",
              {},
              facts.map(([k, v]) => h("tr", {}, h("th", { scope: "row" }, k), h("td", { class: "num" }, v))),
            ),
          ),
        ),
        h("p", {}),
        copyable(line, "Command for this operator"),
      ];
    } catch (error) {
      shown = [h("p", { class: "note bad", role: "alert" }, error.message)];
    }
    byId("operator-answer").replaceChildren(...shown);
  }

  return { form, changed };
})();
