"""Tests of bodies that break a JSON reader, over a real socket: each is rejected, and none fails the server."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from dragoman.letters import write_letter
from dragoman.mail.dead_letters import get_raw
from tests.mail.conftest import failure, request, result
from tests.mail.mutants import mutants
from tests.mail.test_poison import POISON
from tests.server.conftest import ServerFixture
from tests.server.test_threads import read_error_code
from tests.store.faults.conftest import IS_LONG, rng

__all__ = ["rng"]

MUTANTS = 2_000 if IS_LONG else 240
_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["/api/v1/mail", "/evaluate", "/api/v1/mail/evaluate"])
async def test_surrogate_and_nan_are_rejected_with_a_clear_message(chat_server: ServerFixture, path: str) -> None:
    async with chat_server.client.post(path, data=POISON, headers=_JSON) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["code"] == "invalid_json"
    assert re.fullmatch(r"line 1 column \d+: NaN is not JSON", error["message"])


async def test_rejected_letters_are_stored_as_dead_letters(chat_server: ServerFixture) -> None:
    assert (
        await read_error_code(chat_server.client.post("/api/v1/mail", data=POISON, headers=_JSON), 400)
        == "invalid_json"
    )
    (dead,) = await chat_server.state.mail.dead_letters()
    assert get_raw(chat_server.state.mail, dead) == POISON


@pytest.mark.parametrize("path", ["/api/v1/mail", "/evaluate"])
async def test_mutated_letters_cause_no_server_error(chat_server: ServerFixture, path: str, rng: random.Random) -> None:
    statuses: Counter[int] = Counter()
    for letter in (result(score=0.5), failure(), request()):
        for body in mutants(write_letter(letter), rng, MUTANTS // 6):
            async with chat_server.client.post(path, data=body, headers=_JSON) as response:
                statuses[response.status] += 1
    assert {status // 100 for status in statuses} <= {2, 4}, statuses
    assert statuses[422], statuses
    async with chat_server.client.post(path, data=write_letter(result("GOOD", score=1)), headers=_JSON) as response:
        assert response.status == 201
