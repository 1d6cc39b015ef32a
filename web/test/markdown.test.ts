import assert from "node:assert/strict";
import { test } from "node:test";
import { parseMarkdown, type ParsedMarkdown } from "../src/lib/markdown.ts";

const TEXTS = [
  "# A\n\nb\n===\n\n- one\n- two\n\n  more\n\n3. three\n\n> quote\nlazy\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n\n```\n\nend",
  "\n\n  text\r\nmore\r\n\r\n***\n\n<b>\nhtml\n\n</b>\n\n    code\n\n    code\n\nz",
  "a\n\n\n\n1. x\n   ```\n   y\n\n   z\n   ```\n2. w\n\n~~~\nopen fence\n\nstays",
];

const outline = (parsed: ParsedMarkdown) => parsed.sections.map((section) => [section.start, section.token.type, section.raw.trimEnd()]);

test("incremental parsing equals parsing the whole text", () => {
  for (const text of TEXTS) {
    for (const step of [1, 2, 3, 7, 50]) {
      let parsed: ParsedMarkdown | null = null;
      for (let end = step; end < text.length + step; end += step) parsed = parseMarkdown(text.slice(0, end), parsed);
      assert.deepEqual(outline(parsed as ParsedMarkdown), outline(parseMarkdown(text)));
    }
  }
});

test("a changed text is parsed again", () => {
  assert.deepEqual(outline(parseMarkdown("# B\n\nc", parseMarkdown("# A\n\nb"))), outline(parseMarkdown("# B\n\nc")));
});
