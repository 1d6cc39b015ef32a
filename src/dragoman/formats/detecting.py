"""Which format a conversation is in, told from the first few of them.

    detect(values, by_document=…) -> Detected(format, by_message, why)
    layout_of(format, value) -> bool                   whether a value is one message, not a conversation

Formats that have marks of their own are recognised by those. Dialects are tried: the one that leaves least over of what
it reads has understood most. Where several understand all of it, and understand the same, it does not matter which one
is meant. Where that does matter, nothing is guessed. JSON in which no format finds a role or content of its own is
refused: most dialects read objects that they do not know, too, and keep them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from dragoman import dialects, entries, transcripts
from dragoman.envelope import SCHEMA
from dragoman.envelope import TYPES as ENVELOPE_TYPES
from dragoman.errors import DragomanError, InputError
from dragoman.exchange import OpaqueTool, Request, ToolDefinition
from dragoman.formats.reading import Piece, read
from dragoman.formats.registry import CANONICAL, ENTRIES, ENVELOPES, dialect, list_key, readable, transcript
from dragoman.message import ContentBlock, Message, OpaqueBlock, ToolResultBlock

_CANONICAL_KEYS: Final = {"id", "session_id", "role", "content", "metadata", "created_at"}
_MESSAGE_KEYS: Final = {"role", "content", "parts", "type"}
_FIRST: Final = "openai_chat"  # named, of several that understand the same
_NO_EVIDENCE: Final = "no message has a role, or content that it knows"
_NEAREST: Final = 3  # dialects named in an error
_LITTLE: Final = 60  # characters that one leaves over and another does not, where both understand the same words
_FAMILIES: Final = {"claude": "anthropic", "command": "cohere"}  # unless the model's name says another


class Detected(msgspec.Struct, frozen=True):
    """A format, whether each line is a message of one conversation, and how that was found out."""

    format: str
    by_message: bool
    why: str


class _Candidate(msgspec.Struct, frozen=True):
    format: str
    by_message: bool
    left_over: int
    messages: tuple[Message, ...]
    model: str | None

    @property
    def is_family(self) -> bool:
        """Whether the model is one of those that are spoken to in this dialect at home."""
        return any(word in (self.model or "") and self.format == name for word, name in _FAMILIES.items())


def detect(values: Sequence[Any]) -> Detected:
    """The format of values that are conversations, or the messages of one. ``InputError`` if it cannot be told."""
    marked = tuple(_marked(values[0]))
    if len(marked) == 1 and marked[0].format in (CANONICAL, ENVELOPES, ENTRIES):
        return marked[0]
    tried, refused = _tried(values)
    if len(marked) == 1 and (not tried or tried[0].left_over):
        return marked[0]
    if not marked and tried:
        return _best(values, tried)
    if not marked:
        nearest = "; ".join(f"{name}: {why}" for name, why in refused[:_NEAREST])
        raise InputError(
            f"it is no conversation of a known format ({nearest})" if nearest else "it is no conversation",
            remedy=f"Say which format it is with --from: {', '.join(readable())}",
            code="unknown_format",
        )
    return _agreeing(values, marked, tried)


def layout_of(name: str, value: Any) -> bool:
    """Whether a value of a format is one message, and not a whole conversation."""
    if not isinstance(value, dict):
        return False
    if dialect(name) is not None:
        return list_key(name) not in value and not isinstance(value.get("request"), dict) and "role" in value
    if (module := transcript(name)) is not None:
        return not module.looks_like(value) and bool(module.looks_like([value]))
    return True


# --- marks -----------------------------------------------------------------------------------------------------------


def _marked(value: Any) -> Iterator[Detected]:
    """Formats whose marks a value has."""
    item = value[0] if isinstance(value, list) and value else value
    by_message = isinstance(value, dict)
    if isinstance(item, dict):
        if item.keys() >= _CANONICAL_KEYS:
            yield Detected(CANONICAL, by_message, "a message has an id, a session_id, metadata and created_at")
            return
        if _is_envelope(item):
            yield Detected(ENVELOPES, by_message, f"a message says {SCHEMA}, or has the type of an envelope")
            return
        if _is_entry(item):
            yield Detected(ENTRIES, by_message, f"an entry has the type {item['type']}")
            return
    for name, module in transcripts.FORMATS.items():
        if module.looks_like(value):
            yield Detected(name, False, f"it looks like {name}")
        elif by_message and module.looks_like([value]):
            yield Detected(name, True, f"a line looks like a message of {name}")


def _is_envelope(item: dict[str, Any]) -> bool:
    if item.get("schema") == SCHEMA:
        return True
    metadata = item.get("metadata")
    kind = metadata.get("type") if isinstance(metadata, dict) else None
    if "role" in item and "content" in item and kind in ENVELOPE_TYPES:
        return True
    return item.get("version") == 1 and item.get("type") in ENVELOPE_TYPES and ("payload" in item or "data" in item)


def _is_entry(item: dict[str, Any]) -> bool:
    return isinstance(item.get("type"), str) and item["type"] in entries.TYPES and not entries.problems(item)


# --- trying ----------------------------------------------------------------------------------------------------------


def _tried(values: Sequence[Any]) -> tuple[list[_Candidate], list[tuple[str, str]]]:
    """The dialects that can read all of it, the one that leaves least over first; and why the nearest others do not."""
    found: list[_Candidate] = []
    refused: list[tuple[str, str]] = []
    for name in dialects.names():
        match _candidate(name, values):
            case _Candidate() as candidate:
                found.append(candidate)
            case str(why) if _is_near(name, values[0]):
                refused.append((name, why))
    found.sort(key=lambda one: (one.left_over, not one.is_family, one.format != _FIRST))
    refused.sort(key=lambda one: one[1] != _NO_EVIDENCE)  # the nearest first: what could be read
    return found, refused


def _is_near(name: str, value: Any) -> bool:
    """Whether a value at least has its messages where the dialect has them."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict) and (list_key(name) in value or layout_of(name, value))


