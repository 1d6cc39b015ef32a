// Rendered Markdown and code. Of a growing text, only the last sections are parsed and rendered again.
import { useRef } from "preact/hooks";
import { codeBlock, parseMarkdown, safeHtml, type ParsedMarkdown, type Section } from "../lib/markdown.ts";
import { memo } from "./memo.ts";

export function MarkdownText({ text }: { text: string }) {
  const last = useRef<ParsedMarkdown | null>(null);
  if (last.current?.text !== text) last.current = parseMarkdown(text, last.current);
  return (
    <div class="prose">
      {last.current.sections.map((section) => (
        <SectionView key={section.start} section={section} />
      ))}
    </div>
  );
}

const SectionView = memo(
  ({ section }: { section: Section }) => <div dangerouslySetInnerHTML={{ __html: safeHtml(section) }} />,
  (before, after) => before.section.raw === after.section.raw,
);

// A code block with a copy button.
export function Code({ text, language }: { text: string; language: string }) {
  return <div class="prose" dangerouslySetInnerHTML={{ __html: codeBlock(text, language) }} />;
}
