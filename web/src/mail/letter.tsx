// A letter with its context: conversation, messages, tool calls, cost, evaluations and task.
import type { ComponentChildren } from "preact";
import { count, dollars, duration, modelName, moment, plural, spent } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { MarkdownText } from "../components/markdown-text.tsx";
import { hashOf } from "../state/route.ts";
import { InputForm } from "./input-form.tsx";
import * as client from "./client.ts";
import { usePolling } from "./use-polling.ts";
import { LetterLine, Letters, ProblemNote, StatusChip } from "./components.tsx";
import { AsJson, PayloadView } from "./payload.tsx";
import { linkTo } from "./route.ts";
import { Finish } from "./task.tsx";
import type { Evaluation, Graph } from "./types.ts";
import { HUMAN, kindOf, percent, score } from "./letter-text.ts";

export function LetterPage({ recipient, letter }: { recipient: string; letter: string }) {
  const { value: graph, problem, reload } = usePolling(`letter/${recipient}/${letter}`, () => client.graph(recipient, letter));
  return (
    <>
      <ProblemNote problem={problem} />
      {graph === null && !problem && <p class="hint">Loading …</p>}
      {graph !== null && <LetterDetail graph={graph} onDone={reload} />}
    </>
  );
}

function LetterDetail({ graph, onDone }: { graph: Graph; onDone: () => void }) {
  const { letter, thread, evaluations } = graph;
  const isQuestion = kindOf(letter) === "question";
  const isOver = letter.state === "done" || letter.state === "dead";
  return (
    <div class="behind">
      <article class="in-task whole">
        <LetterLine letter={letter} level="h2" />
        <PayloadView letter={letter} />
        {isQuestion && !isOver && <InputForm letter={letter} onDone={onDone} />}
        {recipientIsPerson(graph) && !isQuestion && <Finish letter={letter} onDone={onDone} />}
        <p class="under muted small">
          <StatusChip letter={letter} />
          <a href={linkTo({ kind: "task", task: letter.task_id })}>{letter.task_id}</a>
          <a href={linkTo({ kind: "box", recipient: letter.recipient_id })}>Mailbox of {letter.recipient_id}</a>
          <span>sent {moment(letter.letter.timestamp)}</span>
        </p>
        <AsJson envelope={letter.letter} />
      </article>
      <Conversation graph={graph} />
      {evaluations.length > 0 && (
        <Section title="Evaluations">
          <Evaluations evaluations={evaluations} />
        </Section>
      )}
      {thread.length > 1 && (
        <Section title={`Letters of ${letter.task_id}`}>
          <Letters letters={thread} current={letter.letter_id} label={`Letters of ${letter.task_id}`} />
        </Section>
      )}
    </div>
  );
}

function recipientIsPerson(graph: Graph): boolean {
  return graph.letter.recipient_id === HUMAN;
}

function Section({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section class="part" aria-label={title}>
      <h2>{title}</h2>
      {children}
    </section>
  );
}

function Conversation({ graph }: { graph: Graph }) {
  const { session, messages, tool_calls: made, spend } = graph;
  if (!session) return graph.letter.session_id ? <p class="hint">The conversation was deleted, or belongs to another user.</p> : <p class="hint">The letter has no conversation (context.session_id).</p>;
  return (
    <Section title="Conversation">
      <p>
        <a class="row" href={hashOf({ id: session.id })}>
          <Icon name="chat" size={16} /> {session.title || "Open the conversation"}
        </a>
      </p>
      {spend && (
        <p class="muted small facts">
          <span>{plural(spend.calls, "answer")}</span>
          <span>
            {count(spend.input_tokens)} → {count(spend.output_tokens)} tokens
          </span>
          <span>{spent(spend.cost_usd, spend.unpriced, spend.calls)}</span>
          {session.model && <span>{modelName(session.model)}</span>}
        </p>
      )}
      <ol class="transcript">
        {messages.filter((item) => item.content.trim()).map((item) => (
          <li key={item.id}>
            <h3 class="muted small">
              <a href={hashOf({ id: session.id, at: item.id })}>{WHO[item.role] ?? item.role}</a>
            </h3>
            {item.role === "tool" ? <p class="plain small clamped">{item.content}</p> : <MarkdownText text={item.content} />}
          </li>
        ))}
      </ol>
      {made.length > 0 && (
        <ul class="made small" aria-label="Tool calls">
          {made.map((call) => (
            <li key={call.id}>
              <Icon name="tool" size={14} />
              <code>{call.name}</code>
              <span class="muted">
                {call.status}
                {call.completed_at && `, ${duration(Date.parse(call.completed_at) - Date.parse(call.created_at))}`}
              </span>
            </li>
          ))}
        </ul>
      )}
    </Section>
  );
}

const WHO: Record<string, string> = { user: "User", assistant: "Assistant", tool: "Tool", system: "System" };

function Evaluations({ evaluations }: { evaluations: readonly Evaluation[] }) {
  return (
    <div class="table prose" tabindex={0} role="region" aria-label="Evaluations">
      <table>
        <thead>
          <tr>
            <th>Evaluator</th>
            <th align="right">Score</th>
            <th>Success</th>
            <th align="right">Duration</th>
            <th>Model</th>
            <th align="right">Cost</th>
            <th>Time</th>
          </tr>
        </thead>
        <tbody>
          {evaluations.map((item) => (
            <tr key={item.id}>
              <td>
                {item.evaluator}
                {item.notes && <span class="muted small block">{item.notes}</span>}
              </td>
              <td align="right">{item.score === null ? "" : score(item.score)}</td>
              <td>{item.success === null ? "" : item.success ? "yes" : "no"}</td>
              <td align="right">{item.duration_sec === null ? "" : duration(item.duration_sec * 1000)}</td>
              <td>{item.model ? modelName(item.model) : ""}</td>
              <td align="right">{item.cost_usd === null ? "" : dollars(Number(item.cost_usd))}</td>
              <td class="muted small">{moment(item.timestamp)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {evaluations.length > 1 && <p class="muted small">{percent(evaluations.filter((item) => item.success).length / evaluations.length)} successful</p>}
    </div>
  );
}
