"use strict";
// The report: every section is drawn from the tables of the summary, and says how to make them where they are empty.
(() => {
  const { h } = Chip;
  const { data, tables, link, readLink } = Report;

  // [id, name in the bar, title, lead, what draws it]
  const SECTIONS = [
    ["overview", "Overview", "Overview", Results.about(), Results.overview],
    [
      "accuracy",
      "Accuracy",
      "How wrong are the predictions",
      "Every prediction that was held against a real run, by who made it. The worst miss is on the first screen.",
      Accuracy.accuracy,
    ],
    ["kernels", "Kernels", "Kernels", "Kernels of our own, against PyTorch and cuBLAS.", Results.kernels],
    [
      "compared",
      "Compared",
      "Runs compared",
      "Runs of one model and scenario, two by two: other engines, and repeats of the same against their first. A ratio below 1 means that the second is faster; unclear means that the samples do not tell.",
      Results.comparisons,
    ],
    [
      "roofline",
      "Roofline",
      "Roofline",
      "Measured operators under the device's measured roofs. Hide and show series and roofs with their buttons; arrow keys walk through the dots.",
      Roofline.roofline,
    ],
    [
      "calibration",
      "Calibration",
      "Calibration",
      "What the device really does, beside what its datasheet promises.",
      Calibration.calibration,
    ],
    ["operators", "Operators", "Operators", "Every measured operator, with what bounds it.", Results.operators],
    [
      "replay",
      "Replay",
      "Capture and replay",
      "Whether the kernels of a step explain its time, and what the rest is.",
      Results.replay,
    ],
    ["runs", "Benchmark", "LLM benchmark", "Models run for real.", Results.runs],
    [
      "provenance",
      "Provenance",
      "Provenance",
      "Every file behind this page, and where it was measured.",
      Results.provenance,
    ],
  ];
  const STORY = 4; // sections that stand open; the rest is for those who ask

  /** What a section has to say, in the figures of its cards. */
  function claim(id) {
    const own = tables.headlines.objects().filter((c) => c.section === id);
    const said = (c) => [h("strong", {}, `${c.name}: ${Chip.quantity(c.value, c.unit)}`), ` (${c.detail}). `];
    return own.length ? h("p", { class: "claim" }, own.map(said)) : "";
  }
  /** What cannot be drawn costs its own section only. */
  function drawn(make) {
    try {
      return make();
    } catch (error) {
      return h(
        "p",
        { class: "note bad" },
        `This section could not be drawn: ${error.message}. Its figures are in summary.csv.`,
      );
    }
  }
  /** The data that the page holds, where no file of it lies beside. */
  function saved() {
    const { explorer: _, alone: __, ...summary } = data;
    return h("button", { type: "button", class: "link", onclick: () => Chip.save("summary.json", "application/json", `${JSON.stringify(summary)}\n`) }, "summary.json");
  }
  function draw() {
    readLink();
    const main = document.getElementById("report"),
      nav = document.querySelector(".top nav");
    nav.replaceChildren(...SECTIONS.map(([id, short]) => h("a", { href: `#${id}` }, short)));
    main.replaceChildren(
      ...SECTIONS.map(([id, , title, lead, make], i) =>
        h(
          "section",
          { class: "panel", id, "aria-labelledby": `${id}-title` },
          h("h2", { id: `${id}-title` }, title),
          i ? claim(id) : "",
          lead ? h("p", { class: "lead" }, lead) : "",
          i < STORY ? drawn(make) : Report.folded(`Show ${title.toLowerCase()}`, () => h("div", {}, drawn(make)), link.section === id),
        ),
      ),
      h(
        "footer",
        { class: "muted" },
        `Made by chip ${data.chip}. All figures are in `,
        data.alone ? saved() : [h("a", { href: "summary.json" }, "summary.json"), " and ", h("a", { href: "summary.csv" }, "summary.csv")],
        ". Links to the explorer lead to ",
        h("a", { href: data.explorer }, data.alone ? "the one beside this page" : data.explorer),
        data.alone ? "." : ", where `chip serve` listens.",
      ),
    );
    observe(main, nav);
    const wanted = link.section && document.getElementById(link.section === "errors" ? "accuracy-table" : link.section);
    if (wanted) wanted.scrollIntoView();
  }
  /** Marks the section that is read, and keeps its name in sight where the bar is narrow. */
  let watching = null;
  function observe(main, nav) {
    if (watching) watching.disconnect();
    watching = new IntersectionObserver(
      (seen) => {
        for (const one of seen)
          if (one.isIntersecting)
            for (const a of nav.querySelectorAll("a")) {
              const now = a.getAttribute("href") === `#${one.target.id}`;
              a.classList.toggle("here", now);
              if (now) {
                a.setAttribute("aria-current", "true");
                nav.scrollLeft = a.offsetLeft - nav.offsetLeft - 40;
              } else a.removeAttribute("aria-current");
            }
      },
      { rootMargin: "-20% 0px -75% 0px" },
    );
    for (const section of main.querySelectorAll("section")) watching.observe(section);
  }
  addEventListener("beforeprint", () => {
    let folded;
    while ((folded = [...document.querySelectorAll("details.raw:not([open])")]).length) for (const box of folded) box.unfold();
  });
  document.querySelector(".top > div").append(Chip.themeButton());
  draw();
  addEventListener("hashchange", () => {
    readLink();
    if (Object.keys(link.params).length) draw();
    else document.getElementById(link.section)?.querySelector(":scope > details.raw")?.unfold();
  });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
