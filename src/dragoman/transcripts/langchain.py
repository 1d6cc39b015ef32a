"""LangChain messages: the output of ``messages_to_dict``, with ``type`` and ``data``, or flat, as from ``model_dump``.

Content is text or a list of blocks: LangChain's, or a provider's such as Anthropic's ``thinking`` and OpenAI's
``image_url``. Calls are in ``tool_calls``, and also in the list if their position matters. Messages of other types
than the four roles are opaque. Extra fields are stored in ``response_metadata``, which no integration sends to a
model. Published as ``langchain-core`` on PyPI (1.x).

Invariant: a call in two places is one call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from dragoman import message as msg
from dragoman.errors import FormatError
from dragoman.exchange import Written
from dragoman.jsontext import count_or_zero, expect_list, expect_object, is_count, text_or_none
from dragoman.transcripts import base
from dragoman.wire.counts import drop_impossible_counts
from dragoman.wire.residue import get_notes

NAME: Final = "langchain"
_TYPES: Final = {msg.Role.USER: "human", msg.Role.ASSISTANT: "ai", msg.Role.SYSTEM: "system", msg.Role.TOOL: "tool"}
_ROLES: Final = {
    **{name: role for role, name in _TYPES.items()},
    "HumanMessageChunk": msg.Role.USER,
    "AIMessageChunk": msg.Role.ASSISTANT,
    "SystemMessageChunk": msg.Role.SYSTEM,
    "ToolMessageChunk": msg.Role.TOOL,
}
_OPAQUE_TYPES: Final = ("chat", "function", "remove", "ChatMessageChunk", "FunctionMessageChunk")
_DATA_URL: Final = re.compile(r"data:([^,;]*);base64,(.*)", re.DOTALL)
_UNKNOWN_TYPES: Final = {**base.UNKNOWN_TYPES, "file": "application/octet-stream"}


# --- reading ---------------------------------------------------------------------------------------------------------


def looks_like(wire: Any) -> bool:
    """Return whether a value may be a list of LangChain messages: each has a known type, and data or content."""
    return base.is_list_of(wire, _is_message)


def _is_message(item: Any) -> bool:
    if not isinstance(item, dict) or item.get("type") not in [*_ROLES, *_OPAQUE_TYPES]:
        return False
    return isinstance(item.get("data"), dict) or "content" in item


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[msg.Message, ...]:
    """Read a list of LangChain messages."""
    return base.read_transcript(wire, _read_list, base.TranscriptReader(NAME, session_id, created_at))


def _read_list(value: Any, reader: base.TranscriptReader) -> None:
    for index, item in enumerate(expect_list(value, "$")):
        reader.path = f"$[{index}]"
        reader.messages.append(_read_item(expect_object(item, reader.path), reader))


def _read_item(item: dict[str, Any], reader: base.TranscriptReader) -> msg.Message:
    kind, is_flat = item.get("type"), "data" not in item
    where = reader.path if is_flat else f"{reader.path}.data"
    data = expect_object(item if is_flat else item["data"], where)
    if kind in _OPAQUE_TYPES:
        message = reader.make_message(
            msg.Role.ASSISTANT, [msg.OpaqueBlock(NAME, item)], own_extra=base.own_fields(data.get("response_metadata"))
        )
        return base.add_residue(base.add_notes(message, NAME, form="whole"), item, item, NAME)
    if not isinstance(kind, str) or kind not in _ROLES:
        types = ", ".join([*_ROLES, *_OPAQUE_TYPES])
        raise FormatError(f"expected one of the types {types}, not {kind!r}", where=f"{reader.path}.type")
    role = _ROLES[kind]
    blocks = _read_blocks(role, data, where, reader)
    message = reader.make_message(
        role,
        blocks,
        wire_id=data.get("id"),
        own_extra=base.own_fields(data.get("response_metadata")),
        **_read_metadata(role, data),
    )
    notes: dict[str, Any] = {"flat": True} if is_flat else {}
    if kind != _TYPES[role]:
        notes["type"] = kind
    response_metadata = data.get("response_metadata")
    if isinstance(response_metadata, dict) and "model_provider" in response_metadata:
        notes["provider"] = True
    if isinstance(data.get("content"), list) and _is_plain_text(message, _content_blocks(message)):
        notes["list"] = True
    message = base.add_notes(message, NAME, **notes)
    return base.add_residue(message, _default_message(message), item, NAME)


def _read_blocks(
    role: msg.Role, data: dict[str, Any], where: str, reader: base.TranscriptReader
) -> list[msg.ContentBlock]:
    content = data.get("content")
    if not isinstance(content, str | list):
        raise FormatError(f"expected text or a list, not {type(content).__name__}", where=f"{where}.content")
    if role is msg.Role.TOOL:
        return [_read_result(data, content, where, reader)]
    if role is not msg.Role.ASSISTANT:
        return _read_content(content, role, where)
    calls = [
        *_read_calls(data, "tool_calls", where, reader),
        *_read_calls(data, "invalid_tool_calls", where, reader),
    ]
    thought = _read_reasoning_content(data)
    if content == "" and (calls or thought):
        return [*thought, *(call for _, call in calls)]  # the format requires a text, also an empty one
    blocks = _place_calls(_read_content(content, role, where), calls)
    return [*thought, *blocks]


def _read_reasoning_content(data: dict[str, Any]) -> list[msg.ContentBlock]:
    """Return reasoning from ``additional_kwargs``, where some integrations store it."""
    extra = data.get("additional_kwargs")
    text = extra.get("reasoning_content") if isinstance(extra, dict) else None
    if not isinstance(text, str) or not text:
        return []
    return [msg.ThinkingBlock(text, provider_raw={"dialect": NAME, "form": "aside"})]


def _read_content(content: str | list[Any], role: msg.Role, where: str) -> list[msg.ContentBlock]:
    if isinstance(content, str):
        return [msg.TextBlock(content)]
    blocks: list[msg.ContentBlock] = []
    for at, part in enumerate(content):
        if isinstance(part, str):
            blocks.append(msg.TextBlock(part, {"dialect": NAME, "form": "bare"}))
        else:
            blocks.append(_read_part(expect_object(part, f"{where}.content[{at}]"), role))
    return blocks


def _read_part(part: dict[str, Any], role: msg.Role) -> msg.ContentBlock:
    block, form = _match_part(part, role)
    return base.with_residue(NAME, block, part, lambda block: _default_part(block, form), form=form)


def _match_part(part: dict[str, Any], role: msg.Role) -> tuple[msg.ContentBlock | None, str | None]:
    match part:
        case {"type": "text", "text": str(text)}:
            return msg.TextBlock(text), None
        case {"type": "text-plain", "text": str(text)}:
            return msg.TextBlock(text), "text-plain"
        case {"type": "reasoning", "reasoning": str(text)} if role is msg.Role.ASSISTANT:
            extras = part.get("extras")
            signature = extras.get("signature") if isinstance(extras, dict) else None
            return msg.ThinkingBlock(text, signature if isinstance(signature, str) else None), None
        case {"type": "thinking", "thinking": str(text)} if role is msg.Role.ASSISTANT:
            signature = part.get("signature")
            return msg.ThinkingBlock(text, signature if isinstance(signature, str) else None), "thinking"
        case {"type": "redacted_thinking", "data": str(data)} if role is msg.Role.ASSISTANT:
            return msg.RedactedThinkingBlock(data), None
        case _:
            return _match_medium(part) if role is msg.Role.USER else (None, None)


def _match_medium(part: dict[str, Any]) -> tuple[msg.MediaBlock | None, str | None]:
    """Return a medium in LangChain's current or earlier fields, or in a provider's."""
    match part:
        case {"type": "image_url", "image_url": str(url) | {"url": str(url)}}:
            match = _DATA_URL.fullmatch(url)
            if match is None:
                return msg.ImageBlock(msg.ImageSource("url", url), "image/*"), "image_url"
            return msg.ImageBlock(msg.ImageSource("base64", match[2]), match[1]), "image_url"
        case {"type": "image" | "audio" | "video" | "file" as kind, "base64": str(data)}:
            return _make_medium(kind, msg.ImageSource("base64", data), part), None
        case {"type": "image" | "audio" | "video" | "file" as kind, "file_id": str(path), "extras": dict(extras)}:
            is_own_file = extras.get(base.KEY) == {"file_ref": True}
            return (_make_medium(kind, msg.ImageSource("file_ref", path), part) if is_own_file else None), None
        case {"type": "image" | "audio" | "video" | "file" as kind, "source_type": "base64", "data": str(data)}:
            return _make_medium(kind, msg.ImageSource("base64", data), part), "source_type"
        case {"type": "image" | "audio" | "video" | "file" as kind, "source_type": "url", "url": str(url)}:
            return _make_medium(kind, msg.ImageSource("url", url), part), "source_type"
        case {"type": "image" | "audio" | "video" | "file" as kind, "url": str(url)} if "source_type" not in part:
            return _make_medium(kind, msg.ImageSource("url", url), part), None
        case {"type": "image", "source": {"type": "base64", "media_type": str(media_type), "data": str(data)}}:
            return msg.ImageBlock(msg.ImageSource("base64", data), media_type), "source"
        case _:
            return None, None


def _make_medium(kind: str, source: msg.ImageSource, part: dict[str, Any]) -> msg.MediaBlock:
    stated_type, extras = text_or_none(part.get("mime_type")), part.get("extras")
    media_type = _UNKNOWN_TYPES[kind] if stated_type is None else stated_type
    name = extras.get("filename") if isinstance(extras, dict) else None
    return base.make_medium("document" if kind == "file" else kind, source, media_type, name)


def _read_result(
    data: dict[str, Any], content: str | list[Any], where: str, reader: base.TranscriptReader
) -> msg.ToolResultBlock:
    wire_id = data.get("tool_call_id")
    if not isinstance(wire_id, str):
        raise FormatError("a result needs the id of its call", where=f"{where}.tool_call_id")
    our_id = reader.result_id(wire_id)
    raw = {"dialect": NAME, "id": wire_id} if wire_id != our_id else None
    blocks = tuple(_read_content(content, msg.Role.USER, where))
    return msg.ToolResultBlock(our_id, blocks, data.get("status") == "error", raw)


# --- calls -----------------------------------------------------------------------------------------------------------


def _read_calls(
    data: dict[str, Any], key: str, where: str, reader: base.TranscriptReader
) -> list[tuple[str | None, msg.CallBlock]]:
    """Return the calls of one of the two lists, each with its LangChain id."""
    wire_calls = data.get(key)
    calls = [] if wire_calls is None else expect_list(wire_calls, f"{where}.{key}")
    return [
        _read_call(expect_object(call, f"{where}.{key}[{at}]"), f"{where}.{key}[{at}]", reader)
        for at, call in enumerate(calls)
    ]


def _read_call(call: dict[str, Any], where: str, reader: base.TranscriptReader) -> tuple[str | None, msg.CallBlock]:
    wire_id, name, args, error = call.get("id"), call.get("name"), call.get("args"), call.get("error")
    if not isinstance(wire_id, str | None) or not isinstance(name, str | None):
        raise FormatError("the id and the name of a call must be text", where=where)
    if type(args) is not dict and not isinstance(args, str | None):
        raise FormatError("the input of a call must be an object, or text if it is invalid", where=f"{where}.args")
    our_id = reader.call_id(wire_id or "")
    block: msg.CallBlock
    if type(args) is dict:
        block = msg.ToolUseBlock(our_id, name or "", args)
    else:
        text = args if isinstance(args, str) else ""
        block = msg.InvalidToolUseBlock(our_id, name or "", text, error if isinstance(error, str) else "")
    note = wire_id if wire_id and wire_id != our_id else None
    return wire_id, block.replace(provider_raw=base.make_notes(NAME, _default_call(block, note), call, id=note))


def _place_calls(
    blocks: list[msg.ContentBlock], calls: list[tuple[str | None, msg.CallBlock]]
) -> list[msg.ContentBlock]:
    """Return the blocks with each call at its position in the list, and the other calls at the end."""
    unplaced, result = list(calls), list[msg.ContentBlock]()
    for block in blocks:
        match = next((call for call in unplaced if _refers_to(block, call)), None)
        if match is None or not isinstance(block, msg.OpaqueBlock):
            result.append(block)
            continue
        unplaced.remove(match)
        result.append(_add_place_notes(match[1], block.wire))
    return [*result, *(call for _, call in unplaced)]


def _refers_to(block: msg.ContentBlock, call: tuple[str | None, msg.CallBlock]) -> bool:
    match block:
        case msg.OpaqueBlock(wire={"type": "tool_call" | "tool_use" as kind, "id": str(wire_id), **rest}):
            call_input = rest.get("args" if kind == "tool_call" else "input")
            return isinstance(call[1], msg.ToolUseBlock) and call[0] == wire_id and isinstance(call_input, dict | str)
        case msg.OpaqueBlock(wire={"type": "invalid_tool_call", "id": str(wire_id)}):
            return isinstance(call[1], msg.InvalidToolUseBlock) and call[0] == wire_id
        case _:
            return False


def _add_place_notes(call: msg.CallBlock, part: dict[str, Any]) -> msg.CallBlock:
    """Return the call with the residue of the part that marks its position."""
    notes = get_notes(call.provider_raw, NAME)
    raw = base.make_notes(NAME, _default_place(call, part["type"], notes.get("id")), part, form=part["type"]) or {}
    place = {key: note for key, note in raw.items() if key != "dialect"}
    return call.replace(provider_raw={"dialect": NAME, **notes, "place": place})


def _default_place(call: msg.CallBlock, form: str, wire_id: str | None) -> dict[str, Any]:
    if isinstance(call, msg.InvalidToolUseBlock):
        return _default_call(call, wire_id)
    if form == "tool_use":
        return {"type": "tool_use", "id": wire_id or call.id, "name": call.name, "input": call.input}
    return {"type": "tool_call", "id": wire_id or call.id, "name": call.name, "args": call.input}


def _write_place(call: msg.CallBlock) -> dict[str, Any]:
    notes = get_notes(call.provider_raw, NAME)
    place = notes.get("place", {})
    wire: dict[str, Any] = base.apply_notes(
        _default_place(call, place.get("form", "tool_call"), notes.get("id")), place
    )
    return wire


def _default_call(call: msg.CallBlock, wire_id: str | None) -> dict[str, Any]:
    our_id = wire_id or call.id
    if isinstance(call, msg.ToolUseBlock):
        return {"name": call.name, "args": call.input, "id": our_id, "type": "tool_call"}
    return {"type": "invalid_tool_call", "id": our_id, "name": call.name, "args": call.input_text, "error": call.reason}


def _write_call(call: msg.CallBlock) -> Any:
    return base.write_with_notes(call, NAME, lambda notes: _default_call(call, notes.get("id")))


# --- metadata --------------------------------------------------------------------------------------------------------


def _read_metadata(role: msg.Role, data: dict[str, Any]) -> dict[str, Any]:
    """Return model, provider and usage, if present."""
    if role is not msg.Role.ASSISTANT:
        return {}
    fields: dict[str, Any] = {}
    response_metadata = data.get("response_metadata")
    response_metadata = response_metadata if isinstance(response_metadata, dict) else {}
    provider, model = (
        response_metadata.get("model_provider"),
        response_metadata.get("model_name") or response_metadata.get("model"),
    )
    if isinstance(provider, str):
        fields["provider"] = provider
    if isinstance(model, str):
        fields["model"] = f"{provider}:{model}" if isinstance(provider, str) else model
    usage = _read_usage(data.get("usage_metadata"))
    return fields if usage is None else {**fields, "usage": usage}


def _read_usage(wire: Any) -> msg.Usage | None:
    """Read token counts. LangChain's input includes cached tokens; it has no price."""
    match wire:
        case {"input_tokens": prompt, "output_tokens": output} if is_count(prompt) and is_count(output):
            input_details, output_details = wire.get("input_token_details"), wire.get("output_token_details")
        case _:
            return None
    input_details = input_details if isinstance(input_details, dict) else {}
    output_details = output_details if isinstance(output_details, dict) else {}
    cached, created = count_or_zero(input_details.get("cache_read")), count_or_zero(input_details.get("cache_creation"))
    if cached + created > prompt:
        cached = created = 0
    usage = msg.Usage(
        input_tokens=prompt - cached - created,
        output_tokens=output,
        cached_input_tokens=cached,
        cache_creation_input_tokens=created,
        input_audio_tokens=count_or_zero(input_details.get("audio")),
        reasoning_tokens=count_or_zero(output_details.get("reasoning")),
        output_audio_tokens=count_or_zero(output_details.get("audio")),
        cost_usd=None,
        pricing_version=msg.NOT_RECORDED,
        latency_ms=0,
    )
    return drop_impossible_counts(usage, NAME)


