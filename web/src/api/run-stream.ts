// Follows one run to its last event and reconnects when the connection is lost.
//
//     for await (const update of follow({ start, thread, after, signal })) …
//
// The first request starts or joins the run. After a disconnect, the missing events are requested by number, with
// increasing pauses. Invariant: each event is yielded once.
import * as api from "./client.ts";
import { SseParser } from "./sse.ts";
import type { NumberedEvent } from "../state/reducer.ts";
import type { Event } from "./types.ts";

export type StreamUpdate = ({ kind: "event" } & NumberedEvent) | { kind: "lost"; attempt: number } | { kind: "back" };

const PAUSES_MS = [300, 700, 1500, 3000, 5000];
const SILENCE_MS = 45_000; // the server sends at least a comment far more often

export interface Follower {
  start: (signal: AbortSignal) => Promise<Response>; // idempotent: the server identifies a run by its id
  thread: string;
  after: number;
  signal: AbortSignal;
  pause?: (ms: number) => Promise<void>;
}

export async function* follow({ start, thread, after, signal, pause = wait }: Follower): AsyncGenerator<StreamUpdate> {
  let last = after;
  let hasStarted = false;
  for (let attempt = 0; ; ) {
    try {
      const answer = hasStarted ? await api.events(thread, last, signal) : await start(signal);
      if (answer.status === 204) return; // no run, or no more events
      if (attempt > 0) yield { kind: "back" };
      for await (const numbered of eventsOf(answer, signal)) {
        hasStarted = true;
        attempt = 0;
        if (numbered.number !== null && numbered.number <= last) continue;
        last = numbered.number ?? last;
        yield { kind: "event", ...numbered };
        if (isEnd(numbered.event)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof api.ApiError && !isTransient(error)) throw error;
    }
    if (signal.aborted) return;
    attempt += 1;
    yield { kind: "lost", attempt };
    await pause(PAUSES_MS[Math.min(attempt, PAUSES_MS.length) - 1] as number);
  }
}

function isTransient(error: api.ApiError): boolean {
  return error.status === 0 || [502, 503, 504].includes(error.status);
}

function isEnd(event: Event): boolean {
  return event.type === "RUN_FINISHED" || event.type === "RUN_ERROR";
}

async function* eventsOf(answer: Response, signal: AbortSignal): AsyncGenerator<NumberedEvent> {
  if (!answer.body) return;
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  const lines = new SseParser();
  try {
    for (;;) {
      const { done, value } = await readWithTimeout(reader);
      if (done || signal.aborted) return;
      for (const { id, data } of lines.feed(decoder.decode(value, { stream: true }))) {
        yield { number: id === null || !/^\d+$/.test(id) ? null : Number(id), event: JSON.parse(data) as Event };
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

// Detects a dead connection: without data for SILENCE_MS, the read fails.
async function readWithTimeout(reader: ReadableStreamDefaultReader<Uint8Array>) {
  let timer = 0;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("no data received")), SILENCE_MS) as unknown as number;
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } finally {
    clearTimeout(timer);
  }
}

let skipPause: (() => void) | null = null;

// Skips the pause before the next attempt.
export function retryNow(): void {
  skipPause?.();
}

function wait(ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done(): void {
      clearTimeout(timer);
      skipPause = null;
      resolve();
    }
    skipPause = done;
  });
}
