// Polling of the mail API while the page is visible, with manual reload and a stream of new letters.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, needsKey, problemFrom } from "../api/client.ts";
import { SseParser } from "../api/sse.ts";
import type { Problem } from "../state/view-model.ts";
import * as client from "./client.ts";

const EVERY_MS = 3000;
const PAUSE_MS = 3000;

export interface Polled<T> {
  value: T | null; // null: not loaded yet
  problem: Problem | null; // of the last request; the last value is kept
  reload: () => void;
}

// `name` identifies the request: another name clears the value.
export function usePolling<T>(name: string, load: () => Promise<T>): Polled<T> {
  const [received, setReceived] = useState<{ name: string; value: T | null; problem: Problem | null }>({ name, value: null, problem: null });
  const latest = useRef({ name, load });
  latest.current = { name, load };
  const isRejected = useRef(false);
  const numbers = useRef({ sent: 0, received: 0 });
  const reload = useCallback(async () => {
    const number = (numbers.current.sent += 1);
    const isStale = () => latest.current.name !== name || number < numbers.current.received; // a newer response was received, or another request is shown
    try {
      const value = await latest.current.load();
      if (isStale()) return;
      setReceived({ name, value, problem: null });
    } catch (error) {
      if (isStale()) return;
      isRejected.current = isFinal(error);
      setReceived((before) => ({ name, value: before.name === name ? before.value : null, problem: problemFrom(error) }));
    }
    numbers.current.received = number;
  }, [name]);
  useEffect(() => {
    let isOver = false;
    isRejected.current = false;
    const poll = () => void (!isOver && !isRejected.current && !document.hidden && !needsKey.value && reload());
    const timer = setInterval(poll, EVERY_MS);
    const stop = needsKey.watch(poll);
    addEventListener("visibilitychange", poll);
    poll();
    return () => {
      isOver = true;
      clearInterval(timer);
      stop();
      removeEventListener("visibilitychange", poll);
    };
  }, [reload]);
  return received.name === name ? { ...received, reload } : { value: null, problem: null, reload };
}

// Errors that polling cannot resolve. A missing key (401) can still be entered.
function isFinal(error: unknown): boolean {
  return error instanceof ApiError && error.status === 403;
}

// Calls onLetter when a letter arrives. A hidden page closes its stream, because browsers limit connections per host.
export function useMailboxStream(recipient: string, onLetter: () => void): void {
  useEffect(() => {
    let connection: AbortController | null = null;
    const update = () => {
      if (document.hidden) connection?.abort();
      else if (!connection || connection.signal.aborted) void listen(recipient, onLetter, (connection = new AbortController()).signal);
    };
    addEventListener("visibilitychange", update);
    update();
    return () => (removeEventListener("visibilitychange", update), connection?.abort());
  }, [recipient, onLetter]);
}

async function listen(recipient: string, onLetter: () => void, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      if (!needsKey.value) await readStream(await client.stream(recipient, signal), onLetter);
    } catch (error) {
      // Connection lost: polling continues meanwhile.
      if (isFinal(error)) return;
    }
    if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

async function readStream(answer: Response, onLetter: () => void): Promise<void> {
  const reader = answer.body?.getReader();
  const [decoder, lines] = [new TextDecoder(), new SseParser()];
  for (;;) {
    const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
    if (done) return;
    if (lines.feed(decoder.decode(value, { stream: true })).length) onLetter();
  }
}
