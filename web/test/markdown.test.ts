import assert from "node:assert/strict";
import { test } from "node:test";
import { diffLines } from "../src/lib/diff.ts";
import { EXTENSIONS } from "../src/lib/markdown-extensions.ts";
import { parseMarkdown, type ParsedMarkdown } from "../src/lib/markdown.ts";
import { Marked } from "marked";

const TEXTS = [
  "# A\n\nb\n===\n\n- one\n- two\n\n  more\n\n3. three\n\n> quote\nlazy\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n\n```\n\nend",
  "\n\n  text\r\nmore\r\n\r\n***\n\n<b>\nhtml\n\n</b>\n\n    code\n\n    code\n\nz",
  "Sum:\n$$\n\\sum_i x_i\n$$\nand $a+b$, \\(c\\), $5 and $6[^1]\n\n\\[\nd\n\\]\n\n[^1]: A *note*\n  goes on\n[^2]: another\n\n$$ open\n\nend",
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

test("formulas and footnotes are found, and amounts of money are not formulas", () => {
  const marked = new Marked({ extensions: EXTENSIONS });
  const html = (text: string) => marked.parse(text, { async: false }).trim();
  assert.equal(html("so $a_1 < b$ holds"), '<p>so <span class="math">a_1 &#60; b</span> holds</p>');
  assert.equal(html("$$\nx\n$$"), '<p class="math display" tabindex="0">x</p>');
  assert.equal(html("\\(x\\) and \\[y\\]"), '<p><span class="math">x</span> and [y]</p>');
  assert.equal(html("from $5 to $10, or $ 3 $"), "<p>from $5 to $10, or $ 3 $</p>");
  assert.equal(html("`$a$` and \\$b$"), "<p><code>$a$</code> and $b$</p>");
  assert.match(html("see[^n]\n\n[^n]: the *note*"), /data-note="n".*\n<p class="footnote-text" tabindex="-1" data-note-text="n"><sup>n<\/sup> the <em>note<\/em><\/p>/s);
});

test("the lines of a diff have kinds", () => {
  assert.deepEqual(diffLines("@@ -1 +1 @@\n-a\n+b\n c").map(({ kind }) => kind), ["hunk", "removed", "added", ""]);
});
