"""A provider is added with a catalog row, and a dialect with one file. No other change is required."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dragoman import catalog, dialects
from dragoman.cli.prove import Proof, prove_records
from dragoman.message import TextBlock
from tests.dialects import test_every_dialect

ADDED = Path(__file__).parent / "added"


# --- provider --------------------------------------------------------------------------------------------------------

ROWS = """
[providers.acme]
title = "Acme"
dialect = "openai_chat"
base_url = "https://llm.acme.example/v1"
key_variables = ["ACME_API_KEY"]
capabilities = { supports_images = true, max_context_tokens = 32768 }

[models."acme:rocket-2"]
aliases = ["rocket"]
supports_thinking = true
"""


def test_provider_is_added_by_catalog_row() -> None:
    rows = catalog.builtin().overlay(catalog.rows_from_toml(ROWS))
    model = rows.model("rocket")
    assert (model.id, model.name, model.is_declared) == ("acme:rocket-2", "rocket-2", True)
    assert model.capabilities.supports_thinking
    assert model.capabilities.max_context_tokens == 32_768
    assert not rows.model("acme:another").is_declared
    assert "acme" not in catalog.builtin().providers


def test_catalog_row_selects_dialect() -> None:
    rows = catalog.builtin().overlay(catalog.rows_from_toml(ROWS))
    model = rows.model("rocket")
    dialect = dialects.load(rows.provider(model.provider).dialect)
    written = dialect.write_request(test_every_dialect.REQUEST.replace(model=model.name))
    assert written.wire["model"] == "rocket-2"
    assert dialect.read_request(written.wire).model == "rocket-2"


# --- dialect ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def telegraph(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The dialect in the folder ``added``, which is added to the path of the dialects."""
    monkeypatch.setattr(dialects, "__path__", [*dialects.__path__, str(ADDED)])
    yield dialects.load("telegraph")
    sys.modules.pop(f"{dialects.__name__}.telegraph", None)
    vars(dialects).pop("telegraph", None)
    dialects.load.cache_clear()


RECORD: dict[str, Any] = {
    "id": "telegraph-1",
    "dialect": "telegraph",
    "provider": "acme",
    "kind": "recorded",
    "status": 200,
    "request": {
        "model": "m1",
        "limit": 100,
        "priority": "high",  # no canonical field
        "lines": [
            {"role": "system", "text": "Be brief."},
            {"role": "user", "text": "What is in README.md?", "at": 1.0},
            {"role": "assistant", "call": "c1", "tool": "read_file", "input": {"path": "README.md"}},
            {"role": "tool", "answer": "c1", "text": "# Project Foo"},
        ],
        "tools": [{"name": "read_file", "about": "Read a file.", "input": {"type": "object"}, "free": True}],
    },
    "response": {
        "model": "m1",
        "end": "done",
        "in": 8,
        "out": 42,
        "serial": 7,
        "lines": [{"role": "assistant", "text": "It is Project Foo.", "mood": "glad"}],
    },
    "stream": '{"begin":"m1"}\n{"role":"assistant","text":"Héllo.","mood":"glad"}\n'
    '{"role":"assistant","call":"c2","tool":"read_file","input":{"path":"LICENSE"}}\n{"end":"calls","serial":8}\n',
    "stream_format": "ndjson",
}


def test_dialect_file_is_discovered(telegraph: ModuleType) -> None:
    assert "telegraph" in dialects.names()
    assert telegraph.NAME == "telegraph"
    assert dialects.load("telegraph") is telegraph


def test_dialect_without_file_is_unknown() -> None:
    assert "telegraph" not in dialects.names()
    with pytest.raises(LookupError, match="telegraph"):
        dialects.load("telegraph")


def test_round_trip_proof_passes_for_added_dialect(telegraph: ModuleType) -> None:
    proof = prove_records([RECORD], Proof(Counter(), [], []))
    assert proof.failures == []
    assert proof.broken == []
    assert proof.equal == {("telegraph", "acme", part): 1 for part in ("request", "reply", "stream")}


def test_round_trip_proof_detects_missing_notes(telegraph: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telegraph, "make_notes", lambda *_, **__: None)
    proof = prove_records([RECORD], Proof(Counter(), [], []))
    assert [failure.part for failure in proof.failures] == ["request", "reply"]
    assert "'priority' is missing" in proof.failures[0].difference


def test_edited_message_keeps_other_fields(telegraph: ModuleType) -> None:
    read = telegraph.read_request(RECORD["request"])
    first, question, *rest = read.messages
    edited = question.replace(content=[question.content[0].replace(text="And in LICENSE?")])
    wire = telegraph.write_request(read.replace(messages=(first, edited, *rest))).wire
    assert wire["lines"][1] == {"role": "user", "text": "And in LICENSE?", "at": 1.0}
    assert {**wire, "lines": []} == {**RECORD["request"], "lines": []}


def dialect_tests() -> list[Callable[..., None]]:
    """Return the tests of every dialect that have a dialect as their only argument."""
    tests = [test for name, test in vars(test_every_dialect).items() if name.startswith("test_")]
    return [test for test in tests if list(inspect.signature(test).parameters) in (["dialect"], ["chat_dialect"])]


@pytest.mark.parametrize("test", dialect_tests(), ids=lambda test: test.__name__.removeprefix("test_"))
def test_added_dialect_passes_tests_of_every_dialect(test: Callable[..., None], telegraph: ModuleType) -> None:
    test(telegraph)


@pytest.mark.parametrize("other", test_every_dialect.CONVERSATIONS)
def test_added_dialect_converts_to_every_other(other: str, telegraph: ModuleType) -> None:
    other_dialect = dialects.load(other)
    wire = other_dialect.write_request(telegraph.read_request(RECORD["request"])).wire
    again = telegraph.write_request(other_dialect.read_request(wire)).wire
    texts = [
        block.text
        for message in other_dialect.read_request(wire).messages
        for block in message.content
        if type(block) is TextBlock
    ]
    assert texts == ["Be brief.", "What is in README.md?"]
    assert [line.get("text") for line in again["lines"]] == [
        "Be brief.",
        "What is in README.md?",
        None,
        "# Project Foo",
    ]
    assert "at" not in again["lines"][1]  # a field of this dialect only is lost in another dialect
