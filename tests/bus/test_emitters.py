"""Tests that every event type is emitted by a module or documented as not emitted."""

from __future__ import annotations

import re

from dragoman.bus import EVENT_TYPES
from tests.conftest import ROOT

SOURCE = ROOT / "src" / "dragoman"
DEFINITIONS = (
    SOURCE / "bus" / "event_types",
    SOURCE / "bus" / "types.py",
    SOURCE / "bus" / "otel.py",
    SOURCE / "store" / "trace.py",
)
NOT_EMITTED = {  # docs/events.md contains the reasons
    *("skill.loaded", "skill.created", "memory.updated", "memory.eviction"),
    *("pattern.evicted", "gateway.key_rotated", "quota.alert"),
}


def test_every_type_has_an_emitter_or_a_reason() -> None:
    modules = [path for path in SOURCE.rglob("*.py") if not any(path.is_relative_to(part) for part in DEFINITIONS)]
    text = "\n".join(path.read_text("utf-8") for path in modules)
    called, named = set(re.findall(r"\b(\w+)\(", text)), set(re.findall(r"[\"']([\w.]+)[\"']", text))
    emitted = {name for name, payload in EVENT_TYPES.items() if payload.__name__ in called or name in named}
    assert set(EVENT_TYPES) - emitted == NOT_EMITTED


def test_types_without_emitter_are_documented() -> None:
    page = (ROOT / "docs" / "events.md").read_text("utf-8").partition("## Emitters")[2]
    assert all(f"`{name}`" in page for name in NOT_EMITTED)
