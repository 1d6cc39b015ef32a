// The open dialog.
import { useState } from "preact/hooks";
import { useObservable } from "../state/observable.ts";
import { Lightbox } from "../chat/picture.tsx";
import { lazy } from "./lazy.tsx";
import { Help } from "./help.tsx";
import { Modal } from "./modal.tsx";
import { ModelPicker } from "../chat/model-picker.tsx";
import { setTitleSetting, titleSetting } from "../organise/titles.ts";
import * as appState from "../state/app-state.ts";
import { ShowAs } from "../chat/show-as.tsx";
import { ThreadCost } from "./thread-cost.tsx";
import type { Thread } from "../api/types.ts";

const TagDialog = lazy(async () => (await import("../extras.ts")).TagDialog);
const ExportDialog = lazy(async () => (await import("../extras.ts")).ExportDialog);
const ShareDialog = lazy(async () => (await import("../extras.ts")).ShareDialog);
const ChooseModels = lazy(async () => (await import("../extras.ts")).ChooseModels);
const ConversationSettings = lazy(async () => (await import("../extras.ts")).SettingsDialog);

const close = () => appState.dialog.set(null);

export function Dialogs() {
  const dialog = useObservable(appState.dialog);
  switch (dialog?.kind) {
    case "models":
      return <ModelPicker onClose={close} onChoose={dialog.onChoose} candidate={dialog.candidate ?? null} />;
    case "image":
      return <Lightbox url={dialog.url} name={dialog.name} onClose={close} />;
    case "settings":
      return <ConversationSettings onClose={close} />;
    case "help":
      return <Help onClose={close} />;
    case "cost":
      return <ThreadCost onClose={close} />;
    case "rename":
      return <Rename thread={dialog.thread} />;
    case "delete":
      return <Delete thread={dialog.thread} />;
    case "show-as":
      return <ShowAs messageId={dialog.messageId} onClose={close} />;
    case "tags":
      return <TagDialog thread={dialog.thread} onClose={close} />;
    case "export":
      return <ExportDialog thread={dialog.thread} onClose={close} />;
    case "share":
      return <ShareDialog thread={dialog.thread} onClose={close} />;
    case "compare":
      return <ChooseModels draft={dialog.draft} onSent={dialog.onSent} onClose={close} />;
    default:
      return null;
  }
}

function Rename({ thread }: { thread: Thread }) {
  const [title, setTitle] = useState(thread.title ?? "");
  const [isAutomatic, setAutomatic] = useState(titleSetting() === "on");
  const onSubmit = (event: Event) => {
    event.preventDefault();
    close();
    void appState.rename(thread.id, title.trim());
  };
  return (
    <Modal title="Rename" onClose={close}>
      <form class="stack" onSubmit={onSubmit}>
        <label class="field">
          Title
          <input value={title} maxLength={200} onInput={(event) => setTitle(event.currentTarget.value)} data-focus />
        </label>
        <label class="row small">
          <input type="checkbox" checked={isAutomatic} onChange={(event) => (setAutomatic(event.currentTarget.checked), setTitleSetting(event.currentTarget.checked))} />
          <span>Let the model write the titles of new conversations (one short call each)</span>
        </label>
        <div class="row end">
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={!title.trim()}>
            Rename
          </button>
        </div>
      </form>
    </Modal>
  );
}

function Delete({ thread }: { thread: Thread }) {
  const confirm = () => {
    close();
    void appState.remove(thread.id);
  };
  return (
    <Modal title="Delete this conversation?" onClose={close}>
      <div class="stack">
        <p>
          <strong>{thread.title || thread.snippet || "Untitled"}</strong> will be deleted permanently, with its messages and files. Its forks remain.
        </p>
        <div class="row end">
          <button type="button" onClick={close} data-focus>
            Cancel
          </button>
          <button type="button" class="danger" onClick={confirm}>
            Delete
          </button>
        </div>
      </div>
    </Modal>
  );
}
