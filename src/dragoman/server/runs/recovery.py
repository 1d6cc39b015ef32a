"""What a worker that died has left: its runs are ended, after their threads were put in order.

    await end_expired_run(doors, run)        by whoever notices: at the start, when somebody follows, when somebody asks

What the run had told of its last answer is put into the history first, then the answer is ended as the next turn would
end it, and last of all the run gets its event. The one rule: nobody is told that a run is over while its thread is not
in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import ConflictError, UnknownSessionError
from dragoman.message import MessageStatus
from dragoman.server.runs.agui_encoder import run_error
from dragoman.server.runs.framing import encode_event
from dragoman.server.runs.seen import merge_published_text
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
    await store.runs.fail_expired(run, _interrupted_event(store))
    return True


async def end_lost_run(store: Store, run: Run) -> None:
    """End a run of this worker that could not be told to its end."""
    current = await store.runs.get(run.session_id, run.run_id)
    if current is not None and current.is_running:
        events = [_interrupted_event(store)]
        await store.runs.append(run.session_id, run.run_id, current.last_number, events, end=RunEnd("error"))


def _interrupted_event(store: Store) -> str:
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
