// Light or dark: as the system has it, until somebody chooses.
import { Cell } from "../state/observable.ts";

export type Theme = "system" | "light" | "dark";
const KEY = "dragoman-theme";
const ORDER: Theme[] = ["system", "light", "dark"];

export const theme = new Cell<Theme>(kept());

export function applyTheme(): void {
  const show = (chosen: Theme) => {
    document.documentElement.dataset["theme"] = chosen;
  };
  show(theme.value);
  theme.watch((chosen) => {
    localStorage.setItem(KEY, chosen);
    show(chosen);
  });
}

export function nextTheme(): void {
  theme.change((now) => ORDER[(ORDER.indexOf(now) + 1) % ORDER.length] as Theme);
}

function kept(): Theme {
  const found = localStorage.getItem(KEY) as Theme | null;
  return found && ORDER.includes(found) ? found : "system";
}
