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
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.attachments import Owner, StoredFile, canonical_type, model_block
from dragoman.errors import AttachmentError, DragomanError
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
from dragoman.server.runs.continuing import NewMessages, find_new_messages, parse_resume, require_resume_for_questions
from dragoman.server.runs.run_input import FilePart, InputMessage, RunInput, TextPart, decode_file
from dragoman.store import Session
from dragoman.store.runs import Run
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
                blocks.append(_recording_block(part))
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


def _recording_block(file: FilePart) -> ContentBlock:
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
