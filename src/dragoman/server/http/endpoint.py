"""The description of an endpoint. The routes and the OpenAPI document are generated from it.

    ENDPOINTS = (
        Endpoint("GET", "/api/v1/agent/threads", list_threads, name="list_threads", summary="The caller's threads",
                 query=(Query("limit", {"type": "integer", "minimum": 1}),), responses={200: Threads}),
    )

``request_body`` and each of ``responses`` is a msgspec type, a JSON schema, ``Media`` for a body that is not JSON,
``EventStream`` for server-sent events, a tuple of these, or ``None`` for no body. A path parameter is a name in braces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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


class Endpoint:
    """A route and its description."""

    __slots__ = (
        "description",
        "handler",
        "method",
        "name",
        "path",
        "public",
        "query",
        "request_body",
        "responses",
        "scope",
        "summary",
    )

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        name: str,
        summary: str,
        responses: Mapping[int, Body],
        request_body: Body = None,
        query: tuple[Query, ...] = (),
        scope: str | None = None,
        public: bool = False,
        description: str = "",
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self.name = name
        self.summary = summary
        self.responses = responses
        self.request_body = request_body
        self.query = query
        self.scope = scope  # required scope; 403 without it
        self.public = public  # needs no key
        self.description = description
