"""How much of a long text a model is shown, by what the text is, and the words that say how much is missing.

The one rule: what is cut off is counted, in the text itself.
"""

from __future__ import annotations

from typing import Final

# Characters that are shown, by what the text is.
LIMITS: Final = {
    "strategic_plan": 2_000,
    "director_context": 4_000,
    "data_model": 6_000,
    "observation": 1_500,
    "tool_args": 500,
    "previous_output": 5_000,
    "manifest": 6_000,
}


def truncate(text: str, limit: int) -> str:
    """The beginning of a text that is longer than the limit, and how many characters were removed behind it."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[TRUNCATED: {len(text) - limit} chars removed]"
