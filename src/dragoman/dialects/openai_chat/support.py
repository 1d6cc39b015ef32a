"""Features of Chat Completions: shared fields, its limits, and those of the families of OpenAI's models.

Sources of the limits: platform.openai.com, the API reference, the pages on models and the guide to reasoning (2026).
Other providers of the dialect serve models with other names; of those only the ranges hold.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.openai_chat.blocks import TIERS
from dragoman.wire.limits import Limits, LimitTable
from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://platform.openai.com/docs/api-reference/chat/create",
    request=frozenset(
        {
            "n",
            "logprobs",
            "top_logprobs",
            "verbosity",
            "store",
            "metadata",
            "safety_identifier",
            "prompt_cache_key",
            "modalities",
            "tool_choice.allowed",
            "response_format.description",
            "tool.strict",
            "tool.grammar",
            "image.detail",
        }
    ),
    reply=frozenset({"alternatives", "text.citations", "text.token_logprobs"}),
    reasons={
        "text.citations": "this API accepts no citations in a request",
        "block.cache_hint": "this API caches prompts on its own",
        "tool.cache_hint": "this API caches prompts on its own",
        "cache_hint": "this API caches prompts on its own",
    },
)
IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
AUDIO: Final = ("audio/wav", "audio/x-wav", "audio/mp3", "audio/mpeg")
SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
OPENAI: Final = r"^(?:gpt-|chatgpt-|o\d|codex)"
FIRST_REASONING: Final = r"^(?:o\d|gpt-5(?:-(?:mini|nano|pro|codex))?(?:-\d{4}-|$))"
LIMITS: Final = LimitTable(
    "openai_chat",
    Limits(
        service_tiers=TIERS,
        needs_schema_type=True,
        ranges={
            "temperature": (0, 2),
            "top_p": (0, 1),
            "presence_penalty": (-2, 2),
            "frequency_penalty": (-2, 2),
        },
        has_switch=False,
        needs_closed_schemas=True,
        media_types={"image": IMAGES},
        url_schemes=("https://", "http://", "data:"),
    ),
    (
        (
            OPENAI,
            {
                "max_stop_sequences": 4,
                "needs_json_word": "any role",
                "output": (1, 128_000),
                "media_types": {"image": IMAGES, "audio": (), "video": ()},
            },
        ),
        (r"^gpt-.*audio", {"media_types": {"image": (), "audio": AUDIO, "video": ()}}),
        (r"^gpt-(?:3\.5|4-turbo)", {"output": (1, 4_096)}),
        (r"^gpt-4o", {"output": (1, 16_384)}),
        (r"^gpt-4\.1", {"output": (1, 32_768)}),
        (r"^(?:gpt-[34]|chatgpt-4)", {"reasons": False}),
        (FIRST_REASONING, {"rejected": (*SAMPLING, "stop_sequences"), "can_disable": False}),
        (r"^o\d", {"efforts": ("low", "medium", "high"), "allows_parallel": False, "output": (1, 100_000)}),
        (r"^gpt-5(?:-(?:mini|nano))?(?:-\d{4}-|$)", {"efforts": ("minimal", "low", "medium", "high")}),
        (r"^gpt-5-(?:pro|codex)", {"efforts": ("low", "medium", "high")}),
        (
            r"^gpt-(?:5\.|[6-9])",
            {"rejected_beside_reasoning": SAMPLING, "efforts": ("none", "low", "medium", "high", "xhigh")},
        ),
    ),
    (
        ("alternate_roles", {"alternates": True, "system_place": "first"}),
        ("own_service_tiers", {"service_tiers": None}),
        ("no_prefill", {"ends_with_user": True}),
        ("reasoning_object", {"budget": (1, 1_000_000), "has_switch": True}),
        ("thinking_object", {"budget": (1, 1_000_000), "has_switch": True}),  # the writer reports the loss
        ("enable_thinking", {"budget": (1, 1_000_000), "has_switch": True}),
    ),
)
