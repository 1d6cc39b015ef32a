"""Convert blocks to and from parts of a content. Requests, replies and streams share this code.

    read_part(part, role, builder, where) -> block   known fields and residue; an unknown part becomes an opaque block
    write_part(block, calls) -> part                 the part again

Invariant: ``unsupported_reason`` alone decides whether a block can be written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.gemini.key_case import NAME, restore_case, to_camel
from dragoman.exchange import Loss
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import expect_object, text_or_none
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.wire.message_builder import MessageBuilder, foreign_block_reason
from dragoman.wire.residue import apply_diff, get_notes, make_notes

_TO_URLSAFE: Final = str.maketrans("+/", "-_")
_TO_STANDARD: Final = str.maketrans("-_", "+/")
_MEDIA: Final = {"image": ImageBlock, "audio": AudioBlock, "video": VideoBlock}
_TYPES_BY_EXTENSION: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "mp4": "video/mp4",
    "mov": "video/quicktime",
    "webm": "video/webm",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
}
_DEFAULT_TYPES: Final = {"image/*": "image/jpeg", "video/*": "video/mp4", "audio/*": "audio/wav"}
_YOUTUBE: Final = re.compile(r"https?://(www\.|m\.)?(youtube\.com|youtu\.be)/")  # the only URLs without a media type
Calls = Mapping[str, tuple[str, str]]  # our id of a call: its name, and its id on the wire or ""
_RESULT_KEYS: Final = ("output", "result", "content")  # the API documents "output", and "error" for a failure


class GeminiMessageBuilder(MessageBuilder):
    """A message builder that matches results to calls by id, by name or by order, because a call may have no id."""

    def __init__(self, seed: str = "") -> None:
        super().__init__()
        self.calls: dict[str, tuple[str, str]] = {}
        self._seed = seed
        self._pending_calls: list[tuple[str, str, str]] = []  # name, their id or "", our id

    def add_call(self, name: str, provider_id: str) -> str:
        """Return our id for a call."""
        call_id = self.call_id(provider_id or f"{self._seed} call of {name}")
        self._pending_calls.append((name, provider_id, call_id))
        self.calls[call_id] = (name, provider_id)
        return call_id

    def match_result(self, name: str, provider_id: str) -> str:
        """Return our id of the call that a result answers, found by its id, else by its name, else by its order."""
        same_id = [call for call in self._pending_calls if provider_id and call[1] == provider_id]
        if not same_id and provider_id in self._tool_ids:
            return self.result_id(provider_id)
        same_name = [call for call in self._pending_calls if call[0] == name and not (provider_id and call[1])]
        any_name = self._pending_calls if not provider_id else []  # some clients use another name in the result
        for call in same_id or same_name or any_name:
            self._pending_calls.remove(call)
            return call[2]
        return self.result_id(provider_id or f"{self._seed} call of {name}")


def read_part(item: Any, role: str, builder: GeminiMessageBuilder, where: str) -> ContentBlock:
    """Return the part as a block with its residue, or as an opaque block if its type is unknown."""
    part, snake = to_camel(expect_object(item, where))
    notes: dict[str, Any] = {"snake": snake or None}
    block = _match_part(part, role, builder, notes)
    if block is None:
        return OpaqueBlock(NAME, item, kind=_opaque_kind(part))
    return block.replace(provider_raw=make_notes(NAME, default_part(block, notes), part, **notes))


_KINDS: Final = {"executableCode": "code_execution", "codeExecutionResult": "code_execution", "inlineData": "file"}


def _opaque_kind(part: dict[str, Any]) -> str | None:
    """Return one word for a part that only this API has: the tool that the provider ran."""
    call = part.get("toolCall", part.get("toolResponse"))
    if isinstance(call, dict):
        return str(call.get("toolType", "server_tool")).lower()
    return next((kind for key, kind in _KINDS.items() if key in part), None)


def _match_part(
    part: dict[str, Any], role: str, builder: GeminiMessageBuilder, notes: dict[str, Any]
) -> ContentBlock | None:
    is_thought = part.get("thought") is True
    match part:
        case {"functionCall": {"name": str(name)} as call} if role == "model" and isinstance(call.get("id", ""), str):
            return _read_call(name, call, builder, notes)
        case {"text": str(text)} if is_thought and role == "model":
            notes["form"] = "thought"  # marks native reasoning
            return ThinkingBlock(text, text_or_none(part.get("thoughtSignature")), is_summary=bool(text))
        case {"thoughtSignature": str(signature), "thought": True} if role == "model" and len(part) == 2:
            notes["form"] = "absent"
            return ThinkingBlock("", signature)
        case {"text": str(text)} if not is_thought:
            return TextBlock(text)
        case {"inlineData": dict()} | {"fileData": dict()} if role != "model":
            return _read_media(part, notes)
        case {"inlineData": {"mimeType": str(media_type)}} if media_type.startswith(("image/", "audio/")):
            notes["form"] = "generated"
            return _read_media(part, notes)
        case _:
            return None


def _read_call(name: str, call: dict[str, Any], builder: GeminiMessageBuilder, notes: dict[str, Any]) -> ContentBlock:
    """Return the call; it is invalid if its arguments are not an object or are incomplete."""
    provider_id = call.get("id", "")
    call_id = builder.add_call(name, provider_id)
    notes["id"] = provider_id if provider_id != call_id else None
    args = call.get("args")
    if is_partial(call):
        notes["form"] = "unusable"
        fields = {key: value for key, value in call.items() if key not in ("id", "name")}
        return InvalidToolUseBlock(call_id, name, _json_text(fields), "its arguments are incomplete")
    if args is not None and type(args) is not dict:
        notes["form"] = "unusable"
        return InvalidToolUseBlock(call_id, name, _json_text(args), "its arguments are not a JSON object")
    notes["form"] = "absent" if "args" not in call else None
    return ToolUseBlock(call_id, name, args or {})


def is_partial(call: dict[str, Any]) -> bool:
    """Return whether the arguments of a call are streamed in several parts."""
    return bool(call.get("willContinue")) or "partialArgs" in call


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_media(part: dict[str, Any], notes: dict[str, Any]) -> ContentBlock | None:
    match part:
        case {"inlineData": {"mimeType": str(media_type), "data": str(data)}}:
            source = ImageSource("base64", _to_standard_base64(data, notes))
        case {"fileData": {"fileUri": str(address), "mimeType": str(media_type)}}:
            source = ImageSource("url", address)
        case {"fileData": {"fileUri": str(address)}} if _YOUTUBE.match(address):
            media_type, source = "video/*", ImageSource("url", address)
        case _:
            return None
    kind: Any = _MEDIA.get(media_type.partition("/")[0], DocumentBlock)
    block: ContentBlock = kind(source, media_type or "application/octet-stream")
    return block


def _to_standard_base64(data: str, notes: dict[str, Any]) -> str:
    """Return base64 in the standard alphabet. The API and Google's clients also use the URL-safe alphabet."""
    if "-" not in data and "_" not in data:
        return data
    notes["alphabet"] = "urlsafe"
    standard = data.translate(_TO_STANDARD)
    if len(standard) % 4:
        notes["alphabet"] = "urlsafe, unpadded"
        standard += "=" * (-len(standard) % 4)
    return standard


