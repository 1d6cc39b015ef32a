"""``GET /api/v1/openapi.json``: what can be asked, as OpenAPI 3.1, made from the endpoints themselves.

The one rule: nothing is written here by hand that an endpoint's values say.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import dragoman
from dragoman.server.endpoint import Body, Endpoint, Media
from dragoman.server.options import address
from dragoman.server.refusing import ErrorBody
from dragoman.server.state import doors_of

_REFS: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::[a-z]+)?\}")


async def openapi(request: Request) -> Response:
    """The document."""
    options = doors_of(request).options
    server = address(options) if options.base_url is not None else request.scope.get("root_path") or "/"
    return Response(_written(request.app.state.endpoints, server), media_type="application/json")


@functools.lru_cache(maxsize=4)
def _written(endpoints: tuple[Endpoint, ...], server: str) -> bytes:
    return msgspec.json.encode(document(endpoints, server))


def document(endpoints: Iterable[Endpoint], server: str = "/") -> dict[str, Any]:
    """The description of these endpoints of a server at this address."""
    all_of_them = tuple(endpoints)
    types = _types(all_of_them)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFS)
    known = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in all_of_them:
        template = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(template, {})[endpoint.method.lower()] = _operation(endpoint, known)
    made: dict[str, Any] = _for_generators(
        {
            "openapi": "3.1.0",
            "info": {"title": "Dragoman", "version": dragoman.__version__, "summary": "The chat API"},
            "servers": [{"url": server}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "dragoman keys create"}},
            },
            "security": [{"key": []}, {}],
        }
    )
    return made


def _for_generators(value: Any) -> Any:
    """The same document in words that generators of clients know.

    A list of a fixed length is a list of one kind of item with that length: generators have no ``prefixItems``, and
    ``items: false`` behind it, which is valid, ends openapi-python-client.
    """
    if isinstance(value, list):
        return [_for_generators(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {name: _for_generators(item) for name, item in value.items()}
    if isinstance(made.get("prefixItems"), list) and not made.get("items"):
        kinds = made.pop("prefixItems")
        several = [kind for at, kind in enumerate(kinds) if kind not in kinds[:at]]
        made["items"] = several[0] if len(several) == 1 else {"anyOf": several}
        made.update(minItems=len(kinds), maxItems=len(kinds))
    return made


def _types(endpoints: Iterable[Endpoint]) -> list[Any]:
    found: dict[int, Any] = {id(ErrorBody): ErrorBody}
    for endpoint in endpoints:
        for body in (endpoint.asks, *endpoint.answers.values()):
            for one in _each(body):
                if not isinstance(one, dict | Media):
                    found[id(one)] = one
    return list(found.values())


def _each(body: Body) -> tuple[Any, ...]:
    if body is None:
        return ()
    return body if isinstance(body, tuple) else (body,)


def _operation(endpoint: Endpoint, known: dict[int, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"operationId": endpoint.name, "summary": endpoint.summary}
    if endpoint.description:
        made["description"] = endpoint.description
    if parameters := _parameters(endpoint):
        made["parameters"] = parameters
    if endpoint.asks is not None:
        made["requestBody"] = {"required": True, "content": _content(endpoint.asks, known)}
    answers = {str(status): _answer(status, body, known) for status, body in endpoint.answers.items()}
    refused = {"description": "Refused, or failed", "content": _content(ErrorBody, known)}
    made["responses"] = {**answers, "default": refused}
    if endpoint.public:
        made["security"] = []
    return made


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    in_query = [
        {
            "name": one.name,
            "in": "query",
            "required": one.required,
            "schema": dict(one.schema),
            **({"description": one.summary} if one.summary else {}),
        }
        for one in endpoint.query
    ]
    return [*in_path, *in_query]


def _answer(status: int, body: Body, known: dict[int, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if body is not None:
        made["content"] = _content(body, known)
    return made


def _content(body: Body, known: dict[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for one in _each(body):
        match one:
            case Media():
                content[one.media_type] = {} if one.schema is None else {"schema": dict(one.schema)}
            case dict():
                content["application/json"] = {"schema": one}
            case _:
                content["application/json"] = {"schema": known[id(one)]}
    return content


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/openapi.json",
        openapi,
        name="openapi",
        summary="What can be asked, as OpenAPI 3.1",
        answers={200: {"type": "object"}},
        public=True,
    ),
)
