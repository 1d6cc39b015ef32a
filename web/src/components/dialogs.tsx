// The open dialog.
import { useState } from "preact/hooks";
import { useObservable } from "../state/observable.ts";
import { Lightbox } from "../chat/picture.tsx";
import { lazy } from "./lazy.tsx";
import { Help } from "./help.tsx";
import { Modal } from "./modal.tsx";
import { ModelPicker } from "../chat/model-picker.tsx";
import * as appState from "../state/app-state.ts";
import { ShowAs } from "../chat/show-as.tsx";
import { ThreadCost } from "./thread-cost.tsx";
import type { Thread } from "../api/types.ts";

const ConversationSettings = lazy(async () => (await import("../chat/settings-dialog.tsx")).SettingsDialog);
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
    default:
      return null;
  }
}

function Rename({ thread }: { thread: Thread }) {
  const [title, setTitle] = useState(thread.title ?? "");
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
