// A message in the format of a provider or another library.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Code } from "../components/markdown-text.tsx";
import { Modal } from "../components/modal.tsx";
import * as appState from "../state/app-state.ts";

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
  const [result, setRendered] = useState<{ wire: unknown; losses: { reason: string }[] } | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => void appState.attempt(async () => setFormats(await api.formats())), []);
  useEffect(() => {
    let isStale = false;
    setFault(null);
    api.messageAs(appState.open.value.id, messageId, form).then(
      (rendered) => isStale || setRendered(rendered),
      (error: unknown) => isStale || (setRendered(null), setFault(api.problemFrom(error).title)),
    );
    return () => {
      isStale = true;
    };
  }, [messageId, form]);
  const text = result ? JSON.stringify(result.wire, null, 2) : "";
  const copy = (event: MouseEvent) => (event.target as HTMLElement).closest("[data-copy]") && void appState.copy(text);
  return (
    <Modal title="Show in another format" onClose={onClose} class="tall wide">
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
        {result && <Code text={text} language="json" />}
      </div>
      {result && (
        <p class="muted small">
          {result.losses.length ? `This format cannot represent everything: ${result.losses.map((loss) => loss.reason).join("; ")}` : "Nothing is lost in this format."}
        </p>
      )}
    </Modal>
  );
}
