// Colour theme: the system setting, or the choice of the user.
import { Observable } from "../state/observable.ts";

export type Theme = "system" | "light" | "dark";
const KEY = "dragoman-theme";
const ORDER: Theme[] = ["system", "light", "dark"];

export const theme = new Observable<Theme>(storedTheme());

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

// Whether dark colours are shown, by the choice of the user or of the system.
const system = matchMedia("(prefers-color-scheme: dark)");
export const isDark = new Observable<boolean>(darkNow());
const update = () => isDark.set(darkNow());
system.addEventListener("change", update);
theme.watch(update);

function darkNow(): boolean {
  return theme.value === "dark" || (theme.value === "system" && system.matches);
}

export function nextTheme(): void {
  theme.change((now) => ORDER[(ORDER.indexOf(now) + 1) % ORDER.length] as Theme);
}

function storedTheme(): Theme {
  const name = localStorage.getItem(KEY) as Theme | null;
  return name && ORDER.includes(name) ? name : "system";
}
