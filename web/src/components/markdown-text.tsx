// A text in Markdown. A text that grows is read and drawn anew at its end alone.
import { useRef } from "preact/hooks";
import { cut, safeHtml, type Cut, type Section } from "../lib/markdown.ts";
import { memo } from "./memo.ts";

export function Prose({ text }: { text: string }) {
  const last = useRef<Cut | null>(null);
  if (last.current?.text !== text) last.current = cut(text, last.current);
  return (
    <div class="prose">
      {last.current.sections.map((section) => (
        <SectionShown key={section.start} section={section} />
      ))}
    </div>
  );
}

const SectionShown = memo(
  ({ section }: { section: Section }) => <div dangerouslySetInnerHTML={{ __html: safeHtml(section) }} />,
  (one, other) => one.section.raw === other.section.raw,
);
