// What a letter asks for: from what somebody typed to the values that are sent.
// The one rule: what is typed for something sensitive goes into the answer, and nowhere else.
import type { RequestedInput } from "./types.ts";

export type Typed = Record<string, string>; // by the ids of the inputs; an option by its place
export type Read = { values: Record<string, unknown> } | { wrong: Record<string, string> };

// What stands in the fields before anybody has typed. A default that is sensitive is not known here.
export function beginning(inputs: readonly RequestedInput[]): Typed {
  return Object.fromEntries(inputs.map((one) => [one.id, one.sensitive ? "" : textOf(one)]));
}

function textOf(input: RequestedInput): string {
  if (input.default === undefined || input.default === null) return input.type === "boolean" && isRequired(input) ? "false" : "";
  if (input.options) return String(Math.max(0, input.options.findIndex((option) => option === input.default)));
  return typeof input.default === "string" ? input.default : JSON.stringify(input.default);
}

export function isRequired(input: RequestedInput): boolean {
  return input.required !== false;
}

export function read(inputs: readonly RequestedInput[], typed: Typed): Read {
  const values: Record<string, unknown> = {};
  const wrong: Record<string, string> = {};
  for (const input of inputs) {
    const text = typed[input.id] ?? "";
    if (text === "") {
      if (isRequired(input) && !(input.sensitive && input.default !== undefined)) wrong[input.id] = "This is needed.";
      continue;
    }
    const value = valueOf(input, text);
    if (value === undefined) wrong[input.id] = input.type === "number" ? "This has to be a number." : "This is none of the options.";
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
