import assert from "node:assert/strict";
import { test } from "node:test";
import { initialTexts, parseTexts } from "../src/mail/input-values.ts";
import { linkTo, placeFrom, type Place } from "../src/mail/route.ts";
import { durationColumns, hasAny, range, scoreColumns, shortDuration, spanName } from "../src/mail/trend-series.ts";
import type { Letter, Mailbox, Span } from "../src/mail/types.ts";
import { countsOf, fits, summaryLine, flattenLists, sortMailboxes, describeCounts, isAvailable, kindOf, outcome, reasonText, retries, letterStatus } from "../src/mail/letter-text.ts";
import { routeFrom } from "../src/state/route.ts";

const NOW = new Date("2026-11-15T12:00:00Z");
const LATER = "2026-11-15T12:10:00Z";
const EARLIER = "2026-11-15T11:50:00Z";

function letter(changes: Partial<Letter> = {}, payload: Letter["letter"]["payload"] = {}): Letter {
  return {
    letter_id: "l1",
    recipient_id: "ARCH",
    sender_id: "CA",
    task_id: "TASK-1",
    type: "task_result",
    state: "ready",
    attempts: 0,
    taken_at: EARLIER,
    ended_at: null,
    leased_until: null,
    retry_at: null,
    error_class: null,
    waits_for: [],
    session_id: null,
    letter: { timestamp: EARLIER, payload },
    ...changes,
  };
}

// --- addresses -------------------------------------------------------------------------------------------------------

test("every mail page survives the round trip through the hash", () => {
  const places: Place[] = [
    { kind: "boxes" },
    { kind: "box", recipient: "HUMAN" },
    { kind: "task", task: "TASK-070C" },
    { kind: "letter", recipient: "ARCH", letter: "answer:a.b_c" },
    { kind: "dead" },
    { kind: "trends", by: "agent", name: null },
    { kind: "trends", by: "model", name: "openrouter:meta/llama 4?" },
    { kind: "trends", by: "agent", name: "CA" },
  ];
  for (const place of places) assert.deepEqual(placeFrom(routeFrom(linkTo(place)).id), place);
});

test("an unknown address opens the mailboxes", () => {
  for (const odd of [null, "", "box", "letter/ARCH", "nothing/at/all"]) assert.deepEqual(placeFrom(odd), { kind: "boxes" });
});

// --- status ---------------------------------------------------------------------------------------------------------

test("a letter has a status, and an expired lease is ignored", () => {
  const labels = [
    letter(),
    letter({ leased_until: LATER }),
    letter({ leased_until: EARLIER }),
    letter({ retry_at: LATER }),
    letter({ state: "behind" }),
    letter({ state: "away" }),
    letter({ state: "done" }),
    letter({ state: "dead" }),
  ].map((item) => letterStatus(item, NOW).label);
  assert.deepEqual(labels, ["waiting", "leased", "waiting", "retry", "queued", "in transit", "done", "dead"]);
});

test("a held letter names the tasks that it waits for", () => {
  assert.equal(letterStatus(letter({ state: "held", waits_for: ["A"] }), NOW).why, "until A has succeeded");
  assert.equal(letterStatus(letter({ state: "held", waits_for: ["A", "B", "C"] }), NOW).why, "until A, B and C have succeeded");
  assert.deepEqual(letterStatus(letter({ state: "away", waits_for: ["A"] }), NOW).label, "held");
});

test("only a ready letter without a lease is available", () => {
  const free = [letter(), letter({ leased_until: LATER }), letter({ retry_at: LATER }), letter({ state: "behind" }), letter({ state: "done" })].map((item) => isAvailable(item, NOW));
  assert.deepEqual(free, [true, false, false, false, false]);
});

// --- summaries -------------------------------------------------------------------------------------------------------

test("each kind of letter has its own summary", () => {
  const result = letter({}, { status: "partial_success", result: { output: "half\n done" } });
  const answer = letter({}, { status: "success", result: { output: "Input given", inputs: { key: "***" } } });
  const error = letter({ type: "error" }, { code: "X", message: "It broke" });
  const question = letter({ type: "needs_input" }, { requested_inputs: [{ id: "a", type: "string", description: "Which?" }] });
  assert.deepEqual([result, answer, error, question, letter({ type: "new" })].map(kindOf), ["result", "answer", "error", "question", "letter"]);
  assert.deepEqual([result, answer, error, question].map(summaryLine), ["half done", "Input given", "It broke", "Which?"]);
  assert.deepEqual(outcome(result.letter.payload), { label: "partial success", isGood: false });
  assert.equal(outcome(answer.letter.payload), null);
});