def read_result(item: dict[str, Any], builder: GeminiMessageBuilder, where: str) -> ToolResultBlock:
    part, snake = to_camel(item)
    wire = part["functionResponse"]
    name, provider_id, response = wire["name"], wire.get("id", ""), wire.get("response", {})
    tool_use_id = builder.match_result(name, provider_id)
    text, is_error, form = _read_response(response)
    form = form if "response" in wire else "absent"
    content: list[ContentBlock] = [] if text is None else [TextBlock(text)]
    for inner in wire["parts"] if isinstance(wire.get("parts"), list) else []:
        block = read_part(inner, "user", builder, f"{where}.parts")
        content.append(OpaqueBlock(NAME, inner) if isinstance(block, TextBlock) else block)
    result = ToolResultBlock(tool_use_id, tuple(content), is_error)
    call_name, call_wire_id = builder.calls.get(tool_use_id, ("", tool_use_id))
    notes = {
        "snake": snake or None,
        "id": provider_id if provider_id != call_wire_id else None,
        "name": name if name != call_name else None,
        "form": form,
    }
    return result.replace(provider_raw=make_notes(NAME, _default_result(result, notes, builder.calls), part, **notes))


def _read_response(response: dict[str, Any]) -> tuple[str | None, bool, str | None]:
    """Return the text of a result, whether it is an error, and its form."""
    if not response:
        return None, False, None
    is_error = set(response) == {"error"}
    if len(response) == 1:
        key, value = next(iter(response.items()))
        if isinstance(value, str) and (is_error or key in _RESULT_KEYS):
            return value, is_error, None if key in ("output", "error") else key
    return _json_text(response), is_error, "json"


def _default_response(result: ToolResultBlock, form: str | None) -> dict[str, Any]:
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    if not texts and not result.is_error:
        return {}
    text = "\n".join(texts)
    if form == "json":
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if type(value) is dict and (set(value) == {"error"}) == result.is_error:
            return value
    key = "error" if result.is_error else form if form in _RESULT_KEYS else "output"
    return {str(key): text}


