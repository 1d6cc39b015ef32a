// The form of a letter that requests input. Sensitive values are masked, sent once, and never shown again.
import { useState } from "preact/hooks";
import { problemFrom } from "../api/client.ts";
import * as appState from "../state/app-state.ts";
import type { Problem } from "../state/view-model.ts";
import * as client from "./client.ts";
import { initialTexts, isRequired, parseTexts, type FieldTexts } from "./input-values.ts";
import { ProblemNote } from "./components.tsx";
import type { Letter, RequestedInput } from "./types.ts";
import { isAvailable } from "./letter-text.ts";

export function InputForm({ letter, onDone }: { letter: Letter; onDone: () => void }) {
  const inputs = letter.letter.payload.requested_inputs ?? [];
  const [texts, setTexts] = useState<FieldTexts>(() => initialTexts(inputs));
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isSending, setSending] = useState(false);
  const answer = async (event: Event) => {
    event.preventDefault();
    const result = parseTexts(inputs, texts);
    setWrong("wrong" in result ? result.wrong : {});
    if ("wrong" in result) return (document.getElementById(fieldId(letter, Object.keys(result.wrong)[0] as string)) as HTMLElement).focus();
    setSending(true);
    try {
      await client.answer(letter, result.values);
      setTexts({});
      setProblem(null);
      appState.showNotice(`Answer sent to ${letter.sender_id}`);
      onDone();
    } catch (error) {
      setProblem(problemFrom(error));
    }
    setSending(false);
  };
  if (!isSending && !isAvailable(letter, new Date())) return <RequestedInputs inputs={inputs} />;
  return (
    <form class="input-form" onSubmit={(event) => void answer(event)} noValidate aria-label={`Answer ${letter.sender_id}`}>
      {inputs.map((input) => (
        <Field key={input.id} id={fieldId(letter, input.id)} input={input} value={texts[input.id] ?? ""} wrong={wrong[input.id] ?? null} onChange={(text) => setTexts((before) => ({ ...before, [input.id]: text }))} />
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
  const notes = [isRequired(input) ? "" : "optional", input.sensitive ? "encrypted, and never shown again" : "", input.sensitive && input.default !== undefined ? "leave empty for the proposed value" : ""].filter(Boolean);
  const attributes = { id, value, "aria-invalid": wrong !== null, "aria-describedby": `${id}-note`, onInput: (event: Event) => onChange((event.currentTarget as HTMLInputElement).value) };
  return (
    <div class="field">
      <label for={id}>{input.description || input.id}</label>
      <Control input={input} attributes={attributes} />
      <p id={`${id}-note`} class="small">
        {wrong ? <span class="wrong">{wrong}</span> : notes.join("; ")}
      </p>
    </div>
  );
}

function Control({ input, attributes }: { input: RequestedInput; attributes: Record<string, unknown> }) {
  const options = input.options?.map((option, at) => [String(at), String(option)] as const) ?? (input.type === "boolean" ? ([["true", "Yes"], ["false", "No"]] as const) : null);
  if (input.sensitive) return <input type="password" autocomplete="new-password" spellcheck={false} {...attributes} />;
  if (!options) return <input type="text" inputMode={input.type === "number" ? "decimal" : "text"} autocomplete="off" {...attributes} />;
  return (
    <select {...attributes}>
      {!attributes["value"] && <option value="">Choose …</option>}
      {options.map(([value, label]) => (
        <option key={value} value={value}>
          {label}
        </option>
      ))}
    </select>
  );
}

// The requested inputs of a letter that cannot be answered now.
function RequestedInputs({ inputs }: { inputs: readonly RequestedInput[] }) {
  return (
    <ul class="requested-inputs small muted" aria-label="Requested inputs">
      {inputs.map((input) => (
        <li key={input.id}>
          {input.description || input.id}
          {input.sensitive && " (sensitive)"}
        </li>
      ))}
    </ul>
  );
}
