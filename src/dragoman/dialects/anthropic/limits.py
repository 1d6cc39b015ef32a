"""Limits of the Messages API, and the default output limit, which it requires.

Sources: platform.claude.com, the API reference and the page on models (2026).
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.wire.limits import Limits, LimitTable, claude

_DEFAULT_OUTPUTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (  # an eighth of the context, if the model allows it
    (r"claude-3-5-", {"default_output": 8_192}),
    (claude.WITH_BUDGET, {"default_output": 25_000}),
    (r"claude-(?:[a-z]+-4-[6-9]|[a-z]+-[5-9])", {"default_output": 125_000, "ends_with_user": True}),
)
TABLE: Final = LimitTable(
    "anthropic",
    Limits(
        service_tiers=("auto", "standard_only"),
        ranges={"temperature": (0, 1), "top_p": (0, 1), "top_k": (0, 1_000_000)},
        rejected_beside_reasoning=("temperature", "top_p", "top_k"),
        is_effort_reasoning=False,
        allows_blank_stop=False,
        needs_schema_type=True,
        default_output=4_096,
        default_output_whole=21_333,  # the provider's SDKs stream longer answers: they take over ten minutes
        budget=(1_024, 128_000),
        is_budget_in_output=True,
        allows_forced_choice_beside_budget=False,
        allows_empty_text=False,
        allows_blank_text=False,
        allows_trailing_space=False,
        media_types={"image": ("image/jpeg", "image/png", "image/gif", "image/webp")},
        url_schemes=("https://", "http://"),
        max_user_length=256,
        max_strict_tools=20,
    ),
    (*claude.FAMILIES, *_DEFAULT_OUTPUTS),
)
