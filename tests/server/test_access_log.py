"""The access log identifies each request and contains no secret."""

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
    "our key": "ak_live_T71XW5nC_faz7HEQp9v6pzG2VnpxgGz-UqdcDWUBBpAB7xuTaNiw_Rw4Z80",
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
def written() -> Iterator[io.StringIO]:
    """The records that the process logs from now on."""
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


async def test_a_request_is_one_line_with_its_route_and_who_asked(
    chat_server: ServerFixture, written: io.StringIO
) -> None:
    async with chat_server.client.get("/api/v1/agent/me?token=canary-of-the-query") as answer:
        name = answer.headers["x-request-id"]
    (line,) = [json.loads(line) for line in written.getvalue().splitlines()]
    assert line.pop("ms") >= 0
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "dragoman.access",
        "message": "answered",
        "request_id": name,
        "method": "GET",
        "route": "/api/v1/agent/me",
        "status": 200,
        "user": "local",
    }


async def test_no_secret_of_a_request_is_in_a_log_an_answer_or_the_database(
    keyed_server: ServerFixture, written: io.StringIO, tmp_path: Path
) -> None:
    good = await keyed_server.make_key("ada")
    answers = ""
    for secret in SECRETS.values():
        for headers in ({"Authorization": f"Bearer {secret}"}, {**good, "X-Api-Key": secret, "Cookie": secret}):
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
                sent = {**headers, "Content-Type": "application/json"}
                async with keyed_server.client.request(method, path, headers=sent, data=body) as answer:
                    assert answer.status >= 400 or path.startswith("/api/v1/agent/me")
                    answers += await answer.text()
    mine = good["Authorization"].removeprefix("Bearer ")
    said = written.getvalue()
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("chats.db*") if file.is_file())
    assert len(said.splitlines()) == len(SECRETS) * 12
    for kind, secret in [*SECRETS.items(), ("good key", mine)]:
        assert secret not in said, kind
        assert secret not in answers, kind
        assert secret.encode() not in kept, kind


async def test_what_nobody_expected_is_told_by_its_id_and_logged_without_secrets(
    chat_server: ServerFixture, written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"it went wrong with {SECRETS['anthropic']}")

    monkeypatch.setattr(chat_server.store, "read_sessions", broken)
    async with chat_server.client.get("/api/v1/agent/history?threadId=x") as answer:
        assert answer.status == 500
        said = (await answer.json())["error"]
    assert said["code"] == "internal_error"
    assert "RuntimeError" not in said["message"]
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    (failure,) = [line for line in lines if line["level"] == "error"]
    assert failure["request_id"] == said["request_id"]
    assert "RuntimeError" in failure["trace"]
    assert SECRETS["anthropic"] not in written.getvalue()


def test_a_line_has_no_field_that_is_not_listed_and_no_line_end() -> None:
    extra = {"user": "ada\nfake", "body": "private", "headers": {"authorization": "x"}, "status": 200}
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "two\nlines \u2028 and \ud800", **extra})
    line = access_log.JsonFormatter().format(record)
    assert line.splitlines() == [line]
    said = json.loads(line)
    assert set(said) == {"time", "level", "logger", "message", "user", "status"}
    assert said["message"] == "two\nlines \u2028 and ?"
