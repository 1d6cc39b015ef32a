// What the page shows of a conversation, as one value.
// The one rule: a view is never changed in place, so that whoever drew an older one can tell what is new.
import type { Interrupt, Place } from "../api/types.ts";

export interface TextPart {
  kind: "text";
  id: string;
  text: string;
}

export interface ThinkingPart {
  kind: "thinking";
  id: string;
  text: string;
  isOpen: boolean; // it still arrives
}

export interface CallPart {
  kind: "call";
  id: string;
  name: string;
  input: string; // JSON text, as far as it arrived
  isOpen: boolean;
  result: Result | null;
  problem: string | null; // why this call cannot be run at all
}

export interface Result {
  text: string;
  images: string[];
  isError: boolean;
}

export interface ImagePart {
  kind: "image";
  id: string;
  url: string;
}

export interface NotePart {
  kind: "note"; // something that has no words of its own
  id: string;
  text: string;
}

export type Part = TextPart | ThinkingPart | CallPart | ImagePart | NotePart;

export interface Receipt {
  input: number; // caches included
  cached: number;
  output: number;
  reasoning: number;
  usd: number | null;
  isUnpriced: boolean; // no price was known
  latencyMs: number | null;
}

// A picture or another file of a message: where it is kept, or, before the server has said, a URL of this page.
export interface Enclosure {
  place: Place | null;
  url: string | null;
  mime: string;
  name: string | null;
}

export interface UserItem {
  kind: "user";
  id: string;
  seq: number | null; // null: not known to be stored
  text: string;
  enclosures: Enclosure[];
  at: string | null;
}

export interface AnswerItem {
  kind: "answer";
  id: string;
  seq: number | null;
  parts: Part[];
  model: string | null;
  why: string | null; // why this model
  receipt: Receipt | null;
  status: string; // "complete", "partial", "error", …
  at: string | null;
}

export interface SystemItem {
  kind: "system";
  id: string;
  seq: number | null;
  text: string;
}

export type Item = UserItem | AnswerItem | SystemItem;

export type RunState =
  | { state: "idle" }
  | { state: "starting"; runId: string } // asked for, and no event has come
  | { state: "running"; runId: string }
  | { state: "lost"; runId: string; attempt: number } // the connection is gone, the run may go on
  | { state: "stopping"; runId: string };

export interface Problem {
  title: string;
  advice: string;
  code: string | null;
  requestId: string | null;
}

export interface View {
  threadId: string;
  items: Item[];
  hasEarlier: boolean;
  isLoading: boolean;
  run: RunState;
  interrupts: Interrupt[];
  problem: Problem | null;
  lastEvent: number; // the number of the last event that was applied
  spent: string | null; // in this conversation, in words; what a fork shares was spent elsewhere
}

export function emptyView(threadId: string, isLoading = false): View {
  return {
    threadId,
    items: [],
    hasEarlier: false,
    isLoading,
    run: { state: "idle" },
    interrupts: [],
    problem: null,
    lastEvent: 0,
    spent: null,
  };
}

export function isBusy(view: View): boolean {
  return view.run.state !== "idle";
}
