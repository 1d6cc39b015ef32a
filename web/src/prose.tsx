// A text in Markdown. A text that grows is drawn anew at its end alone.
import { memo } from "./memo.ts";
import { safeHtml, sections, type Section } from "./markdown.ts";

export function Prose({ text }: { text: string }) {
  return (
    <div class="prose">
      {sections(text).map((section, at) => (
        <SectionShown key={at} section={section} />
      ))}
    </div>
  );
}

const SectionShown = memo(
  ({ section }: { section: Section }) => <div dangerouslySetInnerHTML={{ __html: safeHtml(section) }} />,
  (one, other) => one.section.raw === other.section.raw,
);
