"use strict";
// The question of the explorer: its state, its address, and the commands that ask the same.
const Question = (() => {
  const SIZES = ["batch", "prompt", "output"];
  const PASTE = "paste a config.json …";
  const MOST_BESIDE = 5; // configurations compared with the first
  const byId = (id) => document.getElementById(id);
  const known = JSON.parse(byId("data").textContent); // models, gpus, engines, ops, defaults, and answers to open with
  const START = {
    model: "llama-3.1-8b",
    gpu: "h200",
    engine: "vllm",
    dtype: "auto",
    tp: 1,
    batch: 8,
    prompt: 1024,
    output: 128,
    beside: "", // h100~2~fp8,a100: GPU, split and precision of what is compared; what is left out is as in the first
    ttft: "", // limits in milliseconds
    tpot: "",
    by: "cost",
    sort: "", // of the ranking: a column's name, with - the largest first; empty as it is ranked
    embed: "", // 1: the answer and its chart alone
    which: "all", // GPUs to rank: all, or those with measured tables
    prices: "", // as typed: h200:3.5, h100=2.2, for an hour of one GPU
    precisions: "auto,fp8", // to rank
    at: known.runtime ? "largest" : "rate", // rank by the rate that keeps the limits, or by a burst: the "largest" that does, or the batch that is "given"
    traffic: "poisson", // arrivals: with the lengths above, or a bundled trace
    rate: "", // whose queue, batch and KV use are shown; empty for the highest within the limits
    name: "my-model", // of a pasted config
    config: "",
  };
  const state = { ...START };
  const heard = { change: () => {} }; // who is told of a change

  // -- talking to the server: what the page came with is not asked again
  const held = new Map();
  const ordered = (v) =>
    Array.isArray(v)
      ? v.map(ordered)
      : v && typeof v === "object"
        ? Object.fromEntries(Object.keys(v).sort().map((k) => [k, ordered(v[k])]))
        : v;
  const keyOf = (path, body) => `${path} ${JSON.stringify(ordered(body))}`;
  for (const [path, asked, answer] of known.answers) held.set(keyOf(path, asked), answer);
  const GONE = "The server does not answer. Is `chip serve` still running?";
  const elsewhere = { ask: askServer }; // a page without a server asks otherwise
  async function ask(path, body) {
    return held.get(keyOf(path, body)) || elsewhere.ask(path, body);
  }
  /** A hub id is asked as the config that the server has from the hub. */
  const fetched = new Map();
  async function askServer(path, body) {
    if (!body?.model?.includes("/") || body.config) return send(path, body);
    const repo = body.model;
    if (!fetched.has(repo)) fetched.set(repo, send("/api/hub", { model: repo }));
    try {
      return await send(path, { ...body, config: (await fetched.get(repo)).config });
    } catch (error) {
      if (error.gone) fetched.delete(repo);
      throw error;
    }
  }
  async function send(path, body) {
    const options = body && {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    };
    let response, found;
    try {
      response = await fetch(path, options);
      found = await response.json();
    } catch {
      const gone = new Error(GONE);
      gone.gone = true;
      throw gone;
    }
    if (!response.ok) throw Object.assign(new Error(found.error || `status ${response.status}`), { busy: response.status === 503 });
    return found;
  }

  // -- what is asked
  /** The model by name, or as the config that was pasted; an Error with `empty` where nothing was pasted yet. */
  function model() {
    if (state.model !== PASTE) return { model: state.model };
    if (!state.config.trim()) {
      const nothing = new Error("Paste the model's config.json, or drop the file on the box.");
      nothing.empty = true;
      throw nothing;
    }
    let config;
    try {
      config = JSON.parse(state.config);
    } catch (error) {
      throw new Error(`what is pasted is not JSON: ${error.message}`);
    }
    return { model: state.name, config };
  }
  /** The configurations shown: the first, then those beside it. */
  function configurations() {
    const first = { gpu: state.gpu, tp: state.tp, dtype: state.dtype };
    const others = state.beside
      .split(",")
      .filter(Boolean)
      .slice(0, MOST_BESIDE)
      .map((text) => {
        const [gpu, tp, dtype] = text.split("~");
        return { gpu, tp: Number(tp) || first.tp, dtype: dtype || first.dtype };
      });
    return [first, ...others];
  }
  const key = (c) => `${c.gpu}~${c.tp}~${c.dtype}`;
  function addBeside(c) {
    const held = configurations();
    if (held.length > MOST_BESIDE || held.some((d) => key(d) === key(c))) return false;
    state.beside = [...held.slice(1), c].map(key).join(",");
    return true;
  }
  function removeBeside(c) {
    state.beside = configurations()
      .slice(1)
      .filter((d) => key(d) !== key(c))
      .map(key)
      .join(",");
  }
  const named = () => (state.model === PASTE ? state.name : state.model);
  /** Moves the page and the keyboard to a part of it. */
  function goTo(part) {
    const heading = byId(part).querySelector("h2") || byId(part);
    byId(part).scrollIntoView({ block: "start" });
    heading.tabIndex = -1;
    heading.focus({ preventScroll: true });
  }
  const sizes = () => Object.fromEntries(SIZES.map((size) => [size, state[size]]));
  const question = (c) => ({ ...model(), gpu: c.gpu, engine: state.engine, dtype: c.dtype, tp: c.tp, ...sizes() });
  const comparison = () => ({ ...model(), engine: state.engine, ...sizes(), configurations: configurations() });
  const limits = () =>
    Object.fromEntries(
      ["ttft", "tpot"].filter((k) => Number(state[k]) > 0).map((k) => [`${k}_ms`, Number(state[k])]),
    );

  // -- the same elsewhere
  const quoted = (word) => (/^[\w.:@/+,=-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`);
  const file = () => (state.model === PASTE ? `${state.name}.json` : state.model);
  function command(c) {
    const values = { gpu: c.gpu, engine: state.engine, ...sizes(), dtype: c.dtype, tp: c.tp };
    const options = Object.entries(values).map(([name, value]) => `--${name} ${quoted(value)}`);
    return `chip predict ${quoted(file())} ${options.join(" ")}`;
  }
  /** The same ranking of some GPUs by the rate that keeps the limits. */
  function planCommand(gpus) {
    const { percentile, requests } = known.defaults.plan,
      workload = state.traffic === "poisson" ? `poisson:prompt=${state.prompt},output=${state.output}` : state.traffic;
    const slo = Object.entries(limits()).map(([name, ms]) => `${name.replace("_ms", "")}_${percentile}=${ms}ms`);
    const prices = Object.entries(Prices.parsed(state.prices).prices).map(([gpu, price]) => `${gpu}=${price}`);
    const options = {
      workload,
      slo: slo.join(","),
      gpu: gpus.join(","),
      tp: known.defaults.rank.splits.join(","),
      dtype: state.precisions,
      requests,
      ...(prices.length ? { price: prices.join(",") } : {}),
    };
    return `chip plan ${quoted(file())} ${Object.entries(options).map(([name, value]) => `--${name} ${quoted(value)}`).join(" ")}`;
  }
  function python(c) {
    const values = { gpu: c.gpu, engine: state.engine, ...sizes(), dtype: c.dtype, tp: c.tp };
    const options = Object.entries(values).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
    return `chip.predict(${JSON.stringify(file())}, ${options.join(", ")})`;
  }

  // -- the address: what it leaves out is as at the start, so that a link means the same to everyone
  function readLink() {
    if (!location.hash.startsWith("#?")) return;
    const asked = new URLSearchParams(location.hash.slice(2));
    for (const [name, start] of Object.entries(START)) {
      const value = asked.get(name);
      if (value === null) state[name] = start;
      else state[name] = typeof start === "number" ? Math.max(1, Math.round(Number(value)) || 1) : value;
    }
    if (asked.get("config")) state.model = PASTE;
  }
  const STEP_MS = 1000;
  let wrote = 0;
  function writeLink() {
    const asked = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) {
      const own = name === "config" || name === "name";
      if (own && state.model !== PASTE) continue;
      if (name === "model" && state.model === PASTE && state.config) continue;
      if (value !== START[name] || (!own && ["model", "gpu", "engine", "tp", ...SIZES].includes(name)))
        asked.set(name, name === "config" ? compact(value) : value);
    }
    const link = `#?${asked}`,
      now = performance.now();
    if (link === location.hash) return;
    // a step back leads to the question before; what is typed or dragged is one question
    if (wrote && now - wrote > STEP_MS) history.pushState(null, "", link);
    else history.replaceState(null, "", link);
    wrote = now;
  }
  function compact(text) {
    try {
      return JSON.stringify(JSON.parse(text));
    } catch {
      return text;
    }
  }

  return {
    PASTE,
    MOST_BESIDE,
    SIZES,
    START,
    state,
    known,
    heard,
    byId,
    ask,
    elsewhere,
    isHeld: (path, body) => held.has(keyOf(path, body)),
    model,
    configurations,
    addBeside,
    removeBeside,
    sizes,
    named,
    goTo,
    question,
    comparison,
    limits,
    quoted,
    command,
    planCommand,
    python,
    readLink,
    writeLink,
  };
})();
