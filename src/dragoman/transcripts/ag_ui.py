"""AG-UI: the list of messages that a front end and an agent hand each other, of protocol 1.0 and of those before it.

A message of theirs says words, or one answer, or one thought; what an assistant of ours says in one message may take
several of theirs. These stand one after another, and all but the main one name it as ``part_of`` under our key. A
thought and what is said after it are read as one message, also if nobody marked them. Activities, which are for
people's eyes, are opaque. Published as ``ag-ui-protocol`` on PyPI and ``@ag-ui/core`` on npm (1.0, September 2026).

The one rule: a thought never becomes words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.body import a_list, an_object
from dragoman.dialects.parts.functions import read_arguments
from dragoman.errors import FormatError
from dragoman.exchange import Written
from dragoman.message import (
    AudioBlock,
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
    UnknownBlock,
    VideoBlock,
)
from dragoman.transcripts.parts import (
    KEY,
    KNOWN_ROLES,
    Losing,
    Reading,
    carried,
    noted,
    notes_of,
    notes_on,
    read_all,
    restored,
    settled,
    wire_id_of,
    wire_ids,
    with_notes,
)

NAME: Final = "ag_ui"
_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "reasoning": Role.ASSISTANT,
    "activity": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "tool": Role.TOOL,
}
_OURS: Final = "dragoman"  # who provides a file that is one of ours
_MARKS: Final = (
    "part_of",
    "redacted",
    "empty",
    "blank",
)  # what is said under our key about a piece and not about a message
_Medium = ImageBlock | AudioBlock | VideoBlock | DocumentBlock
_MEDIA: Final[dict[str, type[_Medium]]] = {
    "image": ImageBlock,
    "audio": AudioBlock,
    "video": VideoBlock,
    "document": DocumentBlock,
}
_UNKNOWN_TYPES: Final = {
    "image": "image/*",
    "audio": "audio/*",
    "video": "video/*",
    "document": "application/octet-stream",
}
_Call = ToolUseBlock | InvalidToolUseBlock
_Thought = ThinkingBlock | RedactedThinkingBlock


# --- reading ---------------------------------------------------------------------------------------------------------


def looks_like(wire: Any) -> bool:
    """Whether a value may be a list of AG-UI messages: they have a role and an id, and neither type nor parts."""
    return isinstance(wire, list) and bool(wire) and all(isinstance(item, dict) and _is_shaped(item) for item in wire)


def _is_shaped(item: dict[str, Any]) -> bool:
    named = isinstance(item.get("id"), str) and isinstance(item.get("role"), str)
    return named and item["role"] in _ROLES and not item.keys() & {"type", "parts", "data", "kind", "tool_calls"}


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[Message, ...]:
    """The messages of an AG-UI list."""
    return read_all(wire, _read_list, Reading(NAME, session_id, created_at))


def _read_list(value: Any, reading: Reading) -> None:
    group: list[tuple[str, dict[str, Any]]] = []
    for index, item in enumerate(a_list(value, "$")):
        where = f"$[{index}]"
        _check_message(an_object(item, where), where)
        if group and not _belong_together(group[-1][1], item):
            _read_group(group, reading)
            group = []
        group.append((where, item))
    if group:
        _read_group(group, reading)


def _check_message(item: dict[str, Any], where: str) -> None:
    if not isinstance(item.get("role"), str) or item["role"] not in _ROLES:
        raise FormatError(f"a role is one of {', '.join(_ROLES)}, not {item.get('role')!r}", where=f"{where}.role")
    if not isinstance(item.get("id"), str):
        raise FormatError("a message has an id", where=f"{where}.id")


def _ours(item: dict[str, Any]) -> dict[str, Any] | None:
    """What stands under our key, if it is an object."""
    metadata = item.get("metadata")
    found = metadata.get(KEY) if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else None


def _belong_together(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two pieces are of one message: they say so, or nobody says anything and a thought leads to words."""
    if _ROLES[before["role"]] is not _ROLES[after["role"]]:
        return False
    first, second = _ours(before), _ours(after)
    if first is None and second is None:
        says = after.get("content") is not None or bool(after.get("toolCalls"))
        return before["role"] == "reasoning" and after["role"] in ("assistant", "reasoning") and says
    parts = [(ours or {}).get("part_of", item["id"]) for ours, item in ((first, before), (second, after))]
    return bool(parts[0] == parts[1])


def _main(roles: Iterable[str]) -> int:
    """Which piece has the id of the whole: the first that is no thought, if there is one."""
    return next((index for index, role in enumerate(roles) if role != "reasoning"), 0)


