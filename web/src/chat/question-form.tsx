// What a model asks the user in the middle of a run: a form of the schema that the answer has to fit.
import { useState } from "preact/hooks";
import { Icon } from "../components/icons.tsx";
import { Field } from "../mail/input-form.tsx";
import { beginning, read, type Typed } from "../mail/input-values.ts";
import type { RequestedInput } from "../mail/types.ts";
import type { AnswerSchema, Decision, Interrupt } from "../api/types.ts";

interface QuestionProps {
  interrupt: Interrupt;
  number: string | null;
  onDecide: (decision: Decision) => void;
}

export function Question({ interrupt, number, onDecide }: QuestionProps) {
  const inputs = inputsOf(interrupt.responseSchema ?? {}, interrupt.message);
  const [typed, setTyped] = useState<Typed>(() => beginning(inputs));
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const answer = (event: Event) => {
    event.preventDefault();
    const given = read(inputs, typed);
    if ("wrong" in given) return setWrong(given.wrong);
    onDecide({ interruptId: interrupt.id, status: "resolved", payload: given.values });
  };
  return (
    <form class="approval" onSubmit={answer} noValidate aria-label="The model asks you">
      <p role="alert">
        <Icon name="tool" size={16} />
        <span>
          {interrupt.message} {number && <span class="muted">({number})</span>}
        </span>
      </p>
      {inputs.map((input) => (
        <Field key={input.id} id={`${interrupt.id}-${input.id}`} input={input} value={typed[input.id] ?? ""} wrong={wrong[input.id] ?? null} onChange={(text) => setTyped((before) => ({ ...before, [input.id]: text }))} />
      ))}
      <div class="row end">
        <button type="button" onClick={() => onDecide({ interruptId: interrupt.id, status: "cancelled" })}>
          Decline
        </button>
        <button type="submit" class="primary">
          Answer
        </button>
      </div>
    </form>
  );
}

// The fields of a schema. Nobody has proposed a value, so nothing is chosen before somebody does.
export function inputsOf({ properties = {}, required = [] }: AnswerSchema, question = ""): RequestedInput[] {
  return Object.entries(properties).map(([id, { type, description = id, enum: options }]) => ({
    id,
    type,
    description: description === question ? "Your answer" : description, // which stands above it already
    required: required.includes(id),
    ...(options && { options }),
  }));
}
