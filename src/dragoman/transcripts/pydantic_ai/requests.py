"""What is sent to a model, both ways: a request has parts of several roles, and each part is a message here.

    system-prompt, instructions                            system
    user-prompt, retry-feedback, compaction, speech        user
    tool-return                                            tool
    retry-prompt                                           tool if it names one, else user

A request's own words (when it was sent, which run it is of) are told of each of its messages, or noted on the first.
Parts that record a change of tools or settings are said to nobody: they are noted on the message after them.
Instructions are repeated in every request; they are a message where they change. Messages that follow each other
without an answer between them are one request, unless a note says where the next one began.

What only we say about a message (its id, its metadata) stands in the request's metadata, by the place of its part.
The one rule: which parts a message becomes is decided by ``_written_parts`` alone, also while it is being read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from dragoman.dialects.parts.body import a_list, an_object
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.errors import FormatError
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    Message,
    MessageStatus,
    OpaqueBlock,
    Role,
    TextBlock,
    ToolResultBlock,
)
from dragoman.transcripts.parts import KEY, Reading, noted, notes_of, notes_on, restored, with_notes
from dragoman.transcripts.pydantic_ai.items import (
    cannot_keep,
    cannot_say,
    is_file,
    listed_digests,
    read_item,
    read_value,
    written_item,
)
from dragoman.transcripts.pydantic_ai.words import (
    NAME,
    Wire,
    compaction_shape,
    feedback_shape,
    instruction_delta_shape,
    request_shape,
    retry_shape,
    return_shape,
    speech_shape,
    system_shape,
    time_of,
    time_text,
    user_shape,
)
from dragoman.transcripts.pydantic_ai.writing import Called, Writing, read_extra, read_ride, ride

_ASIDES: Final = (  # parts that record something and say nothing
    "tool-availability-delta",
    "capability-load-delta",
    "model-settings-delta",
    "instruction-baseline",
)
_FAILED: Final = ("failed", "retried")  # the package says these to a model as failures, and other outcomes not
_SPOKEN: Final = ("retry-feedback", "retry-prompt", "compaction", "speech")  # parts that are one text of a user
_NO_NAME: Final = "unknown"  # of a tool whose call is not in the history
_OF_PARTS: Final = "parts"  # how many parts were one message
_HEAD: Final = "instructions"  # the place of what is no part


# --- reading ---------------------------------------------------------------------------------------------------------


class Told:
    """What is known of a history while it is read."""

    def __init__(self, reading: Reading, created_at: datetime) -> None:
        self.reading = reading
        self.created_at = created_at  # of what does not say so itself
        self.instructions: str | None = None  # that were told last


def read_request(wire: Wire, where: str, told: Told) -> None:
    """The messages of a request."""
    messages, before = told.reading.messages, told.instructions
    start = len(messages)
    asked = _Asked(wire, where, told)
    instructions = text_or_none(wire.get("instructions"))
    if instructions is not None and instructions != before:
        asked.say(Role.SYSTEM, [TextBlock(instructions)], _HEAD, {"form": "instructions"})
    asked.read_parts(a_list(wire.get("parts"), f"{where}.parts"), start)
    told.reading.place = where
    notes = {
        "sent": text_or_none(wire.get("timestamp")),
        "conversation": text_or_none(wire.get("conversation_id")) or "",
        "instructions": "again" if instructions is not None and instructions == before else None,
        "new": True if start and messages[start - 1].role is not Role.ASSISTANT else None,
    }
    kept = {name: note for name, note in notes.items() if note is not None}
    messages[start] = _with_note(messages[start], "request", kept)
    writing = Writing()
    writing.instructions = before
    found = noted(NAME, _natural_request(messages[start:], writing), wire) or {}
    left = {name: found[name] for name in ("residue", "order") if name in found}
    messages[start] = _with_note(messages[start], "request", {**kept, **left})
    told.instructions = before if instructions is None else instructions


def _with_note(message: Message, name: str, note: Any) -> Message:
    return with_notes(message, {"dialect": NAME, **notes_on(message, NAME), name: note})


class _Asked:
    """One request in the making of its messages."""

    def __init__(self, wire: Wire, where: str, told: Told) -> None:
        self._reading = told.reading
        self._where = where
        self._sent = time_of(wire.get("timestamp")) or told.created_at
        rides = read_ride(wire)
        self._rides: Wire = rides if isinstance(rides, dict) else {}
        self._said: dict[str, Any] = {"extra": read_extra(wire) or None}  # of the first message alone
        self._said_of_all = {
            "run_id": text_or_none(wire.get("run_id")),
            "status": MessageStatus.CANCELLED if wire.get("state") == "interrupted" else None,
        }
        self._waiting: list[Wire] = []  # parts that go with the next message

    def say(
        self, role: Role, blocks: Sequence[ContentBlock], place: str, notes: Wire, when: datetime | None = None
    ) -> None:
        """One more message."""
        ridden = self._rides.get(place)
        carried = {key: item for key, item in ridden.items() if key != _OF_PARTS} if isinstance(ridden, dict) else None
        said = {name: value for name, value in {**self._said_of_all, **self._said}.items() if value is not None}
        self._said = {}
        made = self._reading.made(role, blocks, carried=carried, **said)
        if carried is None or "created_at" not in carried:
            made = made.replace(created_at=when or self._sent)
        known = dict(notes_on(made, NAME))
        if "given" in known:
            known["given"] = {**known["given"], "at": made.created_at.isoformat()}
        if self._waiting:
            known["before"], self._waiting = self._waiting, []
        kept = {**known, **notes}
        self._reading.messages.append(with_notes(made, {"dialect": NAME, **kept} if kept else None))

    def read_parts(self, parts: list[Any], start: int) -> None:
        """Every part, and the messages that they are. ``start`` is the place of the request's first message."""
        index = 0
        while index < len(parts):
            index += self._read_parts_at(parts, index)
        if len(self._reading.messages) == start:
            self.say(Role.SYSTEM, (), _HEAD, {"form": "empty"})  # a request of which nothing is said
        elif self._waiting:
            self._reading.messages[-1] = _with_note(self._reading.messages[-1], "after", self._waiting)

    def _read_parts_at(self, parts: list[Any], index: int) -> int:
        """The message that begins with a part; gives how many parts it has."""
        part = self._part_at(parts, index)
        if part["part_kind"] in _ASIDES:
            self._waiting.append(part)
            return 1
        when = time_of(part.get("timestamp")) or self._sent
        role, blocks, notes = _read_part(part, time_text(when), self._reading)
        many = _count_of_parts(self._rides.get(str(index)))
        for place in range(index + 1, min(index + many, len(parts))):
            blocks = [*blocks, *_read_part(self._part_at(parts, place), time_text(when), self._reading)[1]]
        self.say(role, blocks if many > 0 else (), str(index), notes, when)
        return max(many, 1)

    def _part_at(self, parts: list[Any], index: int) -> Wire:
        where = self._reading.place = f"{self._where}.parts[{index}]"
        part = an_object(parts[index], where)
        if not isinstance(part.get("part_kind"), str):
            raise FormatError("a part has a kind, as text", where=f"{where}.part_kind")
        return part


