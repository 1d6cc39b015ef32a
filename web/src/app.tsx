// Page layout: sidebar, current page, dialogs and notices.
import { needsKey } from "./api/client.ts";
import { useObservable } from "./state/observable.ts";
import { Dialogs } from "./components/dialogs.tsx";
import { KeyPrompt } from "./components/key-prompt.tsx";
import { PAGES, type Page } from "./pages.tsx";
import * as appState from "./state/app-state.ts";
import { lazy } from "./components/lazy.tsx";
import { step as tourStep } from "./tour/state.ts";
import { Sidebar } from "./components/sidebar.tsx";

const Tour = lazy(async () => (await import("./extras.ts")).Tour);

export function App() {
  const route = useObservable(appState.route);
  const isDrawerOpen = useObservable(appState.isDrawerOpen);
  const notice = useObservable(appState.notice);
  const isLocked = useObservable(needsKey);
  const isTouring = useObservable(tourStep) !== null;
  const page = PAGES.find((entry) => entry.name === route.page) ?? (PAGES[0] as Page);
  return (
    <>
      <a class="skip" href={page.name === "" ? "#words" : "#content"} onClick={skip}>
        {page.name === "" ? "Skip to the message field" : "Skip to the content"}
      </a>
      <div class={`frame ${isDrawerOpen ? "drawer-open" : ""}`}>
        <Sidebar />
        <div class="backdrop" onClick={() => appState.isDrawerOpen.set(false)} />
        <main id="content" inert={isDrawerOpen && isNarrow()}>{page.show()}</main>
      </div>
      <Dialogs />
      {isTouring && <Tour />}
      {isLocked && <KeyPrompt />}
      <div class="notice" role="status">
        {notice && <span>{notice}</span>}
      </div>
    </>
  );
}

function isNarrow(): boolean {
  return matchMedia("(max-width: 48rem)").matches;
}

function skip(event: Event): void {
  event.preventDefault();
  const find = (selector: string) => document.querySelector<HTMLElement>(selector);
  (find("#words") ?? find("main .scroll"))?.focus();
}
