// Error titles and advice by the error codes of runs and requests.
import type { Problem } from "../state/view-model.ts";

const RUNS: Record<string, [title: string, advice: string]> = {
  interrupted: ["The server stopped unexpectedly during this answer.", "The text so far is stored. Ask again, or continue from here."],
  server_stopping: ["The server was stopped during this answer.", "The text so far is stored. Ask again when the server is running."],
  cancelled: ["The answer was stopped.", "The text so far is stored."],
  unauthorized: ["The provider rejected the API key.", "Set a valid key with `dragoman login`, or choose another model."],
  forbidden: ["The API key has no permission for this request.", "Check the account at the provider, or choose another model."],
  missing_key: ["No API key for this provider.", "Add one with `dragoman login`, or choose another model."],
  rate_limited: ["The rate limit of the provider is exceeded.", "Wait and ask again, or choose another model."],
  overloaded: ["The provider is overloaded.", "Wait and ask again, or choose another model."],
  context_overflow: ["The conversation is too long for this model.", "Choose a model with a larger context, or fork at an earlier message."],
  unreachable: ["The provider cannot be reached.", "Check the network and the base URL, or choose another model."],
  timeout: ["The provider did not respond in time.", "Ask again, or choose another model."],
  server_error: ["The provider had an internal error.", "Ask again, or choose another model."],
  stream_incomplete: ["The answer is incomplete.", "The text so far is stored. Ask again, or continue from here."],
  stream_broken: ["The connection to the provider was lost.", "The text so far is stored. Ask again, or continue from here."],
  empty_response: ["The model returned an empty answer.", "Ask again, or rephrase the question."],
  too_many_steps: ["The model reached the limit of tool calls in one turn.", "Ask it to continue."],
  routing_failed: ["No model matches the routing policy.", "Choose a model, or check the policy with `dragoman route explain`."],
  routing_constraint_failure: ["The routing policy does not allow this model here.", "Choose another model."],
  local_model_failed: ["The embedded model did not start.", "Read the server log for the cause, or choose another model."],
  disk_full: ["The disk of the server is full.", "Free disk space on the server, and ask again."],
};

const REQUESTS: Record<string, string> = {
  run_in_progress: "Wait for the current answer, or stop it first.",
  too_many_runs: "Wait until some of your running answers are complete.",
  not_found: "It may have been deleted. Check the list of conversations.",
  too_large: "Make it smaller.",
  attachment_too_large: "The limit is 20 MB per file.",
  type_not_allowed: "Supported are images (PNG, JPEG, GIF, WebP), PDF and plain text.",
  unauthorized: "Enter an API key of this server.",
  missing_scope: "Ask the server administrator for a key with this scope.",
  unknown_model: "Choose one from the list.",
  swap_refused: "Choose another model.",
  turn_in_flight: "Wait for the current answer, or stop it first.",
  server_stopping: "Try again when the server is running.",
  disk_full: "Free disk space on the server, and try again.",
  host_not_allowed: "Open the page at 127.0.0.1 or localhost.",
  origin_not_allowed: "Open the page from the server itself.",
  proxy_not_allowed: "Start the server with --base-url, and create an API key.",
};

const OFFLINE = "Start it with `dragoman serve` or `make run`.";
const BROKEN = "Try again. If the error persists, find the request in the server log.";

export function runProblem(code: string | null, message: string): Problem {
  const entry = RUNS[code ?? ""];
  const [title, advice] = entry ?? [sentence(message || "Something went wrong"), "Ask again. If the error persists, read the server log."];
  return { title, advice, code, requestId: null };
}

export function requestProblem(status: number, code: string, message: string, requestId: string | null): Problem {
  const advice = REQUESTS[code] ?? (status === 0 ? OFFLINE : status >= 500 ? BROKEN : "");
  return { title: sentence(message), advice, code, requestId };
}

function sentence(text: string): string {
  const result = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(result) ? result : `${result}.`;
}