def _count_of_parts(carried: Any) -> int:
    many = carried.get(_OF_PARTS, 1) if isinstance(carried, dict) else 1
    return many if type(many) is int else 1


def _read_part(part: Wire, when: str, reading: Reading) -> tuple[Role, list[ContentBlock], Wire]:
    """Whose part it is, its blocks, and what is to be noted on the message."""
    match part:
        case {"part_kind": "system-prompt", "content": str(text)}:
            return Role.SYSTEM, [_noted_text(TextBlock(text), part, when)], {}
        case {"part_kind": "instruction-delta", "content": str(text)}:
            return Role.SYSTEM, [_noted_text(TextBlock(text), part, when, form="instruction-delta")], {}
        case {"part_kind": "user-prompt"}:
            return _read_prompt(part, when, reading)
        case {"part_kind": "tool-return"} | {"part_kind": "retry-prompt", "tool_name": str()}:
            return Role.TOOL, [_read_result(part, when, reading)], {}
        case {"part_kind": "retry-prompt" | "retry-feedback" as kind, "content": content}:
            block = TextBlock(content) if isinstance(content, str) else read_value(content)
            of = notes_of(block.provider_raw, NAME).get("form")
            return Role.USER, [_noted_text(block, part, when, form=kind, of=of)], {}
        case {"part_kind": "compaction", "content": str(text)}:
            return Role.USER, [_noted_text(TextBlock(text), part, when, form="compaction")], {}
        case {"part_kind": "speech", "transcript": str(text)}:
            return Role.USER, _read_speech(text, part, when), {}
        case {"part_kind": "system-prompt"}:
            raise FormatError("a system prompt is a text", where=f"{reading.place}.content")
        case _:
            return Role.USER, [OpaqueBlock(NAME, part)], {}


