"""One route, described: how it is asked and what it answers. The routes and the OpenAPI document come from this.

    ENDPOINTS = (
        Endpoint("GET", "/api/v1/agent/threads", list_threads, name="list_threads", summary="The caller's threads",
                 query=(Query("limit", {"type": "integer", "minimum": 1}),), answers={200: Threads}),
    )

``asks`` and each of ``answers`` is a msgspec type, a JSON schema, ``Media`` for what is not JSON, ``EventStream`` for
server-sent events, several of these in a tuple, or ``None`` for no body. A parameter of the path is a text in braces.
The one rule: what is not in these values is not served.
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
    """A parameter of the query."""

    name: str
    schema: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "string"})
    summary: str = ""
    required: bool = False


class Endpoint:
    """One route."""

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
        self.scope = scope  # what a key has to have besides; 403 for one that has not
        self.public = public  # anybody may ask, without a key
        self.description = description