def _read_group(group: list[tuple[str, dict[str, Any]]], reading: Reading) -> None:
    reading.place = group[0][0]
    at = _main(item["role"] for _, item in group)
    main = group[at][1]
    ours = _ours(main)
    told = None if ours is None else {key: value for key, value in ours.items() if key not in _MARKS}
    pieces = [_read_piece(item, where, reading) for where, item in group]
    message = reading.made(
        _ROLES[main["role"]], [block for piece in pieces for block in piece], wire_id=main["id"], carried=told
    )
    form = _form_of(main)
    if form is not None:
        message = with_notes(message, {"dialect": NAME, **notes_on(message, NAME), "form": form})
    made: list[ContentBlock] = []
    for index, (_, item) in enumerate(group):
        if index == at:
            made.extend(pieces[index])
        else:
            made.extend(_with_piece_notes(message, pieces[index], index, item))
    message = settled(message.replace(content=tuple(made)), _natural(message, tuple(pieces[at])), main, NAME)
    reading.messages.append(message)


def _form_of(item: dict[str, Any]) -> str | None:
    """A word for what is not as we would write it."""
    if item["role"] == "developer":
        return "developer"
    content = item.get("content")
    return "list" if isinstance(content, list) and [_type_of(part) for part in content] == ["text"] else None


def _type_of(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _with_piece_notes(
    message: Message, blocks: list[ContentBlock], index: int, item: dict[str, Any]
) -> Iterator[ContentBlock]:
    """The blocks of a piece that is not the main one; the first of them keeps what is left over of it."""
    notes: dict[str, Any] = {"joined": True} if _ours(item) is None else {}
    if item["id"] != f"{wire_id_of(message)}.{index}":
        notes["id"] = item["id"]
    kept = noted(NAME, _natural_piece(message, tuple(blocks), index, notes), item, **notes)
    for place, block in enumerate(blocks):
        if place or kept is None or isinstance(block, UnknownBlock):
            yield block
        else:
            piece = {key: note for key, note in kept.items() if key != "dialect"}
            raw = {"dialect": NAME, **notes_of(block.provider_raw, NAME), "piece": piece}
            yield block.replace(provider_raw=raw)


def _read_piece(item: dict[str, Any], where: str, reading: Reading) -> list[ContentBlock]:
    content = item.get("content")
    match item["role"]:
        case "activity":
            return [OpaqueBlock(NAME, item)]
        case "reasoning":
            return [_read_thought(item, _text(content, where))]
        case "system" | "developer":
            text = _text(content, where)
            return [] if not text and (_ours(item) or {}).get("empty") is True else [TextBlock(text)]
        case "tool":
            return [_read_result(item, where, reading)]
        case "user":
            return _read_content(content, where)
        case _:
            calls = a_list(item.get("toolCalls") or [], f"{where}.toolCalls")
            return [
                *_read_words(item, where, beside_calls=bool(calls)),
                *(_read_call(call, f"{where}.toolCalls[{at}]", reading) for at, call in enumerate(calls)),
            ]


def _read_words(item: dict[str, Any], where: str, *, beside_calls: bool) -> list[ContentBlock]:
    """What an assistant says. An empty text beside calls stands there only because a client thought that it had to."""
    content = item.get("content")
    if content is None or (content == "" and beside_calls and (_ours(item) or {}).get("blank") is not True):
        return []
    return [TextBlock(_text(content, where))]


def _text(content: Any, where: str) -> str:
    if not isinstance(content, str):
        raise FormatError(f"a text belongs here, not {type(content).__name__}", where=f"{where}.content")
    return content


def _read_thought(item: dict[str, Any], text: str) -> _Thought:
    sealed = item.get("encryptedValue")
    if (_ours(item) or {}).get("redacted") is True and isinstance(sealed, str):
        return RedactedThinkingBlock(sealed)
    return ThinkingBlock(text, sealed if isinstance(sealed, str) else None)


def _read_content(content: Any, where: str) -> list[ContentBlock]:
    if isinstance(content, str):
        return [TextBlock(content)]
    parts = a_list(content, f"{where}.content")
    return [_read_part(an_object(part, f"{where}.content[{at}]")) for at, part in enumerate(parts)]


def _read_part(part: dict[str, Any]) -> ContentBlock:
    block = _known_part(part)
    if block is None:
        return OpaqueBlock(NAME, part)
    form = "binary" if part["type"] == "binary" else None
    return block.replace(provider_raw=noted(NAME, _natural_part(block, form), part, form=form))


def _known_part(part: dict[str, Any]) -> TextBlock | _Medium | None:
    metadata = part.get("metadata")
    named = metadata.get("filename") if isinstance(metadata, dict) else None
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "image" | "audio" | "video" | "document" as kind, "source": dict(place)}:
            source = _read_source(place)
            stated = place.get("mimeType")
            return None if source is None else _medium(kind, source, stated, named)
        case {"type": "binary", "mimeType": str(media_type), "data": str(data)}:
            return _medium(_kind(media_type), ImageSource("base64", data), media_type, part.get("filename"))
        case {"type": "binary", "mimeType": str(media_type), "url": str(url)}:
            return _medium(_kind(media_type), ImageSource("url", url), media_type, part.get("filename"))
        case _:
            return None


