"""What headers say about a failure, whatever their case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the other side asked us to wait. A date needs a clock, and is for the one who has it."""
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = lowered.get(name, "")
        if _SECONDS.fullmatch(value):
            return float(value) / unit
    return None
