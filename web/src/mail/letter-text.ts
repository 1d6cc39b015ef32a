// Texts for letters: kind, status, summary and counts. The current time is always a parameter.
import type { Letter, Mailbox, Payload } from "./types.ts";

export const HUMAN = "HUMAN"; // recipient id for people

export interface LetterStatus {
  mood: "open" | "busy" | "wait" | "done" | "dead";
  label: string;
  why: string; // details, or empty
}

export function letterStatus(letter: Letter, now: Date): LetterStatus {
  switch (letter.state) {
    case "done":
      return { mood: "done", label: "done", why: "" };
    case "dead":
      return { mood: "dead", label: "dead", why: "" };
    case "held":
      return heldStatus(letter);
    case "behind":
      return { mood: "wait", label: "queued", why: "an earlier letter of its task" };
    case "away":
      return letter.waits_for.length
        ? heldStatus(letter)
        : { mood: "busy", label: "in transit", why: "" };
    case "ready":
      if (isLater(letter.leased_until, now)) return { mood: "busy", label: "leased", why: `until ${hour(letter.leased_until as string)}` };
      if (isLater(letter.retry_at, now)) return { mood: "wait", label: "retry", why: `at ${hour(letter.retry_at as string)}` };
      return { mood: "open", label: "waiting", why: "" };
  }
}

function heldStatus({ waits_for: tasks }: Letter): LetterStatus {
  const who = joinNames(tasks) || "other tasks";
  return { mood: "wait", label: "held", why: `until ${who} ${tasks.length === 1 ? "has" : "have"} succeeded` };
}

// Returns whether the letter can be leased now.
export function isAvailable(letter: Letter, now: Date): boolean {
  return letter.state === "ready" && !isLater(letter.leased_until, now) && !isLater(letter.retry_at, now);
}

function isLater(moment: string | null, now: Date): boolean {
  return moment !== null && new Date(moment) > now;
}

function hour(moment: string): string {
  return new Date(moment).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false });
}

export function joinNames(names: readonly string[], last = "and"): string {
  return names.length < 2 ? (names[0] ?? "") : `${names.slice(0, -1).join(", ")} ${last} ${names.at(-1)}`;
}

// Joins lists of plain values into one line, for display.
export function flattenLists(details: Record<string, unknown>): Record<string, unknown> {
  const isPlain = (value: unknown) => typeof value !== "object" || value === null;
  const line = (value: unknown) => (Array.isArray(value) && value.every(isPlain) ? value.join(", ") : value);
  return Object.fromEntries(Object.entries(details).map(([name, value]) => [name, line(value)]));
}

// --- kinds -----------------------------------------------------------------------------------------------------------

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

// The outcome of a task, if the letter reports one.
export function outcome(payload: Payload): { label: string; isGood: boolean } | null {
  if (!payload.status || payload.result?.inputs) return null;
  return { label: payload.status.replaceAll("_", " "), isGood: payload.status === "success" };
}

// Summary of the content, in one line.
export function summaryLine(letter: Letter): string {
  const payload = letter.letter.payload;
  const text = payload.result?.output ?? payload.message ?? payload.context ?? payload.requested_inputs?.map((item) => item.description).join(" · ") ?? "";
  return text.replace(/\s+/g, " ").trim().slice(0, 240);
}

// Number of retries, by the sender or by the recipients.
export function retries(letter: Letter): number {
  return Math.max(letter.letter.retry_count ?? 0, letter.attempts - 1, 0);
}

export function fits(letter: Letter, words: string): boolean {
  const text = [letter.sender_id, letter.recipient_id, letter.task_id, letter.type, letter.state, letter.letter_id, summaryLine(letter)].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
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
  held: number; // waiting for other tasks or an earlier letter
  retrying: number;
  dead: number;
}

export const COLUMNS: { name: keyof Counts; label: string; text: string }[] = [
  { name: "waiting", label: "Waiting", text: "waiting" },
  { name: "inHand", label: "Leased", text: "leased" },
  { name: "held", label: "Held", text: "held" },
  { name: "retrying", label: "Retrying", text: "to retry" },
  { name: "dead", label: "Dead", text: "dead" },
];

export function countsOf(boxes: readonly Mailbox[], moreDead = 0): Counts {
  const sum = (count: (box: Mailbox) => number) => boxes.reduce((all, box) => all + count(box), 0);
  return {
    waiting: sum((box) => box.ready + box.away),
    inHand: sum((box) => box.leased),
    held: sum((box) => box.held + box.behind),
    retrying: sum((box) => box.waiting),
    dead: sum((box) => box.dead) + moreDead,
  };
}

// The counts that are not zero, as text.
export function describeCounts(counts: Counts): string {
  const parts = COLUMNS.flatMap(({ name, text }) => (counts[name] ? [`${counts[name]} ${text}`] : []));
  return parts.join(" · ") || "no open letters";
}

// The mailbox for people first, then by name.
export function sortMailboxes(boxes: readonly Mailbox[]): Mailbox[] {
  const rank = (box: Mailbox) => (box.recipient_id === HUMAN ? 0 : 1);
  return [...boxes].sort((item, next) => rank(item) - rank(next) || item.recipient_id.localeCompare(next.recipient_id));
}

// --- dead letters ----------------------------------------------------------------------------------------------------

const REASONS: Record<string, string> = {
  retries_exhausted: "The retry limit is reached",
  not_retryable: "The error cannot be fixed by a retry",
  needs_input: "A required input is missing",
  damaged: "The stored letter is damaged",
  letter_conflict: "Another letter has the same id",
  letter_too_large: "The letter exceeds the size limit of the transport",
  invalid_letter: "The letter is not valid",
  invalid_json: "The content is not valid JSON",
  inconsistent_result: "The result contradicts itself",
  unsupported_protocol_version: "The protocol version is not supported",
  unknown_letter_type: "The letter type is not supported",
};

export function reasonText(code: string): string {
  const words = code.replaceAll("_", " ");
  return REASONS[code] ?? words.charAt(0).toUpperCase() + words.slice(1);
}
