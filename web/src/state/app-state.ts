// Global state of the page: route, conversation list, models, dialogs and notices. The state of one conversation is in
// conversation.ts.
import * as api from "../api/client.ts";
import { Observable } from "./observable.ts";
import { Conversation, type Draft } from "./conversation.ts";
import { ulid } from "../lib/ulid.ts";
import { hashOf, routeFrom, type Route } from "./route.ts";
import type { Model, Thread } from "../api/types.ts";

export const route = new Observable<Route>(routeFrom(location.hash));
export const threads = new Observable<Thread[] | null>(null);
export const models = new Observable<Model[]>([]);
export const notice = new Observable<string | null>(null);
export const dialog = new Observable<Dialog | null>(null);
export const isDrawerOpen = new Observable(false);
export const open = new Observable(newConversation());
export const drafts = new Map<string, Draft>(); // unsent text and files, by conversation id

export type Dialog =
  | { kind: "models" }
  | { kind: "help" }
  | { kind: "cost" }
  | { kind: "rename"; thread: Thread }
  | { kind: "delete"; thread: Thread }
  | { kind: "show-as"; messageId: string };

let nextPage: string | null = null;

export function hasMoreThreads(): boolean {
  return nextPage !== null;
}

export async function loadThreads(): Promise<void> {
  await attempt(async () => {
    const page = await api.threads();
    nextPage = page.cursor;
    threads.set(page.threads);
  });
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
  await attempt(async () => models.set(await api.models()));
}

export function thread(id: string): Thread | null {
  return threads.value?.find((row) => row.id === id) ?? null;
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
  if (to.page === "" && !isOpenAt(to)) switchTo(to.id === null ? newConversation() : new Conversation(to.id, false, reloadThreads));
  route.set(to);
}

// Returns whether the conversation of a route is open. Without an id: a new conversation without messages.
function isOpenAt({ id }: Route): boolean {
  const { view } = open.value;
  return id === null ? !view.value.items.length && !view.value.isLoading : id === open.value.id;
}

export function startConversation(draft?: Draft): void {
  const next = newConversation();
  if (draft) drafts.set(next.id, draft);
  switchTo(next);
  navigate({});
  route.set({ page: "", id: null, at: null });
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

function switchTo(next: Conversation): void {
  open.value.close();
  open.set(next);
}

function reloadThreads(): void {
  void loadThreads();
}

// --- conversation actions --------------------------------------------------------------------------------------------

export async function rename(id: string, title: string): Promise<void> {
  await attempt(async () => {
    await api.changeThread(id, { title });
    await loadThreads();
  });
}

export async function remove(id: string): Promise<void> {
  await attempt(async () => {
    await api.deleteThread(id);
    if (open.value.id === id) startConversation();
    await loadThreads();
    showNotice("Deleted");
  });
}

// Forks a conversation at a message, optionally with a draft for the next message.
export async function branch(id: string, atSeq: number, draft?: Draft): Promise<void> {
  if (atSeq < 1) return startConversation(draft);
  await attempt(async () => {
    const fork = await api.fork(id, atSeq);
    if (draft) drafts.set(fork.id, draft);
    await loadThreads();
    navigate({ id: fork.id });
    showNotice(draft ? "New branch created; the original is still in the list" : "Fork created; the original is still in the list");
  });
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
