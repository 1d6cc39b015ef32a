// State of the list of conversations beside the pages that app-state.ts loads: pins, tags and the selection.
import * as api from "../api/client.ts";
import type { Thread } from "../api/types.ts";
import * as appState from "../state/app-state.ts";
import { Observable } from "../state/observable.ts";
import * as organise from "./api.ts";

export const pinned = new Observable<Thread[]>([]);
export const tags = new Observable<organise.TagCount[]>([]);
export const tag = new Observable<string | null>(null); // the list shows only conversations with this tag
export const tagged = new Observable<Thread[] | null>(null);
export const selection = new Observable<ReadonlySet<string> | null>(null); // null: nothing can be selected

export async function loadLabels(): Promise<void> {
  const [pins, counts] = await Promise.all([organise.pinnedThreads(), organise.tags()]).catch(() => [[], []] as [Thread[], organise.TagCount[]]);
  pinned.set(pins);
  tags.set(counts);
  if (tag.value !== null) await filterBy(tag.value);
}

export async function filterBy(name: string | null): Promise<void> {
  tag.set(name);
  if (name === null) return tagged.set(null);
  await appState.attempt(async () => tagged.set(await organise.threadsWithTag(name)));
}

export async function change(thread: Thread, update: { pinned?: boolean; tags?: string[] }): Promise<void> {
  await appState.attempt(async () => {
    appState.putThread(await api.changeThread(thread.id, update));
    await loadLabels();
  });
}

export function toggleSelected(id: string): void {
  selection.change((chosen) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    return next;
  });
}

// Tags of a text field, separated by commas.
export function tagsFrom(text: string): string[] {
  return [...new Set(text.split(",").map((part) => part.trim().replace(/\s+/g, " ")).filter(Boolean))];
}
