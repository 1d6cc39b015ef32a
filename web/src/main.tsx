// Entry point.
import { render } from "preact";
import { App } from "./app.tsx";
import { retryNow } from "./api/run-stream.ts";
import * as appState from "./state/app-state.ts";
import { onChangeInOtherTab } from "./state/tabs.ts";
import { watchLayers } from "./lib/back-button.ts";
import { registerServiceWorker } from "./lib/offline.ts";
import { listenForShortcuts } from "./lib/shortcuts.ts";
import { applyTheme } from "./lib/theme.ts";

const CHECK_MS = 15_000;

// Another tab or the command line may have added messages.
function refreshAll(): void {
  retryNow();
  void appState.loadThreads();
  void appState.open.value.refresh();
}

applyTheme();
appState.watchAddress();
listenForShortcuts();
watchLayers();
registerServiceWorker();
addEventListener("online", retryNow);
onChangeInOtherTab((thread) => {
  void appState.loadThreads();
  if (thread === appState.open.value.id) void appState.open.value.refresh();
});
setInterval(() => document.hidden || void appState.open.value.checkForChange(), CHECK_MS);
document.addEventListener("visibilitychange", () => document.hidden || refreshAll());
void appState.loadThreads();
void appState.loadModels();
render(<App />, document.getElementById("app") as HTMLElement);
