// Sidebar: conversation list, search, links to the other pages.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { useObservable } from "../state/observable.ts";
import { era, stripMarkdown } from "../lib/format.ts";
import { Icon, IconButton, type IconName } from "./icons.tsx";
import { Menu } from "./menu.tsx";
import { PAGES } from "../pages.tsx";
import { hashOf } from "../state/route.ts";
import { SearchResults } from "../search.tsx";
import * as appState from "../state/app-state.ts";
import { startNewChat } from "../lib/shortcuts.ts";
import { nextTheme, theme, type Theme } from "../lib/theme.ts";
import type { Thread } from "../api/types.ts";

const THEME_ICONS: Record<Theme, IconName> = { system: "system", light: "sun", dark: "moon" };
const EXPORTS = [
  { label: "Export as Markdown", format: "markdown" },
  { label: "Export for AG-UI", format: "ag_ui" },
  { label: "Export for the AI SDK", format: "vercel" },
];

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
        <a class="brand" href="#/" onClick={(event) => (event.preventDefault(), startNewChat())}>
          Dragoman
        </a>
        <IconButton icon="plus" label="New conversation" onClick={startNewChat} />
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

// A click on a link closes the drawer, even if the link is the current page.
function closeDrawer(event: Event): void {
  if ((event.target as HTMLElement).closest("a")) appState.isDrawerOpen.set(false);
}

function Threads() {
  const threads = useObservable(appState.threads);
  const current = useObservable(appState.route);
  const now = new Date();
  if (threads === null) return <p class="hint">Loading …</p>;
  if (!threads.length) return <p class="hint">Your conversations will appear here.</p>;
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
      {appState.hasMoreThreads() && (
        <button type="button" class="quiet wide" onClick={() => void appState.loadMoreThreads()}>
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
        {thread.title && thread.snippet && thread.snippet !== thread.title && <span class="snippet">{stripMarkdown(thread.snippet)}</span>}
      </a>
      <Menu
        label={`Actions for ${name}`}
        actions={[
          { label: "Rename", icon: "edit", run: () => appState.dialog.set({ kind: "rename", thread }) },
          { label: "Fork", icon: "fork", run: () => void appState.fork(thread.id, thread.lastSeq) },
          ...EXPORTS.map(({ label, format }) => ({
            label,
            icon: "file" as const,
            run: () => void appState.attempt(() => api.downloadThread(thread.id, name, format)),
          })),
          { label: "Delete", icon: "trash", run: () => appState.dialog.set({ kind: "delete", thread }) },
        ]}
      />
    </li>
  );
}

function Footer() {
  const chosen = useObservable(theme);
  const isAdmin = useObservable(appState.isAdmin);
  const { page } = useObservable(appState.route);
  const [isOnline, setOnline] = useState(navigator.onLine);
  useEffect(() => {
    const update = () => setOnline(navigator.onLine);
    addEventListener("online", update);
    addEventListener("offline", update);
    return () => (removeEventListener("online", update), removeEventListener("offline", update));
  }, []);
  return (
    <footer class="row between">
      <div class="row pages">
        {PAGES.filter((entry) => !entry.isForAdmins).map((entry) => (
          <a key={entry.name} class="page-link" href={entry.name ? `#/${entry.name}` : hashOf({ id: appState.open.value.view.value.items.length ? appState.open.value.id : null })} aria-current={entry.name === page ? "page" : undefined}>
            <Icon name={entry.icon} size={16} />
            {entry.label}
          </a>
        ))}
      </div>
      <div class="row">
        {!isOnline && <span class="muted">offline</span>}
        {isAdmin && (
          <a class="icon-button" href="#/providers" aria-label="Providers" title="Providers" aria-current={page === "providers" ? "page" : undefined}>
            <Icon name="key" />
          </a>
        )}
        <IconButton icon={THEME_ICONS[chosen]} label={`Theme: ${chosen}`} onClick={nextTheme} />
        <IconButton icon="help" label="Keyboard shortcuts" onClick={() => appState.dialog.set({ kind: "help" })} />
      </div>
    </footer>
  );
}
