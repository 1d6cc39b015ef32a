// Sidebar: conversation list, search, links to the other pages.
import { useEffect, useState } from "preact/hooks";
import { useObservable } from "../state/observable.ts";
import { Icon, IconButton, type IconName } from "./icons.tsx";
import { PAGES } from "../pages.tsx";
import { hashOf } from "../state/route.ts";
import { SearchResults } from "../search.tsx";
import { ThreadList } from "../organise/thread-list.tsx";
import * as appState from "../state/app-state.ts";
import { startNewChat } from "../lib/shortcuts.ts";
import { nextTheme, theme, type Theme } from "../lib/theme.ts";

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
      <div class="list" onClick={closeDrawer}>{words.trim() ? <SearchResults words={words.trim()} /> : <ThreadList />}</div>
      <Footer />
    </nav>
  );
}

// A click on a link closes the drawer, even if the link is the current page.
function closeDrawer(event: Event): void {
  if ((event.target as HTMLElement).closest("a")) appState.isDrawerOpen.set(false);
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
        {PAGES.filter((entry) => !entry.isForAdmins && !entry.isHidden).map((entry) => (
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
