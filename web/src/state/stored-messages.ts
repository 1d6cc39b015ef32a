// Conversion of stored messages to view items. Tool results are shown with their calls, not as items.
// Invariant: a stored message replaces its streamed content.
import { runProblem } from "../api/error-messages.ts";
import type { Block, Place, Row, Usage } from "../api/types.ts";
import type { AnswerItem, CallPart, Attachment, Item, Part, Receipt, Result, UserItem, View } from "./view-model.ts";

type Results = ReadonlyMap<string, Result>;

export function itemsFrom(rows: readonly Row[]): Item[] {
  const results = resultsIn(rows);
  return rows.flatMap((row) => itemOf(row, results) ?? []);
}

// Merges rows into the view, before items that are not stored yet. A call and its result may be in different pages.
export function withRows(view: View, rows: readonly Row[], bounds: Partial<Pick<View, "hasEarlier" | "hasLater">> = {}): View {
  const results = new Map([...view.results, ...resultsIn(rows)]);
  const fresh = itemsFrom(rows);
  const places = new Set<number | null>(rows.map((row) => row.seq));
  const names = new Set(fresh.map((item) => item.id));
  const kept = view.items.filter((item) => !places.has(item.seq) && !(item.seq === null && names.has(item.id)));
  const items = [...kept, ...fresh].sort((block, next) => (block.seq ?? Infinity) - (next.seq ?? Infinity) || 0);
  const firstSeq = Math.min(view.firstSeq, rows[0]?.seq ?? Infinity);
  const lastSeq = Math.max(view.lastSeq, rows.at(-1)?.seq ?? 0);
  return { ...view, items: fillResults(items, results), results, firstSeq, lastSeq, isLoading: false, ...bounds };
}

// Only this many items are kept in the document, so that a page of any conversation renders in the same time.
export const MAX_ITEMS = 150;

// Drops items beyond MAX_ITEMS at the far end. They are loaded again when the user scrolls back.
export function trim(view: View, end: "start" | "end"): View {
  const excess = view.items.length - MAX_ITEMS;
  if (excess <= 0) return view;
  const items = end === "start" ? view.items.slice(excess) : view.items.slice(0, MAX_ITEMS);
  if (end === "start") return { ...view, items, firstSeq: items[0]?.seq ?? view.firstSeq, hasEarlier: true };
  return { ...view, items, lastSeq: items.at(-1)?.seq ?? view.lastSeq, hasLater: true };
}

// Drops all messages, before others are loaded instead.
export function withoutRows(view: View): View {
  return { ...view, items: [], firstSeq: Infinity, lastSeq: 0 };
}

// After a run: drops all items that are not stored.
export function replaceWithStored(view: View, rows: readonly Row[]): View {
  return withRows({ ...view, items: view.items.filter((item) => item.seq !== null) }, rows);
}

function fillResults(items: Item[], results: Results): Item[] {
  return items.map((item) => {
    if (item.kind !== "answer" || !item.parts.some((part) => isPending(part, results))) return item;
    return { ...item, parts: item.parts.map((part) => (isPending(part, results) ? withResult(part as CallPart, results) : part)) };
  });
}

function isPending(part: Part, results: Results): boolean {
  return part.kind === "call" && part.result === null && results.has(part.id);
}

function withResult(part: CallPart, results: Results): CallPart {
  return { ...part, result: results.get(part.id) ?? null };
}

function itemOf(row: Row, results: Results): Item | null {
  switch (row.message.role) {
    case "user":
      return userItem(row);
    case "assistant":
      return answerItem(row, results);
    case "system":
      return { kind: "system", id: idOf(row), seq: row.seq, text: textOf(row.message.content) };
    default:
      return null;
  }
}

// The id that a client has set takes precedence, as everywhere in the API.
function idOf({ message }: Row): string {
  return message.metadata.message_id ?? message.id;
}

// --- questions -------------------------------------------------------------------------------------------------------

function userItem(row: Row): UserItem {
  const { content, metadata, created_at: at } = row.message;
  const kept = metadata.user_message_attachments;
  const places = kept === undefined ? [] : Array.isArray(kept) ? kept : [kept];
  const attachments = places.length ? places.map(fromPlace) : content.flatMap(inline);
  const files = textFiles(content, places);
  const words = content.slice(0, content.length - files.length);
  nameFiles(attachments, files);
  return { kind: "user", id: idOf(row), seq: row.seq, text: textOf(words), attachments, at };
}

const LABEL = /^([^\n]+):\n\n/;

// The trailing text blocks that hold text attachments ("name:" and the content).
function textFiles(content: readonly Block[], places: readonly Place[]): readonly Block[] {
  const count = places.filter(isText).length;
  const labelled = content.slice(content.length - count).filter((block) => block.type === "text" && LABEL.test(block.text ?? ""));
  return labelled.length === count ? labelled : [];
}

function isText({ mime_type: mime }: Place): boolean {
  return mime.startsWith("text/") || mime === "application/json";
}

