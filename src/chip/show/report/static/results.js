"use strict";
// Overview, operators, kernels, replay, runs, comparisons and provenance.
const Results = (() => {
  const { h, known, si, duration, percent, number, quantity } = Chip;
  const { legend } = Plots;
  const { bars, waterfall } = Bars;
  const { tables, empty, tableOf, words, unique, hasValues, select, folded, PATTERNS, COLORS, OTHER } = Report;

  const MOST_BARS = 40,
    MOST_TALLIES = 14,
    MOST_LADDERS = 8,
    FIRST = 3; // cards of the first screen; each section has its own

  /** The first of many pictures; the rest of them folded, and the heading says so. */
  function few(title, order, items, most, draw) {
    const rest = items.slice(most);
    return h(
      "div",
      {},
      h("h3", {}, rest.length ? `${title}: ${most} of ${items.length} shown, ${order}` : title),
      draw(items.slice(0, most)),
      rest.length ? folded(`The other ${rest.length}`, () => draw(rest)) : "",
    );
  }

  function about() {
    const read = tables.sources.objects().filter((f) => f.status === "read");
    const devices = unique(read.map((f) => f.device)),
      days = unique(read.map((f) => f.made && String(f.made).slice(0, 10))).sort();
    const when = days.length > 1 ? `, ${days[0]} to ${days[days.length - 1]}` : days.length ? `, ${days[0]}` : "";
    const what = "CHIP predicts how fast a language model runs on a GPU before it is run, and explains the time it took. ";
    return `${what}This page holds those predictions against what was measured: `.concat(counts(read, devices, when));
  }
  function counts(read, devices, when) {
    return `${read.length} ${read.length === 1 ? "file" : "files"} of results${devices.length ? `, measured on ${devices.join(", ")}` : ""}${when}.`;
  }
  /** One sentence, three numbers, one chart. */
  function overview() {
    const cards = tables.headlines.objects().slice(0, FIRST);
    if (!cards.length) return empty("None of the files has a figure for a card.");
    const classes = tables.spreads.objects().filter((r) => r.who === "chip");
    const [typical, worst] = cards.filter((c) => c.section === "accuracy");
    return [
      typical && worst ? h("p", { class: "claim story" }, "In the median, predictions of ", h("strong", {}, `${typical.detail} are off by ${quantity(typical.value, typical.unit)}`), `; those of the worst class, ${worst.detail}, by ${quantity(worst.value, worst.unit)}.`) : "",
      h(
        "div",
        { class: "metrics wide" },
        cards.map((c) => {
          const [value, ...unit] = quantity(c.value, c.unit).split(" ");
          return h(
            "a",
            { class: "metric", href: `#${c.section}` },
            h("h3", {}, c.name),
            h("div", { class: "value" }, value, " ", h("small", {}, unit.join(" "))),
            h("div", { class: "span" }, c.detail),
          );
        }),
      ),
      classes.length ? h("h3", {}, "How wrong, by class: where the GPU is the limit, then where the host is") : "",
      classes.length ? Strips.strips(classes.filter((r) => ["tpot", "ttft"].includes(r.metric)), "Predicted over measured, by engine, metric and what bounds it") : "",
    ];
  }

  function operators() {
    if (!tables.operators.rows.length)
      return empty(
        "No measured operators are among the results. On the device:",
        "chip profile --suite llm -o operators.jsonl",
      );
    return [
      tallied("operators", "Share of its roof that a kind of operator reaches, median · number of operators", 1),
      tableOf(
        "operators",
        "operators",
        words("label implementation context p50_us p95_us flops_per_s bytes_per_s share_of_roof bound verdict"),
        words("op context dtype bound status source"),
        "",
      ),
    ];
  }
  /** The tallies of a section as bars; `most`: the end of their scale. */
  function tallied(section, title, most) {
    const rows = tables.tallies.objects().filter((t) => t.section === section);
    if (!rows.length) return "";
    const scale = most || Math.max(...rows.map((t) => t.value));
    return few(title, "those of most rows first", rows, MOST_TALLIES, (some) =>
      bars(
        some.map((t) => ({ name: t.name, value: t.value, text: `${t.unit === "x" ? `${number(t.value, 3)} x` : quantity(t.value, t.unit)} · ${number(t.count)}` })),
        scale,
      ),
    );
  }

  function kernels() {
    const table = tables.kernels;
    if (!table.rows.length)
      return empty(
        "No kernels of our own were measured yet. On an NVIDIA GPU with nvcc and Triton:",
        "chip kernels bench -o artifacts",
      );
    const ladder = table.objects().filter((k) => k.step && known(k.flops_per_s));
    const groups = unique(ladder.map((k) => `${k.kernel}, ${k.shape} ${k.dtype || ""}`));
    return [
      groups.length ? few("From step to step", "in the order of the files", groups, MOST_LADDERS, (some) => h(
        "div",
        { class: "sides" },
        some.map((name) => {
          const steps = ladder.filter((k) => `${k.kernel}, ${k.shape} ${k.dtype || ""}` === name);
          const memory = steps.every((k) => known(k.bytes_per_s) && k.intensity < 20);
          const value = (k) => (memory ? k.bytes_per_s : k.flops_per_s);
          return h(
            "div",
            {},
            h("h4", {}, name),
            bars(
              steps.map((k) => ({
                name: k.step,
                value: value(k),
                text: `${si(value(k), memory ? "B/s" : "FLOP/s")} · ${known(k.speedup_p50) ? `${number(k.speedup_p50, 3)} x ${k.baseline}` : ""}`,
              })),
            ),
          );
        }),
      )) : "",
      tableOf(
        "kernels",
        "kernels",
        words(
          "kernel step shape dtype baseline baseline_p50_us optimised_p50_us speedup_p50 speedup_p95 verdict max_abs_error share_of_roof",
        ),
        words("kernel dtype baseline"),
        "",
      ),
    ];
  }

  function replay() {
    const found = tables.replays.objects();
    if (!found.length)
      return empty(
        "No step was captured and replayed yet. On the device:",
        "chip capture bloom-560m --batch 1 --prompt 5 -o trace.json",
        "chip replay trace.json",
        "chip explain trace.json replay.json",
      );
    found.sort((a, b) => Math.abs(b.error_percent) - Math.abs(a.error_percent)); // the worst first
    const [first, ...others] = found.map((r) => () => step(r));
    return [first(), others.length ? folded(`The other ${others.length} captured steps`, () => h("div", {}, others.map((make) => make()))) : ""];
  }
  function step(r) {
      const own = (name) => tables[name].objects().filter((t) => t.title === r.title && t.source === r.source);
      const tiers = own("replay_tiers"),
        worst = own("replay_kernels").slice(0, 10);
      return h(
        "div",
        {},
        h("h3", {}, r.title),
        h(
          "p",
          { class: "lead" },
          `whole step ${duration(r.full_model_us / 1e6)}, from its kernels ${duration(r.from_kernels_us / 1e6)}: ${quantity(r.error_percent, "%")}. Unexplained: ${quantity(r.unexplained_percent, "%")}. Replayed: ${percent(r.launches_covered)} of launches, ${percent(r.time_covered)} of GPU time.`,
        ),
        h(
          "div",
          { class: "sides" },
          h(
            "div",
            {},
            h("h4", {}, "Tiers"),
            bars(
              tiers.map((t, i) => ({
                name: t.tier,
                value: t.total_us,
                color: COLORS[i] || OTHER,
                title: t.method,
                text: `${duration(t.total_us / 1e6)} · ${number(t.unique_kernels)} unique`,
              })),
            ),
          ),
          h(
            "div",
            {},
            h("h4", {}, "From kernels to wall time"),
            waterfall(own("replay_terms").sort((a, b) => a.order - b.order)),
          ),
        ),
        worst.length
          ? folded("Kernels that replay worst", () =>
              h(
                "div",
                { class: "scroll", tabindex: "0", role: "region", "aria-label": `Kernels that replay worst, ${r.title}, ${r.source}` },
                h(
                  "table",
                  {},
                  h(
                    "thead",
                    {},
                    h(
                      "tr",
                      {},
                      ["kernel", "tier", "launches", "captured", "replayed", "error"].map((c, i) =>
                        h("th", { scope: "col", class: i > 1 ? "num" : null }, c),
                      ),
                    ),
                  ),
                  h(
                    "tbody",
                    {},
                    worst.map((k) =>
                      h(
                        "tr",
                        {},
                        h("td", { title: k.kernel }, k.kernel.length > 64 ? `${k.kernel.slice(0, 63)}…` : k.kernel),
                        h("td", {}, k.tier),
                        h("td", { class: "num" }, number(k.launches)),
                        h("td", { class: "num" }, quantity(k.captured_us, "us")),
                        h("td", { class: "num" }, quantity(k.replayed_us, "us")),
                        h("td", { class: "num" }, quantity(k.error_percent, "%")),
                      ),
                    ),
                  ),
                ),
              ),
            )
          : "",
      );
  }
  const workload = (r) => `${r.batch} × (${r.prompt} in, ${r.output} out), ${r.dtype}`;
  /** Workloads by how many engines and how many models with each ran them. */
  function workloads(ok) {
    const found = new Map();
    for (const r of ok) {
      const key = workload(r);
      found.set(key, (found.get(key) || new Set()).add(`${r.model} ${r.engine}`));
    }
    const engines = (ran) => new Set([...ran].map((one) => one.split(" ")[1])).size;
    return [...found].sort(([, a], [, b]) => engines(b) * b.size - engines(a) * a.size).map(([key]) => key);
  }
  /** The fastest run of each model and engine at one workload, fastest first. */
  function best(ok) {
    const found = new Map();
    for (const r of ok) {
      const key = `${r.model} ${r.engine}`;
      if (!found.has(key) || found.get(key).tokens_per_s < r.tokens_per_s) found.set(key, r);
    }
    return [...found.values()].sort((a, b) => b.tokens_per_s - a.tokens_per_s);
  }
  /** Like with like: every bar is the same batch, prompt, output and precision. */
  function throughput(ok, engines) {
    const whole = ok.filter((r) => r.bundled),
      shown = whole.length ? whole : ok, // cut-down models only where there are no others
      box = h("div"),
      all = workloads(shown);
    const look = (r) => ({
      color: COLORS[engines.indexOf(r.engine)] || OTHER,
      pattern: PATTERNS[engines.indexOf(r.engine) % PATTERNS.length],
    });
    const draw = (chosen) => {
      const found = best(shown.filter((r) => workload(r) === chosen));
      const here = engines.filter((e) => found.some((r) => r.engine === e));
      box.replaceChildren(
        h("div", { class: "tools screen" }, select("Workload", all, chosen, draw)),
        legend(here.map((name) => ({ name, ...look({ engine: name }) }))),
        few(`Throughput at ${chosen}`, "fastest first", found, MOST_BARS, (some) =>
          bars(
            some.map((r) => ({
              name: `${r.model}, ${r.engine}`,
              value: r.tokens_per_s,
              ...look(r),
              text: `${number(r.tokens_per_s)} tok/s`,
              title: `${r.engine} ${r.variant}`,
            })),
            found[0].tokens_per_s,
          ),
        ),
      );
    };
    if (all.length) draw(all[0]);
    return box;
  }
  function runs() {
    const table = tables.runs;
    if (!table.rows.length)
      return empty(
        "No model was run for real yet. On a machine with the engine:",
        "chip bench llama-3.1-8b --engine hf-graph -o runs.json",
      );
    const ok = table.objects().filter((r) => r.status === "ok");
    const engines = unique(ok.map((r) => r.engine));
    return [
      throughput(ok, engines),
      tableOf(
        "runs",
        "runs",
        words(
          "model gpu engine variant batch prompt output tokens_per_s ttft_p50_ms ttft_p95_ms tpot_p50_ms tpot_p95_ms latency_p50_ms latency_p95_ms vram_bytes joules_per_token status question",
        ).filter((c) => c !== "variant" || hasValues(table)(c)),
        words("model engine dtype gpu status source"),
        "",
      ),
    ];
  }

  function comparisons() {
    if (!tables.comparisons.rows.length)
      return empty(
        "There are no two runs of the same model and scenario. Run it again, or with another engine:",
        "chip bench llama-3.1-8b --engine hf-eager -o other.json",
      );
    const all = tables.comparisons.objects(),
      VERDICTS = words("faster less unclear slower more"); // of the second; less and more where it is no time
    const sums = unique(all.map((c) => c.kind)).flatMap((kind) =>
      unique(all.map((c) => c.metric)).flatMap((metric) => {
        const own = all.filter((c) => c.kind === kind && c.metric === metric);
        const counts = VERDICTS.map((v) => [v, own.filter((c) => c.verdict === v).length]).filter(([, n]) => n);
        return counts.length ? [`${kind}, ${metric}: ${counts.map(([v, n]) => `${number(n)} ${v}`).join(", ")}`] : [];
      }),
    );
    return [
      tallied("compared", "Time of one engine over another's, median · number of pairs of runs; in turn: on one GPU, by turns"),
      folded("Verdicts by metric", () => h("ul", {}, sums.map((text) => h("li", {}, text)))),
      tableOf(
      "comparisons",
      "compared",
      words("model point kind first second metric first_value second_value ratio low high verdict"),
      words("kind model metric verdict"),
      "",
    )];
  }

  function provenance() {
    return [
      tallied("provenance", "Files by what they are · their records"),
      tableOf(
        "sources",
        "provenance",
        words("file schema status reason records made device torch cuda driver id"),
        words("status schema"),
        "",
      ),
    ];
  }

  return { about, overview, operators, kernels, replay, runs, comparisons, provenance };
})();
