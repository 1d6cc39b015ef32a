// A conversation that the published client holds: a picture, a tool of its own, an approval. Prints what it has then.
//   node conversation.mjs URL PICTURE_URL
import { HttpAgent } from "@ag-ui/client";

const [url, picture] = process.argv.slice(2);
const warnings = [];
console.warn = (...words) => warnings.push(words.map(String).join(" "));

const weather = {
  name: "get_weather",
  description: "The weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const agent = new HttpAgent({ url, threadId: "thread-of-the-client" });
const outcomes = [];
let number = 0;

async function run(options = {}) {
  number += 1;
  let finished = null;
  await agent.runAgent(
    { runId: `run-${number}`, tools: [weather], ...options },
    {
      onRunFinishedEvent: (it) => { finished = it.event; },
      onRunErrorEvent: ({ event }) => { throw new Error(event.message); },
    },
  );
  outcomes.push(finished.outcome?.type ?? "none");
  return finished;
}

const say = (content) => agent.addMessage({ id: `msg-${number + 1}`, role: "user", content });

say([
  { type: "text", text: "帮我看看这张图" },
  { type: "image", source: { type: "url", value: picture, mimeType: "image/jpeg" } },
]);
await run();

say("How warm is it in Berlin?");
await run();
const answered = new Set(agent.messages.filter((one) => one.role === "tool").map((one) => one.toolCallId));
for (const call of agent.messages.flatMap((one) => one.toolCalls ?? [])) {
  if (answered.has(call.id)) continue;
  const { city } = JSON.parse(call.function.arguments);
  agent.addMessage({ id: `tool-${call.id}`, role: "tool", toolCallId: call.id, content: JSON.stringify({ city, warm: 21 }) });
}
await run();

say("Delete it.");
const waits = await run();
const resume = waits.outcome.interrupts.map((one) => ({ interruptId: one.id, status: "resolved", payload: { approved: true } }));
await run({ resume });

say("Thank you.");
await run();
console.log(JSON.stringify({ messages: agent.messages, outcomes, warnings }));
