"use strict";
const say = v => String(Number(v.toPrecision(4)));
for (const plot of document.querySelectorAll(".plot")) {
  const { axis, x: [x0, x1], y: [y0, y1], curves } = JSON.parse(plot.dataset.readout);
  const steps = [...new Set(curves.flatMap(([, points]) => points.map(p => p[0])))].sort((a, b) => a - b);
  let at = -1, cursor, tip;
  const hide = () => { cursor?.remove(); tip?.remove(); at = -1; };
  const show = index => {
    hide(); at = index;
    const step = steps[at], left = 100 * (step - x0) / ((x1 - x0) || 1);
    cursor = document.createElement("div"); cursor.className = "cursor"; cursor.style.left = left + "%";
    tip = document.createElement("div"); tip.className = "tip";
    tip.style[left > 55 ? "right" : "left"] = `calc(${left > 55 ? 100 - left : left}% + .7rem)`;
    const line = (text, value) => {
      const row = tip.appendChild(document.createElement("div")); row.textContent = text;
      if (value === undefined) row.className = "step"; else row.appendChild(document.createElement("b")).textContent = say(value);
    };
    line(`${axis} ${Number.isInteger(step) ? step : say(step)}`);
    for (const [label, points] of curves) { const p = points.find(q => q[0] === step); if (p) line(label, p[1]); }
    plot.append(cursor, tip);
  };
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect(), step = x0 + (x1 - x0) * (event.clientX - box.left) / box.width;
    let best = 0; steps.forEach((s, i) => { if (Math.abs(s - step) < Math.abs(steps[best] - step)) best = i; });
    if (best !== at) show(best);
  });
  plot.addEventListener("pointerleave", hide); plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", event => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) { event.preventDefault(); show(Math.max(0, Math.min(steps.length - 1, at < 0 ? (move > 0 ? 0 : steps.length - 1) : at + move))); }
  });
}
const dialog = document.querySelector("dialog");
dialog.addEventListener("click", () => dialog.close());
for (const grid of document.querySelectorAll("[data-zoom]")) grid.addEventListener("click", event => {
  const cell = event.target.closest(".cell"); if (!cell || event.target.closest("audio")) return;
  const many = dialog.firstElementChild; many.replaceChildren();
  for (const other of grid.querySelectorAll(`[data-request="${cell.dataset.request}"] :is(img, video)`)) {
    const figure = many.appendChild(document.createElement("figure")), shown = other.closest(".under").cloneNode(true);
    shown.style.width = `min(100%, ${70 * other.width / other.height}vh)`; figure.append(shown);
    if (other.dataset.frames) {
      Object.assign(shown.querySelector("video"), { controls: true, muted: true });
      Object.assign(figure.appendChild(document.createElement("img")), { src: other.dataset.frames, alt: "frames, first to last" });
    }
    figure.appendChild(document.createElement("figcaption")).textContent = other.title || other.alt;
  }
  if (many.children.length) dialog.showModal();
});
