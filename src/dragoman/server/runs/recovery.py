"""What a worker that died has left: its runs are ended, after their threads were put in order.

    await end_expired_run(doors, run)        by whoever notices: at the start, when somebody follows, when somebody asks

What the run had told of its last answer is put into the history first, then the answer is ended as the next turn would
end it, and last of all the run gets its event. The one rule: nobody is told that a run is over while its thread is not
in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import ConflictError, UnknownSessionError
from dragoman.event import (
    Accumulator,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from dragoman.message import ContentBlock, Message, MessageStatus, TextBlock, ThinkingBlock
from dragoman.server.http.responses import encode_event
from dragoman.server.runs.agui_encoder import run_error
from dragoman.store import Store
from dragoman.store.runs import Run, RunEnd

if TYPE_CHECKING:
    from dragoman.server.state import AppState

_TAIL_LENGTH: Final = 10  # messages among which an answer is that broke off


async def end_expired_run(state: AppState, run: Run) -> bool:
    """End a run whose worker has died; whether it is over now. While a turn may be running there, it is not."""
    store = state.store
    if not run.is_running:
        return True
    if not run.is_expired:
        return False
    try:
        await _store_published_text(store, run)
        await state.agent.recover(run.session_id)
    except ConflictError:  # the right to run a turn there has not expired yet
        return False
    except UnknownSessionError:
        return True
    await store.runs.fail_expired(run, _interruption_event(store))
    return True


async def end_lost_run(store: Store, run: Run) -> None:
    """End a run of this worker that could not be told to its end."""
    current = await store.runs.get(run.session_id, run.run_id)
    if current is not None and current.is_running:
        events = [_interruption_event(store)]
        await store.runs.append(run.session_id, run.run_id, current.last_number, events, end=RunEnd("error"))


def _interruption_event(store: Store) -> str:
    message = "The server could not go on with it. What had arrived is kept."
    return encode_event(run_error("interrupted", message, int(store.clock().timestamp() * 1000)))


async def _store_published_text(store: Store, run: Run) -> None:
    """Put into the history what a run that broke off has told of its last answer."""
    async with store.turns.lease(run.session_id):
        for row in await store.tail(run.session_id, _TAIL_LENGTH):
            metadata = row.message.metadata
            if metadata.status is MessageStatus.PARTIAL and metadata.run_id == run.run_id:
                merged = merge_published_text(row.message, await _load_events(store, run))
                if merged != row.message:
                    await store.update(run.session_id, merged)


async def _load_events(store: Store, run: Run) -> list[dict[str, Any]]:
    """Everything that a run has told."""
    after, result = run.first_number - 1, list[dict[str, Any]]()
    while events := (await store.runs.events(run.session_id, after)).events:
        result.extend(msgspec.json.decode(event.json) for event in events if event.run_id == run.run_id)
        after = events[-1].number
    return result


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
