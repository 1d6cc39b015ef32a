// Choosing a model, with a look at what it would be told before anything is changed.
import { useEffect, useRef, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { useCell } from "../state/observable.ts";
import { count, dollars, modelName, plural, shortTokens } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { Modal } from "../components/modal.tsx";
import * as shelf from "../state/app-state.ts";
import type { Model, Preflight } from "../api/types.ts";

const waiting = new Map<string, string | null>(); // chosen for conversations that do not exist yet

export function chosenModel(threadId: string): string | null {
  const chosen = waiting.has(threadId) ? waiting.get(threadId) : shelf.thread(threadId)?.model;
  return chosen ?? shelf.models.value.find((one) => one.isDefault)?.id ?? null;
}

export function modelForRun(threadId: string): string | null {
  return waiting.get(threadId) ?? null;
}

// The conversation exists now, and keeps the model that was chosen for it.
export function taken(threadId: string): void {
  const chosen = waiting.get(threadId);
  if (!chosen) return;
  void shelf.trying(async () => {
    await api.changeThread(threadId, { model: chosen });
    waiting.delete(threadId);
    await shelf.loadThreads();
  });
}

export function ModelPicker({ onClose }: { onClose: () => void }) {
  const models = useCell(shelf.models);
  const [words, setWords] = useState("");
  const [candidate, setCandidate] = useState<Model | null>(null);
  const thread = shelf.open.value.id;
  const isEmpty = !shelf.open.value.view.value.items.length;
  const current = chosenModel(thread);
  const choose = (model: Model) => {
    if (!isEmpty) return setCandidate(model);
    waiting.set(thread, model.id);
    shelf.models.change((known) => [...known]); // whoever shows the choice looks again
    onClose();
  };
  if (candidate) return <Swap model={candidate} thread={thread} onBack={() => setCandidate(null)} onClose={onClose} />;
  const found = models.filter((one) => fits(one, words));
  const ready = found.filter((one) => one.isConfigured);
  const others = found.filter((one) => !one.isConfigured);
  const onKeyDown = (event: KeyboardEvent) => {
    const first = ready.find((one) => one.id !== current);
    if (event.key === "Enter" && !event.isComposing && words && first) choose(first);
  };
  return (
    <Modal title="Who shall answer?" onClose={onClose} class="tall">
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
              Without a key yet: <code>dragoman login PROVIDER</code> adds one
            </h3>
            <ModelList models={others} current={current} onChoose={choose} />
          </>
        )}
        {!found.length && <p class="hint">No model is called like that.</p>}
      </div>
    </Modal>
  );
}

function fits(model: Model, words: string): boolean {
  const text = [model.id, model.name, ...model.aliases].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function ModelList({ models, current, onChoose }: { models: Model[]; current: string | null; onChoose: (model: Model) => void }) {
  return (
    <ul>
      {models.map((one) => (
        <li key={one.id}>
          <button type="button" class={`model ${one.isConfigured ? "" : "unready"}`} aria-current={one.id === current ? "true" : undefined} disabled={!one.isConfigured || one.id === current} onClick={() => onChoose(one)}>
            <span class="row between">
              <span class="name">{modelName(one.id)}</span>
              {one.id === current && <Icon name="check" size={16} />}
            </span>
            <span class="facts muted small">
              {[one.provider, one.contextTokens ? `${shortTokens(one.contextTokens)} context` : "", price(one), one.images ? "sees pictures" : "", one.tools ? "" : "no tools"].filter(Boolean).join(" · ")}
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
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => {
    api.preflight(thread, model.id).then(setPlan, (error: unknown) => setFault(api.problemFrom(error).title));
  }, [thread, model.id]);
  const go = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (plan?.is_possible) go.current?.focus();
  }, [plan]);
  const swap = () => {
    onClose();
    void shelf.trying(async () => {
      await api.changeThread(thread, { model: model.id });
      await shelf.loadThreads();
      shelf.say(`${modelName(model.id)} answers from now on`);
    });
  };
  return (
    <Modal title={`Swap to ${modelName(model.id)}?`} onClose={onClose}>
      <div class="stack" aria-live="polite">
        {fault && <p class="unfinished">{fault}</p>}
        {!plan && !fault && <p class="muted">Looking at what it would be told …</p>}
        {plan && <Plan plan={plan} />}
        <div class="row end">
          <button type="button" onClick={onBack}>
            Back
          </button>
          <button ref={go} type="button" class="primary" disabled={!plan?.is_possible} onClick={swap}>
            Swap
          </button>
        </div>
      </div>
    </Modal>
  );
}

const OUTCOMES = { projected: "told otherwise", left_out: "left out" } as const;

function Plan({ plan }: { plan: Preflight }) {
  const { kept, blocks: others } = plan;
  const room = plan.fits ? "It fits" : "It does not fit";
  return (
    <>
      <p>
        {plural(kept, "block")} of this conversation {kept === 1 ? "is" : "are"} kept
        {others.length ? `, ${others.length} ${others.length === 1 ? "is not told as it was" : "are not told as they were"}` : ", all of it"}. {room}: about {count(plan.estimated_input_tokens)} tokens
        {plan.first_turn_usd === null ? "" : `, ${dollars(Number(plan.first_turn_usd))} for the next prompt`}.
      </p>
      {plan.blockers.map((blocker) => (
        <p class="banner bad" role="alert" key={blocker}>
          <Icon name="warn" size={16} />
          <span>{blocker}</span>
        </p>
      ))}
      {others.length > 0 && (
        <ul class="losses" tabindex={0} aria-label="What is not told as it was">
          {others.slice(0, 50).map((one) => (
            <li key={`${one.message_id}:${one.place}`}>
              <strong>{one.block_type.replaceAll("_", " ")}</strong> {OUTCOMES[one.outcome]}
              <span class="muted"> {one.reason}</span>
            </li>
          ))}
          {others.length > 50 && <li class="muted">and {others.length - 50} more</li>}
        </ul>
      )}
      <p class="muted small">What is stored stays as it is: swapping back brings everything back.</p>
    </>
  );
}
