import assert from "node:assert/strict";
import { test } from "node:test";
import { cut, type Cut } from "../src/lib/markdown.ts";

const TEXTS = [
  "# A\n\nb\n===\n\n- one\n- two\n\n  more\n\n3. three\n\n> quote\nlazy\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n\n```\n\nend",
  "\n\n  text\r\nmore\r\n\r\n***\n\n<b>\nhtml\n\n</b>\n\n    code\n\n    code\n\nz",
  "a\n\n\n\n1. x\n   ```\n   y\n\n   z\n   ```\n2. w\n\n~~~\nopen fence\n\nstays",
];

const told = (made: Cut) => made.sections.map((section) => [section.start, section.token.type, section.raw.trimEnd()]);

test("a text that grows is cut as it would be all at once", () => {
  for (const text of TEXTS) {
    for (const step of [1, 2, 3, 7, 50]) {
      let made: Cut | null = null;
      for (let end = step; end < text.length + step; end += step) made = cut(text.slice(0, end), made);
      assert.deepEqual(told(made as Cut), told(cut(text)));
    }
  }
});

test("a text that has changed is cut anew", () => {
  assert.deepEqual(told(cut("# B\n\nc", cut("# A\n\nb"))), told(cut("# B\n\nc")));
});
