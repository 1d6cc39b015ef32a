// The chat page: header, messages and message field.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Approvals } from "./approvals.tsx";
import { useObservable, useObservablePerFrame } from "../state/observable.ts";
import { Composer } from "./composer.tsx";
import type { Conversation } from "../state/conversation.ts";
import { Welcome } from "./welcome.tsx";
import { retryNow } from "../api/run-stream.ts";
import { modelName } from "../lib/format.ts";
import { GROWTH } from "../lib/preview.ts";
import { Icon, IconButton } from "../components/icons.tsx";
import { Messages } from "./messages.tsx";
import { ProblemBanner } from "./problem-banner.tsx";
import { chosenModel } from "./model-picker.tsx";
import { hashOf } from "../state/route.ts";
import * as appState from "../state/app-state.ts";
import { isBusy, type View } from "../state/view-model.ts";

export function Chat() {
  const conversation = useObservable(appState.open);
  return <OpenConversation key={conversation.id} conversation={conversation} />;
}

function OpenConversation({ conversation }: { conversation: Conversation }) {
  const view = useObservablePerFrame(conversation.view);
  return (
    <section class="chat" aria-label="Conversation">
      <Head view={view} />
      <Scroll view={view} conversation={conversation} />
      <div class="bottom">
        <div class="bottom-measure">
          <Connection view={view} />
          <Approvals conversation={conversation} view={view} />
          {view.problem && <ProblemBanner problem={view.problem} conversation={conversation} />}
          <Composer conversation={conversation} view={view} />
        </div>
      </div>
    </section>
  );
}

function Head({ view }: { view: View }) {
  const isKnown = useObservable(appState.models).length > 0;
  const thread = appState.useThread(view.threadId);
  const parent = appState.useThread(thread?.parentId ?? null);
  const model = chosenModel(view.threadId);
  const title = thread?.title || firstWords(view) || "New conversation";
  useEffect(() => {
    document.title = `${title} · Dragoman`;
    return () => void (document.title = "Dragoman");
  }, [title]);
  return (
    <header class="head row between">
      <IconButton icon="menu" label="Conversations" class="narrow-only" onClick={() => appState.isDrawerOpen.set(true)} />
      <div class="titles">
        <h1>{title}</h1>
        {thread?.parentId && (
          <a class="muted small" href={hashOf({ id: thread.parentId })}>
            forked from {parent?.title || "another conversation"}
          </a>
        )}
      </div>
      <Spent view={view} />
      <IconButton icon="sliders" label="Settings of this conversation" onClick={() => appState.dialog.set({ kind: "settings" })} />
      <button type="button" class="model-button" onClick={() => appState.dialog.set({ kind: "models" })} aria-label={`Model: ${model ? modelName(model) : "automatic"}. Choose another`}>
        <span>{model ? modelName(model) : isKnown ? "Automatic" : "…"}</span>
        <Icon name="down" size={14} />
      </button>
    </header>
  );
}

// Title of a conversation without a title: the start of its first message.
function firstWords(view: View): string {
  const first = view.items.find((item) => item.kind === "user");
  return first ? first.text.slice(0, 80) || "Untitled" : "";
}

function Spent({ view }: { view: View }) {
  if (view.spent === null || !view.items.length) return null;
  return (
    <button type="button" class="quiet spent" onClick={() => appState.dialog.set({ kind: "cost" })} title="Cost of this conversation">
      {view.spent}
    </button>
  );
}

function Connection({ view }: { view: View }) {
  return (
    <div class="connection" role="status">
      {view.run.state === "lost" && (
        <p class="banner warn">
          <Icon name="warn" size={16} />
          <span>The connection is lost. The answer continues on the server; reconnecting …</span>
          <button type="button" onClick={retryNow}>
            Reconnect now
          </button>
        </p>
      )}
    </div>
  );
}

const LOAD_AHEAD_PX = 800;

interface Anchor {
  element: Element;
  top: number;
}

