// Dialog to choose the models of a comparison. The last choice is remembered in this browser.
import { useState } from "preact/hooks";
import { Modal } from "../components/modal.tsx";
import { modelName, plural } from "../lib/format.ts";
import { chosenModel, fits } from "../chat/model-picker.tsx";
import { Icon } from "../components/icons.tsx";
import * as appState from "../state/app-state.ts";
import { useObservable } from "../state/observable.ts";
import type { Draft } from "../state/conversation.ts";
import { compare, MAX_MODELS, MIN_MODELS } from "./comparison.ts";

const KEY = "dragoman-compare";

interface ChooseProps {
  draft: Draft;
  onSent: () => void;
  onClose: () => void;
}

export function ChooseModels({ draft, onSent, onClose }: ChooseProps) {
  const models = useObservable(appState.models).filter((model) => model.isConfigured);
  const conversation = appState.open.value;
  const [chosen, setChosen] = useState<string[]>(() => remembered(models.map((model) => model.id), chosenModel(conversation.id)));
  const toggle = (id: string) => setChosen((now) => (now.includes(id) ? now.filter((other) => other !== id) : [...now, id]));
  const [words, setWords] = useState("");
  const shown = models.filter((model) => chosen.includes(model.id) || fits(model, words));
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault(); // chooses the first match, and sends nothing
    const first = shown.find((model) => !chosen.includes(model.id));
    if (!words || !first || chosen.length >= MAX_MODELS) return;
    toggle(first.id);
    setWords("");
  };
  const isPossible = chosen.length >= MIN_MODELS && chosen.length <= MAX_MODELS;
  const ask = (event: Event) => {
    event.preventDefault();
    if (!isPossible) return;
    localStorage.setItem(KEY, JSON.stringify(chosen));
    onClose();
    void compare(conversation, draft, chosen).then((isAccepted) => isAccepted && onSent());
  };
  return (
    <Modal title="Ask several models" onClose={onClose} class="tall">
      <form class="stack compare-models" onSubmit={ask}>
        <p class="muted small">
          Choose {MIN_MODELS} to {MAX_MODELS} models. Each answers your message; you keep one answer, and the others stay as versions. Every answer costs as usual.
        </p>
        <label class="search">
          <Icon name="search" size={16} />
          <span class="hidden">Find a model</span>
          <input type="search" placeholder="Find a model" value={words} onInput={(event) => setWords(event.currentTarget.value)} onKeyDown={onKeyDown} />
        </label>
        <div class="choices" tabindex={0} role="group" aria-label="Models">
          <ul>
          {shown.map((model) => (
            <li key={model.id}>
              <label class="row">
                <input type="checkbox" checked={chosen.includes(model.id)} disabled={!chosen.includes(model.id) && chosen.length >= MAX_MODELS} onChange={() => toggle(model.id)} />
                <span>{modelName(model.id)}</span>
                <span class="muted small">{model.provider}</span>
              </label>
            </li>
          ))}
          </ul>
        </div>
        {models.length < MIN_MODELS && <p class="hint">Only one model is configured. Add the key of another provider first.</p>}
        <div class="row end">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={!isPossible}>
            {isPossible ? `Ask ${plural(chosen.length, "model")}` : "Ask"}
          </button>
        </div>
      </form>
    </Modal>
  );
}

// The models of the last comparison, or the current one.
function remembered(known: readonly string[], current: string | null): string[] {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "[]") as unknown;
    const names = Array.isArray(stored) ? stored.filter((name): name is string => known.includes(name as string)) : [];
    if (names.length >= MIN_MODELS) return names;
  } catch {
    // damaged by hand
  }
  return current !== null && known.includes(current) ? [current] : [];
}
