"""Limits of the Interactions API: those of the models, which it shares with generateContent."""

from __future__ import annotations

from typing import Final

from dragoman.dialects.gemini import limits
from dragoman.wire.limits import LimitTable

TABLE: Final = LimitTable("gemini_interactions", limits.TABLE.base, limits.TABLE.families)
