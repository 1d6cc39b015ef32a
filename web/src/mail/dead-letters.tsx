// Dead letters: why nobody will get them, what came, and a button that sends them again.
import { useState } from "preact/hooks";
import { problemFrom } from "../api/client.ts";
import { bytes, moment } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import type { Problem } from "../state/view-model.ts";
import * as calls from "./client.ts";
import { useLive } from "./use-polling.ts";
import { Filter, ProblemNote } from "./components.tsx";
import { linkTo } from "./route.ts";
import type { Dead, DeadWhole, Sent } from "./types.ts";
import { reasonOf } from "./letter-text.ts";

export function DeadLetters() {
  const { value: found, problem } = useLive("dead", calls.dead);
  const [sent, setSent] = useState<Map<string, { dead: Dead; receipt: Sent }>>(new Map());
  const [words, setWords] = useState("");
  const here = new Set(found?.map((one) => one.id));
  const all = [...[...sent.values()].filter(({ dead }) => !here.has(dead.id)).map(({ dead }) => dead), ...(found ?? [])];
  all.sort((one, other) => other.died_at.localeCompare(one.died_at));
  const shown = all.filter((one) => JSON.stringify(one).toLowerCase().includes(words.trim().toLowerCase()));
  return (
    <>
      <ProblemNote problem={problem} />
      {found === null && !problem && <p class="hint">Looking …</p>}
      {found !== null && all.length === 0 && <NoneDead />}
      {all.length > 0 && (
        <>
          <div class="row between bar">
            <p class="muted">Nobody gets these unless they are sent again.</p>
            <Filter label="Filter dead letters" value={words} onChange={setWords} />
          </div>
          <ul class="dead-letters">
            {shown.map((one) => (
              <DeadLetter key={one.id} dead={one} receipt={sent.get(one.id)?.receipt ?? null} onSent={(receipt) => setSent((before) => new Map(before).set(one.id, { dead: one, receipt }))} />
            ))}
          </ul>
        </>
      )}
    </>
  );
}

function NoneDead() {
  return (
    <div class="teaching">
      <h2>No dead letters</h2>
      <p class="muted">
        A letter dies when it was tried as often as it may be, or when what came is no letter. It is kept here with the reason and what came, whoever is asked for help is told, and it can be sent again.
      </p>
    </div>
  );
}

function DeadLetter({ dead, receipt, onSent }: { dead: Dead; receipt: Sent | null; onSent: (receipt: Sent) => void }) {
  const [whole, setWhole] = useState<DeadWhole | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  const trying = async (deed: () => Promise<void>) => {
    setBusy(true);
    setProblem(null);
    await deed().catch((error: unknown) => setProblem(withAdvice(problemFrom(error))));
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
                {dead.sender_id ?? "somebody"} <span aria-label="to">→</span> {dead.recipient_id ?? "somebody"}
              </>
            ) : (
              "Something that is no letter"
            )}
          </h2>
          <span class="muted small facts">
            {dead.task_id && <a href={linkTo({ kind: "task", task: dead.task_id })}>{dead.task_id}</a>}
            <time dateTime={dead.died_at}>{moment(dead.died_at)}</time>
          </span>
        </div>
        <p>
          {reasonOf(dead.reason)}. <code class="code-name">{dead.reason}</code>
        </p>
        <p class="plain muted small clamped">{dead.error}</p>
        <ProblemNote problem={problem} />
        {receipt ? (
          <Outcome receipt={receipt} />
        ) : (
          <div class="row">
            <button type="button" disabled={isBusy} onClick={() => void trying(async () => onSent(await calls.resend(dead.id)))}>
              <Icon name="retry" size={14} /> Send again
            </button>
            <button type="button" class="quiet" aria-expanded={whole !== null} disabled={isBusy} onClick={() => (whole ? setWhole(null) : void trying(async () => setWhole(await calls.deadWhole(dead.id))))}>
              {whole ? "Hide what came" : "Show what came"}
            </button>
          </div>
        )}
        {whole && <WhatCame whole={whole} />}
      </article>
    </li>
  );
}

function withAdvice(problem: Problem): Problem {
  return { ...problem, advice: problem.advice || "Nothing was sent: it is as it was. Whoever wrote it has to write it anew." };
}

function Outcome({ receipt }: { receipt: Sent }) {
  return (
    <p class="outcome" role="status">
      <Icon name="check" size={14} />
      <span>
        {receipt.is_new ? "Sent again: it is in the mailbox of " : "It had gone its way already, to "}
        <a href={linkTo({ kind: "letter", recipient: receipt.recipient_id, letter: receipt.letter_id })}>{receipt.recipient_id}</a>.
      </span>
    </p>
  );
}

// As text, whatever it is.
function WhatCame({ whole }: { whole: DeadWhole }) {
  if (whole.raw === null) return <p class="muted small">What came was not kept: there is no key to seal it with.</p>;
  return (
    <figure class="code">
      <figcaption>
        {bytes(whole.raw_bytes)}
        {whole.is_changed && ", shown without what may be sensitive, and cut if it is long"}
      </figcaption>
      <pre tabindex={0} aria-label="What came">
        <code>{whole.raw}</code>
      </pre>
    </figure>
  );
}
