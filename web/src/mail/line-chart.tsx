// A line chart over time, in the theme colours. A table shows the same values.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { useObservable } from "../state/observable.ts";
import { isDark } from "../lib/theme.ts";
import { range, spanName, STEP_S, type Columns } from "./trend-series.ts";
import type { Step } from "./types.ts";

export interface Line {
  label: string;
  colour: string; // CSS variable
  isDashed?: boolean;
}

interface LineChartProps {
  title: string;
  columns: Columns;
  lines: Line[];
  step: Step;
  format: (value: number) => string;
  maximum?: number; // end of the scale; default: the largest value
  incrs?: number[]; // possible grid distances
}

const HEIGHT = 220;

export function LineChart({ title, columns, lines, step, format, maximum, incrs }: LineChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const dark = useObservable(isDark);
  useEffect(() => {
    const box = place.current;
    if (!box) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const axis: uPlot.Axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const plot = new uPlot(
      {
        width: box.clientWidth,
        height: HEIGHT,
        cursor: { show: false },
        legend: { show: false },
        scales: { x: { range: () => range(columns, step) }, y: { range: (_, __, top) => [0, maximum ?? (top * 1.1 || 1)] } },
        axes: [
          { ...axis, grid: { show: false }, incrs: [1, 2, 3, 6, 12, 24].map((times) => times * STEP_S[step]), space: 64, size: 32, values: (_, times) => times.map((time) => spanName(time, step)) },
          { ...axis, size: 64, ...(incrs ? { incrs } : {}), values: (_, values) => values.map(format) },
        ],
        series: [{}, ...lines.map((line) => ({ stroke: colour(line.colour), width: 2, spanGaps: true, points: { show: true, size: 6, fill: colour(line.colour) }, ...(line.isDashed ? { dash: [6, 4] } : {}) }))],
      },
      columns as uPlot.AlignedData,
      box,
    );
    const resize = new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: HEIGHT }));
    resize.observe(box);
    return () => (resize.disconnect(), plot.destroy());
  }, [columns, dark]);
  return (
    <figure class="lines">
      <figcaption class="row">
        <h2>{title}</h2>
        {lines.map((line) => (
          <span key={line.label} class="muted small row key">
            <i class={`swatch ${line.colour.slice(2)} ${line.isDashed ? "dashed" : ""}`} /> {line.label}
          </span>
        ))}
      </figcaption>
      <div class="plot" ref={place} role="img" aria-label={`${title} over time: ${newestValues(columns, lines, format)}. The table below has the same values.`} />
    </figure>
  );
}

// The newest value of each line.
function newestValues(columns: Columns, lines: readonly Line[], format: (value: number) => string): string {
  const newest = lines.flatMap((line, at) => {
    const value = columns[at + 1]?.findLast((item) => item !== null);
    return value == null ? [] : [`${line.label} ${format(value)}`];
  });
  return newest.length ? `latest values ${newest.join(", ")}` : "no values";
}
