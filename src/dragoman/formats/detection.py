"""Detect the format of conversations from the first values of a file.

    detect(values) -> Detection(format, by_message, why)
    is_single_message(format, value) -> bool             whether a value is one message instead of a conversation

Formats with distinctive fields are detected by them. Dialects are tried: the one that leaves the least unread wins. If
several read everything, and read the same messages, any of them is correct. If they read different messages, detection
fails. JSON in which no format finds a role or known content is rejected, because most dialects accept unknown objects.
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
from dragoman.formats.reader import Fragment, read
from dragoman.formats.registry import (
    CANONICAL,
    ENTRIES,
    ENVELOPES,
    dialect,
    has_messages,
    list_key,
    readable,
    transcript,
)
from dragoman.message import ContentBlock, Message, OpaqueBlock, ToolResultBlock

_CANONICAL_KEYS: Final = {"id", "session_id", "role", "content", "metadata", "created_at"}
_MESSAGE_KEYS: Final = {"role", "content", "parts", "type"}
_PREFERRED: Final = "openai_chat"  # chosen among dialects that read the same
_NO_EVIDENCE: Final = "no message has a role or known content"
_MAX_NAMED: Final = 3  # dialects in an error text
_SIMILAR_CHARACTERS: Final = 60  # difference in unread characters that is ignored if both read the same messages
_FAMILIES: Final = {"claude": "anthropic", "command": "cohere"}  # model names and their dialects


class Detection(msgspec.Struct, frozen=True):
    """A format, whether each line is a message of one conversation, and the reason."""

    format: str
    by_message: bool
    why: str


class _Candidate(msgspec.Struct, frozen=True):
    format: str
    by_message: bool
    unread_size: int
    messages: tuple[Message, ...]
    model: str | None

    @property
    def is_family(self) -> bool:
        """Whether the model belongs to the provider of this dialect."""
        return any(word in (self.model or "") and self.format == name for word, name in _FAMILIES.items())


def detect(values: Sequence[Any]) -> Detection:
    """Return the format of conversations, or of the messages of one. Raises ``InputError`` if it cannot be detected."""
    by_marks = tuple(_detect_by_marks(values[0]))
    if len(by_marks) == 1 and by_marks[0].format in (CANONICAL, ENVELOPES, ENTRIES):
        return by_marks[0]
    candidates, rejected = _try_dialects(values)
    if len(by_marks) == 1 and (not candidates or candidates[0].unread_size):
        return by_marks[0]
    if not by_marks and candidates:
        return _choose_best(values, candidates)
    if not by_marks:
        nearest = "; ".join(f"{name}: {why}" for name, why in rejected[:_MAX_NAMED])
        raise InputError(
            f"not a conversation of a known format ({nearest})" if nearest else "not a conversation",
            remedy=f"Name the format with --from: {', '.join(readable())}",
            code="unknown_format",
        )
    return _choose_agreeing(values, by_marks, candidates)


def is_single_message(name: str, value: Any) -> bool:
    """Return whether a value is one message instead of a whole conversation."""
    if not isinstance(value, dict):
        return False
    if dialect(name) is not None:
        return not has_messages(name, value) and not isinstance(value.get("request"), dict) and "role" in value
    if (module := transcript(name)) is not None:
        return not module.looks_like(value) and bool(module.looks_like([value]))
    return True


# --- marks -----------------------------------------------------------------------------------------------------------


def _detect_by_marks(value: Any) -> Iterator[Detection]:
    """Yield the formats whose distinctive fields a value has."""
    item = value[0] if isinstance(value, list) and value else value
    by_message = isinstance(value, dict)
    if isinstance(item, dict):
        if item.keys() >= _CANONICAL_KEYS:
            yield Detection(CANONICAL, by_message, "a message has an id, a session_id, metadata and created_at")
            return
        if _is_envelope(item):
            yield Detection(ENVELOPES, by_message, f"a message has the schema {SCHEMA} or the type of an envelope")
            return
        if _is_entry(item):
            yield Detection(ENTRIES, by_message, f"an entry has the type {item['type']}")
            return
    for name, module in transcripts.FORMATS.items():
        if module.looks_like(value):
            yield Detection(name, False, f"it looks like {name}")
        elif by_message and module.looks_like([value]):
            yield Detection(name, True, f"a line looks like a message of {name}")


def _is_envelope(item: dict[str, Any]) -> bool:
    if item.get("schema") == SCHEMA:
        return True
    metadata = item.get("metadata")
    kind = metadata.get("type") if isinstance(metadata, dict) else None
    if "role" in item and "content" in item and kind in ENVELOPE_TYPES:
        return True
    return item.get("version") == 1 and item.get("type") in ENVELOPE_TYPES and ("payload" in item or "data" in item)


def _is_entry(item: dict[str, Any]) -> bool:
    return isinstance(item.get("type"), str) and item["type"] in entries.TYPES and not entries.find_problems(item)


# --- dialects --------------------------------------------------------------------------------------------------------


def _try_dialects(values: Sequence[Any]) -> tuple[list[_Candidate], list[tuple[str, str]]]:
    """Return the dialects that can read all values, the best first, and why the nearest others cannot."""
    candidates: list[_Candidate] = []
    rejected: list[tuple[str, str]] = []
    for name in dialects.names():
        looks_like = getattr(dialects.load(name), "looks_like", None)
        if looks_like is not None and not all(isinstance(value, dict) and looks_like(value) for value in values):
            continue
        match _try_dialect(name, values):
            case _Candidate() as candidate:
                candidates.append(candidate)
            case str(why) if _has_message_list(name, values[0]):
                rejected.append((name, why))
    candidates.sort(key=lambda choice: (choice.unread_size, not choice.is_family, choice.format != _PREFERRED))
    rejected.sort(key=lambda choice: choice[1] != _NO_EVIDENCE)  # the nearest first: readable values
    return candidates, rejected


def _has_message_list(name: str, value: Any) -> bool:
    """Return whether a value has its messages where the dialect has them."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict) and (has_messages(name, value) or is_single_message(name, value))


