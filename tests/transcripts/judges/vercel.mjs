// The AI SDK's own validator and its conversion to what a model is asked; and UI messages of many shapes. The SDK has no
// constructors: it makes UI messages out of a stream of parts, so that is how they are made here.
export async function judge(found) {
  const { safeValidateUIMessages, convertToModelMessages, readUIMessageStream, createUIMessageStream } = await found("ai");

  async function validate(messages) {
    const result = await safeValidateUIMessages({ messages });
    if (!result.success) throw result.error;
    return result.data;
  }

  async function streamed(chunks) {
    let last;
    const stream = createUIMessageStream({
      execute: ({ writer }) => chunks.forEach((chunk) => writer.write(chunk)),
    });
    for await (const message of readUIMessageStream({ stream })) last = message;
    return JSON.parse(JSON.stringify(last));
  }

  return {
    validate,
    convert: async (messages) => convertToModelMessages(await validate(messages)),
    generate: async () => {
      const made = {};
      for (const [name, chunks] of Object.entries(streams)) {
        made[name] = await validate([question, await streamed(chunks), { ...question, id: "u2" }]);
      }
      for (const [name, messages] of Object.entries(written)) made[name] = await validate(messages);
      return made;
    },
  };
}

const question = { id: "u1", role: "user", parts: [{ type: "text", text: "Weather?" }] };
const text = (id, words) => [
  { type: "text-start", id },
  ...words.map((delta) => ({ type: "text-delta", id, delta })),
  { type: "text-end", id },
];
const call = (toolCallId, input, more = {}) => [
  { type: "tool-input-start", toolCallId, toolName: "weather", ...more },
  { type: "tool-input-delta", toolCallId, inputTextDelta: JSON.stringify(input) },
  { type: "tool-input-available", toolCallId, toolName: "weather", input, ...more },
];
const whole = (steps, metadata) => [
  { type: "start", messageId: "a1", ...(metadata ? { messageMetadata: metadata } : {}) },
  ...steps.flatMap((step) => [{ type: "start-step" }, ...step, { type: "finish-step" }]),
  { type: "finish" },
];

const streams = {
  words: whole([text("t", ["Hel", "lo."])]),
  "words with metadata": whole([text("t", ["Hello."])], { createdAt: 1, model: "m", dragoman: "not ours" }),
  "without steps": [{ type: "start", messageId: "a1" }, ...text("t", ["Hello."]), { type: "finish" }],
  "a call and its answer": whole([
    [...text("t", ["I look."]), ...call("call_1", { city: "Berlin" }), { type: "tool-output-available", toolCallId: "call_1", output: "Rain." }],
    text("u", ["It rains."]),
  ]),
  "several calls, some without an answer": whole([
    [
      ...call("call_1", { city: "Berlin" }),
      ...call("call_2", {}),
      ...call("call_3", { n: 1.5 }),
      { type: "tool-output-available", toolCallId: "call_2", output: { degrees: [1, 2.5, null] } },
      { type: "tool-output-error", toolCallId: "call_3", errorText: "it timed out" },
    ],
    [...call("call_4", {}), { type: "tool-output-available", toolCallId: "call_4", output: null, preliminary: true }],
  ]),
  "dynamic tools": whole([
    [...call("call_1", { city: "Berlin" }, { dynamic: true }), { type: "tool-output-available", toolCallId: "call_1", output: 7, dynamic: true }],
  ]),
  "a tool that the provider ran": whole([
    [...call("srv_1", { query: "x" }, { providerExecuted: true }), { type: "tool-output-available", toolCallId: "srv_1", output: [1], providerExecuted: true }],
    text("t", ["Found."]),
  ]),
  "a call that was cut": [
    { type: "start", messageId: "a1" },
    { type: "start-step" },
    { type: "tool-input-start", toolCallId: "call_1", toolName: "weather" },
    { type: "tool-input-delta", toolCallId: "call_1", inputTextDelta: '{"city": "Ber' },
  ],
  "an input that is none": whole([
    [{ type: "tool-input-error", toolCallId: "call_1", toolName: "weather", input: '{"city', errorText: "Invalid JSON" }],
  ]),
  reasoning: whole([
    [
      { type: "reasoning-start", id: "r", providerMetadata: { anthropic: { redactedData: "c2VhbGVk" } } },
      { type: "reasoning-end", id: "r" },
      { type: "reasoning-start", id: "s" },
      { type: "reasoning-delta", id: "s", delta: "Hm." },
      { type: "reasoning-end", id: "s", providerMetadata: { anthropic: { signature: "c2ln" } } },
      { type: "reasoning-start", id: "q", providerMetadata: { openai: { itemId: "rs_1", reasoningEncryptedContent: null } } },
      { type: "reasoning-delta", id: "q", delta: "And so." },
      { type: "reasoning-end", id: "q" },
      ...text("t", ["Yes."]),
    ],
  ]),
  "sources, files and data": whole([
    [
      { type: "source-url", sourceId: "s1", url: "https://example.com", title: "Example" },
      { type: "source-document", sourceId: "s2", mediaType: "application/pdf", title: "A paper", filename: "a.pdf" },
      { type: "file", mediaType: "image/png", url: "data:image/png;base64,AAAA" },
      { type: "data-weather", id: "w", data: { city: "Berlin" } },
      ...text("t", ["There."]),
    ],
  ]),
  "an empty step": whole([[], text("t", ["Hello."]), []]),
  "an approval that is asked for": whole([
    [...call("call_1", { city: "Berlin" }), { type: "tool-approval-request", approvalId: "ap_1", toolCallId: "call_1" }],
  ]),
};

