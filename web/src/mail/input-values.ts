// Conversion of form texts to the values that a letter requests.
// Invariant: a sensitive text is only used for the answer.
import type { RequestedInput } from "./types.ts";

export type FieldTexts = Record<string, string>; // by input id; an option by its index
export type ParseResult = { values: Record<string, unknown> } | { wrong: Record<string, string> };

// Initial texts of the fields. Sensitive defaults are not sent to the page.
export function initialTexts(inputs: readonly RequestedInput[]): FieldTexts {
  return Object.fromEntries(inputs.map((input) => [input.id, input.sensitive ? "" : textOf(input)]));
}

function textOf(input: RequestedInput): string {
  if (input.default === undefined || input.default === null) return input.type === "boolean" && isRequired(input) ? "false" : "";
  if (input.options) return String(Math.max(0, input.options.findIndex((option) => option === input.default)));
  return typeof input.default === "string" ? input.default : JSON.stringify(input.default);
}

export function isRequired(input: RequestedInput): boolean {
  return input.required !== false;
}

export function parseTexts(inputs: readonly RequestedInput[], texts: FieldTexts): ParseResult {
  const values: Record<string, unknown> = {};
  const wrong: Record<string, string> = {};
  for (const input of inputs) {
    const text = texts[input.id] ?? "";
    if (text === "") {
      if (isRequired(input) && !(input.sensitive && input.default !== undefined)) wrong[input.id] = "This field is required.";
      continue;
    }
    const value = valueOf(input, text);
    if (value === undefined) wrong[input.id] = input.type === "number" ? "Enter a number." : "Choose one of the options.";
    else values[input.id] = value;
  }
  return Object.keys(wrong).length ? { wrong } : { values };
}

function valueOf(input: RequestedInput, text: string): unknown {
  if (input.options) return input.options[Number(text)];
  switch (input.type) {
    case "number":
      return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : undefined;
    case "boolean":
      return text === "true";
    default:
      return text;
  }
}
