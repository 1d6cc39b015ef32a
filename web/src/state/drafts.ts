// Data of conversations that the server does not have yet: unsent text and files, and the model and settings chosen before
// the first message. They survive a reload of the tab.
import type { ConversationSettings } from "../api/types.ts";
import type { Draft } from "./conversation.ts";

class TabStorage<T> {
  readonly #prefix: string;

  constructor(name: string) {
    this.#prefix = `dragoman-${name}:`;
  }

  get(key: string): T | null {
    const text = sessionStorage.getItem(this.#prefix + key);
    return text === null ? null : (JSON.parse(text) as T);
  }

  set(key: string, value: T): void {
    try {
      sessionStorage.setItem(this.#prefix + key, JSON.stringify(value));
    } catch {
      // The storage of the browser is full or disabled: the value is lost on reload.
    }
  }

  delete(key: string): void {
    sessionStorage.removeItem(this.#prefix + key);
  }
}

export const drafts = new TabStorage<Draft>("draft");
export const modelChoices = new TabStorage<string>("model");
export const settingsChoices = new TabStorage<ConversationSettings>("settings");
