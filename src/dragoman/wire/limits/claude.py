"""Limits of the families of Claude, for every API that serves them.

Sources: platform.claude.com, the pages on models, extended and adaptive thinking, effort, and migration (2026).
"""

from __future__ import annotations

from typing import Any, Final

Families = tuple[tuple[str, dict[str, Any]], ...]
FIRST: Final = r"claude-(?:v?[12]|instant|3-(?:opus|sonnet|haiku))"
WITH_BUDGET: Final = r"claude-(?:3-7|[a-z]+-4(?:-[015]\b|-20|$))"  # reasons with a budget only
WITHOUT_BUDGET: Final = r"claude-(?:[a-z]+-4-[7-9]|[a-z]+-[5-9])"  # decides its reasoning and sampling itself
FAMILIES: Final[Families] = (
    (
        r"claude",
        {
            "output": (1, 128_000),
            "budget": (1_024, 128_000),
            "is_budget_in_output": True,
            "efforts": ("low", "medium", "high", "max"),
            "is_effort_reasoning": False,
            "rejected_beside_reasoning": ("temperature", "top_p", "top_k"),
            "allows_forced_choice_beside_budget": False,
        },
    ),
    (FIRST, {"output": (1, 4_096), "reasons": False}),
    (r"claude-3-5-", {"output": (1, 8_192), "reasons": False}),
    (r"claude-(?:3-7|(?:sonnet|haiku)-4(?:-[05]\b|-20|$)|opus-4-5)", {"output": (1, 64_000)}),
    (r"claude-opus-4(?:-[01]\b|-20|$)", {"output": (1, 32_000)}),
    (WITH_BUDGET, {"has_switch": False, "efforts": ()}),
    (r"claude-opus-4-5", {"efforts": ("low", "medium", "high")}),
    (
        WITHOUT_BUDGET,
        {
            "rejected": ("temperature", "top_p", "top_k"),
            "budget": None,
            "efforts": ("low", "medium", "high", "xhigh", "max"),
        },
    ),
    (r"claude-(?:opus-4-1|[a-z]+-4-[56])", {"one_of_temperature_top_p": True}),
)
