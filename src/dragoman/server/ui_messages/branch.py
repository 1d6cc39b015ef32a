"""The thread that continues a chat after its client replaced a message.

``useChat`` keeps the id of its chat when it edits a question or requests another answer, and a stored history is
never changed. The server therefore forks the thread before the question. The first thread names the newest fork, and
requests with the id of the chat continue there. The replaced messages stay in the first thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from dragoman.server.auth.principal import Principal, find_session, find_thread
from dragoman.shield import run_to_completion
from dragoman.store import Session, Store

_KEY: Final = "ui_branch"  # in the metadata of the first thread


async def find_branch(store: Store, principal: Principal, chat_id: str) -> Session | None:
    """The thread of a chat, or its newest fork; ``None`` if there is no thread."""
    first = await find_thread(store, principal, chat_id)
    fork_id = None if first is None else first.metadata.get(_KEY)
    fork = await find_session(store, principal, fork_id) if isinstance(fork_id, str) else None
    return fork or first  # the fork may have been deleted


@asynccontextmanager
async def fork_branch(
    store: Store, principal: Principal, chat_id: str, session: Session, seq: int
) -> AsyncIterator[Session]:
    """Fork the current thread of a chat after a position. The chat continues in the fork unless the block raises."""
    fork = await store.fork(session.id, seq)
    try:
        yield fork
    except BaseException:
        await run_to_completion(store.delete_session(fork.id))
        raise
    first = await find_thread(store, principal, chat_id)
    if first is not None:
        await store.change_session(first.id, metadata={**first.metadata, _KEY: fork.id})
