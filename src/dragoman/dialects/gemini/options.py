"""Convert options to and from ``generationConfig`` and ``toolConfig``.

Invariant: an option is written or reported as a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dragoman.dialects.gemini.key_case import NAME
from dragoman.dialects.gemini.tool_definitions import from_json_schema, to_json_schema, to_plain_schema
from dragoman.exchange import Loss, Options, Reasoning, ResponseFormat, ToolChoice
from dragoman.jsontext import integer_or_none, text_or_none, text_tuple
from dragoman.wire.losses import summary_changes
from dragoman.wire.support import OptionFields

_CHOICES: Final = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}
_MODES: Final = {"auto": "AUTO", "required": "ANY", "none": "NONE", "tool": "ANY"}
_FIELDS: Final = OptionFields(
    "temperature",
    "top_p",
    "top_k",
    "max_output_tokens",
    "stop_sequences",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "logprobs",
    "top_logprobs",
    top_p="topP",
    top_k="topK",
    max_output_tokens="maxOutputTokens",
    stop_sequences="stopSequences",
    presence_penalty="presencePenalty",
    frequency_penalty="frequencyPenalty",
    n="candidateCount",
    logprobs="responseLogprobs",
    top_logprobs="logprobs",
)


def read_options(config: dict[str, Any], choice: dict[str, Any], body: dict[str, Any]) -> Options:
    return Options(
        **_FIELDS.read(config),
        tool_choice=_read_choice(choice),
        response_format=_read_format(config),
        reasoning=_read_reasoning(config.get("thinkingConfig")),
        service_tier=text_or_none(body.get("serviceTier")),
        modalities=tuple(word.lower() for word in text_tuple(config.get("responseModalities"))),
    )


def _read_choice(choice: dict[str, Any]) -> ToolChoice | None:
    config = choice.get("functionCallingConfig")
    config = config if isinstance(config, dict) else {}
    mode, names = (
        _CHOICES.get((text_or_none(config.get("mode")) or "").upper()),
        text_tuple(config.get("allowedFunctionNames")),
    )
    if mode is None:
        return None
    if mode == "required" and len(names) == 1:
        return ToolChoice("tool", names[0])
    return ToolChoice(mode, allowed=names)  # type: ignore[arg-type]


def default_choice(options: Options, *, has_strict_tools: bool = False) -> dict[str, Any]:
    """Write the tool choice. Names are allowed beside ANY and VALIDATED; the latter makes calls match their schema."""
    choice = options.tool_choice
    if choice is None:
        return {"functionCallingConfig": {"mode": "VALIDATED"}} if has_strict_tools else {}
    mode = _MODES[choice.mode]
    if mode == "AUTO" and (choice.allowed or has_strict_tools):
        mode = "VALIDATED"
    config: dict[str, Any] = {"mode": mode}
    if choice.name is not None:
        config["allowedFunctionNames"] = [choice.name]
    elif choice.allowed:
        config["allowedFunctionNames"] = list(choice.allowed)
    return {"functionCallingConfig": config}


def _read_format(config: dict[str, Any]) -> ResponseFormat | None:
    kind = config.get("responseMimeType", "application/json")
    if kind == "text/plain":
        return ResponseFormat("text")
    if kind != "application/json":
        return None
    if isinstance(config.get("responseSchema"), dict):
        return ResponseFormat("json_schema", to_json_schema(config["responseSchema"]))
    if isinstance(config.get("responseJsonSchema"), dict):
        return ResponseFormat("json_schema", to_plain_schema(config["responseJsonSchema"]))
    return ResponseFormat("json") if "responseMimeType" in config else None


def _default_format(response_format: ResponseFormat, notes: Mapping[str, Any]) -> dict[str, Any]:
    if response_format.kind == "text":
        return {"responseMimeType": "text/plain"}
    wire: dict[str, Any] = {"responseMimeType": "application/json"}
    if response_format.kind == "json_schema" and response_format.json_schema is not None:
        if notes.get("schema") == "responseSchema":
            wire["responseSchema"] = from_json_schema(response_format.json_schema)
        else:
            wire["responseJsonSchema"] = response_format.json_schema
    return wire


def _read_reasoning(config: Any) -> Reasoning | None:
    """Read the thinking options. A budget of 0 disables thinking; -1 lets the model decide."""
    if not isinstance(config, dict):
        return None
    budget, level = integer_or_none(config.get("thinkingBudget")), text_or_none(config.get("thinkingLevel"))
    shown = config.get("includeThoughts")
    enabled = True if budget or shown is True else None
    return Reasoning(
        enabled=False if budget == 0 else enabled,
        effort=level.lower() if level else None,
        budget_tokens=budget if budget is not None and budget > 0 else None,
        summary={True: "auto", False: "none"}.get(shown) if isinstance(shown, bool) else None,
    )


_DYNAMIC: Final = -1  # the model decides how much it thinks
_LEVELS: Final = {
    **{level: level for level in ("minimal", "low", "medium", "high")},
    "xhigh": "high",
    "max": "high",  # other APIs have more levels
}


def _default_thinking(reasoning: Reasoning) -> dict[str, Any]:
    if reasoning.is_off:
        return {"thinkingBudget": 0}
    wire: dict[str, Any] = {}
    if reasoning.summary is not None or reasoning.enabled:
        wire["includeThoughts"] = reasoning.summary != "none"
    if reasoning.budget_tokens is not None:  # never both: the API rejects a level beside a budget
        wire["thinkingBudget"] = reasoning.budget_tokens
    elif reasoning.effort in _LEVELS:
        wire["thinkingLevel"] = _LEVELS[reasoning.effort]
    elif reasoning.enabled and reasoning.summary == "none":
        wire["thinkingBudget"] = _DYNAMIC  # hidden thoughts alone do not turn thinking on
    return wire


def default_config(options: Options, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire = _FIELDS.write(options)
    if options.modalities:
        wire["responseModalities"] = [word.upper() for word in options.modalities]
    if options.response_format is not None:
        wire.update(_default_format(options.response_format, notes))
    thinking = _default_thinking(options.reasoning) if options.reasoning is not None else {}
    return {**wire, "thinkingConfig": thinking} if thinking else wire


_TIERS: Final = {"default": "standard", "standard": "standard", "flex": "flex", "priority": "priority"}


def service_tier(options: Options) -> str | None:
    """Return the name that this API has for the tier, if any."""
    return _TIERS.get((options.service_tier or "").lower())


def option_losses(options: Options, config: Mapping[str, Any]) -> Iterator[Loss]:
    """Yield a loss for each option that was not written."""
    reason = "this API has no such option"
    if options.user is not None:
        yield Loss("", "", "user", NAME, reason)
    if options.parallel_tool_calls is False:
        yield Loss("", "", "parallel_tool_calls", NAME, reason)
    if options.response_format is not None and options.response_format.name is not None:
        yield Loss("", "", "response_format.name", NAME, "this API accepts no schema name")
    if options.reasoning is not None:
        thinking = config.get("thinkingConfig")
        yield from _reasoning_losses(options.reasoning, thinking if isinstance(thinking, dict) else {})


def _reasoning_losses(reasoning: Reasoning, thinking: Mapping[str, Any]) -> Iterator[Loss]:
    effort, level = reasoning.effort, thinking.get("thinkingLevel")
    if reasoning.budget_tokens is not None and thinking.get("thinkingBudget") != reasoning.budget_tokens:
        yield Loss("", "", "reasoning.budget_tokens", NAME, "thinking is disabled")
    if "includeThoughts" in thinking:
        yield from summary_changes(reasoning, NAME)
    if effort in (None, "none") or str(level).lower() == effort:
        return
    if level is not None:
        reason = f"this API has no level {effort!r}; {level!r} is requested"
    elif reasoning.enabled is False:
        reason = "thinking is disabled"
    elif reasoning.budget_tokens is not None:
        reason = "this API accepts a level or a budget, not both"
    else:
        reason = f"this API has no level {effort!r}"
    yield Loss("", "", "reasoning.effort", NAME, reason)
