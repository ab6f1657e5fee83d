"use strict";
// What a page holds compressed: gzip in base64, rows that are alike by column (`chip.show.webpage.pack`).
const Packed = (() => {
  /** `{"$": [[names, column, ...], ...]}` as rows again; lists have no names. */
  function rows(packed) {
    if (Array.isArray(packed)) return packed.map(rows);
    if (packed === null || typeof packed !== "object") return packed;
    if (packed.$) return packed.$.flatMap(([names, ...columns]) => alike(names, columns.map(rows)));
    return Object.fromEntries(Object.entries(packed).map(([name, value]) => [name, rows(value)]));
  }
  const alike = (names, columns) =>
    columns[0].map((_, i) => {
      const values = columns.map((column) => column[i]);
      return names ? Object.fromEntries(names.map((name, j) => [name, values[j]])) : values;
    });
  async function open(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return rows(JSON.parse(await new Response(stream).text()));
  }
  return { open };
})();
