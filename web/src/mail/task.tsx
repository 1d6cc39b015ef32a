// The letters of a task, in order, with their status.
import { useState } from "preact/hooks";
import { problemFrom } from "../api/client.ts";
import { moment, plural } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import type { Problem } from "../state/view-model.ts";
import { InputForm } from "./input-form.tsx";
import * as client from "./client.ts";
import { usePolling } from "./use-polling.ts";
import { LetterLine, ProblemNote, StatusChip } from "./components.tsx";
import { PayloadView } from "./payload.tsx";
import { linkTo } from "./route.ts";
import type { Letter } from "./types.ts";
import { HUMAN, isAvailable, kindOf, joinNames } from "./letter-text.ts";

export function Task({ task }: { task: string }) {
  const { value: letters, problem, reload } = usePolling(`task/${task}`, () => client.lettersOf(task));
  return (
    <>
      <ProblemNote problem={problem} />
      {letters === null && !problem && <p class="hint">Loading …</p>}
      {letters !== null && (
        <>
          <p class="muted bar">
            {plural(letters.length, "letter")} between {joinNames([...new Set(letters.flatMap((letter) => [letter.sender_id, letter.recipient_id]))])}
          </p>
          <ol class="task">
            {letters.map((letter) => (
              <li key={`${letter.recipient_id}/${letter.letter_id}`}>
                <TaskLetter letter={letter} onDone={reload} />
              </li>
            ))}
          </ol>
        </>
      )}
    </>
  );
}

function TaskLetter({ letter, onDone }: { letter: Letter; onDone: () => void }) {
  return (
    <article class="in-task">
      <LetterLine letter={letter} level="h2" />
      <PayloadView letter={letter} />
      {kindOf(letter) === "question" && letter.state !== "done" && letter.state !== "dead" && <InputForm letter={letter} onDone={onDone} />}
      {letter.recipient_id === HUMAN && kindOf(letter) !== "question" && <Finish letter={letter} onDone={onDone} />}
      <p class="under muted small">
        <StatusChip letter={letter} />
        {letter.taken_at && <time dateTime={letter.taken_at}>{moment(letter.taken_at)}</time>}
        {letter.error_class && <span>last failure: {letter.error_class.replaceAll("_", " ")}</span>}
        <a href={linkTo({ kind: "letter", recipient: letter.recipient_id, letter: letter.letter_id })}>Details</a>
      </p>
    </article>
  );
}

// A letter to people without requested inputs is acknowledged by a button.
export function Finish({ letter, onDone }: { letter: Letter; onDone: () => void }) {
  const [problem, setProblem] = useState<Problem | null>(null);
  if (!isAvailable(letter, new Date())) return null;
  const finish = () =>
    client.finish(letter).then(
      () => (setProblem(null), onDone()),
      (error: unknown) => setProblem(problemFrom(error)),
    );
  return (
    <>
      <ProblemNote problem={problem} />
      <div class="row">
        <button type="button" onClick={() => void finish()}>
          <Icon name="check" size={14} /> Mark as done
        </button>
      </div>
    </>
  );
}
