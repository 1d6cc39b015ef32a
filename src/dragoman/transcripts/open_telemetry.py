"""Messages of OpenTelemetry's conventions for generative AI: what traces keep of a conversation.

A list of messages, each with a role and parts, as ``gen_ai.input.messages`` and ``gen_ai.output.messages`` hold them;
or the attributes of a span, with these under their names and ``gen_ai.system_instructions`` beside them, as JSON or as
its text. Read are the parts of the conventions (https://github.com/open-telemetry/semantic-conventions-genai, 2026-11)
and those that pydantic-ai wrote before there were such. A message that holds answers of tools is several of ours: those
after the first are noted as ``joined`` to it. What has no word here (an id, a time, a signature, that a tool failed)
stands under our key beside it, which the conventions allow in every object. What a provider ran or made is opaque.

The one rule: what we write is what the conventions say, and under our key alone something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.body import a_list, an_object
from dragoman.dialects.parts.counts import possible_usage
from dragoman.dialects.parts.functions import read_arguments
from dragoman.dialects.parts.residue import fingerprint
from dragoman.dialects.parts.scalars import count_of, text_or_none
from dragoman.errors import FormatError, JsonError
from dragoman.exchange import Written
from dragoman.jsontext import OWN, read_json
from dragoman.message import (
    NOT_RECORDED,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageStatus,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    VideoBlock,
)
from dragoman.transcripts.parts import (
    KEY,
    Losing,
    Reading,
    carried,
    noted,
    notes_of,
    notes_on,
    read_all,
    restored,
    settled,
    wire_ids,
    with_notes,
)

NAME: Final = "open_telemetry"
INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
_ATTRIBUTES: Final = (INSTRUCTIONS, INPUT, OUTPUT)
_OTHER_ROLES: Final = {  # words of some providers, which traces repeat
    "developer": Role.SYSTEM,
    "human": Role.USER,
    "model": Role.ASSISTANT,
    "function": Role.TOOL,
}
_WHOLE: Final = "whole"  # under our key: a message of ours that is not to be taken apart
_Medium = ImageBlock | AudioBlock | VideoBlock | DocumentBlock
_MEDIA: Final[dict[str, type[_Medium]]] = {
    "image": ImageBlock,
    "audio": AudioBlock,
    "video": VideoBlock,
    "document": DocumentBlock,
}
_MODALITIES: Final = {cls: modality for modality, cls in _MEDIA.items()}
_UNKNOWN_TYPES: Final = {
    "image": "image/*",
    "audio": "audio/*",
    "video": "video/*",
    "document": "application/*",
}
_ADDRESSES: Final = ("image-url", "audio-url", "video-url", "document-url")  # as pydantic-ai once wrote them
_SHOWN: Final = ("text", "blob", "uri", "binary", *_ADDRESSES)  # parts that a tool may answer with
_Call = ToolUseBlock | InvalidToolUseBlock
_Wire = dict[str, Any]


def looks_like(wire: Any) -> bool:
    """Whether a value may be messages of traces: they have a role and parts and nothing that others know them by."""
    if isinstance(wire, dict):
        return any(attribute in wire for attribute in _ATTRIBUTES)
    return isinstance(wire, list) and bool(wire) and all(_is_shaped(item) for item in wire)


def _is_shaped(item: Any) -> bool:
    match item:
        case {"role": str(), "parts": list(parts)} if "id" not in item and "kind" not in item:
            return all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts)
        case _:
            return False


# --- reading ---------------------------------------------------------------------------------------------------------


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[Message, ...]:
    """The messages of a list, or of the attributes of a span."""
    return read_all(wire, _read, Reading(NAME, session_id, created_at))


def _read(value: Any, reading: Reading) -> None:
    if isinstance(value, dict):
        _read_span(value, reading)
        return
    for index, item in enumerate(a_list(value, "$")):
        _read_item(an_object(item, f"$[{index}]"), f"$[{index}]", reading)


def _read_span(span: _Wire, reading: Reading) -> None:
    """The attributes of a span; those that are no messages are noted on the first message."""
    if not any(attribute in span for attribute in _ATTRIBUTES):
        raise FormatError(f"the attributes of a span have one of {', '.join(_ATTRIBUTES)}", where="$")
    for attribute in _ATTRIBUTES:
        if attribute in span:
            start = len(reading.messages)
            _read_attribute(attribute, span, reading)
            if len(reading.messages) > start:
                form = "text" if isinstance(span[attribute], str) else "list"
                reading.messages[start] = _with_note(reading.messages[start], "attribute", [attribute, form])
    reading.place = "$"
    if not reading.messages:
        made = reading.made(Role.SYSTEM, ())
        reading.messages.append(_with_note(made, "attribute", ["", ""]))  # a span in which nothing is said
    first = reading.messages[0] = _with_note(reading.messages[0], "span", {})
    natural = _natural_span(reading.messages, _Writing(reading.messages))
    found = noted(NAME, natural, span) or {}
    left = {name: found[name] for name in ("residue", "order") if name in found}
    reading.messages[0] = _with_note(first, "span", left)


def _read_attribute(attribute: str, span: _Wire, reading: Reading) -> None:
    where = f"$[{attribute!r}]"
    value = _value_of(span[attribute], where)
    if attribute == INSTRUCTIONS:
        _read_item({"role": "system", "parts": value}, where, reading)
        return
    said = _told_of_answer(span) if attribute == OUTPUT else {}
    for index, item in enumerate(a_list(value, where)):
        _read_item(an_object(item, f"{where}[{index}]"), f"{where}[{index}]", reading, said)
        said = {name: told for name, told in said.items() if name != "usage"}  # which counts all of them


def _value_of(value: Any, where: str) -> Any:
    try:
        return read_json(value, OWN) if isinstance(value, str) else value
    except JsonError as error:
        raise FormatError(error.what, where=where, code=error.code) from None


def _told_of_answer(span: _Wire) -> dict[str, Any]:
    """What the attributes beside the messages say about the answer."""
    provider = text_or_none(span.get("gen_ai.provider.name", span.get("gen_ai.system")))
    model = text_or_none(span.get("gen_ai.response.model", span.get("gen_ai.request.model")))
    if model is not None and provider is not None:
        model = f"{provider}:{model}"
    told = {"provider": provider, "model": model, "usage": _read_usage(span)}
    return {name: value for name, value in told.items() if value is not None}


def _read_usage(span: _Wire) -> Usage | None:
    prompt, output = span.get("gen_ai.usage.input_tokens"), span.get("gen_ai.usage.output_tokens")
    if type(prompt) is not int and type(output) is not int:
        return None
    cached = count_of(span.get("gen_ai.usage.cache_read.input_tokens"))
    created = count_of(span.get("gen_ai.usage.cache_creation.input_tokens"))
    counted = Usage(
        input_tokens=max(count_of(prompt) - cached - created, 0),
        output_tokens=count_of(output),
        cached_input_tokens=cached,
        cache_creation_input_tokens=created,
        cost_usd=None,
        pricing_version=NOT_RECORDED,
        latency_ms=0,
    )
    return possible_usage(counted, NAME)


def _with_note(message: Message, name: str, note: Any) -> Message:
    return with_notes(message, {"dialect": NAME, **notes_on(message, NAME), name: note})


def _read_item(item: _Wire, where: str, reading: Reading, told: dict[str, Any] | None = None) -> None:
    """One message of theirs, which is one of ours, or several where tools answer."""
    word = item.get("role")
    if not isinstance(word, str):
        raise FormatError("a message has a role, as text", where=f"{where}.role")
    role = _OTHER_ROLES.get(word) or Role.unknown(word)
    blocks: list[ContentBlock] = []
    for index, part in enumerate(a_list(item.get("parts"), f"{where}.parts")):
        reading.place = f"{where}.parts[{index}]"
        blocks.append(_read_part(an_object(part, reading.place), role, reading))
    reading.place = where
    start, ride = len(reading.messages), _under_key(item)
    runs = [(role, blocks)] if ride.get(_WHOLE) is True else list(_runs(role, blocks))
    for number, (speaker, said) in enumerate(runs):
        reading.messages.append(_made(speaker, said, item, reading, told or {}, is_first=number == 0))
    group = reading.messages[start:]
    natural = _natural_item(group, _Writing(group))
    reading.messages[start] = settled(group[0], natural, item, NAME)


def _made(
    role: Role, blocks: Sequence[ContentBlock], item: _Wire, reading: Reading, told: dict[str, Any], *, is_first: bool
) -> Message:
    ride = {name: value for name, value in _under_key(item).items() if name != _WHOLE}
    said: dict[str, Any] = told if role is Role.ASSISTANT else {}
    if item.get("finish_reason") == "error":
        said = {**said, "status": MessageStatus.ERROR}
    is_carried = is_first and (ride or _WHOLE in _under_key(item))
    made = reading.made(role, blocks, carried=ride if is_carried else None, **said)
    notes = dict(notes_on(made, NAME))
    if not is_first:
        notes["joined"] = True
    if told and role is Role.ASSISTANT:
        notes["told"] = _print_of(made)
    return with_notes(made, {**notes, "dialect": NAME} if notes else None)


def _print_of(message: Message) -> str:
    """What a span told about an answer, to be recognised by."""
    metadata = message.metadata
    return fingerprint(
        msgspec.to_builtins([metadata.model, metadata.provider, metadata.usage and repr(metadata.usage)])
    )


def _under_key(value: _Wire) -> _Wire:
    ride = value.get(KEY)
    return ride if isinstance(ride, dict) else {}


def _runs(role: Role, blocks: Iterable[ContentBlock]) -> Iterator[tuple[Role, list[ContentBlock]]]:
    """What was said at once: each answer of a tool is a message, and so is what stands between them."""
    run: list[ContentBlock] = []
    is_told = False
    for block in blocks:
        if not isinstance(block, ToolResultBlock):
            run.append(block)
            continue
        if run:
            yield role, run
            run = []
        is_told = True
        yield Role.TOOL, [block]
    if run or not is_told:
        yield role, run


def _read_part(part: _Wire, role: Role, reading: Reading) -> ContentBlock:
    """A part as we know it, with what is left over; else the whole of it, opaque."""
    if not isinstance(part.get("type"), str):
        raise FormatError("a part has a type, as text", where=f"{reading.place}.type")
    notes: dict[str, Any] = {}
    block = _known_part(part, role, reading, notes)
    if block is None:
        return OpaqueBlock(NAME, part)
    return block.replace(provider_raw=noted(NAME, _natural_part(block, notes, {}), part, **notes))


def _known_part(part: _Wire, role: Role, reading: Reading, notes: dict[str, Any]) -> ContentBlock | None:
    match part:
        case {"builtin": True}:  # a tool that the provider ran
            return None
        case {"type": "text"}:
            return TextBlock(_text_in(part, reading))
        case {"type": "reasoning" | "thinking" as kind}:
            notes["form"] = kind if kind == "thinking" else None
            own = _under_key(part)
            if isinstance(own.get("redacted"), str):
                return RedactedThinkingBlock(own["redacted"])
            return ThinkingBlock(_text_in(part, reading), text_or_none(own.get("signature")))
        case {"type": "tool_call"}:
            return _read_call(part, reading, notes)
        case {"type": "tool_call_response"}:
            return _read_result(part, reading, notes)
        case _ if role is not Role.ASSISTANT:
            return _read_medium(part, notes)
        case _:  # what a model made
            return None


def _text_in(part: _Wire, reading: Reading) -> str:
    """The text of a part; none where a trace was told to keep none."""
    content = part.get("content", "")
    if not isinstance(content, str):
        raise FormatError("the content of this part is a text", where=f"{reading.place}.content")
    return content


def _read_call(part: _Wire, reading: Reading, notes: dict[str, Any]) -> _Call:
    name, wire_id, arguments = part.get("name"), part.get("id"), part.get("arguments")
    if not isinstance(name, str):
        raise FormatError("a call has the name of its tool", where=f"{reading.place}.name")
    call_id = reading.call_id(wire_id if isinstance(wire_id, str) else reading.place)
    if isinstance(wire_id, str) and wire_id != call_id:
        notes["id"] = wire_id
    reason = _under_key(part).get("reason")
    if isinstance(reason, str) and isinstance(arguments, str):
        return InvalidToolUseBlock(call_id, name, arguments, reason)
    match arguments:
        case dict():
            return ToolUseBlock(call_id, name, arguments)
        case None:
            notes["form"] = "null" if "arguments" in part else "absent"
            return ToolUseBlock(call_id, name, {})
        case str():
            value, problem = read_arguments(arguments)
            notes["form"] = "text" if problem is None else None
            if problem is not None:
                return InvalidToolUseBlock(call_id, name, arguments, problem)
            return ToolUseBlock(call_id, name, value)
        case _:
            notes["form"] = "json"
            return InvalidToolUseBlock(call_id, name, _json_text(arguments), "a tool's input is a JSON object")


def _read_result(part: _Wire, reading: Reading, notes: dict[str, Any]) -> ToolResultBlock:
    wire_id = part.get("id")
    answered = reading.answered_id(wire_id if isinstance(wire_id, str) else reading.place)
    if isinstance(wire_id, str) and wire_id != answered:
        notes["id"] = wire_id
    key = "result" if "response" not in part and "result" in part else "response"
    notes["key"] = key if key == "result" else None
    blocks, notes["form"] = _read_response(part.get(key), reading) if key in part else ((), "absent")
    return ToolResultBlock(answered, blocks, _under_key(part).get("is_error") is True)


def _read_response(response: Any, reading: Reading) -> tuple[tuple[ContentBlock, ...], str | None]:
    """The blocks of an answer, and a word for a shape that we would not write for them."""
    match response:
        case None:
            return (), "null"
        case str():
            return (TextBlock(response),), None
        case list() if all(isinstance(item, dict) and item.get("type") in _SHOWN for item in response):
            blocks = tuple(_read_part(item, Role.TOOL, reading) for item in response)
            return blocks, "list" if len(blocks) == 1 and isinstance(blocks[0], TextBlock) else None
        case _:
            return (TextBlock(_json_text(response)),), "json"


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_medium(part: _Wire, notes: dict[str, Any]) -> _Medium | None:
    match part:
        case {"type": "blob", "content": str(data)}:
            source, media_type = ImageSource("base64", data), part.get("mime_type")
        case {"type": "uri", "uri": str(address)}:
            source, media_type = ImageSource("url", address), part.get("mime_type")
        case {"type": "binary", "content": str(data), "media_type": str(media_type)}:
            notes["form"] = "binary"
            source = ImageSource("base64", data)
        case {"type": str(kind), "url": str(address)} if kind in _ADDRESSES:
            notes["form"] = kind
            source, media_type = ImageSource("url", address), _UNKNOWN_TYPES[kind.removesuffix("-url")]
        case _:
            return None
    known = text_or_none(media_type)
    told, prefix = part.get("modality"), (known or "").partition("/")[0]
    modality = told if isinstance(told, str) and told in _MEDIA else prefix if prefix in _MEDIA else "document"
    made = _MEDIA[modality](source, _UNKNOWN_TYPES[modality] if known is None else known)
    name = _under_key(part).get("name")
    return made.replace(name=name) if isinstance(made, DocumentBlock) and isinstance(name, str) else made


# --- writing ---------------------------------------------------------------------------------------------------------


class _Writing(Losing):
    """What is known while messages are written."""

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__(NAME)
        self.ids = wire_ids(messages, NAME)


def write_messages(messages: Iterable[Message]) -> Written:
    """The list again, or the attributes of the span that the messages came from, and what is not in it."""
    said = tuple(messages)
    writing = _Writing(said)
    span = next((notes_on(message, NAME)["span"] for message in said if "span" in notes_on(message, NAME)), None)
    if span is not None:
        return Written(restored(_natural_span(said, writing), span), tuple(writing.losses))
    wire = [_written_item(group, writing) for group in _grouped(said)]
    return Written(wire, tuple(writing.losses))


def _grouped(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Messages that are one of theirs, together."""
    group: list[Message] = []
    for message in messages:
        if group and not _is_joined(message):
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _is_joined(message: Message) -> bool:
    """Whether it is part of the message before it; not if there is more to say about it than its parts."""
    return (
        notes_on(message, NAME).get("joined") is True and carried(message, NAME, _said(message), has_id=False) is None
    )


