"""From what a client sent to a turn that can begin: blocks in place of parts, files kept, everything allowed.

    prepared = await Preparing(doors, principal, session, given).prepared(newest)
    prepared.terms                 what ``Agent.begin`` is given
    await preparing.undo()         let go of the files again, if the turn was refused

No URL that a client sent is ever called: it names a file of the caller's own, or the run is refused. The one rule:
nothing of the thread changes here.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.attachments import Owner, StoredFile, canonical_type, model_block
from dragoman.errors import AttachmentError, DragomanError, UnknownMessageError
from dragoman.message import (
    Attachment,
    AudioBlock,
    ContentBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ToolResultBlock,
    VideoBlock,
)
from dragoman.offload import BLOCK_SIZE, MESSAGE_SIZE, estimate_size, iterate_fairly, run_off_loop
from dragoman.rules import MAX_NAME_LENGTH, calls_of, is_tool_name
from dragoman.server.auth.principal import TOOLS
from dragoman.server.http.http_errors import ApiError
from dragoman.server.runs.agui_encoder import INPUT_REQUIRED
from dragoman.server.runs.run_input import FilePart, InputMessage, InputResume, RunInput, TextPart, decode_file
from dragoman.store import Session, Store
from dragoman.store.runs import Run
from dragoman.tools import Approval, answer_problems
from dragoman.transcripts.ag_ui import read_messages
from dragoman.transcripts.base import get_wire_id
from dragoman.wire.message_builder import tool_id_for

if TYPE_CHECKING:
    from dragoman.server.auth.principal import Principal
    from dragoman.server.state import AppState

_HISTORY_SCOPE: Final = "history:write"
_RECORDINGS: Final = ("audio", "video")
_STORED_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "reasoning": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "tool": Role.TOOL,
}
_log: Final = logging.getLogger("dragoman.server")


class PreparedTurn(msgspec.Struct, frozen=True):
    """What a run begins with."""

    imported: tuple[Message, ...]  # to be stored before it
    fields: dict[str, Any]  # of the turn
    title: str | None  # of a thread that has none


class TurnPreparation:
    """A run that is being prepared."""

    def __init__(self, state: AppState, principal: Principal, session: Session | None, run_input: RunInput) -> None:
        self._state = state
        self._principal = principal
        self._session = session
        self._run_input = run_input
        self._owner = Owner(principal.user_id, principal.team_id)
        self._stored_files: list[StoredFile] = []  # that were not there before

    async def prepare(self, latest: Run | None) -> PreparedTurn:
        """Everything that the turn needs, or a refusal."""
        run_input = self._run_input
        new = await find_new_messages(self._state.store, self._session, run_input)
        self._require_role_scope(new)
        self._require_resume_scope()
        require_resume_for_questions(new.results, latest)
        resume = parse_resume(run_input.resume, latest)
        imported = await self._read_imported(new)
        results = () if imported else new.results
        content, files = await self._read_content(new.question)
        fields = {
            "content": content,
            "attachments": files,
            "answers": [*[await self._result_block(result) for result in results], *resume.results],
            "answer_ids": {tool_id_for(result.call_id or ""): result.id for result in results},
            "answer_extras": {tool_id_for(result.call_id or ""): result.extra for result in results if result.extra},
            "approvals": resume.approvals,
            "tools": run_input.tools,
            "may_use_tools": TOOLS in self._principal.scopes,
            "context": run_input.context,
            "model": run_input.model,
            "run_id": run_input.run_id,
            "message_id": new.question.id if new.question is not None else None,
            "extra": new.question.extra if new.question is not None else None,
            "user_id": self._principal.user_id,
            "team_id": self._principal.team_id,
        }
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return PreparedTurn(imported, fields, _derive_title(new))

    def _require_role_scope(self, new: NewMessages) -> None:
        for message in new.imported:
            if message.role != "user" and _HISTORY_SCOPE not in self._principal.scopes:
                text = f"Message {message.id} is of the {message.role}; this key may say only what users say."
                raise ApiError(403, "role_not_allowed", text)

    def _require_resume_scope(self) -> None:
        """What waits is a call of one of the server's tools, or a question that one of them asks."""
        if self._run_input.resume and TOOLS not in self._principal.scopes:
            raise ApiError(403, "missing_scope", f"The key has not the scope {TOOLS}.")

    # --- earlier messages --------------------------------------------------------------------------------------------

    async def _read_imported(self, new: NewMessages) -> tuple[Message, ...]:
        """The messages that are stored before the turn begins, in their order.

        Results of stored calls stand before earlier messages, so they are stored with them and not by the turn.
        """
        if not new.imported:
            return ()
        await self._require_pending(new.results)
        by_id_and_role = {(message.id, _STORED_ROLES[message.role]): message for message in new.imported}
        wires = [_wire_message(one) for one in new.imported]
        reader = functools.partial(read_messages, wires, session_id="", created_at=self._state.store.clock())
        size = sum(MESSAGE_SIZE + BLOCK_SIZE * one.part_count for one in new.imported)
        messages = await run_off_loop(size, reader)
        for message in messages:
            _require_tool_names(message)
        results = [await self._result_message(one) for one in new.results]
        turns = iterate_fairly(messages, lambda one: estimate_size([one]))
        imported = [
            await self._imported_message(one, by_id_and_role[get_wire_id(one), one.role]) async for one in turns
        ]
        return (*results, *imported)

    async def _require_pending(self, results: Iterable[InputMessage]) -> None:
        """Refuse a result of a call that does not wait for the client."""
        pending = () if self._session is None else await self._state.agent.pending_calls(self._session.id)
        pending_ids = {call.call_id for call in pending if call.reason == "caller"}
        for call in results:
            call_id = tool_id_for(call.call_id or "")
            if call_id not in pending_ids:
                raise ApiError(422, "unknown_tool_use", f"Call {call.call_id} waits for no result.")
            pending_ids.remove(call_id)

    async def _imported_message(self, message: Message, source: InputMessage) -> Message:
        """An earlier message with what the client keeps with it, and with the caller as its owner."""
        content, files, notes = message.content, list[Attachment](), message.metadata.provider_raw
        if source.role == "user":
            blocks, files = await self._read_content(source)
            content, notes = tuple(blocks), None  # a note could hold a signed URL
        elif any(file.source != "data" for file in source.files):
            text = f"Message {source.id}: a file in an earlier result has to be in the message itself."
            raise ApiError(422, "foreign_attachment_url", text)
        metadata = message.metadata.replace(
            message_id=source.id,
            extra=source.extra,
            user_message_attachments=tuple(files) or None,
            provider_raw=notes,
            user_id=self._principal.user_id,
            team_id=self._principal.team_id,
        )
        return message.replace(content=content, metadata=metadata)

    async def _result_message(self, source: InputMessage) -> Message:
        """A result of a stored call, as a message."""
        result = await self._result_block(source)
        metadata = MessageMetadata(
            parent_tool_use_id=result.tool_use_id,
            message_id=source.id,
            extra=source.extra,
            user_id=self._principal.user_id,
            team_id=self._principal.team_id,
        )
        return Message("", "", Role.TOOL, (result,), metadata, self._state.store.clock())

    async def _result_block(self, message: InputMessage) -> ToolResultBlock:
        blocks, _ = await self._read_content(message)
        return ToolResultBlock(tool_id_for(message.call_id or ""), tuple(blocks), message.is_error)

    # --- files -------------------------------------------------------------------------------------------------------

    async def _read_content(self, message: InputMessage | None) -> tuple[list[ContentBlock], list[Attachment]]:
        """What a message says, as blocks, and where its files are."""
        blocks: list[ContentBlock] = []
        files: list[Attachment] = []
        for part in message.parts if message is not None else ():
            if isinstance(part, TextPart):
                blocks.append(TextBlock(part.text))
            elif part.source == "data" and part.kind in _RECORDINGS and canonical_type(part.media_type) is None:
                blocks.append(_media_block(part))
            else:
                stored, data = await self._read_file(part)
                blocks.append(await model_block(stored, data))
                files.append(Attachment(stored.bucket, stored.path, stored.mime_type))
        return blocks, files

    async def _read_file(self, file: FilePart) -> tuple[StoredFile, bytes]:
        attachments = self._state.attachments
        match file.source:
            case "url":
                return await attachments.read_signed_url(file.value, self._owner, file.media_type, file.name)
            case "file":
                bucket, _, path = file.value.partition("/")
                return await attachments.read(bucket, path, self._owner, file.media_type, file.name)
            case _:
                return await self._store_file(file, decode_file(file, f"The {file.kind}"))

    async def _store_file(self, file: FilePart, data: bytes) -> tuple[StoredFile, bytes]:
        """Keep a file that came inside of the message."""
        run_input = self._run_input
        try:
            stored = await self._state.attachments.put(
                self._owner, run_input.thread_id, run_input.run_id, data, declared_type=file.media_type, name=file.name
            )
        except AttachmentError as error:
            if file.kind == "image" and error.code in ("type_mismatch", "type_not_allowed", "empty_attachment"):
                raise ApiError(422, "invalid_image", f"It is not the image that it is said to be: {error}.") from None
            raise
        self._stored_files.append(stored)
        return stored, data

    async def undo(self) -> None:
        """Let go of the files that were kept for this run."""
        for stored in self._stored_files:
            try:
                await self._state.attachments.delete(stored.bucket, stored.path, self._owner)
            except DragomanError as error:
                _log.warning("an attachment of a refused run stays: %s", error)


