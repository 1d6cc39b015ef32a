"""Convert messages and blocks. Requests, replies and streams share this code.

Invariant: a call with unusable input round-trips unchanged and never becomes a valid call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeGuard

import msgspec

from dragoman.errors import FormatError
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import expect_list, expect_object
from dragoman.message import (
    CallBlock,
    ContentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    OpaqueBlock,
    ProviderRaw,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from dragoman.wire.message_builder import MessageBuilder, foreign_block_reason
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.tool_definitions import read_arguments

NAME: Final = "cohere"
RECORDING_NAMES: Final = ("cohere-v2",)  # its name in recorded traffic
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
TOOL_PLAN_NOTES: Final[ProviderRaw] = {"dialect": NAME, "form": "tool_plan"}  # notes of the text before the calls


def read_content(wire: dict[str, Any], where: str, builder: MessageBuilder) -> tuple[list[ContentBlock], str | None]:
    """Return the blocks of a message (content, plan and calls) and the form of its content."""
    content, plan, calls = wire.get("content"), wire.get("tool_plan"), wire.get("tool_calls")
    blocks: list[ContentBlock] = []
    if isinstance(content, str):
        if content or not calls:
            blocks.append(TextBlock(content))
    elif content is not None and not (calls and _is_blank(content)):
        for index, part in enumerate(expect_list(content, f"{where}.content")):
            blocks.append(_read_part_by_role(wire.get("role"), expect_object(part, f"{where}.content[{index}]")))
    if isinstance(plan, str) and plan:
        blocks.append(TextBlock(plan, dict(TOOL_PLAN_NOTES)))
    for index, call in enumerate(expect_list(calls or [], f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{index}]"
        blocks.append(read_call(expect_object(call, place), place, builder))
    return blocks, content_form(wire)


def content_form(wire: dict[str, Any]) -> str | None:
    """Return the form of content that is not a list: ``string`` or ``absent``."""
    if "content" not in wire:
        return "absent"
    return "string" if isinstance(wire["content"], str) else None


def _is_blank(content: Any) -> bool:
    """Return whether the content is empty text that a client added beside calls."""
    return isinstance(content, list) and all(part == {"type": "text", "text": ""} for part in content)


def default_message(role: str, blocks: Iterable[ContentBlock], form: str | None = None) -> dict[str, Any]:
    """Write a message without its residue."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    wire: dict[str, Any] = {"role": role}
    for block in blocks:
        if isinstance(block, CallBlock):
            calls.append(write_call(block))
        elif role == "assistant" and "tool_plan" not in wire and is_plan(block):
            wire["tool_plan"] = block.text
        else:
            parts.append(write_part(block))
    if form == "string" and (not parts or (len(parts) == 1 and set(parts[0]) == {"type", "text"})):
        wire["content"] = parts[0]["text"] if parts else ""
    elif parts or not (calls or "tool_plan" in wire or form == "absent"):
        wire["content"] = parts
    if calls:
        wire["tool_calls"] = calls
    return wire


def is_plan(block: ContentBlock) -> TypeGuard[TextBlock]:
    """Return whether a text was read from the tool plan."""
    return isinstance(block, TextBlock) and get_notes(block.provider_raw, NAME).get("form") == "tool_plan"


def _read_part_by_role(role: Any, wire: dict[str, Any]) -> ContentBlock:
    """Read a part. The API accepts images from users only; an image of another role is marked as native."""
    block = read_part(wire)
    if role == "user" or not isinstance(block, ImageBlock):
        return block
    return block.replace(provider_raw={"dialect": NAME, **(block.provider_raw or {}), "form": "image"})


def read_part(wire: dict[str, Any]) -> ContentBlock:
    """Return the part as a block with its residue, or as an opaque block if its type is unknown."""
    block, form = _match_part(wire)
    if block is None:
        return OpaqueBlock(NAME, wire)
    return block.replace(provider_raw=make_notes(NAME, _default_part(block, form), wire, form=form))


def _match_part(wire: dict[str, Any]) -> tuple[TextBlock | ThinkingBlock | ImageBlock | None, str | None]:
    match wire:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text), None
        case {"type": "thinking", "thinking": str(text)}:
            return ThinkingBlock(text), "thinking"  # always noted: marks native reasoning
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            match = _DATA_URL.fullmatch(url)
            if match is not None:
                return ImageBlock(ImageSource("base64", match[2]), match[1]), None
            return ImageBlock(ImageSource("url", url), "image/*"), None
        case {"type": "document", "document": {"data": str(text)}}:
            return TextBlock(text), "document"
        case {"type": "document", "document": {"data": dict(data)}}:
            return TextBlock(msgspec.json.encode(data).decode()), "document_object"
        case _:
            return None, None


