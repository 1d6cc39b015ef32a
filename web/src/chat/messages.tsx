// The messages of a conversation, as they are read.
import { memo } from "../components/memo.ts";
import { Call } from "./tool-call.tsx";
import * as api from "../api/client.ts";
import type { Conversation, Draft } from "../state/conversation.ts";
import { Enclosures } from "./attachments.tsx";
import { modelName, moment } from "../lib/format.ts";
import { Icon, IconButton } from "../components/icons.tsx";
import { Prose } from "../components/markdown-text.tsx";
import { ReceiptLine } from "./receipt.tsx";
import { LIVE } from "../state/reducer.ts";
import * as shelf from "../state/app-state.ts";
import { isBusy, type AnswerItem, type Item, type Part, type UserItem, type View } from "../state/view-model.ts";

interface MessagesProps {
  view: View;
  conversation: Conversation;
  onEarlier: () => void;
}

export function Messages({ view, conversation, onEarlier }: MessagesProps) {
  const waiting = new Set(view.interrupts.map((one) => one.toolCallId));
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
        <Shown key={item.seq ?? item.id} item={item} before={view.items[at - 1] ?? null} threadId={conversation.id} isBusy={isBusy(view)} isLast={item.id === lastId} waiting={waiting} />
      ))}
      <Working view={view} />
    </div>
  );
}

interface ShownProps {
  item: Item;
  before: Item | null;
  threadId: string;
  isBusy: boolean;
  isLast: boolean;
  waiting: ReadonlySet<string | undefined>;
}

const Shown = memo(
  function Shown({ item, before, threadId, isBusy: busy, isLast, waiting }: ShownProps) {
    switch (item.kind) {
      case "user":
        return <Question item={item} threadId={threadId} isBusy={busy} />;
      case "answer":
        return <Answer item={item} before={before} threadId={threadId} isBusy={busy} isLast={isLast} waiting={waiting} />;
      case "system":
        return (
          <details class="system" id={`m-${item.id}`}>
            <summary>What the model is told first</summary>
            <Prose text={item.text} />
          </details>
        );
    }
  },
  (one, other) =>
    one.item === other.item && one.before?.kind === other.before?.kind && one.isBusy === other.isBusy && one.isLast === other.isLast && one.waiting.size + other.waiting.size === 0,
);

function Question({ item, threadId, isBusy: busy }: { item: UserItem; threadId: string; isBusy: boolean }) {
  const seq = item.seq;
  const again = () => void shelf.trying(async () => shelf.branch(threadId, (seq ?? 0) - 1, await redrafted(item)));
  return (
    <article class="question" id={`m-${item.id}`} tabindex={-1} aria-label="You said">
      <div class="bubble">
        <Enclosures enclosures={item.enclosures} />
        {item.text && <p class="plain">{item.text}</p>}
      </div>
      {seq !== null && (
        <div class="deeds row">
          {item.at && <time class="muted small">{moment(item.at)}</time>}
          <IconButton icon="copy" label="Copy" onClick={() => void shelf.copy(item.text)} />
          <IconButton icon="edit" label="Change and ask anew, in a new branch" onClick={again} disabled={busy} />
          <IconButton icon="fork" label="Fork here" onClick={() => void shelf.branch(threadId, seq)} disabled={busy} />
          <IconButton icon="code" label="Show as a provider would see it" onClick={() => shelf.dialog.set({ kind: "show-as", messageId: item.id })} />
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
  const goesOn = before?.kind === "answer" && (item.id === LIVE || before.model === item.model);
  const seq = item.seq;
  const text = item.parts.flatMap((part) => (part.kind === "text" ? [part.text] : [])).join("\n\n");
  return (
    <article class={`answer ${goesOn ? "goes-on" : ""}`} id={`m-${item.id}`} tabindex={-1} aria-label={item.model ? `${modelName(item.model)} said` : "Answer"}>
      {!goesOn && item.model && (
        <h3 class="who" title={item.why ?? undefined}>
          {modelName(item.model)}
        </h3>
      )}
      {item.parts.map((part) => (
        <PartShown key={`${part.kind}:${part.id}`} part={part} isWaiting={waiting.has(part.id)} />
      ))}
      {UNFINISHED[item.status] && (
        <p class="unfinished">
          <Icon name="warn" size={14} /> {UNFINISHED[item.status]}
        </p>
      )}
      {seq !== null && (
        <div class="deeds row">
          {item.receipt && <ReceiptLine receipt={item.receipt} at={item.at} />}
          {text && <IconButton icon="copy" label="Copy" onClick={() => void shelf.copy(text)} />}
          {isLast && <IconButton icon="retry" label="Go back to before the question" onClick={() => undo(threadId)} disabled={busy} />}
          <IconButton icon="fork" label="Fork here" onClick={() => void shelf.branch(threadId, seq)} disabled={busy} />
          <IconButton icon="code" label="Show as a provider would see it" onClick={() => shelf.dialog.set({ kind: "show-as", messageId: item.id })} />
        </div>
      )}
    </article>
  );
}

const UNFINISHED: Record<string, string> = {
  partial: "This answer was cut off.",
  cancelled: "This answer was stopped.",
  error: "This answer ended with an error.",
};

// Go on before the last question, which stands in the field again.
export function undo(threadId: string): void {
  const question = shelf.open.value.view.value.items.findLast((item) => item.kind === "user");
  if (question?.kind === "user" && question.seq !== null) {
    const place = question.seq - 1;
    void shelf.trying(async () => shelf.branch(threadId, place, await redrafted(question)));
  }
}

// A question as it was before it was sent, its files included.
async function redrafted({ text, enclosures }: UserItem): Promise<Draft> {
  const places = enclosures.flatMap(({ place }) => (place ? [place] : []));
  return { text, files: await Promise.all(places.map(async (place) => ({ ...place, url: await api.signedUrl(place.bucket, place.path) }))) };
}

function PartShown({ part, isWaiting }: { part: Part; isWaiting: boolean }) {
  switch (part.kind) {
    case "text":
      return <Prose text={part.text} />;
    case "thinking":
      return (
        <details class="thinking">
          <summary>
            <Icon name="chevron" size={14} />
            {part.isOpen ? <span class="shimmer">Thinking …</span> : "Thinking"}
          </summary>
          <Prose text={part.text || "The provider does not show it."} />
        </details>
      );
    case "call":
      return <Call part={part} isWaiting={isWaiting} />;
    case "image":
      return <img class="picture" src={part.url} alt="A picture in the answer" />;
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
  if (code) void shelf.copy(code);
}