def _default_result(result: ToolResultBlock, notes: Mapping[str, Any], calls: Calls) -> dict[str, Any]:
    """Write a result with the name and the id of its call, unless the notes contain others."""
    call_name, call_wire_id = calls.get(result.tool_use_id, (format_id(result.tool_use_id, DEFAULT_ID_FORMAT), None))
    id_field = wire_id(result.tool_use_id, {"id": notes["id"] if notes.get("id") is not None else call_wire_id})
    wire: dict[str, Any] = {**id_field, "name": notes.get("name") or call_name}
    response = _default_response(result, notes.get("form"))
    if response or notes.get("form") != "absent":
        wire["response"] = response
    parts = [
        write_part(block)
        for block in result.content
        if not isinstance(block, TextBlock) and unsupported_reason(block) is None
    ]
    return {"functionResponse": {**wire, "parts": parts} if parts else wire}


def wire_id(tool_id: str, notes: Mapping[str, Any]) -> dict[str, str]:
    """Return the id field; a call that was read without an id is written without one."""
    noted_id = notes.get("id")
    if noted_id == "":
        return {}
    return {"id": noted_id or format_id(tool_id, DEFAULT_ID_FORMAT)}


def write_parts(message: Message, calls: Calls, losses: list[Loss]) -> list[dict[str, Any]]:
    parts = []
    for block in message.content:
        inner = block.content if isinstance(block, ToolResultBlock) else ()
        for candidate in (block, *inner):
            reason = unsupported_reason(candidate)
            if reason is not None:
                losses.append(Loss(message.session_id, message.id, candidate.type, NAME, reason))
            elif isinstance(candidate, DocumentBlock) and candidate.name is not None:
                losses.append(Loss(message.session_id, message.id, "document.name", NAME, "files have no name"))
        if unsupported_reason(block) is None:
            parts.append(write_part(block, calls))
    return parts


def unsupported_reason(block: ContentBlock) -> str | None:
    """Return why the wire format cannot carry a block; ``None`` if it can."""
    match block:
        case OpaqueBlock(dialect=dialect):
            return foreign_block_reason(block) if dialect != NAME else None
        case ThinkingBlock(provider_raw=raw):
            return None if get_notes(raw, NAME) else "reasoning of another provider"
        case ImageBlock(source) | DocumentBlock(source) | AudioBlock(source) | VideoBlock(source):
            return "a workspace file that the provider cannot read" if source.kind == "file_ref" else None
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock() | ToolResultBlock():
            return None
        case _:
            return "this API does not support this block"


def write_part(block: ContentBlock, calls: Calls | None = None) -> dict[str, Any]:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    part = apply_diff(default_part(block, notes, calls or {}), notes.get("residue"))
    return restore_case(part, notes.get("snake"))


def default_part(block: ContentBlock, notes: Mapping[str, Any], calls: Calls | None = None) -> dict[str, Any]:
    """Write a block without its residue; of the notes, only its form is used."""
    match block:
        case TextBlock(text):
            return {"text": text}
        case ToolUseBlock(call_id, name, value):
            args = {"args": value} if value or notes.get("form") != "absent" else {}
            return {"functionCall": {**wire_id(call_id, notes), "name": name, **args}}
        case InvalidToolUseBlock(call_id, name, input_text):
            return {"functionCall": {**wire_id(call_id, notes), "name": name, "args": {"invalid_input": input_text}}}
        case ThinkingBlock(text, signature):
            signature_field = {"thoughtSignature": signature} if signature is not None else {}
            text_field = {"text": text} if text or notes.get("form") != "absent" else {}
            return {**text_field, "thought": True, **signature_field}
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
            return _default_media(block.source, block.media_type, notes)
        case ToolResultBlock():
            return _default_result(block, notes, calls or {})
        case _:
            return {"text": f"[{block.type}]"}


def _default_media(source: ImageSource, media_type: str, notes: Mapping[str, Any]) -> dict[str, Any]:
    data = source.data
    if source.kind == "url" and data.startswith("data:") and ";base64," in data:
        head, _, data = data.partition(";base64,")
        media_type = head.removeprefix("data:") or media_type
    elif source.kind == "url":
        type_field = {"mimeType": media_type}
        if media_type.endswith("/*"):  # the exact type is unknown, and the API requires one
            type_field = {} if _YOUTUBE.match(data) else {"mimeType": _guess_type(data, media_type)}
        return {"fileData": {"fileUri": data, **type_field}}
    alphabet = notes.get("alphabet")
    if alphabet:
        data = data.translate(_TO_URLSAFE)
        data = data.rstrip("=") if alphabet != "urlsafe" else data
    return {"inlineData": {"mimeType": media_type, "data": data}}


def _guess_type(address: str, kind: str) -> str:
    """Return a media type by the extension of a URL if it matches the kind, else a common type of that kind."""
    media_type = _TYPES_BY_EXTENSION.get(address.partition("?")[0].rpartition(".")[2].lower(), "")
    return media_type if media_type.startswith(kind.removesuffix("*")) else _DEFAULT_TYPES.get(kind, kind)
