"""The description of an endpoint. The routes and the OpenAPI document are generated from it.

    ENDPOINTS = (
        chat_endpoint("GET", "/api/v1/agent/threads", list_threads, "The caller's threads", {200: Threads},
                      query=(Query("limit", {"type": "integer", "minimum": 1}),)),
    )

``request_body`` and each of ``responses`` is a msgspec type, a JSON schema, ``Media`` for a body that is not JSON,
``EventStream`` for server-sent events, a tuple of these, or ``None`` for no body. A path parameter is a name in braces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]


class Media(msgspec.Struct, frozen=True):
    """A body that is not JSON."""

    media_type: str
    schema: Mapping[str, Any] | None = None


EventStream = Media("text/event-stream", {"type": "string"})
Body = Any  # a type, a schema, Media, a tuple of these, or None


class Query(msgspec.Struct, frozen=True):
    """A query parameter."""

    name: str
    schema: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "string"})
    summary: str = ""
    required: bool = False


class Endpoint(msgspec.Struct, eq=False):
    """A route and its description."""

    method: str
    path: str
    handler: Handler
    summary: str
    responses: Mapping[int, Body]
    name: str = ""  # the operation id; by default the name of the handler
    request_body: Body = None
    query: tuple[Query, ...] = ()
    scope: str | None = None  # required scope; 403 without it
    public: bool = False  # needs no key
    description: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            self.name = self.handler.__name__


chat_endpoint = partial(Endpoint, scope="chat")
public_endpoint = partial(Endpoint, public=True)
