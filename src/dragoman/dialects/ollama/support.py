"""The shared fields that Ollama's chat has."""

from __future__ import annotations

from typing import Final

from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://docs.ollama.com/api/chat",
    request=frozenset({"logprobs", "top_logprobs", "tool_choice.allowed"}),
    reply=frozenset({"text.token_logprobs"}),
    reasons={
        "block.cache_hint": "this API caches prompts on its own",
        "tool.cache_hint": "this API caches prompts on its own",
        "cache_hint": "this API caches prompts on its own",
        "metadata": "this API keeps no answers and no labels",
        "store": "this API keeps no answers",
    },
)