def _noted_text(block: TextBlock, part: Wire, when: str, **notes: str | None) -> TextBlock:
    """A text that is a part by itself, with what is left over."""
    kept = {name: note for name, note in notes.items() if note is not None}
    natural = _natural_text_part(block.replace(provider_raw={"dialect": NAME, **kept}), when)
    return block.replace(provider_raw=noted(NAME, natural, part, **kept))


def _read_speech(text: str, part: Wire, when: str) -> list[ContentBlock]:
    """What a user spoke: the transcript, and the recording where it was kept."""
    audio = part.get("audio")
    block = read_item(audio) if isinstance(audio, dict) else None
    if not isinstance(block, AudioBlock):
        return [_noted_text(TextBlock(text), part, when, form="speech")]
    spoken = _noted_text(TextBlock(text), {**part, "audio": None}, when, form="speech")
    return [spoken, block.replace(provider_raw={"dialect": NAME, **notes_of(block.provider_raw, NAME), "of": "speech"})]


def _read_prompt(part: Wire, when: str, reading: Reading) -> tuple[Role, list[ContentBlock], Wire]:
    content, where = part.get("content"), reading.place
    blocks: list[ContentBlock] = []
    if isinstance(content, str):
        blocks = [TextBlock(content)]
    else:
        for index, item in enumerate(a_list(content, f"{where}.content")):
            _read_item_of_prompt(item, f"{where}.content[{index}]", blocks)
    form = "list" if isinstance(content, list) and _is_one_text(blocks) else None
    natural = _natural_prompt(blocks, when, form)
    notes = noted(NAME, natural, part, form=form) or {}
    return Role.USER, blocks, {name: note for name, note in notes.items() if name != "dialect"}


def _read_item_of_prompt(item: Any, where: str, blocks: list[ContentBlock]) -> None:
    """One more block; a mark that tells where to cache is noted on the block before it."""
    if not isinstance(item, str):
        an_object(item, where)
    if (
        isinstance(item, dict)
        and item.get("kind") == "cache-point"
        and blocks
        and not isinstance(blocks[-1], OpaqueBlock)
    ):
        last: Any = blocks[-1]
        notes = notes_of(last.provider_raw, NAME)
        raw = {"dialect": NAME, **notes, "then": [*notes.get("then", []), item]}
        blocks[-1] = last.replace(provider_raw=raw)
    else:
        blocks.append(read_item(item))


def _is_one_text(blocks: Sequence[ContentBlock]) -> bool:
    """Whether a prompt would be written as a text and not as a list."""
    return len(blocks) == 1 and isinstance(blocks[0], TextBlock) and not notes_of(blocks[0].provider_raw, NAME)


