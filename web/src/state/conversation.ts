// A conversation that is open: what is shown of it, and what can be done with it.
//
// It loads what is stored, begins runs and follows them, and puts the stored messages in the place of what had streamed.
// The one rule: the view changes through apply and the functions of rows.ts, or by a field that says so by its name.
import * as api from "../api/client.ts";
import { Cell } from "./observable.ts";
import { follow, type Follower } from "../api/run-stream.ts";
import { spent } from "../lib/format.ts";
import { ulid } from "../lib/ulid.ts";
import { apply } from "./reducer.ts";
import { firstSeq, lastSeq, withAllStored, withRows } from "./stored-messages.ts";
import { emptyView, isBusy, type Enclosure, type UserItem, type View } from "./view-model.ts";
import type { Decision, Stored } from "../api/types.ts";

export interface Draft {
  text: string;
  files: Stored[];
}

export class Conversation {
  readonly id: string;
  readonly view: Cell<View>;
  readonly onNews: () => void; // something about it has changed that lists show
  #ending = new AbortController();

  constructor(id: string, isNew: boolean, onNews: () => void) {
    this.id = id;
    this.view = new Cell(emptyView(id, !isNew));
    this.onNews = onNews;
    if (!isNew) void this.load();
  }

  close(): void {
    this.#ending.abort();
  }

  // --- reading -------------------------------------------------------------------------------------------------------

