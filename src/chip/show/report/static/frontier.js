"use strict";
// The first chart: what a user gets against what a GPU gives, or costs, for every choice that keeps the limits.
const Frontier = (() => {
  const { h, duration, number, meaningful, rounded } = Chip;
  const { plot, legend, reach } = Plots;
  const { state, known, byId } = Question;
  const BASES = [
    ["measured", "measured by CHIP", "var(--green)", 0],
    ["imported", "published tables", "var(--blue)", 1],
    ["same chip", "same chip", "var(--purple)", 3],
    ["datasheet", "datasheet", "var(--muted)", 2],
  ];
  const UP = {
    tokens_per_s_per_gpu: "tokens/s of a GPU",
    cost_per_million_tokens: "cost of a million tokens",
  };
  let up = "tokens_per_s_per_gpu";

  const choice = (r) => `${r.tp} × ${r.gpu}, ${r.dtype}`;
  function tell(r) {
    const shown = (key, format) => (Chip.known(r[key]) ? format(r[key], meaningful(r[key], r.interval?.[key])) : Chip.NONE);
    const time = (v, n) => duration(v / 1e3, n);
    return [
      ["tokens/s of a user", shown("tokens_per_s_per_user", rounded)],
      ["tokens/s of a GPU", shown("tokens_per_s_per_gpu", rounded)],
      ["a million tokens", shown("cost_per_million_tokens", rounded)],
      ["TTFT", shown("ttft_ms", time)],
      ["TPOT", shown("tpot_ms", time)],
      ["batch", number(r.batch)],
      ...(r.rests_on ? [["rests on", r.rests_on]] : [["measured", "our run"]]),
    ];
  }
  /** rows: those that keep the limits, best first. */
  function show(found, rows, { byRate, load }) {
    const drawn = rows.filter((r) => Chip.known(r.tokens_per_s_per_user) && Chip.known(r[up]));
    const runs = (found.measured || []).filter((r) => Chip.known(r.tokens_per_s_per_user) && Chip.known(r[up]));
    const named = new Set();
    const point = (r) => {
      const first = !named.has(r.gpu);
      named.add(r.gpu);
      return { x: r.tokens_per_s_per_user, y: r[up], r: r.place === 1 ? 6.5 : 4, title: choice(r), tag: first ? r.gpu : "", row: r, tell: () => tell(r) };
    };
    const points = new Map(drawn.map((r) => [r, point(r)])); // in the order of the ranking: the best of a GPU has the label
    const series = BASES.map(([basis, name, color, shape]) => ({
      name,
      color,
      shape,
      hollow: basis === "datasheet",
      points: drawn.filter((r) => r.rests_on === basis).map((r) => points.get(r)),
    })).filter((one) => one.points.length);
    if (runs.length) series.push({ name: "runs that we measured", color: "var(--ink)", shape: 4, hollow: true, points: runs.map((r) => ({ x: r.tokens_per_s_per_user, y: r[up], r: 5, title: choice(r), tell: () => tell(r) })) });
    if (!drawn.length) return byId("frontier").replaceChildren();
    const picture = plot({
      title: `${UP[up]} against tokens/s of a user, ${drawn.length} choices of ${Question.named()}`,
      width: 860,
      height: 400,
      x: { label: byRate ? "tokens/s of a user at the 99th percentile" : "tokens/s of a user, the first token included", format: (v) => number(v), range: reach([...drawn, ...runs].map((r) => r.tokens_per_s_per_user), 1.25) },
      y: { label: UP[up], format: (v) => number(v), range: reach([...drawn, ...runs].map((r) => r[up]), 1.4) },
      lines: [],
      series,
      picked: (p) => p.row && load(p.row),
    });
    const axis = h("select", { "aria-label": "Upwards", onchange: (e) => ((up = e.target.value), show(found, rows, { byRate, load })) }, Object.entries(UP).map(([key, name]) => h("option", { value: key, selected: key === up }, name)));
    byId("frontier").replaceChildren(
      h("div", { class: "tools" }, axis, h("span", { class: "muted" }, `${drawn.length} of ${found.rows.length} choices: ${drawn.length < rows.length ? "with a price, " : ""}those within the limits. A click loads one.`)),
      legend(series),
      picture,
      h("div", { class: "tools" }, Picture.button(picture, `${Question.named()}: ${UP[up]}`), embedding()),
    );
    return undefined;
  }
  /** The address of this answer for a page of somebody else's. */
  function embedding() {
    const button = h("button", { type: "button" }, "Copy embed code");
    button.addEventListener("click", async () => {
      const [page, question] = location.href.split("#?");
      const code = `<iframe src="${page}#?${question || ""}&embed=1" title="CHIP: which GPU for ${Question.named()}" width="900" height="640"></iframe>`;
      await Answer.copied(button, code);
    });
    return state.embed ? h("a", { href: location.href.replace("&embed=1", ""), target: "_blank", rel: "noopener" }, "Open in the explorer") : known.runtime ? button : "";
  }
  return { show };
})();
