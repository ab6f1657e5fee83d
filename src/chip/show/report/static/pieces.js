"use strict";
// What the sections of the report share: the tables of the summary, the address, and small pieces.
const Report = (() => {
  const { h } = Chip;
  const { Table, grid } = Grid;
  const COLORS = ["var(--blue)", "var(--red)", "var(--green)", "var(--purple)", "var(--orange)", "var(--sky)"];
  const OTHER = "var(--muted)";
  const PATTERNS = ["solid", "rising", "falling", "upright", "dotted"];
  const TITLES = { accuracy: "Errors by class", predictions: "Every prediction", comparisons: "Every comparison", sources: "Every file" };
  const data = JSON.parse(document.getElementById("data").textContent);
  const tables = Object.fromEntries(Object.entries(data.tables).map(([name, found]) => [name, new Table(name, found)]));
  const link = { section: "", params: {} };

  // -- address
  function readLink() {
    const [section, asked] = location.hash.slice(1).split("?");
    link.section = section;
    link.params = Object.fromEntries(new URLSearchParams(asked || ""));
  }
  const stateOf = (section) => (link.section === section ? link.params : {});
  function writeLink(section, params) {
    const asked = new URLSearchParams(params).toString();
    history.replaceState(null, "", `#${section}${asked ? `?${asked}` : ""}`);
  }

  const empty = (what, ...commands) =>
    h(
      "div",
      { class: "empty" },
      h("p", {}, what),
      commands.map((c) => h("pre", {}, h("code", {}, c))),
    );
  /** Folded until somebody wants it, or a link leads to it; what it holds is made when it is opened. */
  function folded(name, make, open = false) {
    const box = h("details", { class: "raw" }, h("summary", {}, name));
    let made = false;
    const fill = () => {
      if (made) return;
      made = true;
      box.append(make());
    };
    box.addEventListener("toggle", () => box.open && fill());
    if (open) {
      box.open = true;
      fill();
    }
    box.unfold = () => {
      box.open = true;
      fill();
    };
    return box;
  }
  /** A table of the summary, folded; a link into it opens it. */
  const tableOf = (name, section, show, filters, sort) =>
    folded(
      `${TITLES[name] || name}: ${Chip.grouped(tables[name].rows.length)} rows`,
      () =>
        grid(tables[name], {
          show,
          filters,
          sort,
          explorer: data.explorer,
          state: stateOf(section),
          changed: (state) => writeLink(section, state),
        }),
      link.section === section && (Object.keys(link.params).length > 0 || section === "errors"),
    );
  function select(title, values, chosen, changed) {
    return h(
      "label",
      { class: "inline" },
      `${title} `,
      h(
        "select",
        { onchange: (e) => changed(e.target.value) },
        values.map((v) => h("option", { value: v, selected: v === chosen }, v)),
      ),
    );
  }
  const words = (text) => text.split(" ");
  const unique = (values) => [...new Set(values)].filter((v) => v !== null && v !== "");
  const hasValues = (table) => (column) =>
    table.rows.some((row) => table.get(row, column) !== null && table.get(row, column) !== "");

  return {
    data,
    tables,
    link,
    readLink,
    writeLink,
    stateOf,
    empty,
    tableOf,
    folded,
    PATTERNS,
    select,
    words,
    unique,
    hasValues,
    COLORS,
    OTHER,
  };
})();
