// The chat of the AI SDK, without a view: it holds the messages that useChat would show.
//   const { Chat, sdk } = await load("ai")
export async function load(name) {
  const sdk = await import(name);

  class State {
    status = "ready";
    error = undefined;
    constructor(messages) { this.messages = messages; }
    pushMessage(message) { this.messages = [...this.messages, message]; }
    popMessage() { this.messages = this.messages.slice(0, -1); }
    replaceMessage(index, message) { this.messages = this.messages.with(index, structuredClone(message)); }
    snapshot(value) { return structuredClone(value); }
  }

  class Chat extends sdk.AbstractChat {
    constructor({ messages = [], ...options }) { super({ ...options, state: new State(messages) }); }
  }
  return { Chat, sdk };
}

// What a client stores must be what the SDK's own validator accepts.
export async function validated(sdk, messages) {
  const plain = JSON.parse(JSON.stringify(messages));
  if (sdk.safeValidateUIMessages) {
    const result = await sdk.safeValidateUIMessages({ messages: plain });
    if (!result.success) throw result.error;
  } else {
    await sdk.validateUIMessages({ messages: plain });
  }
  return plain;
}