def _read_source(place: dict[str, Any]) -> ImageSource | None:
    match place:
        case {"type": "data", "value": str(data)}:
            return ImageSource("base64", data)
        case {"type": "url", "value": str(url)}:
            return ImageSource("url", url)
        case {"type": "file", "value": str(path), "provider": "dragoman"}:
            return ImageSource("file_ref", path)
        case _:
            return None  # a file that only its provider can read


def _kind(media_type: str) -> str:
    """The kind of a retired ``binary`` part, as the protocol's own clients tell it."""
    first = media_type.partition("/")[0]
    return first if first in ("image", "audio", "video") else "document"


def _medium(kind: str, source: ImageSource, stated: Any, name: Any) -> _Medium:
    media_type = stated if isinstance(stated, str) else _UNKNOWN_TYPES[kind]
    if kind == "document":
        return DocumentBlock(source, media_type, name if isinstance(name, str) else None)
    return _MEDIA[kind](source, media_type)


def _read_call(value: Any, where: str, reading: Reading) -> _Call:
    call = an_object(value, where)
    function = an_object(call.get("function"), f"{where}.function")
    wire_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    for key, found in (("id", wire_id), ("function.name", name), ("function.arguments", arguments)):
        if not isinstance(found, str):
            raise FormatError(f"a text belongs here, not {type(found).__name__}", where=f"{where}.{key}")
    assert isinstance(wire_id, str)
    assert isinstance(name, str)
    assert isinstance(arguments, str)
    our_id = reading.call_id(wire_id)
    value, problem = read_arguments(arguments)
    stated = (_ours(call) or {}).get("invalid")
    problem = stated if isinstance(stated, str) else problem
    block: _Call = ToolUseBlock(our_id, name, value)
    if problem is not None:
        block = InvalidToolUseBlock(our_id, name, arguments, problem)
    note = wire_id if wire_id != our_id else None
    return block.replace(provider_raw=noted(NAME, _natural_call(block, note), call, id=note))


def _read_result(item: dict[str, Any], where: str, reading: Reading) -> ToolResultBlock:
    wire_id = item.get("toolCallId")
    if not isinstance(wire_id, str):
        raise FormatError("a result has the id of its call", where=f"{where}.toolCallId")
    our_id = reading.answered_id(wire_id)
    raw: ProviderRaw | None = {"dialect": NAME, "id": wire_id} if wire_id != our_id else None
    content = _read_content(item.get("content"), where)
    return ToolResultBlock(our_id, tuple(content), item.get("error") is not None, raw)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_messages(messages: Iterable[Message]) -> Written:
    """The messages as a list of AG-UI, and what it cannot say."""
    history, losing = tuple(messages), Losing(NAME)
    theirs = wire_ids(history, NAME)
    wires: list[dict[str, Any]] = []
    for message in history:
        made = _written(message, losing, theirs)
        if wires and made and _would_be_joined(wires[-1], made[0]):
            made[0] = _with_key(made[0], {})  # else it would be read as one message with the thought before it
        wires.extend(made)
    return Written(wires, tuple(losing.losses))