def _default_part(block: ContentBlock, form: str | None = None) -> dict[str, Any]:
    """Write a part without its residue."""
    match block:
        case TextBlock(text) if form == "document":
            return {"type": "document", "document": {"data": text}}
        case TextBlock(text) if form == "document_object":
            value, problem = read_arguments(text)
            return {"type": "document", "document": {"data": value if problem is None else {"text": text}}}
        case TextBlock(text):
            return {"type": "text", "text": text}
        case ThinkingBlock(text):
            return {"type": "thinking", "thinking": text}
        case ImageBlock(source, media_type):
            url = source.data if source.kind == "url" else f"data:{media_type};base64,{source.data}"
            return {"type": "image_url", "image_url": {"url": url}}
        case OpaqueBlock(wire=wire):
            return wire
        case _:
            return {"type": "text", "text": f"[{block.type}]"}


def write_part(block: ContentBlock) -> dict[str, Any]:
    """Write a part."""
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    part: dict[str, Any] = apply_diff(_default_part(block, notes.get("form")), notes.get("residue"))
    return part


def read_call(wire: dict[str, Any], where: str, builder: MessageBuilder) -> CallBlock:
    """Read a call and assign our id."""
    if not isinstance(wire.get("id"), str):
        raise FormatError("a call needs an id", where=f"{where}.id")
    return call_from(wire, where, builder.call_id(wire["id"]))


def call_from(wire: dict[str, Any], where: str, call_id: str) -> CallBlock:
    """Read a call with a known id."""
    function = expect_object(wire.get("function"), f"{where}.function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise FormatError("a call needs the name of its tool", where=f"{where}.function.name")
    if arguments is not None and not isinstance(arguments, str):
        raise FormatError("the input of a call must be text", where=f"{where}.function.arguments")
    value, problem = read_arguments(arguments or "")
    block: CallBlock = ToolUseBlock(call_id, name, value)
    if problem is not None:
        block = InvalidToolUseBlock(call_id, name, arguments or "", problem)
    note = wire["id"] if wire["id"] != call_id else None
    form = None if problem is None else "text"
    return block.replace(provider_raw=make_notes(NAME, _default_call(block, note, form), wire, id=note, form=form))


def write_call(block: CallBlock) -> dict[str, Any]:
    """Write a call."""
    notes = get_notes(block.provider_raw, NAME)
    if isinstance(block, InvalidToolUseBlock) and notes and not block.input_text:
        block = ToolUseBlock(block.id, block.name, {}, block.provider_raw)  # truncated before its input
    call: dict[str, Any] = apply_diff(_default_call(block, notes.get("id"), notes.get("form")), notes.get("residue"))
    return call


def _default_call(block: CallBlock, provider_id: str | None, form: str | None) -> dict[str, Any]:
    if isinstance(block, ToolUseBlock):
        text = msgspec.json.encode(block.input).decode()
    elif form == "text":
        text = block.input_text
    else:
        text = msgspec.json.encode({"invalid_input": block.input_text}).decode()
    function = {"name": block.name, "arguments": text}
    return {"id": provider_id or format_id(block.id, DEFAULT_ID_FORMAT), "type": "function", "function": function}


def has_no_input(block: ToolUseBlock) -> bool:
    """Return whether a call was read without any input."""
    return not (write_call(block)["function"].get("arguments") or "").strip()


def is_native(block: ContentBlock) -> bool:
    """Return whether a block has notes of this dialect."""
    return bool(get_notes(getattr(block, "provider_raw", None), NAME))


def unsupported_reason(block: ContentBlock, role: Role = Role.ASSISTANT) -> str | None:
    """Return why a message cannot carry a block; ``None`` if it can."""
    match block:
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock():
            return None
        case ThinkingBlock(provider_raw=raw):
            return None if get_notes(raw, NAME) else "reasoning of another provider"
        case ImageBlock() if role is not Role.USER and not is_native(block):
            return "this API accepts images only from users"
        case ImageBlock(source):
            return None if source.kind != "file_ref" else "a workspace file that the provider cannot read"
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else foreign_block_reason(block)
        case _:
            return "this API does not support this block"


def unsupported_result_reason(block: ContentBlock) -> str | None:
    """Return why a tool result cannot carry a block; ``None`` if it can."""
    if isinstance(block, TextBlock | OpaqueBlock):
        return unsupported_reason(block)
    return "this API accepts only texts and documents in results"
