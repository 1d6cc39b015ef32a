// Filters of a search: model, role, days, and messages with tools.
import { useState } from "preact/hooks";
import * as appState from "../state/app-state.ts";
import { modelName } from "../lib/format.ts";
import { useObservable } from "../state/observable.ts";
import type { SearchFilters } from "../api/types.ts";

export const NO_FILTERS: SearchFilters = { model: null, role: null, from: null, to: null, hasTool: null };

export function FilterFields({ filters, onChange }: { filters: SearchFilters; onChange: (filters: SearchFilters) => void }) {
  const models = useObservable(appState.models);
  const set = (name: keyof SearchFilters, value: string) => onChange({ ...filters, [name]: value || null });
  const [isOpen, setOpen] = useState(false);
  const isActive = Object.values(filters).some(Boolean);
  return (
    <details class="small" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary class="hint">Filters{isActive ? " (active)" : ""}</summary>
      <div class="search-filters" role="group" aria-label="Filters of the search">
        <select aria-label="Model" value={filters.model ?? ""} onChange={(event) => set("model", event.currentTarget.value)}>
          <option value="">Any model</option>
          {models.map((model) => (
            <option key={model.id} value={model.id}>
              {modelName(model.id)}
            </option>
          ))}
        </select>
        <select aria-label="Written by" value={filters.role ?? ""} onChange={(event) => set("role", event.currentTarget.value)}>
          <option value="">Anybody</option>
          <option value="user">You</option>
          <option value="assistant">Models</option>
          <option value="tool">Tools</option>
        </select>
        <label>
          From
          <input type="date" value={filters.from ?? ""} onInput={(event) => set("from", event.currentTarget.value)} />
        </label>
        <label>
          To
          <input type="date" value={filters.to ?? ""} onInput={(event) => set("to", event.currentTarget.value)} />
        </label>
        <label class="row">
          <input type="checkbox" checked={filters.hasTool !== null} onChange={(event) => set("hasTool", event.currentTarget.checked ? "true" : "")} />
          <span>With tools</span>
        </label>
      </div>
    </details>
  );
}
