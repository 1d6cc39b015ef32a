"""From the input of a run to a turn: find the new messages, read their files, check permissions.

    preparation = TurnPreparation(state, principal, session, run_input)
    prepared = await preparation.prepare(latest)
    prepared.fields                  of ``TurnRequest``
    await preparation.undo()         delete the stored files again, if the turn did not start

A client sends the whole conversation every time. Messages are identified by their ids: ours, the client's, and those of
the pieces of one of our messages. Messages after the last known one are new: results of open calls, imported messages,
and the question. A message before it that the thread does not have is skipped, because clients keep a question that was
rejected during a run before the answer of that run.

Invariants: no URL of a client is ever fetched, it must name a file of the caller; the thread is not changed here; one
id never stands for two different messages of a request, or for two different texts of a user.
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
from dragoman.server.auth.scopes import TOOLS
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
    """The input of a turn."""

    imported: tuple[Message, ...]  # stored before the turn
    fields: dict[str, Any]  # of ``TurnRequest``
    title: str | None  # for a thread without one


class TurnPreparation:
    """Prepares the turn of one run."""

    def __init__(self, state: AppState, principal: Principal, session: Session | None, run_input: RunInput) -> None:
        self._state = state
        self._principal = principal
        self._session = session
        self._run_input = run_input
        self._owner = Owner(principal.user_id, principal.team_id)
        self._stored_files: list[StoredFile] = []  # new files of this run

    async def prepare(self, latest: Run | None) -> PreparedTurn:
        """Everything that the turn needs, or an error."""
        run_input = self._run_input
        await self._state.provider_settings.refresh()
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
                text = f"Message {message.id} has the role {message.role}. Its import needs the scope {_HISTORY_SCOPE}."
                raise ApiError(403, "role_not_allowed", text)

    def _require_resume_scope(self) -> None:
        """Resuming runs a tool of the server, or answers its question, so it needs the scope."""
        if self._run_input.resume and TOOLS not in self._principal.scopes:
            raise ApiError(403, "missing_scope", f"The key does not have the scope {TOOLS}.")

    # --- earlier messages --------------------------------------------------------------------------------------------

    async def _read_imported(self, new: NewMessages) -> tuple[Message, ...]:
        """The messages that are stored before the turn, in order.

        Results of stored calls precede imported messages, so they are stored with them and not by the turn.
        """
        if not new.imported:
            return ()
        await self._require_pending(new.results)
        by_id_and_role = {(message.id, _STORED_ROLES[message.role]): message for message in new.imported}
        wires = [_wire_message(item) for item in new.imported]
        reader = functools.partial(read_messages, wires, session_id="", created_at=self._state.store.clock())
        size = sum(MESSAGE_SIZE + BLOCK_SIZE * item.part_count for item in new.imported)
        messages = await run_off_loop(size, reader)
        for message in messages:
            _require_tool_names(message)
        results = [await self._result_message(item) for item in new.results]
        turns = iterate_fairly(messages, lambda item: estimate_size([item]))
        imported = [
            await self._imported_message(item, by_id_and_role[get_wire_id(item), item.role]) async for item in turns
        ]
        return (*results, *imported)

    async def _require_pending(self, results: Iterable[InputMessage]) -> None:
        """Reject a result for a call that is not open for the client."""
        pending = () if self._session is None else await self._state.agent.pending_calls(self._session.id)
        pending_ids = {call.call_id for call in pending if call.reason == "caller"}
        for call in results:
            call_id = tool_id_for(call.call_id or "")
            if call_id not in pending_ids:
                raise ApiError(422, "unknown_tool_use", f"Call {call.call_id} is not open for a result.")
            pending_ids.remove(call_id)

    async def _imported_message(self, message: Message, source: InputMessage) -> Message:
        """An imported message with its metadata, files and owner."""
        content, files, notes = message.content, list[Attachment](), message.metadata.provider_raw
        if source.role == "user":
            blocks, files = await self._read_content(source)
            content, notes = tuple(blocks), None  # notes could contain a signed URL
        elif any(file.source != "data" for file in source.files):
            text = f"Message {source.id}: a file of an imported result must be inline data."
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
        """The result of a stored call as a message."""
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
        """The content of a message as blocks, and the locations of its files."""
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
        """Store a file that is inline in a message."""
        run_input = self._run_input
        try:
            stored = await self._state.attachments.put(
                self._owner, run_input.thread_id, run_input.run_id, data, declared_type=file.media_type, name=file.name
            )
        except AttachmentError as error:
            if file.kind == "image" and error.code in ("type_mismatch", "type_not_allowed", "empty_attachment"):
                raise ApiError(422, "invalid_image", f"The image does not have its declared type: {error}.") from None
            raise
        self._stored_files.append(stored)
        return stored, data

    async def undo(self) -> None:
        """Delete the files that were stored for this run."""
        for stored in self._stored_files:
            try:
                await self._state.attachments.delete(stored.bucket, stored.path, self._owner)
            except DragomanError as error:
                _log.warning("an attachment of a rejected run could not be deleted: %s", error)


def _media_block(file: FilePart) -> ContentBlock:
    decode_file(file, f"The {file.kind}")  # rejects invalid base64
    source, media_type = ImageSource("base64", file.value), file.media_type or f"{file.kind}/*"
    return AudioBlock(source, media_type) if file.kind == "audio" else VideoBlock(source, media_type)


def _wire_message(message: InputMessage) -> dict[str, Any]:
    """A message for the transcript reader. A user message is never a piece of another one."""
    return (
        message.wire
        if message.role != "user"
        else {name: message.wire[name] for name in message.wire if name != "metadata"}
    )


def _require_tool_names(message: Message) -> None:
    """Reject a tool call whose name is not valid."""
    for _, call in calls_of(message):
        where = f"Message {get_wire_id(message)}: the name of a tool call"
        if "\0" in call.name:
            raise ApiError(422, "invalid_character", f"{where} contains a NUL.")
        if is_tool_name(call.name) is None:
            text = (
                f"must be 1 to {MAX_NAME_LENGTH} characters of A-Z a-z 0-9 _ - and start with a letter or an underscore"
            )
            raise ApiError(422, "invalid_message", f"{where} {text}.")


def _derive_title(new: NewMessages) -> str | None:
    """The start of the user's text, as the title of a new thread."""
    question = new.question or next((message for message in new.imported if message.role == "user"), None)
    return None if question is None else " ".join(question.text.lstrip()[:1_000].replace("\0", "").split())[:60] or None


