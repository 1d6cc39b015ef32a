// All mailboxes with their counts.
import { useState } from "preact/hooks";
import { moment } from "../lib/format.ts";
import * as client from "./client.ts";
import { usePolling } from "./use-polling.ts";
import { Filter, ProblemNote } from "./components.tsx";
import { linkTo } from "./route.ts";
import { EmptyMailbox } from "./empty-state.tsx";
import type { Mailbox } from "./types.ts";
import { COLUMNS, countsOf, HUMAN, sortMailboxes, describeCounts } from "./letter-text.ts";

export function Mailboxes() {
  const { value, problem, reload } = usePolling("mailboxes", client.mailboxes);
  const [words, setWords] = useState("");
  const boxes = value?.mailboxes ?? null;
  const counts = countsOf(boxes ?? [], value?.dead_without_recipient ?? 0);
  const shown = sortMailboxes(boxes ?? []).filter((box) => box.recipient_id.toLowerCase().includes(words.trim().toLowerCase()));
  return (
    <>
      <ProblemNote problem={problem} />
      {boxes === null && !problem && <p class="hint">Loading …</p>}
      {boxes?.length === 0 && <EmptyMailbox onSent={reload} />}
      {boxes !== null && boxes.length > 0 && (
        <>
          <div class="row between bar">
            <p class="muted" role="status">
              {describeCounts(counts)}
            </p>
            <Filter label="Filter by name" value={words} onChange={setWords} />
          </div>
          {shown.length ? <Table boxes={shown} /> : <p class="hint">No matching mailboxes.</p>}
        </>
      )}
    </>
  );
}

function Table({ boxes }: { boxes: readonly Mailbox[] }) {
  return (
    <table class="boxes">
      <caption class="hidden">Mailboxes</caption>
      <thead>
        <tr>
          <th scope="col">Mailbox</th>
          {COLUMNS.map(({ name, label }) => (
            <th key={name} scope="col" class="number">
              {label}
            </th>
          ))}
          <th scope="col" class="when">
            Last letter
          </th>
        </tr>
      </thead>
      <tbody>
        {boxes.map((box) => (
          <Row key={box.recipient_id} box={box} />
        ))}
      </tbody>
    </table>
  );
}

function Row({ box }: { box: Mailbox }) {
  const counts = countsOf([box]);
  return (
    <tr>
      <th scope="row">
        <a class="stretched" href={linkTo({ kind: "box", recipient: box.recipient_id })}>
          {box.recipient_id}
        </a>
        {box.recipient_id === HUMAN && <span class="muted small"> for people</span>}
        <span class="muted small narrow-only block">{describeCounts(counts)}</span>
      </th>
      {COLUMNS.map(({ name }) => (
        <td key={name} class={`number ${counts[name] ? name : "zero"}`}>
          {counts[name]}
        </td>
      ))}
      <td class="when muted small">{box.newest_at ? <time dateTime={box.newest_at}>{moment(box.newest_at)}</time> : "none"}</td>
    </tr>
  );
}
