"""Which model answers a turn, and why: seven slots are asked in a fixed order, and the first valid candidate wins.

Everything comes in as values: the message, what is known of the history, the policy, the models with what they can do,
who is reachable, what worked before, the time. A decision goes out, with every slot that was asked and its reason. The
one rule: what a person chose explicitly is taken or refused, and never replaced by something else without a word.
"""

from __future__ import annotations

from dragoman.routing.pattern import (
    Fingerprint,
    PatternSample,
    PatternSettings,
    fingerprint_of,
    recommend,
)

__all__ = [
    "Fingerprint",
    "PatternSample",
    "PatternSettings",
    "fingerprint_of",
    "recommend",
]
