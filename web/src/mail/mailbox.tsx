// The letters of a mailbox, newest first, updated live.
import { useState } from "preact/hooks";
import * as client from "./client.ts";
import { useMailboxStream, usePolling } from "./use-polling.ts";
import { Filter, Letters, ProblemNote } from "./components.tsx";
import { EmptyMailbox } from "./empty-state.tsx";
import { fits } from "./letter-text.ts";

export function Mailbox({ recipient }: { recipient: string }) {
  const { value: letters, problem, reload } = usePolling(`box/${recipient}`, () => client.lettersTo(recipient));
  const [words, setWords] = useState("");
  useMailboxStream(recipient, reload);
  const shown = (letters ?? []).filter((letter) => fits(letter, words.trim()));
  return (
    <>
      <ProblemNote problem={problem} />
      {letters === null && !problem && <p class="hint">Loading …</p>}
      {letters?.length === 0 && <EmptyMailbox recipient={recipient} onSent={reload} />}
      {letters !== null && letters.length > 0 && (
        <>
          <div class="row between bar">
            <p class="muted">{letters.length < 100 ? "Newest first" : "The newest 100 letters"}</p>
            <Filter label="Filter letters" value={words} onChange={setWords} />
          </div>
          {shown.length ? <Letters letters={shown} level="h2" label={`Letters to ${recipient}`} /> : <p class="hint">No matching letters.</p>}
        </>
      )}
    </>
  );
}
