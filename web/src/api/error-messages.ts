// What people are told when something fails: what it is, and what they can do. By the codes of runs and of requests.
import type { Problem } from "../state/view-model.ts";

const RUNS: Record<string, [title: string, advice: string]> = {
  interrupted: ["The server went away in the middle of this answer.", "What had arrived is kept. Ask again, or go on from here."],
  server_stopping: ["The server was stopped in the middle of this answer.", "What had arrived is kept. Ask again when it is back."],
  cancelled: ["The answer was stopped.", "What had arrived is kept."],
  unauthorized: ["The provider did not take the key.", "Give it the right one with dragoman login, or choose another model."],
  forbidden: ["The provider does not allow this with this key.", "Look at the account there, or choose another model."],
  missing_key: ["There is no key for this provider.", "Add one with dragoman login, or choose another model."],
  rate_limited: ["The provider asks for a pause.", "Wait a little and ask again, or choose another model."],
  overloaded: ["The provider is too busy.", "Wait a little and ask again, or choose another model."],
  context_overflow: ["The conversation is too long for this model.", "Choose a model with more room, or fork at an earlier message."],
  unreachable: ["The provider cannot be reached.", "Look at the network and at its address, or choose another model."],
  timeout: ["The provider took too long.", "Ask again, or choose another model."],
  server_error: ["The provider broke.", "Ask again, or choose another model."],
  stream_incomplete: ["The answer broke off.", "What had arrived is kept. Ask again, or go on from here."],
  stream_broken: ["The connection to the provider broke.", "What had arrived is kept. Ask again, or go on from here."],
  empty_response: ["The model said nothing.", "Ask again, or in other words."],
  too_many_steps: ["The model kept asking for tools, and was stopped.", "Ask it to go on if it should."],
  routing_failed: ["No model may answer this.", "Choose one yourself; the routing policy may be too narrow."],
  routing_constraint_failure: ["This model may not answer this.", "Choose another one."],
  local_model_failed: ["The embedded model did not start.", "The log of the server says why. Another model may answer."],
  disk_full: ["There is no room left to keep this.", "Make room on the disk of the server, and ask again."],
};

const REQUESTS: Record<string, string> = {
  run_in_progress: "Wait for the answer, or stop it first.",
  too_many_runs: "Wait until some of your answers have come.",
  not_found: "It may have been deleted. The list shows what there is.",
  too_large: "Make it smaller.",
  attachment_too_large: "Files of up to 20 MB can be sent.",
  type_not_allowed: "Pictures (PNG, JPEG, GIF, WebP), PDF and plain text can be sent.",
  unauthorized: "Enter a key of this server.",
  missing_scope: "Ask whoever runs the server for a key that allows it.",
  unknown_model: "Choose one from the list.",
  swap_refused: "Choose another model.",
  turn_in_flight: "Wait for the answer, or stop it first.",
  server_stopping: "Try again when it is back.",
  disk_full: "Make room on the disk of the server, and try again.",
  host_not_allowed: "Open the page under 127.0.0.1 or localhost.",
  origin_not_allowed: "Open the page from the server itself.",
  proxy_not_allowed: "Start the server with --base-url, and make a key.",
};

const OFFLINE = "Is it running? make run, or dragoman serve, starts it.";
const BROKEN = "Try again. If it stays like this, look for the request in the log of the server.";

export function problemOfRun(code: string | null, message: string): Problem {
  const known = RUNS[code ?? ""];
  const [title, advice] = known ?? [sentence(message || "Something went wrong"), "Ask again. If it stays like this, the log of the server says more."];
  return { title, advice, code, requestId: null };
}

export function problemOfRequest(status: number, code: string, message: string, requestId: string | null): Problem {
  const advice = REQUESTS[code] ?? (status === 0 ? OFFLINE : status >= 500 ? BROKEN : "");
  return { title: sentence(message), advice, code, requestId };
}

function sentence(text: string): string {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
