"""Convert requests: a request has parts of several roles, and each part is a message.

    system-prompt, instructions                            system
    user-prompt, retry-feedback, compaction, speech        user
    tool-return                                            tool
    retry-prompt                                           tool with a tool name, else user

Fields of a request (time, run id) apply to each of its messages, or are noted on the first. Parts that record a change
of tools or settings are noted on the message after them. Every request repeats its instructions; they become a message
where they change. Consecutive messages without a response between them are one request, unless a note marks the start
of the next. Extra fields of a message are stored in the metadata of the request, by the index of its part.

Invariant: ``_write_parts`` alone decides which parts a message becomes, also while reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from dragoman import message as msg
from dragoman.errors import FormatError
from dragoman.jsontext import expect_list, expect_object, text_or_none
from dragoman.transcripts import base
from dragoman.transcripts.pydantic_ai import shapes
from dragoman.transcripts.pydantic_ai.items import (
    changed_reason,
    file_digests,
    is_file,
    read_item,
    read_value,
    write_item,
)
from dragoman.transcripts.pydantic_ai.write_context import (
    CallInfo,
    WriteContext,
    make_own_extra,
    read_extra,
    read_own_extra,
)
from dragoman.wire.residue import get_notes

_RECORD_PARTS: Final = (  # parts without content for the model
    "tool-availability-delta",
    "capability-load-delta",
    "model-settings-delta",
    "instruction-baseline",
)
_FAILURE_OUTCOMES: Final = (
    "failed",
    "retried",
)  # outcomes that the package sends to a model as failures
_USER_TEXT_PARTS: Final = (
    "retry-feedback",
    "retry-prompt",
    "compaction",
    "speech",
)  # parts with one text of a user
_NO_NAME: Final = "unknown"  # the tool name of a result without a call
_PART_COUNT: Final = "parts"  # key of the number of parts of a message
_INSTRUCTIONS: Final = "instructions"  # key of extra fields of instructions


# --- reading ---------------------------------------------------------------------------------------------------------


class ReadState:
    """State while a history is read."""

    def __init__(self, reader: base.TranscriptReader, created_at: datetime) -> None:
        self.reader = reader
        self.created_at = created_at  # of items without a time
        self.instructions: str | None = None  # the latest ones


def read_request(wire: shapes.Wire, where: str, state: ReadState) -> None:
    """Read the messages of a request."""
    messages, previous_instructions = state.reader.messages, state.instructions
    start = len(messages)
    builder = _RequestReader(wire, where, state)
    instructions = text_or_none(wire.get("instructions"))
    if instructions is not None and instructions != previous_instructions:
        builder.add_message(msg.Role.SYSTEM, [msg.TextBlock(instructions)], _INSTRUCTIONS, {"form": "instructions"})
    builder.read_parts(expect_list(wire.get("parts"), f"{where}.parts"), start)
    state.reader.path = where
    notes = {
        "sent": text_or_none(wire.get("timestamp")),
        "conversation": text_or_none(wire.get("conversation_id")) or "",
        "instructions": "again" if instructions is not None and instructions == previous_instructions else None,
        "new": True if start and messages[start - 1].role is not msg.Role.ASSISTANT else None,
    }
    request_notes = {name: note for name, note in notes.items() if note is not None}
    messages[start] = base.add_notes(messages[start], shapes.NAME, request=request_notes)
    context = WriteContext()
    context.instructions = previous_instructions
    raw = base.make_notes(shapes.NAME, _default_request(messages[start:], context), wire) or {}
    wire_notes = {name: raw[name] for name in ("residue", "order") if name in raw}
    messages[start] = base.add_notes(messages[start], shapes.NAME, request={**request_notes, **wire_notes})
    state.instructions = previous_instructions if instructions is None else instructions


class _RequestReader:
    """Reads the messages of one request."""

    def __init__(self, wire: shapes.Wire, where: str, state: ReadState) -> None:
        self._reader = state.reader
        self._where = where
        self._sent_at = shapes.parse_time(wire.get("timestamp")) or state.created_at
        extras = read_own_extra(wire)
        self._extras: shapes.Wire = extras if isinstance(extras, dict) else {}
        self._first_metadata: dict[str, Any] = {"extra": read_extra(wire) or None}  # for the first message only
        self._shared_metadata = {
            "run_id": text_or_none(wire.get("run_id")),
            "status": msg.MessageStatus.CANCELLED if wire.get("state") == "interrupted" else None,
        }
        self._pending_records: list[shapes.Wire] = []  # parts that belong to the next message

    def add_message(
        self,
        role: msg.Role,
        blocks: Sequence[msg.ContentBlock],
        place: str,
        notes: shapes.Wire,
        when: datetime | None = None,
    ) -> None:
        """Add a message."""
        extra_and_count = self._extras.get(place)
        extra = (
            {key: item for key, item in extra_and_count.items() if key != _PART_COUNT}
            if isinstance(extra_and_count, dict)
            else None
        )
        metadata_fields = {
            name: value
            for name, value in {**self._shared_metadata, **self._first_metadata}.items()
            if value is not None
        }
        self._first_metadata = {}
        message = self._reader.make_message(role, blocks, own_extra=extra, **metadata_fields)
        if extra is None or "created_at" not in extra:
            message = message.replace(created_at=when or self._sent_at)
        raw = dict(base.message_notes(message, shapes.NAME))
        if "given" in raw:
            raw["given"] = {**raw["given"], "at": message.created_at.isoformat()}
        if self._pending_records:
            raw["before"], self._pending_records = self._pending_records, []
        all_notes = {**raw, **notes}
        self._reader.messages.append(
            base.with_notes(message, {"dialect": shapes.NAME, **all_notes} if all_notes else None)
        )

    def read_parts(self, parts: list[Any], start: int) -> None:
        """Read all parts. ``start`` is the index of the first message of the request."""
        index = 0
        while index < len(parts):
            index += self._read_message_at(parts, index)
        if len(self._reader.messages) == start:
            self.add_message(msg.Role.SYSTEM, (), _INSTRUCTIONS, {"form": "empty"})  # a request without messages
        elif self._pending_records:
            self._reader.messages[-1] = base.add_notes(
                self._reader.messages[-1], shapes.NAME, after=self._pending_records
            )

    def _read_message_at(self, parts: list[Any], index: int) -> int:
        """Read the message that starts with a part; return its number of parts."""
        part = self._get_part(parts, index)
        if part["part_kind"] in _RECORD_PARTS:
            self._pending_records.append(part)
            return 1
        when = shapes.parse_time(part.get("timestamp")) or self._sent_at
        role, blocks, notes = _read_part(part, shapes.format_time(when), self._reader)
        count = _part_count(self._extras.get(str(index)))
        for place in range(index + 1, min(index + count, len(parts))):
            blocks = [*blocks, *_read_part(self._get_part(parts, place), shapes.format_time(when), self._reader)[1]]
        self.add_message(role, blocks if count > 0 else (), str(index), notes, when)
        return max(count, 1)

    def _get_part(self, parts: list[Any], index: int) -> shapes.Wire:
        where = self._reader.path = f"{self._where}.parts[{index}]"
        part = expect_object(parts[index], where)
        if not isinstance(part.get("part_kind"), str):
            raise FormatError("a part needs a kind, as text", where=f"{where}.part_kind")
        return part


def _part_count(extra: Any) -> int:
    count = extra.get(_PART_COUNT, 1) if isinstance(extra, dict) else 1
    return count if type(count) is int else 1


def _read_part(
    part: shapes.Wire, when: str, reader: base.TranscriptReader
) -> tuple[msg.Role, list[msg.ContentBlock], shapes.Wire]:
    """Return the role of a part, its blocks, and notes for the message."""
    match part:
        case {"part_kind": "system-prompt", "content": str(text)}:
            return msg.Role.SYSTEM, [_add_text_notes(msg.TextBlock(text), part, when)], {}
        case {"part_kind": "instruction-delta", "content": str(text)}:
            return msg.Role.SYSTEM, [_add_text_notes(msg.TextBlock(text), part, when, form="instruction-delta")], {}
        case {"part_kind": "user-prompt"}:
            return _read_prompt(part, when, reader)
        case {"part_kind": "tool-return"} | {"part_kind": "retry-prompt", "tool_name": str()}:
            return msg.Role.TOOL, [_read_result(part, when, reader)], {}
        case {"part_kind": "retry-prompt" | "retry-feedback" as kind, "content": content}:
            block = msg.TextBlock(content) if isinstance(content, str) else read_value(content)
            value_form = get_notes(block.provider_raw, shapes.NAME).get("form")
            return msg.Role.USER, [_add_text_notes(block, part, when, form=kind, of=value_form)], {}
        case {"part_kind": "compaction", "content": str(text)}:
            return msg.Role.USER, [_add_text_notes(msg.TextBlock(text), part, when, form="compaction")], {}
        case {"part_kind": "speech", "transcript": str(text)}:
            return msg.Role.USER, _read_speech(text, part, when), {}
        case {"part_kind": "system-prompt"}:
            raise FormatError("a system prompt must be text", where=f"{reader.path}.content")
        case _:
            return msg.Role.USER, [msg.OpaqueBlock(shapes.NAME, part)], {}


def _add_text_notes(block: msg.TextBlock, part: shapes.Wire, when: str, **notes: str | None) -> msg.TextBlock:
    """Return a text that is a part of its own, with its residue."""
    set_notes = {name: note for name, note in notes.items() if note is not None}
    default = _default_text_part(block.replace(provider_raw={"dialect": shapes.NAME, **set_notes}), when)
    return block.replace(provider_raw=base.make_notes(shapes.NAME, default, part, **set_notes))


def _read_speech(text: str, part: shapes.Wire, when: str) -> list[msg.ContentBlock]:
    """Return the transcript and, if present, the recording of speech."""
    audio = part.get("audio")
    block = read_item(audio) if isinstance(audio, dict) else None
    if not isinstance(block, msg.AudioBlock):
        return [_add_text_notes(msg.TextBlock(text), part, when, form="speech")]
    transcript = _add_text_notes(msg.TextBlock(text), {**part, "audio": None}, when, form="speech")
    return [
        transcript,
        block.replace(
            provider_raw={"dialect": shapes.NAME, **get_notes(block.provider_raw, shapes.NAME), "of": "speech"}
        ),
    ]


def _read_prompt(
    part: shapes.Wire, when: str, reader: base.TranscriptReader
) -> tuple[msg.Role, list[msg.ContentBlock], shapes.Wire]:
    content, where = part.get("content"), reader.path
    blocks: list[msg.ContentBlock] = []
    if isinstance(content, str):
        blocks = [msg.TextBlock(content)]
    else:
        for index, item in enumerate(expect_list(content, f"{where}.content")):
            _read_prompt_item(item, f"{where}.content[{index}]", blocks)
    form = "list" if isinstance(content, list) and _is_plain_text(blocks) else None
    default = _default_prompt(blocks, when, form)
    notes = base.make_notes(shapes.NAME, default, part, form=form) or {}
    return msg.Role.USER, blocks, {name: note for name, note in notes.items() if name != "dialect"}


def _read_prompt_item(item: Any, where: str, blocks: list[msg.ContentBlock]) -> None:
    """Add a block; a cache point is noted on the block before it."""
    if not isinstance(item, str):
        expect_object(item, where)
    if (
        isinstance(item, dict)
        and item.get("kind") == "cache-point"
        and blocks
        and not isinstance(blocks[-1], msg.OpaqueBlock)
    ):
        last: Any = blocks[-1]
        notes = get_notes(last.provider_raw, shapes.NAME)
        raw = {"dialect": shapes.NAME, **notes, "then": [*notes.get("then", []), item]}
        blocks[-1] = last.replace(provider_raw=raw)
    else:
        blocks.append(read_item(item))


def _is_plain_text(blocks: Sequence[msg.ContentBlock]) -> bool:
    """Return whether a prompt is written as text instead of a list."""
    return (
        len(blocks) == 1 and isinstance(blocks[0], msg.TextBlock) and not get_notes(blocks[0].provider_raw, shapes.NAME)
    )


def _read_result(part: shapes.Wire, when: str, reader: base.TranscriptReader) -> msg.ToolResultBlock:
    """Return a tool return: text, a file, a list of them, or any JSON as text."""
    name, wire_id, content = part.get("tool_name"), part.get("tool_call_id"), part.get("content")
    if not isinstance(name, str):
        raise FormatError("a result needs the name of its tool", where=f"{reader.path}.tool_name")
    is_retry = part["part_kind"] == "retry-prompt"
    tool_use_id = reader.result_id(wire_id if isinstance(wire_id, str) else reader.path)
    blocks, form = _read_content(content, part.get("content_file_digests"))
    result = msg.ToolResultBlock(tool_use_id, blocks, is_retry or part.get("outcome") in _FAILURE_OUTCOMES)
    all_notes = {
        "form": form,
        "kind": "retry-prompt" if is_retry else None,
        "tool": name,
        "id": wire_id if isinstance(wire_id, str) and wire_id != tool_use_id else None,
    }
    notes = {name: note for name, note in all_notes.items() if note is not None}
    default = _default_result(result, when, notes, {})
    return result.replace(provider_raw=base.make_notes(shapes.NAME, default, part, **notes))


def _read_content(content: Any, digests: Any) -> tuple[tuple[msg.ContentBlock, ...], str | None]:
    """Return the blocks of a result, and the form of content that differs from the default."""
    if content is None:
        return (), "null"
    if isinstance(content, str):
        return (msg.TextBlock(content),), None
    if is_file(content, digests):
        return (read_item(content),), "single"
    if not isinstance(content, list) or not _is_item_list(content, digests):
        return (read_value(content),), None
    blocks = tuple(
        read_item(item) if isinstance(item, str) or is_file(item, digests) else read_value(item) for item in content
    )
    return blocks, "list" if len(blocks) == 1 and isinstance(blocks[0], msg.TextBlock) else None


def _is_item_list(content: list[Any], digests: Any) -> bool:
    """Return whether a list consists of texts, or contains a file; other lists are JSON for the model."""
    files = [is_file(item, digests) for item in content]
    return any(files) or all(isinstance(item, str) for item in content)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_request(messages: Sequence[msg.Message], context: WriteContext) -> shapes.Wire:
    """Write a request of consecutive messages."""
    wire: shapes.Wire = base.apply_notes(_default_request(messages, context), _request_notes(messages) or {})
    return wire


def _request_notes(messages: Sequence[msg.Message]) -> shapes.Wire | None:
    """Return the notes about a request, which may not be on the first message if messages were inserted."""
    candidates = (base.message_notes(message, shapes.NAME).get("request") for message in messages)
    return next((notes for notes in candidates if notes is not None), None)


def starts_request(message: msg.Message) -> bool:
    """Return whether a request started with this message without a response before it."""
    return bool(base.message_notes(message, shapes.NAME).get("request", {}).get("new"))


def _default_request(messages: Sequence[msg.Message], context: WriteContext) -> shapes.Wire:
    """Write a request without its residue; of the notes, conversation and time are used."""
    first = messages[0]
    notes = _request_notes(messages)
    runs = {message.metadata.run_id for message in messages}
    statuses = {message.metadata.status for message in messages}
    fields = {
        "run_id": first.metadata.run_id if len(runs) == 1 else None,
        "state": "interrupted" if statuses == {msg.MessageStatus.CANCELLED} else "complete",
    }
    parts, extras = _parts_and_extras(messages, fields, context)
    extra = first.metadata.extra if _can_write_extra(first) else None
    return shapes.request_shape(
        parts,
        timestamp=shapes.format_time(messages[-1].created_at) if notes is None else notes.get("sent"),
        instructions=_default_instructions(messages, notes or {}, context),
        conversation_id=(first.session_id if notes is None else notes.get("conversation")) or None,
        metadata=extra if not extras else {**(extra or {}), base.KEY: extras},
        **fields,
    )


def _can_write_extra(first: msg.Message) -> bool:
    """Return whether the application metadata of the first message can be the metadata of the request."""
    return bool(first.metadata.extra) and base.KEY not in (first.metadata.extra or {})


def _default_instructions(messages: Sequence[msg.Message], notes: shapes.Wire, context: WriteContext) -> str | None:
    instruction_messages = [message for message in messages if _is_instructions(message)]
    if instruction_messages:
        context.instructions = "\n\n".join(
            block.text for block in instruction_messages[-1].content if isinstance(block, msg.TextBlock)
        )
        return context.instructions
    return context.instructions if notes.get("instructions") == "again" else None


def _is_instructions(message: msg.Message) -> bool:
    return message.role is msg.Role.SYSTEM and base.message_notes(message, shapes.NAME).get("form") == "instructions"


def _parts_and_extras(
    messages: Sequence[msg.Message], fields: shapes.Wire, context: WriteContext
) -> tuple[list[shapes.Wire], shapes.Wire]:
    """Return the parts of a request, and the extra fields of its messages by the index of their first part."""
    parts: list[shapes.Wire] = []
    extras: shapes.Wire = {}
    for message in messages:
        notes = base.message_notes(message, shapes.NAME)
        parts.extend(notes.get("before", []))
        own_parts, place = _write_parts(message, context), str(len(parts))
        is_head = _is_instructions(message) or notes.get("form") == "empty"
        if own_parts or is_head:
            extra = _message_extra(message, fields, own_parts, is_first=message is messages[0])
            if extra:
                extras[_INSTRUCTIONS if is_head else place] = extra
        parts.extend(own_parts)
        parts.extend(notes.get("after", []))
    return parts, extras


def _message_extra(
    message: msg.Message, fields: shapes.Wire, own_parts: list[shapes.Wire], *, is_first: bool
) -> shapes.Wire:
    expressed = [name for name in ("run_id", "status") if _is_expressed(name, message, fields)]
    if is_first and _can_write_extra(message):
        expressed.append("extra")
    extra = (
        make_own_extra(message, expressed, has_time=bool(own_parts) and all("timestamp" in part for part in own_parts))
        or {}
    )
    count = len(own_parts)
    if message.role is msg.Role.SYSTEM and not any(isinstance(block, msg.TextBlock) for block in message.content):
        count = 0  # written as an empty text
    return {**extra, _PART_COUNT: count} if own_parts and count != 1 else extra


def _is_expressed(name: str, message: msg.Message, fields: shapes.Wire) -> bool:
    if name == "run_id":
        return bool(message.metadata.run_id == fields["run_id"])
    status = msg.MessageStatus.CANCELLED if fields["state"] == "interrupted" else msg.MessageStatus.COMPLETE
    return message.metadata.status is status


def _write_parts(message: msg.Message, context: WriteContext) -> list[shapes.Wire]:
    """Return the parts of a message; unsupported blocks are losses."""
    when = shapes.format_time(message.created_at)
    match message.role:
        case msg.Role.SYSTEM:
            return list(_system_parts(message, when, context))
        case msg.Role.TOOL:
            return list(_tool_parts(message, when, context))
        case _:
            return list(_user_parts(message, when, context))


def _system_parts(message: msg.Message, when: str, context: WriteContext) -> Iterator[shapes.Wire]:
    texts = context.supported_blocks(message, message.content, _unsupported_instruction_reason)
    form = base.message_notes(message, shapes.NAME).get("form")
    if form == "instructions":
        return
    for block in texts:
        if isinstance(block, msg.TextBlock):
            yield base.apply_notes(_default_text_part(block, when), get_notes(block.provider_raw, shapes.NAME))
    if not texts and form != "empty":
        yield shapes.system_shape("", when)


def _unsupported_instruction_reason(block: msg.ContentBlock) -> str | None:
    return None if isinstance(block, msg.TextBlock) else "a system prompt must be text"


def _unsupported_reason(block: msg.ContentBlock) -> str | None:
    return base.unsupported_item_reason(block, shapes.NAME)


def _tool_parts(message: msg.Message, when: str, context: WriteContext) -> Iterator[shapes.Wire]:
    for block in context.supported_blocks(message, message.content, lambda _: None):
        if isinstance(block, msg.ToolResultBlock):
            supported = context.supported_blocks(message, block.content, _unsupported_reason)
            _add_change_losses(supported, message, context)
            notes = get_notes(block.provider_raw, shapes.NAME)
            yield base.apply_notes(_default_result(block.replace(content=supported), when, notes, context.calls), notes)


def _user_parts(message: msg.Message, when: str, context: WriteContext) -> Iterator[shapes.Wire]:
    """Yield texts that were parts as parts, and the blocks between them as prompts."""
    notes = base.message_notes(message, shapes.NAME)
    prompt: list[msg.ContentBlock] = []
    has_parts = False
    for part, block in _blocks_with_parts(message, when, context):
        if part is None:
            prompt.append(block)
            continue
        if prompt:
            yield base.apply_notes(_default_prompt(prompt, when, notes.get("form")), notes)
            prompt = []
        has_parts = True
        yield part
    if prompt or not has_parts:
        yield base.apply_notes(_default_prompt(prompt, when, notes.get("form")), notes)


def _blocks_with_parts(
    message: msg.Message, when: str, context: WriteContext
) -> Iterator[tuple[shapes.Wire | None, msg.ContentBlock]]:
    """Yield each supported block, and its own part if it is one."""
    blocks = context.supported_blocks(message, message.content, _unsupported_reason)
    _add_change_losses(blocks, message, context)
    open_speech: shapes.Wire | None = None
    for block in blocks:
        notes = get_notes(getattr(block, "provider_raw", None), shapes.NAME)
        match block:
            case msg.TextBlock() if notes.get("form") in _USER_TEXT_PARTS:
                part: shapes.Wire = base.apply_notes(_default_text_part(block, when), notes)
                open_speech = part if notes["form"] == "speech" and part.get("audio") is None else None
                yield part, block
            case msg.AudioBlock() if notes.get("of") == "speech" and open_speech is not None:
                open_speech["audio"] = write_item(block)
                open_speech = None
            case msg.OpaqueBlock(wire=wire) if "part_kind" in wire:
                yield wire, block
            case _:
                yield None, block


def _add_change_losses(blocks: Iterable[msg.ContentBlock], message: msg.Message, context: WriteContext) -> None:
    for block in blocks:
        reason = changed_reason(block)
        if reason is not None:
            context.add_loss(message, block.type, reason)


def _default_text_part(block: msg.TextBlock, when: str) -> shapes.Wire:
    """Write a text that is a part of its own."""
    notes = get_notes(block.provider_raw, shapes.NAME)
    value_notes = {"dialect": shapes.NAME, "form": notes["of"]} if "of" in notes else None
    match notes.get("form"):
        case "instruction-delta":
            return shapes.instruction_delta_shape(block.text)
        case "retry-feedback":
            return shapes.feedback_shape(write_item(msg.TextBlock(block.text, value_notes)), when)
        case "retry-prompt":
            return shapes.retry_shape(write_item(msg.TextBlock(block.text, value_notes)), when, None, None)
        case "compaction":
            return shapes.compaction_shape(block.text)
        case "speech":
            return shapes.speech_shape("user", block.text, None)
        case _:
            return shapes.system_shape(block.text, when)


def _default_prompt(blocks: Sequence[msg.ContentBlock], when: str, form: str | None) -> shapes.Wire:
    """Write a prompt, as text if it is one text."""
    if form != "list" and _is_plain_text(blocks):
        return shapes.user_shape(write_item(blocks[0]), when)
    items: list[Any] = []
    for block in blocks:
        items.append(write_item(block))
        items.extend(get_notes(getattr(block, "provider_raw", None), shapes.NAME).get("then", []))
    return shapes.user_shape(items, when)


def _default_result(
    result: msg.ToolResultBlock, when: str, notes: shapes.Wire, calls: dict[str, CallInfo]
) -> shapes.Wire:
    """Write a result with the name and the id of its call, unless the notes contain others."""
    call = calls.get(result.tool_use_id, CallInfo(_NO_NAME, result.tool_use_id))
    name, call_id = notes.get("tool", call.name), notes.get("id", call.wire_id)
    content = _default_content([write_item(block) for block in result.content], result, notes.get("form"))
    if notes.get("kind") == "retry-prompt":
        return shapes.retry_shape(content, when, name, call_id)
    part = shapes.return_shape(content, when, name, call_id, "failed" if result.is_error else "success")
    if isinstance(content, dict | list):
        part["content_file_digests"] = file_digests(content)
    return part


def _default_content(items: list[Any], result: msg.ToolResultBlock, form: str | None) -> Any:
    if not items and form == "null":
        return None
    is_single = len(items) == 1 and (form == "single" or isinstance(result.content[0], msg.TextBlock))
    return items[0] if is_single and form != "list" else items


__all__ = ["ReadState", "read_request", "starts_request", "write_request"]
