// Model picker. Before a swap it shows which blocks the other model cannot receive.
import { useEffect, useRef, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { useObservable } from "../state/observable.ts";
import { count, dollars, modelName, plural, shortTokens } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { Modal } from "../components/modal.tsx";
import * as appState from "../state/app-state.ts";
import { modelChoices } from "../state/drafts.ts";
import { hashOf } from "../state/route.ts";
import { blockerText } from "../api/error-messages.ts";
import type { ImagePolicy, Model, Preflight } from "../api/types.ts";

export function chosenModel(threadId: string): string | null {
  const chosen = modelForRun(threadId) ?? appState.thread(threadId)?.model;
  return chosen ?? appState.models.value.find((item) => item.isDefault)?.id ?? null;
}

// The model that was chosen for a conversation without messages.
export function modelForRun(threadId: string): string | null {
  return modelChoices.get(appState.storageKey(threadId));
}

// Stores the choice after the first message has created the conversation.
export function saveModelChoice(threadId: string): void {
  const chosen = modelForRun(threadId);
  if (!chosen) return;
  void appState.attempt(async () => {
    appState.putThread(await api.changeThread(threadId, { model: chosen }));
    modelChoices.delete(appState.storageKey(threadId));
  });
}

interface ModelPickerProps {
  onClose: () => void;
  onChoose: ((model: string) => void) | undefined;
  candidate: string | null; // its swap is shown first
}

export function ModelPicker({ onClose, onChoose, candidate: first }: ModelPickerProps) {
  const models = useObservable(appState.models);
  const isAdmin = useObservable(appState.isAdmin);
  const [words, setWords] = useState("");
  const [candidate, setCandidate] = useState<Model | null>(() => models.find((model) => model.id === first) ?? null);
  const thread = appState.open.value.id;
  const isEmpty = !appState.open.value.view.value.items.length;
  const current = chosenModel(thread);
  const choose = (model: Model) => {
    if (onChoose) {
      onClose();
      return onChoose(model.id);
    }
    if (!isEmpty) return setCandidate(model);
    modelChoices.set(appState.storageKey(thread), model.id);
    appState.models.change((known) => [...known]); // notifies components that show the choice
    onClose();
  };
  if (candidate) return <Swap model={candidate} thread={thread} onBack={() => setCandidate(null)} onClose={onClose} />;
  const found = models.filter((item) => fits(item, words));
  const ready = found.filter((item) => item.isConfigured);
  const others = found.filter((item) => !item.isConfigured);
  const onKeyDown = (event: KeyboardEvent) => {
    const first = ready.find((item) => item.id !== current);
    if (event.key === "Enter" && !event.isComposing && words && first) choose(first);
  };
  return (
    <Modal title="Choose a model" onClose={onClose} class="tall">
      <label class="search">
        <Icon name="search" size={16} />
        <span class="hidden">Find a model</span>
        <input type="search" placeholder="Find a model" value={words} onInput={(event) => setWords(event.currentTarget.value)} onKeyDown={onKeyDown} data-focus />
      </label>
      <div class="models" tabindex={0} role="region" aria-label="Models">
        <ModelList models={ready} current={current} onChoose={choose} />
        {others.length > 0 && (
          <>
            <h3 class="muted small">
              {isAdmin ? (
                <>
                  No API key: add one in <a href={hashOf({ page: "providers" })} onClick={onClose}>Providers</a>
                </>
              ) : (
                "No API key"
              )}
            </h3>
            <ModelList models={others} current={current} onChoose={choose} />
          </>
        )}
        {!found.length && <p class="hint">No matching models.</p>}
      </div>
    </Modal>
  );
}

export function fits(model: Model, words: string): boolean {
  const text = [model.id, model.name, ...model.aliases].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function ModelList({ models, current, onChoose }: { models: Model[]; current: string | null; onChoose: (model: Model) => void }) {
  return (
    <ul>
      {models.map((item) => (
        <li key={item.id}>
          <button type="button" class={`model ${item.isConfigured ? "" : "unready"}`} aria-current={item.id === current ? "true" : undefined} disabled={!item.isConfigured || item.id === current} onClick={() => onChoose(item)}>
            <span class="row between">
              <span class="name">{modelName(item.id)}</span>
              {item.id === current && <Icon name="check" size={16} />}
            </span>
            <span class="facts muted small">
              {[item.provider, item.contextTokens ? `${shortTokens(item.contextTokens)} context` : "", price(item), item.images ? "images" : "", item.tools ? "" : "no tools"].filter(Boolean).join(" · ")}
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}

function price({ inputUsd, outputUsd }: Model): string {
  if (inputUsd === null || outputUsd === null) return "";
  const [into, out] = [Number(inputUsd), Number(outputUsd)];
  return into + out === 0 ? "free" : `${dollars(into)} in, ${dollars(out)} out per million`;
}

interface SwapProps {
  model: Model;
  thread: string;
  onBack: () => void;
  onClose: () => void;
}

function Swap({ model, thread, onBack, onClose }: SwapProps) {
  const [plan, setPlan] = useState<Preflight | null>(null);
  const [policy, setPolicy] = useState<ImagePolicy>("strict");
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => {
    setFault(null);
    api.preflight(thread, model.id, policy).then(setPlan, (error: unknown) => setFault(api.problemFrom(error).title));
  }, [thread, model.id, policy]);
  const hasMedia = policy !== "strict" || plan?.failures.some((failure) => MEDIA_FAILURES.has(failure));
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (plan?.is_possible) button.current?.focus();
  }, [plan]);
  const swap = () => {
    onClose();
    void appState.attempt(async () => {
      appState.putThread(await api.changeThread(thread, { model: model.id, policy }));
      if (appState.open.value.view.value.problem) appState.open.value.view.change((view) => ({ ...view, problem: null }));
      appState.showNotice(`Model changed to ${modelName(model.id)}`);
    });
  };
  return (
    <Modal title={`Swap to ${modelName(model.id)}?`} onClose={onClose}>
      <div class="stack" aria-live="polite">
        {fault && <p class="unfinished">{fault}</p>}
        {!plan && !fault && <p class="muted">Checking compatibility …</p>}
        {plan && <Plan plan={plan} />}
        {hasMedia && <PolicyChoice policy={policy} onChange={setPolicy} />}
        <div class="row end">
          <button type="button" onClick={onBack}>
            Back
          </button>
          <button ref={button} type="button" class="primary" disabled={!plan?.is_possible} onClick={swap}>
            Swap
          </button>
        </div>
      </div>
    </Modal>
  );
}

const MEDIA_FAILURES = new Set(["no_vision_support", "no_document_support", "no_audio_support", "no_video_support"]);

export const POLICIES: [ImagePolicy, string][] = [
  ["strict", "Do not swap"],
  ["placeholder", "Send a note in place of each file"],
  ["describe", "Let a model with vision describe each image"],
];

function PolicyChoice({ policy, onChange }: { policy: ImagePolicy; onChange: (policy: ImagePolicy) => void }) {
  return (
    <label class="field">
      Images and files that this model cannot read
      <select value={policy} onChange={(event) => onChange(event.currentTarget.value as ImagePolicy)}>
        {POLICIES.map(([name, label]) => (
          <option key={name} value={name}>
            {label}
          </option>
        ))}
      </select>
    </label>
  );
}

const OUTCOMES = { projected: "converted", left_out: "omitted" } as const;

function Plan({ plan }: { plan: Preflight }) {
  const { kept, blocks: others } = plan;
  const room = plan.fits ? "Fits the context window" : "Does not fit the context window as a whole";
  return (
    <>
      <p>
        {plural(kept, "block")} unchanged{others.length ? `, ${count(others.length)} converted or omitted` : ""}. {room}: about {count(plan.estimated_input_tokens)} tokens
        {plan.first_turn_usd === null ? "" : `, ${dollars(Number(plan.first_turn_usd))} for the next prompt`}.
      </p>
      {plan.omitted_messages > 0 && plan.is_possible && (
        <p class="banner warn">
          <Icon name="warn" size={16} />
          <span>This model will not receive the oldest {plural(plan.omitted_messages, "message")}. The newest ones fit, with room for the answer.</span>
        </p>
      )}
      {plan.blockers.map((blocker, at) => (
        <p class="banner bad" role="alert" key={blocker}>
          <Icon name="warn" size={16} />
          <span>{blockerText(plan.failures[at], blocker)}</span>
        </p>
      ))}
      {others.length > 0 && (
        <ul class="losses" tabindex={0} aria-label="Converted and omitted blocks">
          {others.slice(0, 50).map((item) => (
            <li key={`${item.message_id}:${item.place}`}>
              <strong>{item.block_type.replaceAll("_", " ")}</strong> {OUTCOMES[item.outcome]}
              <span class="muted"> {item.reason}</span>
            </li>
          ))}
          {others.length > 50 && <li class="muted">and {others.length - 50} more</li>}
        </ul>
      )}
      <p class="muted small">Stored messages do not change: after a swap back, the first model receives them in full again.</p>
    </>
  );
}
