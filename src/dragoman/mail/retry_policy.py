"""How often a letter that could not be handled is tried again, by the class of what went wrong.

A class has a number of retries, a first pause that doubles with every attempt up to a longest one, and says whether
somebody is told at once rather than at the end. What raised without a class is put into one by its words. The one rule:
every class comes to an end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec


class RetryRule(msgspec.Struct, frozen=True):
    """What is done about one class of errors."""

    retries: int  # after the first attempt
    first_s: float = 0.0  # before the first retry
    max_s: float = 0.0  # before any
    escalate_immediately: bool = False  # somebody is told at the first failure

    def pause_s(self, attempts: int) -> float:
        """How long to wait after so many attempts."""
        return float(min(self.max_s, self.first_s * 2 ** min(attempts - 1, 30)))


OTHER: Final = "error"
RULES: Final[Mapping[str, RetryRule]] = {
    OTHER: RetryRule(3, 5, 300),
    "critical_error": RetryRule(1, escalate_immediately=True),
    "dependency_blocked": RetryRule(5, 60, 1_800),
    "resource_constraint": RetryRule(3, 30, 900),
    "needs_input": RetryRule(0),
    "not_retryable": RetryRule(0),
}
_PATTERNS: Final = (
    ("critical_error", re.compile(r"\b(?:security|data loss|system breaking|critical|fatal)\b", re.IGNORECASE)),
    ("dependency_blocked", re.compile(r"\b(?:dependency|blocked|waiting for|requires)\b", re.IGNORECASE)),
    ("resource_constraint", re.compile(r"\b(?:quota|limit|memory|disk|cpu|resource)\b", re.IGNORECASE)),
)


def classify_error(error: BaseException | str) -> str:
    """The class of an error: what it says itself in ``error_class``, or what its words say."""
    error_class = getattr(error, "error_class", None)
    if isinstance(error_class, str) and error_class:
        return error_class
    text = str(error)
    return next((name for name, pattern in _PATTERNS if pattern.search(text)), OTHER)


def get_rule(rules: Mapping[str, RetryRule], error_class: str) -> RetryRule:
    """The rule of a class; one that has none is treated as any other error."""
    return rules.get(error_class) or rules.get(OTHER) or RULES[OTHER]


def retry_at(rule: RetryRule, attempts: int, now: datetime, random_value: float) -> datetime | None:
    """When to try again after so many attempts; ``None`` if that was the last. ``chance`` (0 to 1) spreads them."""
    if attempts > rule.retries:
        return None
    return now + timedelta(seconds=rule.pause_s(attempts) * (1 - 0.2 * random_value))
