// Costs of a range of days: by day, model, conversation and person, with a CSV file.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import * as api from "./api/client.ts";
import { ModelTable, TotalTable } from "./components/thread-cost.tsx";
import { DAY_S, dayOf, rangeOf, series, type RangeName } from "./lib/cost-series.ts";
import { count, dollars, plural, spent } from "./lib/format.ts";
import { IconButton } from "./components/icons.tsx";
import { isDark } from "./lib/theme.ts";
import * as appState from "./state/app-state.ts";
import { useObservable } from "./state/observable.ts";
import { hashOf } from "./state/route.ts";

const RANGES: { name: RangeName; label: string }[] = [
  { name: "7", label: "Last 7 days" },
  { name: "30", label: "Last 30 days" },
  { name: "90", label: "Last 90 days" },
  { name: "all", label: "All time" },
  { name: "custom", label: "From … to …" },
];

export function Costs() {
  const [name, setName] = useState<RangeName>("30");
  const [custom, setCustom] = useState({ from: "", to: "" });
  const [people, setPeople] = useState<api.CostRange["people"]>("own");
  const [isAdmin, setAdmin] = useState(false);
  const [cost, setCost] = useState<api.Cost | null>(null);
  const range = { ...rangeOf(name, custom, new Date()), people };
  useEffect(() => void api.me().then((me) => setAdmin(me.scopes.includes("admin"))).catch(() => undefined), []);
  useEffect(() => {
    let isStale = false;
    void appState.attempt(async () => {
      const next = await api.cost(range);
      if (!isStale) setCost(next);
    });
    return () => {
      isStale = true;
    };
  }, [range.from, range.to, people]);
  return (
    <section class="page costs" aria-labelledby="costs-title">
      <header class="head row">
        <IconButton icon="menu" label="Conversations" class="narrow-only" onClick={() => appState.isDrawerOpen.set(true)} />
        <h1 id="costs-title">Costs</h1>
      </header>
      <div class="scroll" tabindex={0} role="region" aria-label="Costs">
        <div class="measure">
          <form class="row filters" onSubmit={(event) => event.preventDefault()} aria-label="Range">
            <label>
              <span class="hidden">Days</span>
              <select value={name} onChange={(event) => setName(event.currentTarget.value as RangeName)}>
                {RANGES.map((row) => (
                  <option key={row.name} value={row.name}>
                    {row.label}
                  </option>
                ))}
              </select>
            </label>
            {name === "custom" && (
              <>
                <DayField label="From" value={custom.from} onChange={(from) => setCustom({ ...custom, from })} />
                <DayField label="To" value={custom.to} onChange={(to) => setCustom({ ...custom, to })} />
              </>
            )}
            {isAdmin && (
              <label>
                <span class="hidden">People</span>
                <select value={people} onChange={(event) => setPeople(event.currentTarget.value as api.CostRange["people"])}>
                  <option value="own">My costs</option>
                  <option value="all">Everybody</option>
                </select>
              </label>
            )}
            <button type="button" onClick={() => void appState.attempt(() => api.downloadCosts(range))}>
              Download CSV
            </button>
          </form>
          {cost === null && <p class="hint">Loading …</p>}
          {cost?.byDay.length === 0 && <p class="hint">No costs in these days. Every answer is listed here with its cost.</p>}
          {cost !== null && cost.byDay.length > 0 && <Totals cost={cost} />}
        </div>
      </div>
    </section>
  );
}

function DayField({ label, value, onChange }: { label: string; value: string; onChange: (day: string) => void }) {
  return (
    <label class="row small">
      {label}
      <input type="date" value={value} onInput={(event) => onChange(event.currentTarget.value)} />
    </label>
  );
}

