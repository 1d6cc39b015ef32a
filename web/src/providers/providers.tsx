// The providers page: keys, addresses and models. For administrators.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Icon, IconButton } from "../components/icons.tsx";
import { plural } from "../lib/format.ts";
import * as appState from "../state/app-state.ts";
import * as client from "./client.ts";
import { ProviderForm } from "./provider-form.tsx";
import type { Provider } from "./client.ts";

const NEW = "new provider";

export function Providers() {
  const [providers, setProviders] = useState<Provider[] | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const [words, setWords] = useState("");
  const [open, setOpen] = useState<string | null>(null);
  const load = async () => {
    try {
      setProviders(await client.providers());
    } catch (error) {
      setFault(api.problemFrom(error).title);
    }
  };
  useEffect(() => void load(), []);
  const reload = () => {
    setOpen(null);
    void load();
  };
  const found = (providers ?? []).filter(({ key, title }) => `${key} ${title}`.toLowerCase().includes(words.trim().toLowerCase()));
  const row = (provider: Provider) => (
    <ProviderRow key={provider.key} provider={provider} isOpen={open === provider.key} onToggle={() => setOpen(open === provider.key ? null : provider.key)} onChange={reload} />
  );
  const groups: [string, Provider[]][] = [
    ["In use", found.filter(({ source, runsLocally, isStored }) => source !== null && (!runsLocally || isStored))],
    ["Servers on this machine", found.filter(({ runsLocally, isStored }) => runsLocally && !isStored)],
    ["Without a key", found.filter(({ source, runsLocally }) => source === null && !runsLocally)],
  ];
  return (
    <section class="page providers" aria-labelledby="providers-title">
      <header class="head row">
        <IconButton icon="menu" label="Conversations" class="narrow-only" onClick={() => appState.isDrawerOpen.set(true)} />
        <h1 id="providers-title">Providers</h1>
      </header>
      <div class="scroll" tabindex={0} role="region" aria-label="List of providers">
        <div class="measure">
          <p class="muted">
            Enter the key of a provider, or the address of a server with an OpenAI-compatible API. It is tested with a request, used at once, and stored on the server: in the system keyring, or in a file that only the owner of the server can read.
          </p>
          {fault && (
            <p class="unfinished" role="alert">
              {fault}
            </p>
          )}
          {providers === null && !fault && <p class="hint">Loading …</p>}
          {providers !== null && (
            <>
              <div class="row between bar wrap">
                <label class="search">
                  <Icon name="search" size={16} />
                  <span class="hidden">Find a provider</span>
                  <input type="search" placeholder="Find a provider" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
                </label>
                <button type="button" aria-expanded={open === NEW} onClick={() => setOpen(open === NEW ? null : NEW)}>
                  <Icon name="plus" size={16} /> Add a server
                </button>
              </div>
              {open === NEW && (
                <div class="provider open">
                  <ProviderForm provider={null} onStored={reload} onRemoved={reload} />
                </div>
              )}
              {groups.map(([title, rows]) => rows.length > 0 && (
                <section key={title} aria-label={title}>
                  <h2>{title}</h2>
                  <ul class="provider-list">{rows.map(row)}</ul>
                </section>
              ))}
              {!found.length && <p class="hint">No matching providers. Add a server with its address.</p>}
            </>
          )}
        </div>
      </div>
    </section>
  );
}

function ProviderRow({ provider, isOpen, onToggle, onChange }: { provider: Provider; isOpen: boolean; onToggle: () => void; onChange: () => void }) {
  return (
    <li class={`provider ${isOpen ? "open" : ""}`}>
      <button type="button" class="provider-head" aria-expanded={isOpen} onClick={onToggle}>
        <Icon name="chevron" size={14} />
        <span class="name">{provider.title}</span>
        <span class="muted small">{statusOf(provider)}</span>
      </button>
      {isOpen && (provider.isEditable ? <ProviderForm provider={provider} onStored={onChange} onRemoved={onChange} /> : <p class="muted">The key is set by {provider.source} on the server. Remove it there to change it here.</p>)}
    </li>
  );
}

function statusOf({ source, keyHint, models, runsLocally }: Provider): string {
  const listed = models ? plural(models, "model") : "";
  if (source === null) return listed;
  const access = keyHint ? `key ${keyHint}` : runsLocally ? "" : "no key";
  return [access, listed].filter(Boolean).join(" · ");
}
