"""Print what an answer costs."""

import litellm

print(
    litellm.completion_cost(
        litellm.completion("anthropic/claude-sonnet-4-5", [{"role": "user", "content": "Say hello."}])
    )
)
