"""Features of Ollama's chat API: shared fields and limits.

Sources of the limits: the API reference and the types of the server (2026). Chat templates reject a history whose
messages say nothing.
"""

from __future__ import annotations

from typing import Final

from dragoman.wire.limits import Limits, LimitTable
from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://docs.ollama.com/api/chat",
    request=frozenset({"logprobs", "top_logprobs", "tool_choice.allowed"}),
    reply=frozenset({"text.token_logprobs"}),
    reasons={
        "block.cache_hint": "this API caches prompts on its own",
        "tool.cache_hint": "this API caches prompts on its own",
        "cache_hint": "this API caches prompts on its own",
        "metadata": "this API keeps no answers and no labels",
        "store": "this API keeps no answers",
    },
)
LIMITS: Final = LimitTable(
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
