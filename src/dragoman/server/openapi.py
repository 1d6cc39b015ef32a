"""``GET /api/v1/openapi.json``: the endpoints as OpenAPI 3.1, generated from their values."""

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
from dragoman.server.config import address
from dragoman.server.http.endpoint import Body, Endpoint, Media, public_endpoint
from dragoman.server.http.http_errors import ErrorBody
from dragoman.server.http.requests import app_state

_REFS: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::[a-z]+)?\}")


async def get_openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    config = app_state(request).config
    server = address(config) if config.base_url is not None else request.scope.get("root_path") or "/"
    return Response(_encode_document(request.app.state.endpoints, server), media_type="application/json")


@functools.lru_cache(maxsize=4)
def _encode_document(endpoints: tuple[Endpoint, ...], server: str) -> bytes:
    return msgspec.json.encode(make_document(endpoints, server))


def make_document(endpoints: Iterable[Endpoint], server: str = "/") -> dict[str, Any]:
    """The OpenAPI document of these endpoints, for a server at this URL."""
    all_endpoints = tuple(endpoints)
    types = _collect_types(all_endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFS)
    schema_by_id = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in all_endpoints:
        template = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(template, {})[endpoint.method.lower()] = _operation(endpoint, schema_by_id)
    result: dict[str, Any] = _simplify_for_generators(
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
    return result


def _simplify_for_generators(value: Any) -> Any:
    """Replace schema keywords that client generators do not support.

    A tuple becomes a list with a fixed length: generators do not support ``prefixItems``, and openapi-python-client
    crashes on the valid ``items: false``.
    """
    if isinstance(value, list):
        return [_simplify_for_generators(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {name: _simplify_for_generators(item) for name, item in value.items()}
    if isinstance(result.get("prefixItems"), list) and not result.get("items"):
        item_types = result.pop("prefixItems")
        distinct = [item_type for at, item_type in enumerate(item_types) if item_type not in item_types[:at]]
        result["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
        result.update(minItems=len(item_types), maxItems=len(item_types))
    return result


def _collect_types(endpoints: Iterable[Endpoint]) -> list[Any]:
    by_id: dict[int, Any] = {id(ErrorBody): ErrorBody}
    for endpoint in endpoints:
        for body in (endpoint.request_body, *endpoint.responses.values()):
            for item in _split_body(body):
                if not isinstance(item, dict | Media):
                    by_id[id(item)] = item
    return list(by_id.values())


def _split_body(body: Body) -> tuple[Any, ...]:
    if body is None:
        return ()
    return body if isinstance(body, tuple) else (body,)


def _operation(endpoint: Endpoint, schema_by_id: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": endpoint.name, "summary": endpoint.summary}
    if endpoint.description:
        operation["description"] = endpoint.description
    if parameters := _parameters(endpoint):
        operation["parameters"] = parameters
    if endpoint.request_body is not None:
        operation["requestBody"] = {"required": True, "content": _content(endpoint.request_body, schema_by_id)}
    responses = {str(status): _response(status, body, schema_by_id) for status, body in endpoint.responses.items()}
    error = {"description": "Error", "content": _content(ErrorBody, schema_by_id)}
    operation["responses"] = {**responses, "default": error}
    if endpoint.public:
        operation["security"] = []
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    in_query = [
        {
            "name": query.name,
            "in": "query",
            "required": query.required,
            "schema": dict(query.schema),
            **({"description": query.summary} if query.summary else {}),
        }
        for query in endpoint.query
    ]
    return [*in_path, *in_query]


def _response(status: int, body: Body, schema_by_id: dict[int, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if body is not None:
        response["content"] = _content(body, schema_by_id)
    return response


def _content(body: Body, schema_by_id: dict[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for item in _split_body(body):
        match item:
            case Media():
                content[item.media_type] = {} if item.schema is None else {"schema": dict(item.schema)}
            case dict():
                content["application/json"] = {"schema": item}
            case _:
                content["application/json"] = {"schema": schema_by_id[id(item)]}
    return content


ENDPOINTS = (
    public_endpoint(
        "GET", "/api/v1/openapi.json", get_openapi, "This document", {200: {"type": "object"}}, name="openapi"
    ),
)
