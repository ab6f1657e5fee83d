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
  /** A run that was measured: what it took, and what its own prediction erred by. */
  function tellRun(r) {
    const time = (key) => (Chip.known(r[key]) ? duration(r[key] / 1e3) : Chip.NONE);
    const erred = (key) => (Chip.known(r[key]) ? `, predicted ${Sure.signed(r[key])}` : "");
    return [
      ["batch", number(r.batch)],
      ["in, out", `${number(r.prompt)}, ${number(r.output)} tokens`],
      ["TTFT", time("ttft_ms") + erred("ttft_error")],
      ["TPOT", time("tpot_ms") + erred("tpot_error")],
    ];
  }
  /** The rows of the curves as they came; what was measured has no rates. */
  function table(answers) {
    const line = (kind, prompt, output) => (r) => [kind, r.prompt ?? prompt, r.output ?? output, ...SAVED.map((key) => r[key]), r.memory?.fits, ...["ttft_ms", "tpot_ms"].flatMap((key) => r.interval?.[key] || ["", ""])];
    const rows = answers.flatMap((a) => [...a.rows.filter((r) => !r.error).map(line("predicted", state.prompt, state.output)), ...a.measured.map(line("measured"))]);
    const spans = ["ttft_low_ms", "ttft_high_ms", "tpot_low_ms", "tpot_high_ms"];
    return Chip.csv(["kind", "prompt", "output", ...SAVED, "fits", ...spans], rows);
  }
  function show(shown, answers) {
    const latency = state.output > 1 ? ["tpot_ms", "TPOT"] : ["ttft_ms", "TTFT"];
    const series = answers.map((a, i) => ({
      name: name(shown[i]),
      color: COLORS[i],
      shape: i,
      rows: a.rows.filter((r) => !r.error),
    }));
    const over = (xKey, yKey) =>
      series.map((one) => ({
        ...one,
        joined: true,
        points: one.rows.map((r) => ({
          x: r[xKey],
          y: r[yKey],
          hollow: !r.memory.fits,
          title: one.name,
          tell: () => tell(r),
          row: r,
        })),
      }));
    const runs = (yKey) =>
      series.map((one, i) => ({
        name: `${one.name}, measured`,
        color: "var(--ink)",
        shape: one.shape,
        points: answers[i].measured.filter((r) => Chip.known(r[yKey])).map((r) => ({ x: r.batch, y: r[yKey], r: 5, hollow: true, title: `${one.name}, measured`, tell: () => tellRun(r), row: r })),
      }));
    const measured = runs(latency[0]);
    const picked = (p) => {
      const c = p.row;
      const dtype = known.grid ? state.dtype : c.dtype;
      if (known.grid && !Site.holds({ ...c, dtype })) return;
      Object.assign(state, { gpu: c.gpu, tp: c.tp, dtype, batch: c.batch });
      Controls.refresh();
      heard.change();
    };
    const bands = (xKey, yKey) =>
      series.map((one) => ({
        color: one.color,
        points: one.rows.filter((r) => r.interval[yKey]).map((r) => [r[xKey], ...r.interval[yKey]]),
      }));
    const every = series.flatMap((one) => one.rows);
    if (!every.length) {
      byId("curves").replaceChildren(h("p", { class: "note" }, answers[0].rows[0]?.error || "nothing to draw"));
      return;
    }
    const range = (key, room) => reach(every.flatMap((r) => r.interval[key] || [r[key]]), room);
    const ys = reach([...every.flatMap((r) => r.interval[latency[0]] || [r[latency[0]]]), ...measured.flatMap((m) => m.points.map((p) => p.y))], 1.3);
    const edges = series.flatMap((one, i) => {
      const most = one.rows[0].memory.max_batch;
      if (!(most >= 1 && most < BATCHES[BATCHES.length - 1])) return [];
      const ends = [
        [most, ys[1]],
        [most, ys[0] * 1.04 ** (1 + 4 * i)], // its label stands at the foot, each a little higher
      ];
      const said = { label: `memory full at ${most}`, short: `full: ${most}` };
      return [{ points: ends, color: one.color, dash: "5 4", width: 1.4, ...said }];
    });
    const limit = limits()[latency[0]];
    const slo = limit ? [{ points: [[1, limit], [1024, limit]], color: "var(--ink)", dash: "2 3", width: 1.2, label: `limit ${limit} ms`, labelAt: "start" }] : [];
    byId("curves").replaceChildren(
      legend([...series.map(({ name: n, color, shape }) => ({ name: n, color, shape })), { name: "does not fit", color: "var(--muted)", hollow: true }, ...measured.filter((m) => m.points.length).map(({ name: n, color, shape }) => ({ name: n, color, shape, hollow: true }))]),
      h(
        "div",
        { class: "sides" },
        plot({
          title: `${latency[1]} against batch`,
          width: 560,
          height: 380,
          x: { label: "batch", format: (v) => number(v), range: [0.85, 1200], binary: true },
          y: { label: latency[1], format: (v) => duration(v / 1e3, 3), range: ys },
          bands: bands("batch", latency[0]),
          lines: [...edges, ...slo],
          series: [...over("batch", latency[0]), ...measured],
          picked,
        }),
        plot({
          title: "Tokens/s of a user against tokens/s of a GPU",
          width: 560,
          height: 380,
          x: { label: "tokens/s per GPU", format: (v) => number(v), range: range("tokens_per_s_per_gpu", 1.2) },
          y: { label: "tokens/s per user", format: (v) => number(v), range: range("tokens_per_s_per_user", 1.2) },
          bands: bands("tokens_per_s_per_gpu", "tokens_per_s_per_user"),
          series: over("tokens_per_s_per_gpu", "tokens_per_s_per_user"),
          picked,
        }),
      ),
      h("div", { class: "tools" }, h("button", { type: "button", onclick: () => save("curves.csv", "text/csv", table(answers)) }, "CSV of the curves")),
    );
  }
  return { run };
})();
