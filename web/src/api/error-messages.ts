// Error titles, advice and offered actions by the error codes of runs and requests.
import type { Problem, ProblemAction } from "../state/view-model.ts";

type Entry = [title: string, advice: string, actions: ProblemAction[]];

const RUNS: Record<string, Entry> = {
  interrupted: ["The server stopped unexpectedly during this answer.", "The text so far is stored.", ["retry"]],
  server_stopping: ["The server was stopped during this answer.", "The text so far is stored. Retry when the server is running.", ["retry"]],
  cancelled: ["The answer was stopped.", "The text so far is stored.", ["retry"]],
  unauthorized: ["The provider rejected the API key.", "Enter a valid key, or switch the model.", ["providers", "model"]],
  forbidden: ["The API key has no permission for this request.", "Check the account at the provider, or switch the model.", ["providers", "model"]],
  missing_key: ["This provider has no API key.", "Enter one, or switch the model.", ["providers", "model"]],
  missing_base_url: ["This provider has no address.", "Enter one, or switch the model.", ["providers", "model"]],
  rate_limited: ["The rate limit of the provider is exceeded.", "Wait and retry, or switch the model.", ["retry", "model"]],
  overloaded: ["The provider is overloaded.", "Wait and retry, or switch the model.", ["retry", "model"]],
  context_overflow: ["The conversation is too long for this model.", "Switch to a model with a larger context, or fork at an earlier message.", ["model"]],
  unreachable: ["The provider cannot be reached.", "Check the network and the address of the provider, or switch the model.", ["retry", "providers", "model"]],
  timeout: ["The provider did not respond in time.", "Retry, or switch the model.", ["retry", "model"]],
  server_error: ["The provider had an internal error.", "Retry, or switch the model.", ["retry", "model"]],
  invalid_request: ["The provider rejected the request.", "Change the settings of this conversation, or switch the model.", ["settings", "model"]],
  stream_incomplete: ["The answer is incomplete.", "The text so far is stored.", ["retry"]],
  stream_broken: ["The connection to the provider was lost.", "The text so far is stored.", ["retry"]],
  empty_response: ["The model returned an empty answer.", "Retry, or rephrase the question.", ["retry", "model"]],
  too_many_steps: ["The model reached the limit of tool calls in one turn.", "Ask it to continue.", []],
  routing_failed: ["No model can answer this.", "Choose one, or add the key of a provider.", ["model", "providers"]],
  routing_constraint_failure: ["This model cannot answer here.", "Switch the model.", ["model"]],
  local_model_failed: ["The embedded model did not start.", "The server log has the cause. Switch the model.", ["retry", "model"]],
  disk_full: ["The disk of the server is full.", "Free disk space on the server, and retry.", ["retry"]],
};

// Why a model cannot continue a conversation, by the reason of the server.
const REASONS: Record<string, Entry> = {
  not_configured: ["This model has no API key here.", "Enter the key of its provider, or switch the model.", ["providers", "model"]],
  provider_unavailable: ["The provider of this model is failing at the moment.", "Wait and retry, or switch the model.", ["retry", "model"]],
  no_vision_support: ["This model cannot read the images of the conversation.", "Choose what it receives instead of them, or switch the model.", ["pictures", "model"]],
  no_document_support: ["This model cannot read the documents of the conversation.", "Choose what it receives instead of them, or switch the model.", ["pictures", "model"]],
  no_audio_support: ["This model cannot hear the audio of the conversation.", "Choose what it receives instead of it, or switch the model.", ["pictures", "model"]],
  no_video_support: ["This model cannot watch the videos of the conversation.", "Choose what it receives instead of them, or switch the model.", ["pictures", "model"]],
  exceeds_context_window: ["The question is too long for this model.", "Shorten it, or switch to a model with a larger context.", ["model"]],
  no_tool_support: ["This model cannot call tools.", "Switch off the tools in the settings of this conversation, or switch the model.", ["settings", "model"]],
  no_system_prompt_support: ["This model accepts no system prompt.", "Remove it in the settings of this conversation, or switch the model.", ["settings", "model"]],
};

const REQUESTS: Record<string, [advice: string, actions: ProblemAction[]]> = {
  run_in_progress: ["Wait for the current answer, or stop it first.", []],
  too_many_runs: ["Wait until some of your running answers are complete.", []],
  not_found: ["It may have been deleted. Check the list of conversations.", []],
  too_large: ["Make it smaller.", []],
  attachment_too_large: ["The limit is 20 MB per file, and 1 MB for text.", []],
  type_not_allowed: ["Supported are images (PNG, JPEG, GIF, WebP, HEIC), audio, PDF and text.", []],
  unauthorized: ["Enter an API key of this server.", []],
  missing_scope: ["Ask the server administrator for a key with this scope.", []],
  unknown_model: ["Choose one from the list.", ["model"]],
  swap_refused: ["Choose another model.", ["model"]],
  turn_in_flight: ["Wait for the current answer, or stop it first.", []],
  server_stopping: ["Try again when the server is running.", []],
  disk_full: ["Free disk space on the server, and try again.", []],
  host_not_allowed: ["Open the page at 127.0.0.1 or localhost.", []],
  origin_not_allowed: ["Open the page from the server itself.", []],
  proxy_not_allowed: ["The administrator must set the public address of the server and create an API key.", []],
};

const OFFLINE = "Start the server again; the page continues by itself.";
const BROKEN = "Try again. If the error persists, find the request in the server log.";

export function runProblem(code: string | null, message: string): Problem {
  const entry = RUNS[code ?? ""];
  if (entry) return toProblem(entry, code, null, message);
  return toProblem([sentence(message || "Something went wrong"), "Retry, or switch the model.", ["retry", "model"]], code, null);
}

export function requestProblem(status: number, code: string, message: string, requestId: string | null, reason: string | null = null): Problem {
  const entry = REASONS[reason ?? ""] ?? (status === 422 || status === 503 ? RUNS[code] : undefined);
  if (entry) return toProblem(entry, code, requestId, isForTerminal(message) ? null : message);
  const [advice, actions] = REQUESTS[code] ?? [status === 0 ? OFFLINE : status >= 500 ? BROKEN : "", status === 0 || status >= 500 ? ["retry" as const] : []];
  return toProblem([sentence(message), advice, actions], code, requestId);
}

export function blockerText(failure: string | undefined, blocker: string): string {
  return REASONS[failure ?? ""]?.[0] ?? blocker;
}

function toProblem([title, advice, actions]: Entry, code: string | null, requestId: string | null, details: string | null = null): Problem {
  return { title, advice, actions, code, requestId, details: details && sentence(details) !== title ? details : null };
}

// Messages of routing and settings name commands and internal names.
function isForTerminal(message: string): boolean {
  return /dragoman |Active model|[a-z]+_[a-z]+/.test(message);
}

function sentence(text: string): string {
  const result = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(result) ? result : `${result}.`;
}
