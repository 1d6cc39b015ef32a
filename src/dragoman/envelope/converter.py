"""Lossless conversion between canonical messages and envelopes.

    envelopes_from_messages(messages)     one or several envelopes for each message
    messages_from_envelopes(envelopes)    one message for an envelope, or for a group of envelopes

Fields of a message that an envelope cannot represent (model, cost, signature, session) are stored in a *sidecar*: the
difference between the message and what the envelope alone would be read as, in its metadata under ``dragoman``. Fields
of an envelope that a message cannot represent are stored in ``metadata.extra`` under ``agents-api.message``. Both are
differences, so an edit on one side is visible on the other.

Invariant: converting there and back returns an equal value, from either side. The writer verifies this; if it fails,
the sidecar contains the whole message. ``fast_path`` handles the most frequent shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from dragoman import codec
from dragoman.envelope.fast_path import read_plain, write_plain
from dragoman.envelope.normalization import SCHEMA, SIDECAR_KEY, Envelope, normalize_many
from dragoman.envelope.reader import blocks_from, message_from_envelope, read_bare_message, with_stored_fields
from dragoman.envelope.writer import CallHistory, write_envelope, write_envelopes
from dragoman.errors import EnvelopeError, InputError
from dragoman.json_diff import apply_diff, diff, encode_json
from dragoman.jsontext import OWN, read_json
from dragoman.message import Message

Sidecar = dict[str, Any]
_SIDECAR_ERRORS: Final = (InputError, ValueError, TypeError, LookupError, AttributeError)


def envelopes_from_messages(messages: Iterable[Message], *, verbatim: bool = False) -> list[Envelope]:
    """Return the envelopes of a session.

    With ``verbatim``, a message that was an envelope is returned as it was received, without the id, the time and the
    session that it has received since.
    """
    return [envelope for group in envelope_groups(messages, verbatim=verbatim) for envelope in group]


def envelope_groups(messages: Iterable[Message], *, verbatim: bool = False) -> Iterator[list[Envelope]]:
    """Yield the envelopes of each message."""
    history = CallHistory()
    for message in messages:
        yield _write_envelopes(message, history, verbatim=verbatim)
        history.add(message)


def messages_from_envelopes(
    envelopes: Iterable[Mapping[str, Any]], *, after: Iterable[Message] = (), first: int = 0
) -> list[Message]:
    """Return the messages of envelopes in either shape.

    ``after`` are the preceding messages, whose calls may be answered; ``first`` is the number of messages before those.
    """
    history, result = CallHistory(first), []
    for message in after:
        history.add(message)
    for number, group in _group(normalize_many(envelopes)):
        try:
            combined = _read_group(group, history)
            for message in [combined] if combined is not None else _read_each(group, history):
                history.add(message)
                result.append(message)
        except (ValueError, InputError) as error:  # deeper or longer than a message may be
            raise EnvelopeError(str(error), where=f"messages[{number}]") from None
    return result


def _read_each(group: list[Envelope], history: CallHistory) -> Iterator[Message]:
    """Read envelopes of a former group separately."""
    for envelope in group:
        yield message_from_envelope(envelope, history)


# --- to envelopes ----------------------------------------------------------------------------------------------------


def _write_envelopes(
    message: Message, history: CallHistory, *, verbatim: bool = False, read_from: list[Envelope] | None = None
) -> list[Envelope]:
    """Return the envelopes of a message, verified by reading them. ``read_from`` are envelopes that were just read."""
    plain = write_plain(message, history)
    if plain is not None:
        return plain
    stored = _get_stored_fields(message)
    if stored is not None:
        try:
            result = _restore_envelopes(message, stored, history, verbatim=verbatim, read_from=read_from)
            if result is not None:
                return result
        except _SIDECAR_ERRORS:  # another program has written the field, or the message has changed
            pass
    bare = normalize_many(write_envelopes(message, history))  # shares no object with the message
    result = _attach_sidecar(bare, _make_sidecar(_read_without_sidecar(bare, history), message, is_ours=True))
    if _are_equal(result, read_from) or _is_same(_read_with_sidecar(result, history), message):
        return result
    return _attach_sidecar(normalize_many(write_envelopes(message, history)), {"whole": codec.encode(message).decode()})


def _restore_envelopes(
    message: Message, stored: list[Any], history: CallHistory, *, verbatim: bool, read_from: list[Envelope] | None
) -> list[Envelope] | None:
    """Return the original envelopes of a message, or ``None`` if reading them would return another message."""
    if _is_from_envelope(stored):
        result = [_normalize_exact(apply_diff(write_envelope(message, stored[0]), stored[0].get("left"), ordered=True))]
        if verbatim or _is_same(_read_group(result, history), message):
            return result
        result = _attach_sidecar(
            result, _make_sidecar(message_from_envelope(result[0], history), message, is_ours=False)
        )
    else:
        own = _without_stored_fields(message)
        written = write_envelopes(own, history)
        result = [
            _normalize_exact(apply_diff(part, change, ordered=True))
            for part, change in zip(written, stored, strict=True)
        ]
        result = _attach_sidecar(result, _make_sidecar(_read_without_sidecar(result, history), own, is_ours=True))
    return result if _are_equal(result, read_from) or _is_same(_read_with_sidecar(result, history), message) else None


def _normalize_exact(envelope: Any) -> Envelope:
    """Normalize an envelope that was assembled from metadata. Raise ``ValueError`` if that changes it."""
    (result,) = normalize_many([envelope])
    if encode_json(result) != encode_json(envelope):
        raise ValueError("no longer an envelope")
    return result


def _make_sidecar(guess: Message, message: Message, *, is_ours: bool) -> Sidecar:
    """Return the difference to the message that the envelopes alone are read as, or its text if JSON is not exact."""
    sidecar: Sidecar = {"ours": True} if is_ours else {}
    text = codec.encode(message)
    plain = read_json(text, OWN)
    if encode_json(plain) != text:
        sidecar["text"] = text.decode()
    elif (remainder := diff(read_json(codec.encode(guess), OWN), plain, ordered=True)) is not None:
        sidecar["left"] = remainder
    return sidecar


def _attach_sidecar(envelopes: list[Envelope], sidecar: Sidecar) -> list[Envelope]:
    count = len(envelopes)
    for number, envelope in enumerate(envelopes):
        own = sidecar if number == 0 else {}
        place = {"part": [number + 1, count]} if count > 1 else {}
        metadata = envelope["metadata"]
        replaced = {"was": metadata[SIDECAR_KEY]} if SIDECAR_KEY in metadata else {}
        envelope["metadata"] = {SIDECAR_KEY: None, **metadata} | {SIDECAR_KEY: {**place, **own, **replaced}}
    return envelopes


def _get_stored_fields(message: Message) -> list[Any] | None:
    extra = message.metadata.extra
    stored = extra.get(SCHEMA) if extra else None
    return stored if isinstance(stored, list) and stored else None


def _is_from_envelope(stored: list[Any]) -> bool:
    """Whether a message was read from a foreign envelope. Of its own envelopes, only additions are stored."""
    return len(stored) == 1 and isinstance(stored[0], dict) and "ours" not in stored[0]


def _without_stored_fields(message: Message) -> Message:
    extra = {key: item for key, item in (message.metadata.extra or {}).items() if key != SCHEMA}
    return message.replace(metadata=message.metadata.replace(extra=extra or None))


# --- to messages -----------------------------------------------------------------------------------------------------


def _group(envelopes: list[Envelope]) -> Iterator[tuple[int, list[Envelope]]]:
    """Yield groups of envelopes that belong to one message, with their position."""
    at = 0
    while at < len(envelopes):
        size = _group_size(envelopes, at)
        yield at, envelopes[at : at + size]
        at += size


def _group_size(envelopes: list[Envelope], at: int) -> int:
    match envelopes[at]["metadata"].get(SIDECAR_KEY):
        case {"part": [1, int(size)]} if size > 1:
            group = envelopes[at : at + size]
            places = [_place(envelope) for envelope in group]
            return size if places == [[number + 1, size] for number in range(size)] else 1
    return 1


def _place(envelope: Envelope) -> Any:
    sidecar = envelope["metadata"].get(SIDECAR_KEY)
    return sidecar.get("part") if isinstance(sidecar, dict) else None


def _read_group(group: list[Envelope], history: CallHistory) -> Message | None:
    """Return the message of a group if it can be verified, or of a single envelope."""
    if isinstance(group[0]["metadata"].get(SIDECAR_KEY), dict):
        plain = read_plain(group, history)
        if plain is not None and _are_equal(write_plain(plain, history) or [], group):
            return plain
        try:
            message = _read_with_sidecar(group, history)
            if _are_equal(_write_envelopes(message, history, read_from=group), group):
                return message
        except _SIDECAR_ERRORS:
            pass
    return message_from_envelope(group[0], history) if len(group) == 1 else None


def _read_with_sidecar(group: list[Envelope], history: CallHistory) -> Message:
    """Return the message of envelopes with a sidecar."""
    sidecar = group[0]["metadata"].get(SIDECAR_KEY)
    if not isinstance(sidecar, dict) or not sidecar.keys() <= {"part", "ours", "left", "text", "whole", "was"}:
        raise ValueError("no sidecar")
    if "whole" in sidecar:
        return codec.decode(sidecar["whole"])
    bare = [_strip_sidecar(envelope) for envelope in group]
    guess = _read_without_sidecar(bare, history) if "ours" in sidecar else message_from_envelope(bare[0], history)
    text = (
        sidecar["text"]
        if "text" in sidecar
        else encode_json(apply_diff(read_json(codec.encode(guess), OWN), sidecar.get("left"), ordered=True))
    )
    message = codec.decode(text)
    if "ours" not in sidecar:
        return message
    written = write_envelopes(message, history)
    added = [diff(part, envelope, ordered=True) for part, envelope in zip(written, bare, strict=True)]
    if not any(added):
        return message
    return with_stored_fields(message, [None if change is None else {"ours": True, **change} for change in added])


def _strip_sidecar(envelope: Envelope) -> Envelope:
    """Return an envelope without its sidecar."""
    metadata = dict(envelope["metadata"])
    sidecar = metadata.pop(SIDECAR_KEY)
    if "was" in sidecar:
        metadata = {key: sidecar["was"] if key == SIDECAR_KEY else item for key, item in envelope["metadata"].items()}
    return {**envelope, "metadata": metadata}


def _read_without_sidecar(envelopes: list[Envelope], history: CallHistory) -> Message:
    """Return the message that the envelopes alone are read as: their blocks, and the other fields of the first."""
    blocks = [blocks_from(envelope, history, {}) for envelope in envelopes]
    first = read_bare_message(envelopes[0], blocks[0], history, {})
    return first.replace(content=tuple(itertools.chain.from_iterable(blocks)))


def _are_equal(left: list[Envelope], right: list[Envelope] | None) -> bool:
    """Whether envelopes are equal. A host may reorder the keys of metadata."""
    return right is not None and msgspec.json.encode(left, order="sorted") == msgspec.json.encode(right, order="sorted")


def _is_same(left: Message | None, right: Message) -> bool:
    return left is not None and codec.encode(left) == codec.encode(right)
