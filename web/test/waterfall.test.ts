// The bars of a trace.
import assert from "node:assert/strict";
import { test } from "node:test";
import { barsFrom, retriesOf } from "../src/why/waterfall.ts";
import type { TraceEvent } from "../src/why/types.ts";

let number = 0;

function event(type: string, ms: number, payload: Record<string, unknown> = {}): TraceEvent {
  return { id: `e${++number}`, parentId: null, type, timestamp: new Date(1_700_000_000_000 + ms).toISOString(), payload };
}

test("a step lasts from its first to its last event, and starts after the begin of the turn", () => {
  const bars = barsFrom([
    event("turn.started", 0),
    event("route.decided", 12, { elapsed_ms: 10 }),
    event("llm.call_started", 20, { request_id: "a", model: "x:y" }),
    event("llm.call_completed", 120, { request_id: "a", input_tokens: 3, cached_input_tokens: 4, output_tokens: 5, time_to_first_token_ms: 40, retry_count: 1, retries: [{ error_code: "overloaded", error_class: "overload", delay_ms: 30 }] }),
    event("tool.called", 130, { tool_use_id: "t", tool_name: "look" }),
    event("tool.failed", 150, { tool_use_id: "t", error_class: "tool" }),
    event("llm.call_started", 160, { request_id: "b", model: "x:y" }),
    event("turn.cancelled", 200),
  ]);
  assert.deepEqual(
    bars.map(({ kind, startMs, durationMs, isFailed, isOpen }) => [kind, startMs, durationMs, isFailed, isOpen]),
    [
      ["turn", 0, 200, false, false],
      ["route", 2, 10, false, false],
      ["call", 20, 100, false, false],
      ["tool", 130, 20, true, false],
      ["call", 160, 0, false, true],
    ],
  );
  assert.equal(bars[2]?.firstMs, 40);
  assert.match(bars[2]?.detail ?? "", /^7 → 5 tokens · first token after 40 ms/);
});

test("retries are those of the call of the answer", () => {
  const events = [event("llm.call_completed", 0, { request_id: "a", retry_count: 0 }), event("llm.call_completed", 9, { request_id: "b", retry_count: 2, retries: [{ error_code: "overloaded", error_class: "x", delay_ms: 5 }] })];
  assert.deepEqual(retriesOf(events, "b"), { count: 2, retries: [{ error_code: "overloaded", error_class: "x", delay_ms: 5 }] });
  assert.deepEqual(retriesOf(events, "c"), { count: 0, retries: [] });
});
