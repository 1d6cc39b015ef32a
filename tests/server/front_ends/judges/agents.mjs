// AG-UI clients that ask for the weather, each in a thread of its own, whatever happens to the server meanwhile.
//   node agents.mjs BASE_URL PREFIX COUNT QUESTIONS
// Prints how often they had to ask again. Fails if a text that a client saw is not in its thread.
import { HttpAgent } from "@ag-ui/client";

const [base, prefix, count, questions] = process.argv.slice(2);
const MOST_ATTEMPTS = 40;
process.on("unhandledRejection", () => {}); // the client rejects a promise of its own too when a connection breaks
const pause = () => new Promise((done) => setTimeout(done, 250));
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "The weather in a city", parameters }];

class ThreadAgent extends HttpAgent {
  connect(input) {
    return new HttpAgent({ url: `${base}/connect` }).run(input);
  }
}

async function restore(threadId) {
  for (let attempt = 1; ; attempt += 1) {
    const agent = new ThreadAgent({ url: `${base}/runs`, threadId });
    let error = null;
    try {
      await agent.connectAgent({}, { onRunFailed: (it) => { error = it.error; } });
    } catch (failure) {
      error = failure;
    }
    if (error === null) return agent;
    if (attempt === MOST_ATTEMPTS) throw error;
    await pause();
  }
}

async function run(agent, seen) {
  let failure = null;
  await agent.runAgent({ tools }, {
    onTextMessageContentEvent: ({ event, textMessageBuffer }) => { seen.set(event.messageId, textMessageBuffer + event.delta); },
    onRunErrorEvent: ({ event }) => { failure = new Error(`${event.code}: ${event.message}`); },
    onRunFailed: ({ error }) => { failure = error; },
  });
  if (failure !== null) throw failure;
}

// An earlier question without an answer is abandoned, and so are its calls.
function openCalls(all) {
  const messages = all.slice(all.findLastIndex((message) => message.role === "user"));
  const answered = new Set(messages.filter((message) => message.role === "tool").map((message) => message.toolCallId));
  return messages.flatMap((message) => message.toolCalls ?? []).filter((call) => !answered.has(call.id));
}

async function ask(agent, seen) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "What is the weather in Berlin?" });
  await run(agent, seen);
  for (const call of openCalls(agent.messages)) {
    const { city } = JSON.parse(call.function.arguments);
    agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content: JSON.stringify({ city, warm: 21 }) });
  }
  await run(agent, seen);
  if (!agent.messages.at(-1).content?.includes("21 degrees")) throw new Error(`an answer without the weather: ${JSON.stringify(agent.messages.at(-1))}`);
}

async function converse(threadId) {
  let agent = new ThreadAgent({ url: `${base}/runs`, threadId });
  const seen = new Map();
  const errors = [];
  for (let question = 0; question < Number(questions); ) {
    try {
      await ask(agent, seen);
      question += 1;
    } catch (error) {
      errors.push(String(error.message).slice(0, 100));
      if (errors.length === MOST_ATTEMPTS) throw error;
      await pause();
      agent = await restore(threadId);
    }
  }
  const stored = new Map((await restore(threadId)).messages.map((message) => [message.id, message.content ?? ""]));
  for (const [id, text] of seen) {
    if (!stored.get(id)?.startsWith(text)) throw new Error(`${threadId} lost ${JSON.stringify(text)} of ${id}: ${JSON.stringify(stored.get(id))}`);
  }
  return errors;
}

const results = await Promise.all(Array.from({ length: Number(count) }, (_, at) => converse(`${prefix}-${at + 1}`)));
console.log(JSON.stringify({ again: results.flat() }));
