// Extensions of Markdown: math and footnotes. They only mark the places; math.ts renders the formulas.
//
// Invariant: no construct contains a blank line, so that a growing text can be parsed section by section.
import type { TokenizerAndRendererExtension, Tokens } from "marked";
import { escapeHtml } from "./escape.ts";

const BLOCK_MATH = /^ {0,3}(?:\$\$((?:(?!\n[ \t]*\n|\$\$)[^])+)\$\$|\\\[((?:(?!\n[ \t]*\n|\\\])[^])+)\\\])[ \t]*(?:\n+|$)/;
// As pandoc: no space inside of the signs, and no digit after them, so that amounts of money are no formulas.
const INLINE_MATH = /^(?:\$\$([^$`\n]+?)\$\$|\$(?![\s$])([^$`\n]*?[^\s$`\\])\$(?!\d)|\\\(((?:(?!\n[ \t]*\n|\\\))[^])+)\\\))/;
const FOOTNOTE_TEXT = /^ {0,3}\[\^([^\]\s]{1,40})\]:[ \t]+((?:[^\n]+(?:\n(?! {0,3}\[\^|[ \t]*(?:\n|$)))?)+)(?:\n+|$)/;
const FOOTNOTE_MARK = /^\[\^([^\]\s]{1,40})\](?!:)/;

interface MathToken extends Tokens.Generic {
  tex: string;
}

interface FootnoteToken extends Tokens.Generic {
  label: string;
}

const mathBlock: TokenizerAndRendererExtension = {
  name: "mathBlock",
  level: "block",
  start: (text) => text.match(/(?:^|\n) {0,3}(?:\$\$|\\\[)/)?.index,
  tokenizer(text) {
    const match = BLOCK_MATH.exec(text);
    return match ? { type: "mathBlock", raw: match[0], tex: match[1] ?? match[2] ?? "" } : undefined;
  },
  renderer: (token) => `<p class="math display" tabindex="0">${escapeHtml((token as MathToken).tex.trim())}</p>`,
};

const mathInline: TokenizerAndRendererExtension = {
  name: "mathInline",
  level: "inline",
  start: (text) => text.match(/\$|\\\(/)?.index,
  tokenizer(text) {
    const match = INLINE_MATH.exec(text);
    if (!match) return undefined;
    return { type: "mathInline", raw: match[0], tex: match[1] ?? match[2] ?? match[3] ?? "", isDisplay: match[1] !== undefined };
  },
  renderer: (token) => `<span class="math${token["isDisplay"] ? " display" : ""}">${escapeHtml((token as MathToken).tex.trim())}</span>`,
};

const footnoteText: TokenizerAndRendererExtension = {
  name: "footnoteText",
  level: "block",
  start: (text) => text.match(/(?:^|\n) {0,3}\[\^/)?.index,
  tokenizer(text) {
    const match = FOOTNOTE_TEXT.exec(text);
    if (!match) return undefined;
    return { type: "footnoteText", raw: match[0], label: match[1] ?? "", tokens: this.lexer.inlineTokens((match[2] ?? "").trim()) };
  },
  renderer(token) {
    const label = escapeHtml((token as FootnoteToken).label);
    return `<p class="footnote-text" tabindex="-1" data-note-text="${label}"><sup>${label}</sup> ${this.parser.parseInline(token.tokens ?? [])}</p>`;
  },
};

const footnoteMark: TokenizerAndRendererExtension = {
  name: "footnoteMark",
  level: "inline",
  start: (text) => text.match(/\[\^/)?.index,
  tokenizer(text) {
    const match = FOOTNOTE_MARK.exec(text);
    return match ? { type: "footnoteMark", raw: match[0], label: match[1] ?? "" } : undefined;
  },
  renderer(token) {
    const label = escapeHtml((token as FootnoteToken).label);
    return `<sup><button type="button" class="footnote" data-note="${label}" aria-label="Footnote ${label}">${label}</button></sup>`;
  },
};

export const EXTENSIONS = [mathBlock, mathInline, footnoteText, footnoteMark];

// Scrolls to the text of a footnote.
export function showFootnote(mark: Element): void {
  const label = mark.getAttribute("data-note");
  const texts = mark.closest(".prose")?.querySelectorAll<HTMLElement>("[data-note-text]") ?? [];
  const text = [...texts].find((element) => element.getAttribute("data-note-text") === label);
  text?.scrollIntoView({ block: "center" });
  text?.focus({ preventScroll: true });
}
