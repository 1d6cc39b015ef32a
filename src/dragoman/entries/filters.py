"""Filters for each kind of agent, completion, and merging of histories.

    for_orchestrator(history)       the newest entries of the conversation
    for_manager(history, …)         the syntheses of the previous phase
    for_worker(history)             actions and observations since the last task
    is_complete(history)            whether the last entries mark the task as done
    merge_entries(group, group, …)  one history in chronological order

Entries are read leniently, with ``get``, because a history may come from another program's table. Invariant: entries
are not changed, and entries of one group keep their order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from dragoman.entries import types
from dragoman.entries.types import (
    CONVERSATION_TYPES,
    EXECUTION_TRACE_TYPES,
    GLOBAL_OBSERVATION,
    SYNTHESIS,
    TURN_MARKERS,
    Entry,
    is_timestamp,
)

CONVERSATION_LIMIT: Final = 8  # entries, not pairs
COMPLETION_TOOL: Final = "complete_task"
COMPLETION_WORDS: Final = ("completed", "success", "done", "finished", "task complete")
_COMPLETION_WINDOW: Final = 10
_WORKER_TYPES: Final = (*EXECUTION_TRACE_TYPES, GLOBAL_OBSERVATION)


def for_orchestrator(history: Iterable[Entry], limit: int = CONVERSATION_LIMIT) -> list[Entry]:
    """Return the newest entries of the conversation."""
    conversation = [entry for entry in history if entry.get("type") in CONVERSATION_TYPES]
    return conversation[max(0, len(conversation) - limit) :]


def for_manager(
    history: Iterable[Entry], phase_id: int | None = None, previous_phase_id: int | None = None
) -> list[Entry]:
    """Return the syntheses of the previous phase: the given one, else the one before ``phase_id``."""
    if previous_phase_id is None and phase_id is not None and phase_id > 0:
        previous_phase_id = phase_id - 1
    if previous_phase_id is None:
        return []
    return [entry for entry in history if entry.get("type") == SYNTHESIS and entry.get("phase_id") == previous_phase_id]


def for_worker(history: Iterable[Entry]) -> list[Entry]:
    """Return actions and observations since the last task; empty without a task."""
    entries = list(history)
    start = _last_task(entries)
    if start is None:
        return []
    return [entry for entry in entries[start + 1 :] if entry.get("type") in _WORKER_TYPES]


def _last_task(entries: Sequence[Entry]) -> int | None:
    places = (place for place in range(len(entries) - 1, -1, -1) if entries[place].get("type") in TURN_MARKERS)
    return next(places, None)


# --- completion ------------------------------------------------------------------------------------------------------


def is_complete(history: Iterable[Entry]) -> bool:
    """Whether one of the last entries of the turn marks the task as done; without a task, of all entries."""
    entries = list(history)
    start = _last_task(entries)
    turn = entries if start is None else entries[start + 1 :]
    return any(map(_marks_completion, turn[-_COMPLETION_WINDOW:]))


def _marks_completion(entry: Entry) -> bool:
    content = entry.get("content")
    match entry.get("type"):
        case types.ACTION:
            return entry.get("tool") == COMPLETION_TOOL
        case types.FINAL:
            summary = content.get("human_readable_summary") if isinstance(content, dict) else content
            return _has_completion_word(summary)
        case types.OBSERVATION:
            return _has_completion_word(content) or _is_marked(content)
        case _:
            return False


def _has_completion_word(text: Any) -> bool:
    return isinstance(text, str) and any(word in text.lower() for word in COMPLETION_WORDS)


def _is_marked(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    result = content.get("result")
    validation = result.get("response_validation") if isinstance(result, dict) else None
    return (
        content.get("completed") is True
        or (isinstance(result, dict) and result.get("completed") is True)
        or (isinstance(validation, dict) and validation.get("complete") is True)
    )


# --- one history of several ------------------------------------------------------------------------------------------


def merge_entries(*groups: Iterable[Entry]) -> list[Entry]:
    """Merge groups in chronological order; entries of the same time in the order of the groups.

    Entries of one group keep their order: a clock that steps back has no effect, and an entry without a time follows
    its predecessor. A group without any time is last.
    """
    streams = [_with_times(number, list(group)) for number, group in enumerate(groups)]
    return [entry for _, _, entry in heapq.merge(*streams, key=lambda item: item[:2])]


def _with_times(number: int, group: list[Entry]) -> Iterator[tuple[float, int, Entry]]:
    current = next((time for entry in group if is_timestamp(time := entry.get("timestamp"))), math.inf)
    for entry in group:
        time = entry.get("timestamp")
        current = time if is_timestamp(time) else current
        yield current, number, entry
