"""Runs over AG-UI: start, follow, reconnect, cancel.

    POST /api/v1/agent/runs                              start a run: a stream of its events, or 202 and its ids
    GET  /api/v1/agent/runs/{threadId}/events            events after Last-Event-ID, then new ones
    POST /api/v1/agent/runs/{threadId}/cancel            cancel the active run; /{runId}/cancel a certain one

In the order of a run: ``run_input`` parses the request, ``turn_request`` finds the new messages and prepares the turn,
``registry`` starts the run, ``publisher`` publishes its events, which ``agui_encoder`` encodes. ``recovery`` ends the
runs of dead workers. Invariant: invalid input is rejected before a stream opens.
"""

from __future__ import annotations

from dragoman.server.runs.endpoints import ENDPOINTS
from dragoman.server.runs.registry import RunRegistry

__all__ = ["ENDPOINTS", "RunRegistry"]
