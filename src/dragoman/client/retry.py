"""Decides whether and when a call is retried. Pure: time and random values are arguments.

Invariant: a call is never retried before the time that the provider requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from dragoman.client.call import Retries
from dragoman.exchange import ErrorClass, Fault

_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})


def retry_delay_s(
    fault: Fault, retry: int, retries: Retries, random_value: float, *, provider_hint: bool | None = None
) -> float | None:
    """Return the delay before the next attempt, or none if there is no further attempt.

    ``retry`` counts from 0, ``random_value`` is between 0 and 1, ``provider_hint`` is the value of ``retry_hint``.
    """
    if retry >= retries.max_retries or not (is_retryable(fault) if provider_hint is None else provider_hint):
        return None
    requested_s = fault.retry_after_s or 0.0
    if requested_s > retries.max_retry_after_s:
        return None
    backoff_s = retries.first_wait_s * 2.0 ** min(retry, 30) * (1 + retries.jitter * (2 * random_value - 1))
    return max(requested_s, min(backoff_s, retries.longest_wait_s))


def is_retryable(fault: Fault) -> bool:
    """Whether the same request may succeed later."""
    return fault.retryable and fault.error_class in _RETRYABLE


def retry_hint(headers: Mapping[str, str]) -> bool | None:
    """Return the provider's ``x-should-retry``, if present."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def resolve_retry_date(fault: Fault, headers: Mapping[str, str], now: datetime) -> Fault:
    """Set ``retry_after_s`` of a fault from a ``retry-after`` header that contains a date."""
    if fault.retry_after_s is not None or "retry-after" not in headers:
        return fault
    try:
        retry_date = parsedate_to_datetime(headers["retry-after"])
        return fault.replace(retry_after_s=max(0.0, (retry_date - now).total_seconds()))
    except (ValueError, TypeError, OverflowError):  # not a date, or a date without a time zone
        return fault
