"""Features of generateContent: shared fields, its limits, and those of the families of Gemini.

Sources of the limits: ai.google.dev, the API reference and the pages on models and thinking (2026).
"""

from __future__ import annotations

from typing import Final

from dragoman.wire.limits import Limits, LimitTable
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
_INT32: Final = 2_147_483_648
LIMITS: Final = LimitTable(
    "gemini",
    Limits(
        service_tiers=("standard", "flex", "priority"),
        ranges={
            "temperature": (0, 2),
            "top_p": (0, 1),
            "top_k": (1, 1_000_000),
            "presence_penalty": (-2, 1.99),
            "frequency_penalty": (-2, 1.99),
            "seed": (-_INT32, _INT32 - 1),
        },
        max_stop_sequences=5,
        output=(1, 65_536),
        efforts=("minimal", "low", "medium", "high"),
        budget=(1, 32_768),
        allows_effort_and_budget=False,
        starts_with_user="before calls",
        media_types={"image": ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")},
    ),
    (
        (r"gemini-(?:1|2\.0)", {"output": (1, 8_192), "reasons": False}),
        (r"gemini-2\.5", {"efforts": ()}),
        (r"gemini-2\.5-flash", {"budget": (1, 24_576)}),
        (r"gemini-2\.5-flash-lite", {"budget": (512, 24_576)}),
        (r"gemini-(?:2\.5|3(?:\.\d)?)-pro", {"budget": (128, 32_768), "can_disable": False}),
        (r"gemini-3(?:\.\d)?-pro", {"efforts": ("low", "high")}),
    ),
    has_result_ids=False,
    may_end_in_reasoning=True,
)
