"""What of a history each kind of agent is shown, whether its task is done, and how several histories become one.

    for_orchestrator(history)    what was said to and by the user, the newest of it
    for_manager(history, …)      what the managers of the phase before have put together
    for_worker(history)          what happened since the last task began
    is_complete(history)         whether the last entries say that the task is done
    merged(group, group, …)      one history in the order of time

All of them read an entry leniently, with ``get``: a history may come from anybody's table. The one rule: nothing in an
entry is changed, and entries of one group never change places among themselves.
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
)
from dragoman.entries.validation import is_timestamp

CONVERSATION_LIMIT: Final = 8  # entries, not pairs of them
COMPLETION_TOOL: Final = "complete_task"
COMPLETION_WORDS: Final = ("completed", "success", "done", "finished", "task complete")
_COMPLETION_WINDOW: Final = 10
_WORKER_TYPES: Final = (*EXECUTION_TRACE_TYPES, GLOBAL_OBSERVATION)


def for_orchestrator(history: Iterable[Entry], limit: int = CONVERSATION_LIMIT) -> list[Entry]:
    """The newest entries of the conversation."""
    conversation = [entry for entry in history if entry.get("type") in CONVERSATION_TYPES]
    return conversation[max(0, len(conversation) - limit) :]


def for_manager(
    history: Iterable[Entry], phase_id: int | None = None, previous_phase_id: int | None = None
) -> list[Entry]:
    """What was put together in the phase before: the one that is named, or else the one below this one."""
    if previous_phase_id is None and phase_id is not None and phase_id > 0:
        previous_phase_id = phase_id - 1
    if previous_phase_id is None:
        return []
    return [entry for entry in history if entry.get("type") == SYNTHESIS and entry.get("phase_id") == previous_phase_id]


def for_worker(history: Iterable[Entry]) -> list[Entry]:
    """What was done and observed since the last task began; nothing, where none has begun."""
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
    """Whether one of the last entries of this turn says that the task is done; without a task, of all of them."""
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
    """One history in the order of time; at one time, in the order of the groups.

    The order within a group is its own: a clock that stepped back moves nothing, and an entry without a time stays
    behind the one before it. A group in which nothing has a time comes last.
    """
    streams = [_with_times(number, list(group)) for number, group in enumerate(groups)]
    return [entry for _, _, entry in heapq.merge(*streams, key=lambda one: one[:2])]


def _with_times(number: int, group: list[Entry]) -> Iterator[tuple[float, int, Entry]]:
    current = next((time for entry in group if is_timestamp(time := entry.get("timestamp"))), math.inf)
    for entry in group:
        time = entry.get("timestamp")
        current = time if is_timestamp(time) else current
        yield current, number, entry
