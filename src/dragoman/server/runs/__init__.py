"""Runs over AG-UI: start, follow, reconnect, cancel.

    POST /api/v1/agent/runs                              start a run: a stream of its events, or 202 and its ids
    GET  /api/v1/agent/runs/{threadId}/events            events after Last-Event-ID, then new ones
    POST /api/v1/agent/runs/{threadId}/cancel            cancel the active run; /{runId}/cancel a certain one
    POST /api/v1/agent/connect                           the messages of a thread, then its active run

In the order of a run: ``run_input`` parses the request, ``turn_request`` finds the new messages and prepares the turn,
``registry`` starts the run, ``publisher`` publishes its events, which ``agui_encoder`` encodes. A ``stream_encoder``
encodes stored events for the protocol of a client. ``recovery`` ends the runs of dead workers. Invariant: invalid input
is rejected before a stream opens.
"""

from __future__ import annotations

from dragoman.server.runs import connect, endpoints
from dragoman.server.runs.registry import RunRegistry

ENDPOINTS = (*endpoints.ENDPOINTS, *connect.ENDPOINTS)

__all__ = ["ENDPOINTS", "RunRegistry"]
