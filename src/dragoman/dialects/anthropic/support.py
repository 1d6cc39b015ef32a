"""The shared fields that the Messages API has."""

from __future__ import annotations

from typing import Final

from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://docs.claude.com/en/api/messages",
    request=frozenset(
        {
            "cache_hint",
            "block.cache_hint",
            "tool.cache_hint",
            "tool.strict",
            "tool.defer_loading",
            "tool_choice.allowed",
            "reasoning.summary",
            "safety_identifier",
            "text.citations",
            "document.context",
            "document.cite",
        }
    ),
    reply=frozenset({"text.citations", "stop_details"}),
)