def _natural_span(messages: Sequence[Message], writing: _Writing) -> _Wire:
    """The attributes that hold messages, as they held them."""
    span: _Wire = {}
    forms: dict[str, str] = {}
    attribute = INPUT
    for group in _grouped(messages):
        attribute, form = notes_on(group[0], NAME).get("attribute", (attribute, None))
        if not attribute:
            attribute = INPUT
            continue
        forms.setdefault(attribute, form or "list")
        item = _written_item(group, writing)
        if attribute == INSTRUCTIONS and set(item) == {"role", "parts"} and form is not None:
            span[attribute] = item["parts"]
            continue
        attribute = INPUT if attribute == INSTRUCTIONS else attribute
        span.setdefault(attribute, []).append(item)
    return {name: _json_text(value) if forms.get(name) == "text" else value for name, value in span.items()}


def _written_item(group: Sequence[Message], writing: _Writing) -> _Wire:
    made: _Wire = restored(_natural_item(group, writing), notes_on(group[0], NAME))
    return made


def _natural_item(group: Sequence[Message], writing: _Writing) -> _Wire:
    """What we would write for a message of theirs, of which the first of ours says whose it is."""
    first = group[0]
    parts = [_written_part(block, writing.ids) for message in group for block in _sayable(message, writing)]
    item: _Wire = {"role": first.role.value, "parts": parts}
    if first.metadata.status is MessageStatus.ERROR:
        item["finish_reason"] = "error"
    ride = dict(carried(first, NAME, _said(first), has_id=False) or {})
    if len(group) == 1 and [speaker for speaker, _ in _runs(first.role, first.content)] != [first.role]:
        ride[_WHOLE] = True
    return {**item, KEY: ride} if ride else item