def _media_block(file: FilePart) -> ContentBlock:
    decode_file(file, f"The {file.kind}")  # which refuses what is not base64
    source, media_type = ImageSource("base64", file.value), file.media_type or f"{file.kind}/*"
    return AudioBlock(source, media_type) if file.kind == "audio" else VideoBlock(source, media_type)


def _wire_message(message: InputMessage) -> dict[str, Any]:
    """A message as it is read. A user's is never a piece of another one, whatever its metadata says."""
    return (
        message.wire
        if message.role != "user"
        else {name: message.wire[name] for name in message.wire if name != "metadata"}
    )


def _require_tool_names(message: Message) -> None:
    """Refuse a message that calls a tool by a name that no tool can have."""
    for _, call in calls_of(message):
        where = f"Message {get_wire_id(message)}: the name of a tool call"
        if "\0" in call.name:
            raise ApiError(422, "invalid_character", f"{where} holds a NUL.")
        if is_tool_name(call.name) is None:
            text = f"has to be 1 to {MAX_NAME_LENGTH} of A-Z a-z 0-9 _ - and begin with a letter or an underscore"
            raise ApiError(422, "invalid_message", f"{where} {text}.")


def _derive_title(new: NewMessages) -> str | None:
    """The beginning of what the user says, as the title of a new thread."""
    question = new.question or next((message for message in new.imported if message.role == "user"), None)
    return None if question is None else " ".join(question.text.lstrip()[:1_000].replace("\0", "").split())[:60] or None


