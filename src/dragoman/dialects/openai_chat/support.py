"""The shared fields that Chat Completions has."""

from __future__ import annotations

from typing import Final

from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://platform.openai.com/docs/api-reference/chat/create",
    request=frozenset(
        {
            "n",
            "logprobs",
            "top_logprobs",
            "verbosity",
            "store",
            "metadata",
            "safety_identifier",
            "prompt_cache_key",
            "modalities",
            "tool_choice.allowed",
            "response_format.description",
            "tool.strict",
            "tool.grammar",
            "image.detail",
        }
    ),
    reply=frozenset({"alternatives", "text.citations", "text.token_logprobs"}),
    reasons={
        "text.citations": "this API accepts no citations in a request",
        "block.cache_hint": "this API caches prompts on its own",
        "tool.cache_hint": "this API caches prompts on its own",
        "cache_hint": "this API caches prompts on its own",
    },
)
