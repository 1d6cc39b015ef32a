// What a letter says. The one rule: nothing that an agent wrote becomes a link, or anything else but text.
import { Arguments } from "../chat/tool-arguments.tsx";
import { Code } from "../components/code.tsx";
import { Icon } from "../components/icons.tsx";
import type { Artifact, Envelope, Letter, Payload } from "./types.ts";
import { inLines, kindOf, listed } from "./letter-text.ts";

export function Said({ letter }: { letter: Letter }) {
  const payload = letter.letter.payload;
  switch (kindOf(letter)) {
    case "result":
      return <Result payload={payload} />;
    case "answer":
      return <Answer payload={payload} />;
    case "error":
      return <Failure payload={payload} />;
    case "question":
      return <p class="plain">{payload.context || "Something has to be said before it can go on."}</p>;
    case "letter":
      return null;
  }
}

function Result({ payload }: { payload: Payload }) {
  return (
    <>
      <p class="plain">{payload.result?.output}</p>
      {payload.notes && <p class="plain muted small">{payload.notes}</p>}
      {payload.result?.artifacts && <Artifacts artifacts={payload.result.artifacts} />}
    </>
  );
}

function Artifacts({ artifacts }: { artifacts: readonly Artifact[] }) {
  return (
    <ul class="artifacts small" aria-label="What it left behind">
      {artifacts.map((one) => (
        <li key={one.path}>
          <Icon name="file" size={14} />
          <code>{one.path}</code>
          <span class="muted">{one.description ?? one.type}</span>
        </li>
      ))}
    </ul>
  );
}

function Answer({ payload }: { payload: Payload }) {
  return (
    <>
      <p class="plain">{payload.result?.output}</p>
      <Arguments input={JSON.stringify(payload.result?.inputs ?? {})} />
    </>
  );
}

function Failure({ payload }: { payload: Payload }) {
  return (
    <>
      <p class="plain">
        <code class="code-name">{payload.code}</code> {payload.message}
      </p>
      {payload.details && Object.keys(payload.details).length > 0 && <Arguments input={JSON.stringify(inLines(payload.details))} />}
      <p class="muted small facts">
        {payload.retryable !== undefined && <span>{payload.retryable ? "trying again may help" : "trying again does not help"}</span>}
        {payload.suggested_actions && payload.suggested_actions.length > 0 && <span>suggested: {listed(payload.suggested_actions, "or")}</span>}
      </p>
    </>
  );
}

export function AsJson({ envelope }: { envelope: Envelope }) {
  return (
    <details class="as-json">
      <summary>
        <Icon name="chevron" size={14} /> As JSON
      </summary>
      <Code text={JSON.stringify(envelope, null, 2)} language="json" />
    </details>
  );
}
