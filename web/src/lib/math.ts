// Formulas as MathML, which browsers render without styles. Loaded when a text contains a formula.
import DOMPurify from "dompurify";
import katex from "katex";

const MAX_LENGTH = 10_000;

export function renderMath(place: ParentNode): void {
  for (const element of place.querySelectorAll<HTMLElement>(".math:not(.rendered)")) {
    const tex = element.textContent ?? "";
    element.classList.add("rendered");
    if (tex.length > MAX_LENGTH) continue;
    const html = katex.renderToString(tex, { output: "mathml", displayMode: element.classList.contains("display"), throwOnError: false, trust: false, strict: "ignore", maxExpand: 500 });
    if (html.includes("katex-error")) element.classList.add("wrong");
    else element.innerHTML = DOMPurify.sanitize(html, { USE_PROFILES: { mathMl: true }, ADD_TAGS: ["semantics"], FORBID_TAGS: ["annotation"], FORBID_CONTENTS: ["annotation"], FORBID_ATTR: ["style"] });
    element.title = tex;
  }
}
