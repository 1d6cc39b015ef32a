"""Retry rules for letters that could not be handled, by error class.

A rule has a number of retries, a first delay that doubles up to a maximum, and whether the first failure is escalated.
An error without a class is classified by its text. Every rule ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec


class RetryRule(msgspec.Struct, frozen=True):
    """The rule of one error class."""

    retries: int  # after the first attempt
    first_s: float = 0.0  # delay before the first retry
    max_s: float = 0.0  # maximum delay
    escalate_immediately: bool = False  # escalate the first failure, too

    def delay_s(self, attempts: int) -> float:
        """Return the delay after a number of attempts."""
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
    """Return the ``error_class`` of an error, or the class that its text indicates."""
    error_class = getattr(error, "error_class", None)
    if isinstance(error_class, str) and error_class:
        return error_class
    text = str(error)
    return next((name for name, pattern in _PATTERNS if pattern.search(text)), OTHER)


def get_rule(rules: Mapping[str, RetryRule], error_class: str) -> RetryRule:
    """Return the rule of a class; without one, the rule of any other error."""
    return rules.get(error_class) or rules.get(OTHER) or RULES[OTHER]


def retry_at(rule: RetryRule, attempts: int, now: datetime, random_value: float) -> datetime | None:
    """Return the time of the next attempt, or none. ``random_value`` (0 to 1) shortens the delay by up to 20 %."""
    if attempts > rule.retries:
        return None
    return now + timedelta(seconds=rule.delay_s(attempts) * (1 - 0.2 * random_value))
