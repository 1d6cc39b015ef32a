// Types of the endpoints that explain an answer.
export interface TraceEvent {
  id: string;
  parentId: string | null;
  type: string;
  timestamp: string;
  payload: Record<string, unknown>;
}

export interface ReceiptLine {
  bucket: string;
  quantity: number;
  rate_usd: string;
  per: number;
  amount_usd: string;
}

export interface Why {
  threadId: string;
  messageId: string;
  seq: number;
  model: string | null;
  provider: string | null;
  status: string;
  createdAt: string;
  route: { mode: string; chosen_model: string; reason: string; rule_name?: string | null; confidence?: number | null; alternatives_considered?: string[] } | null;
  receipt: { costUsd: string | null; state: "priced" | "unpriced"; usage: Record<string, unknown>; lines: ReceiptLine[] } | null;
  omittedMessages: number; // oldest messages that did not fit the context window
  gateway: { dialect: string; client: string | null; losses: string[] } | null;
  events: TraceEvent[];
  hasMore: boolean;
}

export interface Exchange {
  dialect: string;
  request: unknown;
  reply: unknown;
}

interface LossRow {
  block_type: string;
  reason: string;
}

export interface Wire {
  projection: {
    kept: number;
    blocks: { message_id: string; place: string; block_type: string; outcome: "projected" | "left_out"; reason: string }[];
    losses: LossRow[];
    notes: LossRow[];
    repairs: string[];
    leftOut: number;
    estimatedInputTokens: number;
    contextTokens: number;
  } | null;
  provider: Exchange | null;
  client: Exchange | null;
  call: { tools: string[]; options: Record<string, unknown> } | null; // of a gateway client, if they are stored
  isShortened: boolean;
}
