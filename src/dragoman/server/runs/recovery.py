"""End the runs of dead workers, after their threads are consistent.

    await end_expired_run(state, run)        called at start-up, by followers, and before a new run of the thread

An answer is stored at intervals while it arrives, but an event is stored before it is sent. After a crash the events of
a run can therefore contain more of its last answer than the history. Recovery stores this text in the history, then
ends the answer as the next turn would, then stores the last event of the run. Invariants: a client sees the end of a
run only after its thread is consistent; stored content is only extended, never changed.
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
from dragoman.server.runs.agui_encoder import run_error
from dragoman.server.runs.stream_encoder import encode_event
from dragoman.store import Store
from dragoman.store.runs import Run, RunEnd

if TYPE_CHECKING:
    from dragoman.server.state import AppState

_TAIL_LENGTH: Final = 10  # an interrupted answer is among the newest messages


async def end_expired_run(state: AppState, run: Run) -> bool:
    """End a run whose worker has died; whether it has ended now. While a turn can still be active, it has not."""
    store = state.store
    if not run.is_running:
        return True
    if not run.is_expired:
        return False
    try:
        await _store_published_text(store, run)
        await state.agent.recover(run.session_id)
    except ConflictError:  # the lease of the turn has not expired
        return False
    except UnknownSessionError:
        return True
    await store.runs.fail_expired(run, _interruption_event(store))
    return True


async def end_lost_run(store: Store, run: Run) -> None:
    """End a run of this worker that was not published to its end."""
    current = await store.runs.get(run.session_id, run.run_id)
    if current is not None and current.is_running:
        events = [_interruption_event(store)]
        await store.runs.end(current, current.last_number, events, RunEnd("error"))


def _interruption_event(store: Store) -> str:
    message = "The server stopped during the run. The partial answer is stored."
    return encode_event(run_error("interrupted", message, int(store.clock().timestamp() * 1000)))


async def _store_published_text(store: Store, run: Run) -> None:
    """Store the text of the last answer that the run has published."""
    async with store.turns.lease(run.session_id):
        for row in await store.tail(run.session_id, _TAIL_LENGTH):
            metadata = row.message.metadata
            if metadata.status is MessageStatus.PARTIAL and metadata.run_id == run.run_id:
                merged = merge_published_text(row.message, await _load_events(store, run))
                if merged != row.message:
                    await store.turns.save_partial(run.session_id, merged)  # the end of the answer syncs it


async def _load_events(store: Store, run: Run) -> list[dict[str, Any]]:
    """All events of a run."""
    after, result = run.first_number - 1, list[dict[str, Any]]()
    while events := (await store.runs.events(run.session_id, after)).events:
        result.extend(msgspec.json.decode(event.json) for event in events if event.run_id == run.run_id)
        after = events[-1].number
    return result


_DELTA_TYPES: Final = {"TEXT_MESSAGE_CONTENT": TextDelta, "REASONING_MESSAGE_CONTENT": ThinkingDelta}


def merge_published_text(message: Message, events: Iterable[Mapping[str, Any]]) -> Message:
    """An interrupted answer with all its published text."""
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
    """The blocks of an answer from its published events."""
    accumulator, places = Accumulator(), dict[str, int]()
    for event in events:
        for stream_event in _to_stream_events(event, message_id, places):
            accumulator.add(stream_event)
    return accumulator.reply().content


def _to_stream_events(event: Mapping[str, Any], message_id: str, places: dict[str, int]) -> Iterable[StreamEvent]:
    """The stream events that an AG-UI event was encoded from."""
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
