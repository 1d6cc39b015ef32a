"""What a server writes about itself: one JSON object a line, on the standard error.

    configure("info")        for a process that serves

A line has the time, the level, who says it and what; one about a request has its id, method, route (as it is declared,
so that no id and no token of a query gets in), status, milliseconds and the pseudonym of who asked. The one rule: only
fields that stand in ``FIELDS`` are written, and all of them without secrets.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dragoman.redaction import redact_record

FIELDS: Final = ("request_id", "method", "route", "status", "ms", "user", "session_id", "run_id", "model", "worker")
_LINE_BREAKS: Final = re.compile("[\x7f-\x9f\u2028\u2029]")  # which JSON may hold as they are


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """What a record says, without line ends in it."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _replace_surrogates(record.getMessage()),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if isinstance(value, str | int | float):
                fields[name] = _replace_surrogates(value) if isinstance(value, str) else value
        if record.exc_text:
            fields["trace"] = _replace_surrogates(record.exc_text)
        return _LINE_BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(fields).decode())


def _replace_surrogates(text: str) -> str:
    """A text without what no bytes can say."""
    return text.encode("utf-8", "replace").decode()


def configure(level: str = "info", stream: Any = None) -> logging.Handler:
    """Write what this process logs as JSON lines, without secrets."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(redact_record)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("dragoman").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return handler
