// The letters of a task, in their order: who said what to whom, and where it stands.
import { useState } from "preact/hooks";
import { problemFrom } from "../api/client.ts";
import { moment, plural } from "../lib/format.ts";
import { Icon } from "../components/icons.tsx";
import type { Problem } from "../state/view-model.ts";
import { Asking } from "./input-form.tsx";
import * as calls from "./client.ts";
import { useLive } from "./use-polling.ts";
import { LetterLine, ProblemNote, StandingChip } from "./components.tsx";
import { Said } from "./payload.tsx";
import { linkTo } from "./route.ts";
import type { Letter } from "./types.ts";
import { HUMAN, isFree, kindOf, listed } from "./letter-text.ts";

export function Task({ task }: { task: string }) {
  const { value: letters, problem, again } = useLive(`task/${task}`, () => calls.lettersOf(task));
  return (
    <>
      <ProblemNote problem={problem} />
      {letters === null && !problem && <p class="hint">Looking …</p>}
      {letters !== null && (
        <>
          <p class="muted bar">
            {plural(letters.length, "letter")} between {listed([...new Set(letters.flatMap((one) => [one.sender_id, one.recipient_id]))])}
          </p>
          <ol class="task">
            {letters.map((letter) => (
              <li key={`${letter.recipient_id}/${letter.letter_id}`}>
                <InTask letter={letter} onDone={again} />
              </li>
            ))}
          </ol>
        </>
      )}
    </>
  );
}

function InTask({ letter, onDone }: { letter: Letter; onDone: () => void }) {
  return (
    <article class="in-task">
      <LetterLine letter={letter} level="h2" />
      <Said letter={letter} />
      {kindOf(letter) === "question" && letter.state !== "done" && letter.state !== "dead" && <Asking letter={letter} onDone={onDone} />}
      {letter.recipient_id === HUMAN && kindOf(letter) !== "question" && <Finish letter={letter} onDone={onDone} />}
      <p class="under muted small">
        <StandingChip letter={letter} />
        {letter.taken_at && <time dateTime={letter.taken_at}>{moment(letter.taken_at)}</time>}
        {letter.error_class && <span>last failure: {letter.error_class.replaceAll("_", " ")}</span>}
        <a href={linkTo({ kind: "letter", recipient: letter.recipient_id, letter: letter.letter_id })}>Everything behind it</a>
      </p>
    </article>
  );
}

// A letter to people that asks for nothing is done when somebody has read it.
export function Finish({ letter, onDone }: { letter: Letter; onDone: () => void }) {
  const [problem, setProblem] = useState<Problem | null>(null);
  if (!isFree(letter, new Date())) return null;
  const finish = () =>
    calls.finish(letter).then(
      () => (setProblem(null), onDone()),
      (error: unknown) => setProblem(problemFrom(error)),
    );
  return (
    <>
      <ProblemNote problem={problem} />
      <div class="row">
        <button type="button" onClick={() => void finish()}>
          <Icon name="check" size={14} /> Read, and done
        </button>
      </div>
    </>
  );
}