_TAIL_LENGTH: Final = 100
_DECLINED: Final = "The user declined to answer."
_PIECE: Final = re.compile(r"(.+)\.\d+")
_MODEL_PREFIX: Final = re.compile(r"\A\s*@\S+\s+")  # a model


class NewMessages(msgspec.Struct, frozen=True):
    """What the thread has not."""

    imported: tuple[InputMessage, ...] = ()
    results: tuple[InputMessage, ...] = ()
    question: InputMessage | None = None


async def find_new_messages(store: Store, session: Session | None, run_input: RunInput) -> NewMessages:
    """What stands behind the last message that the thread has."""
    thread_messages = _ThreadMessages(store, session)
    new_messages: list[InputMessage] = []
    async for message in iterate_fairly(reversed(run_input.messages)):
        if message.role == "activity":  # for people's eyes
            continue
        stored = await thread_messages.find(message.id)
        if stored is not None:
            _require_same_text(message, stored)
            break
        new_messages.append(message)
    new_messages = _deduplicate(reversed(new_messages))
    return _classify(
        new_messages, await thread_messages.results() if any(message.role == "tool" for message in new_messages) else {}
    )


def _deduplicate(messages: Iterable[InputMessage]) -> list[InputMessage]:
    """Each new message once. Two different messages with one id are refused."""
    by_id: dict[str, InputMessage] = {}
    for message in messages:
        if by_id.setdefault(message.id, message) != message:
            text = (
                f"Two different messages of the request have the id {message.id}. Give each message an id of its own."
            )
            raise ApiError(422, "invalid_message", text)
    return list(by_id.values())


