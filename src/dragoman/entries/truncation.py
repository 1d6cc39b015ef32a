"""Truncation of long texts for a model."""

from __future__ import annotations

from typing import Final

# Maximum length in characters, by kind of text.
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
    """Truncate a text and append the number of removed characters."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[TRUNCATED: {len(text) - limit} chars removed]"
