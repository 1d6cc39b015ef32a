// Asks several models the same question. The first model answers in the conversation itself, each other one in a fork
// before the question: the answers are versions of one message, as after an edit or another try.
import * as api from "../api/client.ts";
import * as appState from "../state/app-state.ts";
import { Conversation, type Draft } from "../state/conversation.ts";

export const MIN_MODELS = 2;
export const MAX_MODELS = 4;

const active = new Map<string, Conversation>(); // conversations of the shown comparison

// Sends the question to all models and shows the answers in columns. Returns false if it was not accepted.
export async function compare(conversation: Conversation, draft: Draft, models: readonly string[]): Promise<boolean> {
  const [first, ...others] = models;
  if (first === undefined) return false;
  await conversation.loadNewest();
  const atSeq = conversation.view.value.lastSeq;
  const isAccepted = await sendAndAccept(conversation, draft, first);
  if (!isAccepted) return false;
  appState.setAddress(conversation);
  active.clear();
  active.set(conversation.id, conversation);
  await appState.attempt(async () => {
    const rows = await Promise.all(others.map(() => api.fork(conversation.id, atSeq)));
    rows.forEach((row, at) => {
      appState.putThread(row);
      const fork = new Conversation(row.id, false, () => void appState.loadThreads());
      active.set(row.id, fork);
      void fork.loaded.then(() => fork.send(draft, others[at] ?? null));
    });
    appState.navigate({ page: "compare", id: [conversation.id, ...rows.map((row) => row.id)].join(",") });
  });
  return true;
}

// Resolves when the run has begun, not when it has ended.
function sendAndAccept(conversation: Conversation, draft: Draft, model: string): Promise<boolean> {
  return new Promise((resolve) => {
    const unwatch = conversation.view.watch(({ run }) => {
      if (run.state === "running") resolve(true);
    });
    void conversation.send(draft, model).then((isAccepted) => (unwatch(), resolve(isAccepted)));
  });
}

export function conversationsOf(ids: readonly string[]): Conversation[] {
  const found = ids.map((id) => active.get(id) ?? (appState.open.value.id === id ? appState.open.value : new Conversation(id, false, () => void appState.loadThreads())));
  active.clear();
  for (const conversation of found) active.set(conversation.id, conversation);
  return found;
}

// Stops following the answers; they continue on the server. The open conversation stays open.
export function leave(conversations: readonly Conversation[]): void {
  for (const conversation of conversations) {
    if (conversation !== appState.open.value) conversation.close();
    active.delete(conversation.id);
  }
}

// Continues with one of the answers and its model.
export async function keep(conversation: Conversation, model: string | null): Promise<void> {
  await appState.attempt(async () => {
    if (model !== null) appState.putThread(await api.changeThread(conversation.id, { model }));
    await appState.loadThreads();
    await conversation.loadVersions(); // the other answers may have begun after the last load
    appState.navigate({ id: conversation.id });
    appState.showNotice("The other answers stay as versions: ‹ › below your message");
  });
}
