"""Features of the Responses API: shared fields, limits of the API and of OpenAI's models, and server tools.

Sources of the limits: platform.openai.com, the API reference, the pages on models and the guide to reasoning (2026).
Other providers of the dialect serve models with other names; of those only the ranges hold.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.openai_responses.blocks import TIERS
from dragoman.exchange import OpaqueTool
from dragoman.wire.limits import Limits, LimitTable
from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://platform.openai.com/docs/api-reference/responses/create",
    request=frozenset(
        {
            "logprobs",
            "top_logprobs",
            "verbosity",
            "store",
            "metadata",
            "safety_identifier",
            "prompt_cache_key",
            "tool_choice.allowed",
            "reasoning.summary",
            "response_format.description",
            "tool.strict",
            "tool.grammar",
            "tool.defer_loading",
            "image.detail",
            "text.citations",
        }
    ),
    reply=frozenset({"text.citations", "text.token_logprobs"}),
    reasons={
        "block.cache_hint": "this API caches prompts on its own",
        "tool.cache_hint": "this API caches prompts on its own",
        "cache_hint": "this API caches prompts on its own",
        "modalities": "this API returns text; images come from its image tool",
    },
)
OPENAI: Final = r"^(?:gpt-|chatgpt-|o\d|codex)"
REASONING: Final = r"^(?:o\d|gpt-[5-9]|codex)"
WITHOUT_REASONING: Final = r"^(?:gpt-[34]|chatgpt-4)"
LIMITS: Final = LimitTable(
    "openai_responses",
    Limits(
        service_tiers=tuple(sorted(TIERS)),
        needs_schema_type=True,
        ranges={"temperature": (0, 2), "top_p": (0, 1)},
        has_switch=False,
        needs_closed_schemas=True,
        media_types={"image": ("image/jpeg", "image/png", "image/gif", "image/webp")},
        url_schemes=("https://", "http://", "data:"),
    ),
    (
        (OPENAI, {"needs_json_word": "not system", "output": (16, 128_000)}),
        (r"^gpt-(?:3\.5|4-turbo)", {"output": (16, 4_096)}),
        (r"^gpt-4o", {"output": (16, 16_384)}),
        (r"^gpt-4\.1", {"output": (16, 32_768)}),
        (WITHOUT_REASONING, {"reasons": False}),
        (
            r"^(?:o\d|gpt-5(?:-(?:mini|nano|pro|codex))?(?:-\d{4}-|$))",
            {"rejected": ("temperature", "top_p"), "can_disable": False},
        ),
        (r"^o\d", {"efforts": ("low", "medium", "high"), "output": (16, 100_000)}),
        (r"^gpt-5(?:-(?:mini|nano))?(?:-\d{4}-|$)", {"efforts": ("minimal", "low", "medium", "high")}),
        (r"^gpt-5-(?:pro|codex)", {"efforts": ("low", "medium", "high")}),
        (
            r"^gpt-(?:5\.|[6-9])",
            {
                "rejected_beside_reasoning": ("temperature", "top_p"),
                "efforts": ("none", "low", "medium", "high", "xhigh"),
            },
        ),
    ),
)


# --- server tools ----------------------------------------------------------------------------------------------------

_TOOL_KINDS: Final = {
    "web_search": "web_search",
    "web_search_preview": "web_search",
    "code_interpreter": "code_execution",
    "file_search": "file_search",
    "image_generation": "image_generation",
    "mcp": "mcp",
    "tool_search": "tool_search",
    "computer_use_preview": "computer",
}


def read_server_tool(wire: dict[str, Any], dialect: str) -> OpaqueTool:
    """Return the tool with its kind and its shared settings."""
    filters, settings = wire.get("filters"), {}
    if isinstance(filters, dict) and filters.get("allowed_domains"):
        settings["allowed_domains"] = filters["allowed_domains"]
    if wire.get("user_location") is not None:
        settings["user_location"] = wire["user_location"]
    return OpaqueTool(dialect, wire, _TOOL_KINDS.get(str(wire.get("type"))), settings or None)


def write_server_tool(tool: OpaqueTool) -> dict[str, Any] | None:
    """Return this API's tool of the same kind, if it has one."""
    settings = tool.settings or {}
    match tool.kind:
        case "web_search":
            wire: dict[str, Any] = {"type": "web_search"}
            if settings.get("allowed_domains"):
                wire["filters"] = {"allowed_domains": settings["allowed_domains"]}
            location = settings.get("user_location")
            return {**wire, "user_location": location} if location is not None else wire
        case "code_execution":
            return {"type": "code_interpreter", "container": {"type": "auto"}}
        case _:
            return None
