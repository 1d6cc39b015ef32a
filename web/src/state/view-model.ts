// The view of a conversation as one immutable value. Updates create a new value, so components can compare identities.
import type { Interrupt, Place, Versions } from "../api/types.ts";

export interface TextPart {
  kind: "text";
  id: string;
  text: string;
}

export interface ThinkingPart {
  kind: "thinking";
  id: string;
  text: string;
  isOpen: boolean; // still streaming
}

export interface CallPart {
  kind: "call";
  id: string;
  name: string;
  input: string; // JSON text received so far
  isOpen: boolean;
  result: Result | null;
  problem: string | null; // why the call cannot run
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
  kind: "note"; // content without text of its own
  id: string;
  text: string;
}

export type Part = TextPart | ThinkingPart | CallPart | ImagePart | NotePart;

export interface Receipt {
  input: number; // including cached tokens
  cached: number;
  output: number;
  reasoning: number;
  usd: number | null;
  isUnpriced: boolean; // no known price
  isEstimated: boolean; // the provider has not counted the tokens
  latencyMs: number | null;
}

// A file of a message: its storage location, or a local URL until the server has stored it.
export interface Attachment {
  place: Place | null;
  url: string | null;
  mime: string;
  name: string | null;
}

export interface UserItem {
  kind: "user";
  id: string;
  seq: number | null; // null: not stored yet
  text: string;
  attachments: Attachment[];
  at: string | null;
}

export interface AnswerItem {
  kind: "answer";
  id: string;
  seq: number | null;
  parts: Part[];
  model: string | null;
  why: string | null; // routing reason
  receipt: Receipt | null;
  omitted: number; // oldest messages that the model did not receive
  status: string; // "complete", "partial", "error", …
  fault: string | null; // why it failed
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
  | { state: "starting"; runId: string } // request sent, no event yet
  | { state: "running"; runId: string }
  | { state: "lost"; runId: string; attempt: number } // disconnected; the run may still be active
  | { state: "stopping"; runId: string };

// What the page can do about an error.
export type ProblemAction = "retry" | "model" | "pictures" | "providers" | "settings";

export interface Problem {
  title: string;
  advice: string;
  details: string | null; // the words of the provider
  actions: ProblemAction[];
  code: string | null;
  requestId: string | null;
}

export interface View {
  threadId: string;
  items: Item[];
  firstSeq: number; // range of the loaded messages; tool results in it are not items
  lastSeq: number;
  hasEarlier: boolean;
  hasLater: boolean;
  results: ReadonlyMap<string, Result>; // tool results by call, also of calls that are not loaded
  isLoading: boolean;
  run: RunState;
  interrupts: Interrupt[];
  problem: Problem | null;
  lastEvent: number; // number of the last applied event
  versions: Versions[]; // messages that other conversations have in another version
  spent: string | null; // cost of this conversation as text, without the messages that a fork shares
}

export function emptyView(threadId: string, isLoading = false): View {
  return {
    threadId,
    items: [],
    firstSeq: Infinity,
    lastSeq: 0,
    hasEarlier: false,
    hasLater: false,
    results: new Map(),
    isLoading,
    run: { state: "idle" },
    interrupts: [],
    problem: null,
    lastEvent: 0,
    versions: [],
    spent: null,
  };
}

export function isBusy(view: View): boolean {
  return view.run.state !== "idle";
}
