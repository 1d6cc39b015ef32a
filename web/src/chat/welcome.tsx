// What a conversation without messages says.
import { useCell } from "../state/observable.ts";
import { modelName } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { chosenModel } from "./model-picker.tsx";
import * as shelf from "../state/app-state.ts";
import { suggest } from "./composer.tsx";

const BEGINNINGS = ["Explain what a Merkle tree is, with a small example", "Write a haiku about translation, then explain it", "帮我把这句话翻译成英文：山重水复疑无路"];

export function Welcome() {
  const models = useCell(shelf.models);
  const model = chosenModel(shelf.open.value.id);
  const provider = models.find((one) => one.id === model)?.provider;
  return (
    <div class="welcome">
      <h2>What shall we talk about?</h2>
      <p class="muted">
        {!models.length ? (
          "One moment …"
        ) : model ? (
          <>
            <strong>{modelName(model)}</strong>
            {provider === "local" ? ", a small model inside of this program, answers." : " answers."}
          </>
        ) : (
          "The routing chooses who answers."
        )}
        {models.length > 0 && " Change it at any time; the conversation goes along."}
      </p>
      <ul class="beginnings">
        {BEGINNINGS.map((words) => (
          <li key={words}>
            <button type="button" onClick={() => suggest(words)}>
              {words}
            </button>
          </li>
        ))}
      </ul>
      <ul class="teach">
        <li>
          <Icon name="clip" size={16} /> Drop or paste pictures, several at once
        </li>
        <li>
          <Icon name="fork" size={16} /> Fork at any message; nothing is ever lost
        </li>
        <li>
          <Icon name="code" size={16} /> See any message as any provider would
        </li>
        <li>
          <Icon name="help" size={16} /> Press <kbd>?</kbd> for the keys
        </li>
      </ul>
    </div>
  );
}