def _classify(messages: Sequence[InputMessage], stored_results: dict[str, ToolResultBlock]) -> NewMessages:
    """Split what is new into results of stored calls, earlier messages and the question, without changing the order."""
    call_ids = {call_id for message in messages for call_id in _call_ids(message.wire)}
    results, rest = list[InputMessage](), list[InputMessage]()
    for message in messages:
        (results if message.role == "tool" and message.call_id not in call_ids else rest).append(message)
    question = rest.pop() if rest and rest[-1].role == "user" else None
    if rest and question is None and rest[-1].role != "tool":
        text = (
            f"The conversation ends with a message of the {rest[-1].role}. End it with the user's, or a tool's result."
        )
        raise ApiError(422, "nothing_to_answer", text)
    return NewMessages(
        tuple(rest), tuple(message for message in results if not _is_stored(message, stored_results)), question
    )


def _call_ids(wire: dict[str, Any]) -> Iterable[str]:
    calls = wire.get("toolCalls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("id"), str):
            yield call["id"]


def _is_stored(message: InputMessage, stored_results: dict[str, ToolResultBlock]) -> bool:
    """Whether the thread has this very answer: the client comes again, after its first try failed."""
    stored = stored_results.get(tool_id_for(message.call_id or ""))
    return stored is not None and _text(stored.content) == message.text and stored.is_error == message.is_error


def _text(content: Iterable[Any]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _require_same_text(message: InputMessage, stored: Message) -> None:
    """Refuse a user's message that says something else than the stored one of the same id."""
    if message.role != "user" or (stored.metadata.extra or {}).get("erased"):
        return
    text, stored_text = message.text, _text(stored.content)
    without_model = _MODEL_PREFIX.sub("", text)
    if message.files:  # an attached text is a text of the stored message
        is_same = all(line in stored_text for line in without_model.split("\n"))
    else:
        is_same = stored_text in (text, without_model, text.replace("\\@", "@", 1))
    if stored.role is not Role.USER or not is_same:
        raise ApiError(409, "id_conflict", f"Message {message.id} said something else before.")


class _ThreadMessages:
    """The messages that a thread has, by every id that they go by."""

    def __init__(self, store: Store, session: Session | None) -> None:
        self._store = store
        self._session = session
        self._tail: dict[str, Message] | None = None

    async def find(self, name: str) -> Message | None:
        """The message that goes by a name, or that a piece of that name is of."""
        if self._session is None:
            return None
        piece = _PIECE.fullmatch(name)
        for candidate in (name, piece[1]) if piece else (name,):
            message = await self._find_by_id(self._session, candidate)
            if message is not None:
                return message
        return None

    async def _find_by_id(self, session: Session, name: str) -> Message | None:
        tail = await self._load_tail(session)
        if name in tail or session.last_seq <= _TAIL_LENGTH:
            return tail.get(name)
        try:
            return (await self._store.find_message(session.id, name)).message
        except UnknownMessageError:
            return None

    async def _load_tail(self, session: Session) -> dict[str, Message]:
        if self._tail is None:
            rows = await self._store.tail(session.id, _TAIL_LENGTH)
            self._tail = {name: row.message for row in rows for name in (row.message.id, get_wire_id(row.message))}
        return self._tail

    async def results(self) -> dict[str, ToolResultBlock]:
        """What tools gave lately, by call."""
        if self._session is None:
            return {}
        messages = (await self._load_tail(self._session)).values()
        blocks = (block for message in messages for block in message.content)
        return {block.tool_use_id: block for block in blocks if isinstance(block, ToolResultBlock)}


# --- what was decided ------------------------------------------------------------------------------------------------


class ResumeDecision(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody says to an interrupt."""

    approved: bool
    edited_args: dict[str, Any] | None = None
    reason: str | None = None


class Resume(msgspec.Struct, frozen=True):
    """What was said to the interrupts of a run."""

    approvals: tuple[Approval, ...] = ()
    results: tuple[ToolResultBlock, ...] = ()  # to questions


def parse_resume(resume: Sequence[InputResume], latest: Run | None) -> Resume:
    """What was said about the calls that the last run was interrupted for: about each of them, or about none."""
    if not resume:
        return Resume()
    open_interrupts = {item["id"]: item for item in latest.interrupts} if latest is not None else {}
    ids = [item.interrupt_id for item in resume]
    if len(set(ids)) != len(ids):
        raise ApiError(422, "invalid_resume", "An interrupt is answered twice.")
    if unknown := set(ids) - set(open_interrupts):
        raise ApiError(422, "unknown_interrupt", f"Nothing waits for {', '.join(sorted(unknown))[:300]}.")
    if missing := set(open_interrupts) - set(ids):
        raise ApiError(422, "resume_incomplete", f"Also to be answered: {', '.join(sorted(missing))}.")
    pairs = [(item, open_interrupts[item.interrupt_id]) for item in resume]
    return Resume(
        tuple(
            _approval(item, interrupt["toolCallId"])
            for item, interrupt in pairs
            if interrupt["reason"] != INPUT_REQUIRED
        ),
        tuple(_input_result(item, interrupt) for item, interrupt in pairs if interrupt["reason"] == INPUT_REQUIRED),
    )


def require_resume_for_questions(results: Iterable[InputMessage], latest: Run | None) -> None:
    """A question is answered by a resume, whose payload is checked, and not by a message."""
    interrupts = latest.interrupts if latest is not None else ()
    question_call_ids = {interrupt["toolCallId"] for interrupt in interrupts if interrupt["reason"] == INPUT_REQUIRED}
    for result in results:
        if tool_id_for(result.call_id or "") in question_call_ids:
            raise ApiError(422, "unknown_tool_use", f"Call {result.call_id} waits for a resume.")


def _approval(item: InputResume, call_id: str) -> Approval:
    if item.status == "cancelled":
        return Approval(call_id, approved=False)
    try:
        decision = msgspec.convert(item.payload, ResumeDecision)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid_resume", f"The payload for {item.interrupt_id}: {error}.") from None
    return Approval(call_id, decision.approved, decision.edited_args, decision.reason)


def _input_result(item: InputResume, interrupt: dict[str, Any]) -> ToolResultBlock:
    if item.status == "cancelled":
        return ToolResultBlock(interrupt["toolCallId"], (TextBlock(_DECLINED),), is_error=True)
    if problems := answer_problems(interrupt["responseSchema"], item.payload):
        raise ApiError(422, "invalid_resume", f"The payload for {item.interrupt_id}: {'; '.join(problems)}.")
    return ToolResultBlock(interrupt["toolCallId"], (TextBlock(msgspec.json.encode(item.payload).decode()),))
