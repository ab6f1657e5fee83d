"use strict";
// Prices of a GPU hour as they are typed: the rule of chip.simulator.prices, with its words; a test holds both together.
const Prices = (() => {
  const { known } = Question;
  const MOST = 1e6;
  const AS_IN = "as in h200:3.5";
  const names = new Map(known.gpus.flatMap((g) => [g.name, ...g.aliases].map((name) => [name.toLowerCase(), g.name])));

  /** Letters to change, add or leave out from one word to another. */
  function apart(a, b) {
    let row = [...b].map((_, j) => j + 1);
    for (const [i, letter] of [...a].entries()) {
      let before = i,
        left = i + 1;
      row = row.map((above, j) => {
        left = Math.min(above + 1, left + 1, before + (letter === b[j] ? 0 : 1));
        before = above;
        return left;
      });
    }
    return row[row.length - 1];
  }
  function unknown(gpu) {
    const word = gpu.toLowerCase().slice(0, 80),
      [near] = known.gpus.map((g) => [apart(word, g.name), g.name]).sort(([a], [b]) => a - b)[0].slice(1);
    return `no GPU ${gpu.slice(0, 40)}${apart(word, near) <= word.length / 2 ? `; did you mean ${near}?` : ""}`;
  }
  /** `{prices: {h200: 3.5}, wrong: ["no GPU h2000; did you mean h200?"]}`: what is right counts. */
  function parsed(text) {
    const prices = {},
      wrong = [];
    let before = "";
    for (const entry of text.split(/[,;\n]/).map((word) => word.trim()).filter(Boolean)) {
      const [, gpu, price] = /^(.*\S)\s*[:=]\s*([^:=]*)$/.exec(entry) || [];
      if (!gpu && before && /^\d+$/.test(entry)) {
        delete prices[names.get(before.split(/\s*[:=]/)[0].toLowerCase())]; // it was not 3 but 3.5
        wrong.push(`${before},${entry}: a comma stands between two GPUs; write ${before}.${entry}`);
      } else if (!gpu) wrong.push(`${entry.slice(0, 40)}: write a GPU and its price, ${AS_IN}`);
      else if (!/^(\d+\.?\d*|\.\d+)$/.test(price) || !(0 < Number(price) && Number(price) < MOST))
        wrong.push(`${entry.slice(0, 40)}: the price must be a number above 0, ${AS_IN}`);
      else if (!names.has(gpu.toLowerCase())) wrong.push(unknown(gpu));
      else prices[names.get(gpu.toLowerCase())] = Number(price);
      before = gpu ? entry : "";
    }
    return { prices, wrong };
  }
  return { parsed };
})();
