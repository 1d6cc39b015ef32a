// Markdown as HTML that can do no harm.
//
// HTML inside of Markdown is shown and not obeyed; a picture becomes a link, since showing it would tell somebody that it
// was shown; what is left goes through DOMPurify all the same. The one rule: nothing reaches innerHTML but from here.
import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import { highlight } from "./highlight.ts";

const COPY = '<button type="button" class="copy" data-copy>Copy</button>';

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    html: ({ text }) => escaped(text),
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
  start: number; // where in the text
  raw: string;
  token: Token;
}

export interface Cut {
  text: string;
  sections: Section[];
}

// The text cut at its top level. Of a text that has grown, only its end is read again: what comes may still belong to the
// last two sections (a line may turn out to go on a list), and changes none before them.
export function cut(given: string, before: Cut | null = null): Cut {
  const text = given.replace(/\r\n?/g, "\n");
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
  const pieces = highlight(text.replace(/\n$/, ""), language).map(({ kind, text: words }) =>
    kind ? `<span class="hl-${kind}">${escaped(words)}</span>` : escaped(words),
  );
  return `<figure class="code"><figcaption><span>${escaped(language || "text")}</span>${COPY}</figcaption><pre tabindex="0"><code>${pieces.join("")}</code></pre></figure>`;
}

function link(href: string, text: string, inner = escaped(text)): string {
  if (!/^(https?:|mailto:)/i.test(href)) return inner;
  return `<a href="${escaped(href)}" target="_blank" rel="noopener noreferrer nofollow">${inner}</a>`;
}

type Parser = { parseInline: (tokens: Token[]) => string };

function tableOf(parser: Parser, { header, rows, align }: Tokens.Table): string {
  const cells = (tag: string, row: Tokens.TableCell[]) =>
    row.map((cell, at) => `<${tag}${align[at] ? ` align="${align[at]}"` : ""}>${parser.parseInline(cell.tokens)}</${tag}>`).join("");
  const body = rows.map((row) => `<tr>${cells("td", row)}</tr>`).join("");
  return `<table><thead><tr>${cells("th", header)}</tr></thead><tbody>${body}</tbody></table>`;
}

export function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}
