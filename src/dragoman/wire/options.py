"""Fit the options and the tools of a request to the limits of a target.

    fit_options(request, limits, report) -> Options
    fit_tools(tools, limits, report) -> tools

Efforts and budgets of reasoning are converted into each other where a target has only one of them. Invariant: an
option that changes is in the report; one that is left out is a loss.

Some APIs enforce a schema only if every object lists all of its properties as required and allows no others. Some
reject a schema without a type; the input of a tool is an object. Invariant: names and descriptions stay, and a schema
accepts the inputs that it accepted before.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.exchange import OpaqueTool, Options, Reasoning, Request, ResponseFormat, ToolChoice, ToolDefinition
from dragoman.message import Role, TextBlock
from dragoman.wire.limits import Limits, Report

Tools = tuple[ToolDefinition | OpaqueTool, ...]
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Google publishes these numbers for its OpenAI-compatible endpoint; the greatest two continue the row.
BUDGETS: Final = {"minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576, "xhigh": 32_768, "max": 65_536}
_ANSWER_TOKENS: Final = 4_096  # beside a budget, if the request sets no output limit
_NONE: Final = Reasoning()


def fit_options(request: Request, limits: Limits, report: Report) -> Options:
    """Return the options that the target accepts."""
    options = request.options
    changes: dict[str, Any] = {}
    has_tools = any(_is_carried(tool, report.dialect) for tool in request.tools)
    if not has_tools and limits.choice_needs_tools:
        _drop_choice(options, changes, report)
    elif options.tool_choice is not None and options.tool_choice.mode == "tool":
        _check_named_tool(options.tool_choice, request, changes, report)
    if options.parallel_tool_calls is not None and not limits.allows_parallel:
        _drop(
            changes,
            "parallel_tool_calls",
            options.parallel_tool_calls is False,
            "this model has no such option",
            report,
        )
    choice = changes.get("tool_choice", options.tool_choice)
    reasoning, output = _fit_reasoning_and_output(options, choice, limits, report)
    if reasoning is not options.reasoning:
        changes["reasoning"] = reasoning
    if output != options.max_output_tokens:
        changes["max_output_tokens"] = output
    _fit_sampling(options, reasoning, limits, changes, report)
    _fit_stop(options, limits, changes, report)
    if options.response_format is not None:
        _fit_format(request, has_tools, limits, changes, report)
    if limits.max_user_length is not None and options.user is not None and len(options.user) > limits.max_user_length:
        _drop(changes, "user", True, f"it is longer than {limits.max_user_length} characters", report)
    if options.service_tier is not None and limits.service_tiers is not None:
        _fit_tier(options.service_tier, limits.service_tiers, changes, report)
    return msgspec.structs.replace(options, **changes) if changes else options


# Names of one tier: what most requests get, and what is served first.
_TIERS: Final = (("default", "standard", "standard_only", "on_demand"), ("priority", "performance"))


def _fit_tier(tier: str, accepted: tuple[str, ...], changes: dict[str, Any], report: Report) -> None:
    """Replace a tier by the same tier under its name here. A tier that has none is left to the dialect."""
    if tier in accepted:
        return
    names = next((group for group in _TIERS if tier in group), ())
    same = next((name for name in accepted if name in names), None)
    if same is None and tier == "priority" and "auto" in accepted:
        same = "auto"  # Anthropic serves such a request first if the organisation has bought capacity
    if same is not None:
        changes["service_tier"] = same
        report.adjust("service_tier", f"{tier} becomes {same}: the API has another name for it")
    elif tier == "auto" or (tier in _TIERS[0] and not accepted):
        _drop(changes, "service_tier", False, "the API selects the tier itself", report)


def _drop(changes: dict[str, Any], name: str, is_loss: bool, reason: str, report: Report) -> None:
    changes[name] = () if name == "stop_sequences" else None
    (report.lose if is_loss else report.adjust)(name, reason if is_loss else f"left out: {reason}")


# --- choice of a tool -------------------------------------------------------------------------------------------------


def _is_carried(tool: ToolDefinition | OpaqueTool, dialect: str) -> bool:
    return not isinstance(tool, OpaqueTool) or tool.dialect == dialect


def _drop_choice(options: Options, changes: dict[str, Any], report: Report) -> None:
    reason = "the request has no tools"
    if options.tool_choice is not None:
        _drop(changes, "tool_choice", options.tool_choice.mode in ("required", "tool"), reason, report)
    if options.parallel_tool_calls is not None:
        _drop(changes, "parallel_tool_calls", False, reason, report)


def _check_named_tool(choice: ToolChoice, request: Request, changes: dict[str, Any], report: Report) -> None:
    names = [tool.name for tool in request.tools if isinstance(tool, ToolDefinition)]
    if choice.name not in names:
        _drop(changes, "tool_choice", True, "the request has no such tool", report)


# --- reasoning and the length of the answer --------------------------------------------------------------------------


def _fit_reasoning_and_output(
    options: Options, choice: ToolChoice | None, limits: Limits, report: Report
) -> tuple[Reasoning | None, int | None]:
    reasoning = options.reasoning
    if reasoning is not None and reasoning != _NONE:
        reasoning = _fit_reasoning(reasoning, limits, report)
    budget = reasoning.budget_tokens if reasoning is not None else None
    is_forced = choice is not None and choice.mode in ("required", "tool")
    if budget is not None and is_forced and not limits.allows_forced_choice_beside_budget:
        report.lose("reasoning", "this API cannot force a tool call while the model reasons")
        reasoning = budget = None
    output = _fit_output(options, budget, limits, report)
    if budget is not None and reasoning is not None and limits.is_budget_in_output and output is not None:
        reasoning = _fit_budget_to_output(reasoning, budget, output, limits, report)
    return reasoning, output


def _fit_reasoning(reasoning: Reasoning, limits: Limits, report: Report) -> Reasoning | None:
    if reasoning.effort == "":
        report.adjust("reasoning.effort", "an empty effort is left out")
        reasoning = reasoning.replace(effort=None)
    if not limits.reasons:
        if reasoning.is_off:
            report.adjust("reasoning", "left out: this model does not reason")
        else:
            report.lose("reasoning", "this model does not reason")
        return None
    if reasoning.is_off:
        return _disable(reasoning, limits) if limits.can_disable else _least_reasoning(limits, report)
    fitted = _fit_effort(_fit_budget(reasoning, limits, report), limits, report)
    if fitted.effort is None and fitted.budget_tokens is None and fitted.enabled and not limits.has_switch:
        fitted = _default_reasoning(limits).replace(summary=reasoning.summary)
        report.adjust("reasoning", f"on becomes {_describe(fitted)}: this API has no switch")
    return fitted


def _disable(reasoning: Reasoning, limits: Limits) -> Reasoning:
    """Return reasoning that is off, by the effort ``none`` where there is one."""
    if limits.efforts is None:
        return reasoning
    if "none" in limits.efforts:
        return Reasoning(enabled=False, effort="none")
    return Reasoning(enabled=False) if reasoning.effort == "none" else reasoning


def _least_reasoning(limits: Limits, report: Report) -> Reasoning:
    least = (
        Reasoning(effort=limits.efforts[0]) if limits.efforts else Reasoning(budget_tokens=(limits.budget or (0, 0))[0])
    )
    report.adjust("reasoning", f"off becomes {_describe(least)}: this model always reasons")
    return least


def _default_reasoning(limits: Limits) -> Reasoning:
    if limits.efforts == () and limits.budget is not None:
        return Reasoning(enabled=True, budget_tokens=_clamp(BUDGETS["medium"], limits.budget))
    return Reasoning(effort=_nearest_effort("medium", limits.efforts))


def _describe(reasoning: Reasoning) -> str:
    return f"the effort {reasoning.effort}" if reasoning.effort else f"a budget of {reasoning.budget_tokens} tokens"


def _fit_budget(reasoning: Reasoning, limits: Limits, report: Report) -> Reasoning:
    """Return reasoning with a budget in range, or with an effort in its place."""
    budget = reasoning.budget_tokens
    if budget is None:
        return reasoning
    if limits.budget is not None:
        fitted = _clamp(budget, limits.budget)
        if fitted != budget:
            report.adjust(
                "reasoning.budget_tokens", f"{budget} becomes {fitted}: the API accepts {_span(limits.budget)}"
            )
        return reasoning if fitted == budget else reasoning.replace(budget_tokens=fitted)
    if reasoning.effort is not None or limits.efforts == ():
        report.lose("reasoning.budget_tokens", "this API has no number of tokens for reasoning")
        return reasoning.replace(budget_tokens=None, enabled=True)
    effort = _nearest_effort(effort_for_budget(budget), limits.efforts)
    report.adjust("reasoning.budget_tokens", f"{budget} becomes the effort {effort}: this API has no number of tokens")
    return reasoning.replace(budget_tokens=None, effort=effort)


def _fit_effort(reasoning: Reasoning, limits: Limits, report: Report) -> Reasoning:
    """Return reasoning with an effort that the model has, or with a budget in its place."""
    effort = reasoning.effort
    if effort is None:
        return reasoning
    if reasoning.budget_tokens is not None and (limits.efforts == () or not limits.allows_effort_and_budget):
        report.lose("reasoning.effort", "this API accepts a budget or an effort, not both")
        return reasoning.replace(effort=None)
    if limits.efforts == ():
        if limits.budget is None or effort not in BUDGETS:
            report.adjust("reasoning.effort", f"{effort} becomes on: this API has no effort")
            return reasoning.replace(effort=None, enabled=True)
        budget = _clamp(BUDGETS[effort], limits.budget)
        report.adjust("reasoning.effort", f"{effort} becomes a budget of {budget} tokens: this model has no effort")
        return reasoning.replace(enabled=True, effort=None, budget_tokens=budget)
    fitted = _nearest_effort(effort, limits.efforts)
    if fitted == effort:
        return reasoning
    report.adjust("reasoning.effort", f"{effort} becomes {fitted}: this model has no effort {effort}")
    return reasoning.replace(effort=fitted)


def effort_for_budget(budget: int) -> str:
    """Return the least effort whose budget is not smaller; at most ``high``."""
    return next((effort for effort in ("low", "medium") if budget <= BUDGETS[effort]), "high")


def _nearest_effort(effort: str, efforts: tuple[str, ...] | None) -> str:
    """Return the effort, or the nearest one that the model has; of two, the lower one."""
    if efforts is None or effort in efforts or effort not in EFFORTS:
        return effort if efforts is None or effort in efforts else efforts[len(efforts) // 2]
    index = EFFORTS.index(effort)
    known = [name for name in efforts if name in EFFORTS and name != "none"]
    return min(known, key=lambda name: (abs(EFFORTS.index(name) - index), EFFORTS.index(name)))


def _fit_output(options: Options, budget: int | None, limits: Limits, report: Report) -> int | None:
    output = options.max_output_tokens
    if output is None:
        if limits.default_output is None:
            return None
        default = limits.default_output
        if limits.default_output_whole is not None and not options.stream:
            default = min(default, limits.default_output_whole)
        tokens = max(default, (budget or 0) + _ANSWER_TOKENS) if budget is not None else default
        return int(_clamp(tokens, limits.output)) if limits.output is not None else tokens
    if limits.output is None:
        return output
    fitted = int(_clamp(output, limits.output))
    if fitted != output:
        report.adjust("max_output_tokens", f"{output} becomes {fitted}: the model accepts {_span(limits.output)}")
    return fitted


def _fit_budget_to_output(
    reasoning: Reasoning, budget: int, output: int, limits: Limits, report: Report
) -> Reasoning | None:
    if budget < output:
        return reasoning
    least = (limits.budget or (1, 1))[0]
    if output <= least:
        report.lose("reasoning", f"an answer of {output} tokens has no room for reasoning of at least {least} tokens")
        return None
    fitted = max(least, output // 2)
    report.adjust(
        "reasoning.budget_tokens", f"{budget} becomes {fitted}: it must be below the output limit of {output}"
    )
    return reasoning.replace(budget_tokens=fitted)


def _clamp(value: float, bounds: tuple[float, float]) -> Any:
    return min(max(value, bounds[0]), bounds[1])


def _span(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:g} to {bounds[1]:g}" if bounds[1] < 1_000_000 else f"{bounds[0]:g} or more"


# --- sampling, stop sequences and format -----------------------------------------------------------------------------


def _fit_sampling(
    options: Options, reasoning: Reasoning | None, limits: Limits, changes: dict[str, Any], report: Report
) -> None:
    for name in limits.rejected:
        if getattr(options, name) not in (None, ()):
            _drop(changes, name, True, "this model has no such option", report)
    if limits.rejected_beside_reasoning and _is_on(reasoning, limits):
        for name in limits.rejected_beside_reasoning:
            if getattr(options, name) is not None and name not in changes:
                _drop(changes, name, True, "this API does not accept it beside reasoning", report)
    for name, bounds in limits.ranges.items():
        value = getattr(options, name)
        if value is not None and name not in changes and not bounds[0] <= value <= bounds[1]:
            changes[name] = _clamp(value, bounds)
            report.adjust(name, f"{value} becomes {changes[name]}: the API accepts {_span(bounds)}")
    if limits.one_of_temperature_top_p and all(
        changes.get(name, getattr(options, name)) is not None for name in ("temperature", "top_p")
    ):
        _drop(changes, "top_p", True, "this model accepts temperature or top_p, not both", report)


def _is_on(reasoning: Reasoning | None, limits: Limits) -> bool:
    if reasoning is None or reasoning.is_off:
        return False
    has_effort = reasoning.effort is not None and limits.is_effort_reasoning
    return bool(reasoning.enabled) or reasoning.budget_tokens is not None or has_effort


def _fit_stop(options: Options, limits: Limits, changes: dict[str, Any], report: Report) -> None:
    stop = options.stop_sequences
    if not stop or "stop_sequences" in changes:
        return
    fitted = stop if limits.allows_blank_stop else tuple(word for word in stop if word.strip())
    if limits.max_stop_sequences is not None:
        fitted = fitted[: limits.max_stop_sequences]
    if len(fitted) != len(stop):
        changes["stop_sequences"] = fitted
        dropped = [word for word in stop if word not in fitted]
        report.lose("stop_sequences", f"the API does not accept {dropped!r} in addition to {list(fitted)!r}")


def _fit_format(request: Request, has_tools: bool, limits: Limits, changes: dict[str, Any], report: Report) -> None:
    response_format = request.options.response_format
    assert response_format is not None
    if has_tools and response_format.kind != "text" and not limits.allows_format_beside_tools:
        _drop(changes, "response_format", True, "this API does not accept it beside tools", report)
    elif response_format.kind == "json" and not _has_json_word(request, limits):
        schema = {"type": "object", "additionalProperties": True}
        changes["response_format"] = ResponseFormat("json_schema", schema, "answer", False)
        reason = "any JSON becomes any JSON object: the API accepts the former only if the messages contain the word"
        report.adjust("response_format", reason)


def _has_json_word(request: Request, limits: Limits) -> bool:
    """Whether a message contains the word, or needs not to."""
    if limits.needs_json_word == "no":
        return True
    messages = (m for m in request.messages if m.role is not Role.SYSTEM or limits.needs_json_word == "any role")
    texts = (block.text for message in messages for block in message.content if isinstance(block, TextBlock))
    return any("json" in text.lower() for text in texts)


# --- schemas of tools ------------------------------------------------------------------------------------------------


def fit_tools(tools: Tools, limits: Limits, report: Report) -> Tools:
    """Return the tools that the target accepts."""
    needs_type, strict_count = limits.needs_schema_type, 0
    fitted: dict[int, ToolDefinition] = {}  # the tools that change, by their place
    for index, tool in enumerate(tools):
        if not isinstance(tool, ToolDefinition):
            continue
        if needs_type and "type" not in tool.input_schema:
            fitted[index] = tool = _add_type(tool, report)  # noqa: PLW2901
        if tool.strict:
            reason = _strict_rejection(tool, strict_count, limits)
            if reason is None:
                strict_count += 1
                continue
            report.adjust("tool.strict", f"{tool.name} is not strict: {reason}")
            fitted[index] = msgspec.structs.replace(tool, strict=False)
    return tuple(fitted.get(index, tool) for index, tool in enumerate(tools)) if fitted else tools


def _add_type(tool: ToolDefinition, report: Report) -> ToolDefinition:
    report.adjust("tool.input_schema", f"{tool.name} takes an object: the API requires a type")
    return msgspec.structs.replace(tool, input_schema={"type": "object", **tool.input_schema})


def _strict_rejection(tool: ToolDefinition, strict_count: int, limits: Limits) -> str | None:
    if limits.max_strict_tools is not None and strict_count >= limits.max_strict_tools:
        return f"the API accepts {limits.max_strict_tools} strict tools"
    if limits.needs_closed_schemas and not _is_closed(tool.input_schema):
        return "the API enforces only schemas whose objects require every property and allow no others"
    return None


def _is_closed(schema: Any) -> bool:
    """Whether every object of a schema requires all of its properties and allows no others."""
    if isinstance(schema, list):
        return all(_is_closed(item) for item in schema)
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        names = set(properties) if isinstance(properties, dict) else set()
        if schema.get("additionalProperties") is not False or _required_names(schema) != names:
            return False
    inner = [*properties.values()] if isinstance(properties, dict) else []
    inner += [schema[key] for key in ("items", "anyOf") if key in schema]
    for key in ("$defs", "definitions"):
        if isinstance(schema.get(key), dict):
            inner += schema[key].values()
    return all(_is_closed(part) for part in inner)


def _required_names(schema: dict[str, Any]) -> set[Any]:
    """Return the required properties; none if the list is invalid."""
    required = schema.get("required")
    return set(required) if isinstance(required, list) and all(isinstance(name, str) for name in required) else set()
