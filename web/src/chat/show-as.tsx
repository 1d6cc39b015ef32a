// A message as a provider, or another library, would write it.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Code } from "../components/code.tsx";
import { Modal } from "../components/modal.tsx";
import * as shelf from "../state/app-state.ts";

const LABELS: Record<string, string> = {
  canonical: "Dragoman",
  anthropic: "Anthropic",
  openai_chat: "OpenAI Chat Completions",
  openai_responses: "OpenAI Responses",
  gemini: "Gemini",
  bedrock_converse: "Bedrock Converse",
  cohere: "Cohere",
  ollama: "Ollama",
};

export function ShowAs({ messageId, onClose }: { messageId: string; onClose: () => void }) {
  const [formats, setFormats] = useState(["canonical"]);
  const [form, setForm] = useState("canonical");
  const [shown, setShown] = useState<{ wire: unknown; losses: { reason: string }[] } | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => void shelf.trying(async () => setFormats(await api.formats())), []);
  useEffect(() => {
    let isLeft = false;
    setFault(null);
    api.shownAs(shelf.open.value.id, messageId, form).then(
      (found) => isLeft || setShown(found),
      (error: unknown) => isLeft || (setShown(null), setFault(api.problemFrom(error).title)),
    );
    return () => {
      isLeft = true;
    };
  }, [messageId, form]);
  const text = shown ? JSON.stringify(shown.wire, null, 2) : "";
  const copy = (event: MouseEvent) => (event.target as HTMLElement).closest("[data-copy]") && void shelf.copy(text);
  return (
    <Modal title="Show as" onClose={onClose} class="tall wide">
      <label class="field">
        Format
        <select value={form} onChange={(event) => setForm(event.currentTarget.value)} data-focus>
          {formats.map((name) => (
            <option key={name} value={name}>
              {LABELS[name] ?? name}
            </option>
          ))}
        </select>
      </label>
      <div class="wire" aria-live="polite" onClick={copy}>
        {fault && <p class="unfinished">{fault}</p>}
        {shown && <Code text={text} language="json" />}
      </div>
      {shown && (
        <p class="muted small">
          {shown.losses.length ? `Not all of it can be said in this format: ${shown.losses.map((one) => one.reason).join("; ")}` : "Nothing is lost."}
        </p>
      )}
    </Modal>
  );
}
