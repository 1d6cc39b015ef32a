// The letters of a mailbox, the newest first, as they arrive.
import { useState } from "preact/hooks";
import * as calls from "./client.ts";
import { useArrivals, useLive } from "./use-polling.ts";
import { Filter, Letters, ProblemNote } from "./components.tsx";
import { FirstLetter } from "./empty-state.tsx";
import { fits } from "./letter-text.ts";

export function Mailbox({ recipient }: { recipient: string }) {
  const { value: letters, problem, again } = useLive(`box/${recipient}`, () => calls.lettersTo(recipient));
  const [words, setWords] = useState("");
  useArrivals(recipient, again);
  const shown = (letters ?? []).filter((letter) => fits(letter, words.trim()));
  return (
    <>
      <ProblemNote problem={problem} />
      {letters === null && !problem && <p class="hint">Looking …</p>}
      {letters?.length === 0 && <FirstLetter recipient={recipient} onSent={again} />}
      {letters !== null && letters.length > 0 && (
        <>
          <div class="row between bar">
            <p class="muted">{letters.length < 100 ? "The newest first" : "The newest hundred"}</p>
            <Filter label="Filter letters" value={words} onChange={setWords} />
          </div>
          {shown.length ? <Letters letters={shown} level="h2" label={`Letters to ${recipient}`} /> : <p class="hint">None of these letters says that.</p>}
        </>
      )}
    </>
  );
}
