// Token usage and cost of an answer.
import { count, dollars, duration, moment, plural } from "../lib/format.ts";
import type { Receipt } from "../state/view-model.ts";

export function ReceiptLine({ receipt, omitted = 0, at }: { receipt: Receipt; omitted?: number; at: string | null }) {
  const { input, cached, output, reasoning, usd, isUnpriced, isEstimated, latencyMs } = receipt;
  const facts = [
    `${isEstimated ? "about " : ""}${count(input)} → ${count(output)} tokens`,
    cached ? `${count(cached)} cached` : "",
    reasoning ? `${count(reasoning)} thinking` : "",
    isUnpriced ? "unpriced" : usd === null ? "" : dollars(usd),
    !latencyMs ? "" : duration(latencyMs),
    omitted ? `without the oldest ${plural(omitted, "message")}` : "",
  ];
  return (
    <span class="receipt muted small" title={at ? moment(at) : undefined}>
      {facts.filter(Boolean).map((fact) => (
        <span key={fact}>{fact}</span>
      ))}
    </span>
  );
}
