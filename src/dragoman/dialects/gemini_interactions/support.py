"""Features of interactions: shared fields, and the limits of the models, which are those of generateContent."""

from __future__ import annotations

from typing import Final

from dragoman.dialects.gemini import support as gemini
from dragoman.wire.limits import LimitTable
from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://ai.google.dev/api/interactions-api",
    request=frozenset({"store", "tool_choice.allowed"}),
    reasons={"text.citations": "this API accepts no citations in a request"},
)
LIMITS: Final = LimitTable("gemini_interactions", gemini.LIMITS.base, gemini.LIMITS.families)
