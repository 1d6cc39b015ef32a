// What every part of the page shares: where we are, the list of conversations, the models, and short notices.
// The one rule: what belongs to one conversation is not here but in it (conversation.ts).
import * as api from "../api/client.ts";
import { Cell } from "./observable.ts";
import { Conversation, type Draft } from "./conversation.ts";
import { ulid } from "../lib/ulid.ts";
import { hashOf, routeFrom, type Route } from "./route.ts";
import type { Model, Thread } from "../api/types.ts";

export const route = new Cell<Route>(routeFrom(location.hash));
export const threads = new Cell<Thread[] | null>(null);
export const models = new Cell<Model[]>([]);
export const notice = new Cell<string | null>(null);
export const dialog = new Cell<Dialog | null>(null);
export const isDrawerOpen = new Cell(false);
export const open = new Cell(beginning());
export const drafts = new Map<string, Draft>(); // what was written and not yet sent, by conversation

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
  await trying(async () => {
    const page = await api.threads();
    nextPage = page.cursor;
    threads.set(page.threads);
  });
}

export async function loadMoreThreads(): Promise<void> {
  if (nextPage === null) return;
  await trying(async () => {
    const page = await api.threads(nextPage);
    nextPage = page.cursor;
    threads.change((known) => [...(known ?? []), ...page.threads]);
  });
}

export async function loadModels(): Promise<void> {
  await trying(async () => models.set(await api.models()));
}

export function thread(id: string): Thread | null {
  return threads.value?.find((one) => one.id === id) ?? null;
}

// --- where we are ----------------------------------------------------------------------------------------------------

export function go(to: Partial<Route>): void {
  location.hash = hashOf(to);
}

export function followAddress(): void {
  addEventListener("hashchange", arrive);
  arrive();
}

function arrive(): void {
  const to = routeFrom(location.hash);
  isDrawerOpen.set(false);
  if (to.page === "" && !isThere(to)) change(to.id === null ? beginning() : new Conversation(to.id, false, settled));
  route.set(to);
}

// Whether the conversation of an address is open: without an id, one in which nothing was said yet.
function isThere({ id }: Route): boolean {
  const { view } = open.value;
  return id === null ? !view.value.items.length && !view.value.isLoading : id === open.value.id;
}

export function begin(draft?: Draft): void {
  const next = beginning();
  if (draft) drafts.set(next.id, draft);
  change(next);
  go({});
  route.set({ page: "", id: null, at: null });
}

// A conversation that was begun here gets its address with its first message.
export function named(conversation: Conversation): void {
  if (route.value.id !== null || open.value !== conversation) return;
  history.replaceState(null, "", hashOf({ id: conversation.id }));
  route.set(routeFrom(location.hash));
}

function beginning(): Conversation {
  return new Conversation(`sess_${ulid()}`, true, settled);
}

function change(next: Conversation): void {
  open.value.close();
  open.set(next);
}

function settled(): void {
  void loadThreads();
}

// --- deeds on conversations ------------------------------------------------------------------------------------------

export async function rename(id: string, title: string): Promise<void> {
  await trying(async () => {
    await api.changeThread(id, { title });
    await loadThreads();
  });
}

export async function remove(id: string): Promise<void> {
  await trying(async () => {
    await api.deleteThread(id);
    if (open.value.id === id) begin();
    await loadThreads();
    say("Deleted");
  });
}

// A conversation that shares this one up to a message; the draft is what it goes on with.
export async function branch(id: string, atSeq: number, draft?: Draft): Promise<void> {
  if (atSeq < 1) return begin(draft);
  await trying(async () => {
    const made = await api.fork(id, atSeq);
    if (draft) drafts.set(made.id, draft);
    await loadThreads();
    go({ id: made.id });
    say(draft ? "A new branch; the old one stays in the list" : "Forked; the original stays in the list");
  });
}

// --- notices ---------------------------------------------------------------------------------------------------------

let timer = 0;

export function say(words: string): void {
  notice.set(words);
  clearTimeout(timer);
  timer = setTimeout(() => notice.set(null), 3000) as unknown as number;
}

export async function trying(deed: () => Promise<unknown>): Promise<void> {
  try {
    await deed();
  } catch (error) {
    const { title, advice, code } = api.problemFrom(error);
    if (code !== "unauthorized") say(`${title} ${advice}`);
  }
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied");
  } catch {
    say("The browser did not allow copying. Select the text and copy it by hand.");
  }
}
