// Why an answer is what it is: route, projection and losses, receipt, trace as a waterfall, retries, and the wire.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { blockerText } from "../api/error-messages.ts";
import { copyCode } from "../chat/messages.tsx";
import { IconButton } from "../components/icons.tsx";
import { Code } from "../components/markdown-text.tsx";
import { count, dollars, duration, modelName, moment, plural } from "../lib/format.ts";
import * as appState from "../state/app-state.ts";
import { useObservable } from "../state/observable.ts";
import { hashOf } from "../state/route.ts";
import type { Exchange, TraceEvent, Why, Wire } from "./types.ts";
import { barsFrom, retriesOf, type Bar } from "./waterfall.ts";

const TRACE_DELAY_MS = 600; // the trace is written in batches

export function WhyPage() {
  const { id, at } = useObservable(appState.route);
  return <Explanation key={`${id}/${at}`} thread={id ?? ""} message={at ?? ""} />;
}

function Explanation({ thread, message }: { thread: string; message: string }) {
  const place = `/threads/${api.id(thread)}/messages/${api.id(message)}`;
  const why = useLoaded(() => loadWhy(`${place}/why`));
  const wire = useLoaded(() => api.json<Wire>(`${place}/wire`));
  return (
    <section class="page why" aria-labelledby="why-title">
      <header class="head row">
        <IconButton icon="menu" label="Conversations" class="narrow-only" onClick={() => appState.isDrawerOpen.set(true)} />
        <h1 id="why-title">Why this answer?</h1>
        <a class="small" href={hashOf({ id: thread, at: message, seq: why.value?.seq ?? null })}>
          Back to the answer
        </a>
      </header>
      <div class="scroll" tabindex={0} role="region" aria-label="Explanation of an answer" onClick={copyCode}>
        <div class="measure">
          {why.fault && <p class="unfinished">{why.fault}</p>}
          {!why.value && !why.fault && <p class="hint">Loading …</p>}
          {why.value && <Facts why={why.value} />}
          {why.value && <Route why={why.value} />}
          <Projection wire={wire} why={why.value} />
          {why.value && <ReceiptTable why={why.value} />}
          {why.value && <Trace why={why.value} />}
          <WireSection wire={wire} />
        </div>
      </div>
    </section>
  );
}

// The trace of an answer that has just ended may not be written yet.
async function loadWhy(path: string): Promise<Why> {
  const why = await api.json<Why>(path);
  const isNew = Date.now() - Date.parse(why.createdAt) < 60_000;
  if (why.gateway || !isNew || why.events.some(({ type }) => type.startsWith("turn.") && type !== "turn.started")) return why;
  await new Promise((resolve) => setTimeout(resolve, TRACE_DELAY_MS));
  return api.json<Why>(path);
}

interface Loaded<T> {
  value: T | null;
  fault: string | null;
}

function useLoaded<T>(load: () => Promise<T>): Loaded<T> {
  const [state, setState] = useState<Loaded<T>>({ value: null, fault: null });
  useEffect(() => {
    load().then(
      (value) => setState({ value, fault: null }),
      (error: unknown) => setState({ value: null, fault: api.problemFrom(error).title }),
    );
  }, []);
  return state;
}

function Section({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section class="why-section" aria-label={title}>
      <h2>{title}</h2>
      {children}
    </section>
  );
}

function Facts({ why }: { why: Why }) {
  const facts = [moment(why.createdAt), why.provider ?? "", why.status === "complete" ? "" : why.status, `message ${count(why.seq)}`];
  return (
    <p class="figure">
      {why.model ? modelName(why.model) : "Unknown model"} <span class="muted">{facts.filter(Boolean).join(" · ")}</span>
    </p>
  );
}

// --- route -----------------------------------------------------------------------------------------------------------

interface Step {
  policy: string;
  verdict: string;
  candidate_model?: string;
  reason: string;
  validation_failure?: string;
}

const POLICIES: Record<string, string> = {
  per_message_override: "@model in the message",
  manual_sticky: "Model of the conversation",
  rule: "Rule",
  pattern: "Learned from results",
  delegate_request: "Request of an agent",
  workspace_default: "Default of the workspace",
  global_default: "Default of the server",
};
const VERDICTS: Record<string, string> = { chose: "chosen", rejected: "rejected", deferred: "undecided", not_applicable: "does not apply" };

