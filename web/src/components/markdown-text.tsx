// Rendered Markdown and code. Of a growing text, only the last sections are parsed and rendered again.
import { useLayoutEffect, useRef } from "preact/hooks";
import { codeBlock, parseMarkdown, safeHtml, type ParsedMarkdown, type Section } from "../lib/markdown.ts";
import { showFootnote } from "../lib/markdown-extensions.ts";
import { GROWTH, redrawDiagrams, togglePreview } from "../lib/preview.ts";
import { isDark } from "../lib/theme.ts";
import { memo } from "./memo.ts";

isDark.watch(redrawDiagrams);

export function MarkdownText({ text, isComplete = true }: { text: string; isComplete?: boolean }) {
  const last = useRef<ParsedMarkdown | null>(null);
  const place = useRef<HTMLDivElement>(null);
  if (last.current?.text !== text) last.current = parseMarkdown(text, last.current);
  useLayoutEffect(() => {
    if (isComplete && place.current) showDiagrams(place.current);
  }, [isComplete, text]);
  return (
    <div class="prose" ref={place} onClick={onClick}>
      {last.current.sections.map((section) => (
        <SectionView key={section.start} section={section} />
      ))}
    </div>
  );
}

const SectionView = memo(
  ({ section }: { section: Section }) => {
    const place = useRef<HTMLDivElement>(null);
    useLayoutEffect(() => {
      if (place.current?.querySelector(".math")) showMath(place.current);
    }, [section.raw]);
    return <div ref={place} dangerouslySetInnerHTML={{ __html: safeHtml(section) }} />;
  },
  (before, after) => before.section.raw === after.section.raw,
);

let renderMath: ((place: ParentNode) => void) | null = null;

// The library is loaded with the first formula; later ones are rendered before the browser paints.
function showMath(place: ParentNode): void {
  if (renderMath) return renderMath(place);
  void import("../lib/math.ts").then((module) => {
    renderMath = module.renderMath;
    renderMath(document);
    place.dispatchEvent(new Event(GROWTH, { bubbles: true }));
  });
}

function showDiagrams(place: HTMLElement): void {
  for (const button of place.querySelectorAll('[data-preview="mermaid"][aria-pressed="false"]')) {
    const figure = button.closest("figure");
    if (figure && !figure.querySelector(".preview-fault")) void togglePreview(figure);
  }
}

function onClick(event: MouseEvent): void {
  const target = event.target as HTMLElement;
  const figure = target.closest("[data-preview]")?.closest("figure");
  if (figure) void togglePreview(figure);
  const mark = target.closest("[data-note]");
  if (mark) showFootnote(mark);
}

// A code block with a copy button.
export function Code({ text, language }: { text: string; language: string }) {
  return <div class="prose" dangerouslySetInnerHTML={{ __html: codeBlock(text, language) }} />;
}
