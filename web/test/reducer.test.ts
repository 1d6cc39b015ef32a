import assert from "node:assert/strict";
import { test } from "node:test";
import { apply, LIVE } from "../src/state/reducer.ts";
import { emptyView, type AnswerItem, type View } from "../src/state/view-model.ts";
import type { Event } from "../src/api/types.ts";

const STARTED: Event = { type: "RUN_STARTED", threadId: "t", runId: "r" };
const FINISHED: Event = { type: "RUN_FINISHED", threadId: "t", runId: "r", outcome: { type: "success" } };

function after(...events: Event[]): View {
  return events.reduce((view, event, at) => apply(view, { number: at + 1, event }), emptyView("t"));
}

function live(view: View): AnswerItem {
  const item = view.items.at(-1);
  assert.equal(item?.kind, "answer");
  assert.equal(item.id, LIVE);
  return item;
}

test("text deltas accumulate in one part", () => {
  const view = after(
    STARTED,
    { type: "TEXT_MESSAGE_START", messageId: "m" },
    { type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta: "Hel" },
    { type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta: "lo" },
    { type: "TEXT_MESSAGE_END", messageId: "m" },
  );
  assert.deepEqual(live(view).parts, [{ kind: "text", id: "m", text: "Hello" }]);
  assert.deepEqual(view.run, { state: "running", runId: "r" });
});

test("an event is applied once", () => {
  const view = after(STARTED, { type: "TEXT_MESSAGE_START", messageId: "m" }, { type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta: "once" });
  const again = apply(view, { number: 3, event: { type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta: "once" } });
  assert.equal(again, view);
});

test("a view is never changed in place", () => {
  const before = after(STARTED, { type: "TEXT_MESSAGE_START", messageId: "m" });
  const kept = structuredClone(before);
  apply(before, { number: 3, event: { type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta: "x" } });
  assert.deepEqual(before, kept);
});

test("the model is known before the first text", () => {
  const view = after(STARTED, { type: "STEP_STARTED", stepName: "answer", metadata: { dragoman: { model: "a:b" } } });
  assert.equal(live(view).model, "a:b");
});

test("thinking is open until it ends", () => {
  const open = after(STARTED, { type: "REASONING_MESSAGE_START", messageId: "m.0" }, { type: "REASONING_MESSAGE_CONTENT", messageId: "m.0", delta: "Hm." });
  assert.deepEqual(live(open).parts, [{ kind: "thinking", id: "m.0", text: "Hm.", isOpen: true }]);
  const ended = apply(open, { number: 9, event: { type: "REASONING_MESSAGE_END", messageId: "m.0" } });
  assert.deepEqual(live(ended).parts, [{ kind: "thinking", id: "m.0", text: "Hm.", isOpen: false }]);
});

test("a tool call has its arguments and result, between the text parts", () => {
  const view = after(
    STARTED,
    { type: "TEXT_MESSAGE_START", messageId: "m" },
    { type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta: "Before." },
    { type: "TOOL_CALL_START", toolCallId: "c", toolCallName: "read_file" },
    { type: "TOOL_CALL_ARGS", toolCallId: "c", delta: '{"path":' },
    { type: "TOOL_CALL_ARGS", toolCallId: "c", delta: '"a"}' },
    { type: "TOOL_CALL_END", toolCallId: "c" },
    { type: "TOOL_CALL_RESULT", toolCallId: "c", messageId: "x", content: [{ type: "text", text: "No." }], metadata: { dragoman: { is_error: true } } },
    { type: "TEXT_MESSAGE_START", messageId: "n" },
    { type: "TEXT_MESSAGE_CONTENT", messageId: "n", delta: "After." },
  );
  const [before, call, words] = live(view).parts;
  assert.equal(before?.kind === "text" && before.text, "Before.");
  assert.deepEqual(call, { kind: "call", id: "c", name: "read_file", input: '{"path":"a"}', isOpen: false, result: { text: "No.", images: [], isError: true }, problem: null });
  assert.equal(words?.kind === "text" && words.text, "After.");
});

test("the result of an approved call is added to the earlier answer", () => {
  const waiting = after(
    STARTED,
    { type: "TOOL_CALL_START", toolCallId: "c", toolCallName: "write_file" },
    { type: "TOOL_CALL_END", toolCallId: "c" },
    { type: "RUN_FINISHED", threadId: "t", runId: "r", outcome: { type: "interrupt", interrupts: [{ id: "int-c", reason: "tool_call", toolCallId: "c" }] } },
  );
  assert.deepEqual(waiting.interrupts.map((item) => item.id), ["int-c"]);
  assert.deepEqual(waiting.run, { state: "idle" });
  const stored: View = { ...waiting, items: waiting.items.map((item) => ({ ...item, id: "stored", seq: 2 })) };
  const resumed = [STARTED, { type: "TOOL_CALL_RESULT", toolCallId: "c", messageId: "x", content: "Done." } as Event].reduce((view, event, at) => apply(view, { number: 10 + at, event }), stored);
  const [item] = resumed.items;
  assert.equal(item?.kind === "answer" && item.parts[0]?.kind === "call" && item.parts[0].result?.text, "Done.");
  assert.deepEqual(resumed.interrupts, []);
});

test("a failed run keeps its text and reports a problem with advice", () => {
  const view = after(
    STARTED,
    { type: "REASONING_MESSAGE_START", messageId: "m.0" },
    { type: "TEXT_MESSAGE_START", messageId: "m" },
    { type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta: "Half" },
    { type: "RUN_ERROR", message: "gone", code: "interrupted" },
  );
  assert.deepEqual(view.run, { state: "idle" });
  assert.match(view.problem?.title ?? "", /stopped unexpectedly/);
  assert.deepEqual(view.problem?.actions, ["retry"]);
  assert.deepEqual(live(view).parts.map((part) => (part.kind === "thinking" ? part.isOpen : part.kind)), [false, "text"]);
});

test("the next run clears the problem of the last run", () => {
  const view = after(STARTED, { type: "RUN_ERROR", message: "no", code: "rate_limited" }, STARTED, FINISHED);
  assert.equal(view.problem, null);
  assert.equal(view.lastEvent, 4);
});

test("unknown events are ignored", () => {
  const view = after(STARTED, { type: "CUSTOM", name: "x", value: 1 }, { type: "STATE_SNAPSHOT", snapshot: {} } as unknown as Event, FINISHED);
  assert.deepEqual(view.items, []);
  assert.equal(view.lastEvent, 4);
});
