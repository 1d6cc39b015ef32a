// The page begins here.
import { render } from "preact";
import { App } from "./app.tsx";
import { tryNow } from "./api/run-stream.ts";
import * as shelf from "./state/app-state.ts";
import { listenForShortcuts } from "./lib/shortcuts.ts";
import { applyTheme } from "./lib/theme.ts";

// Another tab, or the command line, may have gone on meanwhile.
function comeBack(): void {
  tryNow();
  void shelf.loadThreads();
  void shelf.open.value.refresh();
}

applyTheme();
shelf.followAddress();
listenForShortcuts();
addEventListener("online", tryNow);
document.addEventListener("visibilitychange", () => document.hidden || comeBack());
void shelf.loadThreads();
void shelf.loadModels();
render(<App />, document.getElementById("app") as HTMLElement);
