"""Tests of CORS: only allowed origins may send requests from a browser."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dragoman.server.config import ServerConfig
from tests.server.conftest import run_test_server

ALLOWED = "https://app.example.org"
PREFLIGHT_HEADERS = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}
PATH = "/api/v1/agent/me"


async def test_allowed_origin_may_send_requests_and_read_responses(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, require_keys=True, allow_origin=(ALLOWED, "http://localhost:3000")) as server:
        for origin in (ALLOWED, "http://localhost:3000"):
            async with server.client.options(PATH, headers={"Origin": origin, **PREFLIGHT_HEADERS}) as response:
                assert response.status == 204
                assert response.headers["access-control-allow-origin"] == origin
                assert "authorization" in response.headers["access-control-allow-headers"]
                assert "access-control-allow-credentials" not in response.headers
            for headers, status in ((await server.make_key("ada"), 200), ({}, 401)):
                async with server.client.get(PATH, headers={"Origin": origin, **headers}) as response:
                    assert response.status == status
                    assert response.headers["access-control-allow-origin"] == origin
                    assert response.headers["vary"] == "origin"


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://app.example.org", f"{ALLOWED}:444", f"{ALLOWED}.evil.example", "null", "*"],
)
async def test_pages_of_other_origins_are_rejected(tmp_path: Path, origin: str) -> None:
    async with run_test_server(tmp_path, allow_origin=(ALLOWED,)) as server:
        async with server.client.options(PATH, headers={"Origin": origin, **PREFLIGHT_HEADERS}) as response:
            assert response.status == 405
            assert "access-control-allow-origin" not in response.headers
        async with server.client.get(PATH, headers={"Origin": origin}) as response:
            assert response.status == 403
            assert "access-control-allow-origin" not in response.headers


async def test_allowed_origin_is_accepted_without_key(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, allow_origin=(ALLOWED,)) as server:
        async with server.client.get(PATH, headers={"Origin": ALLOWED}) as response:
            assert response.status == 200
        async with server.client.get(PATH, headers={"Origin": ALLOWED, "Host": "evil.example"}) as response:
            assert response.status == 403


@pytest.mark.parametrize("origin", ["*", "https://app.example.org/", "app.example.org", "https://a b", "HTTPS://X"])
def test_invalid_origin_is_rejected_in_configuration(origin: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"store": "memory:", "allow_origin": [origin]}, ServerConfig)


async def test_origin_with_another_scheme_is_rejected(tmp_path: Path) -> None:
    async with run_test_server(tmp_path) as server:
        own = server.base_url.removeprefix("http://")
        for scheme, status in (("http", 200), ("https", 403)):
            async with server.client.get(PATH, headers={"Origin": f"{scheme}://{own}"}) as response:
                assert response.status == status
