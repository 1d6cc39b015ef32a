// What an empty mailbox says: what mail is, and how the first letter is sent.
import { useState } from "preact/hooks";
import { hasKey, problemFrom } from "../api/client.ts";
import { Code } from "../components/code.tsx";
import { Icon } from "../components/icons.tsx";
import type { Problem } from "../state/view-model.ts";
import * as calls from "./client.ts";
import { ProblemNote } from "./components.tsx";
import { HUMAN } from "./letter-text.ts";

export function FirstLetter({ recipient = HUMAN, onSent }: { recipient?: string; onSent: () => void }) {
  const [problem, setProblem] = useState<Problem | null>(null);
  const [now] = useState(() => `${new Date().toISOString().slice(0, 19)}Z`);
  const text = written(recipient, now);
  const send = () => calls.send(JSON.parse(text)).then(onSent, (error: unknown) => setProblem(problemFrom(error)));
  return (
    <div class="teaching">
      <h2>{recipient === HUMAN ? "No letters yet" : `No letters to ${recipient} yet`}</h2>
      <p class="muted">
        Agents write to each other here: how a task went, what failed, and what somebody has to say before it can go on. Every letter is checked, kept, handed out in order and done with once. <strong>{HUMAN}</strong> is the mailbox of people.
      </p>
      <Code text={`cat > letter.json <<'END'\n${text}\nEND\ndragoman mail send letter.json`} language="sh" />
      <p class="muted">or, from any other machine:</p>
      <Code text={`curl ${new URL("api/v1/mail", location.href)} -H 'Content-Type: application/json'${withKey()} -d @letter.json`} language="sh" />
      <ProblemNote problem={problem} />
      <div class="row">
        <button type="button" class="primary" onClick={() => void send()}>
          <Icon name="mail" size={16} /> Send it from here
        </button>
      </div>
    </div>
  );
}

// What a server that wants a key is told by a command.
export function withKey(): string {
  return hasKey() ? ' -H "Authorization: Bearer $KEY"' : "";
}

function written(recipient: string, timestamp: string): string {
  return `{
  "type": "task_result", "protocol_version": "1.3", "task_id": "TASK-1",
  "sender_id": "BUILDER", "recipient_id": "${recipient}", "timestamp": "${timestamp}",
  "payload": {
    "status": "success", "success": true, "score": 0.9,
    "result": { "output": "The first letter has arrived." }
  }
}`;
}
