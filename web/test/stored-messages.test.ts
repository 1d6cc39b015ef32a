import assert from "node:assert/strict";
import { test } from "node:test";
import { liveAnswer } from "../src/state/reducer.ts";
import { itemsFrom, MAX_ITEMS, receiptOf, replaceWithStored, trim, withRows } from "../src/state/stored-messages.ts";
import { emptyView } from "../src/state/view-model.ts";
import type { Block, Row } from "../src/api/types.ts";

const at = "2026-05-08T12:30:15Z";

function row(seq: number, role: string, content: Block[], metadata: Row["message"]["metadata"] = {}): Row {
  return { seq, message: { id: `m${seq}`, role, content, metadata, created_at: at } };
}

const text = (words: string): Block => ({ type: "text", text: words });

test("a tool result is shown with its call, not as an item", () => {
  const items = itemsFrom([
    row(1, "user", [text("What?")]),
    row(2, "assistant", [text("I look."), { type: "tool_use", id: "c", name: "read_file", input: { path: "a" } }]),
    row(3, "tool", [{ type: "tool_result", tool_use_id: "c", content: [text("# Foo")] }]),
    row(4, "assistant", [text("Foo.")]),
  ]);
  assert.deepEqual(items.map((item) => [item.kind, item.seq]), [["user", 1], ["answer", 2], ["answer", 4]]);
  const call = items[1]?.kind === "answer" ? items[1].parts[1] : null;
  assert.equal(call?.kind === "call" && call.input, '{"path":"a"}');
  assert.deepEqual(call?.kind === "call" && call.result, { text: "# Foo", images: [], isError: false });
});

test("a result on a later page completes an earlier call", () => {
  const first = withRows(emptyView("t"), [row(2, "assistant", [{ type: "tool_use", id: "c", name: "x", input: {} }])]);
  const view = withRows(first, [row(3, "tool", [{ type: "tool_result", tool_use_id: "c", content: [text("no")], is_error: true }])]);
  const [item] = view.items;
  const call = item?.kind === "answer" ? item.parts[0] : null;
  assert.equal(call?.kind === "call" && call.result?.isError, true);
});

test("stored messages replace streamed content, and a repeated page adds nothing", () => {
  const streaming = { ...emptyView("t"), items: [liveAnswer([{ kind: "text" as const, id: "x", text: "Fo" }])] };
  const rows = [row(1, "user", [text("What?")]), row(2, "assistant", [text("Foo.")])];
  const view = replaceWithStored(withRows(streaming, rows), rows);
  assert.deepEqual(view.items.map((item) => item.seq), [1, 2]);
});

test("streamed content stays after an earlier page", () => {
  const asked = { kind: "user" as const, id: "m3", seq: null, text: "?", attachments: [], at: null };
  const streaming = { ...emptyView("t"), items: [asked, liveAnswer([])] };
  const view = withRows(streaming, [row(1, "user", [text("What?")]), row(3, "user", [text("?")])]);
  assert.deepEqual(view.items.map((item) => item.id), ["m1", "m3", "live"]);
});

test("earlier pages are inserted in order", () => {
  const view = withRows(withRows(emptyView("t"), [row(7, "user", [text("c")])]), [row(3, "user", [text("a")]), row(5, "user", [text("b")])], { hasEarlier: true });
  assert.deepEqual(view.items.map((item) => item.seq), [3, 5, 7]);
  assert.deepEqual([view.firstSeq, view.lastSeq, view.hasEarlier], [3, 7, true]);
});

test("attachments are shown, and the content of text files is not repeated", () => {
  const place = { bucket: "b", path: "p/x.txt", mime_type: "text/plain" };
  const [item] = itemsFrom([row(1, "user", [text("Look:"), text("x.txt:\n\ncontent")], { user_message_attachments: place })]);
  assert.equal(item?.kind === "user" && item.text, "Look:");
  assert.deepEqual(item?.kind === "user" && item.attachments, [{ place, url: null, mime: "text/plain", name: "x.txt" }]);
});

test("images from other hosts are never loaded", () => {
  const image: Block = { type: "image", media_type: "image/png", source: { kind: "url", data: "https://example.com/a.png" } };
  const [asked, answer] = itemsFrom([row(1, "user", [image]), row(2, "assistant", [image])]);
  assert.equal(asked?.kind === "user" && asked.attachments[0]?.url, null);
  assert.equal(answer?.kind === "answer" && answer.parts[0]?.kind, "note");
});

test("an invalid tool call has a problem text", () => {
  const [item] = itemsFrom([row(1, "assistant", [{ type: "invalid_tool_use", id: "c", name: "x", input_text: "{", reason: "cut off" }])]);
  const part = item?.kind === "answer" ? item.parts[0] : null;
  assert.deepEqual(part?.kind === "call" && [part.input, part.problem], ["{", "cut off"]);
});

test("a message has the id that its client has set", () => {
  assert.equal(itemsFrom([row(1, "user", [text("a")], { message_id: "mine" })])[0]?.id, "mine");
});

test("the input tokens of a receipt include cached tokens", () => {
  const receipt = receiptOf({ input_tokens: 10, cached_input_tokens: 90, cache_creation_input_tokens: 5, output_tokens: 7, cost_usd: "0.000092", latency_ms: 8 });
  assert.deepEqual(receipt, { input: 105, cached: 90, output: 7, reasoning: 0, usd: 0.000092, isUnpriced: false, isEstimated: false, latencyMs: 8 });
  const unpriced = receiptOf({ input_tokens: 1, output_tokens: 2, cost_usd: null, state: "unpriced" });
  assert.deepEqual([unpriced.usd, unpriced.isUnpriced], [null, true]);
});

test("a result that was loaded before its call is shown with the call", () => {
  const later = withRows(emptyView("t"), [row(3, "tool", [{ type: "tool_result", tool_use_id: "c", content: [text("yes")] }]), row(4, "user", [text("?")])]);
  const view = withRows(later, [row(2, "assistant", [{ type: "tool_use", id: "c", name: "x", input: {} }])]);
  const call = view.items[0]?.kind === "answer" ? view.items[0].parts[0] : null;
  assert.equal(call?.kind === "call" ? call.result?.text : null, "yes");
});

test("a view keeps at most MAX_ITEMS items and knows that the others exist", () => {
  const rows = Array.from({ length: MAX_ITEMS + 10 }, (_, at) => row(at + 1, "user", [text(String(at))]));
  const full = withRows(emptyView("t"), rows);
  const end = trim(full, "start");
  assert.deepEqual([end.firstSeq, end.lastSeq, end.hasEarlier, end.hasLater], [11, MAX_ITEMS + 10, true, false]);
  const start = trim(full, "end");
  assert.deepEqual([start.firstSeq, start.lastSeq, start.hasEarlier, start.hasLater], [1, MAX_ITEMS, false, true]);
});

test("a failed answer has its reason, and routing is described without commands", () => {
  const routing = { mode: "manual", reason: "session sticky model (/model)" };
  const [item] = itemsFrom([row(1, "assistant", [], { status: "error", routing, extra: { fault: { code: "rate_limited", message: "slow down" } } })]);
  assert.equal(item?.kind === "answer" && item.fault, "The rate limit of the provider is exceeded. “slow down”");
  assert.equal(item?.kind === "answer" && item.why, "You chose this model for the conversation");
});
