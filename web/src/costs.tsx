// Costs by day and by model.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import * as api from "./api/client.ts";
import { useObservable } from "./state/observable.ts";
import { ModelTable } from "./components/thread-cost.tsx";
import { dollars, plural, spent } from "./lib/format.ts";
import { IconButton } from "./components/icons.tsx";
import { DAY_S, series } from "./lib/cost-series.ts";
import * as appState from "./state/app-state.ts";
import { theme } from "./lib/theme.ts";

export function Costs() {
  const [cost, setCost] = useState<api.Cost | null>(null);
  useEffect(() => void appState.attempt(async () => setCost(await api.cost())), []);
  return (
    <section class="page" aria-labelledby="costs-title">
      <header class="head row">
        <IconButton icon="menu" label="Conversations" class="narrow-only" onClick={() => appState.isDrawerOpen.set(true)} />
        <h1 id="costs-title">Costs</h1>
      </header>
      <div class="scroll" tabindex={0} role="region" aria-label="Costs">
        <div class="measure">
          {cost === null && <p class="hint">Loading …</p>}
          {cost?.byDay.length === 0 && <p class="hint">No costs yet. Every answer is listed here with its cost.</p>}
          {cost !== null && cost.byDay.length > 0 && (
            <>
              <p class="figure">
                {cost.totalUsd === null ? "unpriced" : dollars(Number(cost.totalUsd))} <span class="muted">in total, by Dragoman's price table; days are in UTC</span>
              </p>
              {cost.unpriced > 0 && (
                <p class="hint">The sum does not include {plural(cost.unpriced, "answer")} from models without a known price.</p>
              )}
              <Plot days={cost.byDay} />
              <ModelTable models={cost.byModel} />
            </>
          )}
        </div>
      </div>
    </section>
  );
}

function Plot({ days }: { days: api.Total[] }) {
  const place = useRef<HTMLDivElement>(null);
  const chosen = useObservable(theme);
  useEffect(() => {
    const box = place.current;
    if (!box) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const axis: uPlot.Axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const plot = new uPlot(
      {
        width: box.clientWidth,
        height: 240,
        cursor: { show: false },
        legend: { show: false },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        scales: { x: { range: (_, from, to) => [from - DAY_S / 2, to + DAY_S / 2] }, y: { range: (_, __, top) => [0, top * 1.1 || 1] } },
        axes: [
          { ...axis, grid: { show: false }, incrs: [DAY_S, 2 * DAY_S, 7 * DAY_S, 28 * DAY_S], values: (_, times) => times.map((time) => new Date(time * 1000).toLocaleDateString("en", { month: "short", day: "numeric", timeZone: "UTC" })) },
          { ...axis, size: 72, values: (_, amounts) => amounts.map((amount) => dollars(amount)) },
        ],
        series: [{}, { fill: colour("--accent"), stroke: colour("--accent"), paths: uPlot.paths.bars?.({ size: [0.6, 40], radius: 0.15 }) as uPlot.Series.PathBuilder, points: { show: false } }],
      },
      series(days),
      box,
    );
    const resize = new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: 240 }));
    resize.observe(box);
    return () => (resize.disconnect(), plot.destroy());
  }, [days, chosen]);
  const summary = days.map((row) => `${row.group}: ${spent(row.costUsd, row.unpriced, row.messages)}`).join(", ");
  return <div class="plot" ref={place} role="img" aria-label={`Costs by day. ${summary}`} />;
}