def _try_dialect(name: str, values: Sequence[Any]) -> _Candidate | str:
    """Return the result of reading with a dialect, or why it cannot read the values."""
    by_message = is_single_message(name, values[0])
    first_message = values[0] if by_message else values[0][0] if isinstance(values[0], list) and values[0] else None
    if first_message is not None and not (isinstance(first_message, dict) and _MESSAGE_KEYS & first_message.keys()):
        return f"a message needs one of {', '.join(sorted(_MESSAGE_KEYS))}"
    fragments = [Fragment(number, msgspec.json.encode(value)) for number, value in enumerate(values)]
    groups = [fragments] if by_message else [[fragment] for fragment in fragments]
    unread_size = 0
    messages: list[Message] = []
    for group in groups:
        try:
            request = read(name, group, "", by_message=by_message)
        except DragomanError as error:
            return str(error)
        if not request.messages:
            return "no messages"
        unread_size += _unread_size(request)
        messages.extend(request.messages)
    has_evidence = any(_is_evidence(block) for message in messages for block in message.content)
    has_evidence = has_evidence or hasattr(dialects.load(name), "looks_like")
    if not has_evidence and not all(_has_role(name, value) for value in values):
        return _NO_EVIDENCE
    return _Candidate(name, by_message, unread_size, tuple(messages), request.model)


def _is_evidence(block: ContentBlock) -> bool:
    """Return whether a block is evidence for its dialect; any unknown object is read as an opaque block."""
    return not isinstance(block, OpaqueBlock)


def _has_role(name: str, value: Any) -> bool:
    """Return whether every message of a conversation, or the message itself, has a role."""
    if isinstance(value, dict):
        inner = value.get("request")
        inner = inner if isinstance(inner, dict) else value
        value = inner.get(list_key(name), [inner])
    return isinstance(value, list) and all(isinstance(message, dict) and "role" in message for message in value)


