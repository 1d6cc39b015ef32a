"""The log of a server: one JSON object per line on standard error.

    configure("info")        in a process that serves

A line has the time, level, logger and message. A line about a request has its id, method, route (as declared, so that
it contains no id and no token), status, milliseconds and the pseudonym of the caller. Invariant: only fields of
``FIELDS`` are logged, and all of them are redacted.
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
_LINE_BREAKS: Final = re.compile("[\x7f-\x9f\u2028\u2029]")  # JSON allows them unescaped


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON, without line breaks."""
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
        return _LINE_BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", msgspec.json.encode(fields).decode())


def _replace_surrogates(text: str) -> str:
    """A text whose lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode()


def configure(level: str = "info", stream: Any = None) -> logging.Handler:
    """Log to a stream as redacted JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(redact_record)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("dragoman").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return handler
