// The field to write in, with the files that go along.
//
// Enter sends, but never while a word is still being composed: with Chinese, Japanese or Korean input, Enter takes the
// candidate. The one rule: what was written is only let go when the server has taken it.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Cell, useCell } from "../state/observable.ts";
import type { Conversation, Draft } from "../state/conversation.ts";
import { Icon, IconButton } from "../components/icons.tsx";
import { undo } from "./messages.tsx";
import { modelForRun, taken } from "./model-picker.tsx";
import * as shelf from "../state/app-state.ts";
import { isBusy, type View } from "../state/view-model.ts";
import type { Stored } from "../api/types.ts";

interface Upload {
  id: number;
  name: string;
  preview: string | null;
  stored: Stored | null;
  fault: string | null;
}

const TAKEN = "image/png,image/jpeg,image/gif,image/webp,image/heic,image/heif,audio/*,application/pdf,text/plain,.md,.csv,.json";
const MOST = 10;
const suggestion = new Cell<string | null>(null);
let counter = 0;

// Puts words into the field, for somebody to send.
export function suggest(words: string): void {
  suggestion.set(words);
}

export function Composer({ conversation, view }: { conversation: Conversation; view: View }) {
  const [text, setText] = useState(() => shelf.drafts.get(conversation.id)?.text ?? "");
  const [uploads, setUploads] = useState(() => (shelf.drafts.get(conversation.id)?.files ?? []).map(uploaded));
  const [isOver, setOver] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const suggested = useCell(suggestion);
  const isWaiting = uploads.some((one) => !one.stored && !one.fault);
  const files = uploads.flatMap((one) => (one.stored ? [one.stored] : []));
  const canSend = !isBusy(view) && !isWaiting && (text.trim() !== "" || files.length > 0);

  useLayoutEffect(() => fit(field.current), [text]);
  useEffect(() => {
    shelf.drafts.set(conversation.id, { text, files });
  }, [text, uploads]);
  useEffect(() => {
    if (suggested === null) return;
    suggestion.set(null);
    setText(suggested);
    field.current?.focus();
  }, [suggested]);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) field.current?.focus();
    const dropped = (event: DragEvent) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      setOver(event.type === "dragover");
      if (event.type === "drop") add(event.dataTransfer.files);
    };
    for (const kind of ["dragover", "dragleave", "drop"] as const) addEventListener(kind, dropped);
    return () => {
      for (const kind of ["dragover", "dragleave", "drop"] as const) removeEventListener(kind, dropped);
    };
  }, []);

  const change = (id: number, how: Partial<Upload>) => setUploads((now) => now.map((one) => (one.id === id ? { ...one, ...how } : one)));
  const add = (given: Iterable<File>) => {
    for (const file of [...given].slice(0, MOST)) {
      const id = ++counter;
      const preview = api.isShown(file.type) ? URL.createObjectURL(file) : null;
      setUploads((now) => [...now, { id, name: file.name, preview, stored: null, fault: null }]);
      api.upload(file, conversation.id).then(
        (stored) => change(id, { stored: { ...stored, name: stored.name ?? file.name } }),
        (error: unknown) => change(id, { fault: said(error) }),
      );
    }
    field.current?.focus();
  };
  const remove = (id: number) =>
    setUploads((now) => {
      release(now.filter((one) => one.id === id));
      return now.filter((one) => one.id !== id);
    });
  const send = async () => {
    if (!canSend) return;
    const draft: Draft = { text: text.trim(), files };
    const sentUploads = uploads;
    setText("");
    setUploads([]);
    shelf.drafts.delete(conversation.id);
    const model = modelForRun(conversation.id);
    const going = conversation.send(draft, model);
    shelf.named(conversation);
    const isTaken = await going;
    if (isTaken) {
      taken(conversation.id);
      release(sentUploads);
    } else {
      setText((now) => now || draft.text);
      setUploads((now) => (now.length ? now : sentUploads));
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      void send();
    }
    if (event.key === "ArrowUp" && text === "" && !isBusy(view) && view.items.length) {
      event.preventDefault();
      undo(conversation.id);
    }
  };
  const onPaste = (event: ClipboardEvent) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (!pasted.length) return;
    event.preventDefault();
    add(pasted);
  };
  return (
    <form class={`composer ${isOver ? "over" : ""}`} onSubmit={(event) => (event.preventDefault(), void send())} aria-label="Write a message">
      {uploads.length > 0 && (
        <ul class="uploads">
          {uploads.map((one) => (
            <UploadShown key={one.id} upload={one} onRemove={() => remove(one.id)} />
          ))}
        </ul>
      )}
      <div class="row">
        <IconButton icon="clip" label="Add files" onClick={() => picker.current?.click()} />
        <input ref={picker} type="file" class="hidden" multiple accept={TAKEN} tabindex={-1} aria-label="Files" onChange={(event) => (add(event.currentTarget.files ?? []), (event.currentTarget.value = ""))} />
        <textarea
          id="words"
          ref={field}
          rows={1}
          aria-label="Message"
          placeholder={isOver ? "Drop them here" : "Write a message"}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
          enterkeyhint="send"
        />
        {isBusy(view) ? (
          <button type="button" class="send stop" aria-label="Stop" title="Stop (Esc)" disabled={view.run.state === "stopping"} onClick={() => void conversation.stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="send" aria-label="Send" title="Send (Enter)" disabled={!canSend}>
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}

function UploadShown({ upload, onRemove }: { upload: Upload; onRemove: () => void }) {
  const { name, preview, stored, fault } = upload;
  return (
    <li class={`upload ${fault ? "failed" : stored ? "" : "going"}`}>
      {preview && !fault ? <img src={preview} alt={name} /> : <Icon name={fault ? "warn" : "file"} size={18} />}
      {(!preview || fault) && <span class="small">{fault ? `${name}: ${fault}` : name}</span>}
      <IconButton icon="close" label={`Remove ${name}`} onClick={onRemove} />
    </li>
  );
}

// A file that the server has already.
function uploaded(stored: Stored): Upload {
  return { id: ++counter, name: stored.name ?? stored.mime_type, preview: api.isShown(stored.mime_type) ? api.ours(stored.url) : null, stored, fault: null };
}

function said(error: unknown): string {
  const { title, advice } = api.problemFrom(error);
  return `${title} ${advice}`;
}

function release(uploads: Upload[]): void {
  for (const { preview } of uploads) if (preview) URL.revokeObjectURL(preview);
}

function fit(field: HTMLTextAreaElement | null): void {
  if (!field) return;
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, innerHeight * 0.4)}px`;
}
