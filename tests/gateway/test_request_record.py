"""Tests of the stored form of tools and options of a call, and of the request that is restored from it."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import pytest

from dragoman import dialects
from dragoman.errors import DragomanError
from dragoman.exchange import Request
from dragoman.gateway import request_record
from dragoman.gateway.request_record import part_hashes, record_request, restore_request
from tests.corpus import records

TOOL = {"name": "read_file", "description": "Read a file. " * 40, "input_schema": {"type": "object"}}


def read(dialect: str, **fields: Any) -> Request:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    request: Request = dialects.load(dialect).read_request(body)
    return request


@pytest.mark.parametrize("dialect", dialects.names())
def test_recorded_request_is_restored(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_record, "_redact", lambda value: value)
    request_record._cached_field.cache_clear()
    for _, entry in records(dialect, part="request", sample=40):
        try:
            request: Request = dialects.load(dialect).read_request(entry["request"])
        except DragomanError:
            continue
        record = record_request(request)
        restored = restore_request(record.fields, record.parts, request.messages)
        assert dialects.load(dialect).write_request(restored).wire == entry["request"]
    request_record._cached_field.cache_clear()


def test_long_field_is_stored_as_part_under_its_hash() -> None:
    record = record_request(read("anthropic", tools=[TOOL], temperature=0.5))
    ((digest, content),) = record.parts.items()
    assert record.fields["tools"] == f"sha256:{digest}"
    assert part_hashes(record.fields) == [digest]
    assert hashlib.sha256(content).hexdigest() == digest
    assert json.loads(zlib.decompress(content))[0]["description"] == TOOL["description"]
    assert record.fields["options"] == {"max_output_tokens": 9, "temperature": 0.5}


def test_missing_part_is_omitted() -> None:
    request = read("anthropic", tools=[TOOL], temperature=0.5)
    restored = restore_request(record_request(request).fields, {}, request.messages)
    assert (restored.tools, restored.options) == ((), request.options)


def test_model_name_is_never_read_as_part() -> None:
    record = record_request(read("anthropic", model="sha256:x"))
    assert (part_hashes(record.fields), record.fields["model"]) == ([], "sha256:x")


SERVER = {"type": "url", "url": "https://example.com", "name": "n", "authorization_token": "abc"}
MCP = {"type": "mcp", "server_label": "x", "server_url": "https://example.com", "headers": {"X-Tenant": "abc"}}


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("anthropic", {"mcp_servers": [SERVER]}),
        ("openai_responses", {"tools": [MCP], "input": "hi"}),
        ("openai_responses", {"tools": [{**MCP, "headers": None, "authorization": "abc"}], "input": "hi"}),
    ],
)
def test_credentials_of_other_servers_are_not_stored(dialect: str, fields: dict[str, Any]) -> None:
    request = read(dialect, **fields)
    assert "'abc'" in str(request)
    record = record_request(request)
    stored = str([record.fields, *map(zlib.decompress, record.parts.values())])
    assert "abc" not in stored
    assert "example.com" in stored
