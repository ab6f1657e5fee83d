"use strict";
// Pictures: lines and dots over two axes, roofs, legends.
const Plots = (() => {
  const { h, s, known, si } = Chip;

  // -- scales
  function logScale(low, high, from, to, binary) {
    if (binary) return binaryScale(low, high, from, to);
    const a = Math.log10(low),
      b = Math.log10(high);
    const at = (v) => from + ((Math.log10(v) - a) / (b - a || 1)) * (to - from);
    const ticks = [];
    const every = Math.max(1, Math.ceil((b - a) / Math.max(2, Math.min(7, Math.abs(to - from) / 60))));
    for (let e = Math.ceil(a - 1e-9); e <= b + 1e-9; e += every) ticks.push(10 ** e);
    if (every === 1 && ticks.length < 3)
      for (const m of [2, 5])
        for (let e = Math.floor(a); e <= b; e++) {
          const v = m * 10 ** e;
          if (v >= low && v <= high) ticks.push(v);
        }
    return { at, ticks: ticks.sort((x, y) => x - y), low, high };
  }
  /** For bytes: 64 KiB, 1 MiB, 16 MiB ... */
  function binaryScale(low, high, from, to) {
    const a = Math.log2(low),
      b = Math.log2(high),
      every = Math.max(1, Math.ceil((b - a) / Math.max(2, Math.min(6, Math.abs(to - from) / 70)))),
      ticks = [];
    for (let e = Math.ceil(a / every) * every; e <= b; e += every) ticks.push(2 ** e);
    return { at: (v) => from + ((Math.log2(v) - a) / (b - a || 1)) * (to - from), ticks, low, high };
  }
  function linearScale(low, high, from, to) {
    const span = high - low || 1;
    const step = 10 ** Math.floor(Math.log10(span / 4));
    const nice =
      [1, 2, 5, 10].map((m) => m * step).find((d) => span / d <= Math.max(2, Math.min(6, Math.abs(to - from) / 50))) ||
      10 * step;
    const ticks = [];
    for (let v = Math.ceil(low / nice) * nice; v <= high + nice * 1e-6; v += nice)
      ticks.push(Math.abs(v) < nice * 1e-6 ? 0 : v);
    return { at: (v) => from + ((v - low) / span) * (to - from), ticks, low, high };
  }
  /** Whether a number can be drawn at all; results may hold any. */
  const drawable = (v) => known(v) && Math.abs(v) < 1e200 && (v === 0 || Math.abs(v) > 1e-200);
  /** Least and greatest of the positive numbers, widened to stand clear of the frame. */
  function reach(values, room = 1.6) {
    let low = Infinity,
      high = 0;
    for (const v of values)
      if (drawable(v) && v > 0) {
        if (v < low) low = v;
        if (v > high) high = v;
      }
    return low <= high ? [low / room, high * room] : [1, 10];
  }

  // -- marks: told apart by shape as well as by colour
  const SHAPES = [
    (r) => `m${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`, // disc
    (r) => `m${-0.9 * r} ${-0.9 * r}h${1.8 * r}v${1.8 * r}h${-1.8 * r}z`, // square
    (r) => `m0 ${-1.2 * r}l${1.15 * r} ${2 * r}h${-2.3 * r}z`, // triangle
    (r) => `m0 ${-1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}z`, // diamond
    (r) => `m${-1.2 * r} ${-0.4 * r}h${0.8 * r}v${-0.8 * r}h${0.8 * r}v${0.8 * r}h${0.8 * r}v${0.8 * r}h${-0.8 * r}v${0.8 * r}h${-0.8 * r}v${-0.8 * r}h${-0.8 * r}z`, // cross
    (r) => `m0 ${1.2 * r}l${1.15 * r} ${-2 * r}h${-2.3 * r}z`, // triangle, point down
  ];
  const shape = (i, r) => SHAPES[(i || 0) % SHAPES.length](r);
  function swatch(item) {
    const mark = s("path", {
      d: `M7 7${shape(item.shape, 4.6)}`,
      fill: item.hollow ? "none" : item.color,
      stroke: item.color,
      "stroke-width": 1.6,
    });
    return s("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, mark);
  }

  // -- plots
  let plots = 0;
  /** Lines and dots over two axes. Dots of one series are one path, so that 10,000 of them draw at once; what lies under
   *  the pointer, or is chosen with the arrow keys, is found by distance and told beside it.
   *  spec: {title, x: {label, format, log, range}, y, lines: [{points, color, dash, label}],
   *         series: [{name, color, hollow, points: [{x, y, r, tell: () => [[name, text]], title}]}], pairs: [[p, q]]} */
  function plot(spec) {
    const figure = h("div", { class: "figure" });
    redrawn(figure, Math.min(spec.width, Math.max(280, innerWidth - 60)), (width) => figure.replaceChildren(...drawn(spec, figure, width)));
    return figure;
  }
  /** Draws for a width, and again for the width that a figure has on the page: letters keep their size. */
  function redrawn(figure, guess, draw) {
    let width = guess;
    draw(width);
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width < 200 || Math.abs(contentRect.width - width) < 2) return;
      width = contentRect.width;
      draw(width);
    }).observe(figure);
  }
  function drawn(spec, figure, W) {
    const H = Math.min(spec.height, Math.max(260, 0.85 * W)),
      L = 74,
      R = 18,
      T = 14,
      B = 50;
    const id = `plot${++plots}`;
    const scale = (axis, from, to) =>
      (axis.log === false ? linearScale : logScale)(axis.range[0], axis.range[1], from, to, axis.binary);
    const x = scale(spec.x, L, W - R),
      y = scale(spec.y, H - B, T);
    const svg = s("svg", {
      viewBox: `0 0 ${W} ${H}`,
      role: "img",
      tabindex: "0",
      "aria-label": spec.title,
      class: "plot",
    });
    svg.append(s("clipPath", { id }, s("rect", { x: L, y: T, width: W - L - R, height: H - T - B })));
    for (const v of x.ticks) {
      svg.append(s("line", { x1: x.at(v), x2: x.at(v), y1: T, y2: H - B, class: "grid" }));
      const anchor = x.at(v) > W - R - 14 ? "end" : "middle"; // the last one stays inside
      svg.append(s("text", { x: anchor === "end" ? Math.min(W - 2, x.at(v) + 14) : x.at(v), y: H - B + 18, "text-anchor": anchor, class: "tick" }, spec.x.format(v)));
    }
    for (const v of y.ticks) {
      svg.append(s("line", { x1: L, x2: W - R, y1: y.at(v), y2: y.at(v), class: "grid" }));
      svg.append(s("text", { x: L - 8, y: y.at(v) + 4, "text-anchor": "end", class: "tick" }, spec.y.format(v)));
    }
    svg.append(s("text", { x: (L + W - R) / 2, y: H - 8, "text-anchor": "middle", class: "axis" }, spec.x.label));
    svg.append(
      s(
        "text",
        {
          x: 14,
          y: (T + H - B) / 2,
          "text-anchor": "middle",
          class: "axis",
          transform: `rotate(-90 14 ${(T + H - B) / 2})`,
        },
        spec.y.label,
      ),
    );
    const inside = s("g", { "clip-path": `url(#${id})` });
    svg.append(inside);
    for (const band of spec.bands || []) {
      const way = (points, k) => points.map((p) => `${x.at(p[0]).toFixed(1)} ${y.at(p[k]).toFixed(1)}`);
      const d = `M${[...way(band.points, 1), ...way([...band.points].reverse(), 2)].join("L")}Z`;
      inside.append(s("path", { d, class: "between", fill: band.color }));
    }
    const taken = []; // heights at the right edge where a label stands
    for (const line of spec.lines || []) {
      const d = line.points
        .map(([px, py], i) => `${i ? "L" : "M"}${x.at(px).toFixed(1)} ${y.at(py).toFixed(1)}`)
        .join("");
      inside.append(
        s("path", { d, class: "line", stroke: line.color, "stroke-dasharray": line.dash, "stroke-width": line.width }),
      );
      if (line.label) {
        const [px, py] = line.points[line.labelAt === "start" ? 0 : line.points.length - 1];
        const start = line.labelAt === "start";
        let height = Math.max(y.at(py), T + 6) - 5;
        if (!start && taken.some((t) => Math.abs(t - height) < 13)) height += 17; // below its own line
        if (!start) taken.push(height);
        inside.append(
          s(
            "text",
            {
              x: Math.min(Math.max(x.at(px), L) + (start ? 6 : 0), W - R - (start ? 0 : 4)),
              y: height,
              "text-anchor": start ? "start" : "end",
              class: "roof",
              fill: line.color,
              transform: line.rotate ? rotated(line, x, y) : null,
            },
            W < 500 && line.short ? line.short : line.label,
          ),
        );
      }
    }
    for (const [p, q] of spec.pairs || []) {
      if (![p.x, p.y, q.x, q.y].every((v) => drawable(v) && v > 0)) continue;
      inside.append(s("line", { x1: x.at(p.x), y1: y.at(p.y), x2: x.at(q.x), y2: y.at(q.y), class: "pair" }));
    }
    const dots = [],
      total = spec.series.reduce((n, one) => n + one.points.length, 0),
      spots = total > MOST_DOTS ? new Set() : null; // of many dots those on one spot are drawn once
    let hidden = 0;
    const first = (one, p) => {
      const spot = `${one.name} ${Math.round(x.at(p.x) / SPOT)} ${Math.round(y.at(p.y) / SPOT)}`;
      if (!spots || !spots.has(spot)) return spots ? spots.add(spot) : true;
      hidden += 1;
      return false;
    };
    for (const series of spec.series) {
      const shown = series.points.filter(
        (p) => drawable(p.x) && drawable(p.y) && (spec.x.log === false || p.x > 0) && (spec.y.log === false || p.y > 0) && first(series, p),
      );
      for (const p of shown) dots.push({ at: [x.at(p.x), y.at(p.y)], p, series });
      if (series.joined && shown.length > 1) {
        const d = shown.map((p, i) => `${i ? "L" : "M"}${x.at(p.x).toFixed(1)} ${y.at(p.y).toFixed(1)}`).join("");
        inside.append(s("path", { d, class: "line", stroke: series.color, "stroke-width": 1.6 }));
      }
      const usual = shown.length > 2000 ? 2 : W < 500 ? 3 : 3.6;
      for (const hollow of [false, true]) {
        const own = shown.filter((p) => Boolean(p.hollow || series.hollow) === hollow);
        if (!own.length) continue;
        const d = own.map((p) => `M${x.at(p.x).toFixed(1)} ${y.at(p.y).toFixed(1)}${shape(series.shape, p.r || usual)}`);
        inside.append(
          s("path", {
            d: d.join(""),
            class: "dots",
            fill: hollow ? "var(--panel)" : series.color,
            stroke: series.color,
            "stroke-width": hollow ? 1.6 : 0.8,
          }),
        );
      }
    }
    named(svg, dots, { left: L, right: W - R, top: T, bottom: H - B });
    const ring = s("circle", { r: 8, class: "ring", visibility: "hidden" });
    inside.append(ring);
    const tip = h("div", { class: "tip", hidden: true, role: "status" });
    attend(svg, figure, tip, ring, dots, W, spec);
    const few = hidden ? h("p", { class: "span" }, `${Chip.grouped(dots.length)} of ${Chip.grouped(dots.length + hidden)} shown: of those on one spot one is drawn.`) : "";
    return [svg, tip, few];
  }
  const MOST_DOTS = 1500,
    SPOT = 6; // pixels
  const LETTER = 6.6; // pixels that a letter of a label is wide, at most
  /** Labels of points beside them, the first ones first; one that would lie on another or on a mark is left out. */
  function named(svg, dots, { left, right, top, bottom }) {
    const taken = dots.map(({ at: [x, y] }) => [x - 4, y - 4, x + 4, y + 4]);
    for (const { at: [x, y], p } of dots) {
      if (!p.tag) continue;
      const w = p.tag.length * LETTER;
      const places = [[x + 7, y + 4], [x - 7 - w, y + 4], [x - w / 2, y - 8], [x - w / 2, y + 17], [x + 6, y - 6], [x + 6, y + 14]];
      const free = places.find(([px, py]) => {
        const box = [px, py - 11, px + w, py + 3];
        if (box[0] < left || box[2] > right || box[1] < top || box[3] > bottom) return false;
        if (taken.some((t) => box[0] < t[2] && t[0] < box[2] && box[1] < t[3] && t[1] < box[3])) return false;
        taken.push(box);
        return true;
      });
      if (free) svg.append(s("text", { x: free[0], y: free[1], class: "roof name" }, p.tag));
    }
  }
  function rotated(line, x, y) {
    const [[ax, ay], [bx, by]] = [line.points[0], line.points[1]];
    const angle = (Math.atan2(y.at(by) - y.at(ay), x.at(bx) - x.at(ax)) * 180) / Math.PI;
    return `rotate(${angle.toFixed(1)} ${x.at(ax).toFixed(1)} ${y.at(ay).toFixed(1)})`;
  }
  /** Pointer and arrow keys choose a dot; it is ringed, and its numbers stand beside it. */
  function attend(svg, figure, tip, ring, dots, W, spec) {
    let chosen = -1;
    const ordered = dots.map((_, i) => i).sort((a, b) => dots[a].at[0] - dots[b].at[0]);
    const choose = (i) => {
      chosen = i;
      if (i < 0) {
        tip.hidden = true;
        ring.setAttribute("visibility", "hidden");
        return;
      }
      const { at, p, series } = dots[i];
      ring.setAttribute("cx", at[0]);
      ring.setAttribute("cy", at[1]);
      ring.setAttribute("visibility", "visible");
      tip.replaceChildren(
        h("strong", {}, p.title || series.name),
        h(
          "dl",
          {},
          p.tell().map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]),
        ),
      );
      tip.hidden = false;
      const k = svg.getBoundingClientRect().width / W;
      const room = figure.clientWidth,
        left = at[0] * k + 14;
      tip.style.left = `${left + tip.offsetWidth > room ? Math.max(0, at[0] * k - tip.offsetWidth - 14) : left}px`;
      tip.style.top = `${Math.max(0, at[1] * k - tip.offsetHeight / 2)}px`;
    };
    const nearest = (e, far) => {
      const box = svg.getBoundingClientRect();
      const px = ((e.clientX - box.left) / box.width) * W,
        py = ((e.clientY - box.top) / box.width) * W;
      let best = -1,
        near = far * far;
      dots.forEach(({ at }, i) => {
        const d = (at[0] - px) ** 2 + (at[1] - py) ** 2;
        if (d < near) {
          near = d;
          best = i;
        }
      });
      return best;
    };
    const follow = (far) => (e) => {
      const best = nearest(e, far);
      if (best !== chosen) choose(best);
    };
    let tapped = -1; // a first tap tells, a second one picks
    svg.addEventListener("pointermove", (e) => e.pointerType === "touch" || follow(22)(e));
    svg.addEventListener("pointerdown", (e) => {
      if (e.pointerType !== "touch") return;
      tapped = chosen;
      follow(40)(e);
    });
    svg.addEventListener("pointerleave", (e) => e.pointerType === "touch" || choose(-1));
    svg.addEventListener("blur", () => choose(-1));
    svg.addEventListener("click", (e) => {
      if (e.pointerType === "touch" && tapped !== chosen) return;
      if (chosen >= 0 && spec.picked) spec.picked(dots[chosen].p);
    });
    svg.addEventListener("keydown", (e) => {
      if (e.key === "Escape") return choose(-1);
      if (e.key === "Enter" && chosen >= 0 && spec.picked) return spec.picked(dots[chosen].p);
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
      if (!move || !dots.length) return undefined;
      e.preventDefault();
      const at = ordered.indexOf(chosen);
      return choose(ordered[(at + move + dots.length) % dots.length]);
    });
  }

  /** Names and colours of a plot; where `toggle` is given, each is a button that shows or hides its series. */
  function legend(items, toggle) {
    return h(
      "ul",
      { class: "legend" },
      items.map((item) => {
        const mark = item.pattern ? h("span", { class: `patch ${item.pattern}`, style: { color: item.color } }) : swatch(item);
        if (!toggle) return h("li", {}, mark, item.name);
        const button = h(
          "button",
          { type: "button", "aria-pressed": String(!item.off), onclick: () => toggle(item) },
          mark,
          item.name,
        );
        return h("li", {}, button);
      }),
    );
  }

  /** Roofs of a device as lines over a range of intensities: memory levels rise to the highest compute roof, compute roofs
   *  start where the fastest memory reaches them. compute, memory: [{name, value}]. */
  function roofLines(compute, memory, xs, dash) {
    const lines = [];
    const top = Math.max(...compute.map((c) => c.value)),
      fastest = Math.max(...memory.map((m) => m.value));
    for (const m of memory) {
      lines.push({
        points: [
          [xs[0], xs[0] * m.value],
          [top / m.value, top],
        ],
        color: "var(--muted)",
        label: `${m.name} ${si(m.value, "B/s")}`,
        short: m.name,
        dash,
        labelAt: "start",
        rotate: true,
        width: 1.5,
      });
    }
    for (const c of compute) {
      lines.push({
        points: [
          [c.value / fastest, c.value],
          [xs[1], c.value],
        ],
        color: "var(--ink)",
        label: `${c.name} ${si(c.value, "FLOP/s")}`,
        short: c.name,
        dash: c.dash || dash,
        width: 1.5,
      });
    }
    return lines;
  }

  return { plot, legend, reach, roofLines, drawable, redrawn };
})();
