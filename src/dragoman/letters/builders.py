"""Builders for letters.

    task_result_letter(sender_id="CA", recipient_id="ARCH", task_id="TASK-1", timestamp=now, output="done")
    error_letter(…, code="VALIDATION_ERROR", message="…")
    needs_input_letter(…, requested_inputs=[{"id": "api_key", …}])
    answer_letter(request, inputs={"api_key": "…"}, timestamp=now)

Arguments that are ``None`` are omitted. Every builder validates its letter and raises ``LetterError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Required, TypedDict, Unpack

from dragoman.letters.codec import letter_from
from dragoman.letters.types import PROTOCOL_VERSION, ErrorLetter, Letter, NeedsInputLetter, TaskResultLetter, letter_id


class LetterFields(TypedDict, total=False):
    """The fields of any letter. Ids and ``depends_on`` are written to its ``context``."""

    sender_id: Required[str]
    recipient_id: Required[str]
    task_id: Required[str]
    timestamp: Required[datetime | str]
    retry_count: int | None
    trace_id: str | None
    message_id: str | None
    depends_on: Iterable[str] | None
    session_id: str | None
    turn_id: str | None
    context: Mapping[str, Any] | None
    protocol_version: str


def task_result_letter(
    *,
    output: str,
    status: str = "success",
    success: bool | None = None,
    score: float | None = None,
    duration_sec: float | None = None,
    notes: str | None = None,
    artifacts: Iterable[Mapping[str, Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    **fields: Unpack[LetterFields],
) -> TaskResultLetter:
    """The result of a task."""
    result = _drop_none(output=output, artifacts=None if artifacts is None else list(artifacts), inputs=inputs)
    payload = _drop_none(
        status=status,
        success=success,
        score=score,
        duration_sec=duration_sec,
        notes=notes,
        result=result,
        metrics=metrics,
    )
    letter = make_letter("task_result", payload, **fields)
    assert isinstance(letter, TaskResultLetter)
    return letter


def error_letter(
    *,
    code: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    retryable: bool | None = None,
    suggested_actions: Iterable[str] | None = None,
    **fields: Unpack[LetterFields],
) -> ErrorLetter:
    """The error of a task."""
    actions = None if suggested_actions is None else list(suggested_actions)
    payload = _drop_none(code=code, message=message, details=details, retryable=retryable, suggested_actions=actions)
    letter = make_letter("error", payload, **fields)
    assert isinstance(letter, ErrorLetter)
    return letter


def needs_input_letter(
    *, requested_inputs: Iterable[Mapping[str, Any]], about: str | None = None, **fields: Unpack[LetterFields]
) -> NeedsInputLetter:
    """A request for input; ``about`` is the ``context`` of the payload, a text for the recipient."""
    payload = _drop_none(requested_inputs=list(requested_inputs), context=about)
    letter = make_letter("needs_input", payload, **fields)
    assert isinstance(letter, NeedsInputLetter)
    return letter


def answer_letter(
    request: NeedsInputLetter,
    *,
    inputs: Mapping[str, Any],
    timestamp: datetime | str,
    output: str = "Input given",
    sender_id: str | None = None,
    **fields: Any,
) -> TaskResultLetter:
    """The answer to a request for input, from its recipient to its sender."""
    context = {**(fields.pop("context", None) or {}), "in_reply_to": letter_id(request)}
    fields.setdefault("trace_id", request.trace_id or None)
    return task_result_letter(
        sender_id=sender_id or request.recipient_id,
        recipient_id=request.sender_id,
        task_id=request.task_id,
        timestamp=timestamp,
        output=output,
        inputs=inputs,
        context=context,
        **fields,
    )


def make_letter(kind: str, payload: Mapping[str, Any], **fields: Unpack[LetterFields]) -> Letter:
    """Return a letter with a payload."""
    if unknown := fields.keys() - LetterFields.__annotations__.keys():
        raise TypeError(f"a letter has no field {', '.join(sorted(unknown))}")
    depends_on, context = fields.get("depends_on"), fields.get("context")
    known_context = _drop_none(
        message_id=fields.get("message_id"),
        depends_on=None if depends_on is None else list(depends_on),
        session_id=fields.get("session_id"),
        turn_id=fields.get("turn_id"),
    )
    return letter_from(
        _drop_none(
            type=kind,
            protocol_version=fields.get("protocol_version", PROTOCOL_VERSION),
            sender_id=fields["sender_id"],
            recipient_id=fields["recipient_id"],
            timestamp=_format_time(fields["timestamp"]),
            task_id=fields["task_id"],
            retry_count=fields.get("retry_count"),
            trace_id=fields.get("trace_id"),
            payload=payload,
            context={**(context or {}), **known_context} if context is not None or known_context else None,
        )
    )


def _format_time(timestamp: datetime | str) -> str:
    if isinstance(timestamp, str):
        return timestamp
    return timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _drop_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
