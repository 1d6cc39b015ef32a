// An open conversation: loads stored messages, starts and follows runs, and replaces streamed content with the stored
// messages after a run. The view changes through `apply`, the functions of stored-messages.ts, or single fields.
import * as api from "../api/client.ts";
import { Observable } from "./observable.ts";
import { follow, type Follower } from "../api/run-stream.ts";
import { spent } from "../lib/format.ts";
import { ulid } from "../lib/ulid.ts";
import { apply } from "./reducer.ts";
import { announceChange } from "./tabs.ts";
import { replaceWithStored, trim, withoutRows, withRows } from "./stored-messages.ts";
import { emptyView, isBusy, type Attachment, type UserItem, type View } from "./view-model.ts";
import type { ConversationSettings, Decision, Stored } from "../api/types.ts";

export interface Draft {
  text: string;
  files: Stored[];
}

export class Conversation {
  readonly id: string;
  readonly isNew: boolean; // it had no message when it was opened
  readonly view: Observable<View>;
  readonly onChange: () => void; // called when the conversation list must be reloaded
  readonly loaded: Promise<void>; // the newest messages are present, or could not be loaded
  #abort = new AbortController();
  #isLoadingPage = false;

  constructor(id: string, isNew: boolean, onChange: () => void, aroundSeq: number | null = null) {
    this.id = id;
    this.isNew = isNew;
    this.view = new Observable(emptyView(id, !isNew));
    this.onChange = onChange;
    this.loaded = isNew ? Promise.resolve() : this.load(aroundSeq);
  }

  close(): void {
    this.#abort.abort();
  }

  // --- reading -------------------------------------------------------------------------------------------------------

