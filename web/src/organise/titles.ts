// Titles by a model for new conversations. A call of a paid model is made only if the user has asked for it.
import * as appState from "../state/app-state.ts";
import { chosenModel } from "../chat/model-picker.tsx";
import type { Model } from "../api/types.ts";
import { writeTitle } from "./api.ts";

const KEY = "dragoman-titles"; // "on" or "off", per browser

export function titleSetting(): "on" | "off" | null {
  const stored = localStorage.getItem(KEY);
  return stored === "on" || stored === "off" ? stored : null;
}

export function setTitleSetting(isOn: boolean): void {
  localStorage.setItem(KEY, isOn ? "on" : "off");
}

// The embedded model is free, but too small to write titles.
export function writesTitles(model: Model | undefined, setting = titleSetting()): boolean {
  if (setting !== null) return setting === "on";
  return model !== undefined && model.provider !== "local" && Number(model.inputUsd ?? 1) + Number(model.outputUsd ?? 1) === 0;
}

// Called after the first answer of a conversation.
export async function titleNewConversation(threadId: string): Promise<void> {
  const model = appState.models.value.find(({ id }) => id === chosenModel(threadId));
  if (!writesTitles(model)) return;
  const row = await writeTitle(threadId).catch(() => null); // without a title, the first words stay
  if (row === null) return;
  appState.putThread(row);
  await appState.loadThreads(); // supersedes a request that was sent before the change
}
