"use strict";
const panels = JSON.parse(document.getElementById("data").textContent);

function number(x) {
  return Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(4)));
}

function nearest(list, x) {
  let best = 0;
  for (let i = 1; i < list.length; i++) if (Math.abs(list[i] - x) < Math.abs(list[best] - x)) best = i;
  return best;
}

for (const svg of document.querySelectorAll("[data-panel]")) {
  const panel = panels[Number(svg.dataset.panel)];
  const told = document.querySelector(`[data-values="${svg.dataset.panel}"]`);
  const cursor = svg.querySelector(".cursor");
  const [width, , left, right] = panel.box;
  const [low, high] = panel.x;
  const longest = panel.lines.reduce((a, b) => (b.x.length > a.x.length ? b : a)).x;
  let at = -1;

  function show(x) {
    const across = left + ((x - low) / (high - low)) * (width - left - right);
    cursor.setAttribute("x1", across);
    cursor.setAttribute("x2", across);
    cursor.setAttribute("visibility", "visible");
    const lines = panel.lines.map((line) => {
      const i = nearest(line.x, x);
      const seeds = Object.entries(line.each).map(([seed, y]) => `seed ${seed}: ${number(y[i])}`);
      const band = seeds.length > 1 ? ` [${number(line.low[i])}, ${number(line.high[i])}]` : "";
      return `${line.label} at ${number(line.x[i])}: ${number(line.middle[i])}${band} (${seeds.join(", ")})`;
    });
    told.textContent = `${panel.over} ${number(x)}\n${lines.join("\n")}`;
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * width - left) / (width - left - right);
    at = nearest(longest, low + Math.min(Math.max(share, 0), 1) * (high - low));
    show(longest[at]);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.min(Math.max(at + step, 0), longest.length - 1);
    show(longest[at]);
  });
}
