"use strict";
// Tables of any length: sorted, filtered and paged, with their state in the address.
const Grid = (() => {
  const { h, known, number, quantity, save, csv, NONE } = Chip;
  const PAGE = 25;

  /** A table of the summary, with its rows as arrays and its columns by name. */
  class Table {
    constructor(name, found) {
      this.name = name;
      this.columns = found.columns;
      this.units = found.units;
      this.rows = found.rows;
      this.leftOut = found.left_out;
      this.at = Object.fromEntries(found.columns.map((c, i) => [c, i]));
    }
    get(row, column) {
      return row[this.at[column]];
    }
    object(row) {
      return Object.fromEntries(this.columns.map((c, i) => [c, row[i]]));
    }
    objects() {
      return this.rows.map((row) => this.object(row));
    }
    /** In the unit of the column, or in the one that the row itself names. */
    text(row, column) {
      const value = this.get(row, column),
        own = this.units[this.at[column]];
      if (typeof value === "boolean") return value ? "yes" : "no";
      if (!known(value)) return value === null || value === "" ? NONE : String(value);
      if (own) return quantity(value, own === "count" ? "" : own);
      const unit = this.columns.includes("unit") && column !== "unit" ? this.get(row, "unit") : "";
      return unit ? quantity(value, unit) : number(value);
    }
  }

  /** Different values of a column, the most frequent first. */
  function choices(table, column) {
    const counts = new Map();
    for (const row of table.rows) {
      const v = table.get(row, column);
      if (v !== null && v !== "") counts.set(v, (counts.get(v) || 0) + 1);
    }
    return [...counts].sort((a, b) => b[1] - a[1]).map(([v]) => v);
  }

  function compare(a, b) {
    if (known(a) && known(b)) return a - b;
    if (known(a) !== known(b)) return known(a) ? -1 : 1; // numbers before text, text before nothing
    return Chip.byText(a ?? "\uffff", b ?? "\uffff");
  }

  /** options: {show: columns shown at first, filters: columns with a choice, sort, caption, state, changed} */
  function grid(table, options) {
    const state = {
      q: "",
      sort: options.sort || "",
      page: 1,
      all: "",
      ...Object.fromEntries(options.filters.map((f) => [f, ""])),
      ...options.state,
    };
    const id = `${table.name}-table`;
    const body = h("tbody"),
      head = h("thead"),
      count = h("span", { class: "muted", role: "status" });
    const back = h("button", { type: "button", onclick: () => turn(-1) }, "Back"),
      on = h("button", { type: "button", onclick: () => turn(1) }, "Next");
    const search = h("input", {
      type: "search",
      placeholder: "Filter …",
      "aria-label": `Filter ${table.name}`,
      value: state.q,
    });
    let searchable = null,
      found = [];

    search.addEventListener("input", () => {
      state.q = search.value;
      state.page = 1;
      refresh();
    });
    const selects = options.filters.map((column) => {
      const values = choices(table, column);
      if (values.length < 2) return "";
      const select = h(
        "select",
        { "aria-label": `${column} of ${table.name}` },
        h("option", { value: "" }, `${spoken(column)}: all`),
        values.slice(0, 200).map((v) => h("option", { value: v, selected: String(v) === state[column] }, v)),
      );
      select.addEventListener("change", () => {
        state[column] = select.value;
        state.page = 1;
        refresh();
      });
      return select;
    });
    const whole = h("button", { type: "button", "aria-pressed": String(Boolean(state.all)) }, "All columns");
    whole.addEventListener("click", () => {
      state.all = state.all ? "" : "1";
      whole.setAttribute("aria-pressed", String(Boolean(state.all)));
      refresh();
    });
    const tools = h(
      "div",
      { class: "tools screen" },
      search,
      selects,
      options.show.length < table.columns.length ? whole : "",
      h("button", { type: "button", onclick: () => save(`${table.name}.csv`, "text/csv", csv(table.columns, found)) }, "CSV of these rows"),
    );
    const pager = h(
      "div",
      { class: "pager" },
      count,
      h("span", { class: "spacer" }),
      h("span", { class: "screen" }, back, " ", on),
    );

    const shown = () => (state.all ? table.columns : options.show);
    const numeric = (column) =>
      Boolean(table.units[table.at[column]]) || table.rows.slice(0, 50).some((row) => known(table.get(row, column)));
    /** A question is a link to the explorer. */
    const linked = (row, column) => (column === "question" && table.get(row, column) ? h("a", { href: `${options.explorer}#?${table.get(row, column)}` }, "explore") : null);
    const cell = (text, isNumber) => h("td", { class: isNumber ? "num" : text.length > 36 ? "long" : "short" }, text);
    function turn(by) {
      state.page += by;
      refresh();
    }
    function matching() {
      const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
      if (words.length && !searchable)
        searchable = table.rows.map((row) =>
          row
            .filter((v) => typeof v === "string")
            .join(" ")
            .toLowerCase(),
        );
      const wanted = options.filters.filter((f) => state[f]);
      const out = [];
      table.rows.forEach((row, i) => {
        if (words.length && !words.every((w) => searchable[i].includes(w))) return;
        if (wanted.every((f) => String(table.get(row, f)) === state[f])) out.push(row);
      });
      if (!state.sort) return out;
      const down = state.sort.startsWith("-"),
        column = state.sort.replace(/^-/, "");
      if (!(column in table.at)) return out;
      const at = table.at[column];
      const empty = (v) => v === null || v === "";
      return out.sort((a, b) =>
        empty(a[at]) || empty(b[at])
          ? empty(a[at]) - empty(b[at])
          : down
            ? compare(b[at], a[at])
            : compare(a[at], b[at]),
      );
    }
    function heading(column) {
      const down = state.sort === `-${column}`,
        up = state.sort === column;
      const first = numeric(column) ? `-${column}` : column,
        second = numeric(column) ? column : `-${column}`;
      const button = h(
        "button",
        {
          type: "button",
          class: "sort",
          onclick: () => {
            state.sort = state.sort === first ? second : first;
            state.page = 1;
            refresh();
            head.querySelector(`[data-column="${column}"] button`).focus();
          },
        },
        spoken(column),
        h("span", { "aria-hidden": "true" }, down ? " ↓" : up ? " ↑" : ""),
      );
      return h(
        "th",
        {
          scope: "col",
          class: numeric(column) ? "num" : null,
          "data-column": column,
          "aria-sort": down ? "descending" : up ? "ascending" : "none",
        },
        button,
      );
    }
    function refresh(quiet) {
      found = matching();
      const pages = Math.max(1, Math.ceil(found.length / PAGE));
      state.page = Math.min(Math.max(1, Number(state.page) || 1), pages);
      const from = (state.page - 1) * PAGE,
        rows = found.slice(from, from + PAGE);
      head.replaceChildren(h("tr", {}, shown().map(heading)));
      body.replaceChildren(
        ...rows.map((row) =>
          h(
            "tr",
            {},
            shown().map((c) => (linked(row, c) ? h("td", {}, linked(row, c)) : cell(table.text(row, c), numeric(c)))),
          ),
        ),
      );
      if (!rows.length)
        body.append(
          h("tr", {}, h("td", { colspan: shown().length, class: "muted" }, "No row is left: change the filter.")),
        );
      const many = Chip.grouped;
      count.textContent = `${found.length ? `${many(from + 1)}–${many(from + rows.length)} of ` : ""}${many(found.length)}${found.length < table.rows.length ? ` (${many(table.rows.length)} in all)` : ""}${table.leftOut ? `; ${many(table.leftOut)} more are in summary.csv` : ""}`;
      back.disabled = state.page <= 1;
      on.disabled = state.page >= pages;
      if (!quiet && options.changed)
        options.changed(
          Object.fromEntries(
            Object.entries(state).filter(
              ([k, v]) => v !== "" && !(k === "page" && v === 1) && !(k === "sort" && v === (options.sort || "")),
            ),
          ),
        );
    }
    refresh(true);
    const caption = h("caption", { class: "visually-hidden" }, options.caption || table.name);
    return h(
      "div",
      { class: "grid", id },
      tools,
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `${table.name}, scrollable` },
        h("table", {}, caption, head, body),
      ),
      pager,
    );
  }
  const SPOKEN = {
    p50: "P50",
    p95: "P95",
    p90: "p90",
    vram: "VRAM",
    ttft: "TTFT",
    tpot: "TPOT",
    gpu: "GPU",
    dtype: "dtype",
    tp: "TP",
    us: "",
    ms: "",
    hz: "",
    bytes: "bytes",
    percent: "",
    flops: "FLOP",
    id: "id",
    cuda: "CUDA",
    cpu: "CPU",
    who: "predictor",
  };
  /** A column's name as a heading; units stand in the cells. */
  function spoken(column) {
    const words = column
      .replace("flops_per_s", "FLOP/s")
      .replace("bytes_per_s", "B/s")
      .replace("_per_s", "/s")
      .replace("joules_per_token", "J/token")
      .split("_")
      .map((w) => SPOKEN[w] ?? w)
      .filter(Boolean);
    const text = words.join(" ");
    return text.charAt(0).toUpperCase() + text.slice(1);
  }

  return { Table, grid, choices, spoken };
})();
