"""The shared fields that generateContent has."""

from __future__ import annotations

from typing import Final

from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://ai.google.dev/api/generate-content",
    request=frozenset(
        {"n", "logprobs", "top_logprobs", "modalities", "tool_choice.allowed", "reasoning.summary", "tool.strict"}
    ),
    reply=frozenset({"alternatives", "text.citations", "text.token_logprobs", "stop_details"}),
    reasons={
        "block.cache_hint": "this API caches prompts on its own",
        "tool.cache_hint": "this API caches prompts on its own",
        "cache_hint": "this API caches prompts on its own",
        "text.citations": "this API accepts no citations in a request",
    },
)
