// Components that several mail pages share.
import type { ComponentChildren } from "preact";
import { duration, moment } from "../lib/format.ts";
import { Icon, type IconName } from "../components/icons.tsx";
import type { Problem } from "../state/view-model.ts";
import { linkTo } from "./route.ts";
import type { Letter } from "./types.ts";
import { summaryLine, kindOf, outcome, retries, score, letterStatus, type Kind } from "./letter-text.ts";

const ICONS: Record<Kind, IconName> = { result: "check", answer: "chat", error: "warn", question: "help", letter: "mail" };
const KINDS: Record<Kind, string> = { result: "Result", answer: "Answer", error: "Error", question: "Question", letter: "Letter" };

export function Chip({ mood, children }: { mood: string; children: ComponentChildren }) {
  return <span class={`chip ${mood}`}>{children}</span>;
}

export function StatusChip({ letter }: { letter: Letter }) {
  const { mood, label, why } = letterStatus(letter, new Date());
  return (
    <Chip mood={mood}>
      {label} {why && <span class="why">{why}</span>}
    </Chip>
  );
}

// Sender, recipient, kind and outcome of a letter.
export function LetterLine({ letter, level = "h3" }: { letter: Letter; level?: "h2" | "h3" }) {
  const kind = kindOf(letter);
  const went = outcome(letter.letter.payload);
  const Heading = level;
  return (
    <div class="letter-line">
      <span class={`kind ${kind} ${went && !went.isGood ? "poor" : ""}`}>
        <Icon name={went && !went.isGood ? "warn" : ICONS[kind]} size={16} />
      </span>
      <Heading class="who">
        {letter.sender_id} <span aria-label="to">→</span> {letter.recipient_id}
      </Heading>
      <span class="muted small facts">
        <span>{KINDS[kind]}</span>
        {went && <span>{went.label}</span>}
        {letter.letter.payload.score !== undefined && <span>score {score(letter.letter.payload.score)}</span>}
        {letter.letter.payload.duration_sec !== undefined && <span>{duration(letter.letter.payload.duration_sec * 1000)}</span>}
        {retries(letter) > 0 && <span>{retries(letter) === 1 ? "retried once" : `retried ${retries(letter)} times`}</span>}
      </span>
    </div>
  );
}

interface LettersProps {
  letters: readonly Letter[];
  label: string;
  level?: "h2" | "h3";
  current?: string | null; // id of the letter that is already shown
}

export function Letters({ letters, label, level = "h3", current = null }: LettersProps) {
  return (
    <ul class="letters" aria-label={label}>
      {letters.map((letter) => (
        <li key={`${letter.recipient_id}/${letter.letter_id}`} class={letter.letter_id === current ? "current" : ""}>
          <LetterLine letter={letter} level={level} />
          <p class="summary-line">
            <a class="stretched" href={linkTo({ kind: "letter", recipient: letter.recipient_id, letter: letter.letter_id })} aria-current={letter.letter_id === current ? "true" : undefined}>
              {summaryLine(letter) || "(no text)"}
            </a>
          </p>
          <p class="under muted small">
            <a href={linkTo({ kind: "task", task: letter.task_id })}>{letter.task_id}</a>
            {letter.taken_at && <time dateTime={letter.taken_at}>{moment(letter.taken_at)}</time>}
            <StatusChip letter={letter} />
          </p>
        </li>
      ))}
    </ul>
  );
}

export function ProblemNote({ problem }: { problem: Problem | null }) {
  if (!problem || problem.code === "unauthorized") return null;
  return (
    <div class="banner bad" role="alert">
      <Icon name="warn" size={16} />
      <span>
        <strong>{problem.title}</strong> {problem.advice}
      </span>
    </div>
  );
}

export function Filter({ label, value, onChange }: { label: string; value: string; onChange: (words: string) => void }) {
  return (
    <label class="search filter">
      <Icon name="search" size={16} />
      <span class="hidden">{label}</span>
      <input type="search" placeholder={label} value={value} onInput={(event) => onChange(event.currentTarget.value)} />
    </label>
  );
}
