// A guided tour of two minutes, which works with the embedded model: ask, swap with a preview, show as, search, add a key.
import { useEffect, useRef } from "preact/hooks";
import { suggest } from "../chat/composer.tsx";
import { chosenModel } from "../chat/model-picker.tsx";
import { IconButton } from "../components/icons.tsx";
import { startNewChat } from "../lib/shortcuts.ts";
import * as appState from "../state/app-state.ts";
import { useObservable } from "../state/observable.ts";
import { step } from "./state.ts";

const QUESTION = "What is a lantern? Answer in one sentence.";

interface Step {
  title: string;
  text: string;
  action: string;
  run: () => void;
}

const STEPS: Step[] = [
  {
    title: "Ask",
    text: "The model at the top right answers. The button writes a question for you; send it with Enter.",
    action: "Write the question",
    run: () => {
      startNewChat();
      suggest(QUESTION);
    },
  },
  {
    title: "Swap the model",
    text: "Choose any other model in the middle of a conversation. Before the swap you see what it receives, what would be lost, and what the next answer costs.",
    action: "Choose a model",
    run: () => appState.dialog.set({ kind: "models" }),
  },
  {
    title: "Show in another format",
    text: "Every message can be shown in the format of every provider. Nothing is lost between them, and the page says so where something is.",
    action: "Show the last answer",
    run: showLastAnswer,
  },
  {
    title: "Search",
    text: "All conversations are searched at once, in any language. A result opens its message.",
    action: "Search for “lantern”",
    run: search,
  },
  {
    title: "Add a key",
    text: "With the key of a provider you talk to its models. Keys stay on this machine.",
    action: "Open the providers",
    run: () => appState.navigate({ page: "providers" }),
  },
];

function showLastAnswer(): void {
  const answer = appState.open.value.view.value.items.findLast((item) => item.kind === "answer" && item.seq !== null);
  if (answer) appState.dialog.set({ kind: "show-as", messageId: answer.id });
  else appState.showNotice("Ask a question first: there is no answer yet");
}

function search(): void {
  appState.isDrawerOpen.set(true);
  const field = document.querySelector<HTMLInputElement>("#search");
  if (!field) return;
  field.value = "lantern";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.focus();
}

// Whether the embedded model answers the question of the tour.
function isLocal(): boolean {
  const model = chosenModel(appState.open.value.id);
  return appState.models.value.find((row) => row.id === model)?.provider === "local";
}

export function Tour() {
  const number = useObservable(step);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), [number]);
  const current = number === null ? undefined : STEPS[number];
  if (number === null || !current) return null;
  const isLast = number === STEPS.length - 1;
  return (
    <aside class="tour" aria-label="Tour">
      <header class="row between">
        <h2 ref={heading} tabindex={-1}>
          {current.title}
        </h2>
        <span class="row">
          <span class="muted small">
            {number + 1} of {STEPS.length}
          </span>
          <IconButton icon="close" label="End the tour" onClick={() => step.set(null)} />
        </span>
      </header>
      <p>
        {number === 0 && isLocal() ? "A small model is built into Dragoman: it answers without a key and without a network. " : ""}
        {current.text}
      </p>
      <div class="row end">
        {number > 0 && (
          <button type="button" onClick={() => step.set(number - 1)}>
            Back
          </button>
        )}
        <button type="button" class="primary" onClick={current.run}>
          {current.action}
        </button>
        <button type="button" onClick={() => step.set(isLast ? null : number + 1)}>
          {isLast ? "Finish" : "Next"}
        </button>
      </div>
    </aside>
  );
}
