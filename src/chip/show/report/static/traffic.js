"use strict";
// Live traffic: latency against the request rate with the limits, and queue, batch and KV use over time at one rate.
const Traffic = (() => {
  const { h, duration, number, percent, save, csv } = Chip;
  const { plot, legend, reach } = Plots;
  const { PASTE, state, known, heard, byId, ask, configurations, limits, quoted } = Question;
  const LOOKS = [
    ["p50", "median", "var(--blue)", 0],
    ["p90", "90th percentile", "var(--green)", 2],
    ["p99", "99th percentile", "var(--red)", 1],
  ];
  const HELD = [
    ["waiting", "requests waiting", number],
    ["running", "requests running", number],
    ["kv_share", "KV cache in use", percent],
  ];
  let latest = 0,
    seen = false, // simulating takes a while: only for those who look
    stale = true;

  const question = () => {
    const [c] = configurations();
    return {
      model: state.model,
      gpu: c.gpu,
      tp: c.tp,
      dtype: c.dtype,
      engine: state.engine,
      prompt: state.prompt,
      output: state.output,
      workload: state.traffic,
      limits: limits(),
    };
  };
  function asked() {
    stale = true;
    if (seen) run();
  }
  async function run() {
    const mine = ++latest,
      box = byId("traffic");
    stale = false;
    box.setAttribute("aria-busy", "true");
    try {
      if (state.model === PASTE || state.model.includes("/")) throw new Error("Traffic is simulated for bundled models here; `chip simulate` takes a config.json and hub ids.");
      const found = await ask("/api/traffic", question()),
        rate = Number(state.rate);
      const one = rate > 0 && rate !== found.timeline_rate ? await ask("/api/traffic", { ...question(), rates: [rate] }) : found;
      if (mine !== latest) return;
      show(found, one);
    } catch (error) {
      if (mine !== latest) return;
      byId("traffic-view").replaceChildren(h("p", { class: "note" }, error.message));
    }
    box.setAttribute("aria-busy", "false");
  }
  function claim(found) {
    const named = Object.entries(found.limits).map(([name, ms]) => `${name.replace("_ms", "").toUpperCase()} ${duration(ms / 1e3)}`);
    if (!named.length) return "Give limits to see up to which rate they are kept.";
    const best = found.highest_rate_within_limits;
    return best === null
      ? `No rate keeps ${named.join(" and ")} at the 99th percentile.`
      : `${named.join(" and ")} at the 99th percentile: kept up to ${number(best)} requests/s.`;
  }
  const two = (figure) => (figure ? `${duration(figure.p50 / 1e3, 3)}, ${duration(figure.p99 / 1e3, 3)}` : Chip.NONE);
  const tell = (r) => [
    ["rate", `${number(r.rate_per_s)} requests/s`],
    ["TTFT p50, p99", two(r.ttft_ms)],
    ["TPOT p50, p99", two(r.tpot_ms)],
    ["output", `${number(r.output_tokens_per_s)} tok/s`],
    ["KV cache, peak", percent(r.kv.peak_share)],
    ...(r.goodput ? [["within the limits", percent(r.goodput.share)]] : []),
  ];
  function latency(found, key, name) {
    const rows = found.simulations.filter((r) => r[key]),
      limit = found.limits[key],
      most = Math.max(...rows.map((r) => r.rate_per_s)) * 1.06;
    const ys = reach([...rows.flatMap((r) => [r[key].p50, r[key].p99]), limit], 1.6);
    const ends = [0, most].map((x) => [x, limit]),
      served = found.saturated_requests_per_s;
    const slo = limit ? [{ points: ends, color: "var(--ink)", dash: "2 3", width: 1.4, label: `limit ${duration(limit / 1e3)}`, labelAt: "start" }] : [],
      full = served ? [{ points: [[served, ys[1]], [served, ys[0] * 1.04]], color: "var(--muted)", dash: "5 4", width: 1.2, label: "all it can serve", short: "full" }] : [];
    return plot({
      title: `${name} against the request rate`,
      width: 560,
      height: 340,
      x: { label: "requests/s", format: (v) => number(v), range: [0, most], log: false },
      y: { label: name, format: (v) => duration(v / 1e3, 3), range: ys },
      lines: [...slo, ...full],
      series: LOOKS.map(([part, title, color, shape]) => ({
        name: title,
        color,
        shape,
        joined: true,
        points: rows.map((r) => ({ x: r.rate_per_s, y: r[key][part], title, tell: () => tell(r), row: r })),
      })),
      picked: (p) => {
        state.rate = String(p.row.rate_per_s);
        heard.change();
      },
    });
  }
  /** Queue, batch or KV cache over time. */
  function held(one, key, name, format) {
    const t = one.timeline.replicas[0],
      most = Math.max(...t[key], key === "kv_share" ? 0.01 : 1) * 1.08;
    return plot({
      title: `${name} over time at ${one.timeline_rate} requests/s`,
      width: 560,
      height: 260,
      x: { label: "seconds", format: (v) => number(v), range: [0, t.t_s[t.t_s.length - 1] || 1], log: false },
      y: { label: name, format, range: [0, most], log: false },
      lines: [{ points: t[key].map((v, i) => [t.t_s[i], v]), color: "var(--blue)", width: 1.3 }],
      series: [],
    });
  }
  function command(found) {
    const slo = Object.entries(found.limits).map(([name, ms]) => `${name.replace("_ms", "")}=${ms}ms`);
    const options = {
      gpu: found.gpu,
      engine: found.engine,
      dtype: found.dtype,
      tp: found.tp,
      workload: found.workload,
      requests: found.requests,
      rate: found.simulations.map((r) => r.rate_per_s).join(","),
      ...(slo.length ? { slo: slo.join(",") } : {}),
    };
    const words = Object.entries(options).map(([name, value]) => `--${name} ${quoted(value)}`);
    return `chip simulate ${quoted(found.model)} ${words.join(" ")} --no-intervals`;
  }
  function table(found) {
    const columns = ["rate_per_s", "requests", "completed", "rejected", "output_tokens_per_s", "gpu_busy", "preemptions"];
    const parts = ["ttft_ms", "tpot_ms", "e2e_ms", "queue_ms"].flatMap((key) => ["mean", "p50", "p90", "p95", "p99"].map((part) => [key, part]));
    const heads = [...columns, ...parts.map(([key, part]) => `${key}_${part}`)];
    const row = (r) => [...columns.map((c) => r[c]), ...parts.map(([key, part]) => r[key]?.[part])];
    const button = h("button", { type: "button" }, "CSV of the rates");
    button.addEventListener("click", () => save("traffic.csv", "text/csv", csv(heads, found.simulations.map(row))));
    return button;
  }
  function show(found, one) {
    const [first] = found.simulations,
      limit = found.saturated_requests_per_s;
    byId("traffic-view").replaceChildren(
      h("p", { class: "claim" }, claim(found)),
      h("p", { class: "lead" }, `${number(first.requests)} requests of ${found.workload}; when all come at once it serves ${number(limit, 3)} a second, and no higher rate would last.`),
      ...[...new Set(found.simulations.flatMap((r) => r.notes))].map((n) => h("p", { class: "note" }, n)),
      legend(LOOKS.map(([, name, color, shape]) => ({ name, color, shape }))),
      h("div", { class: "sides" }, latency(found, "ttft_ms", "TTFT"), first.tpot_ms ? latency(found, "tpot_ms", "TPOT") : ""),
      h("h3", { id: "traffic-held" }, `At ${number(one.timeline_rate)} requests/s`),
      h("div", { class: "sides" }, HELD.map(([key, name, format]) => held(one, key, name, (v) => format(v)))),
      Answer.copyable(command(found), "Command for this traffic", "traffic-command"),
      h("div", { class: "tools" }, table(found)),
    );
  }
  /** Its own control, and the wait until somebody looks. */
  function build() {
    const names = known.defaults.workloads.map((name) => [name, name === "poisson" ? "Poisson, with the lengths above" : name]);
    byId("traffic-controls").replaceChildren(
      Controls.choice("traffic-workload", "Workload", [["", names]], state.traffic, (value) => {
        state.traffic = value;
        state.rate = "";
        heard.change();
      }),
    );
    if (seen) return;
    const look = new IntersectionObserver((all) => {
      if (!all.some((e) => e.isIntersecting)) return;
      look.disconnect();
      seen = true;
      if (stale) run();
    });
    look.observe(byId("traffic-view"));
  }
  return { asked, build };
})();
