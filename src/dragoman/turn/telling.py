"""Telling the bus. The one rule: a bus that is full or closed is no reason for a turn to fail."""

from __future__ import annotations

from typing import Any, Final

from dragoman.bus import Bus, Payload, Scope
from dragoman.errors import BusError
from dragoman.redaction import Redactor

_redactor: Final = Redactor()


def try_emit(target: Bus | Scope, event: Payload | str, payload: dict[str, Any] | None = None, **fields: Any) -> None:
    """Say that something happened, if anybody can be told; a bus that cannot take it says so in the log."""
    try:  # noqa: SIM105  it is said often
        target.emit(event, payload, **fields)
    except BusError:
        pass


def redact_text(text: str) -> str:
    """A text that may be told to everybody who listens."""
    return _redactor.text(text)
