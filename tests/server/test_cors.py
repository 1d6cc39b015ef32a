"""Pages of other servers: those that were named may ask from a browser, and no others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dragoman.server.config import ServerConfig
from tests.server.conftest import run_test_server

NAMED = "https://app.example.org"
BEFOREHAND = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
ASKED = "/api/v1/agent/me"


async def test_a_page_that_was_named_may_ask_and_see_the_answer(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, require_keys=True, allow_origin=(NAMED, "http://localhost:3000")) as server:
        for origin in (NAMED, "http://localhost:3000"):
            async with server.client.options(ASKED, headers={"Origin": origin, **BEFOREHAND}) as answer:
                assert answer.status == 204
                assert answer.headers["access-control-allow-origin"] == origin
                assert "authorization" in answer.headers["access-control-allow-headers"]
                assert "access-control-allow-credentials" not in answer.headers
            for headers, status in ((await server.make_key("ada"), 200), ({}, 401)):
                async with server.client.get(ASKED, headers={"Origin": origin, **headers}) as answer:
                    assert answer.status == status
                    assert answer.headers["access-control-allow-origin"] == origin
                    assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://app.example.org", f"{NAMED}:444", f"{NAMED}.evil.example", "null", "*"]
)
async def test_pages_of_other_origins_are_rejected(tmp_path: Path, origin: str) -> None:
    async with run_test_server(tmp_path, allow_origin=(NAMED,)) as server:
        async with server.client.options(ASKED, headers={"Origin": origin, **BEFOREHAND}) as answer:
            assert answer.status == 405
            assert "access-control-allow-origin" not in answer.headers
        async with server.client.get(ASKED, headers={"Origin": origin}) as answer:
            assert answer.status == 403
            assert "access-control-allow-origin" not in answer.headers


async def test_without_keys_a_page_that_was_named_is_as_good_as_ours(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, allow_origin=(NAMED,)) as server:
        async with server.client.get(ASKED, headers={"Origin": NAMED}) as answer:
            assert answer.status == 200
        async with server.client.get(ASKED, headers={"Origin": NAMED, "Host": "evil.example"}) as answer:
            assert answer.status == 403


@pytest.mark.parametrize("said", ["*", "https://app.example.org/", "app.example.org", "https://a b", "HTTPS://X"])
def test_what_is_no_origin_cannot_be_named(said: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"store": "memory:", "allow_origin": [said]}, ServerConfig)


async def test_a_page_of_the_same_address_with_another_scheme_is_not_ours(tmp_path: Path) -> None:
    async with run_test_server(tmp_path) as server:
        own = server.base_url.removeprefix("http://")
        for scheme, status in (("http", 200), ("https", 403)):
            async with server.client.get(ASKED, headers={"Origin": f"{scheme}://{own}"}) as answer:
                assert answer.status == status
