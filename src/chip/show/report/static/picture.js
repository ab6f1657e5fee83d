"use strict";
// A chart as a picture: the SVG with its style, drawn on a canvas, to the clipboard or else to a file.
const Picture = (() => {
  const { h } = Chip;
  const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "fill-opacity", "opacity", "font-family", "font-size", "text-anchor", "paint-order", "visibility"];
  const TWICE = 2; // for screens of fine dots
  const HEAD = 34;

  function standalone(svg) {
    const copy = svg.cloneNode(true),
      from = [svg, ...svg.querySelectorAll("*")],
      to = [copy, ...copy.querySelectorAll("*")];
    from.forEach((element, i) => {
      const style = getComputedStyle(element);
      for (const name of KEPT) to[i].style.setProperty(name, style.getPropertyValue(name));
    });
    const { width, height } = svg.viewBox.baseVal;
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    return { text: new XMLSerializer().serializeToString(copy), width, height };
  }
  async function png(svg, title) {
    const { text, width, height } = standalone(svg),
      image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = h("canvas", { width: width * TWICE, height: (height + HEAD) * TWICE }),
      draw = canvas.getContext("2d"),
      style = getComputedStyle(document.body),
      panel = getComputedStyle(document.querySelector(".panel")).backgroundColor;
    draw.scale(TWICE, TWICE);
    draw.fillStyle = panel;
    draw.fillRect(0, 0, width, height + HEAD);
    draw.fillStyle = style.color;
    draw.font = `600 15px ${style.fontFamily}`;
    draw.fillText(title, 12, 23, width - 24);
    draw.drawImage(image, 0, HEAD);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }
  function button(figure, title) {
    const made = h("button", { type: "button" }, "Copy as image");
    made.addEventListener("click", async () => {
      const blob = await png(figure.querySelector("svg"), title);
      try {
        await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
        made.textContent = "Copied";
      } catch {
        Chip.save("chart.png", "image/png", blob);
        made.textContent = "Saved";
      }
      setTimeout(() => (made.textContent = "Copy as image"), 1500);
    });
    return made;
  }
  return { button };
})();