_TAIL_LENGTH: Final = 100
_DECLINED: Final = "The user declined to answer."
_PIECE: Final = re.compile(r"(.+)\.\d+")
_MODEL_PREFIX: Final = re.compile(r"\A\s*@\S+\s+")  # @model before the text


class NewMessages(msgspec.Struct, frozen=True):
    """The messages that the thread does not have."""

    imported: tuple[InputMessage, ...] = ()
    results: tuple[InputMessage, ...] = ()
    question: InputMessage | None = None


async def find_new_messages(store: Store, session: Session | None, run_input: RunInput) -> NewMessages:
    """The messages after the last one that the thread has."""
    thread_messages = _ThreadMessages(store, session)
    new_messages: list[InputMessage] = []
    async for message in iterate_fairly(reversed(run_input.messages)):
        if message.role == "activity":  # only shown to people
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
    """Each new message once; 422 for two different messages with one id."""
    by_id: dict[str, InputMessage] = {}
    for message in messages:
        if by_id.setdefault(message.id, message) != message:
            text = (
                f"Two different messages of the request have the id {message.id}. Use a different id for each message."
            )
            raise ApiError(422, "invalid_message", text)
    return list(by_id.values())


def _classify(messages: Sequence[InputMessage], stored_results: dict[str, ToolResultBlock]) -> NewMessages:
    """Split new messages into results of stored calls, imported messages and the question, in order."""
    call_ids = {call_id for message in messages for call_id in _call_ids(message.wire)}
    results, rest = list[InputMessage](), list[InputMessage]()
    for message in messages:
        (results if message.role == "tool" and message.call_id not in call_ids else rest).append(message)
    question = rest.pop() if rest and rest[-1].role == "user" else None
    if rest and question is None and rest[-1].role != "tool":
        text = f"The last message has the role {rest[-1].role}. It must be a user message or a tool result."
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
    """Whether the thread has this result: the client repeats a request that failed."""
    stored = stored_results.get(tool_id_for(message.call_id or ""))
    return stored is not None and _text(stored.content) == message.text and stored.is_error == message.is_error


