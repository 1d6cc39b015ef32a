// Types of the mail API (/api/v1/mail). Types only: the readers handle missing fields.

export interface Mailbox {
  recipient_id: string;
  ready: number;
  leased: number;
  waiting: number; // waiting for a retry
  behind: number;
  held: number;
  away: number;
  done: number;
  dead: number;
  newest_at: string | null;
}

export interface Letter {
  letter_id: string;
  recipient_id: string;
  sender_id: string;
  task_id: string;
  type: string;
  state: "ready" | "behind" | "held" | "done" | "dead" | "away";
  attempts: number;
  taken_at: string | null;
  ended_at: string | null;
  leased_until: string | null;
  retry_at: string | null;
  error_class: string | null;
  waits_for: string[];
  session_id: string | null;
  letter: Envelope;
}

export interface Envelope {
  timestamp: string;
  retry_count?: number;
  payload: Payload;
  context?: Record<string, unknown>;
}

// The fields of all payload types.
export interface Payload {
  status?: string;
  score?: number;
  duration_sec?: number;
  notes?: string;
  result?: { output?: string; artifacts?: Artifact[]; inputs?: Record<string, unknown> };
  metrics?: Record<string, unknown>;
  code?: string;
  message?: string;
  details?: Record<string, unknown>;
  retryable?: boolean;
  suggested_actions?: string[];
  requested_inputs?: RequestedInput[];
  context?: string;
}

export interface Artifact {
  type: string;
  path: string;
  description?: string;
}

export interface RequestedInput {
  id: string;
  type: string; // string, number, boolean, enum, file
  description: string;
  options?: (string | number | boolean)[];
  sensitive?: boolean;
  default?: unknown;
  required?: boolean;
}

export interface Evaluation {
  id: string;
  timestamp: string;
  agent_id: string | null;
  evaluator: string;
  success: boolean | null;
  score: number | null;
  duration_sec: number | null;
  notes: string | null;
  model: string | null;
  cost_usd: string | null;
}

export interface Graph {
  letter: Letter;
  session: { id: string; title: string | null; model: string | null } | null;
  messages: { id: string; role: string; content: string; timestamp: string; metadata: Record<string, unknown> }[];
  tool_calls: { id: string; name: string; status: string; created_at: string; completed_at: string | null }[];
  spend: { calls: number; input_tokens: number; output_tokens: number; cost_usd: string | null; unpriced: number } | null;
  evaluations: Evaluation[];
  thread: Letter[];
}

export interface DeadLetter {
  id: string;
  reason: string;
  error: string;
  died_at: string;
  recipient_id: string | null;
  sender_id: string | null;
  task_id: string | null;
  letter_id: string | null;
}

export interface DeadLetterDetail extends DeadLetter {
  raw: string | null;
  raw_bytes: number;
  is_changed: boolean;
}

export interface SendReceipt {
  letter_id: string;
  recipient_id: string;
  is_new: boolean;
  state: Letter["state"];
}

export interface Summary {
  count: number;
  average_score: number | null;
  success_rate: number | null;
  durations: { p50_ms: number; p95_ms: number } | null;
  cost_usd: string | null;
}

export interface Span {
  at: string;
  count: number;
  average_score: number | null;
  success_rate: number | null;
  p50_ms: number | null;
  p95_ms: number | null;
}

export interface GroupTrend {
  name: string | null; // null: all together
  summary: Summary;
  direction: "up" | "down" | "steady" | "unknown";
  change: number | null;
  spans: Span[];
}

export interface Trends {
  by: "agent" | "model";
  step: Step;
  groups: GroupTrend[];
}

export type Step = "hour" | "day" | "week";
