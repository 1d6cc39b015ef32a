// What a server that wants a key is given.
import { useState } from "preact/hooks";
import { rememberKey } from "../api/client.ts";
import { Modal } from "./modal.tsx";
import * as shelf from "../state/app-state.ts";

export function KeyPrompt() {
  const [key, setKey] = useState("");
  const enter = (event: Event) => {
    event.preventDefault();
    if (!key.trim()) return;
    rememberKey(key.trim());
    void shelf.loadThreads();
    void shelf.loadModels();
    if (shelf.route.value.page === "" && shelf.route.value.id !== null) void shelf.open.value.load();
  };
  return (
    <Modal title="This server wants a key">
      <form onSubmit={enter} class="stack">
        <p>
          Whoever runs it makes one with <code>dragoman keys create</code>. It is kept until you close this tab.
        </p>
        <label class="field">
          Key
          <input type="password" autocomplete="off" spellcheck={false} value={key} onInput={(event) => setKey(event.currentTarget.value)} data-focus />
        </label>
        <div class="row end">
          <button type="submit" class="primary" disabled={!key.trim()}>
            Enter
          </button>
        </div>
      </form>
    </Modal>
  );
}
