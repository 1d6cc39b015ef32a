// Previews of HTML and diagrams in a frame without the origin of the page and without network.
//
// The frame is a page of the server with its own policy: only scripts and styles inside of it run, and it loads nothing.
// Invariant: the page sends the frame nothing but the code and the diagram library, and reads a size or an error from it.
import { call } from "../api/client.ts";

declare const __MERMAID__: string; // path of the diagram library

export type PreviewKind = "html" | "mermaid";

export function previewKind(language: string): PreviewKind | null {
  const name = language.toLowerCase();
  return name === "html" || name === "svg" ? "html" : name === "mermaid" ? "mermaid" : null;
}

export const GROWTH = "growth"; // event of an element that gets its height after it was rendered

interface FrameReport {
  height?: number;
  error?: string;
}

let library: Promise<string> | null = null;

function loadLibrary(): Promise<string> {
  library ??= call(__MERMAID__, {}, "").then((answer) => answer.text());
  library.catch(() => (library = null));
  return library;
}

// Shows or hides the preview of a code block.
export async function togglePreview(figure: HTMLElement): Promise<void> {
  const existing = figure.querySelector("iframe");
  const button = figure.querySelector<HTMLElement>("[data-preview]");
  button?.setAttribute("aria-pressed", String(!existing));
  figure.classList.toggle("previewed", !existing);
  if (existing) return existing.remove();
  const kind = button?.dataset["preview"] as PreviewKind;
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = kind === "mermaid" ? "Diagram" : "Preview of the HTML";
  frame.className = `preview ${kind}`;
  frame.src = "frame";
  const code = figure.querySelector("code")?.textContent ?? "";
  const loaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
  figure.append(frame);
  addEventListener("message", function onReport(event: MessageEvent<FrameReport>) {
    if (!frame.isConnected) return removeEventListener("message", onReport);
    if (event.source === frame.contentWindow) report(figure, frame, event.data);
  });
  const script = kind === "mermaid" ? await loadLibrary().catch(() => null) : null;
  await loaded;
  if (kind === "mermaid" && script === null) return report(figure, frame, { error: "The diagram library could not be loaded." });
  frame.contentWindow?.postMessage({ kind, code, library: script, isDark: isDark() }, "*");
}

function report(figure: HTMLElement, frame: HTMLIFrameElement, { height, error }: FrameReport): void {
  if (typeof height === "number") {
    frame.style.height = `${Math.min(Math.max(height, 40), 1200)}px`;
    frame.dispatchEvent(new Event(GROWTH, { bubbles: true }));
  }
  if (typeof error !== "string") return;
  frame.remove();
  figure.classList.remove("previewed");
  figure.querySelector("[data-preview]")?.setAttribute("aria-pressed", "false");
  const note = figure.querySelector(".preview-fault") ?? figure.appendChild(Object.assign(document.createElement("p"), { className: "preview-fault muted small" }));
  note.textContent = `The diagram cannot be drawn: ${error.slice(0, 300)}`;
}

// Draws the diagrams again, in the colours of the page.
export function redrawDiagrams(): void {
  for (const frame of document.querySelectorAll("iframe.preview.mermaid")) {
    const figure = frame.closest<HTMLElement>("figure");
    frame.remove();
    if (figure) void togglePreview(figure);
  }
}

function isDark(): boolean {
  const { theme } = document.documentElement.dataset;
  return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}