function Totals({ cost }: { cost: api.Cost }) {
  const saved = Number(cost.cacheSavedUsd ?? 0);
  return (
    <>
      <p class="figure">
        {cost.totalUsd === null ? "unpriced" : dollars(Number(cost.totalUsd))} <span class="muted">in total, by Dragoman's price table; days are in UTC</span>
      </p>
      {saved > 0 && <p>Prompt caches saved about {dollars(saved)}, at the current prices.</p>}
      {cost.unpriced > 0 && <p class="hint">The sum does not include {plural(cost.unpriced, "answer")} from models without a known price.</p>}
      <Plot days={cost.byDay} />
      <Table title="By model">
        <ModelTable models={cost.byModel} />
      </Table>
      <Table title="By conversation">
        <TotalTable heading="Conversation" label="Costs by conversation" rows={cost.byThread.map((row) => ({ ...row, name: <ThreadName row={row} /> }))} />
      </Table>
      {cost.byPerson && (
        <Table title="By person">
          <TotalTable heading="Person" label="Costs by person" rows={cost.byPerson.map((row) => ({ ...row, name: row.group ?? "nobody" }))} />
        </Table>
      )}
      <Table title="By day">
        <TotalTable heading="Day" label="Costs by day" rows={[...cost.byDay].reverse().map((row) => ({ ...row, name: row.group ?? "unknown" }))} />
      </Table>
    </>
  );
}

function ThreadName({ row }: { row: api.Cost["byThread"][number] }) {
  if (row.group === null) return <span class="muted">Titles, deleted conversations, and those of other people</span>;
  return <a href={hashOf({ id: row.group })}>{row.title || "Untitled"}</a>;
}

function Table({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <details class="costs-table" open={title !== "By day"}>
      <summary>
        <h2>{title}</h2>
      </summary>
      {children}
    </details>
  );
}

const HEIGHT = 240;

function Plot({ days }: { days: api.Total[] }) {
  const place = useRef<HTMLDivElement>(null);
  const [hovered, setHovered] = useState<{ day: string; left: number } | null>(null);
  const dark = useObservable(isDark);
  useEffect(() => {
    const box = place.current;
    if (!box) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const axis: uPlot.Axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const data = series(days);
    const onCursor = (plot: uPlot) => {
      const { idx, left = -1 } = plot.cursor;
      const time = idx == null ? undefined : data[0][idx];
      setHovered(time === undefined || left < 0 ? null : { day: dayOf(time), left: plot.over.offsetLeft + plot.valToPos(time, "x") });
    };
    const plot = new uPlot(
      {
        width: box.clientWidth,
        height: HEIGHT,
        cursor: { x: false, y: false, drag: { x: false, y: false }, points: { show: false } },
        hooks: { setCursor: [onCursor] },
        legend: { show: false },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        scales: { x: { range: (_, from, to) => [from - DAY_S / 2, to + DAY_S / 2] }, y: { range: (_, __, top) => [0, top * 1.1 || 1] } },
        axes: [
          { ...axis, grid: { show: false }, incrs: [DAY_S, 2 * DAY_S, 7 * DAY_S, 28 * DAY_S], values: (_, times) => times.map((time) => new Date(time * 1000).toLocaleDateString("en", { month: "short", day: "numeric", timeZone: "UTC" })) },
          { ...axis, size: 72, values: (_, amounts) => amounts.map((amount) => dollars(amount)) },
        ],
        series: [{}, { fill: colour("--accent"), stroke: colour("--accent"), paths: uPlot.paths.bars?.({ size: [0.6, 40], radius: 0.15 }) as uPlot.Series.PathBuilder, points: { show: false } }],
      },
      data,
      box,
    );
    const resize = new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: HEIGHT }));
    resize.observe(box);
    return () => (resize.disconnect(), plot.destroy());
  }, [days, dark]);
  const summary = days.map((row) => `${row.group}: ${spent(row.costUsd, row.unpriced, row.messages)}`).join(", ");
  return (
    <div class="plot-place">
      <div class="plot" ref={place} role="img" aria-label={`Costs by day. ${summary}`} />
      {hovered && <Tooltip day={hovered.day} left={hovered.left} total={days.find((row) => row.group === hovered.day)} />}
    </div>
  );
}

function Tooltip({ day, left, total }: { day: string; left: number; total: api.Total | undefined }) {
  return (
    <div class="tooltip small" style={{ left: `${left}px` }}>
      <strong>{new Date(`${day}T00:00:00Z`).toLocaleDateString("en", { dateStyle: "medium", timeZone: "UTC" })}</strong>
      {total ? (
        <>
          <span>{spent(total.costUsd, total.unpriced, total.messages)}</span>
          <span>{plural(total.messages, "answer")}</span>
          <span>
            {count(total.inputTokens + total.cachedInputTokens + total.cacheCreationInputTokens)} → {count(total.outputTokens)} tokens
          </span>
        </>
      ) : (
        <span>no answers</span>
      )}
    </div>
  );
}