// Reasons in the words of the page; those of rules and results are shown as they are.
const REASONS: Record<string, [chosen: string, absent: string]> = {
  per_message_override: ["", "the message names no model"],
  manual_sticky: ["", "none is chosen"],
  delegate_request: ["", "no agent asked"],
  workspace_default: ["", "none is set"],
  global_default: ["", "none is set"],
};

function reasonOf({ policy, verdict, reason }: Step): string {
  return REASONS[policy]?.[verdict === "chose" ? 0 : 1] ?? reason;
}

function Route({ why }: { why: Why }) {
  const decided = why.events.find(({ type }) => type === "route.decided")?.payload;
  const chain = (decided?.chain as Step[] | undefined) ?? [];
  return (
    <Section title="Route">
      <p>{why.gateway ? `A gateway client requested it: ${why.route?.reason ?? "no reason recorded"}.` : why.route ? (chain.length ? `Chosen by: ${POLICIES[chain.at(-1)?.policy ?? ""] ?? why.route.reason}.` : why.route.reason) : "No routing decision is recorded."}</p>
      {why.gateway && (
        <p class="muted small">
          Client: {why.gateway.client ?? "unknown"}, dialect {why.gateway.dialect}
        </p>
      )}
      {chain.length > 0 && (
        <ol class="chain">
          {chain.map((step) => (
            <li key={step.policy} class={step.verdict}>
              <strong>{POLICIES[step.policy] ?? step.policy}</strong>
              <span class={`chip ${step.verdict === "chose" ? "open" : ""}`}>{VERDICTS[step.verdict] ?? step.verdict}</span>
              <span class="muted small">
                {step.candidate_model ? `${modelName(step.candidate_model)}${step.validation_failure || reasonOf(step) ? ": " : ""}` : ""}
                {step.validation_failure ? blockerText(step.validation_failure, step.validation_failure.replaceAll("_", " ")) : reasonOf(step)}
              </span>
            </li>
          ))}
        </ol>
      )}
      {why.route?.alternatives_considered?.length ? <p class="muted small">Also considered: {why.route.alternatives_considered.map(modelName).join(", ")}</p> : null}
    </Section>
  );
}

// --- projection ------------------------------------------------------------------------------------------------------

const MAX_OPTION = 80; // characters
const OUTCOMES = { projected: "converted", left_out: "omitted" } as const;