def _read_result(part: Wire, when: str, reading: Reading) -> ToolResultBlock:
    """What a tool answered: a text, a file, a list of such, or any JSON, which is then a text."""
    name, wire_id, content = part.get("tool_name"), part.get("tool_call_id"), part.get("content")
    if not isinstance(name, str):
        raise FormatError("a result has the name of its tool", where=f"{reading.place}.tool_name")
    is_retry = part["part_kind"] == "retry-prompt"
    tool_use_id = reading.answered_id(wire_id if isinstance(wire_id, str) else reading.place)
    blocks, form = _read_content(content, part.get("content_file_digests"))
    result = ToolResultBlock(tool_use_id, blocks, is_retry or part.get("outcome") in _FAILED)
    told = {
        "form": form,
        "kind": "retry-prompt" if is_retry else None,
        "tool": name,
        "id": wire_id if isinstance(wire_id, str) and wire_id != tool_use_id else None,
    }
    notes = {name: note for name, note in told.items() if note is not None}
    natural = _natural_result(result, when, notes, {})
    return result.replace(provider_raw=noted(NAME, natural, part, **notes))


def _read_content(content: Any, digests: Any) -> tuple[tuple[ContentBlock, ...], str | None]:
    """The blocks of a result, and a word for a shape that we would not write for them."""
    if content is None:
        return (), "null"
    if isinstance(content, str):
        return (TextBlock(content),), None
    if is_file(content, digests):
        return (read_item(content),), "single"
    if not isinstance(content, list) or not _is_of_items(content, digests):
        return (read_value(content),), None
    blocks = tuple(
        read_item(item) if isinstance(item, str) or is_file(item, digests) else read_value(item) for item in content
    )
    return blocks, "list" if len(blocks) == 1 and isinstance(blocks[0], TextBlock) else None


def _is_of_items(content: list[Any], digests: Any) -> bool:
    """Whether a list is one of texts and files, or holds a file: else it is shown to a model as JSON."""
    files = [is_file(item, digests) for item in content]
    return any(files) or all(isinstance(item, str) for item in content)


# --- writing ---------------------------------------------------------------------------------------------------------


def written_request(messages: Sequence[Message], writing: Writing) -> Wire:
    """A request again, of messages that follow each other."""
    made: Wire = restored(_natural_request(messages, writing), _request_notes(messages) or {})
    return made


def _request_notes(messages: Sequence[Message]) -> Wire | None:
    """What was noted about a request on its first message, before which others may have been put."""
    found = (notes_on(message, NAME).get("request") for message in messages)
    return next((notes for notes in found if notes is not None), None)


def begins_request(message: Message) -> bool:
    """Whether a request began with this message although no answer stood before it."""
    return bool(notes_on(message, NAME).get("request", {}).get("new"))


def _natural_request(messages: Sequence[Message], writing: Writing) -> Wire:
    """What we would write if nobody had noted more than which conversation it is of, and when it was sent."""
    first = messages[0]
    notes = _request_notes(messages)
    runs = {message.metadata.run_id for message in messages}
    statuses = {message.metadata.status for message in messages}
    told = {
        "run_id": first.metadata.run_id if len(runs) == 1 else None,
        "state": "interrupted" if statuses == {MessageStatus.CANCELLED} else "complete",
    }
    parts, rides = _parts_and_rides(messages, told, writing)
    extra = first.metadata.extra if _says_extra(first) else None
    return request_shape(
        parts,
        timestamp=time_text(messages[-1].created_at) if notes is None else notes.get("sent"),
        instructions=_natural_instructions(messages, notes or {}, writing),
        conversation_id=(first.session_id if notes is None else notes.get("conversation")) or None,
        metadata=extra if not rides else {**(extra or {}), KEY: rides},
        **told,
    )


