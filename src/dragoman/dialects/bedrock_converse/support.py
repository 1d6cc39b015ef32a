"""The shared fields that Converse has."""

from __future__ import annotations

from typing import Final

from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html",
    request=frozenset(
        {
            "cache_hint",
            "block.cache_hint",
            "tool.cache_hint",
            "tool.strict",
            "tool_choice.allowed",
            "metadata",
            "reasoning.summary",
            "text.citations",
            "document.context",
            "document.cite",
            "response_format.description",
        }
    ),
    reply=frozenset({"text.citations"}),
)