  async load(): Promise<void> {
    this.view.change((view) => ({ ...view, isLoading: true, problem: null }));
    await this.#trying(async () => {
      const page = await api.messages(this.id);
      this.view.change((view) => withRows(view, page.messages, page.hasMore));
    });
    this.view.change((view) => ({ ...view, isLoading: false }));
    void this.#join();
    void this.#loadCost();
  }

  async loadEarlier(): Promise<void> {
    await this.#trying(async () => {
      const page = await api.messages(this.id, { beforeSeq: firstSeq(this.view.value) });
      this.view.change((view) => withRows(view, page.messages, page.hasMore));
    });
  }

  // Earlier pages, until a message is there.
  async loadBackTo(messageId: string): Promise<void> {
    while (this.view.value.hasEarlier && !this.view.value.items.some((item) => item.id === messageId)) {
      const before = firstSeq(this.view.value);
      await this.loadEarlier();
      if (firstSeq(this.view.value) === before) return;
    }
  }

  // What was said elsewhere meanwhile, if nothing runs here.
  async refresh(): Promise<void> {
    if (isBusy(this.view.value) || !lastSeq(this.view.value)) return;
    await this.#loadNew().catch(() => undefined);
    void this.#join();
  }

  async #loadNew(): Promise<void> {
    let after = Math.max(0, lastSeq(this.view.value) - 1);
    for (let hasMore = true; hasMore; after = lastSeq(this.view.value)) {
      const page = await api.messages(this.id, { afterSeq: after });
      hasMore = page.hasMore && page.messages.length > 0;
      this.view.change((view) => withAllStored(view, page.messages));
    }
  }

  async #loadCost(): Promise<void> {
    const cost = await api.threadCost(this.id).catch(() => null);
    if (cost === null) return;
    const answers = cost.byModel.reduce((sum, one) => sum + one.messages, 0);
    this.view.change((view) => ({ ...view, spent: spent(cost.totalUsd, cost.unpriced, answers) }));
  }

  // --- runs ----------------------------------------------------------------------------------------------------------

  async send(draft: Draft, model: string | null): Promise<boolean> {
    const message = { id: ulid(), role: "user", content: contentOf(draft) };
    this.view.change((view) => ({ ...view, items: [...view.items, asked(message.id, draft)], interrupts: [], problem: null }));
    const isTaken = await this.#run({ messages: [message], forwardedProps: model ? { model } : {} });
    if (!isTaken) this.view.change((view) => ({ ...view, items: view.items.filter((item) => item.id !== message.id) }));
    return isTaken;
  }

  async decide(decisions: Decision[]): Promise<boolean> {
    return this.#run({ messages: [], forwardedProps: {}, resume: decisions });
  }

  async stop(): Promise<void> {
    const { run } = this.view.value;
    if (run.state === "idle" || run.state === "stopping") return;
    this.view.change((view) => ({ ...view, run: { state: "stopping", runId: run.runId } }));
    await this.#trying(() => api.cancel(this.id));
  }

  async #run(input: Record<string, unknown>): Promise<boolean> {
    const runId = `run_${ulid()}`;
    const asked = { threadId: this.id, runId, protocolVersion: "1.0", state: {}, tools: [], context: [], ...input };
    this.view.change((view) => ({ ...view, run: { state: "starting", runId }, problem: null }));
    return this.#follow({ start: (signal) => api.run(asked, signal) });
  }

  // A run may go on that was begun elsewhere, or before the page was loaded, or wait for a decision: then what it told
  // is read from its beginning. It is shown as it streams only if it turns out to be still going on.
  async #join(): Promise<void> {
    if (isBusy(this.view.value) || !isOpenEnded(this.view.value)) return;
    const signal = this.#ending.signal;
    const start = (ending: AbortSignal) => api.events(this.id, null, ending);
    let ahead: View = { ...this.view.value, items: upToQuestion(this.view.value) };
    let isShown = false;
    const timer = setTimeout(() => ((isShown = true), this.view.set(ahead)), JOIN_MS);
    try {
      for await (const happened of follow({ start, thread: this.id, after: 0, signal })) {
        if (happened.kind === "event") ahead = apply(isShown ? this.view.value : ahead, happened);
        if (isShown && happened.kind === "event") this.view.set(ahead);
        if (isShown && happened.kind !== "event") this.#connection(happened.kind === "lost" ? happened.attempt : 0);
      }
    } catch {
      // What was told is not kept any more, and the messages are there.
    }
    clearTimeout(timer);
    if (signal.aborted) return;
    if (isShown) return this.#settle(true);
    const { interrupts, lastEvent } = ahead;
    this.view.change((view) => ({ ...view, interrupts, lastEvent }));
  }

  async #follow({ start }: Pick<Follower, "start">): Promise<boolean> {
    const signal = this.#ending.signal;
    let isTaken = false;
    try {
      for await (const happened of follow({ start, thread: this.id, after: this.view.value.lastEvent, signal })) {
        if (happened.kind === "event") {
          if (!isTaken) this.onNews();
          isTaken = true;
          this.view.change((view) => apply(view, happened));
        } else this.#connection(happened.kind === "lost" ? happened.attempt : 0);
      }
    } catch (error) {
      this.view.change((view) => ({ ...view, run: { state: "idle" }, problem: api.problemFrom(error) }));
    }
    if (!signal.aborted) await this.#settle(isTaken);
    return isTaken;
  }

  #connection(attempt: number): void {
    this.view.change((view) => {
      if (view.run.state === "idle") return view;
      const { runId } = view.run;
      return { ...view, run: attempt ? { state: "lost", runId, attempt } : { state: "running", runId } };
    });
  }

  async #settle(isTaken: boolean): Promise<void> {
    if (isTaken) await this.#loadNew().catch(() => undefined); // what streamed stays on the page then
    if (isTaken) void this.#loadCost();
    this.onNews();
  }

  async #trying(deed: () => Promise<void>): Promise<void> {
    try {
      await deed();
    } catch (error) {
      if (!this.#ending.signal.aborted) this.view.change((view) => ({ ...view, problem: api.problemFrom(error) }));
    }
  }
}

const JOIN_MS = 150; // in which a run that is over is told to its end

// Whether the last message leaves something open: a question, an answer in the making, or a call without a result.
function isOpenEnded({ items }: View): boolean {
  const last = items.at(-1);
  if (last?.kind !== "answer") return last !== undefined;
  return last.status !== "complete" || last.parts.some((part) => part.kind === "call" && part.result === null);
}

// What a run has stored so far is told again by its events.
function upToQuestion({ items }: View): View["items"] {
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

function asked(id: string, { text, files }: Draft): UserItem {
  const enclosures: Enclosure[] = files.map((file) => ({ place: file, url: api.ours(file.url), mime: file.mime_type, name: file.name ?? null }));
  return { kind: "user", id, seq: null, text, enclosures, at: null };
}
