"use strict";
// Curves over the batch: latency, and what a user gets against what a GPU gives. A click loads the point.
const Curves = (() => {
  const { h, duration, number, meaningful, rounded, save } = Chip;
  const { plot, legend, reach } = Plots;
  const { state, known, heard, byId, ask, model, configurations, limits } = Question;
  const COLORS = ["var(--blue)", "var(--orange)", "var(--green)", "var(--purple)", "var(--red)", "var(--ink)"];
  const SAVED = ["gpu", "tp", "dtype", "batch", "ttft_ms", "tpot_ms", "tokens_per_s_per_gpu", "tokens_per_s_per_user"];
  const BATCHES = Array.from({ length: 11 }, (_, i) => 2 ** i);
  let latest = 0;

  const name = (c) => `${c.tp > 1 ? `${c.tp} × ` : ""}${Answer.title(c.gpu)}, ${c.dtype}`;
  async function run() {
    const mine = ++latest,
      box = byId("curves");
    try {
      const shown = configurations();
      const answers = await Promise.all(
        shown.map((c) =>
          ask("/api/sweep", {
            ...model(),
            gpu: c.gpu,
            tp: c.tp,
            dtype: c.dtype,
            engine: state.engine,
            prompt: state.prompt,
            output: state.output,
            batch: BATCHES,
          }),
        ),
      );
      if (mine === latest) show(shown, answers);
    } catch (error) {
      if (mine === latest) box.replaceChildren(h("p", { class: "note" }, error.message));
    }
  }
  function tell(r) {
    const digits = (key) => meaningful(r[key], r.interval[key]);
    const time = (key) => (Chip.known(r[key]) ? duration(r[key] / 1e3, digits(key)) : Chip.NONE);
    return [
      ["batch", number(r.batch)],
      ["TTFT", time("ttft_ms")],
      ["TPOT", time("tpot_ms")],
      ["tok/s per GPU", rounded(r.tokens_per_s_per_gpu, digits("tokens_per_s_per_gpu"))],
      ["tok/s per user", rounded(r.tokens_per_s_per_user, digits("tokens_per_s_per_user"))],
      ["memory", r.memory.fits ? "fits" : "does not fit"],
    ];
  }
  /** A run that was measured: what it took, what its own prediction erred by, and the rates that its times give. */
  function tellRun(r) {
    const time = (key) => (Chip.known(r[key]) ? duration(r[key] / 1e3) : Chip.NONE);
    const erred = (key) => (Chip.known(r[key]) ? `, predicted ${Sure.signed(r[key])}` : "");
    const rate = (name, key) => (Chip.known(r[key]) ? [[`${name}, with ${number(r.rates_at_output)} out`, rounded(r[key], 4)]] : []);
    return [
      ["batch", number(r.batch)],
      ["in, out", `${number(r.prompt)}, ${number(r.output)} tokens`],
      ["TTFT", time("ttft_ms") + erred("ttft_error")],
      ["TPOT", time("tpot_ms") + erred("tpot_error")],
      ...rate("tok/s per GPU", "tokens_per_s_per_gpu"),
      ...rate("tok/s per user", "tokens_per_s_per_user"),
    ];
  }
  /** The rows of the curves as they came; rates of what was measured are those at the output that is asked for. */
  function table(answers) {
    const line = (kind, prompt, output) => (r) => [kind, r.prompt ?? prompt, r.output ?? output, ...SAVED.map((key) => r[key]), r.memory?.fits, ...["ttft_ms", "tpot_ms"].flatMap((key) => r.interval?.[key] || ["", ""])];
    const rows = answers.flatMap((a) => [...a.rows.filter((r) => !r.error).map(line("predicted", state.prompt, state.output)), ...a.measured.map(line("measured"))]);
    const spans = ["ttft_low_ms", "ttft_high_ms", "tpot_low_ms", "tpot_high_ms"];
    return Chip.csv(["kind", "prompt", "output", ...SAVED, "fits", ...spans], rows);
  }
  const KEYS = {
    ttft_ms: ["TTFT", (v) => duration(v / 1e3, 3)],
    tpot_ms: ["TPOT", (v) => duration(v / 1e3, 3)],
    tokens_per_s_per_gpu: ["tokens/s per GPU", (v) => number(v)],
    tokens_per_s_per_user: ["tokens/s per user", (v) => number(v)],
    batch: ["batch", (v) => number(v)],
  };
  const TITLES = {
    ttft_ms: "First token (TTFT) against batch",
    tpot_ms: "Time per token (TPOT) against batch",
    tokens_per_s_per_gpu: "Tokens/s of a GPU against batch",
    tokens_per_s_per_user: "Tokens/s of a user against tokens/s of a GPU",
  };
  /** A click loads the point; a run that was measured brings the output that it had. */
  function picked(p) {
    const c = p.row;
    Object.assign(state, { gpu: c.gpu, tp: c.tp, dtype: c.dtype, batch: c.batch, ...(p.run ? { output: c.output } : {}) });
    Controls.refresh();
    heard.change();
  }
  const spans = (rows, key) => rows.flatMap((r) => r.interval?.[key] || [r[key]]).filter(Chip.known);
  /** One curve of every configuration with its band, and what was measured on it. */
  function curve(series, xKey, yKey) {
    const predicted = series.map((one) => ({
      name: one.name,
      color: one.color,
      shape: one.shape,
      joined: true,
      points: one.rows.map((r) => ({ x: r[xKey], y: r[yKey], hollow: !r.memory.fits, title: one.name, tell: () => tell(r), row: r })),
    }));
    const measured = series.map((one) => ({
      name: `${one.name}, measured`,
      color: "var(--ink)",
      shape: one.shape,
      points: one.runs
        .filter((r) => Chip.known(r[xKey]) && Chip.known(r[yKey]))
        .map((r) => ({ x: r[xKey], y: r[yKey], r: 5, hollow: true, title: `${one.name}, measured`, tell: () => tellRun(r), row: r, run: true })),
    }));
    const rows = series.flatMap((one) => [...one.rows, ...one.runs]),
      ys = reach(spans(rows, yKey), 1.25),
      overBatch = xKey === "batch";
    return plot({
      title: TITLES[yKey],
      width: 560,
      height: 360,
      x: { label: KEYS[xKey][0], format: KEYS[xKey][1], ...(overBatch ? { range: [0.85, 1200], binary: true } : { range: reach(spans(rows, xKey), 1.2) }) },
      y: { label: KEYS[yKey][0], format: KEYS[yKey][1], range: ys },
      bands: series.map((one) => ({ color: one.color, points: one.rows.filter((r) => r.interval[yKey]).map((r) => [r[xKey], ...r.interval[yKey]]) })),
      lines: overBatch ? [...edges(series, ys), ...limit(yKey)] : [],
      series: [...predicted, ...measured],
      picked,
    });
  }
  /** Where memory is full; each label stands at the foot, a little higher than the one before. */
  const edges = (series, ys) =>
    series.flatMap((one, i) => {
      const most = one.rows[0]?.memory.max_batch;
      if (!(most >= 1 && most < BATCHES[BATCHES.length - 1])) return [];
      const ends = [
        [most, ys[1]],
        [most, ys[0] * (ys[1] / ys[0]) ** (0.02 + 0.06 * i)],
      ];
      return [{ points: ends, color: one.color, dash: "5 4", width: 1.4, label: `memory full at ${most}`, short: `full: ${most}` }];
    });
  function limit(key) {
    const most = limits()[key];
    return most ? [{ points: [[1, most], [1024, most]], color: "var(--ink)", dash: "2 3", width: 1.2, label: `limit ${most} ms`, labelAt: "start" }] : [];
  }
  function show(shown, answers) {
    const series = answers.map((a, i) => ({ name: name(shown[i]), color: COLORS[i], shape: i, rows: a.rows.filter((r) => !r.error), runs: a.measured }));
    if (!series.some((one) => one.rows.length)) {
      byId("curves").replaceChildren(h("p", { class: "note" }, answers[0].rows[0]?.error || "nothing to draw"));
      return;
    }
    const drawn = [["batch", "ttft_ms"], ...(state.output > 1 ? [["batch", "tpot_ms"]] : []), ["batch", "tokens_per_s_per_gpu"], ["tokens_per_s_per_gpu", "tokens_per_s_per_user"]];
    byId("curves").replaceChildren(
      legend([
        ...series.map(({ name: n, color, shape }) => ({ name: n, color, shape })),
        { name: "does not fit", color: "var(--muted)", hollow: true },
        ...series.filter((one) => one.runs.length).map(({ name: n, shape }) => ({ name: `${n}, measured`, color: "var(--ink)", shape, hollow: true })),
      ]),
      h("div", { class: "sides" }, drawn.map(([x, y]) => h("figure", {}, h("figcaption", {}, TITLES[y]), curve(series, x, y)))),
      h("div", { class: "tools" }, h("button", { type: "button", onclick: () => save("curves.csv", "text/csv", table(answers)) }, "CSV of the curves")),
    );
  }
  return { run };
})();
