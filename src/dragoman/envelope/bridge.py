"""Between canonical messages and envelopes, without loss in either direction.

    envelopes_from_messages(messages)     a message becomes one envelope, or several where it says several things
    messages_from_envelopes(envelopes)    an envelope, or those that were one message, becomes a message

What an envelope cannot say of a message (its model, its cost, a signature, the session) rides along in its metadata
under ``dragoman``, as the difference between the message and what the envelope says by itself. What a message cannot
say of an envelope is kept in its ``metadata.extra`` under ``agents-api.message``. Both are differences, so an edit on
either side shows on the other. The one rule: there and back again is equal, whichever side one starts from; what
cannot be proved to be equal is kept whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from dragoman import codec
from dragoman.envelope.difference import difference, restored, text_of
from dragoman.envelope.plain import plain_envelopes, plain_message
from dragoman.envelope.reading import blocks_from, kept_in, message_from
from dragoman.envelope.rendering import Passed, told_as, told_by_parts
from dragoman.envelope.shape import RIDE, SCHEMA, Envelope, normalize_many
from dragoman.errors import EnvelopeError, InputError
from dragoman.jsontext import OWN, read_json
from dragoman.message import Message

Ride = dict[str, Any]
_NO_RIDE: Final = (InputError, ValueError, TypeError, LookupError, AttributeError)


def envelopes_from_messages(messages: Iterable[Message], *, as_given: bool = False) -> list[Envelope]:
    """The envelopes of a session.

    With ``as_given`` a message that was an envelope is given back as it came, without the id, the time and the session
    that it has got since.
    """
    return [envelope for group in envelope_groups(messages, as_given=as_given) for envelope in group]


def envelope_groups(messages: Iterable[Message], *, as_given: bool = False) -> Iterator[list[Envelope]]:
    """The envelopes of each message in its turn."""
    passed = Passed()
    for message in messages:
        yield _envelopes(message, passed, as_given=as_given)
        passed.saw(message)


def messages_from_envelopes(
    envelopes: Iterable[Mapping[str, Any]], *, after: Iterable[Message] = (), first: int = 0
) -> list[Message]:
    """The messages of envelopes in either shape.

    ``after`` is what was said before, whose calls they may answer; ``first`` counts what was said before that.
    """
    passed, made = Passed(first), []
    for message in after:
        passed.saw(message)
    for number, group in _grouped(normalize_many(envelopes)):
        try:
            whole = _read(group, passed)
            for message in [whole] if whole is not None else _each(group, passed):
                passed.saw(message)
                made.append(message)
        except (ValueError, InputError) as error:  # deeper or longer than a message may hold
            raise EnvelopeError(str(error), where=f"messages[{number}]") from None
    return made


def _each(group: list[Envelope], passed: Passed) -> Iterator[Message]:
    """Envelopes that were one message and are so no more, each as it is."""
    for envelope in group:
        yield message_from(envelope, passed)


# --- to envelopes ----------------------------------------------------------------------------------------------------


def _envelopes(
    message: Message, passed: Passed, *, as_given: bool = False, read_from: list[Envelope] | None = None
) -> list[Envelope]:
    """One message, proved to be what is read from its envelopes; that it was just read from these is proof enough."""
    plain = plain_envelopes(message, passed)
    if plain is not None:
        return plain
    kept = _remembered(message)
    if kept is not None:
        try:
            made = _told_again(message, kept, passed, as_given=as_given, read_from=read_from)
            if made is not None:
                return made
        except _NO_RIDE:  # somebody else wrote there, or what it was made for has changed
            pass
    bare = normalize_many(told_by_parts(message, passed))  # which shares nothing with the message
    made = _with_ride(bare, _ride(_guessed(bare, passed), message, is_ours=True))
    if _are_equal(made, read_from) or _is_same(_riding(made, passed), message):
        return made
    return _with_ride(normalize_many(told_by_parts(message, passed)), {"whole": codec.encode(message).decode()})


def _told_again(
    message: Message, kept: list[Any], passed: Passed, *, as_given: bool, read_from: list[Envelope] | None
) -> list[Envelope] | None:
    """The envelopes that a message was, with what it has no place for; None if it would not be read from them."""
    if _was_envelope(kept):
        made = [_normal(restored(told_as(message, kept[0]), kept[0].get("left")))]
        if as_given or _is_same(_read(made, passed), message):
            return made
        made = _with_ride(made, _ride(message_from(made[0], passed), message, is_ours=False))
    else:
        own = _without_kept(message)
        told = told_by_parts(own, passed)
        made = [_normal(restored(one, left)) for one, left in zip(told, kept, strict=True)]
        made = _with_ride(made, _ride(_guessed(made, passed), own, is_ours=True))
    return made if _are_equal(made, read_from) or _is_same(_riding(made, passed), message) else None


def _normal(envelope: Any) -> Envelope:
    """What was put together from a message's metadata is an envelope, or it is not used."""
    (made,) = normalize_many([envelope])
    if text_of(made) != text_of(envelope):
        raise ValueError("not an envelope any more")
    return made


