// The message field with its attachments.
//
// Enter sends, except during IME composition (Chinese, Japanese, Korean), where Enter selects the candidate.
// Invariant: the text and files are kept until the server has accepted the message.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Observable, useObservable } from "../state/observable.ts";
import type { Conversation, Draft } from "../state/conversation.ts";
import { Icon, IconButton } from "../components/icons.tsx";
import { drafts, settingsChoices } from "../state/drafts.ts";
import { editLastQuestion } from "./messages.tsx";
import { titleNewConversation } from "../organise/titles.ts";
import { modelForRun, saveModelChoice } from "./model-picker.tsx";
import * as appState from "../state/app-state.ts";
import { isBusy, type View } from "../state/view-model.ts";
import type { Stored } from "../api/types.ts";

interface Upload {
  id: number;
  name: string;
  preview: string | null;
  stored: Stored | null;
  fault: string | null;
}

const ACCEPTED_TYPES = "image/png,image/jpeg,image/gif,image/webp,image/heic,image/heif,audio/*,application/pdf,text/plain,.md,.csv,.json";
const MAX_FILES = 10;
const suggestion = new Observable<string | null>(null);
let counter = 0;

// Sets the text of the field; the user sends it.
export function suggest(words: string): void {
  suggestion.set(words);
}

export function Composer({ conversation, view }: { conversation: Conversation; view: View }) {
  const storageKey = appState.storageKey(conversation.id);
  const [text, setText] = useState(() => drafts.get(storageKey)?.text ?? "");
  const [uploads, setUploads] = useState(() => (drafts.get(storageKey)?.files ?? []).map(toUpload));
  const [isOver, setOver] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const camera = useRef<HTMLInputElement>(null);
  const suggested = useObservable(suggestion);
  const branch = useObservable(appState.branch);
  const isWaiting = uploads.some((upload) => !upload.stored && !upload.fault);
  const files = uploads.flatMap((upload) => (upload.stored ? [upload.stored] : []));
  const canSend = !isBusy(view) && !isWaiting && (text.trim() !== "" || files.length > 0);

  useLayoutEffect(() => fit(field.current), [text]);
  // In the event of each key, so that nothing is lost when the page is left at once.
  useLayoutEffect(() => {
    if (branch !== null) return; // an edited question is not a draft of this conversation
    if (text || files.length) drafts.set(storageKey, { text, files });
    else drafts.delete(storageKey);
  }, [text, uploads]);
  useEffect(() => {
    if (branch === null) return;
    setText(branch.draft.text);
    setUploads(branch.draft.files.map(toUpload));
    field.current?.focus();
  }, [branch]);
  useEffect(() => {
    if (suggested === null) return;
    suggestion.set(null);
    setText(suggested);
    field.current?.focus();
  }, [suggested]);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) field.current?.focus();
    const onDrag = (event: DragEvent) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      setOver(event.type === "dragover");
      if (event.type === "drop") add(event.dataTransfer.files);
    };
    for (const kind of ["dragover", "dragleave", "drop"] as const) addEventListener(kind, onDrag);
    return () => {
      for (const kind of ["dragover", "dragleave", "drop"] as const) removeEventListener(kind, onDrag);
    };
  }, []);

  const change = (id: number, how: Partial<Upload>) => setUploads((now) => now.map((upload) => (upload.id === id ? { ...upload, ...how } : upload)));
  const add = (chosen: Iterable<File>) => {
    for (const file of [...chosen].slice(0, MAX_FILES)) {
      const id = ++counter;
      const preview = api.isDisplayable(file.type) ? URL.createObjectURL(file) : null;
      setUploads((now) => [...now, { id, name: file.name, preview, stored: null, fault: null }]);
      api.upload(file, conversation.id).then(
        (stored) => change(id, { stored: { ...stored, name: stored.name ?? file.name } }),
        (error: unknown) => change(id, { fault: problemText(error) }),
      );
    }
    field.current?.focus();
  };
  const remove = (id: number) =>
    setUploads((now) => {
      release(now.filter((upload) => upload.id === id));
      return now.filter((upload) => upload.id !== id);
    });
  const clear = () => {
    setText("");
    setUploads([]);
    drafts.delete(storageKey);
  };
  const cancelEdit = () => {
    appState.branch.set(null);
    clear();
  };
  const send = async () => {
    if (!canSend) return;
    const draft: Draft = { text: text.trim(), files };
    if (branch !== null) {
      await appState.sendInBranch({ ...branch, draft }, null);
      return;
    }
    const previous = uploads;
    const isFirst = !view.items.length;
    clear();
    const model = modelForRun(conversation.id);
    const sending = conversation.send(draft, model, settingsForRun(conversation));
    appState.setAddress(conversation);
    const isAccepted = await sending;
    if (isAccepted) {
      saveModelChoice(conversation.id);
      settingsChoices.delete(storageKey);
      if (isFirst) void titleNewConversation(conversation.id);
      release(previous);
    } else {
      setText((now) => now || draft.text);
      setUploads((now) => (now.length ? now : previous));
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
      editLastQuestion(conversation.id);
    }
    if (event.key === "Escape" && branch !== null) {
      event.preventDefault();
      cancelEdit();
    }
  };
  const onPaste = (event: ClipboardEvent) => {
    const pasteFiles = [...(event.clipboardData?.files ?? [])];
    if (!pasteFiles.length) return;
    event.preventDefault();
    add(pasteFiles);
  };
  return (
    <form class={`composer ${isOver ? "over" : ""}`} onSubmit={(event) => (event.preventDefault(), void send())} aria-label="Write a message">
      {branch !== null && (
        <p class="row between muted small" role="status">
          Sending creates a new version. The original stays.
          <button type="button" class="quiet" onClick={cancelEdit}>
            Cancel
          </button>
        </p>
      )}
      {uploads.length > 0 && (
        <ul class="uploads">
          {uploads.map((upload) => (
            <UploadItem key={upload.id} upload={upload} onRemove={() => remove(upload.id)} />
          ))}
        </ul>
      )}
      <div class="row">
        <IconButton icon="clip" label="Add files" onClick={() => picker.current?.click()} />
        <input ref={picker} type="file" class="hidden" multiple accept={ACCEPTED_TYPES} tabindex={-1} aria-label="Files" onChange={(event) => (add(event.currentTarget.files ?? []), (event.currentTarget.value = ""))} />
        <IconButton icon="camera" label="Take a photo" class="touch-only" onClick={() => camera.current?.click()} />
        <input ref={camera} type="file" class="hidden" accept="image/*" capture="environment" tabindex={-1} aria-label="Photo" onChange={(event) => (add(event.currentTarget.files ?? []), (event.currentTarget.value = ""))} />
        <textarea
          id="words"
          ref={field}
          rows={1}
          aria-label="Message"
          placeholder={isOver ? "Drop the files here" : "Write a message"}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
          enterkeyhint="send"
        />
        {canSend && branch === null && <IconButton icon="columns" label="Ask several models" onClick={() => appState.dialog.set({ kind: "compare", draft: { text: text.trim(), files }, onSent: clear })} />}
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

function UploadItem({ upload, onRemove }: { upload: Upload; onRemove: () => void }) {
  const { name, preview, stored, fault } = upload;
  return (
    <li class={`upload ${fault ? "failed" : stored ? "" : "sending"}`}>
      {preview && !fault ? <img src={preview} alt={name} /> : <Icon name={fault ? "warn" : "file"} size={18} />}
      {(!preview || fault) && <span class="small">{fault ? `${name}: ${fault}` : name}</span>}
      <IconButton icon="close" label={`Remove ${name}`} onClick={onRemove} />
    </li>
  );
}

// An attachment that is already stored on the server.
function toUpload(stored: Stored): Upload {
  return { id: ++counter, name: stored.name ?? stored.mime_type, preview: api.isDisplayable(stored.mime_type) ? api.localUrl(stored.url) : null, stored, fault: null };
}

// A new conversation has the settings that were chosen for it, or the defaults of the person.
function settingsForRun({ id, isNew, view }: Conversation) {
  if (!isNew || view.value.items.some((item) => item.seq !== null)) return null;
  return settingsChoices.get(appState.storageKey(id)) ?? "default";
}

function problemText(error: unknown): string {
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
