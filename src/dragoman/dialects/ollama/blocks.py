"""Blocks of Ollama chat, both ways: what a message says, and the message made of it; for requests, replies and streams.

The one rule: a call whose input cannot be used is kept as it came, and never becomes a call that can be made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dragoman.errors import FormatError
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import expect_list, expect_object
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
NATIVE: Final[ProviderRaw] = {"dialect": NAME, "own": True}  # what a model of ours thought or drew: nothing else tells
_IMAGE_PREFIXES: Final = {  # how the bytes of a picture begin, in base64: the wire does not say what kind it is
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "Qk": "image/bmp",
}


def read_blocks(wire: dict[str, Any], where: str, builder: MessageBuilder, seed: str) -> list[ContentBlock]:
    """What a message says: its reasoning, its text, its pictures and its calls."""
    blocks: list[ContentBlock] = []
    thinking, content = text_at(wire, "thinking", where), text_at(wire, "content", where)
    if thinking:
        blocks.append(ThinkingBlock(thinking, provider_raw=dict(NATIVE)))
    if content:
        blocks.append(TextBlock(content))
    for index, image in enumerate(expect_list(wire.get("images") or [], f"{where}.images")):
        if not isinstance(image, str):
            raise FormatError("a picture is base64 text", where=f"{where}.images[{index}]")
        notes = dict(NATIVE) if wire.get("role") == "assistant" else None
        blocks.append(ImageBlock(ImageSource("base64", image), _image_type(image), notes))
    for index, call in enumerate(expect_list(wire.get("tool_calls") or [], f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{index}]"
        blocks.append(read_call(expect_object(call, place), place, builder, f"{seed}{index}"))
    return blocks


def text_at(wire: dict[str, Any], key: str, where: str) -> str:
    """The text of a key; none at all is an empty one."""
    value = wire.get(key)
    if value is not None and not isinstance(value, str):
        raise FormatError(f"text belongs here, not {type(value).__name__}", where=f"{where}.{key}")
    return value or ""


def _image_type(data: str) -> str:
    return next((kind for prefix, kind in _IMAGE_PREFIXES.items() if data.startswith(prefix)), "image/*")


def read_call(
    wire: dict[str, Any], where: str, builder: MessageBuilder, seed: str
) -> ToolUseBlock | InvalidToolUseBlock:
    """A call. One without an id gets ours from ``seed`` and the name of its tool."""
    function = expect_object(wire.get("function"), f"{where}.function")
    name, provider_id = function.get("name"), wire.get("id")
    if not isinstance(name, str):
        raise FormatError("a call has the name of its tool", where=f"{where}.function.name")
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
    """The input of a call, or why there is none. Some servers write it as a text, and none at all as an empty one."""
    if isinstance(arguments, dict):
        return arguments, None
    if arguments is None or isinstance(arguments, str):
        return read_arguments(arguments or "")
    return {}, f"a tool's input is a JSON object, not {type(arguments).__name__}"


def arguments_text(arguments: Any) -> str:
    """The input as raw text, as it travels in events."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def content_form(wire: dict[str, Any]) -> str | None:
    """A word for a message without any content, which is not the same as an empty one."""
    return None if "content" in wire else "absent"


def default_message(role: str, blocks: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    """What we would write for a message if nobody had noted anything about it."""
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
    """A call as it stands on the wire."""
    notes = get_notes(block.provider_raw, NAME)
    if isinstance(block, InvalidToolUseBlock) and notes and not block.input_text:
        block = ToolUseBlock(block.id, block.name, {}, block.provider_raw)  # cut before its input: nothing stood there
    call: dict[str, Any] = apply_diff(_default_call(block, notes.get("id"), notes.get("form")), notes.get("residue"))
    return call


def _default_call(
    block: ToolUseBlock | InvalidToolUseBlock, provider_id: str | None, form: str | None
) -> dict[str, Any]:
    wire: dict[str, Any] = {} if form == "anonymous" else {"id": provider_id or format_id(block.id, DEFAULT_ID_FORMAT)}
    value = block.input if isinstance(block, ToolUseBlock) else {"invalid_input": block.input_text}
    return {**wire, "function": {"name": block.name, "arguments": value}}


def has_no_input(block: ToolUseBlock) -> bool:
    """Whether a call came without any input, not even an empty one."""
    return not arguments_text(write_call(block)["function"].get("arguments")).strip()


def is_native(block: ContentBlock) -> bool:
    """Whether something was noted about a block here."""
    return bool(get_notes(getattr(block, "provider_raw", None), NAME))


def unsupported_reason(block: ContentBlock) -> str | None:
    """Why this wire cannot carry a block; ``None`` if it can."""
    match block:
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock():
            return None
        case ThinkingBlock(provider_raw=raw):
            return None if get_notes(raw, NAME) else "reasoning of another origin"
        case ImageBlock(source):
            return None if source.kind == "base64" else "this API takes the bytes of a picture, not where they are"
        case _:
            return "this API takes no such block"


def unsupported_reply_reason(block: ContentBlock) -> str | None:
    """Why an answer on this wire cannot carry a block; ``None`` if it can."""
    if isinstance(block, ImageBlock) and not is_native(block):
        return "clients of this API do not read pictures in an answer"  # its own SDK refuses the whole answer
    return unsupported_reason(block)
