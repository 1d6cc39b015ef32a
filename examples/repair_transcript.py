"""Repair a conversation that every provider rejects, and send it to another provider than the one it came from."""

import dragoman

SAVED = {
    "model": "gpt-4o",
    "messages": [
        {"role": "user", "content": "What is a ULID?"},
        {
            "role": "assistant",
            "content": "I will look it up.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}],
        },
        # The program crashed here, before the tool returned. The user asked again:
        {"role": "user", "content": "Are you there?"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Hello?"},
    ],
}

request = dragoman.dialects.load("openai_chat").read_request(SAVED)
repaired = dragoman.repair(request.messages)
for action in repaired.actions:
    if action.what != "filled in as 'not-recorded'":
        print(f"{action.rule}: {action.what}")

written = dragoman.dialects.load("anthropic").write_request(request.replace(messages=repaired.messages))
for message in written.wire["messages"]:
    print(message["role"], [block["type"] for block in message["content"]])
