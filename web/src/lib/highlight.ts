// Approximate syntax highlighting: comments, strings, numbers and keywords.
// Invariant: the concatenated texts of all pieces equal the code.

export interface Piece {
  kind: "" | "comment" | "string" | "number" | "keyword" | "name";
  text: string;
}

const KEYWORDS: Record<string, string> = {
  python:
    "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield",
  javascript:
    "async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof interface let new null of readonly return static super switch this throw true try type typeof undefined var void while yield",
  c: "auto bool break case catch char class const continue default delete do double else enum extern false float fn for func go if impl import int interface let long match mod move mut namespace new nil null package pub return self short sizeof static struct super switch template this throw true try type typedef union unsigned use using var virtual void where while",
  shell: "case do done elif else esac export fi for function if in local return then until while",
  sql: "and as asc between by case create delete desc distinct drop else end exists from full group having in index inner insert into is join left like limit not null on or order outer primary references right select set table then union unique update values when where with",
  json: "true false null",
};

const FAMILIES: Record<string, string> = {
  py: "python", python: "python", python3: "python",
  js: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript", javascript: "javascript", typescript: "javascript", mjs: "javascript",
  c: "c", cpp: "c", "c++": "c", java: "c", kotlin: "c", go: "c", rust: "c", rs: "c", cs: "c", csharp: "c", swift: "c", php: "c", css: "c", scss: "c",
  sh: "shell", bash: "shell", shell: "shell", zsh: "shell", console: "shell",
  yaml: "shell", yml: "shell", toml: "shell", ini: "shell", ruby: "python", rb: "python", r: "python",
  sql: "sql", json: "json", jsonl: "json",
};

const HASHED = /#.*/y;
const SLASHED = /\/\/.*|\/\*[^]*?(?:\*\/|$)/y;
const DASHED = /--.*/y;
const STRING = /"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?/y;
const NUMBER = /\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b/y;
const WORD = /[A-Za-z_$][\w$]*/y;
const REST = /\s+|[^\sA-Za-z_$\d"'`#/-]+|[^]/y;
const MAX_CHARACTERS = 50_000; // longer code is not highlighted

export function highlight(code: string, language: string): Piece[] {
  const family = FAMILIES[language.toLowerCase()];
  if (family === undefined || code.length > MAX_CHARACTERS) return [{ kind: "", text: code }];
  const words = new Set(KEYWORDS[family]?.split(" "));
  const comments = family === "json" ? [] : family === "sql" ? [DASHED, SLASHED] : family === "python" || family === "shell" ? [HASHED] : [SLASHED];
  const kinds: [Piece["kind"], RegExp][] = [...comments.map((pattern): [Piece["kind"], RegExp] => ["comment", pattern]), ["string", STRING], ["number", NUMBER], ["name", WORD], ["", REST]];
  const pieces: Piece[] = [];
  for (let at = 0; at < code.length; ) {
    const [kind, text] = next(code, at, kinds);
    add(pieces, kind === "name" ? kindOfWord(text, words, code[at + text.length], family) : kind, text);
    at += text.length;
  }
  return pieces;
}

function next(code: string, at: number, kinds: [Piece["kind"], RegExp][]): [Piece["kind"], string] {
  for (const [kind, pattern] of kinds) {
    pattern.lastIndex = at;
    const match = pattern.exec(code)?.[0];
    if (match) return [kind, match];
  }
  return ["", code.charAt(at)];
}

function kindOfWord(word: string, words: ReadonlySet<string>, after: string | undefined, family: string): Piece["kind"] {
  if (words.has(family === "sql" ? word.toLowerCase() : word)) return "keyword";
  return after === "(" ? "name" : "";
}

function add(pieces: Piece[], kind: Piece["kind"], text: string): void {
  const last = pieces.at(-1);
  if (last?.kind === kind) last.text += text;
  else pieces.push({ kind, text });
}
