// Settings of the open conversation, and what fits into the context window of its model.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Icon } from "../components/icons.tsx";
import { Modal } from "../components/modal.tsx";
import { count, modelName, plural, shortTokens } from "../lib/format.ts";
import * as appState from "../state/app-state.ts";
import { settingsChoices } from "../state/drafts.ts";
import { chosenModel, POLICIES } from "./model-picker.tsx";
import type { ContextUse, ConversationSettings, ImagePolicy, ThreadSettings, ToolInfo } from "../api/types.ts";

const EFFORTS = [
  ["", "As the model has it"],
  ["none", "None"],
  ["minimal", "Minimal"],
  ["low", "Low"],
  ["medium", "Medium"],
  ["high", "High"],
];

export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const conversation = appState.open.value;
  const isStored = conversation.view.value.items.some((item) => item.seq !== null);
  const [stored, setStored] = useState<ThreadSettings | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => {
    loadSettings(conversation.id, isStored).then(setStored, (error: unknown) => setFault(api.problemFrom(error).title));
  }, []);
  return (
    <Modal title="Settings of this conversation" onClose={onClose} class="wide">
      {fault && (
        <p class="unfinished" role="alert">
          {fault}
        </p>
      )}
      {!stored && !fault && <p class="muted">Loading …</p>}
      {stored && <SettingsForm stored={stored} threadId={conversation.id} isStored={isStored} onClose={onClose} />}
    </Modal>
  );
}

// A new conversation has the settings that were chosen in this tab, or the defaults of the person.
async function loadSettings(threadId: string, isStored: boolean): Promise<ThreadSettings> {
  if (isStored) return api.threadSettings(threadId);
  const { settings, tools } = await api.defaultSettings();
  return { settings: settingsChoices.get(appState.storageKey(threadId)) ?? settings, images: "strict", routing: null, tools };
}

interface FormProps {
  stored: ThreadSettings;
  threadId: string;
  isStored: boolean;
  onClose: () => void;
}

