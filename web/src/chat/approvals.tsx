// What a run waits for: calls that somebody has to allow or to answer, one decision for each, sent together.
import { useState } from "preact/hooks";
import { Arguments } from "./tool-arguments.tsx";
import { gist } from "./tool-call.tsx";
import type { Conversation } from "../state/conversation.ts";
import { prettyJson } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { Question } from "./question-form.tsx";
import type { View } from "../state/view-model.ts";
import type { Decision, Interrupt } from "../api/types.ts";

export function Approvals({ conversation, view }: { conversation: Conversation; view: View }) {
  const [decided, setDecided] = useState<Record<string, Decision>>({});
  const open = view.interrupts.filter((one) => !(one.id in decided));
  const current = open[0];
  if (!view.interrupts.length || view.run.state !== "idle" || !current) return null;
  const decide = (decision: Decision) => {
    const all = { ...decided, [decision.interruptId]: decision };
    setDecided(all);
    if (open.length > 1) return;
    void conversation.decide(view.interrupts.map((one) => all[one.id] as Decision)).then((isTaken) => !isTaken && setDecided({}));
  };
  const number = view.interrupts.length > 1 ? `${view.interrupts.length - open.length + 1} of ${view.interrupts.length}` : null;
  if (current.reason === "input_required") return <Question key={current.id} interrupt={current} number={number} onDecide={decide} />;
  return <Approval key={current.id} interrupt={current} call={callOf(view, current)} number={number} onDecide={decide} />;
}

// The call that is asked about: as it is shown, or as the interrupt has it.
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
  const given = prettyJson(call.input || "{}");
  const [edited, setEdited] = useState<string | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const resolve = (payload: NonNullable<Decision["payload"]>) => onDecide({ interruptId: interrupt.id, status: "resolved", payload });
  const approve = () => {
    if (edited === null || edited === given) return resolve({ approved: true });
    try {
      resolve({ approved: true, editedArgs: JSON.parse(edited) as unknown });
    } catch {
      setFault("This is not JSON yet.");
    }
  };
  return (
    <section class="approval" aria-label="A tool waits for your decision" role="group">
      <p role="alert">
        <Icon name="tool" size={16} />
        <span>
          May <strong>{call.name}</strong> do this? {number && <span class="muted">({number})</span>}
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
          <button type="button" onClick={() => setEdited(given)} aria-label={`Edit the arguments ${gist(given)}`}>
            Edit
          </button>
        ) : (
          <button type="button" onClick={() => (setEdited(null), setFault(null))}>
            As it was
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