// Sets the names of text attachments from the labels of their content.
function nameFiles(attachments: Attachment[], files: readonly Block[]): void {
  const texts = attachments.filter(({ place }) => place !== null && isText(place));
  files.forEach((block, at) => {
    const attachment = texts[at];
    if (attachment) attachment.name = LABEL.exec(block.text ?? "")?.[1] ?? null;
  });
}

function fromPlace(place: Place): Attachment {
  return { place, url: null, mime: place.mime_type, name: null };
}

function inline(block: Block): Attachment[] {
  const mime = block.media_type;
  return mime === undefined ? [] : [{ place: null, url: dataUrl(block), mime, name: block.name ?? null }];
}

// --- answers ---------------------------------------------------------------------------------------------------------

function answerItem(row: Row, results: Results): AnswerItem {
  const { content, metadata, created_at: at } = row.message;
  const { model, usage, status, routing, extra } = metadata;
  const id = idOf(row);
  return {
    kind: "answer",
    id,
    seq: row.seq,
    parts: content.map((block, place) => partOf(block, `${id}:${place}`, results)),
    model: model ?? null,
    why: routing ? routingText(routing) : null,
    receipt: usage ? receiptOf(usage) : null,
    omitted: extra?.omitted_messages ?? 0,
    status: status ?? "complete",
    fault: extra?.fault ? faultText(extra.fault.code ?? null, extra.fault.message ?? "") : null,
    at,
  };
}

function faultText(code: string | null, message: string): string {
  const { title, details } = runProblem(code, message);
  return details ? `${title} “${details}”` : title;
}

// Why this model answered, by the routing mode.
const MODES: Record<string, string> = {
  override: "You named this model in the message",
  manual: "You chose this model for the conversation",
  default: "The default model",
  delegate: "Chosen for a delegated task",
  pattern: "It did best on similar questions",
};

function routingText({ mode = "", reason = "", rule_name: rule }: NonNullable<Row["message"]["metadata"]["routing"]>): string {
  return MODES[mode] ?? (rule ? `The routing rule “${rule}” chose this model` : reason);
}

function partOf(block: Block, id: string, results: Results): Part {
  switch (block.type) {
    case "text":
      return { kind: "text", id, text: block.text ?? "" };
    case "thinking":
      return { kind: "thinking", id, text: block.text ?? "", isOpen: false };
    case "redacted_thinking":
      return { kind: "note", id, text: "Thinking encrypted by the provider" };
    case "tool_use":
      return callOf(block, JSON.stringify(block.input ?? {}), results);
    case "invalid_tool_use":
      return { ...callOf(block, block.input_text ?? "", results), problem: block.reason ?? "The arguments are not valid." };
    case "image": {
      const url = dataUrl(block);
      return url === null ? { kind: "note", id, text: `Image, ${block.media_type}` } : { kind: "image", id, url };
    }
    default:
      return { kind: "note", id, text: [block.type, block.dialect, block.media_type].filter(Boolean).join(", ") };
  }
}

function callOf(block: Block, input: string, results: Results): CallPart {
  const id = block.id ?? "";
  return { kind: "call", id, name: block.name ?? "", input, isOpen: false, result: results.get(id) ?? null, problem: null };
}

function resultsIn(rows: readonly Row[]): Map<string, Result> {
  const blocks = rows.flatMap(({ message }) => message.content).filter((block) => block.type === "tool_result");
  return new Map(blocks.map((block) => [block.tool_use_id ?? "", resultOf(block)]));
}

function resultOf(block: Block): Result {
  const content = block.content ?? [];
  return {
    text: textOf(content),
    images: content.flatMap((block) => (block.type === "image" ? (dataUrl(block) ?? []) : [])),
    isError: block.is_error ?? false,
  };
}

function textOf(blocks: readonly Block[]): string {
  return blocks.flatMap((block) => (block.type === "text" ? [block.text ?? ""] : [])).join("\n\n");
}

// Only inline images are shown; the page never loads images from other hosts.
function dataUrl({ source, media_type: mime }: Block): string | null {
  return source?.kind === "base64" && source.data && mime?.startsWith("image/") ? `data:${mime};base64,${source.data}` : null;
}

export function receiptOf(usage: Usage): Receipt {
  const cached = usage.cached_input_tokens ?? 0;
  const usd = usage.cost_usd === undefined || usage.cost_usd === null ? null : Number(usage.cost_usd);
  return {
    input: (usage.input_tokens ?? 0) + cached + (usage.cache_creation_input_tokens ?? 0),
    cached,
    output: usage.output_tokens ?? 0,
    reasoning: usage.reasoning_tokens ?? 0,
    usd: usd !== null && Number.isFinite(usd) ? usd : null,
    isUnpriced: usage.cost_usd === null || usage.state === "unpriced",
    isEstimated: usage.estimated ?? false,
    latencyMs: usage.latency_ms ?? null,
  };
}
