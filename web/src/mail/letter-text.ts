// Letters in words: what they are, where they stand, what they say in one line, and what of them is counted.
// The one rule: there is no clock in here; whoever asks says what time it is.
import type { Letter, Mailbox, Payload } from "./types.ts";

export const HUMAN = "HUMAN"; // the recipient that stands for a person

export interface Standing {
  mood: "open" | "busy" | "wait" | "done" | "dead";
  label: string;
  why: string; // more about it, or nothing
}

export function standing(letter: Letter, now: Date): Standing {
  switch (letter.state) {
    case "done":
      return { mood: "done", label: "done", why: "" };
    case "dead":
      return { mood: "dead", label: "dead", why: "" };
    case "held":
      return held(letter);
    case "behind":
      return { mood: "wait", label: "behind", why: "another letter of its task" };
    case "away":
      return letter.waits_for.length
        ? held(letter)
        : { mood: "busy", label: "on its way", why: "" };
    case "ready":
      if (isLater(letter.leased_until, now)) return { mood: "busy", label: "in hand", why: `until ${hour(letter.leased_until as string)}` };
      if (isLater(letter.retry_at, now)) return { mood: "wait", label: "to be retried", why: `at ${hour(letter.retry_at as string)}` };
      return { mood: "open", label: "waiting", why: "" };
  }
}

function held({ waits_for: tasks }: Letter): Standing {
  const who = listed(tasks) || "other tasks";
  return { mood: "wait", label: "held", why: `until ${who} ${tasks.length === 1 ? "has" : "have"} succeeded` };
}

// Whether somebody can take it now.
export function isFree(letter: Letter, now: Date): boolean {
  return letter.state === "ready" && !isLater(letter.leased_until, now) && !isLater(letter.retry_at, now);
}

function isLater(moment: string | null, now: Date): boolean {
  return moment !== null && new Date(moment) > now;
}

function hour(moment: string): string {
  return new Date(moment).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false });
}

export function listed(names: readonly string[], last = "and"): string {
  return names.length < 2 ? (names[0] ?? "") : `${names.slice(0, -1).join(", ")} ${last} ${names.at(-1)}`;
}

// Details for reading: a list of plain values is one line.
export function inLines(details: Record<string, unknown>): Record<string, unknown> {
  const isPlain = (value: unknown) => typeof value !== "object" || value === null;
  const line = (value: unknown) => (Array.isArray(value) && value.every(isPlain) ? value.join(", ") : value);
  return Object.fromEntries(Object.entries(details).map(([name, value]) => [name, line(value)]));
}

// --- what it is ------------------------------------------------------------------------------------------------------

export type Kind = "result" | "answer" | "error" | "question" | "letter";

export function kindOf(letter: Letter): Kind {
  switch (letter.type) {
    case "task_result":
      return letter.letter.payload.result?.inputs ? "answer" : "result";
    case "error":
      return "error";
    case "needs_input":
      return "question";
    default:
      return "letter";
  }
}

// How a task went, if a letter says so.
export function outcome(payload: Payload): { label: string; isGood: boolean } | null {
  if (!payload.status || payload.result?.inputs) return null;
  return { label: payload.status.replaceAll("_", " "), isGood: payload.status === "success" };
}

// What it says, in one line.
export function gist(letter: Letter): string {
  const payload = letter.letter.payload;
  const said = payload.result?.output ?? payload.message ?? payload.context ?? payload.requested_inputs?.map((one) => one.description).join(" · ") ?? "";
  return said.replace(/\s+/g, " ").trim().slice(0, 240);
}

// How often it was tried beyond the first time: by its sender, and by its recipients.
export function retries(letter: Letter): number {
  return Math.max(letter.letter.retry_count ?? 0, letter.attempts - 1, 0);
}

export function fits(letter: Letter, words: string): boolean {
  const said = [letter.sender_id, letter.recipient_id, letter.task_id, letter.type, letter.state, letter.letter_id, gist(letter)].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => said.includes(word));
}

export function score(value: number): string {
  return String(Math.round(value * 100) / 100);
}

export function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}

// --- mailboxes -------------------------------------------------------------------------------------------------------

export interface Counts {
  waiting: number;
  inHand: number;
  held: number; // for other tasks, or behind another letter
  retrying: number;
  dead: number;
}

export const COLUMNS: { name: keyof Counts; label: string; says: string }[] = [
  { name: "waiting", label: "Waiting", says: "waiting" },
  { name: "inHand", label: "In hand", says: "in hand" },
  { name: "held", label: "Held", says: "held" },
  { name: "retrying", label: "Retrying", says: "to be tried again" },
  { name: "dead", label: "Dead", says: "dead" },
];

export function countsOf(boxes: readonly Mailbox[]): Counts {
  const sum = (count: (box: Mailbox) => number) => boxes.reduce((all, box) => all + count(box), 0);
  return {
    waiting: sum((box) => box.ready + box.away),
    inHand: sum((box) => box.leased),
    held: sum((box) => box.held + box.behind),
    retrying: sum((box) => box.waiting),
    dead: sum((box) => box.dead),
  };
}

// The counts that are not zero, in words; "nothing waits" if all are.
export function inWords(counts: Counts): string {
  const some = COLUMNS.flatMap(({ name, says }) => (counts[name] ? [`${counts[name]} ${says}`] : []));
  return some.join(" · ") || "nothing waits";
}

// People's own mailbox first, then by name.
export function inOrder(boxes: readonly Mailbox[]): Mailbox[] {
  const rank = (box: Mailbox) => (box.recipient_id === HUMAN ? 0 : 1);
  return [...boxes].sort((one, other) => rank(one) - rank(other) || one.recipient_id.localeCompare(other.recipient_id));
}

// --- dead letters ----------------------------------------------------------------------------------------------------

const REASONS: Record<string, string> = {
  retries_exhausted: "It was tried as often as it may be",
  not_retryable: "Trying it again would not have helped",
  needs_input: "It lacked an input",
  damaged: "It is not what was written",
  letter_conflict: "Another letter has its id",
  letter_too_large: "It is larger than the transport carries",
  invalid_letter: "It is no letter",
  invalid_json: "It is not JSON",
  inconsistent_result: "It contradicts itself",
  unsupported_protocol_version: "It is of a version that is not known here",
  unknown_letter_type: "It is of a type that is not known here",
};

export function reasonOf(code: string): string {
  const words = code.replaceAll("_", " ");
  return REASONS[code] ?? words.charAt(0).toUpperCase() + words.slice(1);
}
