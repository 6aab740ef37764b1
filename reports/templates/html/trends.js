"use strict";
// Puts a zoomable chart in the place of each figure; without scripts the figures stay.
for (const holder of document.querySelectorAll("[data-trend]")) {
  const data = JSON.parse(holder.querySelector("script").textContent);
  if (data.values.every((value) => value === null)) continue;
  const figure = holder.querySelector("svg");
  const said = holder.querySelector(".said");
  const ink = getComputedStyle(document.body).color;
  const step = (plot) => {
    plot.ctx.save();
    plot.ctx.strokeStyle = ink;
    plot.ctx.setLineDash([6, 4]);
    for (const place of data.steps) {
      const x = plot.valToPos(place - 0.5, "x", true);
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.bbox.top);
      plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
    }
    plot.ctx.restore();
  };
  const tell = (plot) => {
    const place = plot.cursor.idx;
    const value = place === null || place === undefined ? null : data.values[place];
    said.textContent = value === null ? "" : `${data.labels[place]}: ${value} ${data.unit}`;
  };
  const axis = { stroke: ink, grid: { stroke: "#8a8f9655" }, ticks: { stroke: "#8a8f96" } };
  const plot = new uPlot(
    {
      width: Math.min(900, holder.clientWidth),
      height: 200,
      padding: [10, 44, 0, 24],
      legend: { show: false },
      scales: { x: { time: false } },
      axes: [
        { ...axis, values: (_, places) => places.map((p) => data.labels[p] || ""), space: 120 },
        { ...axis, size: 70 },
      ],
      series: [{}, { stroke: "#4c8dc9", width: 2, spanGaps: true, points: { show: true, size: 6 } }],
      hooks: { draw: [step], setCursor: [tell] },
    },
    [data.values.map((_, place) => place), data.values],
    holder.querySelector(".plot"),
  );
  plot.root.setAttribute("aria-hidden", "true");
  figure.parentElement.hidden = true;
  addEventListener("resize", () =>
    plot.setSize({ width: Math.min(900, holder.clientWidth), height: 200 }));
}
