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
from typing import Any

from dragoman.letters.codec import letter_from
from dragoman.letters.naming import letter_id
from dragoman.letters.types import (
    PROTOCOL_VERSION,
    ErrorLetter,
    Letter,
    NeedsInputLetter,
    TaskResultLetter,
)


def task_result_letter(
    *,
    sender_id: str,
    recipient_id: str,
    task_id: str,
    timestamp: datetime | str,
    output: str,
    status: str = "success",
    success: bool | None = None,
    score: float | None = None,
    duration_sec: float | None = None,
    notes: str | None = None,
    artifacts: Iterable[Mapping[str, Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    **envelope: Any,
) -> TaskResultLetter:
    """The result of a task. ``envelope`` are further fields of ``make_letter``."""
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
    ends: dict[str, Any] = {
        "sender_id": sender_id,
        "recipient_id": recipient_id,
        "task_id": task_id,
        "timestamp": timestamp,
    }
    letter = make_letter("task_result", payload, **ends, **envelope)
    assert isinstance(letter, TaskResultLetter)
    return letter


def error_letter(
    *,
    sender_id: str,
    recipient_id: str,
    task_id: str,
    timestamp: datetime | str,
    code: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    retryable: bool | None = None,
    suggested_actions: Iterable[str] | None = None,
    **envelope: Any,
) -> ErrorLetter:
    """A failure. ``envelope`` are further fields of ``make_letter``."""
    actions = None if suggested_actions is None else list(suggested_actions)
    payload = _drop_none(code=code, message=message, details=details, retryable=retryable, suggested_actions=actions)
    ends: dict[str, Any] = {
        "sender_id": sender_id,
        "recipient_id": recipient_id,
        "task_id": task_id,
        "timestamp": timestamp,
    }
    letter = make_letter("error", payload, **ends, **envelope)
    assert isinstance(letter, ErrorLetter)
    return letter


def needs_input_letter(
    *,
    sender_id: str,
    recipient_id: str,
    task_id: str,
    timestamp: datetime | str,
    requested_inputs: Iterable[Mapping[str, Any]],
    about: str | None = None,
    **envelope: Any,
) -> NeedsInputLetter:
    """A request for input; ``about`` is the ``context`` of the payload, a text for the recipient."""
    payload = _drop_none(requested_inputs=list(requested_inputs), context=about)
    ends: dict[str, Any] = {
        "sender_id": sender_id,
        "recipient_id": recipient_id,
        "task_id": task_id,
        "timestamp": timestamp,
    }
    letter = make_letter("needs_input", payload, **ends, **envelope)
    assert isinstance(letter, NeedsInputLetter)
    return letter


def answer_letter(
    request: NeedsInputLetter,
    *,
    inputs: Mapping[str, Any],
    timestamp: datetime | str,
    output: str = "Input given",
    sender_id: str | None = None,
    **envelope: Any,
) -> TaskResultLetter:
    """The answer to a request for input, from its recipient to its sender."""
    context = {**(envelope.pop("context", None) or {}), "in_reply_to": letter_id(request)}
    envelope.setdefault("trace_id", request.trace_id or None)
    return task_result_letter(
        sender_id=sender_id or request.recipient_id,
        recipient_id=request.sender_id,
        task_id=request.task_id,
        timestamp=timestamp,
        output=output,
        inputs=inputs,
        context=context,
        **envelope,
    )


def make_letter(
    kind: str,
    payload: Mapping[str, Any],
    *,
    sender_id: str,
    recipient_id: str,
    task_id: str,
    timestamp: datetime | str,
    retry_count: int | None = None,
    trace_id: str | None = None,
    message_id: str | None = None,
    depends_on: Iterable[str] | None = None,
    session_id: str | None = None,
    turn_id: str | None = None,
    context: Mapping[str, Any] | None = None,
    protocol_version: str = PROTOCOL_VERSION,
) -> Letter:
    """Return a letter with a payload. Ids and ``depends_on`` are added to its ``context``."""
    known_context = _drop_none(
        message_id=message_id,
        depends_on=None if depends_on is None else list(depends_on),
        session_id=session_id,
        turn_id=turn_id,
    )
    return letter_from(
        _drop_none(
            type=kind,
            protocol_version=protocol_version,
            sender_id=sender_id,
            recipient_id=recipient_id,
            timestamp=_format_time(timestamp),
            task_id=task_id,
            retry_count=retry_count,
            trace_id=trace_id,
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
