"""What a request asks for in words of its own dialect: named as lost elsewhere, and written at home."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import dialects
from dragoman.exchange import ToolChoice

ASKED = {"role": "user", "parts": [{"text": "Go."}]}
FUNCTIONS = [{"functionDeclarations": [{"name": name, "description": "Does it."} for name in ("a", "b", "c")]}]


def lost_elsewhere(source: str, wire: dict[str, Any]) -> dict[str, list[str]]:
    request = dialects.load(source).read_request(wire)
    assert dialects.load(source).write_request(request).wire == wire
    return {
        name: [loss.block_type for loss in dialects.load(name).write_request(request).losses]
        for name in dialects.callable_names()
        if name != source
    }


@pytest.mark.parametrize("count", [1, 2])
def test_asking_for_one_answer_is_asking_for_nothing(count: int) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "n": count}
    gemini = {"contents": [ASKED], "generationConfig": {"candidateCount": count}}
    for source, wire in (("openai_chat", chat), ("gemini", gemini)):
        for target, losses in lost_elsewhere(source, wire).items():
            assert losses == ([] if count == 1 or target in ("openai_chat", "gemini") else ["n"])


@pytest.mark.parametrize("mode", ["ANY", "AUTO", "VALIDATED"])
def test_several_functions_that_may_be_called_are_said_in_every_dialect(mode: str) -> None:
    config = {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": ["a", "b"]}}
    request = dialects.load("gemini").read_request({"contents": [ASKED], "tools": FUNCTIONS, "toolConfig": config})
    for name in set(dialects.callable_names()) - {"gemini"}:
        written = dialects.load(name).write_request(request)
        assert "tool_choice.allowed" not in {loss.block_type for loss in written.losses}
        if name in ("openai_chat", "openai_responses"):
            assert dialects.load(name).read_request(written.wire).options.tool_choice.allowed == ("a", "b")
        else:
            assert "'name': 'c'" not in str(written.wire)
            assert "tool_choice.allowed" in {note.block_type for note in written.notes}


def test_one_function_that_must_be_called_is_said_in_every_dialect_that_can() -> None:
    config = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a"]}}
    losses = lost_elsewhere("gemini", {"contents": [ASKED], "tools": FUNCTIONS, "toolConfig": config})
    assert losses["anthropic"] == losses["openai_chat"] == losses["openai_responses"] == []


def test_who_chooses_otherwise_is_not_bound_to_the_functions_that_were_allowed() -> None:
    gemini = dialects.load("gemini")
    config = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a", "b"]}}
    request = gemini.read_request({"contents": [ASKED], "tools": FUNCTIONS, "toolConfig": config})
    freed = request.replace(options=request.options.replace(tool_choice=ToolChoice("auto")))
    assert gemini.write_request(freed).wire["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}}
