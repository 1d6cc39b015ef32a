// What a tool is called with, for people: names and values, long texts as they are.
import { Code } from "../components/code.tsx";
import { prettyJson } from "../lib/format.ts";

export function Arguments({ input }: { input: string }) {
  const named = fields(input);
  if (named === null) return <Code text={prettyJson(input || "{}")} language="json" />;
  if (!named.length) return <p class="muted small">Without arguments</p>;
  return (
    <dl class="arguments">
      {named.map(([name, value]) => (
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
    const found = JSON.parse(input || "{}") as unknown;
    return found !== null && typeof found === "object" && !Array.isArray(found) ? Object.entries(found) : null;
  } catch {
    return null;
  }
}
