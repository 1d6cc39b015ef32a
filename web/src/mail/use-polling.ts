// What the server says, and says anew: asked for again every few seconds while somebody looks, and at once when told to.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, needsKey, problemFrom } from "../api/client.ts";
import { EventLines } from "../api/sse.ts";
import type { Problem } from "../state/view-model.ts";
import * as calls from "./client.ts";

const EVERY_MS = 3000;
const PAUSE_MS = 3000;

export interface Live<T> {
  value: T | null; // null: not heard yet
  problem: Problem | null; // of the last time; what was heard before stays
  again: () => void;
}

// `name` says what is asked for: when it is another one, what was heard before goes.
export function useLive<T>(name: string, ask: () => Promise<T>): Live<T> {
  const [heard, setHeard] = useState<{ name: string; value: T | null; problem: Problem | null }>({ name, value: null, problem: null });
  const asking = useRef({ name, ask });
  asking.current = { name, ask };
  const isRefused = useRef(false);
  const numbers = useRef({ asked: 0, heard: 0 });
  const again = useCallback(async () => {
    const number = (numbers.current.asked += 1);
    const isLate = () => asking.current.name !== name || number < numbers.current.heard; // something newer was heard, or is shown
    try {
      const value = await asking.current.ask();
      if (isLate()) return;
      setHeard({ name, value, problem: null });
    } catch (error) {
      if (isLate()) return;
      isRefused.current = isFinal(error);
      setHeard((before) => ({ name, value: before.name === name ? before.value : null, problem: problemFrom(error) }));
    }
    numbers.current.heard = number;
  }, [name]);
  useEffect(() => {
    let isOver = false;
    isRefused.current = false;
    const ask = () => void (!isOver && !isRefused.current && !document.hidden && !needsKey.value && again());
    const timer = setInterval(ask, EVERY_MS);
    const stop = needsKey.watch(ask);
    addEventListener("visibilitychange", ask);
    ask();
    return () => {
      isOver = true;
      clearInterval(timer);
      stop();
      removeEventListener("visibilitychange", ask);
    };
  }, [again]);
  return heard.name === name ? { ...heard, again } : { value: null, problem: null, again };
}

// What will be refused however often it is asked for. A key that is wanted may yet be given.
function isFinal(error: unknown): boolean {
  return error instanceof ApiError && error.status === 403;
}

// Calls whenever something arrives in a mailbox. A page that nobody looks at lets go of its connection: browsers have few.
export function useArrivals(recipient: string, arrived: () => void): void {
  useEffect(() => {
    let listening: AbortController | null = null;
    const look = () => {
      if (document.hidden) listening?.abort();
      else if (!listening || listening.signal.aborted) void listen(recipient, arrived, (listening = new AbortController()).signal);
    };
    addEventListener("visibilitychange", look);
    look();
    return () => (removeEventListener("visibilitychange", look), listening?.abort());
  }, [recipient, arrived]);
}

async function listen(recipient: string, arrived: () => void, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      if (!needsKey.value) await heard(await calls.stream(recipient, signal), arrived);
    } catch (error) {
      // The connection is gone, or the server is: asking every few seconds goes on meanwhile.
      if (isFinal(error)) return;
    }
    if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

async function heard(answer: Response, arrived: () => void): Promise<void> {
  const reader = answer.body?.getReader();
  const [decoder, lines] = [new TextDecoder(), new EventLines()];
  for (;;) {
    const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
    if (done) return;
    if (lines.feed(decoder.decode(value, { stream: true })).length) arrived();
  }
}
