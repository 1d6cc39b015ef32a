// Types of the chat API (/api/v1/agent) and of the AG-UI events that the page handles. Types only: the readers handle
// missing fields.

export interface Thread {
  id: string;
  title: string | null;
  model: string | null;
  snippet: string | null;
  parentId: string | null;
  parentSeq: number;
  lastSeq: number;
  pinned: boolean;
  tags: string[];
  shared: { lastSeq: number; include: string[]; createdAt: string } | null;
  updatedAt: string;
}

// A message that several threads have in different versions.
export interface Versions {
  seq: number;
  threads: string[];
  current: number; // index in threads
}

export interface SearchFilters {
  model: string | null;
  role: string | null;
  from: string | null; // days in UTC, both included
  to: string | null;
  hasTool: "true" | null;
}

export interface Hit {
  threadId: string;
  seq: number;
  messageId: string;
  role: string;
  snippet: string;
  highlights: [number, number][]; // offsets in UTF-16 code units
  title?: string | null;
}

export interface Model {
  id: string;
  name: string;
  provider: string;
  aliases: string[];
  contextTokens: number | null;
  inputUsd: string | null; // per million tokens
  outputUsd: string | null;
  images: boolean;
  tools: boolean;
  isConfigured: boolean;
  isDefault: boolean;
}

export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  cached_input_tokens?: number;
  cache_creation_input_tokens?: number;
  reasoning_tokens?: number;
  cost_usd?: string | number | null; // null: no known price
  state?: "priced" | "unpriced";
  estimated?: boolean;
  latency_ms?: number;
}

export interface Place {
  bucket: string;
  path: string;
  mime_type: string;
}

export interface Block {
  type: string;
  text?: string;
  id?: string;
  name?: string | null;
  input?: unknown;
  input_text?: string; // raw text of an input that is not valid
  reason?: string;
  tool_use_id?: string;
  content?: Block[];
  is_error?: boolean;
  source?: { kind: string; data: string };
  media_type?: string;
  dialect?: string;
}

// A stored message in the canonical format, with its sequence number.
export interface Row {
  seq: number;
  message: {
    id: string;
    role: string;
    content: Block[];
    metadata: {
      message_id?: string;
      model?: string;
      usage?: Usage;
      status?: string;
      routing?: { mode?: string; reason?: string; rule_name?: string | null };
      extra?: { fault?: { code?: string; message?: string }; omitted_messages?: number };
      user_message_attachments?: Place | Place[];
    };
    created_at: string;
  };
}

export interface Stored extends Place {
  url: string;
  name?: string | null;
  size?: number;
}

export interface Preflight {
  model: string;
  is_possible: boolean;
  fits: boolean;
  omitted_messages: number; // the oldest ones, which do not fit
  estimated_input_tokens: number;
  first_turn_usd: string | null;
  blockers: string[];
  failures: string[]; // reason of each blocker
  kept: number;
  blocks: { message_id: string; place: number; block_type: string; outcome: "projected" | "left_out"; reason: string }[];
}

// Settings of a conversation; a missing field is as the server and the provider have it.
export interface ConversationSettings {
  systemPrompt?: string;
  temperature?: number;
  effort?: string;
  disabledTools?: string[];
}

export interface ToolInfo {
  name: string;
  description: string;
  sideEffects: string;
}

export interface ThreadSettings {
  settings: ConversationSettings;
  images: ImagePolicy;
  routing: unknown; // a routing policy of its own, or null
  tools: ToolInfo[];
}

// How images are sent to a model that cannot read them.
export type ImagePolicy = "strict" | "placeholder" | "describe";

// All counts are estimated tokens.
export interface ContextUse {
  model: string;
  contextTokens: number;
  systemTokens: number;
  toolTokens: number;
  messageTokens: number;
  answerTokens: number; // reserved
  omittedMessages: number;
  firstSeq: number | null; // first message that is sent, if some are omitted
}

export interface Interrupt {
  id: string;
  reason: string;
  message?: string;
  toolCallId?: string;
  responseSchema?: AnswerSchema;
  metadata?: Extension<{ name?: string; input?: unknown }>;
}

// The part of JSON Schema that the form supports.
export interface AnswerSchema {
  properties?: Record<string, { type: string; description?: string; enum?: string[] }>;
  required?: string[];
}

export interface Decision {
  interruptId: string;
  status: "resolved" | "cancelled";
  payload?: Record<string, unknown>;
}

export type Outcome =
  | { type: "success"; pendingToolCallIds?: string[] }
  | { type: "interrupt"; interrupts: Interrupt[] }
  | { type: "cancelled" };

// Fields that Dragoman adds to AG-UI.
export interface Extension<T> {
  dragoman?: T;
}

export type Event =
  | { type: "RUN_STARTED"; threadId: string; runId: string }
  | { type: "RUN_FINISHED"; threadId: string; runId: string; outcome?: Outcome }
  | { type: "RUN_ERROR"; message: string; code?: string }
  | { type: "STEP_STARTED" | "STEP_FINISHED"; stepName: string; metadata?: Extension<{ model?: string }> }
  | { type: "TEXT_MESSAGE_START"; messageId: string; role?: string }
  | { type: "TEXT_MESSAGE_CONTENT"; messageId: string; delta: string }
  | { type: "TEXT_MESSAGE_END"; messageId: string }
  | { type: "REASONING_MESSAGE_START" | "REASONING_MESSAGE_END"; messageId: string }
  | { type: "REASONING_MESSAGE_CONTENT"; messageId: string; delta: string }
  | { type: "TOOL_CALL_START"; toolCallId: string; toolCallName: string }
  | { type: "TOOL_CALL_ARGS"; toolCallId: string; delta: string }
  | { type: "TOOL_CALL_END"; toolCallId: string }
  | { type: "TOOL_CALL_RESULT"; toolCallId: string; messageId: string; content: string | { type: string; text?: string }[]; metadata?: Extension<{ is_error?: boolean }> }
  | { type: "CUSTOM"; name: string; value: unknown }
  | { type: "OTHER" }; // any other event type; not shown
