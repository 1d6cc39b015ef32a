"""The shared fields that Cohere's chat has."""

from __future__ import annotations

from typing import Final

from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://docs.cohere.com/reference/chat",
    request=frozenset({"logprobs", "tool.strict", "tool_choice.allowed"}),
    reply=frozenset({"text.citations"}),
    reasons={
        "top_logprobs": "this API returns the probability of the chosen token only",
        "text.token_logprobs": "this API returns the probabilities of token numbers, not of texts",
        "text.citations": "citations of this API belong to answers, not to requests",
    },
)
