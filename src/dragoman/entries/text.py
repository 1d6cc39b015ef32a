"""Entries as text for a model, and truncation of long texts.

    describe_entry(entry)            "Error (ConnectionError):\\nConnection failed"
    describe_entry(entry, LIMITS)    the same with truncated parts, and the number of removed characters

Invariant: the text depends on the entry alone, because prompt caches compare it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.entries import types
from dragoman.entries.types import Entry

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

_HEADS: Final = {
    types.USER_MESSAGE: "The user",
    types.ASSISTANT_MESSAGE: "The answer to the user",
    types.TASK: "Task",
    types.OBSERVATION: "Observation",
    types.FINAL: "Final answer",
    types.STRATEGIC_PLAN: "Strategic plan",
    types.SUGGESTED_PLAN: "Suggested plan",
    types.SCRIPT_PLAN: "Script plan",
    types.SCRIPT_INSTRUCTION: "Script instruction",
    types.DIRECTOR_CONTEXT: "Context",
    types.INJECTED_CONTEXT: "Context",
}
_LIMIT_OF: Final = {types.ACTION: "tool_args"}  # the name of a limit, if it differs from the type

NO_LIMITS: Final[Mapping[str, int]] = {}


def describe_entry(entry: Entry, limits: Mapping[str, int] = NO_LIMITS, speaker: str | None = None) -> tuple[str, int]:
    """Return an entry with a heading, and the number of removed characters."""
    body, removed = entry_text(entry, limits)
    head = _head(entry)
    return f"{f'{speaker}: {head}' if speaker else head}:\n{body}", removed


def entry_text(entry: Entry, limits: Mapping[str, int] = NO_LIMITS) -> tuple[str, int]:
    """Return the content of an entry as text, and the number of removed characters."""
    match entry["type"]:
        case types.ACTION:
            text = to_text(entry["args"])
        case types.DELEGATION:
            text = entry["task"]
        case _:
            text = to_text(entry["content"])
    kind: str = entry["type"]
    limit = limits.get(_LIMIT_OF.get(kind, kind))
    if limit is None:
        return text, 0
    return truncate(text, limit), max(0, len(text) - limit)


def to_text(content: Any) -> str:
    """Return a text unchanged and any other value as JSON."""
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def _head(entry: Entry) -> str:
    match entry["type"]:
        case types.ACTION:
            return f"Call of {entry['tool']}"
        case types.DELEGATION:
            return f"Delegated to {entry['worker']}"
        case types.ERROR:
            return f"Error ({entry['error_type']})" if entry.get("error_type") else "Error"
        case types.SYNTHESIS:
            return f"Synthesis by {entry['from_manager']}"
        case types.GLOBAL_OBSERVATION:
            title = f"Broadcast by {entry['from_worker']}" if entry.get("from_worker") else "Broadcast"
            return f"{title} ({entry['summary']})" if entry.get("summary") else title
        case kind:
            return _HEADS[str(kind)]


def truncate(text: str, limit: int) -> str:
    """Truncate a text and append the number of removed characters."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[TRUNCATED: {len(text) - limit} chars removed]"
