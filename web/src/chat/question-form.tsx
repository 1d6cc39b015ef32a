// A form for a question of the model during a run, from the JSON Schema of the answer.
import { useState } from "preact/hooks";
import { Icon } from "../components/icons.tsx";
import { Field } from "../mail/input-form.tsx";
import { initialTexts, parseTexts, type FieldTexts } from "../mail/input-values.ts";
import type { RequestedInput } from "../mail/types.ts";
import type { AnswerSchema, Decision, Interrupt } from "../api/types.ts";

interface QuestionProps {
  interrupt: Interrupt;
  number: string | null;
  onDecide: (decision: Decision) => void;
}

export function Question({ interrupt, number, onDecide }: QuestionProps) {
  const inputs = inputsOf(interrupt.responseSchema ?? {}, interrupt.message);
  const [texts, setTexts] = useState<FieldTexts>(() => initialTexts(inputs));
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const answer = (event: Event) => {
    event.preventDefault();
    const result = parseTexts(inputs, texts);
    if ("wrong" in result) return setWrong(result.wrong);
    onDecide({ interruptId: interrupt.id, status: "resolved", payload: result.values });
  };
  return (
    <form class="approval" onSubmit={answer} noValidate aria-label="Question from the model">
      <p role="alert">
        <Icon name="tool" size={16} />
        <span>
          {interrupt.message} {number && <span class="muted">({number})</span>}
        </span>
      </p>
      {inputs.map((input) => (
        <Field key={input.id} id={`${interrupt.id}-${input.id}`} input={input} value={texts[input.id] ?? ""} wrong={wrong[input.id] ?? null} onChange={(text) => setTexts((before) => ({ ...before, [input.id]: text }))} />
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

// The fields of a schema, without default values.
export function inputsOf({ properties = {}, required = [] }: AnswerSchema, question = ""): RequestedInput[] {
  return Object.entries(properties).map(([id, { type, description = id, enum: options }]) => ({
    id,
    type,
    description: description === question ? "Your answer" : description, // the question is shown above the form
    required: required.includes(id),
    ...(options && { options }),
  }));
}
