// On a phone, the back button closes the drawer or a dialog instead of leaving the page.
//
// An open layer has an entry of its own in the history. When the layer is closed in another way, the entry stays and the
// next layer uses it again: going back by program would undo a navigation that follows at once.
import * as appState from "../state/app-state.ts";

interface LayerState {
  layer?: "open" | "closed";
}

let isOpen = false;

export function watchLayers(): void {
  appState.isDrawerOpen.watch(update);
  appState.dialog.watch(update);
  addEventListener("popstate", () => {
    if (!isOpen) return;
    isOpen = false;
    appState.dialog.set(null);
    appState.isDrawerOpen.set(false);
  });
}

function update(): void {
  const shouldBeOpen = matchMedia("(max-width: 48rem)").matches && (appState.dialog.value !== null || appState.isDrawerOpen.value);
  if (shouldBeOpen === isOpen) return;
  isOpen = shouldBeOpen;
  const layer = (history.state as LayerState | null)?.layer;
  if (isOpen && layer !== "closed") history.pushState({ layer: "open" }, "");
  else if (layer !== undefined) history.replaceState({ layer: isOpen ? "open" : "closed" }, "");
}
