import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../src/api/client.ts";
import { follow, type Happened } from "../src/api/run-stream.ts";
import { EventLines } from "../src/api/sse.ts";

const EVENTS = [
  { type: "RUN_STARTED", threadId: "t", runId: "r" },
  { type: "TEXT_MESSAGE_START", messageId: "m" },
  ...[..."Grüße, 世界!"].map((delta) => ({ type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta })),
  { type: "TEXT_MESSAGE_END", messageId: "m" },
  { type: "RUN_FINISHED", threadId: "t", runId: "r" },
];

globalThis.sessionStorage = { getItem: () => null } as unknown as Storage;

function streamed(after: number, bytes: number): Response {
  const text = EVENTS.map((event, at) => `id: ${at + 1}\nevent: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).slice(after).join("");
  const data = new TextEncoder().encode(`: \n\n${text}`).slice(0, bytes);
  const body = new ReadableStream({
    start(controller) {
      for (let at = 0; at < data.length; at += 7) controller.enqueue(data.slice(at, at + 7));
      controller.close();
    },
  });
  return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
}

async function told(start: () => Promise<Response>): Promise<{ happened: Happened[]; pauses: number[] }> {
  const happened: Happened[] = [];
  const pauses: number[] = [];
  const pause = async (ms: number) => void pauses.push(ms);
  for await (const one of follow({ start, thread: "t", after: 0, signal: new AbortController().signal, pause })) happened.push(one);
  return { happened, pauses };
}

function numbers(happened: Happened[]): (number | null)[] {
  return happened.flatMap((one) => (one.kind === "event" ? [one.number] : []));
}

const EVERY = EVENTS.map((_, at) => at + 1);

test("a stream that is cut after any number of bytes is told whole, each event once", async () => {
  for (let bytes = 1; bytes < 1200; bytes += 3) {
    const asked: string[] = [];
    globalThis.fetch = (async (_: unknown, init: RequestInit) => {
      const place = new Headers(init.headers).get("Last-Event-ID") ?? "";
      asked.push(place);
      return streamed(Number(place), asked.length > 12 ? Infinity : bytes);
    }) as typeof fetch;
    let starts = 0;
    const { happened } = await told(async () => streamed(0, ++starts > 12 ? Infinity : bytes));
    assert.deepEqual(numbers(happened), EVERY, `cut after ${bytes} bytes`);
  }
});

test("a server that is away is asked again, after pauses that grow", async () => {
  let attempts = 0;
  const { happened, pauses } = await told(async () => {
    if (++attempts < 8) throw new ApiError(0, "unreachable", "no", null);
    return streamed(0, Infinity);
  });
  assert.deepEqual(pauses, [300, 700, 1500, 3000, 5000, 5000, 5000]);
  assert.deepEqual(happened.filter((one) => one.kind !== "event").map((one) => one.kind), [...Array<string>(7).fill("lost"), "back"]);
  assert.deepEqual(numbers(happened), EVERY);
});

test("a refusal is no reason to try again", async () => {
  await assert.rejects(told(async () => Promise.reject(new ApiError(422, "invalid", "no", null))), ApiError);
});

test("nothing to tell is an end", async () => {
  assert.deepEqual((await told(async () => new Response(null, { status: 204 }))).happened, []);
});

test("lines may be cut anywhere, and comments say nothing", () => {
  const wire = ': hello\n\nid: 1\nevent: x\ndata: {"a":\ndata: 1}\n\n\ndata:no space\r\n\r\nid: 9\ndata: half';
  for (let size = 1; size < wire.length; size++) {
    const lines = new EventLines();
    const found = [];
    for (let at = 0; at < wire.length; at += size) found.push(...lines.feed(wire.slice(at, at + size)));
    assert.deepEqual(found, [{ id: "1", data: '{"a":\n1}' }, { id: "1", data: "no space" }], `pieces of ${size}`);
  }
});