def _said(message: Message) -> list[str]:
    """Metadata that stands in the format's own words, or in the attributes beside the messages."""
    said = ["status"] if message.metadata.status is MessageStatus.ERROR else []
    if notes_on(message, NAME).get("told") == _print_of(message):
        said.extend(("model", "provider", "usage"))
    return said


def _sayable(message: Message, writing: _Writing) -> Iterator[ContentBlock]:
    for block in writing.sayable(message, message.content, lambda block: _cannot_say(block, message.role)):
        if isinstance(block, ToolResultBlock):
            yield block.replace(content=writing.sayable(message, block.content, _cannot_show))
        else:
            yield block


def _cannot_say(block: ContentBlock, role: Role) -> str | None:
    match block:
        case TextBlock() | ThinkingBlock() | RedactedThinkingBlock() | ToolUseBlock() | InvalidToolUseBlock():
            return None
        case ToolResultBlock():
            return None
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock() if role is Role.ASSISTANT:
            return "what a model made is opaque here"
        case _:
            return _cannot_show(block)


def _cannot_show(block: ContentBlock) -> str | None:
    match block:
        case TextBlock():
            return None
        case ImageBlock(source) | DocumentBlock(source) | AudioBlock(source) | VideoBlock(source):
            return "a file of the workspace, which nobody else can read" if source.kind == "file_ref" else None
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else f"a block that only {dialect} understands"
        case _:
            return "this format has no such part"