const media = ["image/png", "audio/wav", "video/mp4", "application/pdf", "text/plain"];
const part = (state, more) => ({ type: "tool-weather", toolCallId: "call_1", state, input: { city: "Berlin" }, ...more });
const assistant = (...parts) => ({ id: "a1", role: "assistant", parts });
const written = {
  "system and user": [
    { id: "s1", role: "system", parts: [{ type: "text", text: "Be brief." }, { type: "text", text: "No lists." }] },
    { ...question, metadata: null },
    { ...question, id: "u3", metadata: { nested: { a: [1] } } },
  ],
  files: [
    {
      id: "u1",
      role: "user",
      parts: media.flatMap((mediaType) => [
        { type: "file", mediaType, url: `data:${mediaType};base64,AAAA` },
        { type: "file", mediaType, url: "data:application/octet-stream;base64,AAAA", filename: "a.bin" },
        { type: "file", filename: "b.bin", mediaType, url: "https://example.com/b", providerMetadata: { openai: { imageDetail: "low" } } },
        { type: "file", mediaType, url: "https://example.com/c", providerReference: { openai: "file-1" } },
      ]),
    },
  ],
  "data of a user": [{ id: "u1", role: "user", parts: [{ type: "data-place", data: [1, 2] }, { type: "text", text: "Here." }] }],
  "nothing said": [question, assistant()],
  "answers and refusals": [
    question,
    assistant(
      { type: "step-start" },
      part("output-denied", { approval: { id: "ap_1", approved: false, reason: "no" } }),
      { type: "step-start" },
      part("approval-responded", { toolCallId: "call_2", approval: { id: "ap_2", approved: true } }),
      part("output-available", { toolCallId: "call_3", output: "", approval: { id: "ap_3", approved: true }, callProviderMetadata: { google: { thoughtSignature: "zz" } } }),
      part("output-error", { toolCallId: "call_4", errorText: "", rawInput: "[1]", input: undefined }),
      part("input-available", { toolCallId: "call_5", input: "a text" }),
      part("output-available", { toolCallId: "call_6", input: null, output: ["a", { b: 1 }] }),
      part("output-available", { toolCallId: "call_1", output: "again" }),
    ),
  ],
  "text with more": [
    assistant(
      { type: "text", text: "Streaming", state: "streaming", providerMetadata: { openai: { itemId: "msg_1" } } },
      { type: "custom", kind: "openai.compaction" },
      { type: "reasoning-file", mediaType: "image/png", url: "data:image/png;base64,AAAA" },
    ),
  ],
};
