// Code in a box, with a button that copies it.
import { codeBlock } from "../lib/markdown.ts";

export function Code({ text, language }: { text: string; language: string }) {
  return <div class="prose" dangerouslySetInnerHTML={{ __html: codeBlock(text, language) }} />;
}
