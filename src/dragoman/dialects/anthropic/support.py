"""Features of the Messages API: shared fields, limits with the default output limit that it requires, server tools.

Sources of the limits: platform.claude.com, the API reference and the page on models (2026).
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.exchange import OpaqueTool
from dragoman.wire.limits import CLAUDE_FAMILIES, CLAUDE_WITH_BUDGET, Families, Limits, LimitTable
from dragoman.wire.support import Support

SUPPORT: Final = Support(
    documentation="https://docs.claude.com/en/api/messages",
    request=frozenset(
        {
            "cache_hint",
            "block.cache_hint",
            "tool.cache_hint",
            "tool.strict",
            "tool.defer_loading",
            "tool_choice.allowed",
            "reasoning.summary",
            "safety_identifier",
            "text.citations",
            "document.context",
            "document.cite",
        }
    ),
    reply=frozenset({"text.citations", "stop_details"}),
)
_DEFAULT_OUTPUTS: Final[Families] = (  # an eighth of the context, if the model allows it
    (r"claude-3-5-", {"default_output": 8_192}),
    (CLAUDE_WITH_BUDGET, {"default_output": 25_000}),
    (r"claude-(?:[a-z]+-4-[6-9]|[a-z]+-[5-9])", {"default_output": 125_000, "ends_with_user": True}),
)
LIMITS: Final = LimitTable(
    "anthropic",
    Limits(
        service_tiers=("auto", "standard_only"),
        ranges={"temperature": (0, 1), "top_p": (0, 1), "top_k": (0, 1_000_000)},
        rejected_beside_reasoning=("temperature", "top_p", "top_k"),
        is_effort_reasoning=False,
        allows_blank_stop=False,
        needs_schema_type=True,
        default_output=4_096,
        default_output_whole=21_333,  # the provider's SDKs stream longer answers: they take over ten minutes
        budget=(1_024, 128_000),
        is_budget_in_output=True,
        allows_forced_choice_beside_budget=False,
        allows_empty_text=False,
        allows_blank_text=False,
        allows_trailing_space=False,
        media_types={"image": ("image/jpeg", "image/png", "image/gif", "image/webp")},
        url_schemes=("https://", "http://"),
        max_user_length=256,
        max_strict_tools=20,
    ),
    (*CLAUDE_FAMILIES, *_DEFAULT_OUTPUTS),
)


# --- server tools ----------------------------------------------------------------------------------------------------

_TOOL_KINDS: Final = (
    "web_search",
    "web_fetch",
    "code_execution",
    "tool_search",
    "computer",
    "text_editor",
    "bash",
    "memory",
)
_TOOL_SETTINGS: Final = ("allowed_domains", "blocked_domains", "user_location", "max_uses")
_TOOL_WIRES: Final[dict[str, dict[str, Any]]] = {  # the versions that need no beta header
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "web_fetch": {"type": "web_fetch_20250910", "name": "web_fetch"},
    "code_execution": {"type": "code_execution_20260521", "name": "code_execution"},
}


def read_server_tool(wire: dict[str, Any], dialect: str) -> OpaqueTool:
    """Return the tool with its kind and its shared settings."""
    word = str(wire.get("type"))
    kind = "mcp" if word == "mcp_toolset" else next((kind for kind in _TOOL_KINDS if word.startswith(kind)), None)
    settings = {key: wire[key] for key in _TOOL_SETTINGS if wire.get(key) is not None}
    return OpaqueTool(dialect, wire, kind, settings or None)


def write_server_tool(tool: OpaqueTool) -> dict[str, Any] | None:
    """Return this API's tool of the same kind, if it has one."""
    wire = _TOOL_WIRES.get(tool.kind or "")
    if wire is None:
        return None
    keys = _TOOL_SETTINGS if tool.kind in ("web_search", "web_fetch") else ()
    return {**wire, **{key: value for key, value in (tool.settings or {}).items() if key in keys}}
