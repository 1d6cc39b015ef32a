import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../src/api/client.ts";
import { follow, type StreamUpdate } from "../src/api/run-stream.ts";
import { SseParser } from "../src/api/sse.ts";

const EVENTS = [
  { type: "RUN_STARTED", threadId: "t", runId: "r" },
  { type: "TEXT_MESSAGE_START", messageId: "m" },
  ...[..."Grüße, 世界!"].map((delta) => ({ type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta })),
  { type: "TEXT_MESSAGE_END", messageId: "m" },
  { type: "RUN_FINISHED", threadId: "t", runId: "r" },
];

globalThis.sessionStorage = { getItem: () => null } as unknown as Storage;

function streamResponse(after: number, bytes: number): Response {
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

async function collect(start: () => Promise<Response>): Promise<{ update: StreamUpdate[]; pauses: number[] }> {
  const update: StreamUpdate[] = [];
  const pauses: number[] = [];
  const pause = async (ms: number) => void pauses.push(ms);
  for await (const item of follow({ start, thread: "t", after: 0, signal: new AbortController().signal, pause })) update.push(item);
  return { update, pauses };
}

function numbers(update: StreamUpdate[]): (number | null)[] {
  return update.flatMap((item) => (item.kind === "event" ? [item.number] : []));
}

const EVERY = EVENTS.map((_, at) => at + 1);

test("a stream cut after any number of bytes yields each event once", async () => {
  for (let bytes = 1; bytes < 1200; bytes += 3) {
    const places: string[] = [];
    globalThis.fetch = (async (_: unknown, init: RequestInit) => {
      const place = new Headers(init.headers).get("Last-Event-ID") ?? "";
      places.push(place);
      return streamResponse(Number(place), places.length > 12 ? Infinity : bytes);
    }) as typeof fetch;
    let starts = 0;
    const { update } = await collect(async () => streamResponse(0, ++starts > 12 ? Infinity : bytes));
    assert.deepEqual(numbers(update), EVERY, `cut after ${bytes} bytes`);
  }
});

test("an unreachable server is retried with increasing pauses", async () => {
  let attempts = 0;
  const { update, pauses } = await collect(async () => {
    if (++attempts < 8) throw new ApiError(0, "unreachable", "no", null);
    return streamResponse(0, Infinity);
  });
  assert.deepEqual(pauses, [300, 700, 1500, 3000, 5000, 5000, 5000]);
  assert.deepEqual(update.filter((item) => item.kind !== "event").map((item) => item.kind), [...Array<string>(7).fill("lost"), "back"]);
  assert.deepEqual(numbers(update), EVERY);
});

test("a rejected request is not retried", async () => {
  await assert.rejects(collect(async () => Promise.reject(new ApiError(422, "invalid", "no", null))), ApiError);
});

test("status 204 ends the stream", async () => {
  assert.deepEqual((await collect(async () => new Response(null, { status: 204 }))).update, []);
});

test("chunks may split anywhere, and comments are ignored", () => {
  const wire = ': hello\n\nid: 1\nevent: x\ndata: {"a":\ndata: 1}\n\n\ndata:no space\r\n\r\nid: 9\ndata: half';
  for (let size = 1; size < wire.length; size++) {
    const lines = new SseParser();
    const found = [];
    for (let at = 0; at < wire.length; at += size) found.push(...lines.feed(wire.slice(at, at + size)));
    assert.deepEqual(found, [{ id: "1", data: '{"a":\n1}' }, { id: "1", data: "no space" }], `pieces of ${size}`);
  }
});
