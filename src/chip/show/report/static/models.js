"use strict";
// A box to type into: the list below holds what matches, arrow keys walk through it, Enter takes one.
const Models = (() => {
  const { h } = Chip;
  const HUB_ID = /^[A-Za-z0-9][\w.-]*\/[A-Za-z0-9][\w.-]*$/;

  /** groups: [[name, [[value, text]]]]; `now()` is the value in force, `chosen(value)` takes another. With `other`, a text
   *  that no item has may be offered as one: [value, text], or nothing. */
  function box({ id, title, groups, now, chosen, other = () => null }) {
    const items = groups.flatMap(([group, values]) => values.map(([value, text]) => ({ group, value, text })));
    const input = h("input", {
      type: "text", id, role: "combobox", autocomplete: "off", spellcheck: "false",
      "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": `${id}-list`,
    });
    const list = h("ul", { id: `${id}-list`, role: "listbox", class: "options", "aria-label": title, hidden: true });
    const count = h("div", { class: "visually-hidden", role: "status" });
    let shown = [],
      active = -1;

    const textOf = (value) => items.find((item) => item.value === value)?.text || value;
    function mark(i) {
      active = i;
      [...list.querySelectorAll("[role=option]")].forEach((e, k) => e.setAttribute("aria-selected", String(k === i)));
      const at = list.querySelector("[aria-selected=true]");
      if (at) {
        input.setAttribute("aria-activedescendant", at.id);
        at.scrollIntoView({ block: "nearest" });
      } else input.removeAttribute("aria-activedescendant");
    }
    function close() {
      list.hidden = true;
      count.textContent = "";
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
    }
    function show() {
      if (list.hidden) input.value = textOf(now());
    }
    function restore() {
      close();
      show();
    }
    function take(value) {
      close();
      if (value !== now()) chosen(value);
      show();
    }
    /** What has every word that was typed. */
    function open(typed) {
      const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
      shown = items.filter(({ text }) => words.every((word) => text.toLowerCase().includes(word)));
      const also = other(typed.trim());
      if (also && !shown.some((item) => item.value === also[0])) shown.push({ group: "", value: also[0], text: also[1] });
      let group = "";
      list.replaceChildren(
        ...shown.flatMap((item, i) => {
          const option = h("li", { role: "option", id: `${id}-${i}`, "aria-selected": "false", "data-value": item.value }, item.text);
          option.addEventListener("click", () => take(item.value));
          const heads = item.group && item.group !== group ? [h("li", { role: "presentation", class: "group" }, item.group)] : [];
          group = item.group;
          return [...heads, option];
        }),
      );
      if (!shown.length) list.replaceChildren(h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "muted" }, "nothing matches"));
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
      count.textContent = `${shown.length} match`;
      mark(words.length && shown.length ? 0 : shown.findIndex((item) => item.value === now()));
    }
    input.addEventListener("input", () => open(input.value));
    input.addEventListener("click", () => {
      if (!list.hidden) return;
      input.select();
      open("");
    });
    list.addEventListener("pointerdown", (e) => e.preventDefault()); // the focus stays in the box
    input.addEventListener("blur", restore);
    input.addEventListener("keydown", (e) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
      if (step) {
        e.preventDefault();
        if (list.hidden) open("");
        else if (shown.length) mark((Math.max(active, step < 0 ? 0 : -1) + step + shown.length) % shown.length);
      } else if (e.key === "Enter") {
        e.preventDefault();
        if (!list.hidden && shown[active]) take(shown[active].value);
      } else if (e.key === "Escape" && !list.hidden) {
        e.stopPropagation(); // it closes the list, not the sheet
        restore();
      }
    });
    show();
    return { field: h("div", { class: "field" }, h("label", { for: id }, title), input, list, count), show };
  }
  return { box, HUB_ID };
})();