def _written_part(block: ContentBlock, ids: dict[str, str]) -> _Wire:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: _Wire = restored(_natural_part(block, notes, ids), notes)
    return made


def _natural_part(block: ContentBlock, notes: dict[str, Any], ids: dict[str, str]) -> _Wire:
    """What we would write if nobody had noted more than its form and its id."""
    match block:
        case TextBlock(text):
            return {"type": "text", "content": text}
        case ThinkingBlock(text, signature):
            part = {"type": notes.get("form") or "reasoning", "content": text}
            return part if signature is None else {**part, KEY: {"signature": signature}}
        case RedactedThinkingBlock(data):
            return {"type": notes.get("form") or "reasoning", "content": "", KEY: {"redacted": data}}
        case ToolUseBlock(call_id, name, value):
            called = {"type": "tool_call", "id": notes.get("id", call_id), "name": name}
            return called | _natural_arguments(value, notes.get("form"))
        case InvalidToolUseBlock(call_id, name):
            return {"type": "tool_call", "id": notes.get("id", call_id), "name": name} | _unusable_arguments(
                block, notes
            )
        case ToolResultBlock(tool_use_id):
            wire_id = notes.get("id", ids.get(tool_use_id, tool_use_id))
            return {"type": "tool_call_response", "id": wire_id} | _natural_response(block, notes, ids)
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
            return _natural_medium(block, notes.get("form"))
        case _:
            raise TypeError(f"{type(block).__name__} is no part")


