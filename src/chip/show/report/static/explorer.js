"use strict";
// The explorer: a form, the answers of the API, always those to the latest question.
(() => {
  const { h } = Chip;
  const { START, state, known, heard, byId, ask, comparison, readLink, writeLink } = Question;
  const LATER_MS = 120; // curves, ranking and timeline wait until the question rests
  const UNSEEN_MS = 500;

  // -- asking: one question at a time, always the latest
  let waiting = false,
    busy = false,
    later = 0;
  function changed() {
    writeLink();
    waiting = true;
    if (!busy) run();
  }
  function rest() {
    clearTimeout(later);
    later = setTimeout(() => {
      Rank.run();
      Curves.run();
      TimelineView.run();
      Traffic.asked();
    }, LATER_MS);
  }
  /** After what is there now is on the screen; a page that is not looked at is not painted, and need not wait. */
  function afterPaint(then) {
    const once = () => {
      const run = then;
      then = () => {};
      run();
    };
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(once)));
    setTimeout(once, UNSEEN_MS);
  }
  function refused(error) {
    const again = h("button", { type: "button" }, "Try again");
    again.addEventListener("click", changed);
    const kind = error.empty ? "note" : "note bad";
    byId("answer").replaceChildren(
      h(
        "div",
        { class: "panel" },
        h("p", { class: kind, role: error.empty ? "status" : "alert" }, error.message),
        error.gone ? again : "",
      ),
    );
  }
  async function run() {
    busy = true;
    while (waiting) {
      waiting = false;
      byId("answer").setAttribute("aria-busy", "true");
      try {
        const found = await ask("/api/compare", comparison());
        if (!waiting) Answer.show(found);
      } catch (error) {
        if (!waiting) refused(error);
      }
      byId("answer").setAttribute("aria-busy", "false");
    }
    busy = false;
    rest();
  }

  /** The parts of the page: their links move the page and leave the question in the address alone. */
  function parts() {
    const nav = document.querySelector(".top nav");
    const links = [...nav.querySelectorAll("a[data-part]")];
    for (const a of document.querySelectorAll("a[data-part]"))
      a.addEventListener("click", (e) => {
        e.preventDefault();
        Question.goTo(a.dataset.part);
      });
    const here = new IntersectionObserver(
      (seen) => {
        for (const one of seen)
          if (one.isIntersecting)
            for (const a of links) {
              const now = a.dataset.part === one.target.id;
              a.classList.toggle("here", now);
              if (now) a.setAttribute("aria-current", "true");
              else a.removeAttribute("aria-current");
            }
      },
      { rootMargin: "-15% 0px -75% 0px" },
    );
    for (const a of links) here.observe(byId(a.dataset.part));
  }

  /** On a phone the form is a sheet at the bottom, opened by a button. */
  function sheet() {
    const button = byId("sheet"),
      form = byId("controls");
    const open = (is) => {
      form.classList.toggle("open", is);
      button.setAttribute("aria-expanded", String(is));
      button.textContent = is ? "Show the answer" : "Change the question";
    };
    button.addEventListener("click", () => open(!form.classList.contains("open")));
    addEventListener("keydown", (e) => {
      if (e.key !== "Escape" || !form.classList.contains("open")) return;
      open(false);
      button.focus();
    });
  }

  // -- start
  function start() {
    document.querySelector(".top > div").append(Chip.themeButton());
    parts();
    sheet();
    heard.change = changed;
    for (const [name, value] of Object.entries(known.defaults.start))
      START[name] = typeof START[name] === "string" ? String(value) : value;
    Object.assign(state, START);
    readLink();
    document.documentElement.classList.toggle("embed", state.embed === "1");
    const build = () => {
      Controls.build();
      Rank.build();
      TimelineView.build();
      Traffic.build();
    };
    Rank.run(); // its claim before the rest: it answers first
    afterPaint(() => {
      build();
      changed();
      Operator.form();
      Operator.changed();
    });
    addEventListener("hashchange", () => {
      if (!location.hash.startsWith("#?")) return writeLink();
      readLink();
      build();
      return changed();
    });
    byId("controls").addEventListener("change", (e) => {
      if (e.target.id === "gpu") Operator.changed();
    });
  }
  start();
})();
