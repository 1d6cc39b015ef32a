"""The shared fields that the Responses API has."""

from __future__ import annotations

from typing import Final

from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://platform.openai.com/docs/api-reference/responses/create",
    request=frozenset(
        {
            "logprobs",
            "top_logprobs",
            "verbosity",
            "store",
            "metadata",
            "safety_identifier",
            "prompt_cache_key",
            "tool_choice.allowed",
            "reasoning.summary",
            "response_format.description",
            "tool.strict",
            "tool.grammar",
            "tool.defer_loading",
            "image.detail",
            "text.citations",
        }
    ),
    reply=frozenset({"text.citations", "text.token_logprobs"}),
    reasons={
        "block.cache_hint": "this API caches prompts on its own",
        "tool.cache_hint": "this API caches prompts on its own",
        "cache_hint": "this API caches prompts on its own",
        "modalities": "this API returns text; images come from its image tool",
    },
)
