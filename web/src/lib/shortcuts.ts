// Keyboard shortcuts. The help dialog lists them.
import * as appState from "../state/app-state.ts";
import { isBusy } from "../state/view-model.ts";
import { step as tourStep } from "../tour/state.ts";
import { nextTheme } from "./theme.ts";

export interface Shortcut {
  keys: string[];
  label: string;
  matches: (event: KeyboardEvent) => boolean;
  run: () => void;
}

const isCommand = (event: KeyboardEvent) => event.ctrlKey || event.metaKey;
const isPlain = (event: KeyboardEvent) => !isCommand(event) && !event.altKey && !isWriting(event.target);

export const SHORTCUTS: Shortcut[] = [
  { keys: ["Ctrl", "K"], label: "Search all conversations", matches: (event) => isCommand(event) && event.key.toLowerCase() === "k", run: () => focus("#search") },
  { keys: ["/"], label: "Search (outside of text fields)", matches: (event) => isPlain(event) && event.key === "/", run: () => focus("#search") },
  { keys: ["Ctrl", "Shift", "O"], label: "New conversation", matches: (event) => isCommand(event) && event.shiftKey && event.key.toLowerCase() === "o", run: () => startNewChat() },
  { keys: ["Ctrl", "/"], label: "Choose a model", matches: (event) => isCommand(event) && event.key === "/", run: () => appState.dialog.set({ kind: "models" }) },
  { keys: ["Ctrl", "Shift", "L"], label: "Switch the theme: system, light, dark", matches: (event) => isCommand(event) && event.shiftKey && event.key.toLowerCase() === "l", run: nextTheme },
  { keys: ["Esc"], label: "Close the drawer or the tour, or stop the answer", matches: (event) => event.key === "Escape" && !appState.dialog.value && !event.isComposing, run: closeOrStop },
  { keys: ["?"], label: "Show this list", matches: (event) => isPlain(event) && event.key === "?", run: () => appState.dialog.set({ kind: "help" }) },
];

// Keys that the message field handles itself.
export const FIELD_KEYS: Pick<Shortcut, "keys" | "label">[] = [
  { keys: ["Enter"], label: "Send" },
  { keys: ["Shift", "Enter"], label: "New line" },
  { keys: ["↑"], label: "Edit your last message (in an empty field)" },
];

export function listenForShortcuts(): void {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented) return;
    const shortcut = SHORTCUTS.find((candidate) => candidate.matches(event));
    if (!shortcut || (appState.dialog.value && shortcut.keys[0] !== "Esc")) return;
    if (shortcut.keys[0] !== "Esc") event.preventDefault();
    shortcut.run();
  });
}

export function startNewChat(): void {
  appState.startConversation();
  focus("#words");
}

// On a phone, the drawer is closed first.
function closeOrStop(): void {
  if (appState.isDrawerOpen.value) appState.isDrawerOpen.set(false);
  else if (tourStep.value !== null && !isBusy(appState.open.value.view.value)) tourStep.set(null);
  else void appState.open.value.stop();
}

function focus(selector: string): void {
  appState.isDrawerOpen.set(selector === "#search");
  const setFocus = () => document.querySelector<HTMLElement>(selector)?.focus();
  setFocus(); // immediately, for the next key press
  requestAnimationFrame(setFocus); // again after rendering: a hidden element cannot be focused
}

function isWriting(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}
