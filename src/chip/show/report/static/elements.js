"use strict";
// Elements made from text only, never from markup, and numbers as people read them. Both pages use it.
const Chip = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const NONE = "–";

  // -- elements
  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(node.style, value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity))
      if (child !== null && child !== undefined && child !== false) node.append(child);
    return node;
  }
  const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
  const s = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

  // -- numbers: the same words as the command line's
  const known = (v) => typeof v === "number" && Number.isFinite(v);
  const digits = (v, n) => String(Number(v.toPrecision(n)));
  function scaled(v, unit, scales, n) {
    if (!known(v)) return NONE;
    if (v === 0) return `0 ${unit}`.trim();
    const [scale, prefix] = scales.find(([least]) => Math.abs(v) >= least) || scales[scales.length - 1];
    return `${digits(v / scale, n)} ${prefix}${unit}`;
  }
  const SI = [
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
    [1, ""],
  ];
  const TIMES = [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
    [1e-9, "ns"],
  ];
  const BYTES = [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
    [1, "B"],
  ];
  const si = (v, unit) => scaled(v, unit, SI, 3);
  const duration = (seconds, n = 4) => scaled(seconds, "", TIMES, n);
  const bytes = (v) => scaled(v, "", BYTES, 4);
  const percent = (share) => (known(share) ? `${(100 * share).toFixed(1)} %` : NONE);
  /** 12345 -> "12 345"; the browser's own formatting loads tables of all languages first. */
  const grouped = (whole) => String(whole).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  function number(v, n = 4) {
    if (!known(v)) return v === null || v === undefined || v === "" ? NONE : String(v);
    if (Math.abs(v) >= 1e15 || (v && Math.abs(v) < 1e-4)) return v.toExponential(2);
    return Math.abs(v) >= 10 ** (n - 1) ? grouped(Math.round(v)) : digits(v, n);
  }
  /** By text, with numbers in it by their size: "qwen-7b" before "qwen-14b". */
  const sortable = (text) => String(text).toLowerCase().replace(/\d+/g, (d) => d.padStart(8, "0"));
  function byText(a, b) {
    const [x, y] = [sortable(a), sortable(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  }
  /** A value in the unit its column is documented with. */
  function quantity(v, unit) {
    if (!known(v)) return v === null || v === undefined || v === "" ? NONE : String(v);
    if (unit === "s") return duration(v);
    if (unit === "ms") return duration(v / 1e3);
    if (unit === "us") return duration(v / 1e6);
    if (unit === "B") return bytes(v);
    if (unit === "%") return `${digits(v, 3)} %`;
    if (unit === "share") return percent(v);
    if (unit === "J/FLOP" || unit === "J/B") return `${digits(v * 1e12, 3)} p${unit}`;
    if (unit === "FLOP/s" || unit === "B/s" || unit === "FLOP" || unit === "Hz" || unit === "W") return si(v, unit);
    if (!unit || unit === "1" || unit === "count") return number(v);
    return `${number(v)} ${unit}`;
  }

  /** Digits that an interval leaves meaning to: two where it is tens of percent wide, four where it is a percent. */
  function meaningful(value, span) {
    if (!span || !known(value) || !value) return 4;
    const half = (span[1] - span[0]) / 2 / Math.abs(value);
    return half >= 0.1 ? 2 : half >= 0.01 ? 3 : 4;
  }
  /** 5664.632 with two digits -> "5 700". */
  function rounded(v, n) {
    return known(v) ? number(Number(v.toPrecision(n)), Math.max(n, 1)) : NONE;
  }
  /** Saves text as a file. */
  function save(name, type, text) {
    const url = URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type }));
    const a = h("a", { href: url, download: name });
    document.body.append(a);
    a.click();
    a.remove();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
  const cell = (v) => {
    const text = v === null || v === undefined ? "" : String(v);
    const safe = /^[=+\-@\t\r]/.test(text) && typeof v !== "number" ? `'${text}` : text; // no formula
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const csv = (columns, rows) => [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";

  /** "171.6 ms", "–", "218.9 ms" -> "171.6 – 218.9 ms": one unit where both have the same. */
  function shared(first, word, second) {
    const [a, unit] = first.split(" ");
    return unit === second.split(" ")[1] ? `${a} ${word} ${second}` : `${first} ${word} ${second}`;
  }

  // -- theme
  function themeButton() {
    const root = document.documentElement;
    const stored = () => {
      try {
        return localStorage.getItem("chip-theme");
      } catch {
        return null;
      }
    };
    const dark = () =>
      (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const button = h("button", { class: "theme", type: "button" });
    const say = () => {
      button.textContent = dark() ? "Light theme" : "Dark theme";
      button.setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} theme`);
    };
    if (stored()) root.dataset.theme = stored();
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try {
        localStorage.setItem("chip-theme", root.dataset.theme);
      } catch {
        /* a page from disk may have no storage */
      }
      say();
    });
    say();
    return button;
  }

  return { h, s, known, shared, si, duration, bytes, percent, number, grouped, byText, quantity, meaningful, rounded, save, csv, themeButton, NONE };
})();
