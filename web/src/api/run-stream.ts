// One run, followed to its end, whatever becomes of the connection.
//
//     for await (const happened of follow(start, thread, after, signal)) …
//
// The first request begins the run or joins it; if it breaks off, the events that are missing are asked for by number,
// after a pause that grows. The one rule: nothing is told twice, so whoever listens can apply all that is told.
import * as api from "./client.ts";
import { EventLines } from "./sse.ts";
import type { Numbered } from "../state/reducer.ts";
import type { Event } from "./types.ts";

export type Happened = ({ kind: "event" } & Numbered) | { kind: "lost"; attempt: number } | { kind: "back" };

const PAUSES_MS = [300, 700, 1500, 3000, 5000];
const SILENCE_MS = 45_000; // the server says something, if only a comment, far more often

export interface Follower {
  start: (signal: AbortSignal) => Promise<Response>; // may be asked again: the server knows a run by its id
  thread: string;
  after: number;
  signal: AbortSignal;
  pause?: (ms: number) => Promise<void>;
}

export async function* follow({ start, thread, after, signal, pause = wait }: Follower): AsyncGenerator<Happened> {
  let last = after;
  let hasBegun = false;
  for (let attempt = 0; ; ) {
    try {
      const answer = hasBegun ? await api.events(thread, last, signal) : await start(signal);
      if (answer.status === 204) return; // nothing runs, and nothing is left to tell
      if (attempt > 0) yield { kind: "back" };
      for await (const numbered of eventsOf(answer, signal)) {
        hasBegun = true;
        attempt = 0;
        if (numbered.number !== null && numbered.number <= last) continue;
        last = numbered.number ?? last;
        yield { kind: "event", ...numbered };
        if (isEnd(numbered.event)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof api.ApiError && !isPassing(error)) throw error;
    }
    if (signal.aborted) return;
    attempt += 1;
    yield { kind: "lost", attempt };
    await pause(PAUSES_MS[Math.min(attempt, PAUSES_MS.length) - 1] as number);
  }
}

function isPassing(error: api.ApiError): boolean {
  return error.status === 0 || [502, 503, 504].includes(error.status);
}

function isEnd(event: Event): boolean {
  return event.type === "RUN_FINISHED" || event.type === "RUN_ERROR";
}

async function* eventsOf(answer: Response, signal: AbortSignal): AsyncGenerator<Numbered> {
  if (!answer.body) return;
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  const lines = new EventLines();
  try {
    for (;;) {
      const { done, value } = await withinSilence(reader);
      if (done || signal.aborted) return;
      for (const { id, data } of lines.feed(decoder.decode(value, { stream: true }))) {
        yield { number: id === null || !/^\d+$/.test(id) ? null : Number(id), event: JSON.parse(data) as Event };
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

// A connection that died without a word looks like one on which nothing happens.
async function withinSilence(reader: ReadableStreamDefaultReader<Uint8Array>) {
  let timer = 0;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("nothing was heard")), SILENCE_MS) as unknown as number;
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } finally {
    clearTimeout(timer);
  }
}

let hurry: (() => void) | null = null;

// Ends the pause before the next attempt.
export function tryNow(): void {
  hurry?.();
}

function wait(ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done(): void {
      clearTimeout(timer);
      hurry = null;
      resolve();
    }
    hurry = done;
  });
}
