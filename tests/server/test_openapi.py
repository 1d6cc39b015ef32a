"""Tests of the OpenAPI document: it describes exactly the routes that exist."""

from __future__ import annotations

import re

import jsonschema_rs
from starlette.routing import Route

from dragoman.server.application import endpoints
from dragoman.server.openapi import make_document
from dragoman.server.runs import run_input
from tests.server.conftest import ServerFixture


def _document_routes(paths: dict[str, dict[str, object]]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


async def test_document_and_routes_match(chat_server: ServerFixture) -> None:
    async with chat_server.client.get("/api/v1/openapi.json") as response:
        document = await response.json()
    routes = chat_server.state.app.routes
    served = {
        (method, re.sub(r":[a-z]+\}", "}", route.path))
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert len(served) == len(routes)
    assert _document_routes(document["paths"]) == served


def test_endpoint_names_are_unique_and_have_summaries() -> None:
    names = [endpoint.name for endpoint in endpoints()]
    assert len(names) == len(set(names))
    assert all(endpoint.summary and not endpoint.summary.endswith(".") for endpoint in endpoints())
    assert all(endpoint.responses for endpoint in endpoints())


def test_schemas_are_valid_and_references_resolve() -> None:
    document = make_document(endpoints())
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    def check_value(value: object) -> None:
        if isinstance(value, dict):
            assert value.get("$ref", next(iter(known))) in known
            for inner in value.values():
                check_value(inner)
        elif isinstance(value, list):
            for inner in value:
                check_value(inner)

    check_value(document["paths"])
    check_value(document["components"])
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_document_is_readable_by_client_generators() -> None:
    """openapi-python-client fails on a boolean schema, and few generators support ``prefixItems``."""

    def check_value(value: object, where: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                is_schema = name in ("items", "contains", "not", "if", "then", "else", "propertyNames")
                assert not (is_schema and isinstance(inner, bool)), f"{where}/{name}"
                assert name != "prefixItems", where
                check_value(inner, f"{where}/{name}")
        elif isinstance(value, list):
            for at, inner in enumerate(value):
                check_value(inner, f"{where}[{at}]")

    document = make_document(endpoints())
    check_value(document, "#")
    pairs = document["components"]["schemas"]["SearchHit"]["properties"]["highlights"]["items"]
    assert pairs == {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def test_messages_of_run_are_typed_by_role() -> None:
    document = make_document(endpoints())
    schemas = document["components"]["schemas"]
    messages = schemas["RunAgentInput"]["properties"]["messages"]["items"]
    assert sorted(messages["discriminator"]["mapping"]) == sorted(run_input._ROLES)
    schema = {"$ref": "#/components/schemas/RunAgentInput", "components": document["components"]}
    validator = jsonschema_rs.Draft202012Validator(schema)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    valid_messages: list[dict[str, object]] = [
        {"id": "s1", "role": "system", "content": "Be brief."},
        {"id": "u1", "role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"id": "u2", "role": "user", "content": [{"type": "binary", "mimeType": "image/png", "url": "https://x"}]},
        {"id": "a1", "role": "assistant", "toolCalls": [call]},
        {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "dark", "metadata": {"n": 1}},
    ]
    for message in valid_messages:
        body = {"threadId": "t", "runId": "r", "messages": [message]}
        validator.validate(body)
        run_input.parse_run_input(body)
    for message in ({"id": "u1", "role": "user"}, {"id": "x", "role": "nobody", "content": ""}, {"content": "x"}):
        assert not validator.is_valid({"threadId": "t", "runId": "r", "messages": [message]})


_PROVIDERS = "/api/v1/admin/providers"


def test_no_request_field_sets_identity_or_permissions() -> None:
    """Not even an ignored field: only the key identifies the caller."""
    document = make_document(endpoints())
    schemas = document["components"]["schemas"]

    def collect_names(value: object, seen: set[str]) -> set[str]:
        if isinstance(value, list):
            return {name for inner in value for name in collect_names(inner, seen)}
        if not isinstance(value, dict):
            return set()
        found = set(value["properties"]) if isinstance(value.get("properties"), dict) else set()
        reference = value.get("$ref", "").rpartition("/")[2]
        if reference and reference not in seen:
            found |= collect_names(schemas[reference], seen | {reference})
        return found | {name for inner in value.values() for name in collect_names(inner, seen)}

    forbidden = {
        "user",
        "team",
        "owner",
        "scopes",
        "budget",
        "costusd",
        "keyid",
        "apikey",
        "isadmin",
        "baseurl",
        "apibase",
    }
    forbidden |= {"userid", "teamid"}
    assert all(endpoint.scope == "admin" for endpoint in endpoints() if endpoint.path.startswith(_PROVIDERS))
    for path, methods in document["paths"].items():
        if path.startswith(_PROVIDERS):  # an administrator sets the key and the address of a provider
            continue
        for method, operation in methods.items():
            fields = collect_names(operation.get("requestBody", {}), set())
            fields |= {parameter["name"] for parameter in operation.get("parameters", [])}
            normalized = {re.sub("[^a-z]", "", name.lower()) for name in fields}
            assert normalized & forbidden == set(), f"{method} {path}"


def test_only_listed_endpoints_are_public() -> None:
    assert {endpoint.path for endpoint in endpoints() if endpoint.public} <= PUBLIC


PUBLIC = {
    "/frame",
    "/",
    "/healthz",
    "/api/v1/openapi.json",
    "/storage/v1/object/sign/{bucket}/{path:path}",
    "/static/{name}",
    "/service-worker.js",
    "/share/{token}",  # the token is the permission
    "/api/v1/mail/schema",
}
