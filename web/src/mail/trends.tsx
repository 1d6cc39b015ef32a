// How agents and models do over time: scores, successes and durations, of all together or of one.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Code } from "../components/code.tsx";
import { count, dollars, duration, modelName } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import * as calls from "./client.ts";
import { useLive } from "./use-polling.ts";
import { ProblemNote } from "./components.tsx";
import { linkTo, type By } from "./route.ts";
import { Lines } from "./line-chart.tsx";
import { durationColumns, DURATIONS_MS, hasAny, scoreColumns, shortDuration, spanName } from "./trend-series.ts";
import { withKey } from "./empty-state.tsx";
import type { GroupTrend, Step, Trends } from "./types.ts";
import { percent, score } from "./letter-text.ts";

export function TrendsPage({ by, name }: { by: By; name: string | null }) {
  const { value: trends, problem } = useLive(`trends/${by}`, () => calls.trends(by));
  const chosen = trends?.groups.find((one) => one.name === name) ?? trends?.groups[0] ?? null;
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => place.current?.closest(".scroll")?.scrollTo({ top: 0 }), [by, name]);
  return (
    <div ref={place}>
      <ProblemNote problem={problem} />
      {trends === null && !problem && <p class="hint">Adding up …</p>}
      {trends !== null && !chosen && <NothingJudged />}
      {trends !== null && chosen && (
        <>
          <Chooser trends={trends} chosen={chosen} />
          <Plots group={chosen} step={trends.step} />
          <Groups trends={trends} chosen={chosen} />
        </>
      )}
    </div>
  );
}

function Chooser({ trends, chosen }: { trends: Trends; chosen: GroupTrend }) {
  const choose = (name: string) => {
    location.hash = linkTo({ kind: "trends", by: trends.by, name: name || null });
  };
  return (
    <div class="row between bar">
      <nav class="row by" aria-label="By whom">
        {BY.map(([by, label]) => (
          <a key={by} href={linkTo({ kind: "trends", by, name: null })} aria-current={by === trends.by ? "true" : undefined}>
            {label}
          </a>
        ))}
      </nav>
      <label class="chooser">
        <span class="hidden">Whose</span>
        <select value={chosen.name ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
          {trends.groups.map(({ name }) => (
            <option key={name} value={name ?? ""}>
              {called(name, trends.by)}
            </option>
          ))}
        </select>
      </label>
    </div>
  );
}

function called(name: string | null, by: By): string {
  return name === null ? (by === "agent" ? "Everybody" : "All models") : modelName(name);
}

const BY: [By, string][] = [
  ["agent", "By agent"],
  ["model", "By model"],
];

function Plots({ group, step }: { group: GroupTrend; step: Step }) {
  const newest = JSON.stringify(group.spans);
  const scores = useMemo(() => scoreColumns(group.spans), [newest]);
  const durations = useMemo(() => durationColumns(group.spans), [newest]);
  return (
    <>
      <p class="figure">
        {group.summary.average_score === null ? "–" : score(group.summary.average_score)}{" "}
        <span class="muted">
          average score of {group.name === null ? "everybody" : modelName(group.name)}
          {group.summary.success_rate !== null && `, ${percent(group.summary.success_rate)} with success`}, {count(group.summary.count)} evaluations
        </span>
      </p>
      <Lines title="Score and success" columns={scores} step={step} format={score} most={1} lines={[{ label: "average score", colour: "--accent" }, { label: "success rate", colour: "--hl-keyword", isDashed: true }]} />
      {hasAny(durations) ? (
        <Lines title="Durations" columns={durations} step={step} format={shortDuration} incrs={DURATIONS_MS} lines={[{ label: "half of them, p50", colour: "--accent" }, { label: "95 of 100, p95", colour: "--hl-keyword", isDashed: true }]} />
      ) : (
        <p class="hint">No evaluation says how long it took; duration_sec does.</p>
      )}
      <SpanTable group={group} step={step} />
    </>
  );
}

function SpanTable({ group, step }: { group: GroupTrend; step: Step }) {
  return (
    <details class="as-json">
      <summary>
        <Icon name="chevron" size={14} /> The same as a table, by the {step}
        {step !== "hour" && " in UTC"}
      </summary>
      <div class="table prose" tabindex={0} role="region" aria-label="Evaluations over time">
        <table>
          <thead>
            <tr>
              <th>{step}</th>
              <th align="right">Evaluations</th>
              <th align="right">Score</th>
              <th align="right">Success</th>
              <th align="right">p50</th>
              <th align="right">p95</th>
            </tr>
          </thead>
          <tbody>
            {group.spans.map((one) => (
              <tr key={one.at}>
                <td>{spanName(Date.parse(one.at) / 1000, step)}</td>
                <td align="right">{count(one.count)}</td>
                <td align="right">{one.average_score === null ? "" : score(one.average_score)}</td>
                <td align="right">{one.success_rate === null ? "" : percent(one.success_rate)}</td>
                <td align="right">{one.p50_ms === null ? "" : duration(one.p50_ms)}</td>
                <td align="right">{one.p95_ms === null ? "" : duration(one.p95_ms)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

const GOES: Record<GroupTrend["direction"], string> = { up: "↗ better", down: "↘ worse", steady: "→ steady", unknown: "" };

function Groups({ trends, chosen }: { trends: Trends; chosen: GroupTrend }) {
  return (
    <div class="table prose" tabindex={0} role="region" aria-label={`By ${trends.by}`}>
      <table>
        <thead>
          <tr>
            <th>{trends.by === "agent" ? "Agent" : "Model"}</th>
            <th align="right">Evaluations</th>
            <th align="right">Score</th>
            <th align="right">Success</th>
            <th align="right">p50</th>
            <th align="right">p95</th>
            <th align="right">Cost</th>
            <th>Goes</th>
          </tr>
        </thead>
        <tbody>
          {trends.groups.map(({ name, summary, direction }) => (
            <tr key={name} class={name === chosen.name ? "current" : ""}>
              <td>
                <a href={linkTo({ kind: "trends", by: trends.by, name })} aria-current={name === chosen.name ? "true" : undefined}>
                  {called(name, trends.by)}
                </a>
              </td>
              <td align="right">{count(summary.count)}</td>
              <td align="right">{summary.average_score === null ? "" : score(summary.average_score)}</td>
              <td align="right">{summary.success_rate === null ? "" : percent(summary.success_rate)}</td>
              <td align="right">{summary.durations ? duration(summary.durations.p50_ms) : ""}</td>
              <td align="right">{summary.durations ? duration(summary.durations.p95_ms) : ""}</td>
              <td align="right">{summary.cost_usd === null ? "" : dollars(Number(summary.cost_usd))}</td>
              <td>{GOES[direction]}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function NothingJudged() {
  return (
    <div class="teaching">
      <h2>Nothing was judged yet</h2>
      <p class="muted">A result that comes with a score or a success is an evaluation, and anybody may add their own. What was judged draws the lines here, and teaches the routing which model does well.</p>
      <Code text={`curl ${new URL("evaluate", location.href)} -H 'Content-Type: application/json'${withKey()} \\\n  -d '{"task_id": "TASK-1", "agent_id": "BUILDER", "score": 0.9, "success": true}'`} language="sh" />
    </div>
  );
}
