// The form of one provider: key and address, a test with a real request, and the models to offer.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Icon } from "../components/icons.tsx";
import { plural, shortTokens } from "../lib/format.ts";
import * as appState from "../state/app-state.ts";
import * as client from "./client.ts";
import type { Access, Provider, Test } from "./client.ts";

interface FormProps {
  provider: Provider | null; // null: a new one
  onStored: (provider: Provider) => void;
  onRemoved: () => void;
}

export function ProviderForm({ provider, onStored, onRemoved }: FormProps) {
  const [name, setName] = useState("");
  const [apiKey, setApiKey] = useState("");
  const [baseUrl, setBaseUrl] = useState((provider?.isCustom || provider?.runsLocally ? provider.baseUrl : null) ?? "");
  const [result, setResult] = useState<Test | null>(null);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [isBusy, setBusy] = useState(false);
  const [fault, setFault] = useState<string | null>(null);
  const key = provider?.key ?? keyFrom(name);
  const listsModels = provider === null || provider.isCustom || provider.runsLocally;
  const access: Access = { ...(apiKey.trim() && { apiKey: apiKey.trim() }), ...(baseUrl.trim() && { baseUrl: baseUrl.trim() }), ...(provider === null && { title: name.trim() }) };
  const isComplete = provider === null ? key !== "" && baseUrl.trim() !== "" : !provider.needsKey || apiKey.trim() !== "" || provider.keyHint !== null;

  const attempt = async (action: () => Promise<void>) => {
    setBusy(true);
    setFault(null);
    try {
      await action();
    } catch (error) {
      const { title, advice } = api.problemFrom(error);
      setFault(`${title} ${advice}`);
    }
    setBusy(false);
  };
  const save = (models: string[] | null) =>
    attempt(async () => {
      const stored = await client.store(key, models === null ? access : { ...access, models });
      setApiKey("");
      setResult(null);
      await appState.loadModels();
      onStored(stored);
      appState.showNotice(`${stored.title} is ready: ${plural(stored.models, "model")}`);
    });
  const check = () =>
    attempt(async () => {
      const answer = await client.test(key, access);
      setResult(answer);
      setChosen(new Set(answer.models.map((model) => model.name)));
      if (answer.isWorking && !listsModels) await save(null);
    });
  useEffect(() => {
    if (provider?.runsLocally) void check(); // it needs no key
  }, []);
  const remove = () =>
    attempt(async () => {
      await client.remove(key);
      await appState.loadModels();
      onRemoved();
      appState.showNotice("Removed");
    });
  return (
    <form class="stack provider-form" onSubmit={(event) => (event.preventDefault(), void check())}>
      {provider === null && (
        <label class="field">
          Name
          <input value={name} maxLength={40} placeholder="My server" onInput={(event) => setName(event.currentTarget.value)} />
        </label>
      )}
      {(provider?.runsLocally !== true || provider.isCustom) && (
        <label class="field">
          API key{provider?.needsKey ? "" : ", if it needs one"}
          <input type="password" autocomplete="off" spellcheck={false} value={apiKey} placeholder={provider?.keyHint ?? ""} onInput={(event) => (setApiKey(event.currentTarget.value), setResult(null))} />
        </label>
      )}
      {listsModels ? (
        <AddressField value={baseUrl} onChange={(text) => (setBaseUrl(text), setResult(null))} />
      ) : (
        <details>
          <summary>Another address</summary>
          <AddressField value={baseUrl} placeholder={provider?.baseUrl ?? ""} onChange={(text) => (setBaseUrl(text), setResult(null))} />
        </details>
      )}
      {fault && (
        <p class="unfinished" role="alert">
          {fault}
        </p>
      )}
      {result && <Outcome result={result} />}
      {result?.isWorking && listsModels && result.models.length > 0 && <ModelChoice models={result.models} chosen={chosen} onChange={setChosen} />}
      <div class="row end wrap">
        {provider?.isStored && (
          <button type="button" class="danger" disabled={isBusy} onClick={() => void remove()}>
            Remove
          </button>
        )}
        {result && !result.isWorking && (
          <button type="button" disabled={isBusy} onClick={() => void save(null)}>
            Save anyway
          </button>
        )}
        {result?.isWorking && listsModels ? (
          <button type="button" class="primary" disabled={isBusy} onClick={() => void save([...chosen])}>
            Save with {plural(chosen.size, "model")}
          </button>
        ) : (
          <button type="submit" class="primary" disabled={isBusy || !isComplete}>
            {isBusy ? "Testing …" : listsModels ? "Find models" : "Test and save"}
          </button>
        )}
      </div>
    </form>
  );
}

function AddressField({ value, placeholder = "http://127.0.0.1:8080/v1", onChange }: { value: string; placeholder?: string; onChange: (text: string) => void }) {
  return (
    <label class="field">
      Base URL
      <input type="url" spellcheck={false} value={value} placeholder={placeholder} onInput={(event) => onChange(event.currentTarget.value)} />
    </label>
  );
}

function Outcome({ result }: { result: Test }) {
  if (result.isWorking) {
    return (
      <p class="good" role="status">
        <Icon name="check" size={16} /> It answers: {plural(result.models.length, "model")}.
      </p>
    );
  }
  return (
    <div class="banner bad" role="alert">
      <Icon name="warn" size={16} />
      <span class="problem">
        <strong>{FAILURES[result.code ?? ""] ?? "The test failed."}</strong>
        {result.message && <q class="details">{result.message}</q>}
      </span>
    </div>
  );
}

const FAILURES: Record<string, string> = {
  unauthorized: "The provider rejects this key.",
  forbidden: "The key has no permission.",
  unreachable: "Nothing answers at this address.",
  timeout: "The provider did not respond in time.",
  missing_key: "A key is missing.",
  invalid_base_url: "This is not a valid address.",
  rate_limited: "The rate limit of the provider is exceeded.",
};

function ModelChoice({ models, chosen, onChange }: { models: client.ListedModel[]; chosen: ReadonlySet<string>; onChange: (names: ReadonlySet<string>) => void }) {
  const toggle = (name: string) => {
    const next = new Set(chosen);
    if (!next.delete(name)) next.add(name);
    onChange(next);
  };
  return (
    <fieldset class="model-choice">
      <legend>Models to offer</legend>
      {models.map((model) => (
        <label key={model.name} class="row">
          <input type="checkbox" checked={chosen.has(model.name)} onChange={() => toggle(model.name)} />
          <span>{model.name}</span>
          {model.contextTokens !== null && <span class="muted small">{shortTokens(model.contextTokens)} context</span>}
        </label>
      ))}
    </fieldset>
  );
}

function keyFrom(name: string): string {
  return name
    .trim()
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^[^a-z]+|-+$/g, "")
    .slice(0, 40);
}
