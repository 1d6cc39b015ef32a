// The list of conversations, the search across them, and the ways to the other pages.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { useCell } from "../state/observable.ts";
import { era, withoutMarks } from "../lib/format.ts";
import { Icon, IconButton, type IconName } from "./icons.tsx";
import { Menu } from "./menu.tsx";
import { PAGES } from "../pages.tsx";
import { hashOf } from "../state/route.ts";
import { SearchResults } from "../search.tsx";
import * as shelf from "../state/app-state.ts";
import { startAnew } from "../lib/shortcuts.ts";
import { nextTheme, theme, type Theme } from "../lib/theme.ts";
import type { Thread } from "../api/types.ts";

const THEME_ICONS: Record<Theme, IconName> = { system: "system", light: "sun", dark: "moon" };

export function Sidebar() {
  const [words, setWords] = useState("");
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || event.isComposing) return;
    event.preventDefault();
    if (words) setWords("");
    else document.querySelector<HTMLElement>("#words")?.focus();
  };
  return (
    <nav class="sidebar" aria-label="Conversations">
      <header class="row between">
        <a class="brand" href="#/" onClick={(event) => (event.preventDefault(), startAnew())}>
          Dragoman
        </a>
        <IconButton icon="plus" label="New conversation" onClick={startAnew} />
      </header>
      <label class="search">
        <Icon name="search" size={16} />
        <span class="hidden">Search all conversations</span>
        <input id="search" type="search" placeholder="Search" value={words} onInput={(event) => setWords(event.currentTarget.value)} onKeyDown={onKeyDown} />
        <kbd aria-hidden="true">/</kbd>
      </label>
      <div class="list" onClick={closeDrawer}>{words.trim() ? <SearchResults words={words.trim()} /> : <Threads />}</div>
      <Footer />
    </nav>
  );
}

// Whoever follows a link wants to see what is there, also if they were there before.
function closeDrawer(event: Event): void {
  if ((event.target as HTMLElement).closest("a")) shelf.isDrawerOpen.set(false);
}

function Threads() {
  const threads = useCell(shelf.threads);
  const current = useCell(shelf.route);
  const now = new Date();
  if (threads === null) return <p class="hint">Loading …</p>;
  if (!threads.length) return <p class="hint">Your conversations will stand here.</p>;
  let heading = "";
  return (
    <>
      <ul>
        {threads.map((thread) => {
          const here = era(new Date(thread.updatedAt), now);
          const isFirst = here !== heading;
          heading = here;
          return (
            <>
              {isFirst && (
                <li class="era" key={here}>
                  {here}
                </li>
              )}
              <ThreadRow key={thread.id} thread={thread} isCurrent={current.page === "" && current.id === thread.id} />
            </>
          );
        })}
      </ul>
      {shelf.hasMoreThreads() && (
        <button type="button" class="quiet wide" onClick={() => void shelf.loadMoreThreads()}>
          Show more
        </button>
      )}
    </>
  );
}

function ThreadRow({ thread, isCurrent }: { thread: Thread; isCurrent: boolean }) {
  const name = thread.title || thread.snippet || "Untitled";
  return (
    <li class={`thread ${isCurrent ? "current" : ""}`}>
      <a href={hashOf({ id: thread.id })} aria-current={isCurrent ? "page" : undefined}>
        <span class="title">
          {thread.parentId && <Icon name="fork" size={14} />}
          <span>{name}</span>
        </span>
        {thread.title && thread.snippet && thread.snippet !== thread.title && <span class="snippet">{withoutMarks(thread.snippet)}</span>}
      </a>
      <Menu
        label={`More about ${name}`}
        deeds={[
          { label: "Rename", icon: "edit", does: () => shelf.dialog.set({ kind: "rename", thread }) },
          { label: "Fork", icon: "fork", does: () => void shelf.branch(thread.id, thread.lastSeq) },
          { label: "Export as Markdown", icon: "file", does: () => void shelf.trying(() => api.exported(thread.id, name)) },
          { label: "Delete", icon: "trash", does: () => shelf.dialog.set({ kind: "delete", thread }) },
        ]}
      />
    </li>
  );
}

function Footer() {
  const chosen = useCell(theme);
  const { page } = useCell(shelf.route);
  const [isOnline, setOnline] = useState(navigator.onLine);
  useEffect(() => {
    const look = () => setOnline(navigator.onLine);
    addEventListener("online", look);
    addEventListener("offline", look);
    return () => (removeEventListener("online", look), removeEventListener("offline", look));
  }, []);
  return (
    <footer class="row between">
      <div class="row pages">
        {PAGES.map((one) => (
          <a key={one.name} class="page-link" href={one.name ? `#/${one.name}` : hashOf({ id: shelf.open.value.view.value.items.length ? shelf.open.value.id : null })} aria-current={one.name === page ? "page" : undefined}>
            <Icon name={one.icon} size={16} />
            {one.label}
          </a>
        ))}
      </div>
      <div class="row">
        {!isOnline && <span class="muted">offline</span>}
        <IconButton icon={THEME_ICONS[chosen]} label={`Theme: ${chosen}`} onClick={nextTheme} />
        <IconButton icon="help" label="Keys" onClick={() => shelf.dialog.set({ kind: "help" })} />
      </div>
    </footer>
  );
}
