// The messages of a conversation.
import { useState } from "preact/hooks";
import { memo } from "../components/memo.ts";
import { Call } from "./tool-call.tsx";
import * as api from "../api/client.ts";
import type { Conversation, Draft } from "../state/conversation.ts";
import { Attachments } from "./attachments.tsx";
import { modelName, moment, plural } from "../lib/format.ts";
import { Icon, IconButton } from "../components/icons.tsx";
import { MarkdownText } from "../components/markdown-text.tsx";
import { Picture } from "./picture.tsx";
import { ReceiptLine } from "./receipt.tsx";
import { LIVE } from "../state/reducer.ts";
import * as appState from "../state/app-state.ts";
import { useObservable } from "../state/observable.ts";
import type { Versions } from "../api/types.ts";
import { isBusy, type AnswerItem, type Item, type Part, type UserItem, type View } from "../state/view-model.ts";

interface MessagesProps {
  view: View;
  conversation: Conversation;
  onEarlier: () => void;
}

export function Messages({ view, conversation, onEarlier }: MessagesProps) {
  const waiting = new Set(view.interrupts.map((interrupt) => interrupt.toolCallId));
  const branch = useObservable(appState.branch);
  const versions = new Map(view.versions.map((version) => [version.seq, version]));
  const lastId = view.items.at(-1)?.id;
  return (
    <div class="messages" role="log" aria-live="polite" aria-busy={isBusy(view)} aria-label="Messages" onClick={copyCode}>
      {view.isLoading && <p class="hint">Loading …</p>}
      {view.hasEarlier && (
        <button type="button" class="quiet" onClick={onEarlier}>
          Show earlier messages
        </button>
      )}
      {view.items.map((item, at) => (
        <MessageItem
          key={item.seq ?? item.id}
          item={item}
          before={view.items[at - 1] ?? null}
          threadId={conversation.id}
          isBusy={isBusy(view)}
          isLast={item.id === lastId}
          isReplaced={branch !== null && (item.seq ?? Infinity) > branch.atSeq}
          versions={versions.get(item.seq ?? 0) ?? null}
          waiting={waiting}
        />
      ))}
      <Working view={view} />
    </div>
  );
}

interface MessageItemProps {
  item: Item;
  before: Item | null;
  threadId: string;
  isBusy: boolean;
  isLast: boolean;
  isReplaced: boolean; // an edited question will replace it
  versions: Versions | null;
  waiting: ReadonlySet<string | undefined>;
}

const MessageItem = memo(
  function MessageItem(props: MessageItemProps) {
    const { item } = props;
    switch (item.kind) {
      case "user":
        return <Question {...props} item={item} />;
      case "answer":
        return <Answer {...props} item={item} />;
      case "system":
        return (
          <details class="system" id={`m-${item.id}`}>
            <summary>System prompt</summary>
            <MarkdownText text={item.text} />
          </details>
        );
    }
  },
  (props, next) =>
    props.item === next.item &&
    props.before?.kind === next.before?.kind &&
    props.isBusy === next.isBusy &&
    props.isLast === next.isLast &&
    props.isReplaced === next.isReplaced &&
    props.versions === next.versions &&
    props.waiting.size + next.waiting.size === 0,
);

function Question({ item, threadId, isBusy: busy, isReplaced, versions }: MessageItemProps & { item: UserItem }) {
  const seq = item.seq;
  return (
    <article class={`question ${isReplaced ? "replaced" : ""}`} id={`m-${item.id}`} tabindex={-1} aria-label="Your message">
      <div class="bubble">
        <Attachments attachments={item.attachments} />
        {item.text && <LongText text={item.text} />}
      </div>
      {versions && <VersionSwitch versions={versions} />}
      {seq !== null && (
        <div class="actions row">
          {item.at && <time class="muted small">{moment(item.at)}</time>}
          <IconButton icon="copy" label="Copy" onClick={() => void appState.copy(item.text)} />
          <IconButton icon="edit" label="Edit" onClick={() => edit(threadId, item)} disabled={busy} />
          <IconButton icon="fork" label="Fork here" onClick={() => void appState.fork(threadId, seq)} disabled={busy} />
          <IconButton icon="code" label="Show in another format" onClick={() => appState.dialog.set({ kind: "show-as", messageId: item.id })} />
        </div>
      )}
    </article>
  );
}

const MAX_LINES = 24;

// A long question is folded to its first lines.
function LongText({ text }: { text: string }) {
  const [isOpen, setOpen] = useState(false);
  const lines = text.split("\n");
  const isLong = lines.length > MAX_LINES || text.length > 100 * MAX_LINES;
  const shown = isOpen || !isLong ? text : lines.slice(0, MAX_LINES / 2).join("\n").slice(0, 50 * MAX_LINES);
  return (
    <>
      <p class="plain">{isLong && !isOpen ? `${shown} …` : shown}</p>
      {isLong && (
        <button type="button" class="quiet" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          {isOpen ? "Show less" : `Show all ${plural(lines.length, "line")}`}
        </button>
      )}
    </>
  );
}

function VersionSwitch({ versions: { threads, current } }: { versions: Versions }) {
  const show = (place: number) => appState.navigate({ id: threads[place] ?? null });
  return (
    <nav class="versions row" aria-label="Versions of this message">
      <IconButton icon="left" label="Previous version" onClick={() => show(current - 1)} disabled={current === 0} />
      <span class="muted small" role="status">
        {current + 1}/{threads.length}
      </span>
      <IconButton icon="right" label="Next version" onClick={() => show(current + 1)} disabled={current === threads.length - 1} />
    </nav>
  );
}

