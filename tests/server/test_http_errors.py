"""Tests of error responses: their shape, their statuses, and the documentation of their codes."""

from __future__ import annotations

import ast
import gc
import re
from pathlib import Path

import pytest

from dragoman import errors
from dragoman.server.http.http_errors import status_for, to_api_error
from tests.conftest import ROOT
from tests.server.conftest import ServerFixture

SOURCE = ROOT / "src" / "dragoman" / "server"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UnknownSessionError("no session"), 404),
        (errors.UnknownMessageError("no message"), 404),
        (errors.UnknownModelError("no model"), 422),
        (errors.FormatError("malformed"), 422),
        (errors.JsonError("no JSON"), 400),
        (errors.JsonError("deep", code="too_deep"), 400),
        (errors.JsonError("large", code="too_large"), 413),
        (errors.JsonError("a number", code="number_out_of_range"), 422),
        (errors.ConflictError("busy", code="turn_in_flight"), 409),
        (errors.ConflictError("again", code="idempotency_key_reused"), 422),
        (errors.StorageError("broken"), 503),
        (errors.StorageError("full", code="disk_full"), 507),
        (errors.CorruptDataError("damaged"), 500),
        (errors.SettingsError("no key", code="missing_key"), 503),
        (errors.AttachmentError("path", code="invalid_path"), 400),
        (errors.AttachmentUrlError("over", code="url_expired"), 403),
        (errors.DragomanError("what"), 500),
    ],
)
def test_error_has_status(error: errors.DragomanError, status: int) -> None:
    assert status_for(error) == status


def test_not_found_message_omits_the_name() -> None:
    assert "canary" not in to_api_error(errors.UnknownSessionError("no session 'canary'", where="canary")).message


def test_storage_error_message_omits_location_and_remedy() -> None:
    error = errors.StorageError("the disk failed", where="/srv/private/chats.db", remedy="Look at /srv/private")
    assert to_api_error(error).message == "the disk failed"


def test_secret_in_error_is_redacted() -> None:
    secret = "sk-ant-api03-" + "aB3" * 20
    assert secret not in to_api_error(errors.FormatError(f"no such key {secret}")).message


async def test_405_lists_allowed_methods(chat_server: ServerFixture) -> None:
    async with chat_server.client.put("/healthz") as response:
        assert response.status == 405
        assert response.headers["allow"] == "GET, HEAD"
        assert (await response.json())["error"]["code"] == "method_not_allowed"
    async with chat_server.client.put("/api/v1/agent/threads/x") as response:
        assert response.headers["allow"] == "DELETE, GET, HEAD, PATCH"


@pytest.mark.parametrize("path", ["/", "/healthz", "/nothing", "/api/v1/agent/me", "/api/v1/openapi.json"])
async def test_every_response_has_security_headers(chat_server: ServerFixture, path: str) -> None:
    async with chat_server.client.get(path) as response:
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert "server" not in response.headers
        assert "cache-control" in response.headers
        assert "access-control-allow-origin" not in response.headers
        assert re.fullmatch("req_[0-9a-f]{24}", response.headers["x-request-id"])


async def test_request_id_of_client_is_ignored(chat_server: ServerFixture) -> None:
    async with chat_server.client.get("/nothing", headers={"X-Request-Id": "mine"}) as response:
        assert response.headers["x-request-id"] == (await response.json())["error"]["request_id"] != "mine"


def _codes() -> set[str]:
    """Return the codes of the API errors in the source."""
    gc.collect()  # a collection during parsing breaks the parser of Python 3.11
    codes = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            is_api_error = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ApiError"
            if is_api_error and isinstance(code := node.args[1], ast.Constant):  # type: ignore[attr-defined]
                codes.add(str(code.value))
    return codes


def test_every_error_code_is_documented() -> None:
    pages = [ROOT / "docs" / name for name in ("server.md", "errors.md", "chat-api.md", "mail.md")]
    documented = {
        code
        for page in pages
        if Path(page).exists()
        for code in re.findall(r"^\| `([a-z_]+)` \|", page.read_text("utf-8"), flags=re.MULTILINE)
    }
    codes = _codes()
    assert "not_found" in codes
    assert codes - documented == set()
