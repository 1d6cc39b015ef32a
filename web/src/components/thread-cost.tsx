// Tables of costs, and the costs of the open conversation in a dialog.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Modal } from "./modal.tsx";
import { count, dollars, modelName, plural, spent } from "../lib/format.ts";
import * as appState from "../state/app-state.ts";

export function ThreadCost({ onClose }: { onClose: () => void }) {
  const [cost, setCost] = useState<Awaited<ReturnType<typeof api.threadCost>> | null>(null);
  useEffect(() => void appState.attempt(async () => setCost(await api.threadCost(appState.open.value.id))), []);
  return (
    <Modal title="Cost of this conversation" onClose={onClose} class="wide">
      {cost === null && <p class="muted">Loading …</p>}
      {cost !== null && (cost.byModel.length ? <ModelTable models={cost.byModel} /> : <p>No answer of this conversation itself has a cost yet.</p>)}
      {cost !== null && cost.sharedAnswers > 0 && (
        <p>
          {plural(cost.sharedAnswers, "answer")} shared with the original: {cost.sharedUsd === null ? "unpriced" : dollars(Number(cost.sharedUsd))}, counted there.
        </p>
      )}
      <p class="muted small">By Dragoman's price table.</p>
    </Modal>
  );
}

export function ModelTable({ models }: { models: api.Total[] }) {
  return <TotalTable heading="Model" label="Costs by model" rows={models.map((row) => ({ ...row, name: modelName(row.group ?? "unknown") }))} />;
}

interface NamedTotal extends api.Total {
  name: ComponentChildren;
}

export function TotalTable({ heading, label, rows }: { heading: string; label: string; rows: NamedTotal[] }) {
  return (
    <div class="table prose" tabindex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            <th>{heading}</th>
            <th align="right">Cost</th>
            <th align="right">Answers</th>
            <th align="right">Tokens in</th>
            <th align="right">Cached</th>
            <th align="right">Tokens out</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row, at) => (
            <tr key={row.group ?? `none-${at}`}>
              <td>{row.name}</td>
              <td align="right">{spent(row.costUsd, row.unpriced, row.messages)}</td>
              <td align="right">{count(row.messages)}</td>
              <td align="right">{count(row.inputTokens + row.cachedInputTokens + row.cacheCreationInputTokens)}</td>
              <td align="right">{row.cachedInputTokens ? count(row.cachedInputTokens) : ""}</td>
              <td align="right">{count(row.outputTokens)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