def _unread_size(request: Request) -> int:
    """Return the size in characters of the JSON that a dialect did not understand."""
    all_notes = [request.provider_raw, *(message.metadata.provider_raw for message in request.messages)]
    all_notes += [
        getattr(block, "provider_raw", None) for message in request.messages for block in _blocks(message.content)
    ]
    all_notes += [tool.provider_raw for tool in request.tools if isinstance(tool, ToolDefinition)]
    unread = [raw[key] for raw in all_notes if raw for key in ("residue", "outer") if key in raw]
    unread += [
        block.wire for owner in request.messages for block in _blocks(owner.content) if isinstance(block, OpaqueBlock)
    ]
    unread += [tool.wire for tool in request.tools if isinstance(tool, OpaqueTool)]
    return sum(len(msgspec.json.encode(part)) for part in unread)


def _blocks(content: Sequence[ContentBlock]) -> Iterator[ContentBlock]:
    for block in content:
        yield block
        if isinstance(block, ToolResultBlock):
            yield from block.content


def _choose_best(values: Sequence[Any], candidates: list[_Candidate]) -> Detection:
    smallest = candidates[0].unread_size
    similar = [
        candidate
        for candidate in candidates
        if candidate.unread_size <= smallest + _SIMILAR_CHARACTERS
        and _to_comparable(candidate.messages) == _to_comparable(candidates[0].messages)
    ]
    first = min(similar, key=lambda choice: (not choice.is_family, choice.format != _PREFERRED, choice.unread_size))
    if first.is_family:
        return Detection(first.format, first.by_message, f"{first.format} reads it, and its model is {first.model}")
    if len(similar) > 1:
        others = " and ".join(choice.format for choice in similar)
        return Detection(first.format, first.by_message, f"{others} read it alike")
    best = [choice for choice in candidates if choice.unread_size == smallest]
    return (
        Detection(first.format, first.by_message, _explain(candidates))
        if len(best) == 1
        else _choose_agreeing(values, (), best)
    )


def _explain(candidates: list[_Candidate]) -> str:
    first, *others = candidates
    if not others:
        return f"only {first.format} reads it"
    clause = "reads all of it" if not first.unread_size else f"leaves {first.unread_size} characters unread"
    return f"{first.format} {clause}, {others[0].format} leaves {others[0].unread_size} unread"


def _choose_agreeing(values: Sequence[Any], by_marks: tuple[Detection, ...], candidates: list[_Candidate]) -> Detection:
    """Return one of several candidates if all of them read the same messages."""
    best = (
        [candidate for candidate in candidates if candidate.unread_size == candidates[0].unread_size]
        if candidates
        else []
    )
    choices = [(candidate.format, candidate.by_message, candidate.messages) for candidate in best]
    choices += [(candidate.format, candidate.by_message, _read_messages(candidate, values)) for candidate in by_marks]
    names = [name for name, _, _ in choices]
    first = choices[0]
    if all(_to_comparable(messages) == _to_comparable(first[2]) for _, _, messages in choices[1:]):
        return Detection(first[0], first[1], f"{' and '.join(names)} read it alike")
    raise InputError(f"it may be {' or '.join(names)}", remedy="Name the format with --from", code="ambiguous_format")


def _read_messages(detection: Detection, values: Sequence[Any]) -> tuple[Message, ...]:
    fragments = [Fragment(number, msgspec.json.encode(value)) for number, value in enumerate(values)]
    try:
        if detection.by_message:
            return read(detection.format, fragments, "", by_message=True).messages
        return tuple(
            message
            for fragment in fragments
            for message in read(detection.format, [fragment], "", by_message=False).messages
        )
    except DragomanError:
        return ()


def _to_comparable(messages: tuple[Message, ...]) -> list[Any]:
    return [(message.role, message.content) for message in messages]
