// Chart data for trends: times in seconds, and one list of values per line.
import type { Span, Step } from "./types.ts";

export type Columns = [number[], ...(number | null)[][]];

export function scoreColumns(spans: readonly Span[]): Columns {
  return [times(spans), spans.map((span) => span.average_score), spans.map((span) => span.success_rate)];
}

export function durationColumns(spans: readonly Span[]): Columns {
  return [times(spans), spans.map((span) => span.p50_ms), spans.map((span) => span.p95_ms)];
}

function times(spans: readonly Span[]): number[] {
  return spans.map((span) => Date.parse(span.at) / 1000);
}

export const STEP_S: Record<Step, number> = { hour: 3600, day: 86_400, week: 604_800 };

// The time range of the chart, with a margin; a single point is centred.
export function range(columns: Columns, step: Step): [number, number] {
  const [first = 0, last = first] = [columns[0][0], columns[0].at(-1)];
  const room = first === last ? 3 * STEP_S[step] : STEP_S[step] / 2;
  return [first - room, last + room];
}

// Days and weeks are in UTC; hours are in local time.
export function spanName(seconds: number, step: Step): string {
  const when = new Date(seconds * 1000);
  if (step === "hour") return when.toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false });
  return when.toLocaleDateString("en", { month: "short", day: "numeric", timeZone: "UTC" });
}

// Grid distances of a duration axis.
export const DURATIONS_MS = [1, 10, 100, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000];

export function shortDuration(ms: number): string {
  if (ms === 0) return "0";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const [amount, unit] = ms < 60_000 ? [ms / 1000, "s"] : ms < 3_600_000 ? [ms / 60_000, "min"] : [ms / 3_600_000, "h"];
  return `${Number(amount.toFixed(1))} ${unit}`;
}

export function hasAny(columns: Columns): boolean {
  return columns.slice(1).some((line) => line.some((value) => value !== null));
}
