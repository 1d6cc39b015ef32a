// Endpoints for pins, tags, titles, shares and exports.
import { call, download, id, json, jsonRequest, query } from "../api/client.ts";
import type { Thread } from "../api/types.ts";

export async function pinnedThreads(): Promise<Thread[]> {
  return (await json<{ threads: Thread[] }>(`/threads${query({ pinned: "true", limit: 100 })}`)).threads;
}

export async function threadsWithTag(tag: string): Promise<Thread[]> {
  return (await json<{ threads: Thread[] }>(`/threads${query({ tag, limit: 200 })}`)).threads;
}

export interface TagCount {
  tag: string;
  threads: number;
}

export async function tags(): Promise<TagCount[]> {
  return (await json<{ tags: TagCount[] }>("/tags")).tags;
}

export function writeTitle(thread: string): Promise<Thread> {
  return json(`/threads/${id(thread)}/title`, { method: "POST" });
}

export type SharedPart = "tools" | "attachments" | "thinking" | "system";

export function share(thread: string, include: SharedPart[]): Promise<{ url: string; lastSeq: number }> {
  return json(`/threads/${id(thread)}/share`, jsonRequest("POST", { include }));
}

export async function revokeShare(thread: string): Promise<void> {
  await call(`/threads/${id(thread)}/share`, { method: "DELETE" });
}

export interface ExportOptions {
  format: string;
  fromSeq?: number | undefined;
  toSeq?: number | undefined;
}

export async function exportThread(thread: Thread, { format, fromSeq, toSeq }: ExportOptions): Promise<void> {
  const answer = await call(`/threads/${id(thread.id)}/export${query({ format, fromSeq, toSeq })}`);
  const name = (thread.title || "conversation").slice(0, 60).replace(/[^\p{L}\p{N} _-]/gu, "").trim() || "conversation";
  await download(answer, `${name}.${SUFFIXES[format] ?? "json"}`);
}

const SUFFIXES: Record<string, string> = { markdown: "md", html: "html" };

export async function exportThreads(ids: readonly string[], format: string): Promise<void> {
  await download(await call("/threads/export", jsonRequest("POST", { ids, format })), "conversations.zip");
}
