"""What clients have seen of an answer that a crash cut off, put back into the history.

A growing answer is stored from time to time; what a run tells is stored before it is shown. So after a crash the events
of a run know more of its last answer than the history does. Nothing that somebody has read may be missing there. The
one rule: what the history has stays as it is; only what is longer in the events is taken from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dragoman.event import (
    Accumulator,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from dragoman.message import ContentBlock, Message, TextBlock, ThinkingBlock

_DELTA_TYPES: Final = {"TEXT_MESSAGE_CONTENT": TextDelta, "REASONING_MESSAGE_CONTENT": ThinkingDelta}


def merge_published_text(message: Message, events: Iterable[Mapping[str, Any]]) -> Message:
    """An answer that broke off, with everything that a run told of it."""
    published = published_content(message.id, events)
    content = tuple(
        _longer_text(stored, published[at]) if at < len(published) else stored
        for at, stored in enumerate(message.content)
    )
    return message.replace(content=(*content, *published[len(content) :]))


def _longer_text(stored: ContentBlock, published: ContentBlock) -> ContentBlock:
    is_text = isinstance(stored, TextBlock | ThinkingBlock) and type(stored) is type(published)
    if is_text and len(published.text) > len(stored.text):  # type: ignore[union-attr]
        return stored.replace(text=published.text)  # type: ignore[union-attr]
    return stored


def published_content(message_id: str, events: Iterable[Mapping[str, Any]]) -> tuple[ContentBlock, ...]:
    """The blocks of an answer, as far as they were told."""
    accumulator, places = Accumulator(), dict[str, int]()
    for event in events:
        for stream_event in _to_stream_events(event, message_id, places):
            accumulator.add(stream_event)
    return accumulator.reply().content


def _to_stream_events(event: Mapping[str, Any], message_id: str, places: dict[str, int]) -> Iterable[StreamEvent]:
    """What an event says of the answer, in the words that it was made from."""
    match event:
        case {"type": "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT" as kind, "messageId": name, "delta": delta}:
            if name.partition(".")[0] == message_id:
                yield _DELTA_TYPES[kind](places.setdefault(name, len(places)), delta)
        case {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name, "parentMessageId": parent}:
            if parent.partition(".")[0] == message_id:
                places[call_id] = len(places)
                yield ToolUseStart(places[call_id], call_id, name)
        case {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta} if call_id in places:
            yield ToolUseInputDelta(places[call_id], delta)
        case {"type": "TOOL_CALL_END", "toolCallId": call_id} if call_id in places:
            yield ToolUseEnd(places[call_id])
        case _:
            pass
