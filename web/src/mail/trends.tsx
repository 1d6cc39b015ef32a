// Scores, success rates and durations of agents and models over time.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Code } from "../components/markdown-text.tsx";
import { count, dollars, duration, modelName } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import * as client from "./client.ts";
import { usePolling } from "./use-polling.ts";
import { ProblemNote } from "./components.tsx";
import { linkTo, type By } from "./route.ts";
import { LineChart } from "./line-chart.tsx";
import { durationColumns, DURATIONS_MS, hasAny, scoreColumns, shortDuration, spanName } from "./trend-series.ts";
import { keyHeader } from "./empty-state.tsx";
import type { GroupTrend, Step, Trends } from "./types.ts";
import { percent, score } from "./letter-text.ts";

export function TrendsPage({ by, name }: { by: By; name: string | null }) {
  const { value: trends, problem } = usePolling(`trends/${by}`, () => client.trends(by));
  const chosen = trends?.groups.find((row) => row.name === name) ?? trends?.groups[0] ?? null;
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => place.current?.closest(".scroll")?.scrollTo({ top: 0 }), [by, name]);
  return (
    <div ref={place}>
      <ProblemNote problem={problem} />
      {trends === null && !problem && <p class="hint">Loading …</p>}
      {trends !== null && !chosen && <NoEvaluations />}
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
      <nav class="row by" aria-label="Grouping">
        {BY.map(([by, label]) => (
          <a key={by} href={linkTo({ kind: "trends", by, name: null })} aria-current={by === trends.by ? "true" : undefined}>
            {label}
          </a>
        ))}
      </nav>
      <label class="chooser">
        <span class="hidden">Agent or model</span>
        <select value={chosen.name ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
          {trends.groups.map(({ name }) => (
            <option key={name} value={name ?? ""}>
              {groupLabel(name, trends.by)}
            </option>
          ))}
        </select>
      </label>
    </div>
  );
}

function groupLabel(name: string | null, by: By): string {
  return name === null ? (by === "agent" ? "All agents" : "All models") : modelName(name);
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
          average score of {group.name === null ? "all" : modelName(group.name)}
          {group.summary.success_rate !== null && `, ${percent(group.summary.success_rate)} successful`}, {count(group.summary.count)} evaluations
        </span>
      </p>
      <LineChart title="Score and success" columns={scores} step={step} format={score} maximum={1} lines={[{ label: "average score", colour: "--accent" }, { label: "success rate", colour: "--hl-keyword", isDashed: true }]} />
      {hasAny(durations) ? (
        <LineChart title="Durations" columns={durations} step={step} format={shortDuration} incrs={DURATIONS_MS} lines={[{ label: "p50", colour: "--accent" }, { label: "p95", colour: "--hl-keyword", isDashed: true }]} />
      ) : (
        <p class="hint">No evaluation has a duration (duration_sec).</p>
      )}
      <SpanTable group={group} step={step} />
    </>
  );
}

function SpanTable({ group, step }: { group: GroupTrend; step: Step }) {
  return (
    <details class="as-json">
      <summary>
        <Icon name="chevron" size={14} /> Show as a table, by {step}
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
            {group.spans.map((row) => (
              <tr key={row.at}>
                <td>{spanName(Date.parse(row.at) / 1000, step)}</td>
                <td align="right">{count(row.count)}</td>
                <td align="right">{row.average_score === null ? "" : score(row.average_score)}</td>
                <td align="right">{row.success_rate === null ? "" : percent(row.success_rate)}</td>
                <td align="right">{row.p50_ms === null ? "" : duration(row.p50_ms)}</td>
                <td align="right">{row.p95_ms === null ? "" : duration(row.p95_ms)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

const DIRECTIONS: Record<GroupTrend["direction"], string> = { up: "↗ improving", down: "↘ declining", steady: "→ steady", unknown: "" };

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
            <th>Trend</th>
          </tr>
        </thead>
        <tbody>
          {trends.groups.map(({ name, summary, direction }) => (
            <tr key={name} class={name === chosen.name ? "current" : ""}>
              <td>
                <a href={linkTo({ kind: "trends", by: trends.by, name })} aria-current={name === chosen.name ? "true" : undefined}>
                  {groupLabel(name, trends.by)}
                </a>
              </td>
              <td align="right">{count(summary.count)}</td>
              <td align="right">{summary.average_score === null ? "" : score(summary.average_score)}</td>
              <td align="right">{summary.success_rate === null ? "" : percent(summary.success_rate)}</td>
              <td align="right">{summary.durations ? duration(summary.durations.p50_ms) : ""}</td>
              <td align="right">{summary.durations ? duration(summary.durations.p95_ms) : ""}</td>
              <td align="right">{summary.cost_usd === null ? "" : dollars(Number(summary.cost_usd))}</td>
              <td>{DIRECTIONS[direction]}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function NoEvaluations() {
  return (
    <div class="empty-state">
      <h2>No evaluations yet</h2>
      <p class="muted">A task result with a score or a success flag is an evaluation, and clients can add more. Evaluations are shown here, and the routing uses them to choose models.</p>
      <Code text={`curl ${new URL("evaluate", location.href)} -H 'Content-Type: application/json'${keyHeader()} \\\n  -d '{"task_id": "TASK-1", "agent_id": "BUILDER", "score": 0.9, "success": true}'`} language="sh" />
    </div>
  );
}
