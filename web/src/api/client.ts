// HTTP client of the chat API: one function per endpoint. A failed request throws an ApiError.
//
// The API key is kept in session storage until the tab is closed.
// Invariant: the page sends requests only through `call`.
import { requestProblem } from "./error-messages.ts";
import { Observable } from "../state/observable.ts";
import type { Problem } from "../state/view-model.ts";
import type { ContextUse, ConversationSettings, Hit, ImagePolicy, Model, Preflight, Row, SearchFilters, Stored, Thread, ThreadSettings, ToolInfo, Versions } from "./types.ts";

const BASE = "api/v1/agent"; // relative to the path of the page
const KEY = "dragoman-key";

export const needsKey = new Observable(false);

export class ApiError extends Error {
  readonly status: number; // 0: no response
  readonly code: string;
  readonly requestId: string | null;
  readonly reason: string | null; // why a model cannot be used

  constructor(status: number, code: string, message: string, requestId: string | null, reason: string | null = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.requestId = requestId;
    this.reason = reason;
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
  if (error instanceof ApiError) return requestProblem(error.status, error.code, error.message, error.requestId, error.reason);
  return { title: String(error), advice: "Reload the page.", details: null, actions: [], code: null, requestId: null };
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
    throw new ApiError(0, "unreachable", "The server does not respond", null);
  }
  if (answer.status === 401) needsKey.set(true);
  if (!answer.ok) throw await toApiError(answer);
  return answer;
}

async function toApiError(answer: Response): Promise<ApiError> {
  const body = (await answer.json().catch(() => null)) as { error?: { code?: string; message?: string; request_id?: string; reason?: string } } | null;
  const { code = "unknown", message = `The server returned status ${answer.status}`, request_id = null, reason = null } = body?.error ?? {};
  return new ApiError(answer.status, code, message, request_id, reason);
}

export async function json<T>(path: string, init?: RequestInit, base = BASE): Promise<T> {
  return (await (await call(path, init, base)).json()) as T;
}

