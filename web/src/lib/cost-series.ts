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
