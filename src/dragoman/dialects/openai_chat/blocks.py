"""The content of a Chat Completions message: shared by requests, replies and streams.

    read_blocks(message, ...) -> placed blocks       each with its place on the wire
    default_message(role, blocks, notes) -> wire     the message without notes of its own
    make_message_notes(role, blocks, wire) -> notes  the fields of the message beside its blocks
    unsupported_reason(block, role, ...) -> reason   why this wire cannot carry a block; ``None`` if it can

Invariant: a message that was read is written as it was.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dragoman.dialects.openai_chat.chunks import THINKING_FIELDS, Place, detail_text, find_thinking_key, thinking_texts
from dragoman.dialects.openai_chat.custom_tools import default_custom_call, read_custom_call
from dragoman.errors import JsonError
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import OWN, expect_list, expect_object, read_items, read_json, text_or_none
from dragoman.message import (
    AudioBlock,
    CacheHint,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.wire.annotations import read_url_citation, write_url_citation
from dragoman.wire.message_builder import MessageBuilder, foreign_block_reason
from dragoman.wire.residue import apply_diff, get_notes, make_notes, wrap_residue
from dragoman.wire.tool_definitions import read_arguments

NAME: Final = "openai_chat"
DEFAULT_ID: Final = "chatcmpl-dragoman"  # for an answer without an id
TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast")  # accepted by the official SDK
TRANSCRIPT: Final = "audio.transcript"  # field of a spoken answer
AUDIO: Final = "audio.data"
IMAGES: Final = "images"  # of an answer
LEGACY_ID: Final = "function_call:"  # legacy calls have no id; their result has the name of the function
ABSENT: Final = object()
_DATA_URI: Final = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_AUDIO_TYPES: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_AUDIO_FORMATS: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def make_message_notes(role: Role, blocks: list[ContentBlock], wire: dict[str, Any], *, reply: bool = False) -> Any:
    """Return the notes of a message: the form of its content and its other keys."""
    if _is_plain_text(role, blocks, wire):
        added = {key: value for key, value in wire.items() if key not in ("role", "content")}
        return wrap_residue(NAME, {"set": added} if added else None)
    notes: dict[str, Any] = {"role": "developer"} if wire.get("role") == "developer" else {}
    repeated_keys = _repeated_keys(blocks, wire)
    if repeated_keys:
        notes["shown"] = repeated_keys
    content = wire.get("content", ABSENT)
    default = default_message(role, blocks, notes, reply=reply)
    if isinstance(content, list) and (role is not Role.USER or len(content) < 2):
        notes["form"] = "list"
    elif isinstance(content, dict):
        notes["form"] = "object"
    elif content != default["content"]:
        forms = {ABSENT: "absent", None: "null", "": "empty"}
        notes["form"] = forms.get(content) if not isinstance(content, list) else "list"
    if "form" in notes:
        default = default_message(role, blocks, notes, reply=reply)
    return make_notes(NAME, default, wire, **notes)


def _is_plain_text(role: Role, blocks: list[ContentBlock], wire: dict[str, Any]) -> bool:
    """Whether a message is one text and other keys, as most are."""
    if len(blocks) != 1 or wire.get("role") != role.value:
        return False
    (block,) = blocks
    is_text = type(block) is TextBlock and block.provider_raw is None and not block.citations
    return is_text and wire.get("content") == block.text != ""  # type: ignore[union-attr]


def _repeated_keys(blocks: list[ContentBlock], wire: dict[str, Any]) -> list[str]:
    """Return the keys that repeat the text of the reasoning details."""
    text = _join_details(blocks)
    return [key for key in THINKING_FIELDS if text and wire.get(key) == text]


def _join_details(blocks: Iterable[ContentBlock]) -> str:
    thinking_blocks = (b for b in blocks if isinstance(b, ThinkingBlock) and place_of(b) == "reasoning_details")
    return "".join(block.text for block in thinking_blocks)


def read_blocks(
    message: dict[str, Any], where: str, builder: MessageBuilder, *, is_answer: bool, origin: str | None = None
) -> list[tuple[Place, ContentBlock]]:
    """Read the blocks of a message with their places: reasoning first, calls last."""
    if not is_answer:
        return read_parts(message, where)
    placed_blocks = _read_thinking(message, origin or find_thinking_key(message))
    placed_blocks.extend(read_parts(message, where))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        placed_blocks.append((("refusal", 0), TextBlock(refusal, {"dialect": NAME, "at": "refusal"})))
    placed_blocks.extend(_read_audio(message.get("audio")))
    placed_blocks.extend(_read_images(message.get("images")))
    calls = message.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        placed_blocks.append((("tool_calls", index), read_call(expect_object(call, f"{where}.tool_calls"), builder)))
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and isinstance(legacy.get("name"), str) and legacy["name"]:
        placed_blocks.append((("function_call", 0), _read_legacy_call(legacy, builder)))
    return placed_blocks


def _read_audio(audio: Any) -> list[tuple[Place, ContentBlock]]:
    """Read a spoken answer: its transcript and its data."""
    placed_blocks: list[tuple[Place, ContentBlock]] = []
    transcript, data = (audio.get("transcript"), audio.get("data")) if isinstance(audio, dict) else (None, None)
    if isinstance(transcript, str) and transcript:
        placed_blocks.append(((TRANSCRIPT, 0), TextBlock(transcript, {"dialect": NAME, "at": TRANSCRIPT})))
    if isinstance(data, str) and data:
        raw = {"dialect": NAME, "at": AUDIO}
        block = AudioBlock(ImageSource("base64", data), _audio_type(data), provider_raw=raw)
        placed_blocks.append(((AUDIO, 0), block))
    return placed_blocks


def _read_images(images: Any) -> list[tuple[Place, ContentBlock]]:
    """Read the images of an answer, as OpenRouter and the gateway of Vercel send them; none if one is not an image."""
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        return []
    blocks = [_read_part(image) for image in images]
    if not all(isinstance(block, ImageBlock) for block in blocks):
        return []
    return [((IMAGES, at), _set_place(block, IMAGES)) for at, block in enumerate(blocks)]


def _set_place(block: Any, place: str) -> ContentBlock:
    placed: ContentBlock = block.replace(provider_raw={"dialect": NAME, **(block.provider_raw or {}), "at": place})
    return placed


def _audio_type(data: str) -> str:
    """Return the media type of a spoken answer by its first bytes, as the wire does not name it."""
    return next((media_type for start, media_type in _AUDIO_STARTS.items() if data.startswith(start)), "audio/pcm")


_AUDIO_STARTS: Final = {  # in base64
    "UklGR": "audio/wav",
    "SUQz": "audio/mpeg",
    "//": "audio/mpeg",
    "T2dnUw": "audio/ogg",
    "ZkxhQw": "audio/flac",
}


def _read_thinking(message: dict[str, Any], origin: str | None) -> list[tuple[Place, ContentBlock]]:
    placed_blocks: list[tuple[Place, ContentBlock]] = []
    if origin in THINKING_FIELDS:
        text = message[origin]
        also = [key for key in THINKING_FIELDS if key != origin and message.get(key) == text]
        raw = {"dialect": NAME, "at": origin, **({"also": also} if also else {})}
        placed_blocks.append(((origin, 0), ThinkingBlock(text, None, raw)))
    details = message.get("reasoning_details")
    if isinstance(details, list) and all(isinstance(detail, dict) for detail in details):
        for index, detail in enumerate(details):
            block = _read_detail(detail, is_repeated=origin in THINKING_FIELDS)
            placed_blocks.append((("reasoning_details", index), block))
    opaque = message.get("reasoning_opaque")
    if isinstance(opaque, str) and opaque:
        raw = {"dialect": NAME, "at": "reasoning_opaque"}
        placed_blocks.append((("reasoning_opaque", 0), RedactedThinkingBlock(opaque, raw)))
    return placed_blocks


def _read_detail(wire: dict[str, Any], *, is_repeated: bool) -> ContentBlock:
    """Read a reasoning detail of OpenRouter. A detail that repeats another key is opaque."""
    block: ContentBlock
    form = None
    match wire:
        case {"type": "reasoning.text"} if not is_repeated:
            block = ThinkingBlock(detail_text(wire), text_or_none(wire.get("signature")))
        case {"type": "reasoning.summary"} if not is_repeated:
            block, form = ThinkingBlock(detail_text(wire)), "summary"
        case {"type": "reasoning.encrypted", "data": str(data)}:
            block = RedactedThinkingBlock(data)
        case _:
            return OpaqueBlock(NAME, wire, {"dialect": NAME, "at": "reasoning_details"})
    default = _default_detail(block, form)
    return block.replace(provider_raw=make_notes(NAME, default, wire, at="reasoning_details", form=form))


def read_parts(message: dict[str, Any], where: str) -> list[tuple[Place, ContentBlock]]:
    """Read the content of a message."""
    content = message.get("content")
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [(("content", 0), TextBlock(content))]
    if isinstance(content, dict):  # Cloudflare parses JSON for the client
        return [(("content", 0), TextBlock(msgspec.json.encode(content).decode()))]
    parts = enumerate(expect_list(content, f"{where}.content"))
    return [(("content", at), _read_part(expect_object(part, f"{where}.content[{at}]"))) for at, part in parts]


def _read_part(wire: dict[str, Any]) -> ContentBlock:
    """Read a part with its residue; an unknown part is opaque."""
    block, notes = _read_known_part(wire)
    if block is None:
        return OpaqueBlock(NAME, wire)
    return block.replace(provider_raw=make_notes(NAME, _default_part(block, notes), wire, **notes))


def _read_known_part(wire: dict[str, Any]) -> tuple[ContentBlock | None, dict[str, Any]]:
    match wire:
        case {"type": "text", "text": str(text)}:
            hint = _read_cache_hint(wire.get("cache_control"))
            return TextBlock(text, cache_hint=hint), {"hint": "cache_control"} if hint is not None else {}
        case {"type": "refusal", "refusal": str(text)}:
            return TextBlock(text), {"form": "refusal"}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            detail, hint = text_or_none(wire["image_url"].get("detail")), _read_cache_hint(wire.get("cache_control"))
            image = ImageBlock(*_source(url, "image/*"), detail=detail, cache_hint=hint)
            return image, {"hint": "cache_control"} if hint is not None else {}
        case {"type": "image_url", "image_url": str(url)}:
            return ImageBlock(*_source(url, "image/*")), {"form": "string"}
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(word)}}:
            head, comma, payload = data.partition(";base64,")
            notes = {"head": head + comma} if comma and head.startswith("data:") else {}  # Alibaba Cloud
            source = ImageSource("base64", payload if notes else data)
            return AudioBlock(source, _AUDIO_TYPES.get(word, f"audio/{word}")), notes
        case {"type": "video_url", "video_url": {"url": str(url)}}:
            return VideoBlock(*_source(url, "video/*")), {}
        case {"type": "file", "file": {"file_data": str(url)} as file}:
            source, media_type = _source(url, "application/pdf")
            is_other = source.kind == "url" or media_type != "application/pdf"
            return DocumentBlock(source, media_type, text_or_none(file.get("filename"))), {
                "form": "file"
            } if is_other else {}
        case {"type": "document_url", "document_url": str(url)}:
            name = text_or_none(wire.get("document_name"))
            return DocumentBlock(*_source(url, "application/pdf"), name), {"form": "document_url"}
        case {"type": "file_url", "file_url": {"url": str(url)}}:
            return DocumentBlock(*_source(url, "application/pdf")), {"form": "file_url"}
        case {"type": "thinking", "thinking": list()}:
            texts = thinking_texts(wire)
            if texts is None:
                return None, {}
            pieces = {"pieces": [len(text) for text in texts]} if len(texts) != 1 else {}
            return ThinkingBlock("".join(texts), text_or_none(wire.get("signature"))), {"at": "content", **pieces}
        case _:
            return None, {}


def _read_cache_hint(wire: Any) -> CacheHint | None:
    """Read the mark of OpenRouter and other providers that pass it on; the API itself has none."""
    is_hint = isinstance(wire, dict) and wire.get("type") == "ephemeral"
    return CacheHint(text_or_none(wire.get("ttl"))) if is_hint else None


def _write_cache_hint(block: ContentBlock, notes: Mapping[str, Any]) -> dict[str, Any]:
    hint: CacheHint | None = getattr(block, "cache_hint", None)
    if hint is None or notes.get("hint") != "cache_control":
        return {}
    return {"cache_control": {"type": "ephemeral", **({"ttl": hint.ttl} if hint.ttl is not None else {})}}


def _source(url: str, media_type: str) -> tuple[ImageSource, str]:
    inline = _DATA_URI.fullmatch(url)
    return (ImageSource("base64", inline[2]), inline[1]) if inline else (ImageSource("url", url), media_type)


def read_call(wire: dict[str, Any], builder: MessageBuilder) -> ContentBlock:
    """Read a tool call."""
    function, provider_id = wire.get("function"), text_or_none(wire.get("id"))
    if wire.get("type") == "custom" and read_custom_call(wire, "") is not None:
        call_id = builder.call_id(provider_id or "")
        custom, note = read_custom_call(wire, call_id), provider_id if provider_id != call_id else None
        assert custom is not None
        return custom.replace(provider_raw=make_notes(NAME, _default_call(custom, {"id": note}), wire, id=note))
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return OpaqueBlock(NAME, wire, {"dialect": NAME, "at": "tool_calls"})
    call_id = builder.call_id(provider_id or "")
    block, form = _parse_call(call_id, function["name"], function.get("arguments"))
    notes = {"id": provider_id if provider_id != call_id else None, "form": form}
    return block.replace(provider_raw=make_notes(NAME, _default_call(block, notes), wire, **notes))


def _read_legacy_call(wire: dict[str, Any], builder: MessageBuilder) -> ContentBlock:
    call_id = builder.call_id(LEGACY_ID + wire["name"])
    block, form = _parse_call(call_id, wire["name"], wire.get("arguments"))
    default = _default_call(block, {"form": form})["function"]
    return block.replace(provider_raw=make_notes(NAME, default, wire, at="function_call", form=form))


def _parse_call(call_id: str, name: str, arguments: Any) -> tuple[ToolUseBlock | InvalidToolUseBlock, str | None]:
    """Return the call, if its arguments are a JSON object. Providers send no text for no arguments."""
    if isinstance(arguments, dict):
        return ToolUseBlock(call_id, name, arguments), "object"
    if not isinstance(arguments, str | None):
        text = msgspec.json.encode(arguments).decode()
        return InvalidToolUseBlock(call_id, name, text, "the arguments are no string"), None
    try:
        value = read_json(arguments, OWN) if arguments and arguments.strip() else {}
        if not isinstance(value, dict):
            raise JsonError(f"a tool's input is a JSON object, not {type(value).__name__}")
        return ToolUseBlock(call_id, name, value), None
    except (JsonError, ValueError) as error:
        return InvalidToolUseBlock(call_id, name, arguments or "", str(error)), None


def unsupported_reason(block: ContentBlock, role: Role, *, is_native: bool) -> str | None:
    """Return why this wire cannot carry a block in a message of that role; ``None`` if it can.

    Only users may send media. Some providers allow more: media that was read in another role is written in it.
    """
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    match block:
        case TextBlock():
            return None
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else foreign_block_reason(block)
        case ThinkingBlock() | RedactedThinkingBlock():
            return None if "at" in notes and role is Role.ASSISTANT else "reasoning of another provider"
        case ToolUseBlock() | InvalidToolUseBlock():
            return None if role is Role.ASSISTANT else "only an assistant calls tools here"
        case AudioBlock() | ImageBlock() if notes.get("at") in (AUDIO, IMAGES) and role is Role.ASSISTANT:
            return None
        case ImageBlock() | AudioBlock() | VideoBlock() | DocumentBlock():
            if role is not Role.USER and not is_native:
                return f"only users send such blocks here, not a message of role {role.value}"
            return _unsupported_media(block, notes.get("form"))
        case _:
            return "this API does not support this block"


def _unsupported_media(block: ImageBlock | AudioBlock | VideoBlock | DocumentBlock, form: str | None) -> str | None:
    if block.source.kind == "file_ref":
        return "a file of the workspace, which this API cannot read"
    if block.source.kind == "url" and isinstance(block, AudioBlock | DocumentBlock) and form is None:
        return "this API does not support this block by URL"
    return None


def place_of(block: ContentBlock) -> str:
    """Return the key of the message that contains a block."""
    default = "tool_calls" if isinstance(block, ToolUseBlock | InvalidToolUseBlock) else "content"
    return str(get_notes(getattr(block, "provider_raw", None), NAME).get("at", default))


def default_message(
    role: Role, blocks: Iterable[ContentBlock], notes: Mapping[str, Any], *, reply: bool = False
) -> dict[str, Any]:
    """Return the wire of a message without notes of its own; its blocks have theirs."""
    blocks = tuple(blocks)
    parts, details, images, calls, fields = [], [], [], [], dict[str, Any]()
    for block in blocks:
        match place_of(block):
            case "content":
                parts.append(write_part(block))
            case "reasoning_details":
                details.append(_write_detail(block))
            case "tool_calls":
                calls.append(write_call(block))
            case "images":
                images.append(write_part(block))
            case "function_call":
                fields["function_call"] = write_call(block)
            case str(place) if place in (TRANSCRIPT, AUDIO):
                text = block.source.data if isinstance(block, AudioBlock) else getattr(block, "text", "")
                fields.setdefault("audio", {})[place.removeprefix("audio.")] = text
            case field:
                text = block.data if isinstance(block, RedactedThinkingBlock) else getattr(block, "text", "")
                for key in (field, *get_notes(getattr(block, "provider_raw", None), NAME).get("also", ())):
                    fields[key] = fields.get(key, "") + text
    fields.update((key, _join_details(blocks)) for key in notes.get("shown", ()) if details)
    content = default_content(parts, notes.get("form"), role, reply=reply)
    wire: dict[str, Any] = {"role": notes.get("role", role.value)}
    if content is not ABSENT:
        wire["content"] = content
    wire.update(fields)
    if details:
        wire["reasoning_details"] = details
    if images:
        wire[IMAGES] = images
    annotations = _write_annotations(blocks) if reply else []
    if annotations:
        wire["annotations"] = annotations
    return {**wire, "tool_calls": calls} if calls else wire


def read_annotations(wire: Any) -> tuple[Citation, ...]:
    """Return the citations of a message; none if one of them is not of a web page."""
    return read_items(
        wire, lambda item: read_url_citation(item.get("url_citation") if isinstance(item, dict) else None)
    )


def _write_annotations(blocks: Iterable[ContentBlock]) -> list[dict[str, Any]]:
    """Return the citations of all texts, as places in their whole. Only web pages can be cited."""
    annotations, offset = [], 0
    for block in blocks:
        if type(block) is TextBlock and place_of(block) == "content":
            for citation in block.citations if block.citations else ():
                fields = write_url_citation(citation, block.text)
                if offset:
                    fields = {**fields, "start_index": fields["start_index"] + offset}
                    fields["end_index"] += offset
                annotations.append({"type": "url_citation", "url_citation": fields})
            offset += len(block.text)
    return annotations


def default_content(parts: list[dict[str, Any]], form: str | None, role: Role, *, reply: bool = False) -> Any:
    """Return one text as a string and several parts as a list; a reply is a string, unless it was a list."""
    if not parts:
        empty: Any = {"absent": ABSENT, "null": None, "empty": "", "list": []}
        return empty.get(form, None if role is Role.ASSISTANT else "")
    is_plain = all(_is_plain_part(part) for part in parts)
    if form == "list" or not is_plain or (len(parts) > 1 and not reply):
        return parts
    text = "".join(part["text"] for part in parts)
    return _parse_object(text) if form == "object" else text


def _parse_object(text: str) -> Any:
    """Return the object in a text that was read as one; a text that is no longer an object stays a text."""
    value, problem = read_arguments(text)
    return value if problem is None else text


def _is_plain_part(part: dict[str, Any]) -> bool:
    return set(part) == {"type", "text"} and part["type"] == "text" and isinstance(part["text"], str)


def write_part(block: ContentBlock) -> dict[str, Any]:
    """Write a part of the content."""
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    wire: dict[str, Any] = apply_diff(_default_part(block, notes), notes.get("residue"))
    return wire


def _default_part(block: ContentBlock, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wire of a part without residue."""
    form = notes.get("form")
    match block:
        case TextBlock(text):
            wire = {"type": "refusal", "refusal": text} if form == "refusal" else {"type": "text", "text": text}
            return {**wire, **_write_cache_hint(block, notes)} if block.cache_hint is not None else wire
        case ImageBlock(source, media_type):
            url = _to_url(source, media_type)
            image = {"url": url, **({"detail": block.detail} if block.detail is not None else {})}
            image_url = url if form == "string" else image
            return {"type": "image_url", "image_url": image_url, **_write_cache_hint(block, notes)}
        case AudioBlock(source, media_type):
            word = _AUDIO_FORMATS.get(media_type, media_type.removeprefix("audio/"))
            data = notes.get("head", "") + source.data
            return {"type": "input_audio", "input_audio": {"data": data, "format": word}}
        case VideoBlock(source, media_type):
            return {"type": "video_url", "video_url": {"url": _to_url(source, media_type)}}
        case DocumentBlock():
            return _default_document(block, form)
        case ThinkingBlock(text):
            texts = _split_text(text, notes.get("pieces"))
            return {"type": "thinking", "thinking": [{"type": "text", "text": piece} for piece in texts]}
        case _:
            return {"type": "text", "text": f"[{block.type}]"}


