// The calls of the server, each as one function. Whoever answers "no" is heard as an ApiError, whose text says what to do.
//
// The key of a server that wants one is kept for as long as the tab is open, and nowhere else.
// The one rule: nothing else in the page asks the network for anything.
import { problemOfRequest } from "./error-messages.ts";
import { Cell } from "../state/observable.ts";
import type { Problem } from "../state/view-model.ts";
import type { Hit, Model, Preflight, Row, Stored, Thread } from "./types.ts";

const BASE = "api/v1/agent"; // behind the path of the page, wherever that is mounted
const KEY = "dragoman-key";

export const needsKey = new Cell(false);

export class ApiError extends Error {
  readonly status: number; // 0: there was no answer
  readonly code: string;
  readonly requestId: string | null;

  constructor(status: number, code: string, message: string, requestId: string | null) {
    super(message);
    this.status = status;
    this.code = code;
    this.requestId = requestId;
  }
}

export function rememberKey(key: string): void {
  sessionStorage.setItem(KEY, key);
  needsKey.set(false);
}

export function hasKey(): boolean {
  return sessionStorage.getItem(KEY) !== null;
}

export function problemFrom(error: unknown): Problem {
  if (error instanceof ApiError) return problemOfRequest(error.status, error.code, error.message, error.requestId);
  return { title: String(error), advice: "Load the page anew.", code: null, requestId: null };
}

export async function call(path: string, init: RequestInit = {}, base = BASE): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = sessionStorage.getItem(KEY);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  let answer: Response;
  try {
    answer = await fetch(base + path, { ...init, headers, credentials: "same-origin" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The server does not answer", null);
  }
  if (answer.status === 401) needsKey.set(true);
  if (!answer.ok) throw await refused(answer);
  return answer;
}

async function refused(answer: Response): Promise<ApiError> {
  const said = (await answer.json().catch(() => null)) as { error?: { code?: string; message?: string; request_id?: string } } | null;
  const { code = "unknown", message = `The server answered ${answer.status}`, request_id = null } = said?.error ?? {};
  return new ApiError(answer.status, code, message, request_id);
}

export async function json<T>(path: string, init?: RequestInit, base = BASE): Promise<T> {
  return (await (await call(path, init, base)).json()) as T;
}

export function sent(method: string, body: unknown): RequestInit {
  return { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

export function query(given: Record<string, string | number | null | undefined>): string {
  const pairs = Object.entries(given).flatMap(([name, value]) => (value == null ? [] : [[name, String(value)]]));
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

export const id = encodeURIComponent;

// --- conversations ---------------------------------------------------------------------------------------------------

export function threads(cursor: string | null = null): Promise<{ threads: Thread[]; cursor: string | null }> {
  return json(`/threads${query({ limit: 50, cursor })}`);
}

export function messages(thread: string, where: { beforeSeq?: number; afterSeq?: number } = {}): Promise<{ messages: Row[]; hasMore: boolean }> {
  return json(`/threads/${id(thread)}/messages${query({ limit: 50, ...where })}`);
}

export function changeThread(thread: string, change: { title?: string; model?: string | null }): Promise<Thread> {
  return json(`/threads/${id(thread)}`, sent("PATCH", change));
}

export async function deleteThread(thread: string): Promise<void> {
  await call(`/threads/${id(thread)}`, { method: "DELETE" });
}

export function fork(thread: string, atSeq: number): Promise<Thread> {
  return json(`/threads/${id(thread)}/fork`, sent("POST", { atSeq }));
}

export async function search(words: string, signal: AbortSignal): Promise<Hit[]> {
  return (await json<{ hits: Hit[] }>(`/search${query({ q: words, limit: 40 })}`, { signal })).hits;
}

// The conversation as a file of the browser's.
export async function exported(thread: string, name: string): Promise<void> {
  const answer = await call(`/threads/${id(thread)}/export${query({ format: "markdown" })}`);
  const url = URL.createObjectURL(await answer.blob());
  const link = Object.assign(document.createElement("a"), { href: url, download: `${name.slice(0, 60).replace(/[^\p{L}\p{N} _-]/gu, "")}.md` });
  link.click();
  URL.revokeObjectURL(url);
}

// --- models ----------------------------------------------------------------------------------------------------------

export async function models(): Promise<Model[]> {
  return (await json<{ models: Model[] }>("/models")).models;
}

export function preflight(thread: string, model: string): Promise<Preflight> {
  return json(`/threads/${id(thread)}/preflight${query({ model })}`);
}

export function shownAs(thread: string, message: string, dialect: string): Promise<{ wire: unknown; losses: { reason: string }[] }> {
  return json(`/threads/${id(thread)}/messages/${id(message)}/as/${id(dialect)}`);
}

export async function formats(): Promise<string[]> {
  return (await json<{ formats: string[] }>("/formats")).formats;
}

// --- costs -----------------------------------------------------------------------------------------------------------

export interface Total {
  group: string | null; // the day, or the model
  messages: number;
  inputTokens: number;
  cachedInputTokens: number;
  cacheCreationInputTokens: number;
  outputTokens: number;
  costUsd: string | null; // of the answers that have a price; null if none has one
  unpriced: number; // answers for which no price was known
}

export interface Cost {
  totalUsd: string | null; // of the answers that have a price; null if none has one
  unpriced: number; // answers for which no price was known
  byDay: Total[];
  byModel: Total[];
}

export function cost(): Promise<Cost> {
  return json("/cost");
}

export function threadCost(thread: string): Promise<{ totalUsd: string | null; unpriced: number; byModel: Total[] }> {
  return json(`/threads/${id(thread)}/cost${query({ limit: 1 })}`);
}

// --- attachments -----------------------------------------------------------------------------------------------------

export function upload(file: File, thread: string): Promise<Stored> {
  const form = new FormData();
  form.append("threadId", thread);
  form.append("file", file, file.name);
  return json("/attachments", { method: "POST", body: form });
}

// A URL of a file that was sent before, to be sent again.
export async function signedUrl(bucket: string, path: string): Promise<string> {
  return (await json<{ url: string }>(`/attachments/signed-url${query({ bucket, path })}`)).url;
}

// Pictures that every browser can show; HEIC is not among them.
export function isShown(mime: string): boolean {
  return ["image/png", "image/jpeg", "image/gif", "image/webp"].includes(mime);
}

// A server on this machine may call itself by another of its names than the page does.
export function ours(url: string): string {
  const given = new URL(url, location.href);
  const isLocal = (host: string) => ["localhost", "127.0.0.1", "[::1]"].includes(host);
  const isSame = isLocal(given.hostname) && isLocal(location.hostname) && given.port === location.port;
  return isSame ? given.pathname + given.search : url;
}

// --- runs ------------------------------------------------------------------------------------------------------------

const STREAM = { Accept: "text/event-stream" };

export function run(input: unknown, signal: AbortSignal): Promise<Response> {
  const init = sent("POST", input);
  return call("/runs", { ...init, headers: { ...init.headers, ...STREAM }, signal });
}

// What was told behind an event; without one, the newest run from its beginning. 204 if there is nothing to tell.
export function events(thread: string, after: number | null, signal: AbortSignal): Promise<Response> {
  const place = after === null ? {} : { "Last-Event-ID": String(after) };
  return call(`/runs/${id(thread)}/events`, { headers: { ...STREAM, ...place }, signal, cache: "no-store" });
}

export async function cancel(thread: string): Promise<void> {
  await call(`/runs/${id(thread)}/cancel`, { method: "POST" });
}