export function jsonRequest(method: string, body: unknown): RequestInit {
  return { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

export function query(parameters: Record<string, string | number | null | undefined>): string {
  const pairs = Object.entries(parameters).flatMap(([name, value]) => (value == null ? [] : [[name, String(value)]]));
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

export const id = encodeURIComponent;

// --- conversations ---------------------------------------------------------------------------------------------------

export function threads(cursor: string | null = null): Promise<{ threads: Thread[]; cursor: string | null }> {
  return json(`/threads${query({ limit: 50, cursor })}`);
}

export function thread(thread: string): Promise<Thread> {
  return json(`/threads/${id(thread)}`);
}

export async function versions(thread: string): Promise<Versions[]> {
  return (await json<{ versions: Versions[] }>(`/threads/${id(thread)}/versions`)).versions;
}

export interface MessagePage {
  messages: Row[];
  hasMore: boolean; // in the requested direction; around a position, earlier ones
  hasLater: boolean;
}

export function messages(thread: string, where: { beforeSeq?: number; afterSeq?: number; aroundSeq?: number } = {}): Promise<MessagePage> {
  return json(`/threads/${id(thread)}/messages${query({ limit: 50, ...where })}`);
}

export function changeThread(thread: string, change: { title?: string; model?: string | null; policy?: ImagePolicy; pinned?: boolean; tags?: string[] }): Promise<Thread> {
  return json(`/threads/${id(thread)}`, jsonRequest("PATCH", change));
}

export async function deleteThread(thread: string): Promise<void> {
  await call(`/threads/${id(thread)}`, { method: "DELETE" });
}

export function fork(thread: string, atSeq: number): Promise<Thread> {
  return json(`/threads/${id(thread)}/fork`, jsonRequest("POST", { atSeq }));
}

export function search(words: string, filters: SearchFilters, offset: number, signal: AbortSignal): Promise<{ hits: Hit[]; hasMore: boolean }> {
  return json(`/search${query({ q: words, limit: 40, offset, ...filters })}`, { signal });
}

// Saves the body of a response as a file.
export async function download(answer: Response, name: string): Promise<void> {
  const url = URL.createObjectURL(await answer.blob());
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000); // some browsers read it after the click
}

export interface Me {
  user_id: string;
  scopes: string[];
}

export function me(): Promise<Me> {
  return json("/me");
}

// --- models ----------------------------------------------------------------------------------------------------------

export function models(): Promise<{ models: Model[]; canManageProviders: boolean }> {
  return json("/models");
}

export function preflight(thread: string, model: string, policy: ImagePolicy): Promise<Preflight> {
  return json(`/threads/${id(thread)}/preflight${query({ model, policy })}`);
}

export function messageAs(thread: string, message: string, dialect: string): Promise<{ wire: unknown; losses: { reason: string }[] }> {
  return json(`/threads/${id(thread)}/messages/${id(message)}/as/${id(dialect)}`);
}

export async function formats(): Promise<string[]> {
  return (await json<{ formats: string[] }>("/formats")).formats;
}

// --- settings --------------------------------------------------------------------------------------------------------

export function threadSettings(thread: string): Promise<ThreadSettings> {
  return json(`/threads/${id(thread)}/settings`);
}

export function storeThreadSettings(thread: string, change: { settings: ConversationSettings; images: ImagePolicy; routing: string | null }): Promise<ThreadSettings> {
  return json(`/threads/${id(thread)}/settings`, jsonRequest("PUT", change));
}

export function defaultSettings(): Promise<{ settings: ConversationSettings; tools: ToolInfo[] }> {
  return json("/settings");
}

export async function storeDefaultSettings(settings: ConversationSettings): Promise<void> {
  await call("/settings", jsonRequest("PUT", { settings }));
}

export function contextUse(thread: string, model: string | null): Promise<ContextUse> {
  return json(`/threads/${id(thread)}/context${query({ model })}`);
}

// --- costs -----------------------------------------------------------------------------------------------------------

export interface Total {
  group: string | null; // the day, or the model
  messages: number;
  inputTokens: number;
  cachedInputTokens: number;
  cacheCreationInputTokens: number;
  outputTokens: number;
  costUsd: string | null; // sum of the priced answers; null if no answer has a price
  unpriced: number; // number of answers without a known price
}

export interface Cost {
  totalUsd: string | null; // sum of the priced answers; null if no answer has a price
  unpriced: number; // number of answers without a known price
  byDay: Total[];
  byModel: Total[];
  byThread: (Total & { title: string | null })[];
  byPerson: Total[] | null; // only for administrators who ask for everybody
  cacheSavedUsd: string | null;
}

// Days in UTC; `to` is the day after the last one.
export interface CostRange {
  from: string | null;
  to: string | null;
  people: "own" | "all";
}

export function cost(range: CostRange): Promise<Cost> {
  return json(`/cost${query({ ...range })}`);
}

export async function downloadCosts(range: CostRange): Promise<void> {
  await download(await call(`/cost/export${query({ ...range })}`), "costs.csv");
}

export function threadCost(thread: string): Promise<{ totalUsd: string | null; unpriced: number; byModel: Total[]; sharedAnswers: number; sharedUsd: string | null }> {
  return json(`/threads/${id(thread)}/cost${query({ limit: 1 })}`);
}

// --- attachments -----------------------------------------------------------------------------------------------------

export function upload(file: File, thread: string): Promise<Stored> {
  const form = new FormData();
  form.append("threadId", thread);
  form.append("file", file, file.name);
  return json("/attachments", { method: "POST", body: form });
}

// Returns a signed URL of a stored attachment.
export async function signedUrl(bucket: string, path: string): Promise<string> {
  return (await json<{ url: string }>(`/attachments/signed-url${query({ bucket, path })}`)).url;
}

// Image types that all supported browsers display. HEIC is not one of them.
export function isDisplayable(mime: string): boolean {
  return ["image/png", "image/jpeg", "image/gif", "image/webp"].includes(mime);
}

// Returns a relative URL if a local server names itself differently from the page (localhost, 127.0.0.1, [::1]).
export function localUrl(url: string): string {
  const target = new URL(url, location.href);
  const isLocal = (host: string) => ["localhost", "127.0.0.1", "[::1]"].includes(host);
  const isSame = isLocal(target.hostname) && isLocal(location.hostname) && target.port === location.port;
  return isSame ? target.pathname + target.search : url;
}

// --- runs ------------------------------------------------------------------------------------------------------------

const STREAM = { Accept: "text/event-stream" };

export function run(input: unknown, signal: AbortSignal): Promise<Response> {
  const init = jsonRequest("POST", input);
  return call("/runs", { ...init, headers: { ...init.headers, ...STREAM }, signal });
}

// Streams the events after `after`, or all events of the newest run. Status 204: there are none.
export function events(thread: string, after: number | null, signal: AbortSignal): Promise<Response> {
  const place = after === null ? {} : { "Last-Event-ID": String(after) };
  return call(`/runs/${id(thread)}/events`, { headers: { ...STREAM, ...place }, signal, cache: "no-store" });
}

export async function cancel(thread: string): Promise<void> {
  await call(`/runs/${id(thread)}/cancel`, { method: "POST" });
}