test("the filter matches any words of a letter", () => {
  const item = letter({}, { result: { output: "Lantern is built" } });
  assert.deepEqual(["", "ca lantern", "task-1", "nothing"].map((words) => fits(item, words)), [true, true, true, false]);
});

test("retries are the larger count of sender and recipient", () => {
  assert.equal(retries(letter({ attempts: 1 })), 0);
  assert.equal(retries(letter({ attempts: 3 })), 2);
  assert.equal(retries({ ...letter(), letter: { timestamp: EARLIER, retry_count: 4, payload: {} } }), 4);
});

test("lists of plain values are joined into one line", () => {
  assert.deepEqual(flattenLists({ a: ["x", 1, null], b: [{ c: 1 }], d: "e" }), { a: "x, 1, ", b: [{ c: 1 }], d: "e" });
});

test("reason codes have texts, unknown codes too", () => {
  assert.equal(reasonText("retries_exhausted"), "The retry limit is reached");
  assert.equal(reasonText("some_new_code"), "Some new code");
});

// --- mailboxes -------------------------------------------------------------------------------------------------------

function box(recipient_id: string, changes: Partial<Mailbox> = {}): Mailbox {
  return { recipient_id, ready: 0, leased: 0, waiting: 0, behind: 0, held: 0, away: 0, done: 0, dead: 0, newest_at: null, ...changes };
}

test("mailbox counts are summarized, with the mailbox for people first", () => {
  const boxes = [box("A", { ready: 2, behind: 1, done: 9 }), box("HUMAN", { waiting: 1, dead: 3 }), box("0", { away: 1 })];
  assert.equal(describeCounts(countsOf(boxes)), "3 waiting · 1 held · 1 to retry · 3 dead");
  assert.equal(describeCounts(countsOf([])), "no open letters");
  assert.deepEqual(sortMailboxes(boxes).map((item) => item.recipient_id), ["HUMAN", "0", "A"]);
});

// --- requested inputs -------------------------------------------------------------------------------------------------

const INPUTS = [
  { id: "key", type: "string", description: "Key", sensitive: true, default: "***" },
  { id: "pin", type: "string", description: "Pin", sensitive: true },
  { id: "where", type: "enum", description: "Where", options: ["a", 2], default: 2 },
  { id: "many", type: "number", description: "How many", required: false },
  { id: "sure", type: "boolean", description: "Sure?" },
];

test("fields start with their defaults, except sensitive fields", () => {
  assert.deepEqual(initialTexts(INPUTS), { key: "", pin: "", where: "1", many: "", sure: "false" });
});

test("texts are parsed into values of the requested types", () => {
  assert.deepEqual(parseTexts(INPUTS, { key: "s3", pin: "007", where: "1", many: "2.5", sure: "true" }), { values: { key: "s3", pin: "007", where: 2, many: 2.5, sure: true } });
});

test("missing and invalid fields are reported, and defaults need no input", () => {
  assert.deepEqual(parseTexts(INPUTS, { ...initialTexts(INPUTS), many: "two" }), { wrong: { pin: "This field is required.", many: "Enter a number." } });
});

// --- trends ----------------------------------------------------------------------------------------------------------

const SPANS: Span[] = [
  { at: "2026-11-13T00:00:00Z", count: 2, average_score: 0.5, success_rate: null, p50_ms: null, p95_ms: null },
  { at: "2026-11-15T00:00:00Z", count: 1, average_score: null, success_rate: 1, p50_ms: null, p95_ms: null },
];

test("spans become chart columns with gaps for missing values", () => {
  const [times, ...lines] = scoreColumns(SPANS);
  assert.deepEqual(times.map((time) => spanName(time, "day")), ["Nov 13", "Nov 15"]);
  assert.deepEqual(lines, [[0.5, null], [null, 1]]);
  assert.deepEqual([hasAny(scoreColumns(SPANS)), hasAny(durationColumns(SPANS))], [true, false]);
});

test("a single point is centred in the chart", () => {
  const columns = scoreColumns(SPANS.slice(0, 1));
  const [from, to] = range(columns, "day");
  assert.equal((from + to) / 2, columns[0][0]);
  assert.ok(to > from);
});

test("axis labels of durations are short", () => {
  assert.deepEqual([0, 250, 30_000, 90_000, 5_400_000].map(shortDuration), ["0", "250 ms", "30 s", "1.5 min", "1.5 h"]);
});