  // Loads the newest messages, or those around a position.
  async load(aroundSeq: number | null = null): Promise<void> {
    this.view.change((view) => ({ ...view, isLoading: true, problem: null }));
    await this.#attempt(async () => {
      const page = await api.messages(this.id, aroundSeq === null ? {} : { aroundSeq });
      this.view.change((view) => withRows(view, page.messages, { hasEarlier: page.hasMore, hasLater: page.hasLater }));
    });
    this.view.change((view) => ({ ...view, isLoading: false }));
    void this.#join();
    void this.#loadCost();
    void this.loadVersions();
  }

  async loadVersions(): Promise<void> {
    const versions = await api.versions(this.id).catch(() => []);
    this.view.change((view) => ({ ...view, versions }));
  }

  loadEarlier(): Promise<void> {
    return this.#loadPage(async () => {
      const page = await api.messages(this.id, { beforeSeq: this.view.value.firstSeq });
      this.view.change((view) => trim(withRows(view, page.messages, { hasEarlier: page.hasMore }), "end"));
    });
  }

  loadLater(): Promise<void> {
    return this.#loadPage(async () => {
      const page = await api.messages(this.id, { afterSeq: this.view.value.lastSeq });
      this.view.change((view) => trim(withRows(view, page.messages, { hasLater: page.hasLater }), "start"));
    });
  }

  // Shows the messages around a position instead of the loaded ones.
  loadAround(seq: number): Promise<void> {
    return this.#loadPage(async () => {
      const page = await api.messages(this.id, { aroundSeq: seq });
      this.view.change((view) => withRows(withoutRows(view), page.messages, { hasEarlier: page.hasMore, hasLater: page.hasLater }));
    });
  }

  // Shows the newest messages instead of the loaded ones.
  loadNewest(): Promise<void> {
    if (!this.view.value.hasLater) return Promise.resolve();
    return this.#loadPage(async () => {
      const page = await api.messages(this.id);
      this.view.change((view) => withRows(withoutRows(view), page.messages, { hasEarlier: page.hasMore, hasLater: false }));
    });
  }

  // Loads one page at a time; a request during another one does nothing.
  async #loadPage(action: () => Promise<void>): Promise<void> {
    if (this.#isLoadingPage) return;
    this.#isLoadingPage = true;
    await this.#attempt(action);
    this.#isLoadingPage = false;
  }

  // Loads messages that another client added, unless a run is active.
  async refresh(): Promise<void> {
    if (isBusy(this.view.value) || this.view.value.hasLater || !this.view.value.lastSeq) return;
    await this.#loadNew().catch(() => undefined);
    void this.#join();
  }

  // Detects a change by another device or program.
  async checkForChange(): Promise<void> {
    const { run, lastSeq, hasLater } = this.view.value;
    if (run.state !== "idle" || hasLater || !lastSeq) return;
    const row = await api.thread(this.id).catch(() => null);
    if (row !== null && row.lastSeq !== this.view.value.lastSeq) await this.refresh();
  }

  async #loadNew(): Promise<void> {
    let after = Math.max(0, this.view.value.lastSeq - 1);
    for (let hasMore = true; hasMore; after = this.view.value.lastSeq) {
      const page = await api.messages(this.id, { afterSeq: after });
      hasMore = page.hasMore && page.messages.length > 0;
      this.view.change((view) => replaceWithStored(view, page.messages));
    }
  }

  async #loadCost(): Promise<void> {
    const cost = await api.threadCost(this.id).catch(() => null);
    if (cost === null) return;
    const answers = cost.byModel.reduce((sum, row) => sum + row.messages, 0);
    this.view.change((view) => ({ ...view, spent: spent(cost.totalUsd, cost.unpriced, answers) }));
  }

  // --- runs ----------------------------------------------------------------------------------------------------------

  // Settings are for a conversation that this message creates; "default": those of the person.
  async send(draft: Draft, model: string | null, settings: ConversationSettings | "default" | null = null): Promise<boolean> {
    await this.loadNewest();
    const message = { id: ulid(), role: "user", content: contentOf(draft) };
    this.view.change((view) => ({ ...view, items: [...view.items, userItem(message.id, draft)], interrupts: [], problem: null }));
    const isAccepted = await this.#run({ messages: [message], forwardedProps: { ...(model && { model }), ...(settings && { settings }) } });
    if (!isAccepted) this.view.change((view) => ({ ...view, items: view.items.filter((item) => item.id !== message.id) }));
    return isAccepted;
  }

  // Asks the last question again if it has no complete answer; otherwise loads the messages again.
  async retry(): Promise<void> {
    if (isUnfinished(this.view.value)) await this.#run({ messages: [], forwardedProps: {} });
    else await this.load();
  }

  async decide(decisions: Decision[]): Promise<boolean> {
    return this.#run({ messages: [], forwardedProps: {}, resume: decisions });
  }

  async stop(): Promise<void> {
    const { run } = this.view.value;
    if (run.state === "idle" || run.state === "stopping") return;
    this.view.change((view) => ({ ...view, run: { state: "stopping", runId: run.runId } }));
    await this.#attempt(() => api.cancel(this.id));
  }

  async #run(input: Record<string, unknown>): Promise<boolean> {
    const runId = `run_${ulid()}`;
    const request = { threadId: this.id, runId, protocolVersion: "1.0", state: {}, tools: [], context: [], ...input };
    this.view.change((view) => ({ ...view, run: { state: "starting", runId }, problem: null }));
    return this.#follow({ start: (signal) => api.run(request, signal) });
  }

  // Joins a run that another client or an earlier page load started, or that waits for a decision, from its first event.
  // The stream is shown only if the run is still active after JOIN_MS.
  async #join(): Promise<void> {
    if (isBusy(this.view.value) || this.view.value.hasLater || !isUnfinished(this.view.value)) return; // runs belong to the end
    const signal = this.#abort.signal;
    const start = (abort: AbortSignal) => api.events(this.id, null, abort);
    let ahead: View = { ...this.view.value, items: itemsUpToQuestion(this.view.value) };
    let isShown = false;
    const timer = setTimeout(() => ((isShown = true), this.view.set(ahead)), JOIN_MS);
    try {
      for await (const update of follow({ start, thread: this.id, after: 0, signal })) {
        if (update.kind === "event") ahead = apply(isShown ? this.view.value : ahead, update);
        if (isShown && update.kind === "event") this.view.set(ahead);
        if (isShown && update.kind !== "event") this.#connection(update.kind === "lost" ? update.attempt : 0);
      }
    } catch {
      // The events are no longer stored; the messages are.
    }
    clearTimeout(timer);
    if (signal.aborted) return;
    if (isShown) return this.#settle(true);
    const { interrupts, lastEvent, problem } = ahead; // a failed run keeps its reason
    this.view.change((view) => ({ ...view, interrupts, lastEvent, problem: view.problem ?? problem }));
  }

  async #follow({ start }: Pick<Follower, "start">): Promise<boolean> {
    const signal = this.#abort.signal;
    let isAccepted = false;
    try {
      for await (const update of follow({ start, thread: this.id, after: this.view.value.lastEvent, signal })) {
        if (update.kind === "event") {
          if (!isAccepted) this.#announce();
          isAccepted = true;
          this.view.change((view) => apply(view, update));
        } else this.#connection(update.kind === "lost" ? update.attempt : 0);
      }
    } catch (error) {
      this.view.change((view) => ({ ...view, run: { state: "idle" }, problem: api.problemFrom(error) }));
    }
    if (!signal.aborted) await this.#settle(isAccepted);
    return isAccepted;
  }

  #connection(attempt: number): void {
    this.view.change((view) => {
      if (view.run.state === "idle") return view;
      const { runId } = view.run;
      return { ...view, run: attempt ? { state: "lost", runId, attempt } : { state: "running", runId } };
    });
  }

  async #settle(isAccepted: boolean): Promise<void> {
    if (isAccepted) await this.#loadNew().catch(() => undefined); // on failure the streamed content stays visible
    if (isAccepted) void this.#loadCost();
    if (isAccepted) void this.loadVersions();
    this.#announce();
  }

  #announce(): void {
    this.onChange();
    announceChange(this.id);
  }

  async #attempt(action: () => Promise<void>): Promise<void> {
    try {
      await action();
    } catch (error) {
      if (!this.#abort.signal.aborted) this.view.change((view) => ({ ...view, problem: api.problemFrom(error) }));
    }
  }
}

const JOIN_MS = 150; // enough to replay a finished run

// Returns whether the last message is a question, an incomplete answer, or has a tool call without a result.
function isUnfinished({ items }: View): boolean {
  const last = items.at(-1);
  if (last?.kind !== "answer") return last !== undefined;
  return last.status !== "complete" || last.parts.some((part) => part.kind === "call" && part.result === null);
}

// The events of a run include the messages that it has already stored.
function itemsUpToQuestion({ items }: View): View["items"] {
  return items.slice(0, items.findLastIndex((item) => item.kind === "user") + 1);
}

function contentOf({ text, files }: Draft): unknown {
  if (!files.length) return text;
  const words = text ? [{ type: "text", text }] : [];
  return [...words, ...files.map(partOf)];
}

function partOf(file: Stored): unknown {
  const kind = file.mime_type.split("/")[0] ?? "";
  const type = ["image", "audio"].includes(kind) ? kind : "document";
  return { type, source: { type: "url", value: file.url, mimeType: file.mime_type }, metadata: { filename: file.name ?? "" } };
}

function userItem(id: string, { text, files }: Draft): UserItem {
  const attachments: Attachment[] = files.map((file) => ({ place: file, url: api.localUrl(file.url), mime: file.mime_type, name: file.name ?? null }));
  return { kind: "user", id, seq: null, text, attachments, at: null };
}