def _says_extra(first: Message) -> bool:
    """Whether what an application keeps with the first message can stand in the metadata of the request."""
    return bool(first.metadata.extra) and KEY not in (first.metadata.extra or {})


def _natural_instructions(messages: Sequence[Message], notes: Wire, writing: Writing) -> str | None:
    heads = [message for message in messages if _is_instructions(message)]
    if heads:
        writing.instructions = "\n\n".join(block.text for block in heads[-1].content if isinstance(block, TextBlock))
        return writing.instructions
    return writing.instructions if notes.get("instructions") == "again" else None


def _is_instructions(message: Message) -> bool:
    return message.role is Role.SYSTEM and notes_on(message, NAME).get("form") == "instructions"


def _parts_and_rides(messages: Sequence[Message], told: Wire, writing: Writing) -> tuple[list[Wire], Wire]:
    """The parts of a request, and what only we say about their messages, by the place of the first part of each."""
    parts: list[Wire] = []
    rides: Wire = {}
    for message in messages:
        notes = notes_on(message, NAME)
        parts.extend(notes.get("before", []))
        own, place = _written_parts(message, writing), str(len(parts))
        is_head = _is_instructions(message) or notes.get("form") == "empty"
        if own or is_head:
            kept = _ride_of(message, told, own, is_first=message is messages[0])
            if kept:
                rides[_HEAD if is_head else place] = kept
        parts.extend(own)
        parts.extend(notes.get("after", []))
    return parts, rides


def _ride_of(message: Message, told: Wire, own: list[Wire], *, is_first: bool) -> Wire:
    said = [name for name in ("run_id", "status") if _is_said(name, message, told)]
    if is_first and _says_extra(message):
        said.append("extra")
    kept = ride(message, said, has_time=bool(own) and all("timestamp" in part for part in own)) or {}
    many = len(own)
    if message.role is Role.SYSTEM and not any(isinstance(block, TextBlock) for block in message.content):
        many = 0  # an empty text stands for it
    return {**kept, _OF_PARTS: many} if own and many != 1 else kept


def _is_said(name: str, message: Message, told: Wire) -> bool:
    if name == "run_id":
        return bool(message.metadata.run_id == told["run_id"])
    status = MessageStatus.CANCELLED if told["state"] == "interrupted" else MessageStatus.COMPLETE
    return message.metadata.status is status


def _written_parts(message: Message, writing: Writing) -> list[Wire]:
    """The parts of a message; what cannot be one of them is lost."""
    when = time_text(message.created_at)
    match message.role:
        case Role.SYSTEM:
            return list(_system_parts(message, when, writing))
        case Role.TOOL:
            return list(_tool_parts(message, when, writing))
        case _:
            return list(_user_parts(message, when, writing))


def _system_parts(message: Message, when: str, writing: Writing) -> Iterator[Wire]:
    texts = writing.sayable(message, message.content, _cannot_instruct)
    form = notes_on(message, NAME).get("form")
    if form == "instructions":
        return
    for block in texts:
        if isinstance(block, TextBlock):
            yield restored(_natural_text_part(block, when), notes_of(block.provider_raw, NAME))
    if not texts and form != "empty":
        yield system_shape("", when)


def _cannot_instruct(block: ContentBlock) -> str | None:
    return None if isinstance(block, TextBlock) else "a system prompt is a text here"


def _tool_parts(message: Message, when: str, writing: Writing) -> Iterator[Wire]:
    for block in writing.sayable(message, message.content, lambda _: None):
        if isinstance(block, ToolResultBlock):
            kept = writing.sayable(message, block.content, cannot_say)
            _name_changes(kept, message, writing)
            notes = notes_of(block.provider_raw, NAME)
            yield restored(_natural_result(block.replace(content=kept), when, notes, writing.calls), notes)