def _would_be_joined(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return _ours(before) is None and _ours(after) is None and _belong_together(before, after)


def _written(message: Message, losing: Losing, theirs: dict[str, str]) -> list[dict[str, Any]]:
    if message.role not in KNOWN_ROLES:
        losing.lose(message, "message", f"there is no role {message.role} here")
        return []
    kept = losing.sayable(message, message.content, lambda block: _cannot_say(block, message.role))
    if message.role is Role.TOOL:
        kept = tuple(_sayable_result(block, message, losing, theirs) for block in kept)
    if message.role is Role.TOOL and not kept:
        losing.lose(message, "message", "a tool's message without a result")
        return []
    said = message.replace(content=kept)
    pieces = _pieces(said)
    at = _main(_role_of(said.role, piece) for piece in pieces)
    return [
        _written_main(said, piece) if index == at else _written_piece(said, piece, index)
        for index, piece in enumerate(pieces)
    ]


def _sayable_result(block: ContentBlock, message: Message, losing: Losing, theirs: dict[str, str]) -> ContentBlock:
    assert isinstance(block, ToolResultBlock)
    content = losing.sayable(message, block.content, lambda inner: _cannot_say(inner, Role.USER))
    notes = notes_of(block.provider_raw, NAME)
    if "id" not in notes and block.tool_use_id in theirs:
        notes = {"dialect": NAME, **notes, "id": theirs[block.tool_use_id]}
    return block.replace(content=content, provider_raw=notes or None)


def _cannot_say(block: ContentBlock, role: Role) -> str | None:
    """Why a message of a role cannot carry a block here; ``None`` if it can."""
    match block:
        case TextBlock() if role is not Role.TOOL:
            return None
        case ToolUseBlock() | InvalidToolUseBlock() | ThinkingBlock() | RedactedThinkingBlock():
            return None if role is Role.ASSISTANT else f"a message of the {role} does not hold it here"
        case ToolResultBlock():
            return None if role is Role.TOOL else f"a message of the {role} does not hold it here"
        case ImageBlock() | AudioBlock() | VideoBlock() | DocumentBlock():
            return None if role is Role.USER else f"a message of the {role} holds words only here"
        case OpaqueBlock(dialect=dialect, wire=wire):
            if dialect != NAME:
                return f"a block that only {dialect} understands"
            fits = wire.get("role") == "activity" if role is Role.ASSISTANT else role is Role.USER
            return None if fits else f"a message of the {role} does not hold it here"
        case _:
            return "a block that this version does not know" if not isinstance(block, TextBlock) else "not a result"


def _pieces(message: Message) -> list[tuple[ContentBlock, ...]]:
    """The blocks that go into each message of theirs."""
    blocks = message.content
    if message.role is Role.USER or not blocks:
        return [blocks]
    if message.role is not Role.ASSISTANT:
        return [(block,) for block in blocks]
    pieces: list[list[ContentBlock]] = []
    for block in blocks:
        if pieces and isinstance(block, _Call) and isinstance(pieces[-1][-1], _Call | TextBlock) and not _leads(block):
            pieces[-1].append(block)
        else:
            pieces.append([block])
    return [tuple(piece) for piece in pieces]


def _leads(block: ContentBlock) -> bool:
    """Whether a block was the first of a piece that is not the main one."""
    return "piece" in notes_of(getattr(block, "provider_raw", None), NAME)


def _role_of(role: Role, blocks: tuple[ContentBlock, ...]) -> str:
    first = blocks[0] if blocks else None
    if isinstance(first, _Thought):
        return "reasoning"
    return "activity" if isinstance(first, OpaqueBlock) and role is Role.ASSISTANT else str(role)


def _written_main(message: Message, blocks: tuple[ContentBlock, ...]) -> dict[str, Any]:
    made: dict[str, Any] = restored(_natural(message, blocks), notes_on(message, NAME))
    return made


def _natural(message: Message, blocks: tuple[ContentBlock, ...]) -> dict[str, Any]:
    """What we would write for the main piece if nobody had noted anything about it."""
    form = notes_on(message, NAME).get("form")
    made = _natural_said(message.role, wire_id_of(message), blocks, form)
    told = carried(message, NAME)
    marks = _marks(message.role, blocks)
    return made if told is None and not marks else _with_key(made, {**marks, **(told or {})})


def _written_piece(message: Message, blocks: tuple[ContentBlock, ...], index: int) -> dict[str, Any]:
    notes = notes_of(getattr(blocks[0], "provider_raw", None), NAME).get("piece", {})
    made: dict[str, Any] = restored(_natural_piece(message, blocks, index, notes), notes)
    return made


def _natural_piece(
    message: Message, blocks: tuple[ContentBlock, ...], index: int, notes: dict[str, Any]
) -> dict[str, Any]:
    """What we would write for another piece if nobody had noted anything but its id."""
    whole = wire_id_of(message)
    made = _natural_said(message.role, notes.get("id") or f"{whole}.{index}", blocks, None)
    marks = _marks(message.role, blocks)
    if notes.get("joined"):
        return _with_key(made, marks) if marks else made
    return _with_key(made, {"part_of": whole, **marks})


def _marks(role: Role, blocks: tuple[ContentBlock, ...]) -> dict[str, Any]:
    if role is Role.SYSTEM and not blocks:
        return {"empty": True}
    match blocks:
        case (RedactedThinkingBlock(), *_):
            return {"redacted": True}
        case (TextBlock(""), _, *_) if role is Role.ASSISTANT:
            return {"blank": True}
        case _:
            return {}


def _with_key(wire: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    metadata = wire.get("metadata")
    return {**wire, "metadata": {**(metadata if isinstance(metadata, dict) else {}), KEY: ours}}


def _natural_said(role: Role, wire_id: str, blocks: tuple[ContentBlock, ...], form: str | None) -> dict[str, Any]:
    match role, blocks:
        case Role.ASSISTANT, (OpaqueBlock(wire=wire),):
            return wire
        case Role.ASSISTANT, (ThinkingBlock(text, signature),):
            sealed = {} if signature is None else {"encryptedValue": signature}
            return {"id": wire_id, "role": "reasoning", "content": text, **sealed}
        case Role.ASSISTANT, (RedactedThinkingBlock(data),):
            return {"id": wire_id, "role": "reasoning", "content": "", "encryptedValue": data}
        case Role.ASSISTANT, _:
            return {"id": wire_id, "role": "assistant", **_natural_words(blocks)}
        case Role.SYSTEM, _:
            text = blocks[0].text if blocks and isinstance(blocks[0], TextBlock) else ""
            return {"id": wire_id, "role": "developer" if form == "developer" else "system", "content": text}
        case Role.TOOL, (ToolResultBlock() as result,):
            return {"id": wire_id, "role": "tool", **_natural_result(result, form)}
        case _:
            return {"id": wire_id, "role": "user", "content": _natural_content(blocks, form)}


def _natural_words(blocks: tuple[ContentBlock, ...]) -> dict[str, Any]:
    made: dict[str, Any] = {"content": blocks[0].text} if blocks and isinstance(blocks[0], TextBlock) else {}
    calls = [_written_call(block) for block in blocks if isinstance(block, _Call)]
    return {**made, "toolCalls": calls} if calls else made


def _natural_result(result: ToolResultBlock, form: str | None) -> dict[str, Any]:
    wire_id = notes_of(result.provider_raw, NAME).get("id", result.tool_use_id)
    made = {"content": _natural_content(result.content, form), "toolCallId": wire_id}
    if result.is_error:
        texts = [block.text for block in result.content if isinstance(block, TextBlock)]
        made["error"] = "\n".join(texts) or "it failed"
    return made


def _natural_content(blocks: tuple[ContentBlock, ...], form: str | None) -> Any:
    """A text alone is a string, unless it was a list or something was noted about the text."""
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock) and form != "list":
        return blocks[0].text
    return [_written_part(block) for block in blocks]


def _written_part(block: ContentBlock) -> dict[str, Any]:
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: dict[str, Any] = restored(_natural_part(block, notes.get("form")), notes)
    return made


def _natural_part(block: ContentBlock, form: str | None) -> dict[str, Any]:
    match block:
        case TextBlock(text):
            return {"type": "text", "text": text}
        case OpaqueBlock(wire=wire):
            return wire
        case ImageBlock() | AudioBlock() | VideoBlock() | DocumentBlock():
            name = getattr(block, "name", None)
            if form == "binary":
                place = {"data" if block.source.kind == "base64" else "url": block.source.data}
                named = {} if name is None else {"filename": name}
                return {"type": "binary", "mimeType": block.media_type, **place, **named}
            named = {} if name is None else {"metadata": {"filename": name}}
            return {"type": block.type, "source": _natural_source(block), **named}
        case _:
            raise AssertionError(f"{block.type} is no part")


def _natural_source(block: _Medium) -> dict[str, Any]:
    source, media_type = block.source, block.media_type
    stated = {} if media_type == _UNKNOWN_TYPES[block.type] else {"mimeType": media_type}
    match source.kind:
        case "base64":
            return {"type": "data", "value": source.data, "mimeType": media_type}
        case "url":
            return {"type": "url", "value": source.data, **stated}
        case _:
            return {"type": "file", "value": source.data, "provider": _OURS, **stated}


def _written_call(block: _Call) -> dict[str, Any]:
    notes = notes_of(block.provider_raw, NAME)
    made: dict[str, Any] = restored(_natural_call(block, notes.get("id")), notes)
    return made


def _natural_call(block: _Call, wire_id: str | None) -> dict[str, Any]:
    if isinstance(block, ToolUseBlock):
        text, marks = msgspec.json.encode(block.input).decode(), {}
    else:
        text, marks = block.input_text, {"metadata": {KEY: {"invalid": block.reason}}}
    function = {"name": block.name, "arguments": text}
    return {"id": wire_id or block.id, "type": "function", "function": function, **marks}
