"""What a server writes about itself: one JSON object a line, on the standard error.

    configure("info")        for a process that serves

A line has the time, the level, who says it and what; one about a request has its id, method, route (as it is declared,
so that no id and no token of a query gets in), status, milliseconds and the pseudonym of who asked. The one rule: only
fields that stand in ``FIELDS`` are written, and all of them without secrets.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dragoman.redaction import WITHHELD, redact_record

FIELDS: Final = ("request_id", "method", "route", "status", "ms", "user", "session_id", "run_id", "model", "worker")
LEVELS: Final = ("debug", "info", "warning", "error")


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """What a record says, without line ends in it."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if isinstance(value, str | int | float):
                said[name] = value
        if record.exc_text:
            said["trace"] = record.exc_text
        try:
            return msgspec.json.encode(said).decode()
        except (ValueError, TypeError, UnicodeError):  # a lone surrogate
            return msgspec.json.encode({**said, "message": WITHHELD, "trace": WITHHELD}).decode("utf-8", "replace")


def configure(level: str = "info", stream: Any = None) -> logging.Handler:
    """Write what this process logs as JSON lines, without secrets."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(redact_record)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("dragoman").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return handler