function Answer({ item, before, threadId, isBusy: busy, isLast, isReplaced, waiting }: MessageItemProps & { item: AnswerItem }) {
  const isContinuation = before?.kind === "answer" && (item.id === LIVE || before.model === item.model);
  const seq = item.seq;
  const text = item.parts.flatMap((part) => (part.kind === "text" ? [part.text] : [])).join("\n\n");
  return (
    <article class={`answer ${isContinuation ? "continuation" : ""} ${isReplaced ? "replaced" : ""}`} id={`m-${item.id}`} tabindex={-1} aria-label={item.model ? `Answer from ${modelName(item.model)}` : "Answer"}>
      {!isContinuation && item.model && (
        <h3 class="who" title={item.why ?? undefined}>
          {modelName(item.model)}
        </h3>
      )}
      {item.parts.map((part) => (
        <PartView key={`${part.kind}:${part.id}`} part={part} isWaiting={waiting.has(part.id)} isComplete={seq !== null} />
      ))}
      {UNFINISHED[item.status] && (
        <p class="unfinished">
          <Icon name="warn" size={14} /> {UNFINISHED[item.status]} {item.fault}
        </p>
      )}
      {seq !== null && (
        <div class="actions row">
          {item.receipt && <ReceiptLine receipt={item.receipt} omitted={item.omitted} at={item.at} />}
          {text && <IconButton icon="copy" label="Copy as Markdown" onClick={() => void appState.copy(text)} />}
          {isLast && <IconButton icon="retry" label="Regenerate" onClick={() => regenerate(threadId)} disabled={busy} />}
          {isLast && <IconButton icon="swap" label="Regenerate with another model" onClick={() => appState.dialog.set({ kind: "models", onChoose: (model) => regenerate(threadId, model) })} disabled={busy} />}
          <IconButton icon="fork" label="Fork here" onClick={() => void appState.fork(threadId, seq)} disabled={busy} />
          <IconButton icon="code" label="Show in another format" onClick={() => appState.dialog.set({ kind: "show-as", messageId: item.id })} />
          <IconButton icon="why" label="Why this answer?" onClick={() => appState.navigate({ page: "why", id: threadId, at: item.id })} />
        </div>
      )}
    </article>
  );
}

const UNFINISHED: Record<string, string> = {
  partial: "This answer is incomplete.",
  cancelled: "This answer was stopped.",
  error: "This answer ended with an error.",
};

// Puts a question into the message field; sending it creates a fork before the question.
function edit(threadId: string, question: UserItem): void {
  const { seq } = question;
  if (seq !== null) void appState.attempt(async () => appState.branch.set({ threadId, atSeq: seq - 1, draft: await toDraft(question) }));
}

export function editLastQuestion(threadId: string): void {
  const question = lastQuestion();
  if (question) edit(threadId, question);
}

// Sends the last question again in a fork before it. Both answers stay and are shown as versions.
function regenerate(threadId: string, model: string | null = null): void {
  const question = lastQuestion();
  if (question?.seq == null) return;
  const atSeq = question.seq - 1;
  void appState.attempt(async () => appState.sendInBranch({ threadId, atSeq, draft: await toDraft(question) }, model));
}

function lastQuestion(): UserItem | null {
  const item = appState.open.value.view.value.items.findLast((item) => item.kind === "user");
  return item?.kind === "user" ? item : null;
}

// The draft of a sent message, with its attachments.
async function toDraft({ text, attachments }: UserItem): Promise<Draft> {
  const places = attachments.flatMap(({ place }) => (place ? [place] : []));
  return { text, files: await Promise.all(places.map(async (place) => ({ ...place, url: await api.signedUrl(place.bucket, place.path) }))) };
}

export function PartView({ part, isWaiting, isComplete }: { part: Part; isWaiting: boolean; isComplete: boolean }) {
  switch (part.kind) {
    case "text":
      return <MarkdownText text={part.text} isComplete={isComplete} />;
    case "thinking":
      return (
        <details class="thinking">
          <summary>
            <Icon name="chevron" size={14} />
            {part.isOpen ? <span class="shimmer">Thinking …</span> : "Thinking"}
          </summary>
          <MarkdownText text={part.text || "The provider does not reveal its thinking."} />
        </details>
      );
    case "call":
      return <Call part={part} isWaiting={isWaiting} />;
    case "image":
      return <Picture url={part.url} name="Image in the answer" />;
    case "note":
      return <p class="note muted small">{part.text}</p>;
  }
}

function Working({ view }: { view: View }) {
  const last = view.items.at(-1);
  const hasWords = last?.kind === "answer" && last.id === LIVE && last.parts.at(-1)?.kind === "text";
  if (!isBusy(view) || view.run.state === "lost" || hasWords) return null;
  return (
    <p class="working muted">
      <span class="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
      {view.run.state === "stopping" ? "Stopping" : "Working"}
    </p>
  );
}

export function copyCode(event: MouseEvent): void {
  const button = (event.target as HTMLElement).closest("[data-copy]");
  const code = button?.closest("figure")?.querySelector("code")?.textContent;
  if (code) void appState.copy(code);
}
