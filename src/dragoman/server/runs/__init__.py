"""Runs over AG-UI: asked for, followed, left and come back to, cancelled.

    POST /api/v1/agent/runs                              a run: its events as they come, or 202 and its ids
    GET  /api/v1/agent/runs/{threadId}/events            what was told behind Last-Event-ID, and what is being told
    POST /api/v1/agent/runs/{threadId}/cancel            stop the one that runs; /{runId}/cancel a certain one

Rooms, in the order in which a run passes them: ``given`` reads what was sent, ``continuing`` finds what of it is new,
``preparing`` makes a turn of it, ``beginning`` begins it, ``narrating`` tells it in the words of ``telling`` and the
frames of ``framing``. ``running`` has all of them, and ``recovering`` ends what a crash has left. The one rule: bad
input is refused before a stream is opened.
"""

from __future__ import annotations

from dragoman.server.runs.endpoints import ENDPOINTS
from dragoman.server.runs.registry import RunRegistry

__all__ = ["ENDPOINTS", "RunRegistry"]
