"""A conversation of two questions, without asyncio."""

import litellm

messages = [{"role": "user", "content": "My name is Ada."}]
first = litellm.completion("anthropic/claude-sonnet-4-5", messages)
messages += [
    {"role": "assistant", "content": first.choices[0].message.content},
    {"role": "user", "content": "What is my name?"},
]
print(litellm.completion("anthropic/claude-sonnet-4-5", messages).choices[0].message.content)
