// The content of a letter. Invariant: content of agents is rendered as text only, never as links or HTML.
import { Arguments } from "../chat/tool-arguments.tsx";
import { Code } from "../components/markdown-text.tsx";
import { Icon } from "../components/icons.tsx";
import type { Artifact, Envelope, Letter, Payload } from "./types.ts";
import { flattenLists, kindOf, joinNames } from "./letter-text.ts";

export function PayloadView({ letter }: { letter: Letter }) {
  const payload = letter.letter.payload;
  switch (kindOf(letter)) {
    case "result":
      return <Result payload={payload} />;
    case "answer":
      return <Answer payload={payload} />;
    case "error":
      return <Failure payload={payload} />;
    case "question":
      return <p class="plain">{payload.context || "Input is required to continue."}</p>;
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
    <ul class="artifacts small" aria-label="Artifacts">
      {artifacts.map((artifact) => (
        <li key={artifact.path}>
          <Icon name="file" size={14} />
          <code>{artifact.path}</code>
          <span class="muted">{artifact.description ?? artifact.type}</span>
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
      {payload.details && Object.keys(payload.details).length > 0 && <Arguments input={JSON.stringify(flattenLists(payload.details))} />}
      <p class="muted small facts">
        {payload.retryable !== undefined && <span>{payload.retryable ? "retryable" : "not retryable"}</span>}
        {payload.suggested_actions && payload.suggested_actions.length > 0 && <span>suggested: {joinNames(payload.suggested_actions, "or")}</span>}
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
