"""Convert options: common fields, and the fields of each model family.

Invariant: an option is written or reported as a loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.bedrock_converse.blocks import RecordLoss, to_compact_json, try_parse_object
from dragoman.dialects.bedrock_converse.mappings import CHOICE_NAMES, NAME, TIERS
from dragoman.exchange import OpaqueTool, Options, Reasoning, Request, ResponseFormat, ToolChoice
from dragoman.jsontext import integer_or_none, number_or_none, text_map_or_none, text_or_none, text_tuple


def model_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are passed to the model unchanged."""
    return _object_or_empty(body.get("additionalModelRequestFields"))


def _object_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_options(body: dict[str, Any]) -> Options:
    inference, fields = _object_or_empty(body.get("inferenceConfig")), model_fields(body)
    nova = fields.get("inferenceConfig")
    return Options(
        max_output_tokens=integer_or_none(inference.get("maxTokens")),
        temperature=number_or_none(inference.get("temperature")),
        top_p=number_or_none(inference.get("topP")),
        top_k=integer_or_none(nova.get("topK") if isinstance(nova, dict) else fields.get("top_k")),
        stop_sequences=text_tuple(inference.get("stopSequences")),
        tool_choice=_read_choice(body.get("toolConfig")),
        response_format=_read_format(body.get("outputConfig")),
        reasoning=_read_reasoning(fields) or _read_effort(body.get("outputConfig")),
        service_tier=text_or_none(_object_or_empty(body.get("serviceTier")).get("type")),
        metadata=text_map_or_none(body.get("requestMetadata")),
    )


def _read_choice(config: Any) -> ToolChoice | None:
    match config:
        case {"toolChoice": {"tool": {"name": str(name)}}}:
            return ToolChoice("tool", name)
        case {"toolChoice": {"any": dict()}}:
            return ToolChoice("required")
        case {"toolChoice": {"auto": dict()}}:
            return ToolChoice("auto")
        case _:
            return None


