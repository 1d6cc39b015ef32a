// Dead letters: reason, raw content, and a button to resend.
import { useState } from "preact/hooks";
import { problemFrom } from "../api/client.ts";
import { bytes, moment } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import type { Problem } from "../state/view-model.ts";
import * as client from "./client.ts";
import { usePolling } from "./use-polling.ts";
import { Filter, ProblemNote } from "./components.tsx";
import { linkTo } from "./route.ts";
import type { DeadLetter, DeadLetterDetail, SendReceipt } from "./types.ts";
import { reasonText } from "./letter-text.ts";

export function DeadLetters() {
  const { value: letters, problem } = usePolling("dead", client.dead);
  const [sent, setSent] = useState<Map<string, { dead: DeadLetter; receipt: SendReceipt }>>(new Map());
  const [words, setWords] = useState("");
  const here = new Set(letters?.map((letter) => letter.id));
  const all = [...[...sent.values()].filter(({ dead }) => !here.has(dead.id)).map(({ dead }) => dead), ...(letters ?? [])];
  all.sort((letter, next) => next.died_at.localeCompare(letter.died_at));
  const shown = all.filter((letter) => JSON.stringify(letter).toLowerCase().includes(words.trim().toLowerCase()));
  return (
    <>
      <ProblemNote problem={problem} />
      {letters === null && !problem && <p class="hint">Loading …</p>}
      {letters !== null && all.length === 0 && <NoDeadLetters />}
      {all.length > 0 && (
        <>
          <div class="row between bar">
            <p class="muted">These letters were not delivered. You can resend them.</p>
            <Filter label="Filter dead letters" value={words} onChange={setWords} />
          </div>
          <ul class="dead-letters">
            {shown.map((letter) => (
              <DeadLetterItem key={letter.id} dead={letter} receipt={sent.get(letter.id)?.receipt ?? null} onSent={(receipt) => setSent((before) => new Map(before).set(letter.id, { dead: letter, receipt }))} />
            ))}
          </ul>
        </>
      )}
    </>
  );
}

function NoDeadLetters() {
  return (
    <div class="empty-state">
      <h2>No dead letters</h2>
      <p class="muted">
        A letter is moved here when it has failed as often as its retry policy allows, or when it is not valid. It is stored with the reason and the raw content, and can be resent.
      </p>
    </div>
  );
}

function DeadLetterItem({ dead, receipt, onSent }: { dead: DeadLetter; receipt: SendReceipt | null; onSent: (receipt: SendReceipt) => void }) {
  const [detail, setDetail] = useState<DeadLetterDetail | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  const attempt = async (action: () => Promise<void>) => {
    setBusy(true);
    setProblem(null);
    await action().catch((error: unknown) => setProblem(withAdvice(problemFrom(error))));
    setBusy(false);
  };
  const name = dead.task_id ?? dead.letter_id ?? dead.id;
  return (
    <li>
      <article aria-label={`Dead letter ${name}`}>
        <div class="letter-line">
          <span class="kind error">
            <Icon name="warn" size={16} />
          </span>
          <h2 class="who">
            {dead.sender_id || dead.recipient_id ? (
              <>
                {dead.sender_id ?? "unknown"} <span aria-label="to">→</span> {dead.recipient_id ?? "unknown"}
              </>
            ) : (
              "Invalid letter"
            )}
          </h2>
          <span class="muted small facts">
            {dead.task_id && <a href={linkTo({ kind: "task", task: dead.task_id })}>{dead.task_id}</a>}
            <time dateTime={dead.died_at}>{moment(dead.died_at)}</time>
          </span>
        </div>
        <p>
          {reasonText(dead.reason)}. <code class="code-name">{dead.reason}</code>
        </p>
        <p class="plain muted small clamped">{dead.error}</p>
        <ProblemNote problem={problem} />
        {receipt ? (
          <Outcome receipt={receipt} />
        ) : (
          <div class="row">
            <button type="button" disabled={isBusy} onClick={() => void attempt(async () => onSent(await client.resend(dead.id)))}>
              <Icon name="retry" size={14} /> Resend
            </button>
            <button type="button" class="quiet" aria-expanded={detail !== null} disabled={isBusy} onClick={() => (detail ? setDetail(null) : void attempt(async () => setDetail(await client.deadLetterDetail(dead.id))))}>
              {detail ? "Hide raw content" : "Show raw content"}
            </button>
          </div>
        )}
        {detail && <RawContent detail={detail} />}
      </article>
    </li>
  );
}

function withAdvice(problem: Problem): Problem {
  return { ...problem, advice: problem.advice || "Nothing was sent. The sender must send a corrected letter." };
}

function Outcome({ receipt }: { receipt: SendReceipt }) {
  return (
    <p class="outcome" role="status">
      <Icon name="check" size={14} />
      <span>
        {receipt.is_new ? "Resent: it is in the mailbox of " : "Already resent to "}
        <a href={linkTo({ kind: "letter", recipient: receipt.recipient_id, letter: receipt.letter_id })}>{receipt.recipient_id}</a>.
      </span>
    </p>
  );
}

// Raw content, always as text.
function RawContent({ detail }: { detail: DeadLetterDetail }) {
  if (detail.raw === null) return <p class="muted small">The raw content was not stored, because no encryption key is set.</p>;
  return (
    <figure class="code">
      <figcaption>
        {bytes(detail.raw_bytes)}
        {detail.is_changed && ", with sensitive values masked and long content truncated"}
      </figcaption>
      <pre tabindex={0} aria-label="Raw content">
        <code>{detail.raw}</code>
      </pre>
    </figure>
  );
}
