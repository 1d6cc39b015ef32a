// Global state of the page: route, conversation list, models, dialogs and notices. The state of one conversation is in
// conversation.ts.
import * as api from "../api/client.ts";
import { Observable, useObservable } from "./observable.ts";
import { Conversation, type Draft } from "./conversation.ts";
import { drafts } from "./drafts.ts";
import { ulid } from "../lib/ulid.ts";
import { hashOf, routeFrom, type Route } from "./route.ts";
import type { Model, Thread } from "../api/types.ts";

export const route = new Observable<Route>(routeFrom(location.hash));
export const threads = new Observable<Thread[] | null>(null); // the loaded part of the list
export const models = new Observable<Model[]>([]);
export const isAdmin = new Observable(false); // may change providers
export const notice = new Observable<string | null>(null);
export const dialog = new Observable<Dialog | null>(null);
export const isDrawerOpen = new Observable(false);
export const open = new Observable(newConversation());
export const branch = new Observable<Branch | null>(null); // the edited question of the open conversation
const unlisted = new Observable<ReadonlyMap<string, Thread>>(new Map()); // opened conversations beyond the loaded list

// An edited question: a fork of the conversation is created when it is sent.
export interface Branch {
  threadId: string;
  atSeq: number; // last message that the fork shares
  draft: Draft;
}

export type Dialog =
  | { kind: "models"; onChoose?: (model: string) => void; candidate?: string | null } // without onChoose: the model of the open conversation
  | { kind: "help" }
  | { kind: "settings" } // of the open conversation
  | { kind: "image"; url: string; name: string }
  | { kind: "cost" }
  | { kind: "rename"; thread: Thread }
  | { kind: "delete"; thread: Thread }
  | { kind: "show-as"; messageId: string }
  | { kind: "tags"; thread: Thread }
  | { kind: "export"; thread: Thread | null } // null: the selected ones
  | { kind: "share"; thread: Thread }
  | { kind: "compare"; draft: Draft; onSent: () => void };

let nextPage: string | null = null;
let loads = 0; // requests of the first page

export function hasMoreThreads(): boolean {
  return nextPage !== null;
}

// Loads the first page, and keeps later pages that were loaded before.
export async function loadThreads(): Promise<void> {
  const load = ++loads;
  await attempt(async () => {
    const page = await api.threads();
    if (load !== loads) return; // a later request has newer rows
    const ids = new Set(page.threads.map((row) => row.id));
    const oldest = Date.parse(page.threads.at(-1)?.updatedAt ?? "");
    const isLater = (row: Thread) => page.cursor !== null && !ids.has(row.id) && Date.parse(row.updatedAt) <= oldest;
    const later = (threads.value ?? []).filter(isLater);
    if (!later.length) nextPage = page.cursor;
    threads.set([...page.threads, ...later]);
  });
}

// Loads a conversation that is not in the loaded list, and its parent.
async function loadThread(id: string): Promise<void> {
  const row = thread(id) ?? (await api.thread(id).catch(() => null)); // loading its messages reports an error
  if (row === null) return;
  putThread(row);
  if (row.parentId !== null && thread(row.parentId) === null) await loadThread(row.parentId);
}

export function putThread(row: Thread): void {
  if (threads.value?.some(({ id }) => id === row.id)) threads.change((rows) => rows?.map((other) => (other.id === row.id ? row : other)) ?? null);
  else unlisted.change((rows) => new Map(rows).set(row.id, row));
}

export async function loadMoreThreads(): Promise<void> {
  if (nextPage === null) return;
  await attempt(async () => {
    const page = await api.threads(nextPage);
    nextPage = page.cursor;
    threads.change((known) => [...(known ?? []), ...page.threads]);
  });
}

export async function loadModels(): Promise<void> {
  await attempt(async () => {
    const list = await api.models();
    isAdmin.set(list.canManageProviders);
    models.set(list.models);
  });
}

export function thread(id: string): Thread | null {
  return threads.value?.find((row) => row.id === id) ?? unlisted.value.get(id) ?? null;
}

export function useThread(id: string | null): Thread | null {
  useObservable(threads);
  useObservable(unlisted);
  return id === null ? null : thread(id);
}

// --- navigation ------------------------------------------------------------------------------------------------------