def _read_format(config: Any) -> ResponseFormat | None:
    match config:
        case {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": str(text)} as json_schema}}}:
            schema, name = try_parse_object(text), text_or_none(json_schema.get("name"))
            if schema is None:
                return None
            return ResponseFormat("json_schema", schema, name, None, text_or_none(json_schema.get("description")))
        case _:
            return None


def detect_family(body: Mapping[str, Any]) -> str | None:
    """Return the model family whose field names a request uses; ``every`` for the common ones."""
    fields = model_fields(body)
    for key, family in (
        ("reasoning_config", "anthropic_early"),
        ("thinking", "anthropic"),
        ("output_config", "anthropic"),
        ("top_k", "anthropic"),
        ("reasoningConfig", "nova"),
        ("inferenceConfig", "nova"),
        ("reasoning_effort", "openai"),
    ):
        if key in fields:
            return family
    return "every" if isinstance(_object_or_empty(body.get("outputConfig")).get("effort"), str) else None


def _model_family(model: str | None) -> str | None:
    """Return the family of a model id; ``None`` for a custom ARN."""
    for part, family in (("anthropic.", "anthropic"), ("amazon.nova", "nova"), ("openai.", "openai")):
        if model is not None and part in model:
            return family
    return None


def _read_reasoning(fields: dict[str, Any]) -> Reasoning | None:
    switches = {"enabled": True, "adaptive": True, "disabled": False}
    match fields:
        case {"thinking": dict(thinking)} | {"reasoning_config": dict(thinking)}:
            config = fields.get("output_config")
            return Reasoning(
                enabled=switches.get(str(thinking.get("type"))),
                effort=text_or_none(config.get("effort")) if isinstance(config, dict) else None,
                budget_tokens=integer_or_none(thinking.get("budget_tokens")),
                summary={"summarized": "auto", "omitted": "none"}.get(str(thinking.get("display"))),
            )
        case {"output_config": {"effort": str(effort)}} | {"reasoning_effort": str(effort)}:
            return Reasoning(effort=effort)
        case {"reasoningConfig": dict(thinking)}:
            return Reasoning(
                enabled=switches.get(str(thinking.get("type"))), effort=text_or_none(thinking.get("maxReasoningEffort"))
            )
        case _:
            return None


def _read_effort(config: Any) -> Reasoning | None:
    effort = _object_or_empty(config).get("effort")
    return Reasoning(effort=effort) if isinstance(effort, str) else None


def default_top(request: Request, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Write the fields beside messages, system prompt and tools."""
    options = request.options
    wire: dict[str, Any] = {"modelId": request.model} if notes.get("named") and request.model is not None else {}
    inference = {
        "maxTokens": _in_range(options.max_output_tokens, 1),
        "temperature": _in_range(options.temperature, 0, 1),
        "topP": _in_range(options.top_p, 0, 1),
        "stopSequences": list(options.stop_sequences) or None,
    }
    if any(value is not None for value in inference.values()):
        wire["inferenceConfig"] = {key: value for key, value in inference.items() if value is not None}
    if any(not isinstance(tool, OpaqueTool) or tool.dialect == NAME for tool in request.tools):
        wire["toolConfig"] = _default_choice(options.tool_choice)
    response_format = options.response_format
    if (
        response_format is not None
        and response_format.kind == "json_schema"
        and response_format.json_schema is not None
    ):
        schema = {
            "schema": to_compact_json(response_format.json_schema),
            **({"name": response_format.name} if response_format.name is not None else {}),
            **({"description": response_format.description} if response_format.description is not None else {}),
        }
        wire["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}
    family = notes.get("family") or _model_family(request.model)
    if family == "every" and options.reasoning is not None and options.reasoning.effort is not None:
        wire["outputConfig"] = {**wire.get("outputConfig", {}), "effort": options.reasoning.effort}
    if options.metadata is not None:
        wire["requestMetadata"] = options.metadata
    if options.service_tier in TIERS:
        wire["serviceTier"] = {"type": options.service_tier}
    fields = _default_fields(options, family)
    return {**wire, "additionalModelRequestFields": fields} if fields else wire


def _in_range(value: Any, minimum: int, maximum: float = math.inf) -> Any:
    """Return the number if the API accepts it; the API rejects the whole request otherwise."""
    return value if value is not None and minimum <= value <= maximum else None


def _default_choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None or choice.mode not in CHOICE_NAMES:
        return {}
    return {"toolChoice": {CHOICE_NAMES[choice.mode]: {"name": choice.name} if choice.mode == "tool" else {}}}


def _default_fields(options: Options, family: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    reasoning = options.reasoning or Reasoning()
    has_switch = reasoning.enabled is not None or reasoning.budget_tokens is not None
    match family:
        case "anthropic" | "anthropic_early":
            if has_switch:
                fields["thinking" if family == "anthropic" else "reasoning_config"] = _default_thinking(reasoning)
            if reasoning.effort is not None:
                fields["output_config"] = {"effort": reasoning.effort}
            if options.top_k is not None:
                fields["top_k"] = options.top_k
        case "nova":
            if has_switch or reasoning.effort is not None:
                kind = "disabled" if reasoning.enabled is False else "enabled"
                effort = {"maxReasoningEffort": reasoning.effort} if reasoning.effort is not None else {}
                fields["reasoningConfig"] = {"type": kind, **effort}
            if options.top_k is not None:
                fields["inferenceConfig"] = {"topK": options.top_k}
        case "openai" if reasoning.effort is not None:
            fields["reasoning_effort"] = reasoning.effort
    return fields


def _default_thinking(reasoning: Reasoning) -> dict[str, Any]:
    if reasoning.enabled is False:
        return {"type": "disabled"}
    display = {} if reasoning.summary is None else {"display": _DISPLAYS.get(reasoning.summary, "summarized")}
    if reasoning.budget_tokens is not None:
        return {"type": "enabled", "budget_tokens": reasoning.budget_tokens, **display}
    return {"type": "adaptive", **display}


_DISPLAYS: Final = {"none": "omitted"}  # every other summary is "summarized"


def record_option_losses(request: Request, wire: dict[str, Any], record_loss: RecordLoss) -> None:
    """Report every option that was not written."""
    options, fields = request.options, model_fields(wire)
    config, inference = _object_or_empty(wire.get("outputConfig")), _object_or_empty(wire.get("inferenceConfig"))
    for name in ("seed", "presence_penalty", "frequency_penalty", "parallel_tool_calls", "user"):
        if getattr(options, name) is not None:
            record_loss(name, "this API has no such option")
    for name, key in (("max_output_tokens", "maxTokens"), ("temperature", "temperature"), ("top_p", "topP")):
        if getattr(options, name) is not None and key not in inference:
            record_loss(name, f"this API does not accept {getattr(options, name)}")
    if options.tool_choice is not None and "toolChoice" not in wire.get("toolConfig", {}):
        if options.tool_choice.mode == "none":
            record_loss("tool_choice", "this API cannot disable tools")
        elif options.tool_choice.mode != "auto":
            record_loss("tool_choice", "the request has no tools")
    response_format = options.response_format
    if response_format is not None and response_format.kind != "text" and "textFormat" not in config:
        record_loss("response_format", "this API accepts only a JSON schema")
    if options.service_tier is not None and "serviceTier" not in wire:
        record_loss("service_tier", f"this API has no tier {options.service_tier!r}")
    reasoning_keys = {key for key in (*fields, *config) if key not in ("top_k", "inferenceConfig", "textFormat")}
    if options.reasoning is not None and options.reasoning != Reasoning() and not reasoning_keys:
        record_loss("reasoning", "the reasoning field of this model is unknown")
    if options.top_k is not None and not fields.keys() & {"top_k", "inferenceConfig"}:
        record_loss("top_k", "the field of this model is unknown")
