"use strict";
// The explorer without a server: CHIP's own Python answers, in a worker that starts with the first question that the
// page did not come with.
const Local = (() => {
  const { known, elsewhere, byId } = Question;
  const FROM_DISK = "Opened from a file, this page has the answers that it came with: browsers start no Python from a file. Serve its folder and it answers everything: python -m http.server";
  const NO_HUB = "Without a server a page asks no hub. Paste the model's config.json instead.";
  const waiting = new Map(); // id -> what to call with the answer
  let worker = null,
    asked = 0;

  const say = (text) => (byId("local").textContent = text);
  const megabytes = () => `${(known.runtime.bytes / 1e6).toFixed(1)} MB`;
  function start() {
    const began = performance.now();
    say(`Loading Python and CHIP into this browser, ${megabytes()} the first time …`);
    worker = new Worker("worker.js", { type: "module" });
    worker.addEventListener("message", ({ data }) => {
      if (!byId("local").dataset.ready) {
        byId("local").dataset.ready = String(Math.round(performance.now() - began));
        say("Computed in this browser, by CHIP itself. Nothing that you ask leaves it.");
      }
      waiting.get(data.id)(data);
      waiting.delete(data.id);
    });
    worker.addEventListener("error", (event) => {
      const failed = event.message || "worker.js did not load";
      for (const done of waiting.values()) done({ failed });
      waiting.clear();
      worker = null; // the next question tries again
    });
  }
  async function ask(path, body) {
    if (location.protocol === "file:") throw Object.assign(new Error(FROM_DISK), { empty: true });
    if (body.model?.includes("/") && !body.config) throw Object.assign(new Error(NO_HUB), { empty: true });
    if (!worker) start();
    const { status, text, failed } = await new Promise((done) => {
      waiting.set(++asked, done);
      worker.postMessage({ id: asked, wheel: known.runtime.wheel, path, body: JSON.stringify(body) });
    });
    if (failed) throw Object.assign(new Error(`Python does not run here: ${failed}`), { gone: true });
    const found = JSON.parse(text);
    if (status !== 200) throw new Error(found.error);
    return found;
  }
  function build() {
    elsewhere.ask = ask;
    byId("api-link").hidden = true;
    byId("report-link").hidden = false;
    byId("local").hidden = false;
    say(location.protocol === "file:" ? FROM_DISK : `This page needs no server: your own questions are answered in this browser, by CHIP itself (${megabytes()} to load, once).`);
  }
  if (known.runtime) build();
})();
