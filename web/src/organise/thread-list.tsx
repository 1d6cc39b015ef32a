// The list of conversations: pins first, then by time; tags filter it, arrow keys move in it.
import { useEffect } from "preact/hooks";
import { Icon } from "../components/icons.tsx";
import { Menu, type MenuAction } from "../components/menu.tsx";
import { era, plural, stripMarkdown } from "../lib/format.ts";
import * as appState from "../state/app-state.ts";
import { useObservable } from "../state/observable.ts";
import { hashOf } from "../state/route.ts";
import type { Thread } from "../api/types.ts";
import { writeTitle } from "./api.ts";
import { change, filterBy, loadLabels, pinned, selection, tag, tagged, tags, toggleSelected } from "./labels.ts";

export function ThreadList() {
  const threads = useObservable(appState.threads);
  const pins = useObservable(pinned);
  const filter = useObservable(tag);
  const found = useObservable(tagged);
  const isLoaded = threads !== null;
  useEffect(() => {
    if (isLoaded) void loadLabels();
  }, [isLoaded]);
  if (threads === null) return <p class="hint">Loading …</p>;
  if (!threads.length) return <p class="hint">Your conversations will appear here.</p>;
  return (
    <div onKeyDown={moveFocus}>
      <TagBar />
      <SelectionBar />
      {filter !== null ? <Rows threads={found ?? []} /> : <Rows threads={threads} pins={pins} />}
      {filter !== null && found?.length === 0 && <p class="hint">No conversation has this tag.</p>}
      {filter === null && appState.hasMoreThreads() && (
        <button type="button" class="quiet wide" onClick={() => void appState.loadMoreThreads()}>
          Show more
        </button>
      )}
    </div>
  );
}

function Rows({ threads, pins = [] }: { threads: readonly Thread[]; pins?: readonly Thread[] }) {
  const current = useObservable(appState.route);
  const now = new Date();
  const pinnedIds = new Set(pins.map((thread) => thread.id));
  const rows = [...pins.map((thread) => ({ thread, heading: "Pinned" })), ...threads.filter(({ id }) => !pinnedIds.has(id)).map((thread) => ({ thread, heading: era(new Date(thread.updatedAt), now) }))];
  return (
    <ul>
      {rows.map(({ thread, heading }, at) => (
        <>
          {heading !== rows[at - 1]?.heading && (
            <li class="era" key={heading}>
              {heading}
            </li>
          )}
          <ThreadRow key={thread.id} thread={thread} isCurrent={current.page === "" && current.id === thread.id} />
        </>
      ))}
    </ul>
  );
}

function TagBar() {
  const counts = useObservable(tags);
  const filter = useObservable(tag);
  if (!counts.length) return null;
  return (
    <div class="tag-bar" role="group" aria-label="Tags">
      {counts.map((row) => (
        <button key={row.tag} type="button" class="chip" aria-pressed={filter === row.tag} onClick={() => void filterBy(filter === row.tag ? null : row.tag)}>
          {row.tag} <span class="muted">{row.threads}</span>
        </button>
      ))}
    </div>
  );
}

function SelectionBar() {
  const chosen = useObservable(selection);
  if (chosen === null) return null;
  return (
    <div class="selection-bar row between small" role="status">
      <span>{plural(chosen.size, "conversation")} selected</span>
      <span class="row">
        <button type="button" disabled={!chosen.size} onClick={() => appState.dialog.set({ kind: "export", thread: null })}>
          Export
        </button>
        <button type="button" onClick={() => selection.set(null)}>
          Done
        </button>
      </span>
    </div>
  );
}

function ThreadRow({ thread, isCurrent }: { thread: Thread; isCurrent: boolean }) {
  const chosen = useObservable(selection);
  const name = thread.title || thread.snippet || "Untitled";
  return (
    <li class={`thread ${isCurrent ? "current" : ""}`}>
      {chosen !== null && <input type="checkbox" aria-label={`Select ${name}`} checked={chosen.has(thread.id)} onChange={() => toggleSelected(thread.id)} />}
      <a href={hashOf({ id: thread.id })} aria-current={isCurrent ? "page" : undefined}>
        <span class="title">
          {thread.parentId && <Icon name="fork" size={14} />}
          {thread.pinned && <Icon name="pin" size={14} />}
          <span>{name}</span>
        </span>
        {thread.title && thread.snippet && thread.snippet !== thread.title && <span class="snippet">{stripMarkdown(thread.snippet)}</span>}
        {thread.tags.length > 0 && <span class="snippet">{thread.tags.map((each) => `#${each}`).join(" ")}</span>}
      </a>
      <Menu label={`Actions for ${name}`} actions={actionsFor(thread)} />
    </li>
  );
}

function actionsFor(thread: Thread): MenuAction[] {
  return [
    { label: thread.pinned ? "Unpin" : "Pin", icon: "pin", run: () => void change(thread, { pinned: !thread.pinned }) },
    { label: "Rename", icon: "edit", run: () => appState.dialog.set({ kind: "rename", thread }) },
    { label: "Let the model write a title", icon: "edit", run: () => void appState.attempt(async () => appState.putThread(await writeTitle(thread.id))) },
    { label: "Tags", icon: "tag", run: () => appState.dialog.set({ kind: "tags", thread }) },
    { label: "Fork", icon: "fork", run: () => void appState.fork(thread.id, thread.lastSeq) },
    { label: "Export", icon: "file", run: () => appState.dialog.set({ kind: "export", thread }) },
    { label: "Share", icon: "share", run: () => appState.dialog.set({ kind: "share", thread }) },
    { label: "Select several", icon: "check", run: () => (selection.set(new Set([thread.id])), undefined) },
    { label: "Delete", icon: "trash", run: () => appState.dialog.set({ kind: "delete", thread }) },
  ];
}

// Arrow keys, Home and End move between the conversations.
function moveFocus(event: KeyboardEvent): void {
  const links = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>(".thread > a")];
  const at = links.indexOf(document.activeElement as HTMLElement);
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  links[Math.max(0, Math.min(next, links.length - 1))]?.focus();
}
