"""AG-UI: the message list of front ends and agents, protocol 1.0 and earlier.

An AG-UI message contains text with calls, or one result, or one reasoning text; an assistant message of ours may become
several of theirs. They are consecutive, and all but the main one refer to it as ``part_of`` under our key. A reasoning
message and the text after it are read as one message, also without a mark. Activities, which are only displayed, are
opaque. Published as ``ag-ui-protocol`` on PyPI and ``@ag-ui/core`` on npm (1.0, September 2026).

Invariant: reasoning never becomes text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman import message as msg
from dragoman.errors import FormatError
from dragoman.exchange import Written
from dragoman.jsontext import expect_list, expect_object, text_or_none
from dragoman.transcripts import base
from dragoman.wire.residue import get_notes
from dragoman.wire.tool_definitions import read_arguments

NAME: Final = "ag_ui"
_ROLES: Final = {
    "user": msg.Role.USER,
    "assistant": msg.Role.ASSISTANT,
    "reasoning": msg.Role.ASSISTANT,
    "activity": msg.Role.ASSISTANT,
    "system": msg.Role.SYSTEM,
    "developer": msg.Role.SYSTEM,
    "tool": msg.Role.TOOL,
}
_FILE_PROVIDER: Final = "dragoman"  # the provider of workspace files
_PIECE_FIELDS: Final = (
    "part_of",
    "redacted",
    "empty",
    "blank",
)  # fields under our key about a wire message instead of a message
_UNKNOWN_TYPES: Final = {**base.UNKNOWN_TYPES, "document": "application/octet-stream"}
_Thought = msg.ThinkingBlock | msg.RedactedThinkingBlock


# --- reading ---------------------------------------------------------------------------------------------------------


def looks_like(wire: Any) -> bool:
    """Return whether a value may be a list of AG-UI messages: with a role and an id, without type and parts."""
    return base.is_list_of(wire, _is_message)


def _is_message(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    has_identity = isinstance(item.get("id"), str) and isinstance(item.get("role"), str)
    return has_identity and item["role"] in _ROLES and not item.keys() & {"type", "parts", "data", "kind", "tool_calls"}


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[msg.Message, ...]:
    """Read a list of AG-UI messages."""
    return base.read_transcript(wire, _read_list, base.TranscriptReader(NAME, session_id, created_at))


def _read_list(value: Any, reader: base.TranscriptReader) -> None:
    group: list[tuple[str, dict[str, Any]]] = []
    for index, item in enumerate(expect_list(value, "$")):
        where = f"$[{index}]"
        _check_message(expect_object(item, where), where)
        if group and not _is_same_message(group[-1][1], item):
            _read_group(group, reader)
            group = []
        group.append((where, item))
    if group:
        _read_group(group, reader)


def _check_message(item: dict[str, Any], where: str) -> None:
    if not isinstance(item.get("role"), str) or item["role"] not in _ROLES:
        raise FormatError(f"expected a role of {', '.join(_ROLES)}, not {item.get('role')!r}", where=f"{where}.role")
    if not isinstance(item.get("id"), str):
        raise FormatError("a message needs an id", where=f"{where}.id")


def _is_same_message(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether two wire messages are one message: by their marks, or as reasoning followed by text."""
    if _ROLES[before["role"]] is not _ROLES[after["role"]]:
        return False
    first, second = base.own_fields(before.get("metadata")), base.own_fields(after.get("metadata"))
    if first is None and second is None:
        has_content = after.get("content") is not None or bool(after.get("toolCalls"))
        return before["role"] == "reasoning" and after["role"] in ("assistant", "reasoning") and has_content
    whole_ids = [(fields or {}).get("part_of", item["id"]) for fields, item in ((first, before), (second, after))]
    return bool(whole_ids[0] == whole_ids[1])


def _main_index(roles: Iterable[str]) -> int:
    """Return the index of the wire message that has the id: the first that is not reasoning."""
    return next((index for index, role in enumerate(roles) if role != "reasoning"), 0)


