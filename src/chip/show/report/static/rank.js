"use strict";
// Which GPU: all GPUs, splits and precisions for the workload, best first.
const Rank = (() => {
  const { h, duration, meaningful, rounded, number, save, csv, percent } = Chip;
  const { strip } = Bars;
  const { state, known, heard, byId, ask, isHeld, model, limits, addBeside, planCommand } = Question;
  const RESTS_ON = {
    measured: "operators measured by CHIP",
    imported: "operators from published tables",
    "same chip": "operators of a GPU of the same chip",
    datasheet: "from its datasheet alone",
  };
  const ROOM = 2; // of a bar, over the largest estimate
  const BUSY_MS = 1000;
  const SHOWN = 10,
    CHUNK = known.runtime ? 7 : 21; // GPUs more in each request: the page stays able to ask for something else in between
  const BY = {
    throughput: ["tokens_per_s_per_gpu", "tokens/s per GPU", "tok/s"],
    cost: ["cost_per_million_tokens", "cost of a million tokens", ""],
    energy: ["energy_j_per_token", "energy per token", "J/tok"],
  };
  const PRECISIONS = [
    ["auto", "the config's"],
    ["auto,fp8", "its own, fp8"],
    ["auto,fp8,int4", "its own, fp8, int4"],
  ];
  let found = { rows: [], ties: 0, unsure: 0, good: 0, left_out: 0 },
    all = false,
    latest = 0,
    answered = "", // the question that is on the page, or being asked
    built = false,
    progress = "";

  const group = (r) => (r.error ? 3 : r.memory && !r.memory.fits ? 2 : r.missed.length ? 1 : 0);
  const serves = () => known.defaults.plan.engines.includes(state.engine); // live traffic
  const byRate = () => state.at === "rate" && serves();
  /** GPUs of each request, those with measured tables first. By the rate all are asked for again and again until none is
   *  pending; bursts are quick, and asked for with a few more GPUs each time. The server remembers what it answered, and
   *  the order is always its own. */
  function requests() {
    const able = known.gpus.filter((g) => !g.too_old_for.includes(state.engine));
    const of = (basis) => able.filter((g) => g.rests_on === basis).map((g) => g.name);
    const first = [...of("measured"), ...of("imported")],
      rest = able.map((g) => g.name).filter((name) => !first.includes(name)),
      out = [first];
    if (byRate()) return [state.which === "all" ? [...first, ...rest] : first];
    if (state.which === "all")
      for (let i = 0; i < rest.length; i += CHUNK) out.push([...first, ...rest.slice(0, i + CHUNK)]);
    return out.filter((gpus) => gpus.length);
  }
  function limited() {
    const found = limits();
    if (byRate() && !Object.keys(found).length)
      throw Object.assign(new Error("Limit TTFT or TPOT: the rate is looked for that keeps them. A burst can be ranked without."), { empty: true });
    return found;
  }
  const asked = () => ({
    ...model(),
    engine: state.engine,
    prompt: state.prompt,
    output: state.output,
    ...(byRate() ? { workload: state.traffic } : { batch: state.at === "given" ? state.batch : "largest" }),
    tp: known.defaults.rank.splits,
    prune: true,
    dtype: state.precisions.split(","),
    limits: limited(),
    prices: Prices.parsed(state.prices).prices,
    by: state.by,
  });
  /** The question and the GPUs of each request, or why it cannot be asked. */
  function asking() {
    try {
      const question = asked(),
        groups = requests(),
        path = byRate() ? "/api/plan" : "/api/rank",
        whole = groups[groups.length - 1];
      return { path, question, groups: isHeld(path, { ...question, gpu: whole }) ? [whole] : groups };
    } catch (error) {
      return { error };
    }
  }
  function refuse(error) {
    byId("claim").replaceChildren(h("p", { class: error.empty ? "note" : "note bad" }, error.message));
    byId("ranked").replaceChildren();
    byId("frontier").replaceChildren();
  }
  /** A server that has much to do is asked again. */
  async function patient(asking, tries = 5) {
    for (;;) {
      try {
        return await asking();
      } catch (error) {
        if (!error.busy || !--tries) throw error;
        await new Promise((done) => setTimeout(done, BUSY_MS));
      }
    }
  }
  /** Asks for one group after the other, and stops where a newer question has come. The same question is asked once. */
  async function run() {
    const { path, question, groups, error } = asking(),
      whole = error ? "" : JSON.stringify([path, question, groups]);
    if (whole && whole === answered) return;
    answered = whole;
    const mine = ++latest,
      started = performance.now(),
      box = byId("ranking");
    let shown = false; // something of this question
    box.setAttribute("aria-busy", "true");
    try {
      if (error) throw error;
      for (const [i, gpu] of groups.entries()) {
        do {
          const answer = await patient(() => ask(path, { ...question, gpu }));
          if (mine !== latest) return;
          found = answer;
          const pending = found.pending?.length || 0;
          progress = pending || i + 1 < groups.length ? `${gpu.length - pending} ${pending ? `of ${gpu.length} ` : ""}GPUs so far …` : "";
          show();
          if (!shown && found.rows.length) box.dataset.first = String(Math.round(performance.now() - started));
          shown ||= found.rows.length > 0;
        } while (found.pending?.length);
      }
      box.dataset.took = String(Math.round(performance.now() - started));
    } catch (failed) {
      if (mine !== latest) return;
      answered = ""; // so that it can be asked again
      progress = `The rest could not be asked for: ${failed.message}`;
      if (shown) show();
      else refuse(failed);
    }
    box.setAttribute("aria-busy", "false");
  }

  // -- showing
  const title = (gpu) => known.gpus.find((g) => g.name === gpu)?.title || gpu;
  const ms = (r, key) => duration(r[key] / 1e3, r.interval[key] ? meaningful(r[key], r.interval[key]) : 3);
  function badge(basis) {
    return h("span", { class: `badge ${basis.replace(" ", "-")}`, title: `what most of its operators' time rests on: ${basis}` }, basis);
  }
  /** What was asked, above its answer: on a phone the form is out of sight. */
  function askedLine() {
    const most = Object.entries(limits()).map(([key, v]) => `${key.replace("_ms", "").toUpperCase()}${byRate() ? " p99" : ""} under ${duration(v / 1e3)}`);
    return h("p", { class: "asked" }, [Question.named(), `${number(state.prompt)} tokens in, ${number(state.output)} out`, ...most, byRate() ? "live requests" : "a burst"].join(" · "));
  }
  function claim(good) {
    const [key, name, unit] = BY[state.by],
      best = good[0];
    if (!best) return h("p", { class: "claim" }, progress ? "Nothing fits within the limits so far …" : "Nothing fits within the limits.");
    if (!Chip.known(best[key]))
      return h(
        "p",
        { class: "claim" },
        state.by === "cost" ? "Give prices below to rank by cost." : `No ${name} is known for what fits.`,
      );
    const n = meaningful(best[key], best.interval[key]),
      [low, high] = best.interval[key],
      load = best.max_rate_per_s ? `, at ${rate(best)}${best.tp > 1 ? " of a replica" : ""}` : `, batch ${best.batch}`;
    document.title = `${best.tp} × ${best.gpu} for ${Question.named()} – CHIP`;
    return h(
      "p",
      { class: "claim", elementtiming: "answer" }, // when it is on the screen: what benchmarks/opening.py reads
      h("strong", {}, `${best.tp} × ${best.gpu}, ${best.dtype}: ${state.by === "cost" ? `${money(best[key], n)} a million tokens` : `${rounded(best[key], n)} ${unit}${unit === "tok/s" ? " per GPU" : ""}`}`),
      ` (${rounded(low, n)} to ${rounded(high, n)})${load}, `,
      badge(best.rests_on),
      ` ${RESTS_ON[best.rests_on]}. `,
      h("span", { class: "known-error" }, knownError(best)),
      found.ties ? ` ${found.ties} more ${found.ties === 1 ? "shares" : "share"} this place: a tie.` : "",
      found.unsure ? ` ${found.unsure} further down may be ${better()}, but too little is known of ${found.unsure === 1 ? "it" : "them"} to say so.` : "",
      state.by === "cost" && found.good > priced() ? ` Of ${priced()} choices whose GPU has a price below.` : "",
    );
  }
  const money = (v, n) => `${known.defaults.prices.currency === "USD" ? "$" : ""}${rounded(v, n)}`;
  const priced = () => found.rows.filter((r) => group(r) === 0 && Chip.known(r.cost_per_million_tokens)).length;
  /** How far off the prediction of the nearest measured run was. */
  function knownError(best) {
    const [run] = best.nearest_validated || [];
    if (!run) return `No known error: no run on ${best.tp} × ${best.gpu} in ${best.dtype} was held against a prediction.`;
    const errors = Sure.ERRORS.filter(([name]) => Chip.known(run[name])).map(([name, title]) => `${title} ${Sure.signed(run[name])}`);
    return `Known error, of the nearest measured run (${run.model} on ${run.gpu}, ${number(run.batch)} × ${number(run.prompt)} in): ${errors.join(", ")}.`;
  }
  const rate = (r) => `${rounded(r.max_rate_per_s, 3)}\u00a0req/s`;
  const better = () => ({ throughput: "faster", cost: "cheaper", energy: "thriftier" })[state.by];
  /** The interval, with the end that the order goes by set off. */
  function interval(r, [low, high], n) {
    const ends = [low, high].map((v) => rounded(v, n)),
      sure = state.by === "throughput" ? 0 : 1;
    return h("div", { class: "span" }, sure ? [`${ends[0]} – `, h("b", {}, ends[1])] : [h("b", {}, ends[0]), ` – ${ends[1]}`], r.may_lead ? h("div", {}, `may be ${better()} than 1`) : "");
  }
  /** Of the bars: an interval of which nearly nothing is known would leave no room for the others, and runs off the end. */
  function scale() {
    const [key] = BY[state.by],
      good = found.rows.filter((r) => !group(r) && r.interval[key]);
    return Math.min(Math.max(...good.map((r) => r.interval[key][1]), 0), ROOM * Math.max(...good.map((r) => r[key]), 0));
  }
  function loadRow(r) {
    Object.assign(state, { gpu: r.gpu, tp: r.tp, dtype: r.dtype, batch: r.batch });
    Controls.refresh();
    heard.change();
    Question.goTo("answer");
  }
  function line(r, i, most) {
    const [key] = BY[state.by],
      span = r.interval[key],
      n = meaningful(r[key], span);
    const load = h("button", { type: "button", class: "link", title: title(r.gpu), "aria-label": `Load ${title(r.gpu)}, ${r.tp} GPUs, ${r.dtype}` }, r.gpu);
    const loaded = () => loadRow(r);
    load.addEventListener("click", loaded);
    const compare = h(
      "button",
      { type: "button", class: "small", "aria-label": `Compare ${title(r.gpu)}, ${r.tp} GPUs, ${r.dtype}` },
      "compare",
    );
    compare.addEventListener("click", () => {
      if (!addBeside({ gpu: r.gpu, tp: r.tp, dtype: r.dtype })) return;
      Controls.refresh();
      heard.change();
    });
    const missed = r.missed.map((m) => m.replace("_ms", "").toUpperCase()).join(" and ");
    const row = h(
      "tr",
      { "data-gpu": r.gpu, "data-tp": r.tp, "data-dtype": r.dtype, "data-value": r[key], "data-sure": span?.[state.by === "throughput" ? 0 : 1] },
      h("td", { class: "num" }, r.place ? `${r.place}${r.tie ? "=" : ""}` : String(i + 1)),
      h("td", {}, load, " ", badge(r.rests_on), h("div", { class: "span" }, `${r.tp} GPU${r.tp > 1 ? "s" : ""}, ${r.dtype}${r.max_rate_per_s ? `, ${rate(r)}` : r.batch ? `, batch ${r.batch}` : ""}`)),
      h(
        "td",
        { class: "num wide" },
        Chip.known(r[key]) ? `${rounded(r[key], n)}` : Chip.NONE,
        span && most ? [strip(span[0], r[key], span[1], most), interval(r, span, n)] : "",
      ),
      h("td", { class: "num" }, ms(r, "ttft_ms")),
      h("td", { class: "num" }, Chip.known(r.tpot_ms) ? ms(r, "tpot_ms") : Chip.NONE),
      h("td", { class: "num" }, Chip.known(r.energy_j_per_token) ? rounded(r.energy_j_per_token, 2) : Chip.NONE),
      h("td", {}, group(r) === 2 ? `memory: ${percent(r.memory.share)} of what it may use` : missed ? `misses ${missed}${r.reason ? " even alone" : ""}` : r.limited_by?.replace(/^(\w+?)_/, (_, name) => `${name.toUpperCase()} `) || `${r.bound.tpot || r.bound.ttft}-bound`),
      h("td", {}, compare),
    );
    row.addEventListener("click", (e) => e.target.closest("button") || getSelection().toString() || loaded());
    return row;
  }
  // -- order: as ranked, or by a column
  const SORTS = {
    "#": (r) => r.place ?? Infinity,
    GPU: (r) => r.gpu,
    TTFT: (r) => r.ttft_ms,
    TPOT: (r) => r.tpot_ms,
    "J/token": (r) => r.energy_j_per_token,
    "limited by": (r) => r.limited_by || r.bound?.tpot || "",
  };
  const sortOf = (name) => SORTS[name.replace(" p99", "")] || ((r) => r[BY[state.by][0]]);
  function sorted(rows) {
    const name = state.sort.replace(/^-/, "");
    if (!name) return rows;
    const value = sortOf(name),
      turn = state.sort.startsWith("-") ? -1 : 1;
    return rows
      .map((r, i) => [value(r), i, r])
      .sort(([a, i], [b, j]) => {
        if (!Chip.known(a) && typeof a !== "string") return 1;
        if (!Chip.known(b) && typeof b !== "string") return -1;
        return turn * (typeof a === "string" ? Chip.byText(a, b) : a - b) || i - j;
      })
      .map(([, , r]) => r);
  }
  function head(text, number) {
    if (!text) return h("td", {});
    const now = state.sort.replace(/^-/, "") === text,
      down = now && state.sort.startsWith("-");
    const button = h("button", { type: "button", class: "sort" }, text, now ? (down ? " ↓" : " ↑") : "");
    button.addEventListener("click", () => {
      state.sort = now ? (down ? "" : `-${text}`) : text;
      Question.writeLink();
      list();
      [...document.querySelectorAll("#ranked .sort")].find((one) => one.textContent.startsWith(text))?.focus();
    });
    return h("th", { scope: "col", class: number ? "num" : null, "aria-sort": now ? (down ? "descending" : "ascending") : null }, button);
  }
  function table(rows, from, label = "Ranking") {
    const [, name] = BY[state.by],
      most = scale();
    const of = byRate() ? " p99" : "",
      numbers = [name, `TTFT${of}`, `TPOT${of}`, "J/token"];
    const heads = ["#", "GPU", ...numbers, "limited by", ""],
      number = new Set(["#", ...numbers]);
    return h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
      h(
        "table",
        { class: "ranking" },
        h("thead", {}, h("tr", {}, heads.map((t) => head(t, number.has(t))))),
        h("tbody", {}, rows.map((r, i) => line(r, from + i, most))),
      ),
    );
  }
  /** What is said already is left alone, and its element stays: it is painted once, however many GPUs follow. */
  function say(askedNow, next) {
    const [before, now] = byId("claim").children;
    if (now?.isEqualNode(next) && before.isEqualNode(askedNow)) return;
    if (now?.hasAttribute("elementtiming") && next.hasAttribute("elementtiming")) {
      before.replaceWith(askedNow);
      now.replaceChildren(...next.childNodes);
    } else byId("claim").replaceChildren(askedNow, next);
  }
  function show() {
    const good = found.rows.filter((r) => group(r) === 0);
    say(askedLine(), claim(good));
    if (!built) return; // the claim is painted before anything else
    Frontier.show(found, good, { byRate: byRate(), load: loadRow });
    list();
    if (!progress) byId("ranked-said").textContent = `${found.good} choices ranked. ${byId("claim").textContent}`;
  }
  function list() {
    const rows = found.rows,
      good = sorted(rows.filter((r) => group(r) === 0)),
      rest = rows.filter((r) => [1, 2].includes(group(r))),
      refused = rows.filter((r) => r.error);
    const more = h("button", { type: "button" }, all ? `Show the first ${SHOWN}` : `Show all ${found.good}`);
    more.addEventListener("click", () => {
      all = !all;
      list();
    });
    byId("ranked").replaceChildren(
      good.length ? table(all ? good : good.slice(0, SHOWN), 0) : "",
      h(
        "div",
        { class: "tools" },
        good.length > SHOWN ? more : "",
        download(),
        found.left_out ? h("span", { class: "muted" }, `${found.left_out} larger splits left out: they give less per GPU`) : "",
        progress ? h("span", { class: "muted", role: "status" }, progress) : "",
      ),
      state.at === "rate" && !byRate() ? h("p", { class: "note" }, `${state.engine} has no scheduler of live traffic: ranked by a burst.`) : "",
      byRate() && good.length ? Answer.copyable(planCommand([...new Set(good.slice(0, SHOWN).map((r) => r.gpu))]), "Command for this ranking") : "",
      rest.length
        ? h("details", {}, h("summary", {}, `${found.not_good} that do not fit or miss a limit`), table(rest.slice(0, 60), good.length, "Beyond the limits"))
        : "",
      refused.length
        ? h(
            "details",
            {},
            h("summary", {}, `${found.refused} that cannot be predicted`),
            h("ul", {}, [...new Set(refused.map((r) => `${r.gpu}: ${r.error}`))].slice(0, 40).map((e) => h("li", {}, e))),
          )
        : "",
    );
  }
  const COLUMNS = ["gpu", "tp", "dtype", "kv_dtype", "batch", "prompt", "output", "tokens_per_s_per_gpu", "tokens_per_s_per_user", "tokens_per_s", "ttft_ms", "tpot_ms", "e2e_ms", "energy_j_per_token", "cost_per_million_tokens", "max_rate_per_s", "limited_by", "rests_on", "place", "tie", "may_lead", "error"];
  function download() {
    const button = h("button", { type: "button" }, "CSV");
    button.addEventListener("click", () =>
      save("ranking.csv", "text/csv", csv([...COLUMNS, "low", "high", "fits", "missed"], found.rows.map((r) => {
        const span = r.interval?.[BY[state.by][0]] || [];
        return [...COLUMNS.map((c) => r[c]), span[0], span[1], r.memory?.fits, r.missed?.join(" ")];
      }))),
    );
    return button;
  }

  /** Its own controls: what to rank by, at which batch, in which precisions, at which prices. */
  function build() {
    const set = (name) => (value) => {
      state[name] = value;
      heard.change();
    };
    const fields = [
      ["by", "Rank by", Object.entries(BY).map(([k, [, name]]) => [k, name])],
      ["at", "Load", [["rate", "requests at a rate"], ["largest", "a burst, the largest"], ["given", "a burst of the batch"]]],
      ["precisions", "Precisions", PRECISIONS],
      ["which", "GPUs", [["all", "all"], ["tables", "measured tables"]]],
    ].map(([name, label, values]) => Controls.choice(`rank-${name}`, label, [["", values]], state[name], set(name)));
    const about = known.defaults.prices;
    const box = h("textarea", { id: "rank-prices", rows: 1, spellcheck: "false", placeholder: "h200:3.5, h100:2.2" }, state.prices);
    const wrong = Controls.complaint(box, "rank-prices");
    const complain = () => wrong.say(Prices.parsed(state.prices).wrong.join("; "));
    box.addEventListener("input", () => {
      set("prices")(box.value);
      complain();
    });
    complain();
    byId("rank-controls").replaceChildren(
      ...fields,
      h("div", { class: "field wide" }, h("label", { for: "rank-prices" }, `Price of a GPU hour, ${about.currency}: examples of ${about.dated}, no quotes; put in yours`), box, wrong.said),
    );
    built = true;
    if (found.rows.length) show();
  }

  return { run, build, badge, asking };
})();