function Projection({ wire, why }: { wire: Loaded<Wire>; why: Why | null }) {
  const projection = wire.value?.projection;
  const losses = (why?.gateway?.losses ?? []).filter((name) => !projection?.losses.some((loss) => loss.block_type === name));
  const omitted = why?.omittedMessages || (projection?.leftOut ?? 0);
  const isLossless = projection && !omitted && ![projection.blocks, projection.losses, projection.notes, projection.repairs, losses].some((list) => list.length);
  return (
    <Section title="What the model received">
      {!wire.value && !wire.fault && <p class="muted">Loading …</p>}
      {wire.value && !projection && <p class="muted">This model is not in the catalog any more.</p>}
      {projection && (
        <>
          <p>
            {plural(projection.kept, "block")} unchanged{projection.blocks.length ? `, ${count(projection.blocks.length)} converted or omitted` : ""}
            {omitted ? `; the oldest ${plural(omitted, "message")} not sent, because the conversation is longer than the context window` : ""}. About {count(projection.estimatedInputTokens)} of {count(projection.contextTokens)} tokens of the context window.
          </p>
          {wire.value?.call && <CallSettings call={wire.value.call} />}
          {isLossless && <p class="muted small">Nothing was lost.</p>}
          <ul class="losses" hidden={isLossless ?? true}>
            {projection.blocks.slice(0, 50).map((block) => (
              <li key={`${block.message_id}:${block.place}`}>
                <strong>{block.block_type.replaceAll("_", " ")}</strong> {OUTCOMES[block.outcome]} <span class="muted">{block.reason}</span>
              </li>
            ))}
            {[...projection.losses, ...projection.notes].slice(0, 50).map((loss, at) => (
              <li key={at}>
                <strong>{loss.block_type.replaceAll("_", " ")}</strong> <span class="muted">{loss.reason}</span>
              </li>
            ))}
            {projection.repairs.slice(0, 50).map((repair, at) => (
              <li key={`repair-${at}`}>
                <strong>repaired</strong> <span class="muted">{repair}</span>
              </li>
            ))}
            {losses.map((loss) => (
              <li key={loss}>
                <strong>lost in the translation</strong> <span class="muted">{loss}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </Section>
  );
}

function CallSettings({ call: { tools, options } }: { call: NonNullable<Wire["call"]> }) {
  const values = Object.entries(options).map(([name, value]) => `${name.replaceAll("_", " ")} ${shortText(value)}`);
  return (
    <p>
      {tools.length ? `${plural(tools.length, "tool")}: ${tools.join(", ")}.` : "No tools."} {values.length ? `Options: ${values.join(", ")}.` : "No options."}
    </p>
  );
}

function shortText(value: unknown): string {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > MAX_OPTION ? `${text.slice(0, MAX_OPTION)}…` : text;
}

// --- receipt ---------------------------------------------------------------------------------------------------------

function ReceiptTable({ why: { receipt } }: { why: Why }) {
  if (!receipt) return null;
  return (
    <Section title="Receipt">
      <div class="table prose" tabindex={0} role="region" aria-label="Receipt">
        <table>
          <thead>
            <tr>
              <th>Tokens</th>
              <th align="right">Number</th>
              <th align="right">Price per million</th>
              <th align="right">Cost</th>
            </tr>
          </thead>
          <tbody>
            {receipt.lines.map((line) => (
              <tr key={line.bucket}>
                <td>{line.bucket.replaceAll("_", " ")}</td>
                <td align="right">{count(line.quantity)}</td>
                <td align="right">{dollars((Number(line.rate_usd) / line.per) * 1_000_000)}</td>
                <td align="right">{dollars(Number(line.amount_usd))}</td>
              </tr>
            ))}
            {!receipt.lines.length && <UsageRows usage={receipt.usage} />}
            <tr>
              <td>
                <strong>Total</strong>
              </td>
              <td />
              <td />
              <td align="right">
                <strong>{receipt.costUsd === null ? "unpriced" : dollars(Number(receipt.costUsd))}</strong>
              </td>
            </tr>
          </tbody>
        </table>
      </div>
      {receipt.state === "unpriced" && <p class="muted small">The price table has no price for this model. Sums of costs do not include this answer.</p>}
    </Section>
  );
}

function UsageRows({ usage }: { usage: Record<string, unknown> }) {
  const names = ["input_tokens", "cached_input_tokens", "cache_creation_input_tokens", "output_tokens"];
  return (
    <>
      {names
        .filter((name) => usage[name])
        .map((name) => (
          <tr key={name}>
            <td>{name.replace("_tokens", "").replaceAll("_", " ")}</td>
            <td align="right">{count(Number(usage[name]))}</td>
            <td />
            <td />
          </tr>
        ))}
    </>
  );
}

// --- trace -----------------------------------------------------------------------------------------------------------

// Rejections after which another request is sent at once.
const REPEATS: Record<string, string> = {
  context_overflow: "then sent again without the oldest messages",
  unknown_item: "then sent again without the items that the provider no longer knows",
};

function Trace({ why }: { why: Why }) {
  const bars = why.events.length ? barsFrom(why.events) : gatewayBars(why);
  const { count: retried, retries } = retriesOf(why.events, why.messageId);
  return (
    <Section title="Trace">
      {!bars.length && <p class="muted">No trace is stored for this answer. Traces are kept for 90 days.</p>}
      {bars.length > 0 && <Waterfall bars={bars} />}
      {why.hasMore && <p class="muted small">The turn has more than {count(why.events.length)} events; these are the first ones.</p>}
      {why.events.length > 0 && (
        <p>
          {retried ? `Retried ${retried === 1 ? "once" : `${retried} times`}:` : "No attempt was retried."}
          {retries.length > 0 && (
            <ul class="losses">
              {retries.map((retry, at) => (
                <li key={at}>
                  <strong>{retry.error_code.replaceAll("_", " ")}</strong> <span class="muted">{REPEATS[retry.error_code] ?? `then a pause of ${duration(retry.delay_ms)}`}</span>
                </li>
              ))}
            </ul>
          )}
        </p>
      )}
      {why.events.length > 0 && <EventList events={why.events} />}
    </Section>
  );
}

// The gateway records the duration of a call, and no events.
function gatewayBars({ receipt, model, messageId }: Why): Bar[] {
  const latency = receipt?.usage.latency_ms;
  if (typeof latency !== "number" || !latency) return [];
  return [{ id: messageId, label: `Call ${model ?? "the model"}`, detail: "", kind: "call", startMs: 0, durationMs: latency, firstMs: null, isFailed: false, isOpen: false }];
}

function Waterfall({ bars }: { bars: Bar[] }) {
  const end = Math.max(1, ...bars.map((bar) => bar.startMs + bar.durationMs));
  return (
    <ol class="waterfall">
      {bars.map((bar) => (
        <li key={bar.id} title={bar.detail || undefined}>
          <span class="label">
            {bar.label}
            {bar.isFailed && <span class="chip dead">failed</span>}
            {bar.isOpen && <span class="chip wait">no end recorded</span>}
          </span>
          <span class="lane" aria-hidden="true">
            <span class={`bar ${bar.kind} ${bar.isFailed ? "failed" : ""}`} style={{ marginLeft: `${(bar.startMs / end) * 100}%`, width: `${(bar.durationMs / end) * 100}%` }}>
              {bar.firstMs !== null && bar.durationMs > 0 && <span class="first" style={{ left: `${Math.min(100, (bar.firstMs / bar.durationMs) * 100)}%` }} />}
            </span>
          </span>
          <span class="time small">{bar.durationMs ? duration(bar.durationMs) : `at ${duration(bar.startMs)}`}</span>
          {bar.detail && <span class="detail muted small">{bar.detail}</span>}
        </li>
      ))}
    </ol>
  );
}

function EventList({ events }: { events: TraceEvent[] }) {
  const text = JSON.stringify(events.map(({ type, timestamp, payload }) => ({ type, timestamp, ...payload })), null, 2);
  return (
    <details>
      <summary>{plural(events.length, "event")} as JSON</summary>
      <Code text={text} language="json" />
    </details>
  );
}

// --- wire ------------------------------------------------------------------------------------------------------------

function WireSection({ wire: { value, fault } }: { wire: Loaded<Wire> }) {
  return (
    <Section title="Wire">
      {fault && <p class="unfinished">{fault}</p>}
      {value && (
        <>
          {value.client && <ExchangeView exchange={value.client} name="Client" isAnswering />}
          {value.provider && <ExchangeView exchange={value.provider} name="Provider" />}
          <p class="muted small">
            Rebuilt from the stored messages{settingsNote(value)}. Secrets are redacted, long texts and media are shortened.
            {value.isShortened && " Only the last messages before the answer are considered."}
          </p>
        </>
      )}
    </Section>
  );
}

function settingsNote({ client, call }: Wire): string {
  if (call) return ", with the tools and options that the client sent";
  return client ? ". The tools and options of this call are not stored" : ", with the tools and settings that the server has now";
}

function ExchangeView({ exchange, name, isAnswering = false }: { exchange: Exchange; name: string; isAnswering?: boolean }) {
  const [request, reply] = isAnswering ? ["Received from the client", "Sent to the client"] : ["Sent to the provider", "Received from the provider"];
  return (
    <>
      <WireJson title={request} dialect={exchange.dialect} value={exchange.request} key={`${name}-request`} />
      {exchange.reply !== null && <WireJson title={reply} dialect={exchange.dialect} value={exchange.reply} key={`${name}-reply`} />}
    </>
  );
}

function WireJson({ title, dialect, value }: { title: string; dialect: string; value: unknown }) {
  const [isOpen, setOpen] = useState(false);
  const text = JSON.stringify(value, null, 2);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {title} <span class="muted small">{dialect}, {plural(text.length, "character")}</span>
      </summary>
      {isOpen && <Code text={text} language="json" />}
    </details>
  );
}
