"""Features of Converse: shared fields, its limits, and those of the families of its models.

Sources of the limits: the API reference of Converse and the user guide of Amazon Bedrock (2026).
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.bedrock_converse.mappings import TIERS
from dragoman.wire.limits import CLAUDE_FAMILIES, Limits, LimitTable
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
LIMITS: Final = LimitTable(
    "bedrock_converse",
    Limits(
        service_tiers=TIERS,
        ranges={"temperature": (0, 1), "top_p": (0, 1)},
        allows_blank_stop=False,
        needs_schema_type=True,
        output=(1, 128_000),
        allows_empty_text=False,
        allows_blank_text=False,
        starts_with_user="always",
        media_types={"image": ("image/jpeg", "image/png", "image/gif", "image/webp")},
    ),
    (
        *CLAUDE_FAMILIES,
        (r"claude", {"ends_with_user": True}),
        (r"amazon\.nova", {"efforts": ("low", "medium", "high")}),
        (r"amazon\.nova-(?:micro|lite|pro|premier)-v1", {"reasons": False, "output": (1, 10_000)}),
        (r"openai\.", {"efforts": ("low", "medium", "high"), "has_switch": False, "can_disable": False}),
    ),
)
