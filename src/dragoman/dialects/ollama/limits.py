"""Limits of Ollama's chat API.

Sources: the API reference and the types of the server (2026). Chat templates reject a history whose messages say
nothing.
"""

from __future__ import annotations

from typing import Final

from dragoman.wire.limits import Limits, LimitTable

TABLE: Final = LimitTable(
    "ollama",
    Limits(
        output=(1, 2**31 - 1),  # 0 and less mean no limit
        service_tiers=(),
        efforts=("low", "medium", "high"),
        allows_empty_text=False,
        media_types={"image": ("image/jpeg", "image/png", "image/gif", "image/webp")},
    ),
    has_result_ids=False,
)
