// What keys do, in one table: the help sheet is written from it.
import * as shelf from "../state/app-state.ts";
import { nextTheme } from "./theme.ts";

export interface Shortcut {
  keys: string[];
  says: string;
  fits: (event: KeyboardEvent) => boolean;
  does: () => void;
}

const isCommand = (event: KeyboardEvent) => event.ctrlKey || event.metaKey;
const isPlain = (event: KeyboardEvent) => !isCommand(event) && !event.altKey && !isWriting(event.target);

export const SHORTCUTS: Shortcut[] = [
  { keys: ["Ctrl", "K"], says: "Search all conversations", fits: (event) => isCommand(event) && event.key.toLowerCase() === "k", does: () => focus("#search") },
  { keys: ["/"], says: "Search, when you are not writing", fits: (event) => isPlain(event) && event.key === "/", does: () => focus("#search") },
  { keys: ["Ctrl", "Shift", "O"], says: "New conversation", fits: (event) => isCommand(event) && event.shiftKey && event.key.toLowerCase() === "o", does: () => startAnew() },
  { keys: ["Ctrl", "/"], says: "Choose a model", fits: (event) => isCommand(event) && event.key === "/", does: () => shelf.dialog.set({ kind: "models" }) },
  { keys: ["Ctrl", "Shift", "L"], says: "Light, dark, or as the system", fits: (event) => isCommand(event) && event.shiftKey && event.key.toLowerCase() === "l", does: nextTheme },
  { keys: ["Esc"], says: "Stop the answer", fits: (event) => event.key === "Escape" && !shelf.dialog.value && !event.isComposing, does: () => void shelf.open.value.stop() },
  { keys: ["?"], says: "This sheet", fits: (event) => isPlain(event) && event.key === "?", does: () => shelf.dialog.set({ kind: "help" }) },
];

// What the fields do by themselves.
export const ELSEWHERE: Pick<Shortcut, "keys" | "says">[] = [
  { keys: ["Enter"], says: "Send" },
  { keys: ["Shift", "Enter"], says: "Begin a new line" },
  { keys: ["↑"], says: "In an empty field: change your last message" },
];

export function listenForShortcuts(): void {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented) return;
    const found = SHORTCUTS.find((one) => one.fits(event));
    if (!found || (shelf.dialog.value && found.keys[0] !== "Esc")) return;
    if (found.keys[0] !== "Esc") event.preventDefault();
    found.does();
  });
}

export function startAnew(): void {
  shelf.begin();
  focus("#words");
}

function focus(selector: string): void {
  shelf.isDrawerOpen.set(selector === "#search");
  const give = () => document.querySelector<HTMLElement>(selector)?.focus();
  give(); // what is typed next is meant for it
  requestAnimationFrame(give); // what is only about to be shown cannot have it before
}

function isWriting(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}
