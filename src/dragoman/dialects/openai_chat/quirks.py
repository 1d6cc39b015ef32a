"""Quirks of providers with a Chat Completions API: other keys, additional options, rejected options.

``dragoman.catalog`` documents each name. A quirk that is not listed here changes nothing; an option that the provider
does not accept is a loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from dragoman.dialects.openai_chat.blocks import NAME
from dragoman.exchange import Loss, Options, Reasoning, ResponseFormat, ToolChoice
from dragoman.wire.losses import REFUSALS, drop_refused_options

_OPTION_KEYS: Final = {
    "max_tokens": ("max_output_tokens", "max_tokens"),
    "random_seed": ("seed", "random_seed"),
    "top_k": ("top_k", "top_k"),
    "own_service_tiers": ("service_tier", "service_tier"),
    "reasoning_object": ("reasoning", "reasoning"),
}
QUIRKS: Final = (
    *_OPTION_KEYS,
    *REFUSALS,
    "metadata",
    "prompt_cache_key",
    "any_for_required",
    "thinking_object",
    "enable_thinking",
    "thinking_budget",
    "no_effort",
    "usage_when_asked",
    "no_strict",
    "no_stream_options",
    "no_json_schema",
    "no_named_tool",
    "auto_tool_choice_only",
    "alternate_roles",
    "no_prefill",
    "terminal_reason_optional",
)


def apply_quirks(
    options: Options, option_keys: Mapping[str, str], quirks: Collection[str], losses: list[Loss]
) -> tuple[Options, dict[str, str], dict[str, Any]]:
    """Return the options that the provider accepts, their keys, and additional fields.

    The keys of the provider override those of the request.
    """
    options = _drop_unsupported(options, quirks, losses)
    provider_keys = {**option_keys, **dict(_OPTION_KEYS[quirk] for quirk in quirks if quirk in _OPTION_KEYS)}
    fields: dict[str, Any] = {}
    choice, reasoning = options.tool_choice, options.reasoning
    if "any_for_required" in quirks and choice is not None and choice.mode == "required":
        fields[provider_keys.get("tool_choice", "tool_choice")] = "any"
    if reasoning is not None and ("thinking_object" in quirks or "enable_thinking" in quirks):
        fields.update(_write_switch(reasoning, quirks, losses))
        options = options.replace(reasoning=None)
    return options, provider_keys, fields


def _drop_unsupported(options: Options, quirks: Collection[str], losses: list[Loss]) -> Options:
    options = drop_refused_options(options, quirks, NAME, losses)
    changes: dict[str, Any] = {}
    if options.tool_choice is not None:
        changes["tool_choice"] = _reduce_choice(options.tool_choice, quirks, losses)
    if options.response_format is not None:
        changes["response_format"] = _reduce_format(options.response_format, quirks, losses)
    return options.replace(**changes) if changes else options


def _reduce_choice(choice: ToolChoice, quirks: Collection[str], losses: list[Loss]) -> ToolChoice | None:
    if "auto_tool_choice_only" in quirks and choice.mode != "auto":
        losses.append(_make_loss("tool_choice", "this provider leaves it to the model whether to call a tool"))
        return None
    if "no_named_tool" in quirks and choice.mode == "tool":
        losses.append(
            _make_loss("tool_choice", "this provider cannot require a certain tool; any tool call is required")
        )
        return ToolChoice("required")
    return choice


def _reduce_format(response_format: ResponseFormat, quirks: Collection[str], losses: list[Loss]) -> ResponseFormat:
    if "no_json_schema" in quirks and response_format.kind == "json_schema":
        losses.append(_make_loss("response_format", "this provider accepts no schema; any JSON is requested"))
        return ResponseFormat("json")
    if "no_strict" in quirks and response_format.strict is not None:
        losses.append(_make_loss("response_format", "this provider has no strict option for schemas"))
        return response_format.replace(strict=None)
    return response_format


def _write_switch(reasoning: Reasoning, quirks: Collection[str], losses: list[Loss]) -> dict[str, Any]:
    """Write reasoning for a provider with a switch; an effort or a budget turns it on."""
    fields: dict[str, Any] = {}
    effort, budget, is_on = reasoning.effort, reasoning.budget_tokens, reasoning.enabled
    if effort == "none":
        effort, is_on = None, False
    if effort is not None and "no_effort" in quirks:
        losses.append(_make_loss("reasoning", "this provider has a switch instead of an effort"))
        effort, is_on = None, is_on is not False
    if budget is not None and is_on is not False:
        is_on = True
        if "thinking_budget" in quirks:
            fields["thinking_budget"] = budget
        else:
            losses.append(_make_loss("reasoning", "this provider has no number of tokens"))
    if is_on is not None:
        is_object = "thinking_object" in quirks
        fields["thinking" if is_object else "enable_thinking"] = (
            {"type": "enabled" if is_on else "disabled"} if is_object else is_on
        )
    if effort is not None and is_on is not False:
        fields["reasoning_effort"] = effort
    return fields


def apply_wire_quirks(wire: dict[str, Any], quirks: Collection[str], losses: list[Loss]) -> None:
    """Change the written request, including restored residue."""
    if "no_stream_options" in quirks:
        if wire.pop("stream_options", None) is not None:
            losses.append(_make_loss("stream_options", "this provider has no such option"))
    elif "usage_when_asked" in quirks and wire.get("stream") is True:
        wire.setdefault("stream_options", {"include_usage": True})
    if "no_strict" in quirks:
        wire.update(
            (key, [_drop_strict(tool, losses) for tool in wire[key]]) for key in ("tools", "functions") if key in wire
        )


def _drop_strict(tool: Any, losses: list[Loss]) -> Any:
    """Return the tool without ``strict``."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or "strict" not in function:
        return tool
    losses.append(_make_loss("tool", "this provider has no strict option for schemas"))
    relaxed = {key: value for key, value in function.items() if key != "strict"}
    return {**tool, "function": relaxed} if "function" in tool else relaxed


def _make_loss(name: str, reason: str) -> Loss:
    return Loss("", "", name, NAME, reason)
