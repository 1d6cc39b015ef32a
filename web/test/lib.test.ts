import assert from "node:assert/strict";
import { test } from "node:test";
import { dollars, duration, era, modelName, prettyJson, shortTokens, spent, stripMarkdown } from "../src/lib/format.ts";
import { highlight } from "../src/lib/highlight.ts";
import { ulid } from "../src/lib/ulid.ts";
import { hashOf, routeFrom } from "../src/state/route.ts";
import { series } from "../src/lib/cost-series.ts";

test("amounts keep two significant digits", () => {
  assert.deepEqual([0, 12.5, 0.37, 0.0123, 0.000092, 1e-9].map(dollars), ["$0.00", "$12.50", "$0.37", "$0.012", "$0.000092", "< $0.000001"]);
});

test("times and numbers are formatted short", () => {
  assert.deepEqual([8, 2610, 61_000].map(duration), ["8 ms", "2.6 s", "1 min 1 s"]);
  assert.deepEqual([512, 8192, 200_000, 1_000_000].map(shortTokens), ["512", "8.2k", "200k", "1M"]);
  assert.equal(modelName("anthropic:claude-sonnet-4-6"), "claude-sonnet-4-6");
  assert.equal(stripMarkdown("# A **bold** `word`"), "A bold word");
});

test("incomplete JSON is returned unchanged", () => {
  assert.equal(prettyJson('{"a":'), '{"a":');
  assert.equal(prettyJson('{"a":1}'), '{\n  "a": 1\n}');
});

test("conversations are grouped by day", () => {
  const now = new Date(2026, 4, 8, 12);
  const days = [0, 1, 3, 40].map((ago) => era(new Date(2026, 4, 8 - ago, 9), now));
  assert.deepEqual(days, ["Today", "Yesterday", "This week", "March 2026"]);
});

test("a route survives the round trip through the hash", () => {
  for (const id of ["sess_1", "a:b.c-d", "帮我", "a/b?c#d %"]) {
    const route = { page: "", id, at: "m 1", seq: 7 };
    assert.deepEqual(routeFrom(hashOf(route)), route);
  }
  assert.deepEqual(routeFrom("#/costs"), { page: "costs", id: null, at: null, seq: null });
  assert.deepEqual(routeFrom("#/thread/%"), { page: "", id: "%", at: null, seq: null });
  assert.deepEqual(routeFrom(""), { page: "", id: null, at: null, seq: null });
});

test("ids sort by creation time", () => {
  const [early, late] = [ulid(1_700_000_000_000), ulid(1_700_000_000_001)];
  assert.ok(early < late);
  assert.match(early, /^[0-9A-HJKMNP-TV-Z]{26}$/);
});

test("highlighted pieces concatenate to the code", () => {
  const codes = ['def f(a: int) -> None:\n    "x" # y\n    return 0x1F + 1.5e3', "const a = `b${c}`; // d\n/* e", "SELECT 'a' -- b", '{"a": [1, true]}', "'unclosed", "😀 \\ \u2028"];
  for (const code of codes) {
    for (const language of ["python", "ts", "sql", "json", "rust", "bash", "nothing"]) {
      assert.equal(highlight(code, language).map((piece) => piece.text).join(""), code);
    }
  }
  assert.deepEqual(highlight("return 1", "py").map((piece) => piece.kind), ["keyword", "", "number"]);
});

test("long text is highlighted in linear time", () => {
  const long = '"'.repeat(20_000) + "/*".repeat(5_000);
  assert.equal(highlight(long, "js").map((piece) => piece.text).join(""), long);
});

test("unpriced answers are counted separately, not as zero", () => {
  assert.deepEqual([spent("0.5", 0, 2), spent("0.5", 1, 2), spent("0", 2, 2)], ["$0.50", "$0.50 + 1 unpriced", "unpriced"]);
});

test("days without costs have a slot without a bar", () => {
  const total = { messages: 1, inputTokens: 1, cachedInputTokens: 0, cacheCreationInputTokens: 0, outputTokens: 1, unpriced: 0 };
  const [times, amounts] = series([{ group: "2026-05-08", costUsd: "0.5", ...total }, { group: "2026-05-01", costUsd: "1", ...total }]);
  assert.equal(times.length, 8);
  assert.deepEqual([amounts[0], amounts[1], amounts[7]], [1, null, 0.5]);
  assert.deepEqual(series([]), [[], []]);
});