def _read_group(group: list[tuple[str, dict[str, Any]]], reader: base.TranscriptReader) -> None:
    reader.path = group[0][0]
    main_index = _main_index(item["role"] for _, item in group)
    main = group[main_index][1]
    own = base.own_fields(main.get("metadata"))
    extra = None if own is None else {key: value for key, value in own.items() if key not in _PIECE_FIELDS}
    pieces = [_read_piece(item, where, reader) for where, item in group]
    message = reader.make_message(
        _ROLES[main["role"]], [block for piece in pieces for block in piece], wire_id=main["id"], own_extra=extra
    )
    form = _get_form(main)
    if form is not None:
        message = base.add_notes(message, NAME, form=form)
    blocks: list[msg.ContentBlock] = []
    for index, (_, item) in enumerate(group):
        if index == main_index:
            blocks.extend(pieces[index])
        else:
            blocks.extend(_add_piece_notes(message, pieces[index], index, item))
    message = base.add_residue(
        message.replace(content=tuple(blocks)), _default_main(message, tuple(pieces[main_index])), main, NAME
    )
    reader.messages.append(message)


def _get_form(item: dict[str, Any]) -> str | None:
    """Return the form of a message that differs from the default."""
    if item["role"] == "developer":
        return "developer"
    content = item.get("content")
    return "list" if isinstance(content, list) and [_part_type(part) for part in content] == ["text"] else None


