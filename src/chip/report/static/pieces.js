"use strict";
// What the sections of the report share: the tables of the summary, the address, and small pieces.
const Report = (() => {
  const { h } = Chip;
  const { Table, grid } = Grid;
  const COLORS = ["var(--blue)", "var(--red)", "var(--green)", "var(--purple)", "var(--orange)", "var(--sky)"];
  const OTHER = "var(--muted)";
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
  const tableOf = (name, section, show, filters, sort) =>
    grid(tables[name], { show, filters, sort, state: stateOf(section), changed: (state) => writeLink(section, state) });
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
    select,
    words,
    unique,
    hasValues,
    COLORS,
    OTHER,
  };
})();
