"""Tests of ``dragoman prove``: recordings that are compared, and recordings that count as broken."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.prove import Proof, prove, prove_records
from dragoman.errors import InputError


def chunk(finish_reason: str | None = None, **delta: Any) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return f"data: {json.dumps({'id': 'c1', 'model': 'm', 'choices': [choice]})}\n\n"


def call(arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": arguments}}]}


TEXT, STOP, DONE = chunk(role="assistant", content="Hi."), chunk("stop"), "data: [DONE]\n\n"
WHOLE = {
    "a proper end": TEXT + STOP + DONE,
    "a call with input that is not JSON": chunk(**call("{a")) + chunk("tool_calls") + DONE,
    "a call whose input was cut at the limit": chunk(**call('{"a"')) + chunk("length") + DONE,
    "an empty text": chunk(role="assistant", content="") + STOP + DONE,
}
BROKEN = {
    "cut": (TEXT, "stream_incomplete"),
    "a call that was cut with the stream": (chunk(**call('{"a"')), "stream_incomplete"),
    "an error": (TEXT + 'data: {"error": {"message": "too much", "code": "rate_limit_exceeded"}}\n\n', "too much"),
    "no reason": (TEXT + DONE, "stream_incomplete"),
    "an empty stream": (": ping\n\n", "stream_incomplete"),
}


def prove_stream(stream: str, provider: str = "openai-chat") -> Proof:
    record = {"id": "r", "dialect": "openai-chat", "provider": provider, "stream": stream, "stream_format": "sse"}
    return prove_records([record], Proof(Counter(), [], []))


@pytest.mark.parametrize("name", WHOLE)
def test_complete_stream_is_compared_even_with_a_fault(name: str) -> None:
    proof = prove_stream(WHOLE[name])
    assert (proof.failures, proof.broken, sum(proof.equal.values())) == ([], [], 1)


@pytest.mark.parametrize("name", BROKEN)
def test_cut_or_failed_stream_counts_as_broken(name: str) -> None:
    stream, reason = BROKEN[name]
    proof = prove_stream(stream)
    assert (proof.failures, sum(proof.equal.values())) == ([], 0)
    (comparison,) = proof.broken
    assert reason in comparison.difference


def test_provider_quirks_apply_to_recorded_streams() -> None:
    proof = prove_stream(TEXT + DONE, "snowflake")
    assert (proof.failures, proof.broken, sum(proof.equal.values())) == ([], [], 1)
    assert prove_stream(TEXT, "snowflake").broken
    assert prove_stream(TEXT + DONE, "nobody that the catalog knows").broken


def test_unreadable_records_are_rejected_with_the_expected_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="missing: no such file or folder"):
        prove(tmp_path / "missing")
    with pytest.raises(InputError, match=r"the folder has no \*\.jsonl"):
        prove(tmp_path)
    (tmp_path / "traffic.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(InputError, match=r"line 1: not a recorded exchange. Each line is a JSON object with id"):
        prove(tmp_path / "traffic.jsonl")
    assert capsys.readouterr().out == ""
