// Content of a conversation without messages.
import { useObservable } from "../state/observable.ts";
import { modelName } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { chosenModel } from "./model-picker.tsx";
import * as appState from "../state/app-state.ts";
import { hashOf } from "../state/route.ts";
import { suggest } from "./composer.tsx";
import { promptsFor } from "../tour/prompts.ts";
import { startTour } from "../tour/state.ts";

export function Welcome() {
  const models = useObservable(appState.models);
  const isAdmin = useObservable(appState.isAdmin);
  const model = chosenModel(appState.open.value.id);
  const provider = models.find((row) => row.id === model)?.provider;
  return (
    <div class="welcome">
      <h2>Start a conversation</h2>
      <p>Dragoman is one page for every model: swap models in the middle of a conversation, and keep everything on this server.</p>
      <p class="muted">
        {!models.length ? (
          "Loading …"
        ) : model ? (
          <>
            <strong>{modelName(model)}</strong>
            {provider === "local" ? ", a small model built into Dragoman, answers." : " answers."}
          </>
        ) : (
          "The routing policy chooses the model."
        )}
        {models.length > 0 && " You can change the model at any time."}
      </p>
      {isAdmin && (
        <p>
          <a class="row" href={hashOf({ page: "providers" })}>
            <Icon name="key" size={16} /> Add the key of a provider, or your own server
          </a>
        </p>
      )}
      <ul class="suggestions">
        {promptsFor(provider).map((words) => (
          <li key={words}>
            <button type="button" onClick={() => suggest(words)}>
              {words}
            </button>
          </li>
        ))}
      </ul>
      <button type="button" class="quiet start-tour" onClick={startTour}>
        Take the tour (two minutes)
      </button>
      <ul class="tips">
        <li>
          <Icon name="clip" size={16} /> Drop or paste images and files
        </li>
        <li>
          <Icon name="fork" size={16} /> Fork a conversation at any message
        </li>
        <li>
          <Icon name="code" size={16} /> Show any message in the format of any provider
        </li>
        <li>
          <Icon name="help" size={16} /> Press <kbd>?</kbd> for keyboard shortcuts
        </li>
      </ul>
    </div>
  );
}
