// The step of the guided tour. It survives a reload of the tab.
import { Observable } from "../state/observable.ts";

const KEY = "dragoman-tour";
const stored = sessionStorage.getItem(KEY);

export const step = new Observable<number | null>(stored === null ? null : Number(stored)); // null: no tour

step.watch((number) => {
  if (number === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, String(number));
});

export function startTour(): void {
  step.set(0);
}
