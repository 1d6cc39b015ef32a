// A conversation that ends with the result of a tool, brought to a new thread. Prints what the client has then.
//   node whole-history.mjs URL
import { HttpAgent } from "@ag-ui/client";

const [url] = process.argv.slice(2);
const call = { id: "call-1", type: "function", function: { name: "get_weather", arguments: '{"city":"Berlin"}' } };
const agent = new HttpAgent({
  url,
  threadId: "thread-from-elsewhere",
  initialMessages: [
    { id: "u1", role: "user", content: "How warm is it in Berlin?" },
    { id: "a1", role: "assistant", toolCalls: [call] },
    { id: "t1", role: "tool", toolCallId: "call-1", content: "21" },
  ],
});
await agent.runAgent({ runId: "run-1" }, { onRunErrorEvent: ({ event }) => { throw new Error(event.message); } });
const calls = agent.messages.flatMap((one) => one.toolCalls ?? []).length;
console.log(JSON.stringify({ roles: agent.messages.map((one) => one.role), last: agent.messages.at(-1).content, calls }));
