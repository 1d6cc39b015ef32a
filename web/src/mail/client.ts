// HTTP client of the mail API (/api/v1/mail): one function per endpoint.
import { ApiError, call, id, json, query, jsonRequest } from "../api/client.ts";
import type { By } from "./route.ts";
import type { DeadLetter, DeadLetterDetail, Graph, Letter, Mailbox, SendReceipt, Trends } from "./types.ts";

const BASE = "api/v1/mail";

// Invalid letters that name no mailbox are dead as well.
export function mailboxes(): Promise<{ mailboxes: Mailbox[]; dead_without_recipient: number }> {
  return json("", {}, BASE);
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

export async function dead(): Promise<DeadLetter[]> {
  return (await json<{ dead_letters: DeadLetter[] }>("/dead", {}, BASE)).dead_letters;
}

export function deadLetterDetail(dead: string): Promise<DeadLetterDetail> {
  return json(`/dead/${id(dead)}`, {}, BASE);
}

export function resend(dead: string): Promise<SendReceipt> {
  return json(`/dead/${id(dead)}/resend`, { method: "POST" }, BASE);
}

export function trends(by: By): Promise<Trends> {
  return json(`/trends${query({ by })}`, {}, BASE);
}

export function send(letter: unknown): Promise<SendReceipt> {
  return json("", jsonRequest("POST", letter), BASE);
}

// Streams the letters that arrive in a mailbox.
export function stream(recipient: string, signal: AbortSignal): Promise<Response> {
  return call(`/inbox/${id(recipient)}/stream`, { headers: { Accept: "text/event-stream" }, signal, cache: "no-store" }, BASE);
}

// --- leased letters --------------------------------------------------------------------------------------------------

export async function answer(letter: Letter, inputs: Record<string, unknown>): Promise<SendReceipt> {
  return withLease(letter, (where, lease) => json(`${where}/answer`, jsonRequest("POST", { lease, inputs }), BASE));
}

export async function finish(letter: Letter): Promise<void> {
  await withLease(letter, (where, lease) => json(`${where}/ack`, jsonRequest("POST", { lease }), BASE));
}

// Leases a letter for an action, and releases it if the action fails.
async function withLease<T>(letter: Letter, action: (where: string, lease: string) => Promise<T>): Promise<T> {
  const box = `/inbox/${id(letter.recipient_id)}`;
  const where = `${box}/${id(letter.letter_id)}`;
  const request = jsonRequest("POST", { letter_id: letter.letter_id, limit: 1, lease_s: 30 });
  const [delivery] = (await json<{ deliveries: { lease: string }[] }>(`${box}/receive`, request, BASE)).deliveries;
  if (!delivery) throw new ApiError(409, "in_other_hands", "The letter is leased by another receiver, or an earlier letter of its task is not done", null);
  try {
    return await action(where, delivery.lease);
  } catch (error) {
    await call(`${where}/give-back`, jsonRequest("POST", { lease: delivery.lease }), BASE).catch(() => undefined);
    throw error;
  }
}
