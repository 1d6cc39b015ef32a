// Chart data for costs: times in seconds, and amounts.
import type { Total } from "../api/client.ts";

export const DAY_S = 86_400;

// One bar per day, including days without costs.
export function series(days: readonly Total[]): [number[], (number | null)[]] {
  const known = new Map(days.map((row) => [Date.parse(`${row.group}T00:00:00Z`) / 1000, Number(row.costUsd)]));
  const times = [...known.keys()].filter(Number.isFinite).sort((row, next) => row - next);
  const [first, last] = [times[0], times.at(-1)];
  if (first === undefined || last === undefined) return [[], []];
  const begin = Math.min(first, last - 6 * DAY_S);
  const all = Array.from({ length: Math.round((last - begin) / DAY_S) + 1 }, (_, at) => begin + at * DAY_S);
  return [all, all.map((time) => known.get(time) || null)];
}

export function dayOf(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}

export type RangeName = "7" | "30" | "90" | "all" | "custom";

// The first day, and the day after the last one, in UTC. Null: no limit.
export function rangeOf(name: RangeName, custom: { from: string; to: string }, now: Date): { from: string | null; to: string | null } {
  if (name === "all") return { from: null, to: null };
  if (name === "custom") return { from: custom.from || null, to: custom.to ? nextDay(custom.to) : null };
  return { from: dayOf(now.getTime() / 1000 - (Number(name) - 1) * DAY_S), to: null };
}

function nextDay(day: string): string {
  return dayOf(Date.parse(`${day}T00:00:00Z`) / 1000 + DAY_S);
}
