// Content of an empty mailbox: what mail is, and how to send the first letter.
import { useState } from "preact/hooks";
import { hasKey, problemFrom } from "../api/client.ts";
import { Code } from "../components/markdown-text.tsx";
import { Icon } from "../components/icons.tsx";
import type { Problem } from "../state/view-model.ts";
import * as client from "./client.ts";
import { ProblemNote } from "./components.tsx";
import { HUMAN } from "./letter-text.ts";

export function EmptyMailbox({ recipient = HUMAN, onSent }: { recipient?: string; onSent: () => void }) {
  const [problem, setProblem] = useState<Problem | null>(null);
  const [now] = useState(() => `${new Date().toISOString().slice(0, 19)}Z`);
  const text = sampleLetter(recipient, now);
  const send = () => client.send(JSON.parse(text)).then(onSent, (error: unknown) => setProblem(problemFrom(error)));
  return (
    <div class="empty-state">
      <h2>{recipient === HUMAN ? "No letters yet" : `No letters to ${recipient} yet`}</h2>
      <p class="muted">
        Agents send letters to each other: task results, errors, and requests for input. Every letter is validated, stored, and delivered in order. <strong>{HUMAN}</strong> is the mailbox for people.
      </p>
      <Code text={`cat > letter.json <<'END'\n${text}\nEND\ndragoman mail send letter.json`} language="sh" />
      <p class="muted">or from another machine:</p>
      <Code text={`curl ${new URL("api/v1/mail", location.href)} -H 'Content-Type: application/json'${keyHeader()} -d @letter.json`} language="sh" />
      <ProblemNote problem={problem} />
      <div class="row">
        <button type="button" class="primary" onClick={() => void send()}>
          <Icon name="mail" size={16} /> Send this letter
        </button>
      </div>
    </div>
  );
}

// The authorization header for the curl commands, if the server requires a key.
export function keyHeader(): string {
  return hasKey() ? ' -H "Authorization: Bearer $KEY"' : "";
}

function sampleLetter(recipient: string, timestamp: string): string {
  return `{
  "type": "task_result", "protocol_version": "1.3", "task_id": "TASK-1",
  "sender_id": "BUILDER", "recipient_id": "${recipient}", "timestamp": "${timestamp}",
  "payload": {
    "status": "success", "success": true, "score": 0.9,
    "result": { "output": "The first letter has arrived." }
  }
}`;
}
