"use strict";
// The predicted timeline of one step: host above, device below; zoom, search, and Perfetto.
const TimelineView = (() => {
  const { h, s, duration, save } = Chip;
  const { byId, ask, question, configurations } = Question;
  const TRACKS = ["host", "device", "operators"];
  const NAMES = { host: "host", device: "device", operators: "in the graph" };
  const L = 92,
    ROW = 34,
    WIDE = 1100;
  let W = WIDE; // a phone gets a narrower picture, not smaller letters
  const view = { phase: "decode", from: 0, to: 1, search: "" };
  let found = null,
    latest = 0;

  async function run() {
    const mine = ++latest;
    try {
      const answer = await ask("/api/timeline", { ...question(configurations()[0]), phase: view.phase });
      if (mine !== latest) return;
      found = answer;
      view.from = 0;
      view.to = found.us;
      show();
    } catch (error) {
      if (mine !== latest) return;
      found = null;
      byId("timeline-view").replaceChildren(h("p", { class: "note" }, error.message));
    }
  }
  const color = (name) => {
    let hash = 0;
    for (const c of name) hash = (hash * 31 + c.charCodeAt(0)) % 360;
    return `hsl(${hash} 45% 55%)`;
  };
  /** Events that are in view, those under half a pixel joined to their neighbour. */
  function visible(track) {
    const scale = (W - L) / (view.to - view.from),
      out = [];
    for (const [queue, name, start, us] of found.events) {
      if (queue !== track || start + us < view.from || start > view.to) continue;
      const x = L + (Math.max(start, view.from) - view.from) * scale,
        end = L + (Math.min(start + us, view.to) - view.from) * scale;
      const last = out[out.length - 1];
      if (last && end - last.x < 0.7) {
        last.end = Math.max(last.end, end);
        last.more += 1;
        last.us += us;
      } else out.push({ name, start, us, x, end, more: 0 });
    }
    return out;
  }
  function show() {
    W = Math.min(WIDE, byId("timeline-view").clientWidth);
    const tracks = TRACKS.filter((t) => found.events.some(([queue]) => queue === t));
    const H = tracks.length * ROW + 30,
      parts = W < 500 ? 2 : 4;
    const wanted = view.search.toLowerCase();
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "plot timeline", role: "img", tabindex: "0", "aria-label": `Timeline of a ${found.phase} step: ${duration(found.us / 1e6)}` });
    const tip = h("div", { class: "span", role: "status", id: "timeline-tip" }, "Point at an event. + and − zoom, arrow keys move.");
    tracks.forEach((track, i) => {
      const y = 4 + i * ROW;
      svg.append(s("text", { x: 4, y: y + 17, class: "axis" }, NAMES[track]));
      for (const e of visible(track)) {
        const hit = !wanted || e.name.toLowerCase().includes(wanted);
        const bar = s("rect", { x: e.x, y, width: Math.max(0.8, e.end - e.x), height: ROW - 10, fill: color(e.name), opacity: hit ? 1 : 0.18, "data-name": e.name });
        bar.addEventListener("pointerenter", () => {
          tip.textContent = e.more ? `${e.more + 1} events, ${duration(e.us / 1e6)} in all; zoom in to tell them apart` : `${e.name}: ${duration(e.us / 1e6)}, from ${duration(e.start / 1e6)}`;
        });
        svg.append(bar);
        if (e.end - e.x > 8 * e.name.length && hit) svg.append(s("text", { x: e.x + 4, y: y + 16, class: "event" }, e.name));
      }
    });
    for (let i = 0; i <= parts; i++) {
      const x = L + ((W - L) * i) / parts;
      svg.append(s("text", { x: i === parts ? W - 2 : x, y: H - 6, class: "tick", "text-anchor": i === parts ? "end" : i ? "middle" : "start" }, duration((view.from + ((view.to - view.from) * i) / parts) / 1e6, 3)));
    }
    svg.addEventListener("keydown", (e) => {
      const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), 0: () => zoom(Infinity) }[e.key];
      if (!act) return;
      e.preventDefault();
      act();
      byId("timeline-view").querySelector("svg").focus();
    });
    const matches = wanted ? found.events.filter(([, name]) => name.toLowerCase().includes(wanted)) : [];
    byId("timeline-view").replaceChildren(
      h("p", { class: "lead" }, `One ${found.phase} step of ${found.sequences} sequences, ${found.tokens} tokens: ${duration(found.us / 1e6)}; the host works ${duration(found.host_us / 1e6)}, the device ${duration(found.device_us / 1e6)}.${found.overlaps ? " The host prepares a step while the device runs the one before, so that steps follow each other faster than one alone takes: that is the TPOT above." : ""}`),
      svg,
      tip,
      wanted ? h("p", { class: "span", id: "timeline-found" }, `${matches.length} events match`) : "",
    );
  }
  function zoom(by) {
    if (!found) return;
    const middle = (view.from + view.to) / 2,
      half = Math.min(found.us / 2, ((view.to - view.from) / 2) * by);
    view.from = Math.max(0, Math.min(middle - half, found.us - 2 * half));
    view.to = view.from + 2 * half;
    show();
  }
  function move(by) {
    if (!found) return;
    const width = view.to - view.from;
    view.from = Math.max(0, Math.min(found.us - width, view.from + by * width));
    view.to = view.from + width;
    show();
  }
  new ResizeObserver(() => found && Math.abs(byId("timeline-view").clientWidth - W) > 2 && show()).observe(byId("timeline-view"));
  function build() {
    const phase = Controls.choice("timeline-phase", "Step", [["", ["decode", "prefill"]]], view.phase, (value) => {
      view.phase = value;
      run();
    });
    const search = h("input", { type: "search", id: "timeline-search", placeholder: "name of an operator" });
    search.addEventListener("input", () => {
      view.search = search.value.trim();
      if (found) show();
    });
    const button = (text, label, act) => h("button", { type: "button", "aria-label": label, onclick: act }, text);
    const file = () => `${found.model}-${found.gpu}-${found.phase}.trace.json`.replaceAll("/", "-");
    const handed = h("span", { class: "span", role: "status", id: "perfetto-said" });
    const perfetto = [
      button("Open in Perfetto", "Open in Perfetto, in a new tab", () => {
        const title = found && `${found.model} on ${found.gpu}, ${found.engine}, ${found.phase}`;
        if (found) Perfetto.open(found.chrome, title, file(), (words) => (handed.textContent = words));
      }),
      button("Trace for Perfetto", "Download the trace for Perfetto", () => {
        if (found) save(file(), "application/json", JSON.stringify(found.chrome));
      }),
      handed,
    ];
    byId("timeline-controls").replaceChildren(
      phase,
      h("div", { class: "field" }, h("label", { for: "timeline-search" }, "Search"), search),
      h("div", { class: "tools" }, button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("←", "Earlier", () => move(-0.25)), button("→", "Later", () => move(0.25)), button("All", "The whole step", () => zoom(Infinity)), ...perfetto),
    );
  }
  return { run, build };
})();
