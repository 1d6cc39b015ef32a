"""Continue a conversation with the model of another provider."""

import litellm

messages = [{"role": "user", "content": "Propose a name."}]
first = litellm.completion("anthropic/claude-sonnet-4-5", messages)
messages += [
    {"role": "assistant", "content": first.choices[0].message.content},
    {"role": "user", "content": "Argue against it."},
]
print(litellm.completion("openai/gpt-4o", messages).choices[0].message.content)
