"use strict";
// A trace handed to the Perfetto UI in a tab of its own, as its documentation says: PING until it answers PONG, then the
// trace. It goes from one tab to the other; no server sees it.
const Perfetto = (() => {
  const ORIGIN = "https://ui.perfetto.dev";
  const PING_MS = 100,
    PATIENCE_MS = 30_000;

  /** `say` is told how it stands. */
  function open(trace, title, fileName, say) {
    const other = window.open(ORIGIN);
    if (!other) return say("The browser did not open a tab. Download the trace, and open it at ui.perfetto.dev.");
    const began = performance.now();
    const end = (words) => {
      clearInterval(pinging);
      removeEventListener("message", heard);
      say(words);
    };
    const heard = (e) => {
      if (e.source !== other || e.origin !== ORIGIN || e.data !== "PONG") return;
      const { buffer } = new TextEncoder().encode(JSON.stringify(trace));
      other.postMessage({ perfetto: { buffer, title, fileName } }, ORIGIN);
      end("Handed to Perfetto.");
    };
    const pinging = setInterval(() => {
      if (other.closed) end("The tab was closed before Perfetto took the trace.");
      else if (performance.now() - began > PATIENCE_MS) end("Perfetto does not answer. Download the trace, and open it at ui.perfetto.dev.");
      else other.postMessage("PING", "*"); // nothing in it; the tab may not have left its blank page yet
    }, PING_MS);
    addEventListener("message", heard);
    return say("Waiting for Perfetto …");
  }
  return { open };
})();
