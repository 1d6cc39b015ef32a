"""Convert messages and blocks. Requests, replies and streams share this code.

Invariant: a call with unusable input round-trips unchanged and never becomes a valid call.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dragoman.errors import FormatError
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import expect_list, expect_object
from dragoman.media_types import detect_media_type
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.tool_definitions import read_arguments

NAME: Final = "ollama"
NATIVE: Final[ProviderRaw] = {"dialect": NAME, "own": True}  # marks native reasoning and images


def read_blocks(wire: dict[str, Any], where: str, builder: MessageBuilder, seed: str) -> list[ContentBlock]:
    """Return the blocks of a message: reasoning, text, images and calls."""
    blocks: list[ContentBlock] = []
    thinking, content = text_at(wire, "thinking", where), text_at(wire, "content", where)
    if thinking:
        blocks.append(ThinkingBlock(thinking, provider_raw=dict(NATIVE)))
    if content:
        blocks.append(TextBlock(content))
    for index, image in enumerate(expect_list(wire.get("images") or [], f"{where}.images")):
        if not isinstance(image, str):
            raise FormatError("an image must be base64 text", where=f"{where}.images[{index}]")
        notes = dict(NATIVE) if wire.get("role") == "assistant" else None
        blocks.append(ImageBlock(ImageSource("base64", image), _image_type(image), notes))
    for index, call in enumerate(expect_list(wire.get("tool_calls") or [], f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{index}]"
        blocks.append(read_call(expect_object(call, place), place, builder, f"{seed}{index}"))
    return blocks


def text_at(wire: dict[str, Any], key: str, where: str) -> str:
    """Return the text of a key; a missing one is empty."""
    value = wire.get(key)
    if value is not None and not isinstance(value, str):
        raise FormatError(f"expected text, not {type(value).__name__}", where=f"{where}.{key}")
    return value or ""


def _image_type(data: str) -> str:
    """The type of an image by its first bytes, because the wire format has no field for it."""
    try:
        head = base64.b64decode(data[:16])
    except ValueError:
        head = b""
    media_type = "image/bmp" if head.startswith(b"BM") else detect_media_type(head)
    return media_type if media_type is not None and media_type.startswith("image/") else "image/*"


def read_call(
    wire: dict[str, Any], where: str, builder: MessageBuilder, seed: str
) -> ToolUseBlock | InvalidToolUseBlock:
    """Read a call. Without an id, our id is derived from ``seed`` and the name of the tool."""
    function = expect_object(wire.get("function"), f"{where}.function")
    name, provider_id = function.get("name"), wire.get("id")
    if not isinstance(name, str):
        raise FormatError("a call needs the name of its tool", where=f"{where}.function.name")
    has_id = isinstance(provider_id, str) and provider_id != ""
    call_id = builder.call_id(str(provider_id) if has_id else f"{seed}#{name}")
    text = arguments_text(function.get("arguments"))
    value, problem = _read_arguments(function.get("arguments"))
    block: ToolUseBlock | InvalidToolUseBlock = ToolUseBlock(call_id, name, value)
    if problem is not None:
        block = InvalidToolUseBlock(call_id, name, text, problem)
    note = str(provider_id) if has_id and provider_id != call_id else None
    form = None if has_id else "anonymous"
    return block.replace(provider_raw=make_notes(NAME, _default_call(block, note, form), wire, id=note, form=form))


def _read_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """Return the input of a call, or the problem. Some servers send JSON text, and an empty text for no input."""
    if isinstance(arguments, dict):
        return arguments, None
    if arguments is None or isinstance(arguments, str):
        return read_arguments(arguments or "")
    return {}, f"a tool's input is a JSON object, not {type(arguments).__name__}"


def arguments_text(arguments: Any) -> str:
    """Return the input as text, as in events."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def content_form(wire: dict[str, Any]) -> str | None:
    """Return the form of a message without content, which differs from empty content."""
    return None if "content" in wire else "absent"


def default_message(role: str, blocks: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    """Write a message without its residue."""
    texts: list[str] = []
    thoughts: list[str] = []
    images: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case TextBlock(text):
                texts.append(text)
            case ThinkingBlock(text):
                thoughts.append(text)
            case ImageBlock(source):
                images.append(source.data)
            case ToolUseBlock() | InvalidToolUseBlock():
                calls.append(write_call(block))
    wire: dict[str, Any] = {"role": role}
    if texts or form != "absent":
        wire["content"] = "\n".join(texts)
    if thoughts:
        wire["thinking"] = "\n".join(thoughts)
    if images:
        wire["images"] = images
    if calls:
        wire["tool_calls"] = calls
    return wire


def write_call(block: ToolUseBlock | InvalidToolUseBlock) -> dict[str, Any]:
    """Write a call."""
    notes = get_notes(block.provider_raw, NAME)
    if isinstance(block, InvalidToolUseBlock) and notes and not block.input_text:
        block = ToolUseBlock(block.id, block.name, {}, block.provider_raw)  # truncated before its input
    call: dict[str, Any] = apply_diff(_default_call(block, notes.get("id"), notes.get("form")), notes.get("residue"))
    return call


def _default_call(
    block: ToolUseBlock | InvalidToolUseBlock, provider_id: str | None, form: str | None
) -> dict[str, Any]:
    wire: dict[str, Any] = {} if form == "anonymous" else {"id": provider_id or format_id(block.id, DEFAULT_ID_FORMAT)}
    value = block.input if isinstance(block, ToolUseBlock) else {"invalid_input": block.input_text}
    return {**wire, "function": {"name": block.name, "arguments": value}}


def has_no_input(block: ToolUseBlock) -> bool:
    """Return whether a call was read without any input."""
    return not arguments_text(write_call(block)["function"].get("arguments")).strip()


def is_native(block: ContentBlock) -> bool:
    """Return whether a block has notes of this dialect."""
    return bool(get_notes(getattr(block, "provider_raw", None), NAME))


def unsupported_reason(block: ContentBlock) -> str | None:
    """Return why the wire format cannot carry a block; ``None`` if it can."""
    match block:
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock():
            return None
        case ThinkingBlock(provider_raw=raw):
            return None if get_notes(raw, NAME) else "reasoning of another provider"
        case ImageBlock(source):
            return None if source.kind == "base64" else "this API accepts images only as bytes"
        case _:
            return "this API does not support this block"


def unsupported_reply_reason(block: ContentBlock) -> str | None:
    """Return why a reply cannot carry a block; ``None`` if it can."""
    if isinstance(block, ImageBlock) and not is_native(block):
        return "this API does not support images in replies"  # its SDK rejects the whole reply
    return unsupported_reason(block)
