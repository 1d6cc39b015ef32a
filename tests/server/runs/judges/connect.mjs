// A client that knows only the id of a thread opens it, asks once more, and prints what it has before and after.
//   node connect.mjs BASE_URL THREAD
import { HttpAgent } from "@ag-ui/client";

const [base, threadId] = process.argv.slice(2);
class ThreadAgent extends HttpAgent {
  connect(input) {
    return new HttpAgent({ url: `${base}/connect` }).run(input);
  }
}
const warnings = [];
console.warn = (...words) => warnings.push(words.map(String).join(" "));
const agent = new ThreadAgent({ url: `${base}/runs`, threadId });
let outcome = null;
await agent.connectAgent({ runId: "connect-1" }, { onRunFinishedEvent: ({ event }) => { outcome = event.outcome ?? null; } });
const restored = structuredClone(agent.messages);
agent.addMessage({ id: "again", role: "user", content: "And now?" });
await agent.runAgent({ runId: "run-again" }, { onRunErrorEvent: ({ event }) => { throw new Error(event.message); } });
console.log(JSON.stringify({ restored, messages: agent.messages, outcome, state: agent.state, warnings }));
