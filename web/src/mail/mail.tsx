// The mail pages: mailboxes, letters, tasks, dead letters and trends.
import { useEffect, useRef } from "preact/hooks";
import { useObservable } from "../state/observable.ts";
import { IconButton } from "../components/icons.tsx";
import { copyCode } from "../chat/messages.tsx";
import * as appState from "../state/app-state.ts";
import { DeadLetters } from "./dead-letters.tsx";
import { LetterPage } from "./letter.tsx";
import { Mailbox } from "./mailbox.tsx";
import { Mailboxes } from "./mailboxes.tsx";
import { linkTo, placeFrom, type Place } from "./route.ts";
import { Task } from "./task.tsx";
import { TrendsPage } from "./trends.tsx";

const TABS: { label: string; place: Place }[] = [
  { label: "Mailboxes", place: { kind: "boxes" } },
  { label: "Trends", place: { kind: "trends", by: "agent", name: null } },
  { label: "Dead letters", place: { kind: "dead" } },
];

export function Mail() {
  const { id } = useObservable(appState.route);
  const place = placeFrom(id);
  const title = titleOf(place);
  const address = place.kind === "trends" ? "trends" : linkTo(place);
  const heading = useRef<HTMLHeadingElement>(null);
  const before = useRef(address);
  useEffect(() => {
    if (before.current !== address) heading.current?.focus();
    before.current = address;
  }, [address]);
  return (
    <section class="page mail" aria-labelledby="mail-title">
      <header class="head row">
        <IconButton icon="menu" label="Conversations" class="narrow-only" onClick={() => appState.isDrawerOpen.set(true)} />
        <h1 id="mail-title" ref={heading} tabindex={-1}>{title}</h1>
        <nav class="tabs" aria-label="Mail">
          {TABS.map((tab) => (
            <a key={tab.label} href={linkTo(tab.place)} aria-current={tab.place.kind === place.kind ? "page" : tab.place.kind === sectionOf(place) ? "true" : undefined}>
              {tab.label}
            </a>
          ))}
        </nav>
      </header>
      <div class="scroll" key={address} tabindex={0} role="region" aria-label={title} onClick={copyCode}>
        <div class="measure">{pageAt(place)}</div>
      </div>
    </section>
  );
}

// The tab of a page.
function sectionOf(place: Place): Place["kind"] {
  return place.kind === "dead" || place.kind === "trends" ? place.kind : "boxes";
}

function titleOf(place: Place): string {
  switch (place.kind) {
    case "boxes":
      return "Mail";
    case "box":
      return `Mailbox of ${place.recipient}`;
    case "task":
      return `Task ${place.task}`;
    case "letter":
      return `Letter to ${place.recipient}`;
    case "dead":
      return "Dead letters";
    case "trends":
      return "Trends";
  }
}

function pageAt(place: Place) {
  switch (place.kind) {
    case "boxes":
      return <Mailboxes />;
    case "box":
      return <Mailbox recipient={place.recipient} />;
    case "task":
      return <Task task={place.task} />;
    case "letter":
      return <LetterPage recipient={place.recipient} letter={place.letter} />;
    case "dead":
      return <DeadLetters />;
    case "trends":
      return <TrendsPage by={place.by} name={place.name} />;
  }
}
