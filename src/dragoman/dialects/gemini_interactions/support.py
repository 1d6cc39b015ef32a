"""The shared fields that interactions have."""

from __future__ import annotations

from typing import Final

from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://ai.google.dev/api/interactions-api",
    request=frozenset({"store", "tool_choice.allowed"}),
    reasons={"text.citations": "this API accepts no citations in a request"},
)
