// A call of a tool: its name, what it was called with, and what it answered.
import { Arguments } from "./tool-arguments.tsx";
import { Code } from "../components/code.tsx";
import { prettyJson } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import type { CallPart } from "../state/view-model.ts";

export function Call({ part, isWaiting }: { part: CallPart; isWaiting: boolean }) {
  const state = isWaiting ? "waits for you" : part.problem ? "not run" : part.result ? (part.result.isError ? "failed" : "done") : part.isOpen ? "being written" : "running";
  return (
    <details class={`call ${part.result?.isError || part.problem ? "failed" : ""}`}>
      <summary>
        <Icon name="tool" size={15} />
        <span class="name">{part.name}</span>
        <span class="gist">{gist(part.input)}</span>
        <span class={`state ${state === "running" ? "shimmer" : ""}`}>
          {state === "done" && <Icon name="check" size={14} />}
          {state}
        </span>
      </summary>
      <div class="inside">
        {part.problem && <p class="unfinished">{part.problem}</p>}
        <Arguments input={part.input} />
        {part.result && <Code text={prettyJson(part.result.text) || "(nothing)"} language={isJson(part.result.text) ? "json" : part.result.isError ? "error" : "result"} />}
        {part.result?.images.map((url, at) => <img key={at} class="picture" src={url} alt={`Picture ${at + 1} of the result`} />)}
      </div>
    </details>
  );
}

// One line that tells calls apart: the values of its arguments.
export function gist(input: string): string {
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
