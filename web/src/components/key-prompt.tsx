// Dialog that asks for the API key of the server.
import { useState } from "preact/hooks";
import { hasKey, rememberKey } from "../api/client.ts";
import { Modal } from "./modal.tsx";
import * as appState from "../state/app-state.ts";

export function KeyPrompt() {
  const [wasRejected] = useState(hasKey);
  const [key, setKey] = useState("");
  const enter = (event: Event) => {
    event.preventDefault();
    if (!key.trim()) return;
    rememberKey(key.trim());
    void appState.loadThreads();
    void appState.loadModels();
    if (appState.route.value.page === "" && appState.route.value.id !== null) void appState.open.value.load();
  };
  return (
    <Modal title="API key required">
      <form onSubmit={enter} class="stack">
        <p>
          The server administrator creates one with <code>dragoman keys create</code>. The page keeps it until you close this tab.
        </p>
        {wasRejected && (
          <p class="unfinished" role="alert">
            The server rejected this key. Check it, or ask the administrator for another one.
          </p>
        )}
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
