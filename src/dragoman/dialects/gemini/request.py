"""Convert requests: system prompts, contents with tool results, tools and options.

Invariant: a content is split into messages so that joining them restores it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects.gemini.blocks import (
    GeminiMessageBuilder,
    read_part,
    read_result,
    unsupported_reason,
    wire_id,
    write_parts,
)
from dragoman.dialects.gemini.code_assist import unwrap_request, wrap_request
from dragoman.dialects.gemini.key_case import NAME, as_list, restore_case, to_camel
from dragoman.dialects.gemini.options import default_choice, default_config, option_losses, read_options, service_tier
from dragoman.dialects.gemini.support import LIMITS, SUPPORT
from dragoman.dialects.gemini.tool_definitions import read_tools, write_tools
from dragoman.errors import FormatError
from dragoman.exchange import Loss, Request, ToolDefinition, Written
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, text_or_none
from dragoman.message import ContentBlock, InvalidToolUseBlock, Message, Role, TextBlock, ToolUseBlock
from dragoman.wire.preparation import Quirks, prepare_request
from dragoman.wire.residue import apply_diff, diff, get_notes, make_notes
from dragoman.wire.support import request_losses

if TYPE_CHECKING:
    from dragoman.catalog import Model

_GENERATION: Final = re.compile(r"(?:.*/)?gemini-(\d+)")
_SKIP_SIGNATURE: Final = "skip_thought_signature_validator"  # see Google's guide to thought signatures (November 2025)
_SEPARATE_FIELDS: Final = (
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
)  # read separately


@accepts_json_text()
def read_request(wire: dict[str, Any]) -> Request:
    """Read a request to generateContent."""
    unwrapped, wrapper = unwrap_request(wire)
    body, snake = to_camel(unwrapped)
    builder = GeminiMessageBuilder()
    if body.get("systemInstruction"):
        _read_system(body["systemInstruction"], builder)
    for index, content in enumerate(as_list(body.get("contents"), "$.contents")):
        _read_content(content, f"$.contents[{index}]", builder)
    config = expect_object(body.get("generationConfig") or {}, "$.generationConfig")
    choice = expect_object(body.get("toolConfig") or {}, "$.toolConfig")
    request = Request(
        model=text_or_none(body.get("model")),
        messages=tuple(builder.messages),
        tools=read_tools(as_list(body.get("tools") or [], "$.tools")),
        options=read_options(config, choice, body),
    )
    notes: dict[str, Any] = {
        "snake": snake or None,
        "model": True if request.model is not None else None,
        "objects": [key for key in ("contents", "tools") if type(body.get(key)) in (dict, str)] or None,
        "wrapper": wrapper,
        "empty": {key: body[key] for key in _SEPARATE_FIELDS if key in body and not body[key]} or None,
        "schema": "responseSchema" if isinstance(config.get("responseSchema"), dict) else None,
    }
    notes["config"] = diff(default_config(request.options, notes), config)
    notes["choice"] = diff(default_choice(request.options), choice)
    rest = {key: value for key, value in body.items() if key not in _SEPARATE_FIELDS}
    raw = make_notes(NAME, _default_top(request, notes), rest, **notes)
    return request.replace(provider_raw=raw or {"dialect": NAME})


def write_request(request: Request, quirks: Quirks = (), model: Model | None = None, *, fit: bool = True) -> Written:
    """Write a request to generateContent and report losses. The model belongs in the URL."""
    request, losses, adjustments, is_plain = prepare_request(request, LIMITS, _carries, model, quirks, fit=fit)
    notes = get_notes(request.provider_raw, NAME)
    wire: dict[str, Any] = {"contents": _write_contents(request.messages, losses)}
    if not notes and _requires_signatures(request.model):
        _sign_foreign_calls(wire["contents"])
    system = _write_system(request.messages, losses)
    if system is not None:
        wire["systemInstruction"] = system
    tools = write_tools(request.tools, losses)
    if tools:
        wire["tools"] = tools
    strict = any(isinstance(tool, ToolDefinition) and tool.strict for tool in request.tools)
    choice = apply_diff(default_choice(request.options, has_strict_tools=strict), notes.get("choice"))
    if strict:
        losses.append(Loss("", "", "tool.strict", NAME, "the tool mode VALIDATED applies to all tools", "adjusted"))
    if choice:
        wire["toolConfig"] = choice
    config = apply_diff(default_config(request.options, notes), notes.get("config"))
    if config:
        wire["generationConfig"] = config
    for key in notes.get("objects", ()):
        if len(wire.get(key, ())) == 1:
            wire[key] = wire[key][0]
    wire.update((key, value) for key, value in notes.get("empty", {}).items() if not wire.get(key))
    wire.update(apply_diff(_default_top(request, notes), notes.get("residue")))
    losses.extend(option_losses(request.options, config))
    if request.options.service_tier is not None and "serviceTier" not in wire:
        losses.append(Loss("", "", "service_tier", NAME, "this API has no such tier"))
    losses.extend(request_losses(request, NAME, SUPPORT, is_plain=is_plain))
    wire = wrap_request(restore_case(wire, notes.get("snake")), notes.get("wrapper"))
    return Written(wire, tuple(losses), tuple(adjustments))


def _carries(block: ContentBlock, _role: Role) -> bool:
    return unsupported_reason(block) is None


def _default_top(request: Request, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if request.model is not None and notes.get("model"):
        wire["model"] = request.model
    tier = service_tier(request.options)
    if tier is not None:
        wire["serviceTier"] = tier
    return wire


def _read_system(system: Any, builder: GeminiMessageBuilder) -> None:
    if isinstance(system, str):
        builder.add(Role.SYSTEM, [TextBlock(system)], {"dialect": NAME, "form": "string"})
        return
    wire = expect_object(system, "$.systemInstruction")
    parts, form = _get_parts(wire, "$.systemInstruction")
    blocks = [read_part(part, "user", builder, "$.systemInstruction.parts") for part in parts]
    rest = {key: value for key, value in wire.items() if key != "parts"}
    builder.add(Role.SYSTEM, blocks, make_notes(NAME, {}, rest, form=form or "hoisted"))


def _get_parts(wire: dict[str, Any], where: str) -> tuple[list[Any], str | None]:
    """Return the parts of a content and their form if they are not a list."""
    if "parts" not in wire:
        return [], "absent"
    if type(wire["parts"]) is dict:
        return [wire["parts"]], "object"
    if type(wire["parts"]) is str:
        return [{"text": wire["parts"]}], "text"
    return expect_list(wire["parts"], f"{where}.parts"), None


def _write_system(messages: tuple[Message, ...], losses: list[Loss]) -> Any:
    """Write all system prompts as one ``systemInstruction``."""
    system = [message for message in messages if message.role is Role.SYSTEM]
    parts = [part for message in system for part in write_parts(message, {}, losses)]
    notes = get_notes(system[0].metadata.provider_raw, NAME) if system else {}
    if not parts and "form" not in notes:
        return None
    if notes.get("form") == "string" and len(parts) == 1 and set(parts[0]) == {"text"}:
        return parts[0]["text"]
    return apply_diff(_with_parts({}, parts, notes.get("form")), notes.get("residue"))


def _with_parts(wire: dict[str, Any], parts: list[dict[str, Any]], form: str | None) -> dict[str, Any]:
    if form == "absent" and not parts:
        return wire
    if form == "text" and _is_text(parts):
        return {**wire, "parts": parts[0]["text"]}
    return {**wire, "parts": parts[0] if form == "object" and len(parts) == 1 else parts}


def _is_text(parts: Any) -> bool:
    """Return whether parts are one text without other fields."""
    return type(parts) is list and len(parts) == 1 and parts[0].keys() == {"text"}


def _read_content(content: Any, where: str, builder: GeminiMessageBuilder) -> None:
    if type(content) is str:  # Google's SDKs accept a text in place of a content, and relays pass it on
        builder.add(Role.USER, [TextBlock(content)], {"dialect": NAME, "form": "string"})
        return
    wire = expect_object(content, where)
    role = wire.get("role") or "user"
    if role not in ("user", "model", "function"):
        raise FormatError(f"expected the role user, model or function, not {role!r}", where=f"{where}.role")
    parts, form = _get_parts(wire, where)
    rest = {key: value for key, value in wire.items() if key != "parts"}
    raw = make_notes(NAME, {"role": "model" if role == "model" else "user"}, rest, form=form) or {"dialect": NAME}
    groups = _group_parts(parts, role)
    for index, (kind, group) in enumerate(groups):
        notes: dict[str, Any] = dict(raw) if index == 0 else {"dialect": NAME}
        if index and "tool" in (kind, groups[index - 1][0]) and kind != groups[index - 1][0]:
            notes["joined"] = True
        if index == 0 and kind == "tool" and builder.messages and builder.messages[-1].role is Role.TOOL:
            notes["joined"] = False
        message_notes = notes if len(notes) > 1 else None
        if kind == "tool":
            result = read_result(group[0], builder, f"{where}.parts")
            builder.add(Role.TOOL, [result], message_notes, parent_id=result.tool_use_id)
        else:
            blocks = [read_part(part, role, builder, f"{where}.parts") for part in group]
            builder.add(Role.ASSISTANT if role == "model" else Role.USER, blocks, message_notes)


def _group_parts(parts: list[Any], role: str) -> list[tuple[str, list[Any]]]:
    """Split a user content at its results; each result is a group."""
    groups: list[tuple[str, list[Any]]] = []
    for part in parts:
        if role != "model" and _is_result(part):
            groups.append(("tool", [part]))
        elif groups and groups[-1][0] != "tool":
            groups[-1][1].append(part)
        else:
            groups.append((role, [part]))
    return groups or [(role, [])]


def _is_result(part: Any) -> bool:
    response = part.get("functionResponse", part.get("function_response")) if type(part) is dict else None
    return (
        type(response) is dict
        and isinstance(response.get("name"), str)
        and type(response.get("response", {})) is dict
        and isinstance(response.get("id", ""), str)
    )


def _write_contents(messages: tuple[Message, ...], losses: list[Loss]) -> list[Any]:
    calls = {
        block.id: (block.name, wire_id(block.id, get_notes(block.provider_raw, NAME)).get("id", ""))
        for message in messages
        for block in message.content
        if isinstance(block, ToolUseBlock | InvalidToolUseBlock)
    }
    wire: list[Any] = []
    texts: list[int] = []  # places of contents that were texts
    previous: Message | None = None
    for message in messages:
        if message.role is Role.SYSTEM:
            continue
        notes = get_notes(message.metadata.provider_raw, NAME)
        parts = write_parts(message, calls, losses)
        is_joined = previous is not None and _is_joined(previous, message, notes)
        previous = message
        if not parts and message.content:
            continue  # nothing is supported; the losses are recorded
        if is_joined and wire:
            existing = wire[-1].get("parts", [])
            wire[-1]["parts"] = [*([existing] if type(existing) is dict else existing), *parts]
            continue
        content = apply_diff({"role": "model" if message.role is Role.ASSISTANT else "user"}, notes.get("residue"))
        if notes.get("form") == "string" and message.role is Role.USER:
            texts.append(len(wire))
        wire.append(_with_parts(content, parts, notes.get("form")))
    for place in texts:
        if _is_text(wire[place]["parts"]):
            wire[place] = wire[place]["parts"][0]["text"]
    return wire


def _requires_signatures(model: str | None) -> bool:
    """Return whether the model rejects calls without a signature: third generation and later."""
    generation = _GENERATION.match(model or "")
    return generation is not None and int(generation[1]) >= 3


def _sign_foreign_calls(contents: list[dict[str, Any]]) -> None:
    """Mark unsigned calls of the current turn with the value that Google documents for calls of another model.

    The current turn starts after the last user message. The first call of each step needs a signature.
    """
    for content in reversed(contents):
        parts = content.get("parts", [])
        if type(parts) is not list or (content.get("role") != "model" and not any(map(_is_result, parts))):
            return
        first = next((index for index, part in enumerate(parts) if "functionCall" in part), None)
        if first is not None and content.get("role") == "model" and "thoughtSignature" not in parts[first]:
            parts[first] = {**parts[first], "thoughtSignature": _SKIP_SIGNATURE}


def _is_joined(previous: Message, message: Message, notes: Mapping[str, Any]) -> bool:
    """Return whether two messages are one content: consecutive results are, unless they were separate."""
    if "joined" in notes:
        return bool(notes["joined"]) and previous.role in (Role.TOOL, Role.USER)
    return previous.role is Role.TOOL and message.role is Role.TOOL