def _default_document(block: DocumentBlock, form: str | None) -> dict[str, Any]:
    url = _to_url(block.source, block.media_type)
    if form == "document_url":
        name = {"document_name": block.name} if block.name is not None else {}
        return {"type": "document_url", "document_url": url, **name}
    if form == "file_url":
        return {"type": "file_url", "file_url": {"url": url}}
    text = _plain_text(block) if form is None else None
    if text is not None:
        return {"type": "text", "text": text}
    return {"type": "file", "file": {"filename": block.name or "document.pdf", "file_data": url}}


def _plain_text(block: DocumentBlock) -> str | None:
    """Return the text of a text document; files are PDFs on this wire."""
    if not block.media_type.startswith("text/") or block.source.kind != "base64":
        return None
    try:
        return base64.b64decode(block.source.data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def is_written_as_text(block: DocumentBlock) -> bool:
    """Whether a document is written as a text part instead of a file."""
    return get_notes(block.provider_raw, NAME).get("form") is None and _plain_text(block) is not None


def _to_url(source: ImageSource, media_type: str) -> str:
    return source.data if source.kind == "url" else f"data:{media_type};base64,{source.data}"


def _split_text(text: str, lengths: list[int] | None) -> list[str]:
    if lengths is None or sum(lengths) != len(text):
        return [text]
    ends = [sum(lengths[: count + 1]) for count in range(len(lengths))]
    return [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _write_detail(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    wire: dict[str, Any] = apply_diff(_default_detail(block, notes.get("form")), notes.get("residue"))
    return wire


def _default_detail(block: ContentBlock, form: str | None) -> dict[str, Any]:
    match block:
        case ThinkingBlock(text, signature):
            if form == "summary":
                return {"type": "reasoning.summary", "summary": text}
            signature_field = {"signature": signature} if signature is not None else {}
            return {"type": "reasoning.text", "text": text, **signature_field}
        case RedactedThinkingBlock(data):
            return {"type": "reasoning.encrypted", "data": data}
        case _:
            return {"type": "reasoning.text", "text": ""}


def write_call(block: ContentBlock) -> dict[str, Any]:
    """Write a tool call."""
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    default = _default_call(block, notes)
    wire: dict[str, Any] = default["function"] if notes.get("at") == "function_call" else default
    wire = apply_diff(wire, notes.get("residue"))
    return wire


def call_notes(call: InvalidToolUseBlock, wire: dict[str, Any]) -> ProviderRaw | None:
    """Return the notes of a call, with the difference between it and its wire."""
    notes = get_notes(call.provider_raw, NAME)
    default = write_call(call.replace(provider_raw={key: note for key, note in notes.items() if key != "residue"}))
    others = {key: note for key, note in notes.items() if key not in ("dialect", "residue")}
    return make_notes(NAME, default, wire, **others)


def _default_call(block: ContentBlock, notes: Mapping[str, Any]) -> dict[str, Any]:
    arguments: Any = getattr(block, "input_text", "")
    if isinstance(block, ToolUseBlock):
        arguments = block.input if notes.get("form") == "object" else msgspec.json.encode(block.input).decode()
    call_id, name = getattr(block, "id", ""), getattr(block, "name", "")
    provider_id = notes.get("id")
    if isinstance(block, ToolUseBlock) and block.free_text is not None:
        return default_custom_call(
            block, provider_id if provider_id is not None else format_id(call_id, DEFAULT_ID_FORMAT)
        )
    return {
        "id": provider_id if provider_id is not None else format_id(call_id, DEFAULT_ID_FORMAT),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
