"""Steps and the items in them: shared by requests, replies and streams.

    read_step(wire, builder) -> blocks           the blocks of one step of the model
    read_item(wire) -> block                     text or media; an unknown item is opaque
    default_steps(blocks) -> wire                the steps of an answer; texts and media side by side are one step
    read_result(wire, builder), write_result     results of functions

Invariant: a block that was read is written as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dragoman.errors import FormatError
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import DECODE_ERRORS, expect_list, expect_object, text_or_none
from dragoman.message import (
    AudioBlock,
    CallBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.tool_definitions import read_arguments

NAME: Final = "gemini_interactions"
NATIVE: Final[ProviderRaw] = {"dialect": NAME, "own": True}  # marks reasoning of this API
_MEDIA: Final[dict[str, type[ImageBlock | AudioBlock | VideoBlock | DocumentBlock]]] = {
    "image": ImageBlock,
    "audio": AudioBlock,
    "video": VideoBlock,
    "document": DocumentBlock,
}
_MEDIA_TYPES: Final = tuple(_MEDIA.values())
_DEFAULT_TYPES: Final = {"image": "image/*", "audio": "audio/*", "video": "video/*", "document": "application/pdf"}
Wire = dict[str, Any]


# --- items -----------------------------------------------------------------------------------------------------------


def read_item(wire: Wire) -> ContentBlock:
    """Return an item with its residue; an unknown item is opaque."""
    block = _match_item(wire)
    if block is None:
        return OpaqueBlock(NAME, wire, {"dialect": NAME, "form": "item"})
    return block.replace(provider_raw=make_notes(NAME, _default_item(block), wire))


def _match_item(wire: Wire) -> ContentBlock | None:
    kind = wire.get("type")
    if kind == "text" and isinstance(wire.get("text"), str):
        return TextBlock(wire["text"])
    if not isinstance(kind, str) or kind not in _MEDIA:
        return None
    media_type = text_or_none(wire.get("mime_type")) or _DEFAULT_TYPES[kind]
    if isinstance(wire.get("data"), str):
        return _MEDIA[kind](ImageSource("base64", wire["data"]), media_type)
    if isinstance(wire.get("uri"), str):
        return _MEDIA[kind](ImageSource("url", wire["uri"]), media_type)
    return None


def write_item(block: ContentBlock) -> Wire:
    """Write an item."""
    if isinstance(block, OpaqueBlock):
        return block.wire
    residue = get_notes(getattr(block, "provider_raw", None), NAME).get("residue")
    wire: Wire = apply_diff(_default_item(block), residue)
    return wire


def _default_item(block: ContentBlock) -> Wire:
    match block:
        case TextBlock(text):
            return {"type": "text", "text": text}
        case ImageBlock(source, media_type) | AudioBlock(source, media_type) | VideoBlock(source, media_type):
            return _default_media(block.type, source, media_type)
        case DocumentBlock(source, media_type):
            return _default_media("document", source, media_type)
        case _:
            return {"type": "text", "text": f"[{block.type}]"}


def _default_media(kind: str, source: ImageSource, media_type: str) -> Wire:
    return {"type": kind, "uri" if source.kind == "url" else "data": source.data, "mime_type": media_type}


# --- steps of the model ----------------------------------------------------------------------------------------------


def read_step(wire: Wire, where: str, builder: MessageBuilder) -> list[ContentBlock]:
    """Return the blocks of one step. Items without a step around them, as earlier versions have, are read too."""
    match wire.get("type"):
        case "model_output":
            items = expect_list(wire.get("content") or [], f"{where}.content")
            return [read_item(expect_object(item, where)) for item in items]
        case "thought":
            return [read_thought(wire)]
        case "function_call":
            return [read_call(wire, where, builder)]
        case "text" | "image" | "audio" | "video" | "document":
            return [read_item(wire)]
        case _:
            return [OpaqueBlock(NAME, wire)]


def read_thought(wire: Wire) -> ContentBlock:
    """Return a thought: its summary and its signature."""
    summary = wire.get("summary")
    texts = [item.get("text") for item in summary if isinstance(item, dict)] if isinstance(summary, list) else []
    block = ThinkingBlock("".join(text for text in texts if isinstance(text, str)), text_or_none(wire.get("signature")))
    return block.replace(provider_raw=make_notes(NAME, _default_thought(block), wire, own=True))


def _default_thought(block: ThinkingBlock) -> Wire:
    signature = {"signature": block.signature} if block.signature is not None else {}
    summary = {"summary": [{"type": "text", "text": block.text}]} if block.text else {}
    return {"type": "thought", **signature, **summary}


def read_call(wire: Wire, where: str, builder: MessageBuilder) -> CallBlock:
    """Return a call of a function."""
    provider_id = wire.get("id")
    if not isinstance(provider_id, str):
        raise FormatError("a call needs an id", where=f"{where}.id")
    return call_from(wire, where, builder.call_id(provider_id))


def call_from(wire: Wire, where: str, call_id: str) -> CallBlock:
    """Return a call with a known id. Arguments that are not an object are a text that cannot be used."""
    name, arguments = wire.get("name"), wire.get("arguments")
    if not isinstance(name, str):
        raise FormatError("a call needs the name of its function", where=f"{where}.name")
    block: CallBlock = ToolUseBlock(call_id, name, arguments if isinstance(arguments, dict) else {})
    if arguments is not None and not isinstance(arguments, dict):
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        block = InvalidToolUseBlock(call_id, name, text, read_arguments(text)[1] or "the arguments are a text")
    note = wire["id"] if wire["id"] != call_id else None
    form = "text" if isinstance(block, InvalidToolUseBlock) else None
    return block.replace(provider_raw=make_notes(NAME, _default_call(block, note, form), wire, id=note, form=form))


def write_call(block: CallBlock) -> Wire:
    """Write a call."""
    notes = get_notes(block.provider_raw, NAME)
    wire: Wire = apply_diff(_default_call(block, notes.get("id"), notes.get("form")), notes.get("residue"))
    return wire


def _default_call(block: CallBlock, provider_id: str | None, form: str | None) -> Wire:
    arguments: Any = block.input if isinstance(block, ToolUseBlock) else {"invalid_input": block.input_text}
    if isinstance(block, InvalidToolUseBlock) and form == "text":
        arguments = block.input_text
    call_id = provider_id or format_id(block.id, DEFAULT_ID_FORMAT)
    return {"type": "function_call", "id": call_id, "name": block.name, "arguments": arguments}


def default_steps(blocks: Iterable[ContentBlock]) -> list[Wire]:
    """Return the steps of an answer. Texts and media side by side are one step."""
    steps: list[Wire] = []
    is_open = False
    for block in blocks:
        if is_item(block):
            if not is_open:
                steps.append({"type": "model_output", "content": []})
            steps[-1]["content"].append(write_item(block))
        else:
            steps.append(write_step(block))
        is_open = is_item(block)
    return steps


def is_item(block: ContentBlock) -> bool:
    """Return whether a block is an item of a step instead of a step."""
    if isinstance(block, OpaqueBlock):
        return get_notes(block.provider_raw, NAME).get("form") == "item"
    return isinstance(block, (TextBlock, *_MEDIA_TYPES))


def write_step(block: ContentBlock) -> Wire:
    """Write a block that is a step of its own."""
    match block:
        case OpaqueBlock(wire=wire):
            return wire
        case ThinkingBlock(provider_raw=raw):
            step: Wire = apply_diff(_default_thought(block), get_notes(raw, NAME).get("residue"))
            return step
        case ToolUseBlock() | InvalidToolUseBlock():
            return write_call(block)
        case _:
            return {"type": "model_output", "content": [write_item(block)]}


# --- results ---------------------------------------------------------------------------------------------------------


def read_result(wire: Wire, where: str, builder: MessageBuilder) -> ToolResultBlock:
    """Return the result of a function: a text, an object as JSON text, or a list of items."""
    provider_id, result = wire.get("call_id"), wire.get("result")
    if not isinstance(provider_id, str):
        raise FormatError("a result needs the id of its call", where=f"{where}.call_id")
    blocks: list[ContentBlock] = []
    form = None
    match result:
        case str():
            blocks = [TextBlock(result)]
        case list() if all(isinstance(item, dict) for item in result):
            form, blocks = "list", [read_item(item) for item in result]
        case None:
            pass
        case _:
            form, blocks = "value", [TextBlock(msgspec.json.encode(result).decode())]
    call_id = builder.result_id(provider_id)
    block = ToolResultBlock(call_id, tuple(blocks), wire.get("is_error") is True)
    note = provider_id if provider_id != call_id else None
    name = text_or_none(wire.get("name"))
    default = _default_result(block, {"id": note, "form": form}, name)
    return block.replace(provider_raw=make_notes(NAME, default, wire, id=note, form=form))


def write_result(block: ToolResultBlock, name: str | None) -> Wire:
    """Write the result of the function of that name."""
    notes = get_notes(block.provider_raw, NAME)
    wire: Wire = apply_diff(_default_result(block, notes, name), notes.get("residue"))
    return wire


def _default_result(block: ToolResultBlock, notes: ProviderRaw, name: str | None) -> Wire:
    items = [write_item(part) for part in block.content if unsupported_result_reason(part) is None]
    result: Any = items
    is_plain = len(items) == 1 and set(items[0]) == {"type", "text"}
    if notes.get("form") == "value" and is_plain:
        result = _parse_value(items[0]["text"])
    elif notes.get("form") != "list" and (is_plain or not items):
        result = items[0]["text"] if items else ""
    call_id = notes.get("id") or format_id(block.tool_use_id, DEFAULT_ID_FORMAT)
    named = {"name": name} if name is not None else {}
    failed = {"is_error": True} if block.is_error else {}
    return {"type": "function_result", "call_id": call_id, **named, "result": result, **failed}


def _parse_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except DECODE_ERRORS:
        return text


# --- losses ----------------------------------------------------------------------------------------------------------


def unsupported_reason(block: ContentBlock) -> str | None:
    """Return why a step cannot carry a block; ``None`` if it can."""
    match block:
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock():
            return None
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            is_native = isinstance(block, ThinkingBlock) and get_notes(raw, NAME)
            return None if is_native else "reasoning of another provider"
        case ImageBlock(source) | AudioBlock(source) | VideoBlock(source) | DocumentBlock(source):
            return None if source.kind != "file_ref" else "a workspace file that the provider cannot read"
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else f"a block of {dialect}"
        case _:
            return "this API does not support this block"


def unsupported_result_reason(block: ContentBlock) -> str | None:
    """Return why a result cannot carry a block; ``None`` if it can."""
    if isinstance(block, TextBlock | ImageBlock | OpaqueBlock):
        return unsupported_reason(block)
    is_native = bool(get_notes(getattr(block, "provider_raw", None), NAME))
    return None if is_native else "this API accepts only texts and images in results"
