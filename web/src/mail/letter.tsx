// A letter, and everything behind it: the conversation, its messages, calls, spend and evaluations, and its task.
import type { ComponentChildren } from "preact";
import { count, dollars, duration, modelName, moment, plural, spent } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import { Prose } from "../components/markdown-text.tsx";
import { hashOf } from "../state/route.ts";
import { Asking } from "./input-form.tsx";
import * as calls from "./client.ts";
import { useLive } from "./use-polling.ts";
import { LetterLine, Letters, ProblemNote, StandingChip } from "./components.tsx";
import { AsJson, Said } from "./payload.tsx";
import { linkTo } from "./route.ts";
import { Finish } from "./task.tsx";
import type { Evaluation, Graph } from "./types.ts";
import { HUMAN, kindOf, percent, score } from "./letter-text.ts";

export function LetterPage({ recipient, letter }: { recipient: string; letter: string }) {
  const { value: graph, problem, again } = useLive(`letter/${recipient}/${letter}`, () => calls.graph(recipient, letter));
  return (
    <>
      <ProblemNote problem={problem} />
      {graph === null && !problem && <p class="hint">Looking …</p>}
      {graph !== null && <Behind graph={graph} onDone={again} />}
    </>
  );
}

function Behind({ graph, onDone }: { graph: Graph; onDone: () => void }) {
  const { letter, thread, evaluations } = graph;
  const isQuestion = kindOf(letter) === "question";
  const isOver = letter.state === "done" || letter.state === "dead";
  return (
    <div class="behind">
      <article class="in-task whole">
        <LetterLine letter={letter} level="h2" />
        <Said letter={letter} />
        {isQuestion && !isOver && <Asking letter={letter} onDone={onDone} />}
        {recipientIsPerson(graph) && !isQuestion && <Finish letter={letter} onDone={onDone} />}
        <p class="under muted small">
          <StandingChip letter={letter} />
          <a href={linkTo({ kind: "task", task: letter.task_id })}>{letter.task_id}</a>
          <a href={linkTo({ kind: "box", recipient: letter.recipient_id })}>Mailbox of {letter.recipient_id}</a>
          <span>sent {moment(letter.letter.timestamp)}</span>
        </p>
        <AsJson envelope={letter.letter} />
      </article>
      <Conversation graph={graph} />
      {evaluations.length > 0 && (
        <Section title="How it went">
          <Evaluations evaluations={evaluations} />
        </Section>
      )}
      {thread.length > 1 && (
        <Section title={`The letters of ${letter.task_id}`}>
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
  if (!session) return graph.letter.session_id ? <p class="hint">The conversation behind it was deleted, or is not yours.</p> : <p class="hint">It does not say from which conversation it came; context.session_id would.</p>;
  return (
    <Section title="The conversation behind it">
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
      <ol class="said">
        {messages.filter((one) => one.content.trim()).map((one) => (
          <li key={one.id}>
            <h3 class="muted small">
              <a href={hashOf({ id: session.id, at: one.id })}>{WHO[one.role] ?? one.role}</a>
            </h3>
            {one.role === "tool" ? <p class="plain small clamped">{one.content}</p> : <Prose text={one.content} />}
          </li>
        ))}
      </ol>
      {made.length > 0 && (
        <ul class="made small" aria-label="Calls of tools">
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

const WHO: Record<string, string> = { user: "Asked", assistant: "Answered", tool: "A tool said", system: "Told first" };

function Evaluations({ evaluations }: { evaluations: readonly Evaluation[] }) {
  return (
    <div class="table prose" tabindex={0} role="region" aria-label="Evaluations">
      <table>
        <thead>
          <tr>
            <th>Judged by</th>
            <th align="right">Score</th>
            <th>Success</th>
            <th align="right">Took</th>
            <th>Model</th>
            <th align="right">Cost</th>
            <th>When</th>
          </tr>
        </thead>
        <tbody>
          {evaluations.map((one) => (
            <tr key={one.id}>
              <td>
                {one.evaluator}
                {one.notes && <span class="muted small block">{one.notes}</span>}
              </td>
              <td align="right">{one.score === null ? "" : score(one.score)}</td>
              <td>{one.success === null ? "" : one.success ? "yes" : "no"}</td>
              <td align="right">{one.duration_sec === null ? "" : duration(one.duration_sec * 1000)}</td>
              <td>{one.model ? modelName(one.model) : ""}</td>
              <td align="right">{one.cost_usd === null ? "" : dollars(Number(one.cost_usd))}</td>
              <td class="muted small">{moment(one.timestamp)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {evaluations.length > 1 && <p class="muted small">{percent(evaluations.filter((one) => one.success).length / evaluations.length)} of them a success</p>}
    </div>
  );
}
