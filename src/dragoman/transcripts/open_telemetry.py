"""Messages of OpenTelemetry's conventions for generative AI, as traces store them.

Input is a list of messages with a role and parts, as in ``gen_ai.input.messages`` and ``gen_ai.output.messages``, or
the attributes of a span with these and ``gen_ai.system_instructions``, as JSON or its text. The parts of the
conventions (https://github.com/open-telemetry/semantic-conventions-genai, 2026-11) and the earlier ones of pydantic-ai
are read. A message with tool results becomes several messages: those after the first are noted as ``joined``. Data
without a field in the conventions (id, time, signature, error flag) is stored under our key, which the conventions
allow in every object. Tools and files of a provider are opaque.

Invariant: output outside our key conforms to the conventions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman import message as msg
from dragoman.errors import FormatError, JsonError
from dragoman.exchange import Written
from dragoman.jsontext import OWN, count_or_zero, expect_list, expect_object, read_json, text_or_none
from dragoman.transcripts import base
from dragoman.wire.counts import drop_impossible_counts
from dragoman.wire.residue import fingerprint
from dragoman.wire.tool_definitions import read_arguments

NAME: Final = "open_telemetry"
INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
_ATTRIBUTES: Final = (INSTRUCTIONS, INPUT, OUTPUT)
_OTHER_ROLES: Final = {  # role names of providers
    "developer": msg.Role.SYSTEM,
    "human": msg.Role.USER,
    "model": msg.Role.ASSISTANT,
    "function": msg.Role.TOOL,
}
_WHOLE: Final = "whole"  # under our key: the wire message is one message
_MODALITIES: Final = {cls: modality for modality, cls in base.MEDIA_BLOCKS.items()}
_UNKNOWN_TYPES: Final = {**base.UNKNOWN_TYPES, "document": "application/*"}
_URL_TYPES: Final = ("image-url", "audio-url", "video-url", "document-url")  # earlier parts of pydantic-ai
_RESULT_TYPES: Final = ("text", "blob", "uri", "binary", *_URL_TYPES)  # parts of a tool result
_Wire = dict[str, Any]


def looks_like(wire: Any) -> bool:
    """Return whether a value may be messages of traces: they have a role and parts, but no id or kind."""
    if isinstance(wire, dict):
        return any(attribute in wire for attribute in _ATTRIBUTES)
    return base.is_list_of(wire, _is_message)


def _is_message(item: Any) -> bool:
    match item:
        case {"role": str(), "parts": list(parts)} if "id" not in item and "kind" not in item:
            return base.has_typed_parts(parts)
        case _:
            return False


# --- reading ---------------------------------------------------------------------------------------------------------


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[msg.Message, ...]:
    """Read a list of messages, or the attributes of a span."""
    return base.read_transcript(wire, _read_wire, base.TranscriptReader(NAME, session_id, created_at))


def _read_wire(value: Any, reader: base.TranscriptReader) -> None:
    if isinstance(value, dict):
        _read_span(value, reader)
        return
    for index, item in enumerate(expect_list(value, "$")):
        _read_item(expect_object(item, f"$[{index}]"), f"$[{index}]", reader)


def _read_span(span: _Wire, reader: base.TranscriptReader) -> None:
    """Read the attributes of a span; those without messages are noted on the first message."""
    if not any(attribute in span for attribute in _ATTRIBUTES):
        raise FormatError(f"the attributes of a span need one of {', '.join(_ATTRIBUTES)}", where="$")
    for attribute in _ATTRIBUTES:
        if attribute in span:
            start = len(reader.messages)
            _read_attribute(attribute, span, reader)
            if len(reader.messages) > start:
                form = "text" if isinstance(span[attribute], str) else "list"
                reader.messages[start] = base.add_notes(reader.messages[start], NAME, attribute=[attribute, form])
    reader.path = "$"
    if not reader.messages:
        message = reader.make_message(msg.Role.SYSTEM, ())
        reader.messages.append(base.add_notes(message, NAME, attribute=["", ""]))  # a span without messages
    first = reader.messages[0] = base.add_notes(reader.messages[0], NAME, span={})
    default = _default_span(reader.messages, _WriteContext(reader.messages))
    raw = base.make_notes(NAME, default, span) or {}
    span_notes = {name: raw[name] for name in ("residue", "order") if name in raw}
    reader.messages[0] = base.add_notes(first, NAME, span=span_notes)


def _read_attribute(attribute: str, span: _Wire, reader: base.TranscriptReader) -> None:
    where = f"$[{attribute!r}]"
    value = _parse_attribute(span[attribute], where)
    if attribute == INSTRUCTIONS:
        _read_item({"role": "system", "parts": value}, where, reader)
        return
    metadata_fields = _read_answer_metadata(span) if attribute == OUTPUT else {}
    for index, item in enumerate(expect_list(value, where)):
        _read_item(expect_object(item, f"{where}[{index}]"), f"{where}[{index}]", reader, metadata_fields)
        metadata_fields = {
            name: metadata_value for name, metadata_value in metadata_fields.items() if name != "usage"
        }  # the usage belongs to the first message only


def _parse_attribute(value: Any, where: str) -> Any:
    try:
        return read_json(value, OWN) if isinstance(value, str) else value
    except JsonError as error:
        raise FormatError(error.what, where=where, code=error.code) from None


def _read_answer_metadata(span: _Wire) -> dict[str, Any]:
    """Return the metadata of the answer from the attributes of the span."""
    provider = text_or_none(span.get("gen_ai.provider.name", span.get("gen_ai.system")))
    model = text_or_none(span.get("gen_ai.response.model", span.get("gen_ai.request.model")))
    if model is not None and provider is not None:
        model = f"{provider}:{model}"
    fields = {"provider": provider, "model": model, "usage": _read_usage(span)}
    return {name: value for name, value in fields.items() if value is not None}


def _read_usage(span: _Wire) -> msg.Usage | None:
    prompt, output = span.get("gen_ai.usage.input_tokens"), span.get("gen_ai.usage.output_tokens")
    if type(prompt) is not int and type(output) is not int:
        return None
    cached = count_or_zero(span.get("gen_ai.usage.cache_read.input_tokens"))
    created = count_or_zero(span.get("gen_ai.usage.cache_creation.input_tokens"))
    usage = msg.Usage(
        input_tokens=max(count_or_zero(prompt) - cached - created, 0),
        output_tokens=count_or_zero(output),
        cached_input_tokens=cached,
        cache_creation_input_tokens=created,
        cost_usd=None,
        pricing_version=msg.NOT_RECORDED,
        latency_ms=0,
    )
    return drop_impossible_counts(usage, NAME)


def _read_item(
    item: _Wire, where: str, reader: base.TranscriptReader, metadata_fields: dict[str, Any] | None = None
) -> None:
    """Read a wire message, which becomes several messages if it contains tool results."""
    role_name = item.get("role")
    if not isinstance(role_name, str):
        raise FormatError("a message needs a role, as text", where=f"{where}.role")
    role = _OTHER_ROLES.get(role_name) or msg.Role.unknown(role_name)
    blocks: list[msg.ContentBlock] = []
    for index, part in enumerate(expect_list(item.get("parts"), f"{where}.parts")):
        reader.path = f"{where}.parts[{index}]"
        blocks.append(_read_part(expect_object(part, reader.path), role, reader))
    reader.path = where
    start, extra = len(reader.messages), (base.own_fields(item) or {})
    runs = [(role, blocks)] if extra.get(_WHOLE) is True else list(_split_runs(role, blocks))
    for number, (run_role, run_blocks) in enumerate(runs):
        reader.messages.append(
            _make_message(run_role, run_blocks, item, reader, metadata_fields or {}, is_first=number == 0)
        )
    group = reader.messages[start:]
    default = _default_item(group, _WriteContext(group))
    reader.messages[start] = base.add_residue(group[0], default, item, NAME)


def _make_message(
    role: msg.Role,
    blocks: Sequence[msg.ContentBlock],
    item: _Wire,
    reader: base.TranscriptReader,
    answer_metadata: dict[str, Any],
    *,
    is_first: bool,
) -> msg.Message:
    extra = {name: value for name, value in (base.own_fields(item) or {}).items() if name != _WHOLE}
    metadata_fields: dict[str, Any] = answer_metadata if role is msg.Role.ASSISTANT else {}
    if item.get("finish_reason") == "error":
        metadata_fields = {**metadata_fields, "status": msg.MessageStatus.ERROR}
    has_extra = is_first and (extra or _WHOLE in (base.own_fields(item) or {}))
    message = reader.make_message(role, blocks, own_extra=extra if has_extra else None, **metadata_fields)
    notes = dict(base.message_notes(message, NAME))
    if not is_first:
        notes["joined"] = True
    if answer_metadata and role is msg.Role.ASSISTANT:
        notes["told"] = _metadata_fingerprint(message)
    return base.with_notes(message, {**notes, "dialect": NAME} if notes else None)


def _metadata_fingerprint(message: msg.Message) -> str:
    """Return a fingerprint of the metadata that a span contained."""
    metadata = message.metadata
    return fingerprint(
        msgspec.to_builtins([metadata.model, metadata.provider, metadata.usage and repr(metadata.usage)])
    )


def _split_runs(
    role: msg.Role, blocks: Iterable[msg.ContentBlock]
) -> Iterator[tuple[msg.Role, list[msg.ContentBlock]]]:
    """Yield the messages of one wire message: each result, and the blocks between results."""
    run: list[msg.ContentBlock] = []
    has_results = False
    for block in blocks:
        if not isinstance(block, msg.ToolResultBlock):
            run.append(block)
            continue
        if run:
            yield role, run
            run = []
        has_results = True
        yield msg.Role.TOOL, [block]
    if run or not has_results:
        yield role, run


def _read_part(part: _Wire, role: msg.Role, reader: base.TranscriptReader) -> msg.ContentBlock:
    """Return the part as a block with its residue, or as an opaque block if its type is unknown."""
    if not isinstance(part.get("type"), str):
        raise FormatError("a part needs a type, as text", where=f"{reader.path}.type")
    notes: dict[str, Any] = {}
    block = _match_part(part, role, reader, notes)
    return base.with_residue(NAME, block, part, lambda block: _default_part(block, notes, {}), **notes)


def _match_part(
    part: _Wire, role: msg.Role, reader: base.TranscriptReader, notes: dict[str, Any]
) -> msg.ContentBlock | None:
    match part:
        case {"builtin": True}:  # executed by the provider
            return None
        case {"type": "text"}:
            return msg.TextBlock(_get_text(part, reader))
        case {"type": "reasoning" | "thinking" as kind}:
            notes["form"] = kind if kind == "thinking" else None
            own = base.own_fields(part) or {}
            if isinstance(own.get("redacted"), str):
                return msg.RedactedThinkingBlock(own["redacted"])
            return msg.ThinkingBlock(_get_text(part, reader), text_or_none(own.get("signature")))
        case {"type": "tool_call"}:
            return _read_call(part, reader, notes)
        case {"type": "tool_call_response"}:
            return _read_result(part, reader, notes)
        case _ if role is not msg.Role.ASSISTANT:
            return _read_medium(part, notes)
        case _:  # media created by a model
            return None


def _get_text(part: _Wire, reader: base.TranscriptReader) -> str:
    """Return the text of a part; empty if the trace omits content."""
    content = part.get("content", "")
    if not isinstance(content, str):
        raise FormatError("the content of this part must be text", where=f"{reader.path}.content")
    return content


def _read_call(part: _Wire, reader: base.TranscriptReader, notes: dict[str, Any]) -> msg.CallBlock:
    call_id, name = reader.read_call_identity(part, "name", "id", notes)
    arguments = part.get("arguments")
    reason = (base.own_fields(part) or {}).get("reason")
    if isinstance(reason, str) and isinstance(arguments, str):
        return msg.InvalidToolUseBlock(call_id, name, arguments, reason)
    match arguments:
        case dict():
            return msg.ToolUseBlock(call_id, name, arguments)
        case None:
            notes["form"] = "null" if "arguments" in part else "absent"
            return msg.ToolUseBlock(call_id, name, {})
        case str():
            value, problem = read_arguments(arguments)
            notes["form"] = "text" if problem is None else None
            if problem is not None:
                return msg.InvalidToolUseBlock(call_id, name, arguments, problem)
            return msg.ToolUseBlock(call_id, name, value)
        case _:
            notes["form"] = "json"
            return msg.InvalidToolUseBlock(call_id, name, _json_text(arguments), "a tool's input is a JSON object")


def _read_result(part: _Wire, reader: base.TranscriptReader, notes: dict[str, Any]) -> msg.ToolResultBlock:
    wire_id = part.get("id")
    call_id = reader.result_id(wire_id if isinstance(wire_id, str) else reader.path)
    if isinstance(wire_id, str) and wire_id != call_id:
        notes["id"] = wire_id
    key = "result" if "response" not in part and "result" in part else "response"
    notes["key"] = key if key == "result" else None
    blocks, notes["form"] = _read_response(part.get(key), reader) if key in part else ((), "absent")
    return msg.ToolResultBlock(call_id, blocks, (base.own_fields(part) or {}).get("is_error") is True)


def _read_response(response: Any, reader: base.TranscriptReader) -> tuple[tuple[msg.ContentBlock, ...], str | None]:
    """Return the blocks of a result, and the form of a response that differs from the default."""
    match response:
        case None:
            return (), "null"
        case str():
            return (msg.TextBlock(response),), None
        case list() if all(isinstance(item, dict) and item.get("type") in _RESULT_TYPES for item in response):
            blocks = tuple(_read_part(item, msg.Role.TOOL, reader) for item in response)
            return blocks, "list" if len(blocks) == 1 and isinstance(blocks[0], msg.TextBlock) else None
        case _:
            return (msg.TextBlock(_json_text(response)),), "json"


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_medium(part: _Wire, notes: dict[str, Any]) -> msg.MediaBlock | None:
    match part:
        case {"type": "blob", "content": str(data)}:
            source, media_type = msg.ImageSource("base64", data), part.get("mime_type")
        case {"type": "uri", "uri": str(address)}:
            source, media_type = msg.ImageSource("url", address), part.get("mime_type")
        case {"type": "binary", "content": str(data), "media_type": str(media_type)}:
            notes["form"] = "binary"
            source = msg.ImageSource("base64", data)
        case {"type": str(kind), "url": str(address)} if kind in _URL_TYPES:
            notes["form"] = kind
            source, media_type = msg.ImageSource("url", address), _UNKNOWN_TYPES[kind.removesuffix("-url")]
        case _:
            return None
    stated_type = text_or_none(media_type)
    modality = part.get("modality")
    if not isinstance(modality, str) or modality not in base.MEDIA_BLOCKS:
        modality = base.media_kind(stated_type or "")
    media_type = _UNKNOWN_TYPES[modality] if stated_type is None else stated_type
    return base.make_medium(modality, source, media_type, (base.own_fields(part) or {}).get("name"))


# --- writing ---------------------------------------------------------------------------------------------------------


class _WriteContext(base.LossCollector):
    """State of a write."""

    def __init__(self, messages: Sequence[msg.Message]) -> None:
        super().__init__(NAME, messages)
        self.call_wire_ids = base.wire_ids(messages, NAME)


def write_messages(messages: Iterable[msg.Message]) -> Written:
    """Write the list, or the attributes of the span that the messages were read from, and report losses."""
    history = tuple(messages)
    context = _WriteContext(history)
    span = next(
        (
            base.message_notes(message, NAME)["span"]
            for message in history
            if "span" in base.message_notes(message, NAME)
        ),
        None,
    )
    if span is not None:
        return Written(base.apply_notes(_default_span(history, context), span), tuple(context.losses))
    wire = [_write_item(group, context) for group in _group_messages(history)]
    return Written(wire, tuple(context.losses))


def _group_messages(messages: Iterable[msg.Message]) -> Iterator[list[msg.Message]]:
    """Yield the messages of each wire message."""
    group: list[msg.Message] = []
    for message in messages:
        if group and not _is_joined_to_previous(message):
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _is_joined_to_previous(message: msg.Message) -> bool:
    """Return whether a message is part of the previous wire message; not if it has extra fields."""
    return (
        base.message_notes(message, NAME).get("joined") is True
        and base.extra_fields(message, NAME, _native_metadata(message), has_id=False) is None
    )


def _default_span(messages: Sequence[msg.Message], context: _WriteContext) -> _Wire:
    """Write the attributes with messages, in their original form."""
    span: _Wire = {}
    forms: dict[str, str] = {}
    attribute = INPUT
    for group in _group_messages(messages):
        attribute, form = base.message_notes(group[0], NAME).get("attribute", (attribute, None))
        if not attribute:
            attribute = INPUT
            continue
        forms.setdefault(attribute, form or "list")
        item = _write_item(group, context)
        if attribute == INSTRUCTIONS and set(item) == {"role", "parts"} and form is not None:
            span[attribute] = item["parts"]
            continue
        attribute = INPUT if attribute == INSTRUCTIONS else attribute
        span.setdefault(attribute, []).append(item)
    return {name: _json_text(value) if forms.get(name) == "text" else value for name, value in span.items()}


def _write_item(group: Sequence[msg.Message], context: _WriteContext) -> _Wire:
    wire: _Wire = base.apply_notes(_default_item(group, context), base.message_notes(group[0], NAME))
    return wire


def _default_item(group: Sequence[msg.Message], context: _WriteContext) -> _Wire:
    """Write a wire message; the first message determines the role."""
    first = group[0]
    parts = [
        _write_part(block, context.call_wire_ids) for message in group for block in _supported_blocks(message, context)
    ]
    item: _Wire = {"role": first.role.value, "parts": parts}
    if first.metadata.status is msg.MessageStatus.ERROR:
        item["finish_reason"] = "error"
    extra = dict(base.extra_fields(first, NAME, _native_metadata(first), has_id=False) or {})
    if len(group) == 1 and [run_role for run_role, _ in _split_runs(first.role, first.content)] != [first.role]:
        extra[_WHOLE] = True
    return {**item, base.KEY: extra} if extra else item


def _native_metadata(message: msg.Message) -> list[str]:
    """Return the metadata that the format or the attributes of the span express."""
    expressed = ["status"] if message.metadata.status is msg.MessageStatus.ERROR else []
    if base.message_notes(message, NAME).get("told") == _metadata_fingerprint(message):
        expressed.extend(("model", "provider", "usage"))
    return expressed


def _supported_blocks(message: msg.Message, context: _WriteContext) -> Iterator[msg.ContentBlock]:
    for block in context.supported_blocks(
        message, message.content, lambda block: _unsupported_reason(block, message.role)
    ):
        if isinstance(block, msg.ToolResultBlock):
            yield block.replace(
                content=context.supported_blocks(
                    message, block.content, lambda inner: base.unsupported_item_reason(inner, NAME)
                )
            )
        else:
            yield block


def _unsupported_reason(block: msg.ContentBlock, role: msg.Role) -> str | None:
    match block:
        case (
            msg.ThinkingBlock()
            | msg.RedactedThinkingBlock()
            | msg.ToolUseBlock()
            | msg.InvalidToolUseBlock()
            | msg.ToolResultBlock()
        ):
            return None
        case _ if isinstance(block, msg.MediaBlock) and role is msg.Role.ASSISTANT:
            return "media of an assistant are opaque in this format"
        case _:
            return base.unsupported_item_reason(block, NAME)


def _write_part(block: msg.ContentBlock, call_wire_ids: dict[str, str]) -> _Wire:
    if isinstance(block, msg.OpaqueBlock):
        return block.wire
    wire: _Wire = base.write_with_notes(block, NAME, lambda notes: _default_part(block, notes, call_wire_ids))
    return wire


def _default_part(block: msg.ContentBlock, notes: dict[str, Any], call_wire_ids: dict[str, str]) -> _Wire:
    """Write a part without its residue; of the notes, form and id are used."""
    match block:
        case msg.TextBlock(text):
            return {"type": "text", "content": text}
        case msg.ThinkingBlock(text, signature):
            part = {"type": notes.get("form") or "reasoning", "content": text}
            return part if signature is None else {**part, base.KEY: {"signature": signature}}
        case msg.RedactedThinkingBlock(data):
            return {"type": notes.get("form") or "reasoning", "content": "", base.KEY: {"redacted": data}}
        case msg.ToolUseBlock(call_id, name, value):
            call = {"type": "tool_call", "id": notes.get("id", call_id), "name": name}
            return call | _default_arguments(value, notes.get("form"))
        case msg.InvalidToolUseBlock(call_id, name):
            return {"type": "tool_call", "id": notes.get("id", call_id), "name": name} | _default_invalid_arguments(
                block, notes
            )
        case msg.ToolResultBlock(tool_use_id):
            wire_id = notes.get("id", call_wire_ids.get(tool_use_id, tool_use_id))
            return {"type": "tool_call_response", "id": wire_id} | _default_response(block, notes, call_wire_ids)
        case _ if isinstance(block, msg.MediaBlock):
            return _default_medium(block, notes.get("form"))
        case _:
            raise TypeError(f"{type(block).__name__} is not a part")


def _default_arguments(value: dict[str, Any], form: str | None) -> _Wire:
    if not value and form in ("absent", "null"):
        return {"arguments": None} if form == "null" else {}
    return {"arguments": _json_text(value) if form == "text" else value}


def _default_invalid_arguments(block: msg.InvalidToolUseBlock, notes: dict[str, Any]) -> _Wire:
    """Write invalid arguments, with the reason if reading does not find the same one."""
    if notes.get("form") == "json":
        try:
            return {"arguments": read_json(block.input_text, OWN)}
        except JsonError:
            pass
    fields = {"arguments": block.input_text}
    return (
        fields
        if read_arguments(block.input_text)[1] == block.reason
        else {**fields, base.KEY: {"reason": block.reason}}
    )


def _default_response(result: msg.ToolResultBlock, notes: dict[str, Any], call_wire_ids: dict[str, str]) -> _Wire:
    key, form = notes.get("key") or "response", notes.get("form")
    error_fields: _Wire = {base.KEY: {"is_error": True}} if result.is_error else {}
    if not result.content and form in ("absent", "null"):
        return error_fields if form == "absent" else {key: None, **error_fields}
    if len(result.content) == 1 and isinstance(result.content[0], msg.TextBlock) and form != "list":
        text = result.content[0].text
        return {key: _parse_json(text) if form == "json" else text, **error_fields}
    return {key: [_write_part(block, call_wire_ids) for block in result.content], **error_fields}


def _parse_json(text: str) -> Any:
    try:
        return read_json(text, OWN)
    except JsonError:
        return text


def _default_medium(block: msg.MediaBlock, form: str | None) -> _Wire:
    modality, source = _MODALITIES[type(block)], block.source
    if form in _URL_TYPES and source.kind == "url" and block.media_type == _UNKNOWN_TYPES[modality]:
        return {"type": form, "url": source.data}
    if form == "binary" and source.kind == "base64":
        return {"type": form, "media_type": block.media_type, "content": source.data}
    stated_type = None if block.media_type == _UNKNOWN_TYPES[modality] else block.media_type
    type_fields = {"mime_type": stated_type, "modality": modality}
    data_field = {"content": source.data} if source.kind == "base64" else {"uri": source.data}
    name = getattr(block, "name", None)
    own = {} if name is None else {base.KEY: {"name": name}}
    return {"type": "blob" if source.kind == "base64" else "uri", **type_fields, **data_field, **own}


__all__ = ["NAME", "looks_like", "read_messages", "write_messages"]