def _candidate(name: str, values: Sequence[Any]) -> _Candidate | str:
    """What the dialect makes of it, or why it is none of its conversations."""
    by_message = layout_of(name, values[0])
    listed = values[0] if by_message else values[0][0] if isinstance(values[0], list) and values[0] else None
    if listed is not None and not (isinstance(listed, dict) and _MESSAGE_KEYS & listed.keys()):
        return f"a message has one of {', '.join(sorted(_MESSAGE_KEYS))}"
    pieces = [Piece(number, msgspec.json.encode(value)) for number, value in enumerate(values)]
    groups = [pieces] if by_message else [[piece] for piece in pieces]
    left_over = 0
    messages: list[Message] = []
    for group in groups:
        try:
            request = read(name, group, "", by_message=by_message)
        except DragomanError as error:
            return str(error)
        if not request.messages:
            return "there is no message"
        left_over += _left_over(request)
        messages.extend(request.messages)
    is_known = any(_is_understood(block) for message in messages for block in message.content)
    if not is_known and not all(_has_role(name, value) for value in values):
        return _NO_EVIDENCE
    return _Candidate(name, by_message, left_over, tuple(messages), request.model)


def _is_understood(block: ContentBlock) -> bool:
    """Whether a block is evidence of its dialect: any other JSON object is read, too, and kept as an opaque one."""
    return not isinstance(block, OpaqueBlock)


def _has_role(name: str, value: Any) -> bool:
    """Whether every message of a conversation, or the message itself, says whose it is."""
    if isinstance(value, dict):
        inner = value.get("request")
        inner = inner if isinstance(inner, dict) else value
        value = inner.get(list_key(name), [inner])
    return isinstance(value, list) and all(isinstance(one, dict) and "role" in one for one in value)


def _left_over(request: Request) -> int:
    """How many characters of it a dialect did not understand, as JSON."""
    told = [request.provider_raw, *(message.metadata.provider_raw for message in request.messages)]
    told += [getattr(block, "provider_raw", None) for message in request.messages for block in _blocks(message.content)]
    told += [tool.provider_raw for tool in request.tools if isinstance(tool, ToolDefinition)]
    left = [raw["residue"] for raw in told if raw and "residue" in raw]
    left += [block.wire for one in request.messages for block in _blocks(one.content) if isinstance(block, OpaqueBlock)]
    left += [tool.wire for tool in request.tools if isinstance(tool, OpaqueTool)]
    return sum(len(msgspec.json.encode(part)) for part in left)


def _blocks(content: Sequence[ContentBlock]) -> Iterator[ContentBlock]:
    for block in content:
        yield block
        if isinstance(block, ToolResultBlock):
            yield from block.content


def _best(values: Sequence[Any], tried: list[_Candidate]) -> Detected:
    least = tried[0].left_over
    alike = [
        one for one in tried if one.left_over <= least + _LITTLE and _said(one.messages) == _said(tried[0].messages)
    ]
    first = min(alike, key=lambda one: (not one.is_family, one.format != _FIRST, one.left_over))
    if first.is_family:
        return Detected(
            first.format, first.by_message, f"{first.format} understands it, and its model is {first.model}"
        )
    if len(alike) > 1:
        others = " and ".join(one.format for one in alike)
        return Detected(first.format, first.by_message, f"{others} read it alike")
    best = [one for one in tried if one.left_over == least]
    return Detected(first.format, first.by_message, _why(tried)) if len(best) == 1 else _agreeing(values, (), best)


def _why(tried: list[_Candidate]) -> str:
    first, *others = tried
    if not others:
        return f"only {first.format} reads it"
    told = "understands all of it" if not first.left_over else f"leaves {first.left_over} characters over"
    return f"{first.format} {told}, {others[0].format} leaves {others[0].left_over} over"


def _agreeing(values: Sequence[Any], marked: tuple[Detected, ...], tried: list[_Candidate]) -> Detected:
    """One of several candidates, if all of them understand the same."""
    least = [one for one in tried if one.left_over == tried[0].left_over] if tried else []
    known = [(one.format, one.by_message, one.messages) for one in least]
    known += [(one.format, one.by_message, _messages(one, values)) for one in marked]
    names = [name for name, _, _ in known]
    first = known[0]
    if all(_said(messages) == _said(first[2]) for _, _, messages in known[1:]):
        return Detected(first[0], first[1], f"{' and '.join(names)} read it alike")
    raise InputError(f"it may be {' or '.join(names)}", remedy="Say which it is with --from", code="ambiguous_format")


def _messages(found: Detected, values: Sequence[Any]) -> tuple[Message, ...]:
    pieces = [Piece(number, msgspec.json.encode(value)) for number, value in enumerate(values)]
    try:
        if found.by_message:
            return read(found.format, pieces, "", by_message=True).messages
        return tuple(one for piece in pieces for one in read(found.format, [piece], "", by_message=False).messages)
    except DragomanError:
        return ()


def _said(messages: tuple[Message, ...]) -> list[Any]:
    return [(message.role, message.content) for message in messages]
