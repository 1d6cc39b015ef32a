// The chat page: header, messages and message field.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Approvals } from "./approvals.tsx";
import { useObservable, useObservablePerFrame } from "../state/observable.ts";
import { Composer } from "./composer.tsx";
import type { Conversation } from "../state/conversation.ts";
import { Welcome } from "./welcome.tsx";
import { retryNow } from "../api/run-stream.ts";
import { modelName } from "../lib/format.ts";
import { Icon, IconButton } from "../components/icons.tsx";
import { Messages } from "./messages.tsx";
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
          <ErrorBanner view={view} conversation={conversation} />
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

function ErrorBanner({ view, conversation }: { view: View; conversation: Conversation }) {
  const { problem } = view;
  if (!problem) return null;
  const dismiss = () => conversation.view.change((now) => ({ ...now, problem: null }));
  return (
    <div class="banner bad" role="alert">
      <Icon name="warn" size={16} />
      <span>
        <strong>{problem.title}</strong> {problem.advice}
        {problem.requestId && <small class="muted"> Request {problem.requestId}</small>}
      </span>
      <IconButton icon="close" label="Dismiss" onClick={dismiss} />
    </div>
  );
}

// Scrolls to the end as messages arrive, unless the user has scrolled up.
function Scroll({ view, conversation }: { view: View; conversation: Conversation }) {
  const place = useRef<HTMLDivElement>(null);
  const [isAtEnd, setAtEnd] = useState(true);
  const { at } = useObservable(appState.route);
  const shown = useRef<string | null>(null);
  const heightBefore = useRef(0);

  useEffect(() => {
    if (view.run.state === "starting") setAtEnd(true);
  }, [view.run.state]);
  useLayoutEffect(() => {
    const box = place.current;
    if (!box) return;
    if (heightBefore.current) {
      box.scrollTop += box.scrollHeight - heightBefore.current; // keep the position when earlier messages are inserted
      heightBefore.current = 0;
    } else if (isAtEnd) box.scrollTop = box.scrollHeight;
  }, [view.items, view.interrupts, isAtEnd]);

  useEffect(() => {
    if (at === null || at === shown.current || view.isLoading) return;
    void conversation.loadBackTo(at).then(() =>
      requestAnimationFrame(() => {
        const message = document.getElementById(`m-${at}`);
        if (!message) return;
        shown.current = at;
        setAtEnd(false);
        message.scrollIntoView({ block: "center" });
        message.classList.add("highlight");
        message.focus({ preventScroll: true });
      }),
    );
  }, [at, view.isLoading]);

  const onScroll = () => {
    const box = place.current;
    if (box) setAtEnd(box.scrollHeight - box.scrollTop - box.clientHeight < 80);
  };
  const showEarlier = () => {
    heightBefore.current = place.current?.scrollHeight ?? 0;
    void conversation.loadEarlier();
  };
  const isEmpty = !view.items.length && !view.isLoading && !isBusy(view);
  return (
    <div class="scroll-place">
      <div class="scroll" ref={place} onScroll={onScroll} tabindex={0} aria-label="Messages" role="region">
        {isEmpty ? <Welcome /> : <Messages view={view} conversation={conversation} onEarlier={showEarlier} />}
      </div>
      {!isAtEnd && (
        <button type="button" class="to-end" onClick={() => setAtEnd(true)}>
          <Icon name="down" size={16} /> Newest
        </button>
      )}
    </div>
  );
}
