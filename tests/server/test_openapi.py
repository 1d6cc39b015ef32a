"""The OpenAPI document describes exactly the routes that exist."""

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


async def test_every_route_is_described_and_every_description_is_a_route(chat_server: ServerFixture) -> None:
    async with chat_server.client.get("/api/v1/openapi.json") as answer:
        said = await answer.json()
    routes = chat_server.state.app.routes
    served = {
        (method, re.sub(r":[a-z]+\}", "}", route.path))
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert len(served) == len(routes)
    assert _document_routes(said["paths"]) == served


def test_names_are_unique_and_everything_has_a_summary() -> None:
    names = [one.name for one in endpoints()]
    assert len(names) == len(set(names))
    assert all(one.summary and not one.summary.endswith(".") for one in endpoints())
    assert all(one.responses for one in endpoints())


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    said = make_document(endpoints())
    known = {f"#/components/schemas/{name}" for name in said["components"]["schemas"]}

    def look(value: object) -> None:
        if isinstance(value, dict):
            assert value.get("$ref", next(iter(known))) in known
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(said["paths"])
    look(said["components"])
    for schema in said["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_generators_of_clients_can_read_the_document() -> None:
    """openapi-python-client ends at a schema that is a truth value, and few generators know ``prefixItems``."""

    def look(value: object, where: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                is_schema = name in ("items", "contains", "not", "if", "then", "else", "propertyNames")
                assert not (is_schema and isinstance(inner, bool)), f"{where}/{name}"
                assert name != "prefixItems", where
                look(inner, f"{where}/{name}")
        elif isinstance(value, list):
            for at, inner in enumerate(value):
                look(inner, f"{where}[{at}]")

    said = make_document(endpoints())
    look(said, "#")
    pairs = said["components"]["schemas"]["SearchHit"]["properties"]["highlights"]["items"]
    assert pairs == {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def test_the_messages_of_a_run_are_typed_by_their_role() -> None:
    said = make_document(endpoints())
    schemas = said["components"]["schemas"]
    messages = schemas["RunAgentInput"]["properties"]["messages"]["items"]
    assert sorted(messages["discriminator"]["mapping"]) == sorted(run_input._ROLES)
    whole = {"$ref": "#/components/schemas/RunAgentInput", "components": said["components"]}
    validator = jsonschema_rs.Draft202012Validator(whole)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    good: list[dict[str, object]] = [
        {"id": "s1", "role": "system", "content": "Be brief."},
        {"id": "u1", "role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"id": "u2", "role": "user", "content": [{"type": "binary", "mimeType": "image/png", "url": "https://x"}]},
        {"id": "a1", "role": "assistant", "toolCalls": [call]},
        {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "dark", "metadata": {"n": 1}},
    ]
    for message in good:
        body = {"threadId": "t", "runId": "r", "messages": [message]}
        validator.validate(body)
        run_input.parse_run_input(body)
    for message in ({"id": "u1", "role": "user"}, {"id": "x", "role": "nobody", "content": ""}, {"content": "x"}):
        assert not validator.is_valid({"threadId": "t", "runId": "r", "messages": [message]})


_PROVIDERS = "/api/v1/admin/providers"


def test_no_request_has_a_field_that_says_who_asks_or_what_they_may() -> None:
    """Not even one that is ignored: what a caller is, their key says."""
    said = make_document(endpoints())
    schemas = said["components"]["schemas"]

    def names(value: object, seen: set[str]) -> set[str]:
        if isinstance(value, list):
            return {name for inner in value for name in names(inner, seen)}
        if not isinstance(value, dict):
            return set()
        found = set(value["properties"]) if isinstance(value.get("properties"), dict) else set()
        reference = value.get("$ref", "").rpartition("/")[2]
        if reference and reference not in seen:
            found |= names(schemas[reference], seen | {reference})
        return found | {name for inner in value.values() for name in names(inner, seen)}

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
    assert all(one.scope == "admin" for one in endpoints() if one.path.startswith(_PROVIDERS))
    for path, methods in said["paths"].items():
        if path.startswith(_PROVIDERS):  # an administrator names the key and the address of a provider
            continue
        for method, operation in methods.items():
            asked = names(operation.get("requestBody", {}), set())
            asked |= {one["name"] for one in operation.get("parameters", [])}
            plain = {re.sub("[^a-z]", "", name.lower()) for name in asked}
            assert plain & forbidden == set(), f"{method} {path}"


def test_only_what_tells_nothing_of_anybody_is_public() -> None:
    assert {one.path for one in endpoints() if one.public} <= PUBLIC


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