def _default_usage(usage: msg.Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    wire: dict[str, Any] = {
        "input_tokens": prompt,
        "output_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
    }
    input_details = {
        "audio": usage.input_audio_tokens,
        "cache_creation": usage.cache_creation_input_tokens,
        "cache_read": usage.cached_input_tokens,
    }
    output_details = {"audio": usage.output_audio_tokens, "reasoning": usage.reasoning_tokens}
    for key, details in (("input_token_details", input_details), ("output_token_details", output_details)):
        nonzero = {name: count for name, count in details.items() if count}
        if nonzero:
            wire[key] = nonzero
    return wire


def _default_origin(message: msg.Message) -> dict[str, Any]:
    """Write the model, and ``model_provider`` if it was read: it declares the format of the content."""
    provider, model = message.metadata.provider, message.metadata.model
    fields = {}
    if model is not None:
        fields["model_name"] = model.removeprefix(f"{provider}:") if provider is not None else model
    if provider is not None and base.message_notes(message, NAME).get("provider"):
        fields["model_provider"] = provider
    return fields


# --- writing ---------------------------------------------------------------------------------------------------------


def write_messages(messages: Iterable[msg.Message]) -> Written:
    """Write messages as LangChain's and report losses."""
    history = tuple(messages)
    collector = base.LossCollector(NAME, history)
    call_wire_ids = base.wire_ids(history, NAME)
    wires = [wire for message in history for wire in _write_message(message, collector, call_wire_ids)]
    return Written(wires, tuple(collector.losses))


def _write_message(
    message: msg.Message, collector: base.LossCollector, call_wire_ids: dict[str, str]
) -> list[dict[str, Any]]:
    if message.role not in base.KNOWN_ROLES:
        collector.add_loss(message, "message", f"this format has no role {message.role}")
        return []
    blocks = collector.supported_blocks(
        message, message.content, lambda block: base.unsupported_reason(block, message.role, NAME)
    )
    if message.role is not msg.Role.TOOL:
        return [_write_with_notes(message.replace(content=blocks))]
    for block in blocks[1:]:
        collector.add_loss(message, block.type, "a message has only one result in this format")
    if not blocks:
        collector.add_loss(message, "message", "a tool message without a result")
        return []
    result = collector.supported_result(
        message, blocks[0], lambda inner: base.unsupported_reason(inner, msg.Role.USER, NAME), call_wire_ids
    )
    return [_write_with_notes(message.replace(content=(result,)))]


def _write_with_notes(message: msg.Message) -> dict[str, Any]:
    wire: dict[str, Any] = base.apply_notes(_default_message(message), base.message_notes(message, NAME))
    return wire


def _default_message(message: msg.Message) -> dict[str, Any]:
    """Write a message without its residue."""
    notes = base.message_notes(message, NAME)
    first = message.content[0] if message.content else None
    if notes.get("form") == "whole" and isinstance(first, msg.OpaqueBlock):
        return first.wire
    kind = notes.get("type") or _TYPES[message.role]
    data = {
        **_default_base(message),
        "type": kind,
        "name": None,
        "id": base.get_wire_id(message),
        **_default_rest(message),
    }
    return data if notes.get("flat") else {"type": kind, "data": data}


def _default_base(message: msg.Message) -> dict[str, Any]:
    kwargs, response_metadata, expressed = {}, dict[str, Any](), set[str]()
    if message.role is msg.Role.ASSISTANT:
        first = message.content[0] if message.content else None
        if isinstance(first, msg.ThinkingBlock) and _is_reasoning_content(first):
            kwargs["reasoning_content"] = first.text
        response_metadata = _default_origin(message)
        reread = _read_metadata(
            message.role,
            {"response_metadata": response_metadata, "usage_metadata": _default_usage(message.metadata.usage)},
        )
        expressed = {name for name, value in reread.items() if getattr(message.metadata, name) == value}
    extra = base.extra_fields(message, NAME, expressed)
    if extra is not None:
        response_metadata[base.KEY] = extra
    return {"content": _default_content(message), "additional_kwargs": kwargs, "response_metadata": response_metadata}


def _default_rest(message: msg.Message) -> dict[str, Any]:
    """Write the fields that only assistant and tool messages have."""
    match message.content:
        case _ if message.role is msg.Role.ASSISTANT:
            calls = [block for block in message.content if isinstance(block, msg.CallBlock)]
            return {
                "tool_calls": [_write_call(call) for call in calls if isinstance(call, msg.ToolUseBlock)],
                "invalid_tool_calls": [
                    _write_call(call) for call in calls if isinstance(call, msg.InvalidToolUseBlock)
                ],
                "usage_metadata": _default_usage(message.metadata.usage),
            }
        case (msg.ToolResultBlock() as result,):
            wire_id = get_notes(result.provider_raw, NAME).get("id", result.tool_use_id)
            status = "error" if result.is_error else "success"
            return {"tool_call_id": wire_id, "artifact": None, "status": status}
        case _:
            return {}


def _is_reasoning_content(block: msg.ContentBlock) -> bool:
    return isinstance(block, msg.ThinkingBlock) and get_notes(block.provider_raw, NAME).get("form") == "aside"


def _content_blocks(message: msg.Message) -> Sequence[msg.ContentBlock]:
    """Return the blocks of the content: those of a result; for an assistant, calls only if their position matters."""
    match message.content:
        case (msg.ToolResultBlock(content=content),):
            return content
        case blocks if message.role is msg.Role.ASSISTANT:
            blocks = blocks[1:] if blocks and _is_reasoning_content(blocks[0]) else blocks
            ranks = [_rank(block) for block in blocks]
            is_sorted = ranks == sorted(ranks)
            return [block for block in blocks if not (is_sorted and _rank(block))]
        case blocks:
            return blocks


def _rank(block: msg.ContentBlock) -> int:
    """Return the sort rank: calls without a position follow other blocks, invalid calls are last."""
    return (
        0
        if _has_place(block) or not isinstance(block, msg.CallBlock)
        else 1
        if isinstance(block, msg.ToolUseBlock)
        else 2
    )


def _has_place(block: msg.ContentBlock) -> bool:
    return isinstance(block, msg.CallBlock) and "place" in get_notes(block.provider_raw, NAME)


def _is_plain_text(message: msg.Message, inner: Sequence[msg.ContentBlock]) -> bool:
    """Return whether the content is one text without notes, which is written as a string."""
    match inner:
        case [msg.TextBlock(text) as block]:
            is_only_block = len(message.content) == 1 or message.role is msg.Role.TOOL
            return (bool(text) or is_only_block) and not get_notes(block.provider_raw, NAME)
        case _:
            return False


def _default_content(message: msg.Message) -> Any:
    inner = _content_blocks(message)
    match inner:
        case [msg.TextBlock(text)] if _is_plain_text(message, inner) and not base.message_notes(message, NAME).get(
            "list"
        ):
            return text
        case [] if (
            message.content and message.role is msg.Role.ASSISTANT and not base.message_notes(message, NAME).get("list")
        ):
            return ""
        case _:
            return [_write_part(block) for block in inner]


def _write_part(block: msg.ContentBlock) -> Any:
    if isinstance(block, msg.CallBlock):
        return _write_place(block)
    return base.write_with_notes(block, NAME, lambda notes: _default_part(block, notes.get("form")))


def _default_part(block: msg.ContentBlock, form: str | None) -> Any:
    match block:
        case msg.TextBlock(text) if form == "bare":
            return text
        case msg.TextBlock(text):
            return {"type": form or "text", "text": text}
        case msg.ThinkingBlock(text, signature) if form == "thinking":
            return {"type": "thinking", "thinking": text, **({} if signature is None else {"signature": signature})}
        case msg.ThinkingBlock(text, signature):
            signature_field = {} if signature is None else {"extras": {"signature": signature}}
            return {"type": "reasoning", "reasoning": text, **signature_field}
        case msg.RedactedThinkingBlock(data):
            return {"type": "redacted_thinking", "data": data}
        case msg.OpaqueBlock(wire=wire):
            return wire
        case _ if isinstance(block, msg.MediaBlock):
            return _default_medium(block, form)
        case _:
            raise AssertionError(f"{block.type} is not a part")


def _default_medium(block: msg.MediaBlock, form: str | None) -> dict[str, Any]:
    kind, source, media_type = (
        "file" if isinstance(block, msg.DocumentBlock) else block.type,
        block.source,
        block.media_type,
    )
    if form == "image_url":
        url = source.data if source.kind == "url" else f"data:{media_type};base64,{source.data}"
        return {"type": "image_url", "image_url": {"url": url}}
    if form == "source":
        return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": source.data}}
    type_field = {} if media_type == _UNKNOWN_TYPES[kind] else {"mime_type": media_type}
    name = getattr(block, "name", None)
    extras: dict[str, Any] = {} if name is None else {"filename": name}
    if form == "source_type":
        key = "data" if source.kind == "base64" else "url"
        return {"type": kind, "source_type": source.kind, key: source.data, **type_field}
    key = {"base64": "base64", "url": "url"}.get(source.kind, "file_id")
    if key == "file_id":
        extras[base.KEY] = {"file_ref": True}
    return {"type": kind, key: source.data, **type_field, **({"extras": extras} if extras else {})}
