// Lines of a diff with their kinds.
export interface DiffLine {
  kind: "" | "added" | "removed" | "hunk";
  text: string;
}

export function isDiff(language: string): boolean {
  return /^(diff|patch)$/i.test(language);
}

// Invariant: the texts, joined with line feeds, equal the code.
export function diffLines(code: string): DiffLine[] {
  return code.split("\n").map((text) => ({ kind: kindOf(text), text }));
}

function kindOf(line: string): DiffLine["kind"] {
  if (/^(@@|diff |index |--- |\+\+\+ )/.test(line)) return "hunk";
  return line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
}
