"""Limits of the Responses API and of the families of OpenAI's models.

Sources: platform.openai.com, the API reference, the pages on models and the guide to reasoning (2026). Other providers
of the dialect serve models with other names; of those only the ranges hold.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.openai_responses.blocks import TIERS
from dragoman.wire.limits import Limits, LimitTable

OPENAI: Final = r"^(?:gpt-|chatgpt-|o\d|codex)"
REASONING: Final = r"^(?:o\d|gpt-[5-9]|codex)"
WITHOUT_REASONING: Final = r"^(?:gpt-[34]|chatgpt-4)"
TABLE: Final = LimitTable(
    "openai_responses",
    Limits(
        service_tiers=tuple(sorted(TIERS)),
        needs_schema_type=True,
        ranges={"temperature": (0, 2), "top_p": (0, 1)},
        has_switch=False,
        needs_closed_schemas=True,
        media_types={"image": ("image/jpeg", "image/png", "image/gif", "image/webp")},
        url_schemes=("https://", "http://", "data:"),
    ),
    (
        (OPENAI, {"needs_json_word": "not system", "output": (16, 128_000)}),
        (r"^gpt-(?:3\.5|4-turbo)", {"output": (16, 4_096)}),
        (r"^gpt-4o", {"output": (16, 16_384)}),
        (r"^gpt-4\.1", {"output": (16, 32_768)}),
        (WITHOUT_REASONING, {"reasons": False}),
        (
            r"^(?:o\d|gpt-5(?:-(?:mini|nano|pro|codex))?(?:-\d{4}-|$))",
            {"rejected": ("temperature", "top_p"), "can_disable": False},
        ),
        (r"^o\d", {"efforts": ("low", "medium", "high"), "output": (16, 100_000)}),
        (r"^gpt-5(?:-(?:mini|nano))?(?:-\d{4}-|$)", {"efforts": ("minimal", "low", "medium", "high")}),
        (r"^gpt-5-(?:pro|codex)", {"efforts": ("low", "medium", "high")}),
        (
            r"^gpt-(?:5\.|[6-9])",
            {
                "rejected_beside_reasoning": ("temperature", "top_p"),
                "efforts": ("none", "low", "medium", "high", "xhigh"),
            },
        ),
    ),
)
