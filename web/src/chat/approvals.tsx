// Tool calls that wait for approval or an answer. All decisions of a run are sent together.
import { useState } from "preact/hooks";
import { Arguments } from "./tool-arguments.tsx";
import { summaryLine } from "./tool-call.tsx";
import type { Conversation } from "../state/conversation.ts";
import { prettyJson } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { Question } from "./question-form.tsx";
import type { View } from "../state/view-model.ts";
import type { Decision, Interrupt } from "../api/types.ts";

export function Approvals({ conversation, view }: { conversation: Conversation; view: View }) {
  const [decided, setDecided] = useState<Record<string, Decision>>({});
  const open = view.interrupts.filter((interrupt) => !(interrupt.id in decided));
  const current = open[0];
  if (!view.interrupts.length || view.run.state !== "idle" || !current) return null;
  const decide = (decision: Decision) => {
    const all = { ...decided, [decision.interruptId]: decision };
    setDecided(all);
    if (open.length > 1) return;
    void conversation.decide(view.interrupts.map((interrupt) => all[interrupt.id] as Decision)).then((isAccepted) => !isAccepted && setDecided({}));
  };
  const number = view.interrupts.length > 1 ? `${view.interrupts.length - open.length + 1} of ${view.interrupts.length}` : null;
  if (current.reason === "input_required") return <Question key={current.id} interrupt={current} number={number} onDecide={decide} />;
  return <Approval key={current.id} interrupt={current} call={callOf(view, current)} number={number} onDecide={decide} />;
}

// The tool call of an interrupt: from the view, else from the interrupt.
function callOf(view: View, { toolCallId, metadata }: Interrupt): { name: string; input: string } {
  const calls = view.items.flatMap((item) => (item.kind === "answer" ? item.parts : [])).filter((part) => part.kind === "call");
  const { name = "a tool", input = {} } = metadata?.dragoman ?? {};
  return calls.findLast((part) => part.id === toolCallId) ?? { name, input: JSON.stringify(input) };
}

interface ApprovalProps {
  interrupt: Interrupt;
  call: { name: string; input: string };
  number: string | null;
  onDecide: (decision: Decision) => void;
}

function Approval({ interrupt, call, number, onDecide }: ApprovalProps) {
  const original = prettyJson(call.input || "{}");
  const [edited, setEdited] = useState<string | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const resolve = (payload: NonNullable<Decision["payload"]>) => onDecide({ interruptId: interrupt.id, status: "resolved", payload });
  const approve = () => {
    if (edited === null || edited === original) return resolve({ approved: true });
    try {
      resolve({ approved: true, editedArgs: JSON.parse(edited) as unknown });
    } catch {
      setFault("This is not valid JSON.");
    }
  };
  return (
    <section class="approval" aria-label="Tool call waiting for approval" role="group">
      <p role="alert">
        <Icon name="tool" size={16} />
        <span>
          Allow <strong>{call.name}</strong>? {number && <span class="muted">({number})</span>}
        </span>
      </p>
      {interrupt.message && interrupt.reason !== "tool_call" && <p class="muted small">{interrupt.message}</p>}
      {edited === null ? (
        <Arguments input={call.input} />
      ) : (
        <label class="field">
          Arguments
          <textarea rows={Math.min(12, edited.split("\n").length + 1)} spellcheck={false} value={edited} onInput={(event) => (setEdited(event.currentTarget.value), setFault(null))} />
        </label>
      )}
      {fault && <p class="unfinished" role="alert">{fault}</p>}
      <div class="row end">
        {edited === null ? (
          <button type="button" onClick={() => setEdited(original)} aria-label={`Edit the arguments ${summaryLine(original)}`}>
            Edit
          </button>
        ) : (
          <button type="button" onClick={() => (setEdited(null), setFault(null))}>
            Reset
          </button>
        )}
        <button type="button" onClick={() => resolve({ approved: false, reason: "The user declined." })}>
          Decline
        </button>
        <button type="button" class="primary" onClick={approve}>
          Allow
        </button>
      </div>
    </section>
  );
}
