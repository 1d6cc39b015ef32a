"""Whether to ask again, and after how long.

Pure: the time and chance come in as arguments. The one rule: what the provider asked for is kept or the call is given
up; it is never asked again sooner.
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
    """How long to wait before the next try, or none if there is to be none.

    ``retry`` counts from 0, ``chance`` is between 0 and 1, ``provider_hint`` is what the provider itself said.
    """
    if retry >= retries.max_retries or not (is_retryable(fault) if provider_hint is None else provider_hint):
        return None
    requested_s = fault.retry_after_s or 0.0
    if requested_s > retries.max_retry_after_s:
        return None
    backoff = retries.first_wait_s * 2.0 ** min(retry, 30) * (1 + retries.jitter * (2 * random_value - 1))
    return max(requested_s, min(backoff, retries.longest_wait_s))


def is_retryable(fault: Fault) -> bool:
    """Whether the same request may work later."""
    return fault.retryable and fault.error_class in _RETRYABLE


def retry_hint(headers: Mapping[str, str]) -> bool | None:
    """What the provider says about trying again, if it says anything."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def resolve_retry_date(fault: Fault, headers: Mapping[str, str], now: datetime) -> Fault:
    """The fault with the time to wait also where the provider gave a date, which takes a clock to read."""
    if fault.retry_after_s is not None or "retry-after" not in headers:
        return fault
    try:
        retry_date = parsedate_to_datetime(headers["retry-after"])
        return fault.replace(retry_after_s=max(0.0, (retry_date - now).total_seconds()))
    except (ValueError, TypeError, OverflowError):  # garbage, or a date without a zone
        return fault
