// Bars of a waterfall from the events of a turn: when each step began and how long it took.
import { plural } from "../lib/format.ts";
import type { TraceEvent } from "./types.ts";

export interface Bar {
  id: string;
  label: string;
  detail: string;
  kind: "turn" | "route" | "call" | "tool" | "wait" | "event";
  startMs: number; // after the begin of the turn
  durationMs: number; // 0: a moment
  firstMs: number | null; // of a model call: time to the first token
  isFailed: boolean;
  isOpen: boolean; // no end was recorded
}

const ENDS: Record<string, string[]> = {
  "turn.started": ["turn.completed", "turn.failed", "turn.cancelled"],
  "llm.call_started": ["llm.call_completed", "llm.call_failed"],
  "tool.called": ["tool.completed", "tool.failed"],
  "tool.confirmation_requested": ["tool.confirmation_resolved"],
};
const CLOSING = new Set(Object.values(ENDS).flat());
const KINDS: Record<string, Bar["kind"]> = { "turn.started": "turn", "llm.call_started": "call", "tool.called": "tool", "tool.confirmation_requested": "wait", "route.decided": "route" };

export function barsFrom(events: readonly TraceEvent[]): Bar[] {
  const begin = Math.min(...events.map(startOf));
  const bars = events.filter((event) => !CLOSING.has(event.type)).map((event) => barOf(event, events, begin));
  return bars.sort((bar, next) => bar.startMs - next.startMs || next.durationMs - bar.durationMs);
}

function startOf(event: TraceEvent): number {
  return Date.parse(event.timestamp) - (event.type === "route.decided" ? number(event.payload.elapsed_ms) : 0);
}

function barOf(event: TraceEvent, events: readonly TraceEvent[], begin: number): Bar {
  const end = ENDS[event.type] ? events.find((other) => isEndOf(other, event)) : undefined;
  const startMs = event.type === "turn.started" ? 0 : startOf(event) - begin; // the route is decided before that event
  const stopMs = Date.parse((end ?? event).timestamp) - begin;
  const payload = { ...event.payload, ...end?.payload };
  return {
    id: event.id,
    label: labelOf(event),
    detail: detailOf(payload, end?.type ?? event.type),
    kind: KINDS[event.type] ?? "event",
    startMs,
    durationMs: Math.max(0, stopMs - startMs),
    firstMs: end && typeof payload.time_to_first_token_ms === "number" ? payload.time_to_first_token_ms : null,
    isFailed: /failed|invalid|failure|unavailable/.test(end?.type ?? event.type),
    isOpen: ENDS[event.type] !== undefined && end === undefined,
  };
}

// A call ends with the event of the same request or the same tool call; a turn with the only end of a turn.
function isEndOf(end: TraceEvent, start: TraceEvent): boolean {
  if (!ENDS[start.type]?.includes(end.type)) return false;
  const key = start.type === "llm.call_started" ? "request_id" : "tool_use_id";
  return start.type === "turn.started" || end.payload[key] === start.payload[key];
}

function labelOf({ type, payload }: TraceEvent): string {
  switch (type) {
    case "turn.started":
      return "Turn";
    case "route.decided":
      return "Choose the model";
    case "llm.call_started":
      return `Call ${String(payload.model ?? "the model")}`;
    case "tool.called":
      return `Tool ${String(payload.tool_name ?? "")}`;
    case "tool.confirmation_requested":
      return `Wait for approval of ${String(payload.tool_name ?? "a tool")}`;
    default:
      return type.replaceAll(/[._]/g, " ");
  }
}

const STOPS: Record<string, string> = { end_turn: "complete", max_tokens: "cut at the limit of tokens", stop_sequence: "stopped at a sequence", tool_use: "calls tools", cancelled: "stopped", error: "failed" };

function detailOf(payload: Record<string, unknown>, end: string): string {
  const facts = [
    end === "llm.call_completed" ? `${sum(payload, "input_tokens", "cached_input_tokens", "cache_creation_input_tokens")} → ${number(payload.output_tokens)} tokens` : "",
    typeof payload.time_to_first_token_ms === "number" ? `first token after ${Math.round(payload.time_to_first_token_ms)} ms` : "",
    STOPS[text(payload.stop_reason)] ?? text(payload.stop_reason),
    text(payload.error_code),
    text(payload.error_message_redacted) || text(payload.error_message),
    text(payload.decision),
    end === "turn.completed" ? `${plural(number(payload.llm_call_count), "model call")}, ${plural(number(payload.tool_call_count), "tool call")}` : "",
  ];
  return facts.filter(Boolean).join(" · ");
}

export interface Retry {
  error_code: string;
  error_class: string;
  delay_ms: number;
}

// Retried attempts of one model call.
export function retriesOf(events: readonly TraceEvent[], messageId: string): { count: number; retries: Retry[] } {
  const end = events.find(({ type, payload }) => type.startsWith("llm.call_") && type !== "llm.call_started" && payload.request_id === messageId);
  return { count: number(end?.payload.retry_count), retries: (end?.payload.retries as Retry[] | undefined) ?? [] };
}

function sum(payload: Record<string, unknown>, ...names: string[]): number {
  return names.reduce((total, name) => total + number(payload[name]), 0);
}

function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}
