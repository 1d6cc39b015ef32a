// A conversation with a file, a tool of the client, an approval, a question of the model and another answer.
//   node conversation.mjs PACKAGE API PICTURE
import { load, validated } from "./chat.mjs";

const [name, api, picture] = process.argv.slice(2);
const { Chat, sdk } = await load(name);
const hasApprovals = name !== "ai-5";
const weather = {
  description: "The weather in a city",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const finishes = [];
const statuses = [];
const chat = new Chat({
  id: "chat-of-the-sdk",
  transport: new sdk.DefaultChatTransport({ api, body: { tools: { get_weather: weather } } }),
  sendAutomaticallyWhen: (it) =>
    sdk.lastAssistantMessageIsCompleteWithToolCalls(it) ||
    (hasApprovals && sdk.lastAssistantMessageIsCompleteWithApprovalResponses(it)),
  onToolCall: ({ toolCall }) => {
    if (toolCall.toolName !== "get_weather") return;
    const output = { city: toolCall.input.city, warm: 21 };
    void chat.addToolOutput({ tool: "get_weather", toolCallId: toolCall.toolCallId, output });
  },
  onFinish: ({ finishReason, isError }) => finishes.push(isError ? "error" : finishReason),
  onError: (error) => { statuses.push(`error: ${error.message}`); },
});
const settled = async () => {
  do await new Promise((done) => setTimeout(done, 20)); while (["submitted", "streaming"].includes(chat.status));
};
const last = () => chat.messages.at(-1);
const call = (state) => last().parts.find((part) => part.toolCallId && part.state === state);

await chat.sendMessage({ text: "What is this?", files: [{ type: "file", mediaType: "image/jpeg", filename: "dot.jpg", url: picture }] });
await chat.sendMessage({ text: "How warm is it in Berlin?" });
await settled();
while (!last().parts.some((part) => part.type === "text" && part.text.includes("degrees"))) await settled();

const answers = [];
if (hasApprovals) {
  for (const approved of [true, false]) {
    await chat.sendMessage({ text: "Delete it." });
    const waiting = call("approval-requested");
    await chat.addToolApprovalResponse({ id: waiting.approval.id, approved, reason: approved ? undefined : "Not today." });
    await settled();
    answers.push(last().parts.map((part) => part.state ?? part.type));
  }
}
await chat.sendMessage({ text: "Ask me." });
const question = call("input-available");
await chat.addToolOutput({ tool: "ask_user", toolCallId: question.toolCallId, output: { size: "M", count: 2 } });
await settled();

const before = last().id;
await chat.regenerate();
const edited = chat.messages.findLast((message) => message.role === "user").id;
await chat.sendMessage({ text: "Another question.", messageId: edited });
await validated(sdk, chat.messages);
const { messages: stored } = await (await fetch(`${api}/${chat.id}/messages`)).json();
await validated(sdk, stored);
console.log(JSON.stringify({ messages: chat.messages, stored, finishes, statuses, answers, isNew: last().id !== before }));
