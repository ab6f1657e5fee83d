// CHIP's own Python, in a worker of the browser: Pyodide and the wheel that lie beside this file. What is asked here is
// answered as `chip serve` answers it.
const BESIDE = new URL("runtime/", self.location);
const PACKED = { "pyodide.asm.wasm": "application/wasm", "python_stdlib.zip": "application/zip" }; // any host may serve them as they are
const load = self.fetch.bind(self);

/** Files that lie here as gzip, as if they did not. */
self.fetch = async (what, options) => {
  const url = String(what.url || what),
    kind = PACKED[url.split("/").pop()];
  if (!kind) return load(what, options);
  const response = await load(`${url}.gz`);
  if (!response.ok) throw new Error(`${url}.gz: status ${response.status}`);
  const headers = { "Content-Type": kind };
  // a host may have unpacked it on the way
  if (response.headers.get("Content-Encoding") === "gzip") return new Response(response.body, { headers });
  return new Response(response.body.pipeThrough(new DecompressionStream("gzip")), { headers });
};

async function start(wheel) {
  const fetched = load(new URL(wheel, BESIDE)).then((response) => {
    if (!response.ok) throw new Error(`${wheel}: status ${response.status}`);
    return response.arrayBuffer();
  });
  const { loadPyodide } = await import(new URL("pyodide.mjs", BESIDE).href);
  const python = await loadPyodide({ indexURL: BESIDE.href });
  python.unpackArchive(await fetched, "wheel");
  return python.runPython("from chip.show.serve.browser import answer; answer");
}

let answer = null;
self.addEventListener("message", async ({ data: { id, wheel, path, body } }) => {
  try {
    answer ||= start(wheel);
    const [status, text] = (await answer)(path, body).toJs();
    self.postMessage({ id, status, text });
  } catch (error) {
    self.postMessage({ id, failed: String(error.message || error) });
  }
});
