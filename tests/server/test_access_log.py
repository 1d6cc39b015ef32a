"""Tests of the access log: it identifies each request and contains no secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.server.http import access_log
from tests.server.conftest import ServerFixture

SECRETS = {
    "own key": "ak_live_T71XW5nC_faz7HEQp9v6pzG2VnpxgGz-UqdcDWUBBpAB7xuTaNiw_Rw4Z80",
    "anthropic": "sk-ant-api03-" + "aB3" * 20,
    "openai": "sk-proj-" + "cD4" * 14,
    "google": "AIza" + "eF5" * 12,
    "aws": "AKIA" + "Q7" * 8,
    "github": "ghp_" + "gH6" * 12,
    "slack": "xoxb-" + "12345678-" * 2 + "abcdefghij",
    "web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJlLW9mLWl0",
    "password": "password=Tr0ub4dor&3-canary",
}


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    """The log records of the process, as text."""
    stream = io.StringIO()
    root = logging.getLogger()
    before = (
        list(root.handlers),
        root.level,
        [(name, logging.getLogger(name).level) for name in ("dragoman", "uvicorn")],
    )
    access_log.configure("debug", stream)
    yield stream
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for name, level in before[2]:
        logging.getLogger(name).setLevel(level)


async def test_request_is_logged_with_route_and_user(chat_server: ServerFixture, log_stream: io.StringIO) -> None:
    async with chat_server.client.get("/api/v1/agent/me?token=canary-of-the-query") as response:
        request_id = response.headers["x-request-id"]
    (line,) = [json.loads(line) for line in log_stream.getvalue().splitlines()]
    assert line.pop("ms") >= 0
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "dragoman.access",
        "message": "answered",
        "request_id": request_id,
        "method": "GET",
        "route": "/api/v1/agent/me",
        "status": 200,
        "user": "local",
    }


async def test_secrets_of_requests_are_in_no_log_response_or_database(
    keyed_server: ServerFixture, log_stream: io.StringIO, tmp_path: Path
) -> None:
    key_headers = await keyed_server.make_key("ada")
    bodies = ""
    for secret in SECRETS.values():
        for headers in ({"Authorization": f"Bearer {secret}"}, {**key_headers, "X-Api-Key": secret, "Cookie": secret}):
            for method, path in (
                ("GET", f"/api/v1/agent/me?token={secret}"),
                ("GET", f"/api/v1/agent/history?threadId={secret}"),
                ("GET", f"/{secret}"),
                ("DELETE", f"/api/v1/agent/threads/{secret}"),
                ("PATCH", "/api/v1/agent/threads/x"),
                ("POST", "/api/v1/agent/runs"),
            ):
                body = (
                    json.dumps({"title": 1, "apiKey": secret, secret: secret}) if method in ("PATCH", "POST") else None
                )
                request_headers = {**headers, "Content-Type": "application/json"}
                async with keyed_server.client.request(method, path, headers=request_headers, data=body) as response:
                    assert response.status >= 400 or path.startswith("/api/v1/agent/me")
                    bodies += await response.text()
    own_key = key_headers["Authorization"].removeprefix("Bearer ")
    log_text = log_stream.getvalue()
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("chats.db*") if file.is_file())
    assert len(log_text.splitlines()) == len(SECRETS) * 12
    for kind, secret in [*SECRETS.items(), ("good key", own_key)]:
        assert secret not in log_text, kind
        assert secret not in bodies, kind
        assert secret.encode() not in stored, kind


async def test_unexpected_error_is_logged_with_request_id_without_secrets(
    chat_server: ServerFixture, log_stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"failed with {SECRETS['anthropic']}")

    monkeypatch.setattr(chat_server.store, "read_sessions", fail)
    async with chat_server.client.get("/api/v1/agent/history?threadId=x") as response:
        assert response.status == 500
        error = (await response.json())["error"]
    assert error["code"] == "internal_error"
    assert "RuntimeError" not in error["message"]
    lines = [json.loads(line) for line in log_stream.getvalue().splitlines()]
    (failure,) = [line for line in lines if line["level"] == "error"]
    assert failure["request_id"] == error["request_id"]
    assert "RuntimeError" in failure["trace"]
    assert SECRETS["anthropic"] not in log_stream.getvalue()


def test_log_record_is_one_line_with_listed_fields_only() -> None:
    extra = {"user": "ada\nfake", "body": "private", "headers": {"authorization": "x"}, "status": 200}
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "two\nlines \u2028 and \ud800", **extra})
    line = access_log.JsonFormatter().format(record)
    assert line.splitlines() == [line]
    record_fields = json.loads(line)
    assert set(record_fields) == {"time", "level", "logger", "message", "user", "status"}
    assert record_fields["message"] == "two\nlines \u2028 and ?"
