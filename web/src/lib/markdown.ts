// Conversion of Markdown to safe HTML.
//
// HTML in Markdown is escaped. Images become links, because loading them would reveal that the answer was read. The result
// is sanitized with DOMPurify. Invariant: innerHTML is only set from the functions of this module.
import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import { diffLines, isDiff } from "./diff.ts";
import { escapeHtml } from "./escape.ts";
import { highlight } from "./highlight.ts";
import { EXTENSIONS } from "./markdown-extensions.ts";
import { previewKind } from "./preview.ts";

export { escapeHtml };

const COPY = '<button type="button" class="copy" data-copy>Copy</button>';

const marked = new Marked({
  gfm: true,
  breaks: false,
  extensions: EXTENSIONS,
  renderer: {
    html: ({ text }) => escapeHtml(text),
    image: ({ href, text }) => link(href, text || href),
    link({ href, tokens }) {
      return link(href, "", this.parser.parseInline(tokens));
    },
    code: ({ text, lang }) => codeBlock(text, lang?.split(/\s/)[0] ?? ""),
    table(token) {
      return `<div class="table" tabindex="0">${tableOf(this.parser, token)}</div>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

export interface Section {
  start: number; // offset in the text
  raw: string;
  token: Token;
}

export interface ParsedMarkdown {
  text: string;
  sections: Section[];
}

// Splits a text into top-level sections. If the text extends `before`, only the last two sections are parsed again: new
// text can still change those, for example continue a list.
export function parseMarkdown(source: string, before: ParsedMarkdown | null = null): ParsedMarkdown {
  const text = source.replace(/\r\n?/g, "\n");
  const kept = before && text.startsWith(before.text) ? before.sections.slice(0, -2) : [];
  const sections = [...kept];
  let at = (kept.length && before?.sections[kept.length]?.start) || 0;
  for (const token of marked.lexer(text.slice(at))) {
    if (token.type !== "space" && token.type !== "def") sections.push({ start: at, raw: token.raw, token });
    at += token.raw.length;
  }
  return { text, sections };
}

export function safeHtml({ token }: Section): string {
  return DOMPurify.sanitize(marked.parser([token]), { FORBID_TAGS: ["style", "img", "form", "input", "svg", "math"], FORBID_ATTR: ["style", "id", "name"], ADD_ATTR: ["target"] });
}

export function codeBlock(text: string, language: string): string {
  const code = text.replace(/\n$/, "");
  const pieces = highlight(code, language).map(({ kind, text: words }) => (kind ? `<span class="hl-${kind}">${escapeHtml(words)}</span>` : escapeHtml(words)));
  const inner = isDiff(language) ? diffLines(code).map(diffLine).join("\n") : pieces.join("");
  const kind = previewKind(language);
  const preview = kind ? `<button type="button" class="copy" data-preview="${kind}" aria-pressed="false">Preview</button>` : "";
  return `<figure class="code"><figcaption><span>${escapeHtml(language || "text")}</span><span class="row">${preview}${COPY}</span></figcaption><pre tabindex="0"><code>${inner}</code></pre></figure>`;
}

function diffLine({ kind, text }: { kind: string; text: string }): string {
  return kind ? `<span class="diff-${kind}">${escapeHtml(text)}</span>` : escapeHtml(text);
}

function link(href: string, text: string, inner = escapeHtml(text)): string {
  if (!/^(https?:|mailto:)/i.test(href)) return inner;
  return `<a href="${escapeHtml(href)}" target="_blank" rel="noopener noreferrer nofollow">${inner}</a>`;
}

type Parser = { parseInline: (tokens: Token[]) => string };

function tableOf(parser: Parser, { header, rows, align }: Tokens.Table): string {
  const cells = (tag: string, row: Tokens.TableCell[]) =>
    row.map((cell, at) => `<${tag}${align[at] ? ` align="${align[at]}"` : ""}>${parser.parseInline(cell.tokens)}</${tag}>`).join("");
  const body = rows.map((row) => `<tr>${cells("td", row)}</tr>`).join("");
  return `<table><thead><tr>${cells("th", header)}</tr></thead><tbody>${body}</tbody></table>`;
}
