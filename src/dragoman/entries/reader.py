"""Convert entries to canonical messages, one for one or as a history for a model.

    messages_from_entries(entries)    a message for each entry; ``entries_from_messages`` restores the entries
    history_from_entries(entries)     valid, without repetitions, long parts truncated; with all losses

An action is a tool call, and so is a delegation (of the tool ``delegate``). An observation is the result of the call
that its ``tool_use_id`` names, or of the oldest open call of the same agent; so is an error while a call is open.
Entries of other agents, plans, contexts and broadcasts become text. Invariant: an invalid entry raises ``FormatError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from dragoman.entries import types
from dragoman.entries.text import LIMITS, NO_LIMITS, describe_entry, entry_text
from dragoman.entries.types import Entry, is_timestamp, validate_entry
from dragoman.exchange import Loss
from dragoman.ids import TOOL_ID, derive_ulid
from dragoman.message import ContentBlock, Message, MessageMetadata, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.repair import repair

UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
DELEGATE: Final = "delegate"  # the tool of a delegation
_SIDES: Final = {
    types.USER_MESSAGE: "user",
    types.TASK: "user",
    types.ASSISTANT_MESSAGE: "assistant",
    types.FINAL: "assistant",
}
MISSING_OBSERVATION: Final = "No observation was recorded for this call."
_PLANS: Final = (types.STRATEGIC_PLAN, types.SCRIPT_PLAN)
_KNOWN_FIELDS: Final = {
    *("type", "content", "tool", "args", "worker", "task", "timestamp", "turn_id", "error_type", "from_worker"),
    *("from_manager", "summary", "tool_use_id", "agent_key", "is_error", "message_id", "model"),
}


class History(msgspec.Struct, frozen=True):
    """Messages for a model, and the losses of the conversion."""

    messages: tuple[Message, ...]
    losses: tuple[Loss, ...] = ()


def messages_from_entries(
    entries: Iterable[Mapping[str, Any]], *, session_id: str = "", agent_key: str | None = None
) -> tuple[Message, ...]:
    """Return a message for each entry, in order. Fields without a place in a message are stored in its metadata.

    With ``agent_key``, entries of other agents become text.
    """
    reader = _EntryReader(session_id, agent_key, NO_LIMITS)
    return tuple(reader.read(_validate(entry, number), number) for number, entry in enumerate(entries))


def _validate(entry: Mapping[str, Any], number: int) -> Entry:
    """Validate an entry and drop optional fields that are null."""
    result = validate_entry(entry, f"entry {number}")
    required = types.SHAPES[result["type"]].required
    return {name: value for name, value in result.items() if value is not None or name in required}


class _EntryReader:
    """Converts entries in order: open calls by agent, and losses."""

    def __init__(self, session_id: str, agent_key: str | None, limits: Mapping[str, int]) -> None:
        self.losses: list[Loss] = []
        self._session_id = session_id
        self._agent_key = agent_key
        self._limits = limits
        self._open: dict[str | None, list[str]] = {}

    def read(self, entry: Entry, number: int) -> Message:
        role, blocks, parent = self._read_content(entry, number)
        is_verbatim = isinstance(entry.get("content"), str) and blocks == (TextBlock(entry["content"]),)
        stored = {name: value for name, value in entry.items() if not (is_verbatim and name == "content")}
        turn_id = entry.get("turn_id")
        metadata = MessageMetadata(
            parent_tool_use_id=parent,
            run_id=turn_id if turn_id else None,
            extra={"entry": stored},
        )
        return Message(self.message_id(number), self._session_id, role, blocks, metadata, entry_time(entry))

    def message_id(self, number: int) -> str:
        """Return the id for the message of an entry. It depends on its position only and increases."""
        return derive_ulid(number + 1, "entry", self._session_id)

    def _read_content(self, entry: Entry, number: int) -> tuple[Role, tuple[ContentBlock, ...], str | None]:
        kind, agent = entry["type"], entry.get("agent_key")
        if self._agent_key is not None and agent not in (None, self._agent_key):
            return Role.USER, (self._describe(entry, number, str(agent)),), None
        match kind:
            case types.USER_MESSAGE | types.TASK:
                self._open.pop(agent, None)  # open calls belong to the previous task
                return Role.USER, (TextBlock(self._text(entry, number)),), None
            case types.ASSISTANT_MESSAGE | types.FINAL:
                return Role.ASSISTANT, (TextBlock(self._text(entry, number)),), None
            case types.ACTION:
                return Role.ASSISTANT, (self._add_call(entry, number, entry["tool"], entry["args"]),), None
            case types.DELEGATION:
                args = entry.get("args")  # the whole input of the call, if the entry was converted from one
                arguments = args if isinstance(args, dict) else {"worker": entry["worker"], "task": entry["task"]}
                return Role.ASSISTANT, (self._add_call(entry, number, DELEGATE, arguments),), None
            case types.OBSERVATION | types.ERROR if (call_id := self._match_call(entry)) is not None:
                is_error = kind == types.ERROR or entry.get("is_error") is True
                result = ToolResultBlock(call_id, (TextBlock(self._text(entry, number)),), is_error)
                return Role.TOOL, (result,), call_id
            case _:
                is_own = kind in _PLANS or (kind == types.SYNTHESIS and entry["from_manager"] == self._agent_key)
                return Role.ASSISTANT if is_own else Role.USER, (self._describe(entry, number),), None

    def _add_call(self, entry: Entry, number: int, tool: str, arguments: dict[str, Any]) -> ToolUseBlock:
        tool_use_id = entry.get("tool_use_id")
        is_ours = isinstance(tool_use_id, str) and TOOL_ID.fullmatch(tool_use_id)
        call_id = str(tool_use_id) if is_ours else f"tu_{self.message_id(number)}"
        self._open.setdefault(entry.get("agent_key"), []).append(call_id)
        return ToolUseBlock(call_id, tool, arguments)

    def _match_call(self, entry: Entry) -> str | None:
        """Return the call that an observation answers."""
        calls = self._open.get(entry.get("agent_key"), [])
        tool_use_id = entry.get("tool_use_id")
        if tool_use_id in calls:
            calls.remove(tool_use_id)
            return str(tool_use_id)
        return calls.pop(0) if calls and tool_use_id is None else None

    def open_calls(self) -> list[str]:
        """The calls without a result."""
        return [call_id for calls in self._open.values() for call_id in calls]

    def _text(self, entry: Entry, number: int) -> str:
        text, removed = entry_text(entry, self._limits)
        self._note_truncation(entry, number, removed)
        return text

    def _describe(self, entry: Entry, number: int, speaker: str | None = None) -> TextBlock:
        text, removed = describe_entry(entry, self._limits, speaker)
        self._note_truncation(entry, number, removed)
        return TextBlock(text)

    def _note_truncation(self, entry: Entry, number: int, removed: int) -> None:
        if removed:
            self.add_loss(entry, number, f"{removed} characters are cut: the text is longer than its limit")

    def add_loss(self, entry: Entry, number: int, reason: str) -> None:
        self.losses.append(Loss(self._session_id, self.message_id(number), entry["type"], "entries", reason))


def entry_time(entry: Entry) -> datetime:
    """Return the time of an entry; 1970-01-01 if it has none or one outside the calendar."""
    time = entry.get("timestamp")
    try:
        return UNKNOWN_TIME + timedelta(seconds=time) if is_timestamp(time) else UNKNOWN_TIME
    except OverflowError:
        return UNKNOWN_TIME


# --- for a model -----------------------------------------------------------------------------------------------------


def history_from_entries(
    entries: Iterable[Mapping[str, Any]],
    *,
    session_id: str = "",
    agent_key: str | None = None,
    limits: Mapping[str, int] = LIMITS,
) -> History:
    """Return a history for a model: it breaks no rule, every call has a result, and nothing is repeated.

    ``limits`` are the maximum lengths by type; an empty dict disables truncation.
    """
    reader = _EntryReader(session_id, agent_key, limits)
    messages: list[Message] = []
    for number, entry in _drop_repetitions([_validate(entry, number) for number, entry in enumerate(entries)]):
        message = reader.read(entry, number)
        if hidden := sorted(entry.keys() - _KNOWN_FIELDS):
            reader.add_loss(entry, number, f"a model does not receive {', '.join(hidden)}")
        _append(messages, message.replace(metadata=message.metadata.replace(extra=None)))
    history = repair([*messages, *_missing_results(messages, reader)]).messages
    return History(history, tuple(reader.losses))


def _drop_repetitions(entries: list[Entry]) -> Iterable[tuple[int, Entry]]:
    """Yield numbered entries without tasks that repeat the user message and answers that repeat the final one."""
    previous: dict[str, tuple[str, Any]] = {}
    for number, entry in enumerate(entries):
        kind = entry["type"]
        side = _SIDES.get(kind)
        if side is not None:
            before = previous.pop(side, None)
            if before is not None and before[0] != kind and before[1] == entry["content"]:
                continue
            previous = {side: (kind, entry["content"])}
        yield number, entry


def _append(messages: list[Message], message: Message) -> None:
    """Append a message. Consecutive assistant messages are merged, so that parallel calls are in one message."""
    last = messages[-1] if messages else None
    if last is not None and last.role is message.role is Role.ASSISTANT:
        messages[-1] = last.replace(content=(*last.content, *message.content))
    else:
        messages.append(message)


def _missing_results(messages: list[Message], reader: _EntryReader) -> Iterable[Message]:
    """Yield a result for each call that is still open, because providers reject a call without one."""
    answered_ids = {message.metadata.parent_tool_use_id for message in messages}
    for place, call_id in enumerate(call for call in reader.open_calls() if call not in answered_ids):
        result = ToolResultBlock(call_id, (TextBlock(MISSING_OBSERVATION),), is_error=True)
        last = messages[-1]
        name = derive_ulid(place, "unanswered", call_id)
        yield Message(
            name, last.session_id, Role.TOOL, (result,), MessageMetadata(parent_tool_use_id=call_id), last.created_at
        )
