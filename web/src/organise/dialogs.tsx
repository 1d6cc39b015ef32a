// Dialogs to tag, export and share conversations.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Modal } from "../components/modal.tsx";
import { moment, plural } from "../lib/format.ts";
import * as appState from "../state/app-state.ts";
import type { Thread } from "../api/types.ts";
import * as organise from "./api.ts";
import { change, selection, tagsFrom } from "./labels.ts";

interface DialogProps {
  thread: Thread;
  onClose: () => void;
}

export function TagDialog({ thread, onClose }: DialogProps) {
  const [text, setText] = useState(thread.tags.join(", "));
  const onSubmit = (event: Event) => {
    event.preventDefault();
    onClose();
    void change(thread, { tags: tagsFrom(text) });
  };
  return (
    <Modal title="Tags" onClose={onClose}>
      <form class="stack" onSubmit={onSubmit}>
        <label class="field">
          Tags, separated by commas
          <input value={text} maxLength={500} onInput={(event) => setText(event.currentTarget.value)} data-focus />
        </label>
        <div class="row end">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Save
          </button>
        </div>
      </form>
    </Modal>
  );
}

// --- export ----------------------------------------------------------------------------------------------------------

const PAGES = ["markdown", "html"];
const LABELS: Record<string, string> = { markdown: "Markdown", html: "HTML page", json: "JSON with all messages", canonical: "Dragoman (canonical)" };

// Exports one conversation, or the selected ones as a ZIP archive.
export function ExportDialog({ thread, onClose }: { thread: Thread | null; onClose: () => void }) {
  const [formats, setFormats] = useState<string[]>([]);
  const [format, setFormat] = useState("markdown");
  const [range, setRange] = useState<{ from: string; to: string } | null>(null);
  const ids = [...(selection.value ?? [])];
  useEffect(() => void appState.attempt(async () => setFormats(await api.formats())), []);
  const onSubmit = (event: Event) => {
    event.preventDefault();
    onClose();
    const options = { format, fromSeq: Number(range?.from) || undefined, toSeq: Number(range?.to) || undefined };
    void appState.attempt(async () => {
      if (thread) return organise.exportThread(thread, options);
      await organise.exportThreads(ids, format);
      selection.set(null);
    });
  };
  return (
    <Modal title={thread ? "Export this conversation" : `Export ${plural(ids.length, "conversation")}`} onClose={onClose}>
      <form class="stack" onSubmit={onSubmit}>
        <label class="field">
          Format
          <select value={format} onChange={(event) => setFormat(event.currentTarget.value)} data-focus>
            {[...PAGES, "json", ...formats].map((name) => (
              <option key={name} value={name}>
                {LABELS[name] ?? name.replaceAll("_", " ")}
              </option>
            ))}
          </select>
        </label>
        {thread && (
          <fieldset class="stack">
            <legend class="hidden">Messages</legend>
            <label class="row">
              <input type="radio" name="range" checked={range === null} onChange={() => setRange(null)} />
              <span>All {plural(thread.lastSeq, "message")}</span>
            </label>
            <label class="row">
              <input type="radio" name="range" checked={range !== null} onChange={() => setRange({ from: "1", to: String(thread.lastSeq) })} />
              <span>A range of messages</span>
            </label>
            {range && (
              <div class="row">
                <NumberField label="From" value={range.from} max={thread.lastSeq} onChange={(from) => setRange({ ...range, from })} />
                <NumberField label="To" value={range.to} max={thread.lastSeq} onChange={(to) => setRange({ ...range, to })} />
              </div>
            )}
          </fieldset>
        )}
        <div class="row end">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Export
          </button>
        </div>
      </form>
    </Modal>
  );
}

function NumberField({ label, value, max, onChange }: { label: string; value: string; max: number; onChange: (value: string) => void }) {
  return (
    <label class="field">
      {label}
      <input type="number" min={1} max={max} value={value} onInput={(event) => onChange(event.currentTarget.value)} />
    </label>
  );
}

// --- share -----------------------------------------------------------------------------------------------------------

const PARTS: { name: organise.SharedPart; label: string }[] = [
  { name: "tools", label: "Tool calls and their results" },
  { name: "attachments", label: "Images and files" },
  { name: "thinking", label: "Thinking" },
  { name: "system", label: "System prompt" },
];

export function ShareDialog({ thread, onClose }: DialogProps) {
  const [include, setInclude] = useState<organise.SharedPart[]>([]);
  const [url, setUrl] = useState<string | null>(null);
  const [shared, setShared] = useState(thread.shared);
  const reload = async () => {
    const row = await api.thread(thread.id);
    appState.putThread(row);
    setShared(row.shared);
  };
  const create = () =>
    void appState.attempt(async () => {
      setUrl((await organise.share(thread.id, include)).url);
      await reload();
    });
  const revoke = () =>
    void appState.attempt(async () => {
      await organise.revokeShare(thread.id);
      setUrl(null);
      await reload();
      appState.showNotice("The link does not work any more");
    });
  const toggle = (name: organise.SharedPart) => setInclude((now) => (now.includes(name) ? now.filter((other) => other !== name) : [...now, name]));
  return (
    <Modal title="Share as a read-only page" onClose={onClose}>
      <div class="stack">
        <p>
          Anybody who has the link can read the texts of this conversation up to now, without costs and without your name. Later messages are not shared.
        </p>
        {shared && (
          <p class="muted small">
            Shared on {moment(shared.createdAt)}, {plural(shared.lastSeq, "message")}. A new link replaces the old one.
          </p>
        )}
        <fieldset class="stack">
          <legend class="small muted">Also share</legend>
          {PARTS.map(({ name, label }) => (
            <label class="row" key={name}>
              <input type="checkbox" checked={include.includes(name)} onChange={() => toggle(name)} />
              <span>{label}</span>
            </label>
          ))}
        </fieldset>
        {url && (
          <label class="field">
            Link, shown only now
            <input readOnly value={url} onFocus={(event) => event.currentTarget.select()} />
          </label>
        )}
        <div class="row end">
          {shared && (
            <button type="button" class="danger" onClick={revoke}>
              Revoke the link
            </button>
          )}
          <button type="button" class={url ? "" : "primary"} onClick={create}>
            {shared ? "Create a new link" : "Create a link"}
          </button>
          {url && (
            <button type="button" class="primary" onClick={() => void appState.copy(url)}>
              Copy the link
            </button>
          )}
        </div>
      </div>
    </Modal>
  );
}
