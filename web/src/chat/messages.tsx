// The messages of a conversation.
import { memo } from "../components/memo.ts";
import { Call } from "./tool-call.tsx";
import * as api from "../api/client.ts";
import type { Conversation, Draft } from "../state/conversation.ts";
import { Attachments } from "./attachments.tsx";
import { modelName, moment } from "../lib/format.ts";
import { Icon, IconButton } from "../components/icons.tsx";
import { MarkdownText } from "../components/markdown-text.tsx";
import { ReceiptLine } from "./receipt.tsx";
import { LIVE } from "../state/reducer.ts";
import * as appState from "../state/app-state.ts";
import { isBusy, type AnswerItem, type Item, type Part, type UserItem, type View } from "../state/view-model.ts";

interface MessagesProps {
  view: View;
  conversation: Conversation;
  onEarlier: () => void;
}

export function Messages({ view, conversation, onEarlier }: MessagesProps) {
  const waiting = new Set(view.interrupts.map((interrupt) => interrupt.toolCallId));
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
        <MessageItem key={item.seq ?? item.id} item={item} before={view.items[at - 1] ?? null} threadId={conversation.id} isBusy={isBusy(view)} isLast={item.id === lastId} waiting={waiting} />
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
  waiting: ReadonlySet<string | undefined>;
}

const MessageItem = memo(
  function MessageItem({ item, before, threadId, isBusy: busy, isLast, waiting }: MessageItemProps) {
    switch (item.kind) {
      case "user":
        return <Question item={item} threadId={threadId} isBusy={busy} />;
      case "answer":
        return <Answer item={item} before={before} threadId={threadId} isBusy={busy} isLast={isLast} waiting={waiting} />;
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
    props.item === next.item && props.before?.kind === next.before?.kind && props.isBusy === next.isBusy && props.isLast === next.isLast && props.waiting.size + next.waiting.size === 0,
);

function Question({ item, threadId, isBusy: busy }: { item: UserItem; threadId: string; isBusy: boolean }) {
  const seq = item.seq;
  const edit = () => void appState.attempt(async () => appState.branch(threadId, (seq ?? 0) - 1, await toDraft(item)));
  return (
    <article class="question" id={`m-${item.id}`} tabindex={-1} aria-label="Your message">
      <div class="bubble">
        <Attachments attachments={item.attachments} />
        {item.text && <p class="plain">{item.text}</p>}
      </div>
      {seq !== null && (
        <div class="actions row">
          {item.at && <time class="muted small">{moment(item.at)}</time>}
          <IconButton icon="copy" label="Copy" onClick={() => void appState.copy(item.text)} />
          <IconButton icon="edit" label="Edit in a new branch" onClick={edit} disabled={busy} />
          <IconButton icon="fork" label="Fork here" onClick={() => void appState.branch(threadId, seq)} disabled={busy} />
          <IconButton icon="code" label="Show in another format" onClick={() => appState.dialog.set({ kind: "show-as", messageId: item.id })} />
        </div>
      )}
    </article>
  );
}

interface AnswerProps {
  item: AnswerItem;
  before: Item | null;
  threadId: string;
  isBusy: boolean;
  isLast: boolean;
  waiting: ReadonlySet<string | undefined>;
}

function Answer({ item, before, threadId, isBusy: busy, isLast, waiting }: AnswerProps) {
  const isContinuation = before?.kind === "answer" && (item.id === LIVE || before.model === item.model);
  const seq = item.seq;
  const text = item.parts.flatMap((part) => (part.kind === "text" ? [part.text] : [])).join("\n\n");
  return (
    <article class={`answer ${isContinuation ? "continuation" : ""}`} id={`m-${item.id}`} tabindex={-1} aria-label={item.model ? `Answer from ${modelName(item.model)}` : "Answer"}>
      {!isContinuation && item.model && (
        <h3 class="who" title={item.why ?? undefined}>
          {modelName(item.model)}
        </h3>
      )}
      {item.parts.map((part) => (
        <PartView key={`${part.kind}:${part.id}`} part={part} isWaiting={waiting.has(part.id)} />
      ))}
      {UNFINISHED[item.status] && (
        <p class="unfinished">
          <Icon name="warn" size={14} /> {UNFINISHED[item.status]}
        </p>
      )}
      {seq !== null && (
        <div class="actions row">
          {item.receipt && <ReceiptLine receipt={item.receipt} at={item.at} />}
          {text && <IconButton icon="copy" label="Copy" onClick={() => void appState.copy(text)} />}
          {isLast && <IconButton icon="retry" label="Undo: edit the last question" onClick={() => undo(threadId)} disabled={busy} />}
          <IconButton icon="fork" label="Fork here" onClick={() => void appState.branch(threadId, seq)} disabled={busy} />
          <IconButton icon="code" label="Show in another format" onClick={() => appState.dialog.set({ kind: "show-as", messageId: item.id })} />
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

// Forks before the last question and puts the question into the message field.
export function undo(threadId: string): void {
  const question = appState.open.value.view.value.items.findLast((item) => item.kind === "user");
  if (question?.kind === "user" && question.seq !== null) {
    const place = question.seq - 1;
    void appState.attempt(async () => appState.branch(threadId, place, await toDraft(question)));
  }
}

// The draft of a sent message, with its attachments.
async function toDraft({ text, attachments }: UserItem): Promise<Draft> {
  const places = attachments.flatMap(({ place }) => (place ? [place] : []));
  return { text, files: await Promise.all(places.map(async (place) => ({ ...place, url: await api.signedUrl(place.bucket, place.path) }))) };
}

function PartView({ part, isWaiting }: { part: Part; isWaiting: boolean }) {
  switch (part.kind) {
    case "text":
      return <MarkdownText text={part.text} />;
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
      return <img class="picture" src={part.url} alt="Image in the answer" />;
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