// Scrolls to the end as messages arrive, unless the user has scrolled up. Loads more messages near both ends.
function Scroll({ view, conversation }: { view: View; conversation: Conversation }) {
  const place = useRef<HTMLDivElement>(null);
  const [isAtEnd, setAtEnd] = useState(true);
  const { at, seq } = useObservable(appState.route);
  const shown = useRef<string | null>(null);
  const anchor = useRef<Anchor | null>(null);
  const follows = isAtEnd && !view.hasLater;

  useEffect(() => {
    if (view.run.state === "starting") setAtEnd(true);
  }, [view.run.state]);
  useLayoutEffect(() => {
    const box = place.current;
    if (!box) return;
    const target = at === null || at === shown.current ? null : document.getElementById(`m-${at}`);
    if (target) {
      shown.current = at;
      setAtEnd(false);
      showMessage(target);
    } else if (anchor.current?.element.isConnected) {
      box.scrollTop += anchor.current.element.getBoundingClientRect().top - anchor.current.top; // keep the position
      anchor.current = null;
    } else if (follows) box.scrollTop = box.scrollHeight;
  }, [view.items, view.interrupts, follows, at]);

  const isEmpty = !view.items.length && !view.isLoading && !isBusy(view);
  const isKept = useRef(false);
  isKept.current = follows && !isEmpty;
  useEffect(() => (place.current ? keepAtEnd(place.current, isKept) : undefined), []);

  useEffect(() => {
    if (at !== null && at !== shown.current && seq !== null && !view.isLoading) void conversation.loadAround(seq);
  }, [at, view.isLoading]);

  const load = (action: () => Promise<void>) => {
    anchor.current = place.current && firstVisible(place.current);
    void action();
  };
  const onScroll = () => {
    const box = place.current;
    if (!box) return;
    const toEnd = box.scrollHeight - box.scrollTop - box.clientHeight;
    const isJumping = at !== null && at !== shown.current && view.items.some((item) => item.id === at);
    if (isJumping) return; // the position is about to change
    setAtEnd(toEnd < 80);
    if (view.hasEarlier && box.scrollTop < LOAD_AHEAD_PX) load(() => conversation.loadEarlier());
    else if (view.hasLater && toEnd < LOAD_AHEAD_PX) load(() => conversation.loadLater());
  };
  const showNewest = () => void conversation.loadNewest().then(() => setAtEnd(true));
  return (
    <div class="scroll-place">
      <div class="scroll" ref={place} onScroll={onScroll} tabindex={0} aria-label="Messages" role="region">
        {isEmpty ? <Welcome /> : <Messages view={view} conversation={conversation} onEarlier={() => load(() => conversation.loadEarlier())} />}
      </div>
      {!follows && (
        <button type="button" class="to-end" onClick={showNewest}>
          <Icon name="down" size={16} /> Newest
        </button>
      )}
    </div>
  );
}

// Diagrams, formulas and images get their height late, and the window changes its size.
function keepAtEnd(box: HTMLElement, isKept: { current: boolean }): () => void {
  const scroll = () => {
    if (isKept.current) box.scrollTop = box.scrollHeight;
  };
  const observer = new ResizeObserver(scroll);
  observer.observe(box);
  box.addEventListener("load", scroll, true);
  box.addEventListener(GROWTH, scroll);
  return () => {
    observer.disconnect();
    box.removeEventListener("load", scroll, true);
    box.removeEventListener(GROWTH, scroll);
  };
}

function showMessage(message: HTMLElement): void {
  message.scrollIntoView({ block: "center" });
  message.classList.add("highlight");
  message.focus({ preventScroll: true });
}

function firstVisible(box: HTMLElement): Anchor | null {
  const { top } = box.getBoundingClientRect();
  const element = [...box.querySelectorAll("article")].find((article) => article.getBoundingClientRect().bottom > top);
  return element ? { element, top: element.getBoundingClientRect().top } : null;
}
