// Answers of several models to one question, in columns. One of them is kept, the others stay as versions.
import { useEffect, useMemo } from "preact/hooks";
import { Approvals } from "../chat/approvals.tsx";
import { copyCode, PartView } from "../chat/messages.tsx";
import { ProblemBanner } from "../chat/problem-banner.tsx";
import { ReceiptLine } from "../chat/receipt.tsx";
import { IconButton } from "../components/icons.tsx";
import { modelName } from "../lib/format.ts";
import * as appState from "../state/app-state.ts";
import type { Conversation } from "../state/conversation.ts";
import { useObservable, useObservablePerFrame } from "../state/observable.ts";
import { isBusy, type AnswerItem, type UserItem, type View } from "../state/view-model.ts";
import { conversationsOf, keep, leave } from "./comparison.ts";

export function ComparePage() {
  const { id } = useObservable(appState.route);
  const conversations = useMemo(() => conversationsOf((id ?? "").split(",").filter(Boolean)), [id]);
  useEffect(() => () => leave(conversations), [conversations]);
  return (
    <section class="page compare" aria-labelledby="compare-title">
      <header class="head row">
        <IconButton icon="menu" label="Conversations" class="narrow-only" onClick={() => appState.isDrawerOpen.set(true)} />
        <h1 id="compare-title">Compare models</h1>
      </header>
      <div class="scroll" tabindex={0} role="region" aria-label="Answers" onClick={copyCode}>
        {conversations[0] && <Question conversation={conversations[0]} />}
        <div class="columns" style={{ "--columns": conversations.length }}>
          {conversations.map((conversation) => (
            <Column key={conversation.id} conversation={conversation} />
          ))}
        </div>
      </div>
    </section>
  );
}

function Question({ conversation }: { conversation: Conversation }) {
  const view = useObservablePerFrame(conversation.view);
  const question = view.items[lastQuestion(view)] as UserItem | undefined;
  return question ? <p class="compare-question plain">{question.text || "Files"}</p> : null;
}

function lastQuestion({ items }: View): number {
  return items.findLastIndex((item) => item.kind === "user");
}

function Column({ conversation }: { conversation: Conversation }) {
  const view = useObservablePerFrame(conversation.view);
  const answers = view.items.slice(lastQuestion(view) + 1).filter((item): item is AnswerItem => item.kind === "answer");
  const model = answers.at(-1)?.model ?? null;
  const name = model ? modelName(model) : "…";
  const { problem } = view;
  const isDone = !isBusy(view) && answers.some(({ parts }) => parts.length > 0);
  return (
    <article class="column" aria-label={`Answer from ${name}`} aria-busy={isBusy(view)}>
      <header class="row between">
        <h2>{name}</h2>
        {isBusy(view) ? (
          <button type="button" onClick={() => void conversation.stop()} disabled={view.run.state === "stopping"}>
            Stop
          </button>
        ) : (
          <button type="button" class="primary" disabled={!isDone} onClick={() => void keep(conversation, model)} aria-label={`Keep the answer from ${name}`}>
            Keep
          </button>
        )}
      </header>
      <div aria-live="polite">
        {answers.flatMap((answer) => answer.parts.map((part) => <PartView key={`${answer.id}:${part.id}`} part={part} isWaiting={false} isComplete={!isBusy(view)} />))}
        {isBusy(view) && !answers.length && <p class="muted">Working …</p>}
        {problem && <ProblemBanner problem={{ ...problem, actions: problem.actions.filter((action) => action !== "model") }} conversation={conversation} />}
      </div>
      <Approvals conversation={conversation} view={view} />
      {answers.at(-1)?.receipt && <ReceiptLine receipt={total(answers)} at={null} />}
    </article>
  );
}

// The receipt of all model calls of an answer.
function total(answers: readonly AnswerItem[]) {
  const receipts = answers.flatMap(({ receipt }) => (receipt ? [receipt] : []));
  const sum = (amount: (receipt: (typeof receipts)[number]) => number) => receipts.reduce((all, receipt) => all + amount(receipt), 0);
  return {
    input: sum(({ input }) => input),
    cached: sum(({ cached }) => cached),
    output: sum(({ output }) => output),
    reasoning: sum(({ reasoning }) => reasoning),
    usd: receipts.every(({ usd }) => usd === null) ? null : sum(({ usd }) => usd ?? 0),
    isUnpriced: receipts.some(({ isUnpriced }) => isUnpriced),
    isEstimated: receipts.some(({ isEstimated }) => isEstimated),
    latencyMs: sum(({ latencyMs }) => latencyMs ?? 0),
  };
}
