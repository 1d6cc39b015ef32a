"""Print an answer as it arrives."""

import litellm

for chunk in litellm.completion(
    "anthropic/claude-sonnet-4-5", [{"role": "user", "content": "Say hello."}], stream=True
):
    print(chunk.choices[0].delta.content or "", end="")
