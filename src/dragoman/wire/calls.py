"""Pair the calls of a history with their results, as every API requires.

    replace_invalid_calls(messages, report) -> messages
    pair_calls(messages, report) -> messages
    read_partial_object('{"path": "a", "mode": "re') -> {"path": "a", "mode": "re"}

Each call is followed by its one result. A call without a result gets an error result, a result without a call becomes
a text, and a call with an invalid input becomes a call with the part of its input that can be read, or a text.
Invariants: no text and no valid input is changed or left out. Every member of a partial input was in its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from dragoman.errors import JsonError
from dragoman.jsontext import OWN, read_json
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.wire.limits import Report
from dragoman.wire.residue import get_notes

_CALLS: Final = (ToolUseBlock, InvalidToolUseBlock)
_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
NO_RESULT: Final = "This call has no result."
Messages = tuple[Message, ...]
_CLOSERS: Final = {"{": "}", "[": "]"}
_MAX_CUTS: Final = 64  # places to cut an input at, from its end


# --- invalid calls ---------------------------------------------------------------------------------------------------


def replace_invalid_calls(messages: Messages, report: Report) -> Messages:
    """Return the messages without invalid calls.

    The result of such a call has the reason why it was not run; a call without a result gets one.
    """
    if not any(type(block) is InvalidToolUseBlock for message in messages for block in message.content):
        return messages
    answered = {b.tool_use_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)}
    replaced: list[Message] = []
    for message in messages:
        invalid = [block for block in message.content if isinstance(block, InvalidToolUseBlock)]
        if not invalid:
            replaced.append(message)
            continue
        content = tuple(_replace_invalid(block, message, report) for block in message.content)
        replaced.append(msgspec.structs.replace(message, content=content))
        calls = {block.id for block in content if isinstance(block, ToolUseBlock)}
        replaced.extend(
            make_result(message, block.id, invalid_text(block))
            for block in invalid
            if block.id in calls and block.id not in answered
        )
    return tuple(replaced)


def invalid_text(block: InvalidToolUseBlock) -> str:
    """Return the result of an invalid call."""
    return f"The input of this call is invalid, and it was not run: {block.reason}"


def _replace_invalid(block: ContentBlock, message: Message, report: Report) -> ContentBlock:
    if not isinstance(block, InvalidToolUseBlock):
        return block
    value = read_partial_object(block.input_text)
    if not value:
        report.adjust(block.type, "the call becomes a text: nothing of its input can be read", message)
        return TextBlock(f"[invalid call of {block.name}: {block.input_text or 'no input'}]")
    report.adjust(block.type, "the call has the part of its input that can be read", message)
    notes = get_notes(block.provider_raw, report.dialect)
    raw = {"dialect": report.dialect, "id": notes["id"]} if "id" in notes else None
    return ToolUseBlock(block.id, block.name, value, raw)


def make_result(message: Message, call_id: str, text: str) -> Message:
    """Return a message with a result for a call of this message. It has no error flag: not every API has one."""
    result = ToolResultBlock(call_id, (TextBlock(text),))
    metadata = MessageMetadata(parent_tool_use_id=call_id)
    return Message(f"{message.id}:{call_id}", message.session_id, _TOOL, (result,), metadata, message.created_at)


# --- pairs -----------------------------------------------------------------------------------------------------------


def pair_calls(messages: Messages, report: Report) -> Messages:
    """Return the messages with each result behind its call."""
    return messages if _are_paired(messages) else _Pairs(messages, report).messages()


def _are_paired(messages: Iterable[Message]) -> bool:
    open_ids: set[str] = set()
    for message in messages:
        role = message.role
        if role is _TOOL:
            for block in message.content:
                if type(block) is not ToolResultBlock or block.tool_use_id not in open_ids:
                    return False
                open_ids.remove(block.tool_use_id)
            continue
        if open_ids:
            return False
        if role is _ASSISTANT:
            for block in message.content:
                if type(block) in _CALLS:
                    if block.id in open_ids:  # type: ignore[union-attr]
                        return False
                    open_ids.add(block.id)  # type: ignore[union-attr]
    return not open_ids


class _Pairs:
    """The results of a history by call, and how they are placed."""

    def __init__(self, messages: Messages, report: Report) -> None:
        self._messages = messages
        self._report = report
        self._positions: dict[str, list[tuple[int, int]]] = {}  # of the results of a call: message and block
        for number, message in enumerate(messages):
            for index, block in enumerate(message.content):
                if isinstance(block, ToolResultBlock):
                    self._positions.setdefault(block.tool_use_id, []).append((number, index))
        self._placed: set[tuple[int, int]] = set()
        self._answered: set[str] = set()  # calls with a result

    def messages(self) -> Messages:
        """Return the messages, each result behind its call."""
        placed: list[Message] = []
        for number, message in enumerate(self._messages):
            if message.role is _TOOL:
                placed.extend(self._place_rest(number, message))
                continue
            placed.append(message)
            if message.role is _ASSISTANT:
                calls = dict.fromkeys(block.id for block in message.content if isinstance(block, ToolUseBlock))
                placed.extend(self._place_results(number, message, calls))
        return tuple(placed)

    def _place_results(self, number: int, message: Message, calls: Iterable[str]) -> list[Message]:
        """Return the results of these calls in their order in the history, and then those that are missing."""
        found: list[tuple[int, int]] = []
        missing: list[Message] = []
        for call_id in calls:
            unplaced = (place for place in self._positions.get(call_id, ()) if place not in self._placed)
            place = next(unplaced, None)
            if place is None:
                self._report.adjust("tool_result", "a result is added: the call has none", message)
                missing.append(make_result(message, call_id, NO_RESULT))
            else:
                found.append(place)
                self._answered.add(call_id)
        self._placed.update(found)
        return [*(self._take_result(place, number) for place in sorted(found)), *missing]

    def _take_result(self, place: tuple[int, int], call_number: int) -> Message:
        number, index = place
        message = self._messages[number]
        between = self._messages[min(number, call_number) + 1 : max(number, call_number)]
        if number < call_number or any(other.role is not _TOOL for other in between):
            self._report.adjust("tool_result", "the result is moved to its call", message)
        is_alone = len(message.content) == 1
        return message if is_alone else msgspec.structs.replace(message, content=(message.content[index],))

    def _place_rest(self, number: int, message: Message) -> list[Message]:
        """Return the results of a message that belong to no call, as texts of the user."""
        content: list[ContentBlock] = []
        for index, block in enumerate(message.content):
            if (number, index) in self._placed:
                continue
            if isinstance(block, ToolResultBlock):
                reason = "has a result already" if block.tool_use_id in self._answered else "is missing"
                self._report.adjust("tool_result", f"the result becomes a text: its call {reason}", message)
                content.append(TextBlock(f"[result of the tool call {block.tool_use_id}]"))
                content.extend(block.content)
            else:
                content.append(block)
        if not content:
            return []
        metadata = MessageMetadata(critical=message.metadata.critical)
        return [msgspec.structs.replace(message, role=_USER, content=tuple(content), metadata=metadata)]


# --- partial inputs --------------------------------------------------------------------------------------------------


def read_partial_object(text: str) -> dict[str, Any]:
    """Return the object of a text that is cut off or malformed, as far as it can be read; empty if it cannot."""
    for candidate in _candidates(text):
        try:
            value = read_json(candidate, OWN)
        except (JsonError, ValueError):
            continue
        if isinstance(value, dict) and value:
            return value
    return {}


def _candidates(text: str) -> Iterator[str]:
    """Yield texts that may be JSON: the text, the text with its ends closed, and with its last members left out."""
    yield text
    cuts: list[tuple[int, str]] = []  # before a comma or after an opening bracket, and what closes it there
    open_brackets: list[str] = []
    string_start: int | None = None
    index = 0
    while index < len(text):
        character = text[index]
        if string_start is not None:
            index += character == "\\"
            string_start = None if character == '"' else string_start
        elif character == '"':
            string_start = index
        elif character in _CLOSERS:
            open_brackets.append(_CLOSERS[character])
            cuts.append((index + 1, _join(open_brackets)))
        elif character == ",":
            cuts.append((index, _join(open_brackets)))
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
            if not open_brackets:  # complete; text behind it is left out
                yield text[: index + 1]
                break
        index += 1
    if string_start is not None:
        yield from (_close_string(text, length) + _join(open_brackets) for length in range(7))
    yield text + _join(open_brackets)
    yield from (text[:at] + closers for at, closers in reversed(cuts[-_MAX_CUTS:]))


def _close_string(text: str, dropped: int) -> str:
    """Close a string; an escape at its end may be incomplete, so some characters are dropped."""
    return text[: len(text) - dropped] + '"'


def _join(open_brackets: list[str]) -> str:
    return "".join(reversed(open_brackets))
