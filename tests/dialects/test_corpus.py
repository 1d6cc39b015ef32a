"""Recorded traffic is equal after a round trip. The records are not copied."""

from __future__ import annotations

from collections import Counter

import pytest

from dragoman import dialects
from dragoman.cli.prove import Proof, prove_records
from dragoman.exchange import StopReason
from tests.corpus import dialect_names, records

# Invalid records: not a request, or a stream that was cut or ended with an error.
BROKEN: dict[str, dict[str, str]] = {
    "anthropic": {"anthropic-5371a149f83439": "$.messages[0]: expected an object, not str"},
    "gemini": {"gemini-2e365ffce1ff52": "stream_incomplete"},
    "openai_chat": {
        "groq-7f2994d8e269dd": "Tool choice is required, but model did not call a tool",
        "mistral-c16cc8354db376": "stream_incomplete",
        "openrouter-aef207ddb69ead": "Token limit reached",
    },
}
# Replies without a stop reason, or with an empty one. Every other recorded stop reason is known.
WITHOUT_STOP_REASON = {
    "cohere_v1": {"cohere-defc82f3f43f77"},  # an early reply does not have this field
    "openai_chat": {
        "openrouter-28daa15de5f994",
        "snowflake-06790065164650",
        "snowflake-b458067e0df387",
        "snowflake-e94d245473b4a0",
    },
}


@pytest.mark.parametrize("name", dialects.names())
def test_recorded_traffic_is_equal_after_round_trip(name: str) -> None:
    reasons, proof = BROKEN.get(name, {}), Proof(Counter(), [], [])
    prove_records((record for _, record in records(name, sample=100, always=reasons)), proof, name)
    assert proof.failures == []
    assert {part for _, _, part in proof.equal} == {"request", "reply", "stream"}
    broken = {found.record: found.difference for found in proof.broken}
    assert broken.keys() == reasons.keys()
    assert all(reason in broken[record] for record, reason in reasons.items())


def test_every_record_has_a_known_dialect() -> None:
    assert set(dialect_names()) - set(dialects.names_in_recordings()) == set()


@pytest.mark.parametrize("name", dialects.names())
def test_every_recorded_stop_reason_is_known(name: str) -> None:
    dialect, unknown, expected = dialects.load(name), set(), WITHOUT_STOP_REASON.get(name, set())
    for _, record in records(name, part="response", sample=100, always=expected):
        if record.get("status") in (200, None):
            reply = dialect.read_reply(record["response"])
            if reply.stop_reason is StopReason.UNKNOWN:
                unknown.add(record["id"])
    assert unknown == expected
