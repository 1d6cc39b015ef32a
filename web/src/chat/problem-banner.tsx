// An error with the actions that the page offers for it.
import { Icon, IconButton } from "../components/icons.tsx";
import type { Conversation } from "../state/conversation.ts";
import * as appState from "../state/app-state.ts";
import { chosenModel } from "./model-picker.tsx";
import type { Problem, ProblemAction } from "../state/view-model.ts";

const LABELS: Record<ProblemAction, string> = {
  retry: "Retry",
  model: "Switch the model",
  pictures: "Choose for images",
  providers: "Open providers",
  settings: "Open settings",
};

export function ProblemBanner({ problem, conversation }: { problem: Problem; conversation: Conversation }) {
  const { title, advice, details, requestId, actions } = problem;
  const dismiss = () => conversation.view.change((now) => ({ ...now, problem: null }));
  const offered = actions.filter((action) => canRun(action, conversation));
  return (
    <div class="banner bad" role="alert">
      <Icon name="warn" size={16} />
      <span class="problem">
        <span>
          <strong>{title}</strong> {advice}
        </span>
        {details && <q class="details">{details}</q>}
        {requestId && <small class="muted">Request {requestId}</small>}
        {offered.length > 0 && (
          <span class="row wrap">
            {offered.map((action) => (
              <button key={action} type="button" onClick={() => run(action, conversation)}>
                {LABELS[action]}
              </button>
            ))}
          </span>
        )}
      </span>
      <IconButton icon="close" label="Dismiss" onClick={dismiss} />
    </div>
  );
}

// Only a stored question can be asked again, and only a stored conversation has an image policy.
function canRun(action: ProblemAction, { view, isNew }: Conversation): boolean {
  const { items } = view.value;
  if (action === "retry") return items.some((item) => item.kind === "user" && item.seq !== null);
  if (action === "pictures") return !isNew || items.length > 0;
  if (action === "providers") return appState.isAdmin.value;
  return true;
}

function run(action: ProblemAction, conversation: Conversation): void {
  switch (action) {
    case "retry":
      return void conversation.retry();
    case "model":
      return appState.dialog.set({ kind: "models" });
    case "providers":
      return appState.navigate({ page: "providers" });
    case "settings":
      return appState.dialog.set({ kind: "settings" });
    case "pictures":
      return appState.dialog.set({ kind: "models", candidate: chosenModel(conversation.id) });
  }
}
