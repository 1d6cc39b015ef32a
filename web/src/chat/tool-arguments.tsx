// Arguments of a tool call as a list of names and values.
import { Code } from "../components/markdown-text.tsx";
import { prettyJson } from "../lib/format.ts";

export function Arguments({ input }: { input: string }) {
  const entries = fields(input);
  if (entries === null) return <Code text={prettyJson(input || "{}")} language="json" />;
  if (!entries.length) return <p class="muted small">No arguments</p>;
  return (
    <dl class="arguments">
      {entries.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd tabindex={0}>{typeof value === "string" ? value : JSON.stringify(value, null, 2)}</dd>
        </div>
      ))}
    </dl>
  );
}

function fields(input: string): [string, unknown][] | null {
  try {
    const value = JSON.parse(input || "{}") as unknown;
    return value !== null && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : null;
  } catch {
    return null;
  }
}
