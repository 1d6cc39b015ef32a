// The form of a letter that asks for something. What is sensitive is typed unseen, sent once, and shown by nobody.
import { useState } from "preact/hooks";
import { problemFrom } from "../api/client.ts";
import * as shelf from "../state/app-state.ts";
import type { Problem } from "../state/view-model.ts";
import * as calls from "./client.ts";
import { beginning, isRequired, read, type Typed } from "./input-values.ts";
import { ProblemNote } from "./components.tsx";
import type { Letter, RequestedInput } from "./types.ts";
import { isFree } from "./letter-text.ts";

export function Asking({ letter, onDone }: { letter: Letter; onDone: () => void }) {
  const inputs = letter.letter.payload.requested_inputs ?? [];
  const [typed, setTyped] = useState<Typed>(() => beginning(inputs));
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isSending, setSending] = useState(false);
  const answer = async (event: Event) => {
    event.preventDefault();
    const given = read(inputs, typed);
    setWrong("wrong" in given ? given.wrong : {});
    if ("wrong" in given) return (document.getElementById(fieldId(letter, Object.keys(given.wrong)[0] as string)) as HTMLElement).focus();
    setSending(true);
    try {
      await calls.answer(letter, given.values);
      setTyped({});
      setProblem(null);
      shelf.say(`Answered ${letter.sender_id}`);
      onDone();
    } catch (error) {
      setProblem(problemFrom(error));
    }
    setSending(false);
  };
  if (!isSending && !isFree(letter, new Date())) return <Wanted inputs={inputs} />;
  return (
    <form class="asking" onSubmit={(event) => void answer(event)} noValidate aria-label={`Answer ${letter.sender_id}`}>
      {inputs.map((input) => (
        <Field key={input.id} id={fieldId(letter, input.id)} input={input} value={typed[input.id] ?? ""} wrong={wrong[input.id] ?? null} onChange={(text) => setTyped((before) => ({ ...before, [input.id]: text }))} />
      ))}
      <ProblemNote problem={problem} />
      <div class="row">
        <button type="submit" class="primary" disabled={isSending}>
          {isSending ? "Sending …" : `Answer ${letter.sender_id}`}
        </button>
      </div>
    </form>
  );
}

function fieldId(letter: Letter, input: string): string {
  return `input-${letter.letter_id}-${input}`;
}

interface FieldProps {
  id: string;
  input: RequestedInput;
  value: string;
  wrong: string | null;
  onChange: (text: string) => void;
}

export function Field({ id, input, value, wrong, onChange }: FieldProps) {
  const notes = [isRequired(input) ? "" : "may be left out", input.sensitive ? "sealed, and never shown again" : "", input.sensitive && input.default !== undefined ? "empty takes what was proposed" : ""].filter(Boolean);
  const said = { id, value, "aria-invalid": wrong !== null, "aria-describedby": `${id}-note`, onInput: (event: Event) => onChange((event.currentTarget as HTMLInputElement).value) };
  return (
    <div class="field">
      <label for={id}>{input.description || input.id}</label>
      <Control input={input} said={said} />
      <p id={`${id}-note`} class="small">
        {wrong ? <span class="wrong">{wrong}</span> : notes.join("; ")}
      </p>
    </div>
  );
}

function Control({ input, said }: { input: RequestedInput; said: Record<string, unknown> }) {
  const options = input.options?.map((option, at) => [String(at), String(option)] as const) ?? (input.type === "boolean" ? ([["true", "Yes"], ["false", "No"]] as const) : null);
  if (input.sensitive) return <input type="password" autocomplete="new-password" spellcheck={false} {...said} />;
  if (!options) return <input type="text" inputMode={input.type === "number" ? "decimal" : "text"} autocomplete="off" {...said} />;
  return (
    <select {...said}>
      {!said["value"] && <option value="">Choose …</option>}
      {options.map(([value, label]) => (
        <option key={value} value={value}>
          {label}
        </option>
      ))}
    </select>
  );
}

// What is asked for, where nobody can answer now.
function Wanted({ inputs }: { inputs: readonly RequestedInput[] }) {
  return (
    <ul class="wanted small muted" aria-label="What is asked for">
      {inputs.map((one) => (
        <li key={one.id}>
          {one.description || one.id}
          {one.sensitive && " (sensitive)"}
        </li>
      ))}
    </ul>
  );
}