def _natural_arguments(value: dict[str, Any], form: str | None) -> _Wire:
    if not value and form in ("absent", "null"):
        return {"arguments": None} if form == "null" else {}
    return {"arguments": _json_text(value) if form == "text" else value}


def _unusable_arguments(block: InvalidToolUseBlock, notes: dict[str, Any]) -> _Wire:
    """Input that is none; where reading would not find out why, the reason stands beside it."""
    if notes.get("form") == "json":
        try:
            return {"arguments": read_json(block.input_text, OWN)}
        except JsonError:
            pass
    told = {"arguments": block.input_text}
    return told if read_arguments(block.input_text)[1] == block.reason else {**told, KEY: {"reason": block.reason}}


def _natural_response(result: ToolResultBlock, notes: dict[str, Any], ids: dict[str, str]) -> _Wire:
    key, form = notes.get("key") or "response", notes.get("form")
    failed: _Wire = {KEY: {"is_error": True}} if result.is_error else {}
    if not result.content and form in ("absent", "null"):
        return failed if form == "absent" else {key: None, **failed}
    if len(result.content) == 1 and isinstance(result.content[0], TextBlock) and form != "list":
        text = result.content[0].text
        return {key: _parsed(text) if form == "json" else text, **failed}
    return {key: [_written_part(block, ids) for block in result.content], **failed}


def _parsed(text: str) -> Any:
    try:
        return read_json(text, OWN)
    except JsonError:
        return text


def _natural_medium(block: _Medium, form: str | None) -> _Wire:
    modality, source = _MODALITIES[type(block)], block.source
    if form in _ADDRESSES and source.kind == "url" and block.media_type == _UNKNOWN_TYPES[modality]:
        return {"type": form, "url": source.data}
    if form == "binary" and source.kind == "base64":
        return {"type": form, "media_type": block.media_type, "content": source.data}
    known = None if block.media_type == _UNKNOWN_TYPES[modality] else block.media_type
    about = {"mime_type": known, "modality": modality}
    held = {"content": source.data} if source.kind == "base64" else {"uri": source.data}
    name = getattr(block, "name", None)
    ours = {} if name is None else {KEY: {"name": name}}
    return {"type": "blob" if source.kind == "base64" else "uri", **about, **held, **ours}


__all__ = ["NAME", "looks_like", "read_messages", "write_messages"]
