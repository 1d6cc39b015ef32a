"""Ask a model, and print its answer."""

import litellm

print(
    litellm.completion("anthropic/claude-sonnet-4-5", [{"role": "user", "content": "Say hello."}])
    .choices[0]
    .message.content
)