def _user_parts(message: Message, when: str, writing: Writing) -> Iterator[Wire]:
    """Texts that are parts themselves are such again; what stands between them is a prompt."""
    notes = notes_on(message, NAME)
    prompt: list[ContentBlock] = []
    is_told = False
    for part, block in _with_parts(message, when, writing):
        if part is None:
            prompt.append(block)
            continue
        if prompt:
            yield restored(_natural_prompt(prompt, when, notes.get("form")), notes)
            prompt = []
        is_told = True
        yield part
    if prompt or not is_told:
        yield restored(_natural_prompt(prompt, when, notes.get("form")), notes)


def _with_parts(message: Message, when: str, writing: Writing) -> Iterator[tuple[Wire | None, ContentBlock]]:
    """Each block that can be said, and the part that it is by itself, if it is one."""
    blocks = writing.sayable(message, message.content, cannot_say)
    _name_changes(blocks, message, writing)
    spoken: Wire | None = None
    for block in blocks:
        notes = notes_of(getattr(block, "provider_raw", None), NAME)
        match block:
            case TextBlock() if notes.get("form") in _SPOKEN:
                part: Wire = restored(_natural_text_part(block, when), notes)
                spoken = part if notes["form"] == "speech" and part.get("audio") is None else None
                yield part, block
            case AudioBlock() if notes.get("of") == "speech" and spoken is not None:
                spoken["audio"] = written_item(block)
                spoken = None
            case OpaqueBlock(wire=wire) if "part_kind" in wire:
                yield wire, block
            case _:
                yield None, block


def _name_changes(blocks: Iterable[ContentBlock], message: Message, writing: Writing) -> None:
    for block in blocks:
        reason = cannot_keep(block)
        if reason is not None:
            writing.lose(message, block.type, reason)


def _natural_text_part(block: TextBlock, when: str) -> Wire:
    """What we would write for a text that is a part by itself."""
    notes = notes_of(block.provider_raw, NAME)
    of = {"dialect": NAME, "form": notes["of"]} if "of" in notes else None
    match notes.get("form"):
        case "instruction-delta":
            return instruction_delta_shape(block.text)
        case "retry-feedback":
            return feedback_shape(written_item(TextBlock(block.text, of)), when)
        case "retry-prompt":
            return retry_shape(written_item(TextBlock(block.text, of)), when, None, None)
        case "compaction":
            return compaction_shape(block.text)
        case "speech":
            return speech_shape("user", block.text, None)
        case _:
            return system_shape(block.text, when)


def _natural_prompt(blocks: Sequence[ContentBlock], when: str, form: str | None) -> Wire:
    """A prompt is a text where one text is all that it says."""
    if form != "list" and _is_one_text(blocks):
        return user_shape(written_item(blocks[0]), when)
    items: list[Any] = []
    for block in blocks:
        items.append(written_item(block))
        items.extend(notes_of(getattr(block, "provider_raw", None), NAME).get("then", []))
    return user_shape(items, when)


def _natural_result(result: ToolResultBlock, when: str, notes: Wire, calls: dict[str, Called]) -> Wire:
    """A result has the name and the id of its call, unless it came with others."""
    called = calls.get(result.tool_use_id, Called(_NO_NAME, result.tool_use_id))
    name, call_id = notes.get("tool", called.name), notes.get("id", called.wire_id)
    content = _natural_content([written_item(block) for block in result.content], result, notes.get("form"))
    if notes.get("kind") == "retry-prompt":
        return retry_shape(content, when, name, call_id)
    part = return_shape(content, when, name, call_id, "failed" if result.is_error else "success")
    if isinstance(content, dict | list):
        part["content_file_digests"] = listed_digests(content)
    return part


def _natural_content(items: list[Any], result: ToolResultBlock, form: str | None) -> Any:
    if not items and form == "null":
        return None
    is_alone = len(items) == 1 and (form == "single" or isinstance(result.content[0], TextBlock))
    return items[0] if is_alone and form != "list" else items


__all__ = ["Told", "begins_request", "read_request", "written_request"]