def _ride(guess: Message, message: Message, *, is_ours: bool) -> Ride:
    """What makes the message out of what its envelopes say; the whole text of it where plain JSON is not exact."""
    ride: Ride = {"ours": True} if is_ours else {}
    text = codec.encode(message)
    told = read_json(text, OWN)
    if text_of(told) != text:
        ride["text"] = text.decode()
    elif (left := difference(read_json(codec.encode(guess), OWN), told)) is not None:
        ride["left"] = left
    return ride


def _with_ride(envelopes: list[Envelope], ride: Ride) -> list[Envelope]:
    many = len(envelopes)
    for number, envelope in enumerate(envelopes):
        own = ride if number == 0 else {}
        place = {"part": [number + 1, many]} if many > 1 else {}
        metadata = envelope["metadata"]
        was = {"was": metadata[RIDE]} if RIDE in metadata else {}
        envelope["metadata"] = {RIDE: None, **metadata} | {RIDE: {**place, **own, **was}}
    return envelopes


def _remembered(message: Message) -> list[Any] | None:
    extra = message.metadata.extra
    kept = extra.get(SCHEMA) if extra else None
    return kept if isinstance(kept, list) and kept else None


def _was_envelope(kept: list[Any]) -> bool:
    """Whether a message was read from an envelope of somebody else; of our own, only what was added to it is kept."""
    return len(kept) == 1 and isinstance(kept[0], dict) and "ours" not in kept[0]


def _without_kept(message: Message) -> Message:
    extra = {key: item for key, item in (message.metadata.extra or {}).items() if key != SCHEMA}
    return message.replace(metadata=message.metadata.replace(extra=extra or None))


# --- to messages -----------------------------------------------------------------------------------------------------


def _grouped(envelopes: list[Envelope]) -> Iterator[tuple[int, list[Envelope]]]:
    """Envelopes that were one message, together; each with its number in the list."""
    at = 0
    while at < len(envelopes):
        many = _parts_told(envelopes, at)
        yield at, envelopes[at : at + many]
        at += many


def _parts_told(envelopes: list[Envelope], at: int) -> int:
    match envelopes[at]["metadata"].get(RIDE):
        case {"part": [1, int(many)]} if many > 1:
            group = envelopes[at : at + many]
            places = [_place(envelope) for envelope in group]
            return many if places == [[number + 1, many] for number in range(many)] else 1
    return 1


def _place(envelope: Envelope) -> Any:
    ride = envelope["metadata"].get(RIDE)
    return ride.get("part") if isinstance(ride, dict) else None


def _read(group: list[Envelope], passed: Passed) -> Message | None:
    """The message that a group of envelopes was, if they prove it, or if it is a single one."""
    if isinstance(group[0]["metadata"].get(RIDE), dict):
        plain = plain_message(group, passed)
        if plain is not None and _are_equal(plain_envelopes(plain, passed) or [], group):
            return plain
        try:
            message = _riding(group, passed)
            if _are_equal(_envelopes(message, passed, read_from=group), group):
                return message
        except _NO_RIDE:
            pass
    return message_from(group[0], passed) if len(group) == 1 else None


def _riding(group: list[Envelope], passed: Passed) -> Message:
    """The message of envelopes that carry what they cannot say themselves."""
    ride = group[0]["metadata"].get(RIDE)
    if not isinstance(ride, dict) or not ride.keys() <= {"part", "ours", "left", "text", "whole", "was"}:
        raise ValueError("nothing of ours rides along")
    if "whole" in ride:
        return codec.decode(ride["whole"])
    bare = [_bare(envelope) for envelope in group]
    guess = _guessed(bare, passed) if "ours" in ride else message_from(bare[0], passed)
    text = ride["text"] if "text" in ride else text_of(restored(read_json(codec.encode(guess), OWN), ride.get("left")))
    message = codec.decode(text)
    if "ours" not in ride:
        return message
    told = told_by_parts(message, passed)
    added = [difference(ours, given) for ours, given in zip(told, bare, strict=True)]
    if not any(added):
        return message
    return kept_in(message, [None if left is None else {"ours": True, **left} for left in added])


def _bare(envelope: Envelope) -> Envelope:
    """An envelope without what rode along."""
    metadata = dict(envelope["metadata"])
    ride = metadata.pop(RIDE)
    if "was" in ride:
        metadata = {key: ride["was"] if key == RIDE else item for key, item in envelope["metadata"].items()}
    return {**envelope, "metadata": metadata}


def _guessed(envelopes: list[Envelope], passed: Passed) -> Message:
    """The message that these envelopes would be without any help: their blocks, and the rest of the first one."""
    first = _without_kept(message_from(envelopes[0], passed))
    blocks = [block for envelope in envelopes for block in blocks_from(envelope, passed, {})]
    return first.replace(content=blocks)


def _are_equal(some: list[Envelope], others: list[Envelope] | None) -> bool:
    """Whether they say the same; a host may keep what it adds to our metadata in another order."""
    return others is not None and msgspec.json.encode(some, order="sorted") == msgspec.json.encode(
        others, order="sorted"
    )


def _is_same(one: Message | None, other: Message) -> bool:
    return one is not None and codec.encode(one) == codec.encode(other)
