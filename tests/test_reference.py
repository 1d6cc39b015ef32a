"""Tests that the normative pages match the code."""

from __future__ import annotations

import importlib.util
import inspect
import re
from types import ModuleType

import pytest

from dragoman import exchange, message
from dragoman.bus import EVENT_TYPES
from dragoman.routing import chain
from dragoman.value import Value
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The test of fidelity.md is in test_fidelity.py.
@pytest.mark.parametrize("page", ["api.md", "cli.md", "event-types.md", "events.md", "format.md", "rules.md"])
def test_page_is_current(reference: ModuleType, page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    assert reference.fill(text) == text, "run: python scripts/reference.py"


def test_every_type_of_the_format_is_documented() -> None:
    page = (ROOT / "docs" / "format.md").read_text("utf-8")
    documented = set(re.findall(r"<!-- (?:fields|words) of dragoman\.\w+\.(\w+) -->", page))
    own_names = {
        name
        for name, cls in inspect.getmembers(message, inspect.isclass)
        if cls.__module__ == message.__name__ and name not in ("UnknownBlock", "TokenUsage", "Block")
    }
    exchange = {"ToolDefinition", "SideEffects", "Grammar", "OpaqueTool", "Options", "ToolChoice", "ResponseFormat"}
    assert own_names | exchange | {"Reasoning"} == documented


def test_every_field_of_messages_and_exchanges_has_a_comment(reference: ModuleType) -> None:
    for module in (message, exchange):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__ and issubclass(cls, Value):
                explained = reference._comments(cls)
                missing = [
                    name
                    for name in cls.__struct_fields__
                    if name not in explained and name not in ("unknown_fields", "raw")
                ]
                assert missing == [], cls.__name__


def test_every_field_of_every_event_has_a_comment(reference: ModuleType) -> None:
    for payload in (*EVENT_TYPES.values(), chain.ChainEntry):
        explained = reference._comments(payload)
        assert [name for name in payload.__struct_fields__ if name not in explained] == [], payload.__name__


def test_outdated_page_is_corrected(reference: ModuleType) -> None:
    text = (ROOT / "docs" / "format.md").read_text("utf-8")
    assert reference.fill(text.replace("| `is_error` | true or false |", "| `is_error` | text |")) == text