def _text(content: Iterable[Any]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _require_same_text(message: InputMessage, stored: Message) -> None:
    """Reject a user message whose text differs from the stored message of the same id."""
    if message.role != "user" or (stored.metadata.extra or {}).get("erased"):
        return
    text, stored_text = message.text, _text(stored.content)
    without_model = _MODEL_PREFIX.sub("", text)
    if message.files:  # the text of an attached file is part of the stored message
        is_same = all(line in stored_text for line in without_model.split("\n"))
    else:
        is_same = stored_text in (text, without_model, text.replace("\\@", "@", 1))
    if stored.role is not Role.USER or not is_same:
        raise ApiError(409, "id_conflict", f"Message {message.id} exists with another text. Use a new id.")


class _ThreadMessages:
    """Finds messages of a thread by any of their ids."""

    def __init__(self, store: Store, session: Session | None) -> None:
        self._store = store
        self._session = session
        self._tail: dict[str, Message] | None = None

    async def find(self, name: str) -> Message | None:
        """The message with an id, or the message that a piece with that id belongs to."""
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
        """The newest tool results by call."""
        if self._session is None:
            return {}
        messages = (await self._load_tail(self._session)).values()
        blocks = (block for message in messages for block in message.content)
        return {block.tool_use_id: block for block in blocks if isinstance(block, ToolResultBlock)}


# --- what was decided ------------------------------------------------------------------------------------------------


class ResumeDecision(msgspec.Struct, frozen=True, rename="camel"):
    """A decision about an interrupt."""

    approved: bool
    edited_args: dict[str, Any] | None = None
    reason: str | None = None


class Resume(msgspec.Struct, frozen=True):
    """The decisions about the interrupts of a run."""

    approvals: tuple[Approval, ...] = ()
    results: tuple[ToolResultBlock, ...] = ()  # of questions


def parse_resume(resume: Sequence[InputResume], latest: Run | None) -> Resume:
    """The decisions about the interrupts of the latest run: for all of them or none."""
    if not resume:
        return Resume()
    open_interrupts = {item["id"]: item for item in latest.interrupts} if latest is not None else {}
    ids = [item.interrupt_id for item in resume]
    if len(set(ids)) != len(ids):
        raise ApiError(422, "invalid_resume", "An interrupt is answered twice.")
    if unknown := set(ids) - set(open_interrupts):
        raise ApiError(422, "unknown_interrupt", f"These interrupts are not open: {', '.join(sorted(unknown))[:300]}.")
    if missing := set(open_interrupts) - set(ids):
        raise ApiError(422, "resume_incomplete", f"These interrupts are not answered: {', '.join(sorted(missing))}.")
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
    """Reject tool messages that answer a question: only a resume has a validated payload."""
    interrupts = latest.interrupts if latest is not None else ()
    question_call_ids = {interrupt["toolCallId"] for interrupt in interrupts if interrupt["reason"] == INPUT_REQUIRED}
    for result in results:
        if tool_id_for(result.call_id or "") in question_call_ids:
            raise ApiError(422, "unknown_tool_use", f"Call {result.call_id} is a question. Answer it with resume.")


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