export function navigate(to: Partial<Route>): void {
  location.hash = hashOf(to);
}

export function watchAddress(): void {
  addEventListener("hashchange", onAddressChange);
  onAddressChange();
}

function onAddressChange(): void {
  const to = routeFrom(location.hash);
  isDrawerOpen.set(false);
  if (to.page === "" && !isOpenAt(to)) switchTo(to.id === null ? newConversation() : openConversation(to.id, to.seq));
  route.set(to);
}

// Returns whether the conversation of a route is open. Without an id: a new conversation without messages.
function isOpenAt({ id }: Route): boolean {
  const { view } = open.value;
  return id === null ? !view.value.items.length && !view.value.isLoading : id === open.value.id;
}

export function startConversation(): void {
  switchTo(newConversation());
  navigate({});
  route.set({ page: "", id: null, at: null, seq: null });
}

// A new conversation gets its address with its first message.
export function setAddress(conversation: Conversation): void {
  if (route.value.id !== null || open.value !== conversation) return;
  history.replaceState(null, "", hashOf({ id: conversation.id }));
  route.set(routeFrom(location.hash));
}

function newConversation(): Conversation {
  return new Conversation(`sess_${ulid()}`, true, reloadThreads);
}

function openConversation(id: string, aroundSeq: number | null = null): Conversation {
  void loadThread(id);
  return new Conversation(id, false, reloadThreads, aroundSeq);
}

function switchTo(next: Conversation): void {
  open.value.close();
  branch.set(null);
  open.set(next);
}

function reloadThreads(): void {
  void loadThreads();
}

// The key of local data of a conversation: all new conversations of a tab share one, because their ids change on reload.
export function storageKey(id: string): string {
  return open.value.id === id && open.value.isNew ? "new" : id;
}

// --- conversation actions --------------------------------------------------------------------------------------------

export async function rename(id: string, title: string): Promise<void> {
  await attempt(async () => {
    putThread(await api.changeThread(id, { title }));
  });
}

export async function remove(id: string): Promise<void> {
  await attempt(async () => {
    await api.deleteThread(id);
    if (open.value.id === id) startConversation();
    drafts.delete(id);
    threads.change((rows) => rows?.filter((row) => row.id !== id) ?? null);
    showNotice("Deleted");
  });
}

export async function fork(id: string, atSeq: number): Promise<void> {
  await attempt(async () => {
    const row = await api.fork(id, atSeq);
    await loadThreads();
    navigate({ id: row.id });
    showNotice("Fork created; the original is still in the list");
  });
}

// Sends a question in a new fork of the conversation and opens the fork. If the question is not accepted, the fork is
// deleted, the original is open again and false is returned.
export async function sendInBranch({ threadId, atSeq, draft }: Branch, model: string | null): Promise<boolean> {
  let isSent = false;
  await attempt(async () => {
    const row = await api.fork(threadId, atSeq);
    putThread(row);
    const next = openConversation(row.id);
    show(next);
    await next.loaded;
    isSent = await next.send(draft, model);
    if (isSent && model !== null) {
      putThread(await api.changeThread(row.id, { model }));
      await loadThreads(); // supersedes a request that was sent before the change
    }
    if (isSent) return;
    const { problem } = next.view.value;
    await api.deleteThread(row.id);
    show(openConversation(threadId));
    branch.set({ threadId, atSeq, draft });
    open.value.view.change((view) => ({ ...view, problem }));
  });
  return isSent;
}

function show(conversation: Conversation): void {
  switchTo(conversation);
  navigate({ id: conversation.id });
}

// --- notices ---------------------------------------------------------------------------------------------------------

let timer = 0;

export function showNotice(text: string): void {
  notice.set(text);
  clearTimeout(timer);
  timer = setTimeout(() => notice.set(null), 3000) as unknown as number;
}

export async function attempt(action: () => Promise<unknown>): Promise<void> {
  try {
    await action();
  } catch (error) {
    const { title, advice, code } = api.problemFrom(error);
    if (code !== "unauthorized") showNotice(`${title} ${advice}`);
  }
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    showNotice("Copied");
  } catch {
    showNotice("The browser blocked the clipboard. Select the text and copy it manually.");
  }
}
