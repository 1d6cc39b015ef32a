"""Versions of a thread: the positions at which several threads of the caller continue one history.

A client that edits a question or asks it again forks the thread before the question. The original and its forks at that
position are the versions of the message after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.ids import name_from_id
from dragoman.server.auth.principal import find_session, get_owned_session, get_principal
from dragoman.server.http.endpoint import chat_endpoint
from dragoman.server.http.requests import app_state
from dragoman.server.http.responses import json_response
from dragoman.store import Session
from dragoman.store.sessions import Segment

_THREAD: Final = "/api/v1/agent/threads/{id}"


class Versions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The versions of one message."""

    seq: int  # position of the message in each of the threads
    threads: list[str]  # the original first, then its forks in the order of their creation
    current: int  # index of the version that the requested thread contains


class ThreadVersions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All messages of a thread with several versions, in order."""

    thread_id: str
    versions: list[Versions]


async def list_versions(request: Request) -> Response:
    """Return the positions at which threads of the caller branch from the history of a thread."""
    store, principal = app_state(request).store, get_principal(request)
    session = await get_owned_session(request, request.path_params["id"])
    segments = await store.lineage(session.id)
    root = await store.get_session(segments[0].session_id)
    if root.parent_session_id is not None:  # a fork before the first message shares no segment with its parent
        segments = [Segment(root.parent_session_id, 1, 0), *segments]
    owners = {segment.session_id: await find_session(store, principal, segment.session_id) for segment in segments}
    forks = await store.list_forks([name for name, owner in owners.items() if owner is not None], principal.owners)
    versions = [
        version
        for place, segment in enumerate(segments)
        if (owner := owners[segment.session_id]) is not None
        for version in _versions_in(segments, place, owner, forks)
    ]
    return json_response(ThreadVersions(thread_id=name_from_id(session.id), versions=versions))


def _versions_in(
    segments: Sequence[Segment], place: int, owner: Session, forks: Sequence[Session]
) -> Iterator[Versions]:
    """Yield the versions of messages that continue the messages of one segment."""
    segment = segments[place]
    ends = sorted({fork.parent_seq for fork in forks if fork.parent_session_id == owner.id})
    for end in ends:
        if end > segment.last:
            return
        siblings = [fork for fork in forks if fork.parent_session_id == owner.id and fork.parent_seq == end]
        threads = [thread for thread in (owner, *siblings) if thread.last_seq > end]
        is_branch = end == segment.last and place + 1 < len(segments)
        current = segments[place + 1].session_id if is_branch else owner.id
        names = [thread.id for thread in threads]
        if len(names) > 1 and current in names:
            yield Versions(seq=end + 1, threads=[name_from_id(name) for name in names], current=names.index(current))


ENDPOINTS = (
    chat_endpoint(
        "GET",
        f"{_THREAD}/versions",
        list_versions,
        "The messages of a thread that have several versions, and the threads with these versions",
        {200: ThreadVersions},
    ),
)
