"""The limits of targets as data, and the steps that fit a request to them, so that the target accepts it.

    Limits, LimitTable    a table for each dialect, with the families of its models
    claude                limits of the families of Claude

``preparation.fit_request`` takes these steps before a dialect writes a request.
"""

from __future__ import annotations

from dragoman.wire.limits import claude
from dragoman.wire.limits.table import Limits, LimitTable

__all__ = ["LimitTable", "Limits", "claude"]
