// Pure reducer from run events to the view: apply(view, event) -> view.
//
// The content of a run accumulates in one live answer until stored messages replace it (stored-messages.ts).
// Invariant: an event is applied once; an event with a number that was already applied changes nothing.
import { runProblem } from "../api/error-messages.ts";
import type { Event } from "../api/types.ts";
import type { AnswerItem, CallPart, Item, Part, Result, View } from "./view-model.ts";

export const LIVE = "live";

export interface NumberedEvent {
  number: number | null; // null: not numbered by the server
  event: Event;
}

export function apply(view: View, { number, event }: NumberedEvent): View {
  if (number !== null && number <= view.lastEvent) return view;
  const next = reduce(view, event);
  return number === null ? next : { ...next, lastEvent: number };
}

function reduce(view: View, event: Event): View {
  switch (event.type) {
    case "RUN_STARTED":
      return { ...view, run: { state: "running", runId: event.runId }, interrupts: [], problem: null };
    case "RUN_FINISHED":
      return {
        ...finishRun(view),
        interrupts: event.outcome?.type === "interrupt" ? event.outcome.interrupts : [],
      };
    case "RUN_ERROR":
      return { ...finishRun(view), problem: runProblem(event.code ?? null, event.message) };
    case "STEP_STARTED":
      return withModel(view, event.metadata?.dragoman?.model ?? null);
    case "TEXT_MESSAGE_START":
      return event.role === "user" ? view : withPart(view, { kind: "text", id: event.messageId, text: "" });
    case "TEXT_MESSAGE_CONTENT":
      return updatePart(view, "text", event.messageId, (part) => ({ ...part, text: part.text + event.delta }));
    case "REASONING_MESSAGE_START":
      return withPart(view, { kind: "thinking", id: event.messageId, text: "", isOpen: true });
    case "REASONING_MESSAGE_CONTENT":
      return updatePart(view, "thinking", event.messageId, (part) => ({ ...part, text: part.text + event.delta }));
    case "REASONING_MESSAGE_END":
      return updatePart(view, "thinking", event.messageId, (part) => ({ ...part, isOpen: false }));
    case "TOOL_CALL_START":
      return withPart(view, newCall(event.toolCallId, event.toolCallName));
    case "TOOL_CALL_ARGS":
      return updatePart(view, "call", event.toolCallId, (part) => ({ ...part, input: part.input + event.delta }));
    case "TOOL_CALL_END":
      return updatePart(view, "call", event.toolCallId, (part) => ({ ...part, isOpen: false }));
    case "TOOL_CALL_RESULT":
      return updatePart(view, "call", event.toolCallId, (part) => ({ ...part, result: resultOf(event) }));
    default:
      return view;
  }
}

// A message may continue after a tool call: the following text is a new part.
function withPart(view: View, part: Part): View {
  const live = view.items.at(-1);
  if (live?.kind === "answer" && live.id === LIVE) {
    return { ...view, items: [...view.items.slice(0, -1), { ...live, parts: [...live.parts, part] }] };
  }
  return { ...view, items: [...view.items, liveAnswer([part])] };
}

// A model call starts: its content goes into the live answer, labelled with the first model.
function withModel(view: View, model: string | null): View {
  const live = view.items.at(-1);
  if (live?.kind === "answer" && live.id === LIVE) return view;
  return { ...view, items: [...view.items, { ...liveAnswer([]), model }] };
}

export function liveAnswer(parts: Part[]): AnswerItem {
  return { kind: "answer", id: LIVE, seq: null, parts, model: null, why: null, receipt: null, omitted: 0, status: "live", fault: null, at: null };
}

type PartOf<Kind extends Part["kind"]> = Extract<Part, { kind: Kind }>;

// Updates the newest part of that kind and id in any answer: the result of an approved call belongs to the answer of an
// earlier run.
function updatePart<Kind extends Part["kind"]>(
  view: View,
  kind: Kind,
  id: string,
  change: (part: PartOf<Kind>) => Part,
): View {
  for (let at = view.items.length - 1; at >= 0; at--) {
    const item = view.items[at] as Item;
    if (item.kind !== "answer") continue;
    const place = item.parts.findLastIndex((part) => part.kind === kind && part.id === id);
    if (place < 0) continue;
    const parts = item.parts.with(place, change(item.parts[place] as PartOf<Kind>));
    return { ...view, items: view.items.with(at, { ...item, parts }) };
  }
  return view;
}

function newCall(id: string, name: string): CallPart {
  return { kind: "call", id, name, input: "", isOpen: true, result: null, problem: null };
}

function resultOf({ content, metadata }: Extract<Event, { type: "TOOL_CALL_RESULT" }>): Result {
  const text = typeof content === "string" ? content : content.map((part) => part.text ?? `[${part.type}]`).join("\n");
  return { text, images: [], isError: metadata?.dragoman?.is_error ?? false };
}

function finishRun(view: View): View {
  const items = view.items.map((item) => (item.kind === "answer" && item.id === LIVE ? closeParts(item) : item));
  return { ...view, items, run: { state: "idle" } };
}

function closeParts(item: AnswerItem): AnswerItem {
  const parts = item.parts.map((part) => ("isOpen" in part && part.isOpen ? { ...part, isOpen: false } : part));
  return { ...item, parts };
}
