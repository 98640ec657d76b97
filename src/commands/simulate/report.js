"use strict";

/** Each figure has points: the place of each across its drawing, and a text. A slider and the pointer choose one. */
for (const figure of document.querySelectorAll("figure[data-points]")) {
  const points = JSON.parse(figure.dataset.points);
  const [drawing, slider, output] = ["svg", "input", "output"].map((name) => figure.querySelector(name));
  const { width, height } = drawing.viewBox.baseVal;
  const cursor = document.createElementNS(drawing.namespaceURI, "path");
  cursor.setAttribute("class", "cursor");
  drawing.append(cursor);

  function show(index) {
    const [across, text] = points[index];
    slider.value = index;
    slider.setAttribute("aria-valuetext", text);
    output.textContent = text;
    cursor.setAttribute("d", `M${across} 8V${height - 22}`);
  }

  slider.max = points.length - 1;
  slider.hidden = false;
  slider.addEventListener("input", () => show(Number(slider.value)));
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const across = ((event.clientX - box.left) * width) / box.width;
    const away = points.map(([place]) => Math.abs(place - across));
    show(away.indexOf(Math.min(...away)));
  });
  show(Number(figure.dataset.at));
}
