"""Items and parts of the Responses API: shared by input, output and streams.

    read_item(wire)              the blocks of one item of the model
    write_items(blocks, role)    the items of one message

Invariant: a block that was read here is written as it was; any other block is written or is a loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from dragoman.errors import JsonError
from dragoman.exchange import Request
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import OWN, expect_object, integer_or_none, read_items, read_json, text_or_none
from dragoman.message import (
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.wire.annotations import read_url_citation, write_url_citation
from dragoman.wire.logprobs import read_logprobs, write_logprobs
from dragoman.wire.message_builder import MessageBuilder, foreign_block_reason
from dragoman.wire.residue import apply_diff, diff, get_notes, make_notes

NAME: Final = "openai_responses"
ROLE_NAMES: Final = {Role.ASSISTANT: "assistant", Role.SYSTEM: "system"}
_GENERATED: Final = "image_generation_call"  # the form of an image that this API generated
SUMMARY_SEPARATOR: Final = "\n\n"  # joins the summaries of a reasoning item to one text
TIERS: Final = frozenset({"auto", "default", "flex", "scale", "priority", "fast", "ultrafast"})

AddLoss = Callable[[str, str], None]  # records a loss: name and reason


def read_item(
    wire: dict[str, Any], where: str, builder: MessageBuilder, after: list[ContentBlock]
) -> list[ContentBlock]:
    """Return the blocks of one item of the model; an unknown item is opaque."""
    match wire:
        case {"type": "function_call", "call_id": str(call_id), "name": str(), "arguments": str()}:
            return [read_call(wire, builder.call_id(call_id))]
        case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(), "input": str()}:
            return [_read_custom_call(wire, builder.call_id(call_id))]
        case {"type": "image_generation_call", "result": str()}:
            return [_read_generated_image(wire)]
        case {"type": "reasoning"}:
            return [read_reasoning(wire) or OpaqueBlock(NAME, wire)]
        case {"role": "assistant", "content": str() | [_, *_]} if wire.get("type", "message") == "message":
            return read_content(wire, where, is_continued=bool(after) and is_part(after[-1]))
        case _:
            return [OpaqueBlock(NAME, wire, kind=opaque_kind(wire))]


_KINDS: Final = {"code_interpreter_call": "code_execution", "mcp_list_tools": "mcp", "item_reference": "item_reference"}


def opaque_kind(wire: dict[str, Any]) -> str | None:
    """Return one word for an item that only this API has: the tool that the provider ran."""
    kind = wire.get("type")
    if not isinstance(kind, str):
        return None
    if kind.startswith("mcp_"):
        return "mcp"
    return _KINDS.get(kind) or kind.removesuffix("_call").removesuffix("_call_output").removesuffix("_output")


def _read_custom_call(wire: dict[str, Any], call_id: str) -> ToolUseBlock:
    """Read the call of a tool whose input is one text."""
    block = ToolUseBlock(call_id, wire["name"], {"input": wire["input"]}, free_form=True)
    note = wire["call_id"] if wire["call_id"] != call_id else None
    return block.replace(provider_raw=make_notes(NAME, _default_call(block, note), wire, id=note))


def _read_generated_image(wire: dict[str, Any]) -> ImageBlock:
    media_type = f"image/{text_or_none(wire.get('output_format')) or 'png'}"
    block = ImageBlock(ImageSource("base64", wire["result"]), media_type)
    return block.replace(provider_raw=make_notes(NAME, _default_image_item(block), wire, form=_GENERATED))


def _default_image_item(block: ImageBlock) -> dict[str, Any]:
    output_format = block.media_type.removeprefix("image/")
    wire = {"type": "image_generation_call", "status": "completed", "output_format": output_format}
    return {**wire, "result": block.source.data}


def read_content(wire: dict[str, Any], where: str, is_continued: bool) -> list[ContentBlock]:
    """Read a message item of the model. Its first block has the notes of the item."""
    content = wire["content"]
    shape = "string" if isinstance(content, str) else None
    parts = [{"type": "output_text", "text": content}] if shape else content
    blocks = [read_part(expect_object(part, f"{where}.content"), Role.ASSISTANT) for part in parts]
    envelope = {key: value for key, value in wire.items() if key != "content"}
    item = diff({"role": "assistant"}, envelope)
    notes = item_notes(item=item or ({} if is_continued else None), content=shape)
    if notes is not None:
        blocks[0] = blocks[0].replace(provider_raw={**notes, **(getattr(blocks[0], "provider_raw", None) or {})})
    return blocks


def read_call(wire: dict[str, Any], call_id: str) -> ToolUseBlock | InvalidToolUseBlock:
    """Read a function call."""
    name, text = wire["name"], wire["arguments"]
    block: ToolUseBlock | InvalidToolUseBlock
    try:
        value = read_json(text, OWN) if text.strip() else {}
        if not isinstance(value, dict):
            raise JsonError(f"a tool's input is a JSON object, not {type(value).__name__}")
        block = ToolUseBlock(call_id, name, value)
    except (JsonError, ValueError) as error:
        block = InvalidToolUseBlock(call_id, name, text, str(error))
    note = wire["call_id"] if wire["call_id"] != call_id else None
    return block.replace(provider_raw=make_notes(NAME, _default_call(block, note), wire, id=note))


def _default_call(block: ToolUseBlock | InvalidToolUseBlock, provider_id: str | None) -> dict[str, Any]:
    call_id = provider_id or format_id(block.id, DEFAULT_ID_FORMAT)
    if isinstance(block, ToolUseBlock) and (text := block.free_text) is not None:
        return {"type": "custom_tool_call", "call_id": call_id, "name": block.name, "input": text}
    text = block.input_text if isinstance(block, InvalidToolUseBlock) else _json_text(block.input)
    return {"type": "function_call", "call_id": call_id, "name": block.name, "arguments": text}


def is_input(text: str) -> bool:
    """Whether a text is a valid input of a call. Some providers send no text for an empty input."""
    try:
        return not text.strip() or isinstance(read_json(text, OWN), dict)
    except (JsonError, ValueError):
        return False


def _json_text(value: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except OverflowError:  # an integer of more than 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_reasoning(wire: dict[str, Any], source: str | None = None) -> ThinkingBlock | RedactedThinkingBlock | None:
    """Read reasoning: its summaries, else its text, joined; or only encrypted content. ``None`` if it has neither.

    In a stream, the first delta decides which of the two is shown; that is the ``source``.
    """
    summary, content = wire.get("summary"), wire.get("content")
    if source is None:
        source = "content" if content and not summary else "summary"
    texts = part_texts(content if source == "content" else summary)
    if texts is None:
        return None
    text, secret = SUMMARY_SEPARATOR.join(texts), text_or_none(wire.get("encrypted_content"))
    form = "content" if source == "content" else None
    cuts = None if len(texts) == bool(text) else [len(part) for part in texts]
    raw = make_notes(NAME, _default_reasoning(text, secret, form, cuts), wire, form=form, cuts=cuts)
    raw = raw or {"dialect": NAME}  # marks it as native, so that it can be written again
    if secret is not None and not texts:
        return RedactedThinkingBlock(secret, raw)
    return ThinkingBlock(text, secret, raw, is_summary=bool(text) and source == "summary")


def part_texts(parts: Any) -> list[str] | None:
    """Return the texts of parts; ``None`` if a part has no text."""
    if not isinstance(parts, list | None):
        return None
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts or []]
    return texts if all(isinstance(text, str) for text in texts) else None  # type: ignore[return-value]


def _default_reasoning(text: str, secret: str | None, form: str | None, cuts: list[int] | None) -> dict[str, Any]:
    texts = split_text(text, cuts)
    wire: dict[str, Any] = {"type": "reasoning", "summary": []}
    if form == "content":
        wire["content"] = [{"type": "reasoning_text", "text": part} for part in texts]
    else:
        wire["summary"] = [{"type": "summary_text", "text": part} for part in texts]
    return wire if secret is None else {**wire, "encrypted_content": secret}


def split_text(text: str, cuts: list[int] | None) -> list[str]:
    """Return the parts that a text was joined from, if it was not changed."""
    parts, at = [], 0
    for length in cuts or ():
        parts.append(text[at : at + length])
        at += length + len(SUMMARY_SEPARATOR)
    if cuts is not None and SUMMARY_SEPARATOR.join(parts) == text:
        return parts
    return [text] if text else []


def read_result(wire: dict[str, Any], where: str, builder: MessageBuilder) -> ToolResultBlock:
    """Read the output of a function call."""
    output, provider_id = wire["output"], wire["call_id"]
    form = None if isinstance(output, str) else "list"
    parts = output if form else [{"type": "input_text", "text": output}]
    blocks = [read_part(expect_object(part, f"{where}.output"), Role.TOOL) for part in parts]
    tool_use_id = builder.result_id(provider_id)
    result = ToolResultBlock(tool_use_id, tuple(blocks))
    note = provider_id if provider_id != tool_use_id else None
    custom = True if wire["type"] == "custom_tool_call_output" else None
    default = _default_result(result, note, form, is_ignorable, is_custom=custom is True)
    return result.replace(provider_raw=make_notes(NAME, default, wire, id=note, form=form, custom=custom))


def mark_free_form_results(request: Request) -> Request:
    """Note at each result that it answers a call of a free-form tool: it is another item on this wire."""
    calls = {
        block.id
        for message in request.messages
        for block in message.content
        if type(block) is ToolUseBlock and block.free_text is not None
    }
    if not calls:
        return request
    messages = tuple(_mark_results(message, calls) for message in request.messages)
    return request.replace(messages=messages)


def _mark_results(message: Message, calls: set[str]) -> Message:
    if message.role is not Role.TOOL:
        return message
    blocks = tuple(
        block.replace(provider_raw={"dialect": NAME, **get_notes(block.provider_raw, NAME), "custom": True})
        if isinstance(block, ToolResultBlock) and block.tool_use_id in calls
        else block
        for block in message.content
    )
    return message.replace(content=blocks)


def _default_result(
    result: ToolResultBlock, provider_id: str | None, form: str | None, add_loss: AddLoss, *, is_custom: bool = False
) -> dict[str, Any]:
    output: Any = []
    for block in result.content:
        reason = unsupported_reason(block, Role.TOOL)
        if reason is None and not is_part(block):
            reason = "a result holds only texts, images and files"
        if reason is None:
            output.append(write_part(block, Role.TOOL))
        else:
            add_loss(block.type, reason)
    if form is None and (not output or (len(output) == 1 and set(output[0]) == {"type", "text"})):
        output = output[0]["text"] if output else ""
    call_id = provider_id or format_id(result.tool_use_id, DEFAULT_ID_FORMAT)
    return {
        "type": "custom_tool_call_output" if is_custom else "function_call_output",
        "call_id": call_id,
        "output": output,
    }


def is_ignorable(_what: str, _why: str) -> None:
    """Ignore a loss, for blocks that were read from this wire."""


def read_part(wire: dict[str, Any], role: Role) -> ContentBlock:
    """Read a part of a message item."""
    block, form = _read_known_part(wire, role)
    if block is None:
        return OpaqueBlock(NAME, wire, {"dialect": NAME, "form": "part"}, kind="file" if "file_id" in wire else None)
    raw = make_notes(NAME, _default_part(block, role, form), wire, form=form)
    if raw is None and type(block) is TextBlock and block.token_logprobs:
        raw = {"dialect": NAME}  # marks them as native: probabilities of another API are not sent
    return block.replace(provider_raw=raw)


def _read_known_part(wire: dict[str, Any], role: Role) -> tuple[ContentBlock | None, str | None]:
    match wire:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            citations, logprobs = read_annotations(wire.get("annotations")), read_logprobs(wire.get("logprobs"))
            return TextBlock(text, citations=citations, token_logprobs=logprobs), None
        case {"type": "refusal", "refusal": str(text)}:
            return TextBlock(text), "refusal"
        case {"type": "input_image", "image_url": str(url)} if role is not Role.ASSISTANT:
            media_type, source = _read_url(url, "image/*")
            return ImageBlock(source, media_type, detail=text_or_none(wire.get("detail"))), None
        case {"type": "input_file", "file_url": str(url)} if role is not Role.ASSISTANT:
            source = ImageSource("url", url)
            return DocumentBlock(source, "application/pdf", text_or_none(wire.get("filename"))), None
        case {"type": "input_file", "file_data": str(data)} if role is not Role.ASSISTANT:
            media_type, source = _read_url(data, "application/pdf")
            form = "bare" if source.kind == "url" else None  # base64 without a media type
            return DocumentBlock(
                ImageSource("base64", source.data), media_type, text_or_none(wire.get("filename"))
            ), form
        case _:
            return None, None


def _read_url(url: str, default_type: str) -> tuple[str, ImageSource]:
    head, comma, data = url.partition(",")
    media_type = head.removeprefix("data:").removesuffix(";base64")
    if comma and head == f"data:{media_type};base64" and media_type:
        return media_type, ImageSource("base64", data)
    return default_type, ImageSource("url", url)


def _default_part(block: ContentBlock, role: Role, form: str | None) -> dict[str, Any]:
    match block:
        case TextBlock(text) if form == "refusal":
            return {"type": "refusal", "refusal": text}
        case TextBlock(text):
            wire: dict[str, Any] = {"type": "output_text" if role is Role.ASSISTANT else "input_text", "text": text}
            if block.citations and role is Role.ASSISTANT:
                wire["annotations"] = [_write_annotation(citation, text) for citation in block.citations]
            if block.token_logprobs and role is Role.ASSISTANT:
                wire["logprobs"] = write_logprobs(block.token_logprobs)
            return wire
        case ImageBlock(source, media_type):
            wire = {"type": "input_image", "image_url": _write_url(source, media_type)}
            return wire if block.detail is None else {**wire, "detail": block.detail}
        case DocumentBlock(ImageSource("url", data), _, name):
            wire = {"type": "input_file", "file_url": data}
            return wire if name is None else {**wire, "filename": name}
        case DocumentBlock(source, media_type, name):
            data = source.data if form == "bare" else _write_url(source, media_type)
            default = "document.pdf" if media_type == "application/pdf" else "document"
            return {"type": "input_file", "filename": default if name is None else name, "file_data": data}
        case _:
            return {"type": "input_text", "text": f"[{block.type}]"}


def read_annotations(wire: Any) -> tuple[Citation, ...]:
    """Return the citations of a text; none if one of them has an unknown form."""
    return read_items(wire, _read_annotation)


def _read_annotation(wire: Any) -> Citation | None:
    match wire:
        case {"type": "url_citation"}:
            return read_url_citation(wire)
        case {"type": "file_citation", "file_id": str(file_id)}:
            at, name = integer_or_none(wire.get("index")), text_or_none(wire.get("filename"))
            return Citation(start=at, end=at, source_id=file_id, title=name)
        case _:
            return None


def _write_annotation(citation: Citation, text: str) -> dict[str, Any]:
    if citation.url is not None:
        return {"type": "url_citation", **write_url_citation(citation, text)}
    at = citation.start if citation.start is not None else len(text)
    wire = {"type": "file_citation", "file_id": citation.source_id or "", "filename": citation.title or ""}
    return {**wire, "index": at}


def _write_url(source: ImageSource, media_type: str) -> str:
    return source.data if source.kind == "url" else f"data:{media_type};base64,{source.data}"


def write_part(block: ContentBlock, role: Role) -> dict[str, Any]:
    """Write a part of a message item."""
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    wire: dict[str, Any] = apply_diff(_default_part(block, role, notes.get("form")), notes.get("residue"))
    return wire


def is_part(block: ContentBlock) -> bool:
    """Whether a block is part of a message item instead of an item."""
    if isinstance(block, OpaqueBlock):
        return get_notes(block.provider_raw, NAME).get("form") == "part"
    return isinstance(block, TextBlock | ImageBlock | DocumentBlock) and not is_generated_image(block)


def is_generated_image(block: ContentBlock) -> bool:
    """Whether an image is an item that this API generated."""
    return isinstance(block, ImageBlock) and get_notes(block.provider_raw, NAME).get("form") == _GENERATED


def unsupported_reason(block: ContentBlock, role: Role) -> str | None:
    """Return why this wire cannot carry a block; ``None`` if it can."""
    match block:
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else foreign_block_reason(block)
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            return None if get_notes(raw, NAME) else "reasoning of another provider"
        case ImageBlock(source=source) | DocumentBlock(source=source):
            if role is Role.ASSISTANT:
                return None if is_generated_image(block) else "only users send media here"
            return "the file is not at hand" if source.kind == "file_ref" else None
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock() | ToolResultBlock():
            return None
        case _:
            return "this API does not support this block"


def as_generated_image(block: ContentBlock) -> ContentBlock:
    """Return an image of an answer as an item that this API generates; any other block stays."""
    if not isinstance(block, ImageBlock) or block.source.kind != "base64":
        return block
    return block if is_generated_image(block) else block.replace(provider_raw={"dialect": NAME, "form": _GENERATED})


def unsupported_in_answer(block: ContentBlock) -> str | None:
    """Return why an answer of this API cannot carry a block; ``None`` if it can."""
    return unsupported_reason(as_generated_image(block), Role.ASSISTANT)


def write_items(
    content: Iterable[ContentBlock],
    role: Role,
    raw: ProviderRaw | None,
    add_loss: AddLoss,
    *,
    is_stored: bool = True,
) -> list[dict[str, Any]]:
    """Write the blocks of one message: consecutive parts are one item, unless they were several.

    ``is_stored``: whether the provider keeps items. Otherwise it knows reasoning only by its encrypted content.

    The API rejects the id of an item without the reasoning that it belongs to. If reasoning is left out, so are ids.
    """
    items: list[dict[str, Any]] = []
    run: list[ContentBlock] = []
    has_lost_reasoning = False
    for block in content:
        reason = unsupported_reason(block, role)
        if reason is None and not is_stored and isinstance(block, ThinkingBlock) and block.signature is None:
            reason = "the provider keeps no items, and this reasoning has no encrypted content"
        if reason is not None:
            add_loss(block.type, reason)
            has_lost_reasoning |= isinstance(block, ThinkingBlock | RedactedThinkingBlock)
            continue
        is_start = get_notes(getattr(block, "provider_raw", None), NAME).get("item") is not None
        if run and (is_start or not is_part(block)):
            items.append(_message_item(run, role, raw))
            run = []
        if is_part(block):
            run.append(block)
        else:
            items.append(_write_item(block, add_loss))
    if run:
        items.append(_message_item(run, role, raw))
    if has_lost_reasoning:
        return [{key: value for key, value in item.items() if key != "id"} for item in items]
    return items


def _message_item(blocks: list[ContentBlock], role: Role, raw: ProviderRaw | None) -> dict[str, Any]:
    """Write parts as one message item.

    The notes are those of the first block for the model, else those of the message.
    """
    notes = get_notes(getattr(blocks[0], "provider_raw", None) if role is Role.ASSISTANT else raw, NAME)
    parts = [write_part(block, role) for block in blocks]
    content: Any = parts
    if notes.get("content") == "string" and len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        content = parts[0]["text"]
    envelope = apply_diff({"role": ROLE_NAMES.get(role, "user")}, notes.get("item"))
    return {**envelope, "content": content}


def _write_item(block: ContentBlock, add_loss: AddLoss) -> dict[str, Any]:
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    form, provider_id = notes.get("form"), notes.get("id")
    default: dict[str, Any]
    match block:
        case ToolUseBlock() | InvalidToolUseBlock():
            default = _default_call(block, provider_id)
        case ThinkingBlock(text, signature):
            default = _default_reasoning(text, signature, form, notes.get("cuts"))
        case RedactedThinkingBlock(data):
            default = _default_reasoning("", data, form, notes.get("cuts"))
        case ToolResultBlock():
            default = _default_result(block, provider_id, form, add_loss, is_custom=bool(notes.get("custom")))
            if block.is_error:
                add_loss("is_error", "this API has no error flag for results; the text is kept")
        case ImageBlock():
            default = _default_image_item(block)
        case OpaqueBlock(wire=wire):
            return wire
        case _:
            raise AssertionError(block.type)
    item: dict[str, Any] = apply_diff(default, notes.get("residue"))
    if isinstance(block, InvalidToolUseBlock) and "status" not in item and is_input(block.input_text):
        item["status"] = "incomplete"  # a missing status means complete
    return item


def item_notes(**notes: Any) -> ProviderRaw | None:
    """Return notes without absent values."""
    present = {name: note for name, note in notes.items() if note is not None}
    return {"dialect": NAME, **present} if present else None


def part_text(part: Any) -> str | None:
    """Return the text of a message part, of a refusal, or of a reasoning part."""
    if not isinstance(part, dict):
        return None
    return text_or_none(part.get("refusal") if part.get("type") == "refusal" else part.get("text"))


def supported_tier(tier: str | None) -> str | None:
    """Return the service tier if the API has it."""
    return tier if tier in TIERS else None
