"""Features of Cohere's chat API: shared fields, its limits, and those of the families of Command.

Sources of the limits: docs.cohere.com, the API reference and the pages on reasoning and structured outputs (2026).
"""

from __future__ import annotations

from typing import Final

from dragoman.wire.limits import Limits, LimitTable
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
LIMITS: Final = LimitTable(
    "cohere",
    Limits(
        service_tiers=(),
        needs_schema_type=True,
        ranges={
            "temperature": (0, 1_000_000),
            "top_p": (0.01, 0.99),
            "top_k": (0, 500),
            "presence_penalty": (0, 1),
            "frequency_penalty": (0, 1),
            "seed": (0, 18_446_744_073_709_551_615),
        },
        max_stop_sequences=5,
        allows_format_beside_tools=False,
        efforts=(),
        budget=(1, 1_000_000),
        allows_empty_text=False,
        allows_blank_text=False,
        ends_with_user=True,
        system_place="not last",
        media_types={"image": ("image/jpeg", "image/png", "image/gif", "image/webp")},
    ),
    ((r"^command-(?!a-reasoning)", {"reasons": False}),),
)