function SettingsForm({ stored, threadId, isStored, onClose }: FormProps) {
  const [prompt, setPrompt] = useState(stored.settings.systemPrompt ?? "");
  const [temperature, setTemperature] = useState(stored.settings.temperature?.toString() ?? "");
  const [effort, setEffort] = useState(stored.settings.effort ?? "");
  const [disabled, setDisabled] = useState<ReadonlySet<string>>(new Set(stored.settings.disabledTools));
  const [images, setImages] = useState<ImagePolicy>(stored.images);
  const [routing, setRouting] = useState(stored.routing === null ? "" : JSON.stringify(stored.routing, null, 2));
  const [isDefault, setDefault] = useState(false);
  const [fault, setFault] = useState<string | null>(null);
  const save = async (event: Event) => {
    event.preventDefault();
    const settings = settingsFrom(prompt, temperature, effort, disabled);
    try {
      if (isStored) await api.storeThreadSettings(threadId, { settings, images, routing: routing.trim() || null });
      else settingsChoices.set(appState.storageKey(threadId), settings);
      if (isDefault) await api.storeDefaultSettings(settings);
      onClose();
      appState.showNotice(isDefault ? "Saved, also for new conversations" : "Saved");
    } catch (error) {
      setFault(api.problemFrom(error).title);
    }
  };
  return (
    <form class="stack settings-form" onSubmit={(event) => void save(event)}>
      {isStored && <ContextMeter threadId={threadId} />}
      <label class="field">
        System prompt
        <textarea rows={4} value={prompt} maxLength={100_000} placeholder="What the model is told before every question" onInput={(event) => setPrompt(event.currentTarget.value)} data-focus />
      </label>
      <div class="row wrap fields">
        <label class="field">
          Temperature, 0 to 2
          <input type="number" min={0} max={2} step={0.05} value={temperature} placeholder="As the model has it" onInput={(event) => setTemperature(event.currentTarget.value)} />
        </label>
        <label class="field">
          Effort of thinking
          <select value={effort} onChange={(event) => setEffort(event.currentTarget.value)}>
            {EFFORTS.map(([value, label]) => (
              <option key={value} value={value}>
                {label}
              </option>
            ))}
          </select>
        </label>
        {isStored && (
          <label class="field">
            Unreadable images
            <select value={images} onChange={(event) => setImages(event.currentTarget.value as ImagePolicy)}>
              {POLICIES.map(([value, label]) => (
                <option key={value} value={value}>
                  {value === "strict" ? "Refuse the question" : label}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      <Tools tools={stored.tools} disabled={disabled} onChange={setDisabled} />
      {isStored && (
        <details open={routing !== ""}>
          <summary>Routing policy of this conversation</summary>
          <label class="field">
            YAML or JSON; empty for that of the server
            <textarea rows={6} spellcheck={false} value={routing} placeholder={"schema_version: 1\nglobal_default: provider:model"} onInput={(event) => setRouting(event.currentTarget.value)} />
          </label>
        </details>
      )}
      {fault && (
        <p class="unfinished" role="alert">
          {fault}
        </p>
      )}
      <div class="row between wrap">
        <label class="row">
          <input type="checkbox" checked={isDefault} onChange={(event) => setDefault(event.currentTarget.checked)} />
          Also for my new conversations
        </label>
        <div class="row">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Save
          </button>
        </div>
      </div>
    </form>
  );
}

function settingsFrom(prompt: string, temperature: string, effort: string, disabled: ReadonlySet<string>): ConversationSettings {
  return {
    ...(prompt.trim() && { systemPrompt: prompt.trim() }),
    ...(temperature.trim() && { temperature: Number(temperature) }),
    ...(effort && { effort }),
    ...(disabled.size && { disabledTools: [...disabled] }),
  };
}

function Tools({ tools, disabled, onChange }: { tools: ToolInfo[]; disabled: ReadonlySet<string>; onChange: (names: ReadonlySet<string>) => void }) {
  if (!tools.length) return null;
  const toggle = (name: string) => {
    const next = new Set(disabled);
    if (!next.delete(name)) next.add(name);
    onChange(next);
  };
  return (
    <fieldset class="tool-choice">
      <legend>
        Tools
        <button type="button" class="quiet" onClick={() => onChange(disabled.size ? new Set() : new Set(tools.map((tool) => tool.name)))}>
          {disabled.size ? "All on" : "All off"}
        </button>
      </legend>
      {tools.map((tool) => (
        <label key={tool.name} class="row">
          <input type="checkbox" checked={!disabled.has(tool.name)} onChange={() => toggle(tool.name)} />
          <span>{tool.name}</span>
          <span class="muted small clipped">{tool.description}</span>
        </label>
      ))}
    </fieldset>
  );
}

const PARTS: [keyof ContextUse & `${string}Tokens`, string][] = [
  ["systemTokens", "system prompt"],
  ["toolTokens", "tools"],
  ["messageTokens", "messages"],
  ["answerTokens", "reserved for the answer"],
];

function ContextMeter({ threadId }: { threadId: string }) {
  const [use, setUse] = useState<ContextUse | null>(null);
  useEffect(() => void api.contextUse(threadId, chosenModel(threadId)).then(setUse, () => undefined), [threadId]);
  if (!use) return null;
  const used = use.systemTokens + use.toolTokens + use.messageTokens;
  const text = PARTS.filter(([name]) => use[name]).map(([name, label]) => `${label} ${shortTokens(use[name])}`);
  return (
    <section class="context-meter" aria-label="Context window">
      <p class="row between">
        <span>
          Context of {modelName(use.model)}: about {count(used)} of {count(use.contextTokens)} tokens
        </span>
        <span class="muted small">{Math.round((100 * used) / use.contextTokens)} %</span>
      </p>
      <div class="meter" role="img" aria-label={text.join(", ")}>
        {PARTS.map(([name]) => (
          <span key={name} class={name} style={{ width: `${(100 * use[name]) / use.contextTokens}%` }} />
        ))}
      </div>
      <p class="muted small">{text.join(" · ")}</p>
      {use.omittedMessages > 0 && (
        <p class="banner warn">
          <Icon name="warn" size={16} />
          <span>
            The oldest {plural(use.omittedMessages, "message")} will not be sent with the next question{use.firstSeq ? `: the model reads from message ${use.firstSeq} on` : ""}. They stay stored.
          </span>
        </p>
      )}
    </section>
  );
}
