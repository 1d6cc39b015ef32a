// HTTP client of the provider API (/api/v1/admin/providers).
import { call, id, json, jsonRequest } from "../api/client.ts";

const BASE = "api/v1/admin/providers";

export interface Provider {
  key: string;
  title: string;
  dialect: string;
  baseUrl: string | null;
  needsKey: boolean;
  runsLocally: boolean;
  source: string | null; // of the access
  keyHint: string | null;
  isEditable: boolean;
  isStored: boolean;
  isCustom: boolean;
  models: number;
}

export interface Access {
  apiKey?: string;
  baseUrl?: string;
  title?: string;
}

export interface ListedModel {
  name: string;
  contextTokens: number | null;
  isOffered: boolean;
}

export interface Test {
  isWorking: boolean;
  latencyMs: number;
  models: ListedModel[];
  code: string | null;
  message: string | null;
}

export async function providers(): Promise<Provider[]> {
  return (await json<{ providers: Provider[] }>("", {}, BASE)).providers;
}

export function test(provider: string, access: Access): Promise<Test> {
  return json(`/${id(provider)}/test`, jsonRequest("POST", access), BASE);
}

export function store(provider: string, access: Access & { models?: string[] }): Promise<Provider> {
  return json(`/${id(provider)}`, jsonRequest("PUT", access), BASE);
}

export async function remove(provider: string): Promise<void> {
  await call(`/${id(provider)}`, { method: "DELETE" }, BASE);
}
