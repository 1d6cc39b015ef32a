// A tool call: name, arguments and result.
import { Arguments } from "./tool-arguments.tsx";
import { Code } from "../components/markdown-text.tsx";
import { prettyJson } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { Picture } from "./picture.tsx";
import type { CallPart } from "../state/view-model.ts";

export function Call({ part, isWaiting }: { part: CallPart; isWaiting: boolean }) {
  const state = isWaiting ? "needs approval" : part.problem ? "not run" : part.result ? (part.result.isError ? "failed" : "done") : part.isOpen ? "receiving" : "running";
  return (
    <details class={`call ${part.result?.isError || part.problem ? "failed" : ""}`}>
      <summary>
        <Icon name="tool" size={15} />
        <span class="name">{part.name}</span>
        <span class="summary-line">{summaryLine(part.input)}</span>
        <span class={`state ${state === "running" ? "shimmer" : ""}`}>
          {state === "done" && <Icon name="check" size={14} />}
          {state}
        </span>
      </summary>
      <div class="inside">
        {part.problem && <p class="unfinished">{part.problem}</p>}
        <Arguments input={part.input} />
        {part.result && <Code text={prettyJson(part.result.text) || "(empty)"} language={isJson(part.result.text) ? "json" : part.result.isError ? "error" : "result"} />}
        {part.result?.images.map((url, at) => <Picture key={at} url={url} name={`Image ${at + 1} of the result`} />)}
      </div>
    </details>
  );
}

// One line that summarizes a call: the values of its arguments.
export function summaryLine(input: string): string {
  try {
    const values = Object.values(JSON.parse(input || "{}") as Record<string, unknown>);
    return values.map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(" · ").slice(0, 120);
  } catch {
    return "";
  }
}

function isJson(text: string): boolean {
  return /^\s*[[{]/.test(text) && prettyJson(text) !== text;
}
