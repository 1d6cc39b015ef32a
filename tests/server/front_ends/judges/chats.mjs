// Chats of the AI SDK that ask for the weather, each with an id of its own, whatever happens to the server meanwhile.
//   node chats.mjs PACKAGE API PREFIX COUNT QUESTIONS
// Prints how often they had to ask again. Fails if a text that a chat showed is not in its thread.
import { load, validated } from "./chat.mjs";

const [name, api, prefix, count, questions] = process.argv.slice(2);
const { Chat, sdk } = await load(name);
const MOST_ATTEMPTS = 40;
process.on("unhandledRejection", () => {}); // the SDK rejects a promise of its own too when a connection breaks
const pause = (ms = 250) => new Promise((done) => setTimeout(done, ms));
const inputSchema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = { get_weather: { description: "The weather in a city", inputSchema } };
const textOf = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");

async function converse(id) {
  const errors = [];
  const chat = new Chat({
    id,
    transport: new sdk.DefaultChatTransport({ api, body: { tools } }),
    sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithToolCalls,
    onToolCall: ({ toolCall: { toolName, toolCallId, input } }) => {
      void chat.addToolOutput({ tool: toolName, toolCallId, output: { city: input.city, warm: 21 } });
    },
    onError: (error) => { errors.push(String(error.message).slice(0, 100)); },
  });
  const settled = async () => {
    do await pause(20); while (["submitted", "streaming"].includes(chat.status));
  };
  const isAnswered = () => chat.messages.at(-1).role === "assistant" && textOf(chat.messages.at(-1)).includes("21 degrees");
  for (let question = 0, attempts = 0; question < Number(questions); attempts += 1) {
    if (attempts === MOST_ATTEMPTS) throw new Error(`${id} got no answer: ${errors}`);
    await chat.sendMessage({ text: "What is the weather in Berlin?" });
    await settled();
    for (let waits = 0; waits < 20 && chat.status === "ready" && !isAnswered(); waits += 1) await settled();
    if (isAnswered()) question += 1;
    else await pause();
  }
  const response = await fetch(`${api}/${id}/messages`);
  const { messages } = await response.json();
  await validated(sdk, messages);
  await validated(sdk, chat.messages);
  const stored = new Map(messages.map((message) => [message.id, textOf(message)]));
  for (const message of chat.messages) {
    if (message.role === "assistant" && message.parts.length && !stored.get(message.id)?.startsWith(textOf(message))) {
      throw new Error(`${id} lost ${JSON.stringify(message)}: ${JSON.stringify(stored.get(message.id))}`);
    }
  }
  return errors;
}

const results = await Promise.all(Array.from({ length: Number(count) }, (_, at) => converse(`${prefix}-${at + 1}`)));
console.log(JSON.stringify({ again: results.flat() }));
