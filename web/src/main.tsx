// The page begins here.
import { options, render } from "preact";
import { App } from "./app.tsx";
import { tryNow } from "./following.ts";
import * as shelf from "./shelf.ts";
import { listenForShortcuts } from "./shortcuts.ts";
import { applyTheme } from "./theme.ts";

// Many events may come within one frame, and drawing once is enough. A page that nobody sees has no frames.
options.debounceRendering = (draw) => {
  const timer = setTimeout(drawOnce, 100);
  const frame = requestAnimationFrame(drawOnce);
  function drawOnce(): void {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    draw();
  }
};

applyTheme();
shelf.followAddress();
listenForShortcuts();
addEventListener("online", tryNow);
void shelf.loadThreads();
void shelf.loadModels();
render(<App />, document.getElementById("app") as HTMLElement);
