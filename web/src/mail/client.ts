// The calls of /api/v1/mail, each as one function.
import { ApiError, call, id, json, query, sent } from "../api/client.ts";
import type { By } from "./route.ts";
import type { Dead, DeadWhole, Graph, Letter, Mailbox, Sent, Trends } from "./types.ts";

const BASE = "api/v1/mail";

export async function mailboxes(): Promise<Mailbox[]> {
  return (await json<{ mailboxes: Mailbox[] }>("", {}, BASE)).mailboxes;
}

export async function lettersTo(recipient: string): Promise<Letter[]> {
  return (await json<{ letters: Letter[] }>(`/inbox/${id(recipient)}${query({ limit: 100 })}`, {}, BASE)).letters;
}

export async function lettersOf(task: string): Promise<Letter[]> {
  return (await json<{ letters: Letter[] }>(`/tasks/${id(task)}`, {}, BASE)).letters;
}

export function graph(recipient: string, letter: string): Promise<Graph> {
  return json(`/letters/${id(recipient)}/${id(letter)}`, {}, BASE);
}

export async function dead(): Promise<Dead[]> {
  return (await json<{ dead_letters: Dead[] }>("/dead", {}, BASE)).dead_letters;
}

export function deadWhole(dead: string): Promise<DeadWhole> {
  return json(`/dead/${id(dead)}`, {}, BASE);
}

export function resend(dead: string): Promise<Sent> {
  return json(`/dead/${id(dead)}/resend`, { method: "POST" }, BASE);
}

export function trends(by: By): Promise<Trends> {
  return json(`/trends${query({ by })}`, {}, BASE);
}

export function send(letter: unknown): Promise<Sent> {
  return json("", sent("POST", letter), BASE);
}

// What arrives in a mailbox, for as long as the connection lasts.
export function stream(recipient: string, signal: AbortSignal): Promise<Response> {
  return call(`/inbox/${id(recipient)}/stream`, { headers: { Accept: "text/event-stream" }, signal, cache: "no-store" }, BASE);
}

// --- letters in our hands --------------------------------------------------------------------------------------------

export async function answer(letter: Letter, inputs: Record<string, unknown>): Promise<Sent> {
  return held(letter, (where, lease) => json(`${where}/answer`, sent("POST", { lease, inputs }), BASE));
}

export async function finish(letter: Letter): Promise<void> {
  await held(letter, (where, lease) => json(`${where}/ack`, sent("POST", { lease }), BASE));
}

// Takes a letter, and lets go of it again if what was to be done with it failed.
async function held<T>(letter: Letter, deed: (where: string, lease: string) => Promise<T>): Promise<T> {
  const box = `/inbox/${id(letter.recipient_id)}`;
  const where = `${box}/${id(letter.letter_id)}`;
  const asked = sent("POST", { letter_id: letter.letter_id, limit: 1, lease_s: 30 });
  const [mine] = (await json<{ deliveries: { lease: string }[] }>(`${box}/receive`, asked, BASE)).deliveries;
  if (!mine) throw new ApiError(409, "in_other_hands", "Somebody else has this letter, or another one of its task comes first", null);
  try {
    return await deed(where, mine.lease);
  } catch (error) {
    await call(`${where}/give-back`, sent("POST", { lease: mine.lease }), BASE).catch(() => undefined);
    throw error;
  }
}