def _part_type(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _add_piece_notes(
    message: msg.Message, blocks: list[msg.ContentBlock], index: int, item: dict[str, Any]
) -> Iterator[msg.ContentBlock]:
    """Yield the blocks of a secondary wire message; the first one keeps its residue."""
    notes: dict[str, Any] = {"joined": True} if base.own_fields(item.get("metadata")) is None else {}
    if item["id"] != f"{base.get_wire_id(message)}.{index}":
        notes["id"] = item["id"]
    piece_notes = base.make_notes(NAME, _default_piece(message, tuple(blocks), index, notes), item, **notes)
    for position, block in enumerate(blocks):
        if position or piece_notes is None or isinstance(block, msg.UnknownBlock):
            yield block
        else:
            piece = {key: note for key, note in piece_notes.items() if key != "dialect"}
            raw = {"dialect": NAME, **get_notes(block.provider_raw, NAME), "piece": piece}
            yield block.replace(provider_raw=raw)


def _read_piece(item: dict[str, Any], where: str, reader: base.TranscriptReader) -> list[msg.ContentBlock]:
    content = item.get("content")
    match item["role"]:
        case "activity":
            return [msg.OpaqueBlock(NAME, item)]
        case "reasoning":
            return [_read_thinking(item, _expect_text(content, where))]
        case "system" | "developer":
            text = _expect_text(content, where)
            return (
                []
                if not text and (base.own_fields(item.get("metadata")) or {}).get("empty") is True
                else [msg.TextBlock(text)]
            )
        case "tool":
            return [_read_result(item, where, reader)]
        case "user":
            return _read_content(content, where)
        case _:
            calls = expect_list(item.get("toolCalls") or [], f"{where}.toolCalls")
            return [
                *_read_assistant_text(item, where, beside_calls=bool(calls)),
                *(_read_call(call, f"{where}.toolCalls[{at}]", reader) for at, call in enumerate(calls)),
            ]


def _read_assistant_text(item: dict[str, Any], where: str, *, beside_calls: bool) -> list[msg.ContentBlock]:
    """Return the text of an assistant message. Empty text beside calls is ignored: some clients add it."""
    content = item.get("content")
    if content is None or (
        content == "" and beside_calls and (base.own_fields(item.get("metadata")) or {}).get("blank") is not True
    ):
        return []
    return [msg.TextBlock(_expect_text(content, where))]


def _expect_text(content: Any, where: str) -> str:
    if not isinstance(content, str):
        raise FormatError(f"expected text, not {type(content).__name__}", where=f"{where}.content")
    return content


def _read_thinking(item: dict[str, Any], text: str) -> _Thought:
    encrypted = item.get("encryptedValue")
    if (base.own_fields(item.get("metadata")) or {}).get("redacted") is True and isinstance(encrypted, str):
        return msg.RedactedThinkingBlock(encrypted)
    return msg.ThinkingBlock(text, encrypted if isinstance(encrypted, str) else None)


def _read_content(content: Any, where: str) -> list[msg.ContentBlock]:
    if isinstance(content, str):
        return [msg.TextBlock(content)]
    parts = expect_list(content, f"{where}.content")
    return [_read_part(expect_object(part, f"{where}.content[{at}]")) for at, part in enumerate(parts)]


def _read_part(part: dict[str, Any]) -> msg.ContentBlock:
    form = "binary" if part.get("type") == "binary" else None
    return base.with_residue(NAME, _match_part(part), part, lambda block: _default_part(block, form), form=form)


def _match_part(part: dict[str, Any]) -> msg.TextBlock | msg.MediaBlock | None:
    metadata = part.get("metadata")
    filename = metadata.get("filename") if isinstance(metadata, dict) else None
    match part:
        case {"type": "text", "text": str(text)}:
            return msg.TextBlock(text)
        case {"type": "image" | "audio" | "video" | "document" as kind, "source": dict(wire_source)}:
            source = _read_source(wire_source)
            stated_type = text_or_none(wire_source.get("mimeType"))
            if source is None:
                return None
            return base.make_medium(
                kind, source, _UNKNOWN_TYPES[kind] if stated_type is None else stated_type, filename
            )
        case {"type": "binary", "mimeType": str(media_type), "data": str(data)}:
            return base.make_medium(
                base.media_kind(media_type), msg.ImageSource("base64", data), media_type, part.get("filename")
            )
        case {"type": "binary", "mimeType": str(media_type), "url": str(url)}:
            return base.make_medium(
                base.media_kind(media_type), msg.ImageSource("url", url), media_type, part.get("filename")
            )
        case _:
            return None


def _read_source(wire_source: dict[str, Any]) -> msg.ImageSource | None:
    match wire_source:
        case {"type": "data", "value": str(data)}:
            return msg.ImageSource("base64", data)
        case {"type": "url", "value": str(url)}:
            return msg.ImageSource("url", url)
        case {"type": "file", "value": str(path), "provider": "dragoman"}:
            return msg.ImageSource("file_ref", path)
        case _:
            return None  # a file of another provider


def _read_call(value: Any, where: str, reader: base.TranscriptReader) -> msg.CallBlock:
    call = expect_object(value, where)
    function = expect_object(call.get("function"), f"{where}.function")
    wire_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    for key, field in (("id", wire_id), ("function.name", name), ("function.arguments", arguments)):
        if not isinstance(field, str):
            raise FormatError(f"expected text, not {type(field).__name__}", where=f"{where}.{key}")
    assert isinstance(wire_id, str)
    assert isinstance(name, str)
    assert isinstance(arguments, str)
    our_id = reader.call_id(wire_id)
    value, problem = read_arguments(arguments)
    stated_problem = (base.own_fields(call.get("metadata")) or {}).get("invalid")
    problem = stated_problem if isinstance(stated_problem, str) else problem
    block: msg.CallBlock = msg.ToolUseBlock(our_id, name, value)
    if problem is not None:
        block = msg.InvalidToolUseBlock(our_id, name, arguments, problem)
    note = wire_id if wire_id != our_id else None
    return block.replace(provider_raw=base.make_notes(NAME, _default_call(block, note), call, id=note))


def _read_result(item: dict[str, Any], where: str, reader: base.TranscriptReader) -> msg.ToolResultBlock:
    wire_id = item.get("toolCallId")
    if not isinstance(wire_id, str):
        raise FormatError("a result needs the id of its call", where=f"{where}.toolCallId")
    our_id = reader.result_id(wire_id)
    raw: msg.ProviderRaw | None = {"dialect": NAME, "id": wire_id} if wire_id != our_id else None
    content = _read_content(item.get("content"), where)
    return msg.ToolResultBlock(our_id, tuple(content), item.get("error") is not None, raw)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_messages(messages: Iterable[msg.Message]) -> Written:
    """Write messages as an AG-UI list and report losses."""
    history = tuple(messages)
    collector = base.LossCollector(NAME, history)
    call_wire_ids = base.wire_ids(history, NAME)
    wires: list[dict[str, Any]] = []
    for message in history:
        wire_messages = _write_message(message, collector, call_wire_ids)
        if wires and wire_messages and _would_join(wires[-1], wire_messages[0]):
            wire_messages[0] = _add_own_fields(wire_messages[0], {})  # prevents joining it with the reasoning before it
        wires.extend(wire_messages)
    return Written(wires, tuple(collector.losses))


def _would_join(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return (
        base.own_fields(before.get("metadata")) is None
        and base.own_fields(after.get("metadata")) is None
        and _is_same_message(before, after)
    )


def _write_message(
    message: msg.Message, collector: base.LossCollector, call_wire_ids: dict[str, str]
) -> list[dict[str, Any]]:
    if message.role not in base.KNOWN_ROLES:
        collector.add_loss(message, "message", f"this format has no role {message.role}")
        return []
    blocks = collector.supported_blocks(
        message, message.content, lambda block: _unsupported_reason(block, message.role)
    )
    if message.role is msg.Role.TOOL:
        blocks = tuple(
            collector.supported_result(
                message, block, lambda inner: _unsupported_reason(inner, msg.Role.USER), call_wire_ids
            )
            for block in blocks
        )
    if message.role is msg.Role.TOOL and not blocks:
        collector.add_loss(message, "message", "a tool message without a result")
        return []
    supported = message.replace(content=blocks)
    pieces = _split_message(supported)
    main_index = _main_index(_wire_role(supported.role, piece) for piece in pieces)
    return [
        _write_main(supported, piece) if index == main_index else _write_piece(supported, piece, index)
        for index, piece in enumerate(pieces)
    ]


def _unsupported_reason(block: msg.ContentBlock, role: msg.Role) -> str | None:
    """Return why a message of a role cannot carry a block; ``None`` if it can."""
    if not isinstance(block, msg.OpaqueBlock) or block.dialect != NAME:
        return base.unsupported_reason(block, role, NAME)
    fits = block.wire.get("role") == "activity" if role is msg.Role.ASSISTANT else role is msg.Role.USER
    return None if fits else f"not supported in a message of the role {role}"


def _split_message(message: msg.Message) -> list[tuple[msg.ContentBlock, ...]]:
    """Return the blocks of each wire message."""
    blocks = message.content
    if message.role is msg.Role.USER or not blocks:
        return [blocks]
    if message.role is not msg.Role.ASSISTANT:
        return [(block,) for block in blocks]
    pieces: list[list[msg.ContentBlock]] = []
    for block in blocks:
        if (
            pieces
            and isinstance(block, msg.CallBlock)
            and isinstance(pieces[-1][-1], msg.CallBlock | msg.TextBlock)
            and not _starts_piece(block)
        ):
            pieces[-1].append(block)
        else:
            pieces.append([block])
    return [tuple(piece) for piece in pieces]


def _starts_piece(block: msg.ContentBlock) -> bool:
    """Return whether a block was the first of a secondary wire message."""
    return "piece" in get_notes(getattr(block, "provider_raw", None), NAME)


def _wire_role(role: msg.Role, blocks: tuple[msg.ContentBlock, ...]) -> str:
    first = blocks[0] if blocks else None
    if isinstance(first, _Thought):
        return "reasoning"
    return "activity" if isinstance(first, msg.OpaqueBlock) and role is msg.Role.ASSISTANT else str(role)


def _write_main(message: msg.Message, blocks: tuple[msg.ContentBlock, ...]) -> dict[str, Any]:
    wire: dict[str, Any] = base.apply_notes(_default_main(message, blocks), base.message_notes(message, NAME))
    return wire


def _default_main(message: msg.Message, blocks: tuple[msg.ContentBlock, ...]) -> dict[str, Any]:
    """Write the main wire message without its residue."""
    form = base.message_notes(message, NAME).get("form")
    wire = _default_piece_wire(message.role, base.get_wire_id(message), blocks, form)
    extra = base.extra_fields(message, NAME)
    piece_fields = _piece_fields(message.role, blocks)
    return wire if extra is None and not piece_fields else _add_own_fields(wire, {**piece_fields, **(extra or {})})


def _write_piece(message: msg.Message, blocks: tuple[msg.ContentBlock, ...], index: int) -> dict[str, Any]:
    notes = get_notes(getattr(blocks[0], "provider_raw", None), NAME).get("piece", {})
    wire: dict[str, Any] = base.apply_notes(_default_piece(message, blocks, index, notes), notes)
    return wire


def _default_piece(
    message: msg.Message, blocks: tuple[msg.ContentBlock, ...], index: int, notes: dict[str, Any]
) -> dict[str, Any]:
    """Write a secondary wire message without its residue."""
    message_wire_id = base.get_wire_id(message)
    wire = _default_piece_wire(message.role, notes.get("id") or f"{message_wire_id}.{index}", blocks, None)
    piece_fields = _piece_fields(message.role, blocks)
    if notes.get("joined"):
        return _add_own_fields(wire, piece_fields) if piece_fields else wire
    return _add_own_fields(wire, {"part_of": message_wire_id, **piece_fields})


def _piece_fields(role: msg.Role, blocks: tuple[msg.ContentBlock, ...]) -> dict[str, Any]:
    if role is msg.Role.SYSTEM and not blocks:
        return {"empty": True}
    match blocks:
        case (msg.RedactedThinkingBlock(), *_):
            return {"redacted": True}
        case (msg.TextBlock(""), _, *_) if role is msg.Role.ASSISTANT:
            return {"blank": True}
        case _:
            return {}


def _add_own_fields(wire: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    metadata = wire.get("metadata")
    return {**wire, "metadata": {**(metadata if isinstance(metadata, dict) else {}), base.KEY: fields}}


def _default_piece_wire(
    role: msg.Role, wire_id: str, blocks: tuple[msg.ContentBlock, ...], form: str | None
) -> dict[str, Any]:
    match role, blocks:
        case msg.Role.ASSISTANT, (msg.OpaqueBlock(wire=wire),):
            return wire
        case msg.Role.ASSISTANT, (msg.ThinkingBlock(text, signature),):
            encrypted = {} if signature is None else {"encryptedValue": signature}
            return {"id": wire_id, "role": "reasoning", "content": text, **encrypted}
        case msg.Role.ASSISTANT, (msg.RedactedThinkingBlock(data),):
            return {"id": wire_id, "role": "reasoning", "content": "", "encryptedValue": data}
        case msg.Role.ASSISTANT, _:
            return {"id": wire_id, "role": "assistant", **_default_text(blocks)}
        case msg.Role.SYSTEM, _:
            text = blocks[0].text if blocks and isinstance(blocks[0], msg.TextBlock) else ""
            return {"id": wire_id, "role": "developer" if form == "developer" else "system", "content": text}
        case msg.Role.TOOL, (msg.ToolResultBlock() as result,):
            return {"id": wire_id, "role": "tool", **_default_result(result, form)}
        case _:
            return {"id": wire_id, "role": "user", "content": _default_content(blocks, form)}


def _default_text(blocks: tuple[msg.ContentBlock, ...]) -> dict[str, Any]:
    fields: dict[str, Any] = {"content": blocks[0].text} if blocks and isinstance(blocks[0], msg.TextBlock) else {}
    calls = [_write_call(block) for block in blocks if isinstance(block, msg.CallBlock)]
    return {**fields, "toolCalls": calls} if calls else fields


def _default_result(result: msg.ToolResultBlock, form: str | None) -> dict[str, Any]:
    wire_id = get_notes(result.provider_raw, NAME).get("id", result.tool_use_id)
    fields = {"content": _default_content(result.content, form), "toolCallId": wire_id}
    if result.is_error:
        texts = [block.text for block in result.content if isinstance(block, msg.TextBlock)]
        fields["error"] = "\n".join(texts) or "it failed"
    return fields


def _default_content(blocks: tuple[msg.ContentBlock, ...], form: str | None) -> Any:
    """Write content as text if it is one text, unless it was a list."""
    if len(blocks) == 1 and isinstance(blocks[0], msg.TextBlock) and form != "list":
        return blocks[0].text
    return [_write_part(block) for block in blocks]


def _write_part(block: msg.ContentBlock) -> Any:
    return base.write_with_notes(block, NAME, lambda notes: _default_part(block, notes.get("form")))


def _default_part(block: msg.ContentBlock, form: str | None) -> dict[str, Any]:
    match block:
        case msg.TextBlock(text):
            return {"type": "text", "text": text}
        case msg.OpaqueBlock(wire=wire):
            return wire
        case _ if isinstance(block, msg.MediaBlock):
            name = getattr(block, "name", None)
            if form == "binary":
                data_field = {"data" if block.source.kind == "base64" else "url": block.source.data}
                name_field = {} if name is None else {"filename": name}
                return {"type": "binary", "mimeType": block.media_type, **data_field, **name_field}
            name_field = {} if name is None else {"metadata": {"filename": name}}
            return {"type": block.type, "source": _default_source(block), **name_field}
        case _:
            raise AssertionError(f"{block.type} is not a part")


def _default_source(block: msg.MediaBlock) -> dict[str, Any]:
    source, media_type = block.source, block.media_type
    type_field = {} if media_type == _UNKNOWN_TYPES[block.type] else {"mimeType": media_type}
    match source.kind:
        case "base64":
            return {"type": "data", "value": source.data, "mimeType": media_type}
        case "url":
            return {"type": "url", "value": source.data, **type_field}
        case _:
            return {"type": "file", "value": source.data, "provider": _FILE_PROVIDER, **type_field}


def _write_call(block: msg.CallBlock) -> Any:
    return base.write_with_notes(block, NAME, lambda notes: _default_call(block, notes.get("id")))


def _default_call(block: msg.CallBlock, wire_id: str | None) -> dict[str, Any]:
    if isinstance(block, msg.ToolUseBlock):
        text, metadata = msgspec.json.encode(block.input).decode(), {}
    else:
        text, metadata = block.input_text, {"metadata": {base.KEY: {"invalid": block.reason}}}
    function = {"name": block.name, "arguments": text}
    return {"id": wire_id or block.id, "type": "function", "function": function, **metadata}
