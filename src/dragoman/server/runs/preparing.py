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

from dragoman.attachments import Owner, Stored, model_block, named_type
from dragoman.dialects.parts.conversation import tool_id_for
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
from dragoman.offload import A_BLOCK, A_MESSAGE, in_turns, off_loop, size_of
from dragoman.rules import MAX_NAME_LENGTH, calls_of, is_tool_name
from dragoman.server.refusing import Refusal
from dragoman.server.runs.continuing import New, new_of, refuse_messages_to_questions, resumed_by
from dragoman.server.runs.given import File, Given, MessageGiven, Words, bytes_of
from dragoman.server.scopes import TOOLS
from dragoman.store import Session
from dragoman.store.runs import Run
from dragoman.transcripts.ag_ui import read_messages
from dragoman.transcripts.parts import wire_id_of

if TYPE_CHECKING:
    from dragoman.server.principal import Principal
    from dragoman.server.state import Doors

_HISTORY: Final = "history:write"
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


class Prepared(msgspec.Struct, frozen=True):
    """What a run begins with."""

    imported: tuple[Message, ...]  # to be stored before it
    terms: dict[str, Any]  # of the turn
    title: str | None  # of a thread that has none


class Preparing:
    """A run that is being prepared."""

    def __init__(self, doors: Doors, principal: Principal, session: Session | None, given: Given) -> None:
        self._doors = doors
        self._principal = principal
        self._session = session
        self._given = given
        self._owner = Owner(principal.user_id, principal.team_id)
        self._kept: list[Stored] = []  # that were not there before

    async def prepared(self, newest: Run | None) -> Prepared:
        """Everything that the turn needs, or a refusal."""
        given = self._given
        new = await new_of(self._doors.store, self._session, given)
        self._check_roles(new)
        self._check_resume()
        refuse_messages_to_questions(new.answers, newest)
        resumed = resumed_by(given.resume, newest)
        imported = await self._imported(new)
        answers = () if imported else new.answers
        content, files = await self._content(new.asked)
        terms = {
            "content": content,
            "attachments": files,
            "answers": [*[await self._answer(one) for one in answers], *resumed.answers],
            "answer_ids": {tool_id_for(one.call_id or ""): one.id for one in answers},
            "answer_extras": {tool_id_for(one.call_id or ""): one.extra for one in answers if one.extra},
            "approvals": resumed.approvals,
            "tools": given.tools,
            "may_use_tools": TOOLS in self._principal.scopes,
            "context": given.context,
            "model": given.model,
            "run_id": given.run_id,
            "message_id": new.asked.id if new.asked is not None else None,
            "extra": new.asked.extra if new.asked is not None else None,
            "user_id": self._principal.user_id,
            "team_id": self._principal.team_id,
        }
        terms = {name: tuple(term) if isinstance(term, list) else term for name, term in terms.items()}
        return Prepared(imported, terms, _title(new))

    def _check_roles(self, new: New) -> None:
        for message in new.imported:
            if message.role != "user" and _HISTORY not in self._principal.scopes:
                what = f"Message {message.id} is of the {message.role}; this key may say only what users say."
                raise Refusal(403, "role_not_allowed", what)

    def _check_resume(self) -> None:
        """What waits is a call of one of the server's tools, or a question that one of them asks."""
        if self._given.resume and TOOLS not in self._principal.scopes:
            raise Refusal(403, "missing_scope", f"The key has not the scope {TOOLS}.")

    # --- earlier messages --------------------------------------------------------------------------------------------

    async def _imported(self, new: New) -> tuple[Message, ...]:
        """The messages that are stored before the turn begins, in their order.

        Results of stored calls stand before earlier messages, so they are stored with them and not by the turn.
        """
        if not new.imported:
            return ()
        await self._check_waiting(new.answers)
        given = {(one.id, _STORED_ROLES[one.role]): one for one in new.imported}
        wires = [_wire(one) for one in new.imported]
        reader = functools.partial(read_messages, wires, session_id="", created_at=self._doors.store.clock())
        size = sum(A_MESSAGE + A_BLOCK * one.part_count for one in new.imported)
        read = await off_loop(size, reader)
        for message in read:
            _check_tool_names(message)
        results = [await self._result_message(one) for one in new.answers]
        turns = in_turns(read, lambda one: size_of([one]))
        earlier = [await self._earlier(one, given[wire_id_of(one), one.role]) async for one in turns]
        return (*results, *earlier)

    async def _check_waiting(self, answers: Iterable[MessageGiven]) -> None:
        """Refuse a result of a call that does not wait for the client."""
        pending = () if self._session is None else await self._doors.agent.pending(self._session.id)
        waiting = {one.call_id for one in pending if one.why == "caller"}
        for one in answers:
            call_id = tool_id_for(one.call_id or "")
            if call_id not in waiting:
                raise Refusal(422, "unknown_tool_use", f"Call {one.call_id} waits for no result.")
            waiting.remove(call_id)

    async def _earlier(self, message: Message, given: MessageGiven) -> Message:
        """An earlier message with what the client keeps with it, and with the caller as its owner."""
        content, files, notes = message.content, list[Attachment](), message.metadata.provider_raw
        if given.role == "user":
            blocks, files = await self._content(given)
            content, notes = tuple(blocks), None  # a note could hold a signed URL
        elif any(file.source != "data" for file in given.files):
            what = f"Message {given.id}: a file in an earlier result has to be in the message itself."
            raise Refusal(422, "foreign_attachment_url", what)
        metadata = message.metadata.replace(
            message_id=given.id,
            extra=given.extra,
            user_message_attachments=tuple(files) or None,
            provider_raw=notes,
            user_id=self._principal.user_id,
            team_id=self._principal.team_id,
        )
        return message.replace(content=content, metadata=metadata)

    async def _result_message(self, given: MessageGiven) -> Message:
        """A result of a stored call, as a message."""
        result = await self._answer(given)
        metadata = MessageMetadata(
            parent_tool_use_id=result.tool_use_id,
            message_id=given.id,
            extra=given.extra,
            user_id=self._principal.user_id,
            team_id=self._principal.team_id,
        )
        return Message("", "", Role.TOOL, (result,), metadata, self._doors.store.clock())

    async def _answer(self, message: MessageGiven) -> ToolResultBlock:
        blocks, _ = await self._content(message)
        return ToolResultBlock(tool_id_for(message.call_id or ""), tuple(blocks), message.is_error)

    # --- files -------------------------------------------------------------------------------------------------------

    async def _content(self, message: MessageGiven | None) -> tuple[list[ContentBlock], list[Attachment]]:
        """What a message says, as blocks, and where its files are."""
        blocks: list[ContentBlock] = []
        files: list[Attachment] = []
        for part in message.parts if message is not None else ():
            if isinstance(part, Words):
                blocks.append(TextBlock(part.text))
            elif part.source == "data" and part.kind in _RECORDINGS and named_type(part.media_type) is None:
                blocks.append(_recording(part))
            else:
                stored, data = await self._file(part)
                blocks.append(await model_block(stored, data))
                files.append(Attachment(stored.bucket, stored.path, stored.mime_type))
        return blocks, files

    async def _file(self, file: File) -> tuple[Stored, bytes]:
        attachments = self._doors.attachments
        match file.source:
            case "url":
                return await attachments.received(file.value, self._owner, file.media_type, file.name)
            case "file":
                bucket, _, path = file.value.partition("/")
                return await attachments.read(bucket, path, self._owner, file.media_type, file.name)
            case _:
                return await self._put(file, bytes_of(file, f"The {file.kind}"))

    async def _put(self, file: File, data: bytes) -> tuple[Stored, bytes]:
        """Keep a file that came inside of the message."""
        given = self._given
        try:
            stored = await self._doors.attachments.put(
                self._owner, given.thread_id, given.run_id, data, declared_type=file.media_type, name=file.name
            )
        except AttachmentError as error:
            if file.kind == "image" and error.code in ("type_mismatch", "type_not_allowed", "empty_attachment"):
                raise Refusal(422, "invalid_image", f"It is not the image that it is said to be: {error}.") from None
            raise
        self._kept.append(stored)
        return stored, data

    async def undo(self) -> None:
        """Let go of the files that were kept for this run."""
        for stored in self._kept:
            try:
                await self._doors.attachments.delete(stored.bucket, stored.path, self._owner)
            except DragomanError as error:
                _log.warning("an attachment of a refused run stays: %s", error)


def _recording(file: File) -> ContentBlock:
    bytes_of(file, f"The {file.kind}")  # which refuses what is not base64
    source, media_type = ImageSource("base64", file.value), file.media_type or f"{file.kind}/*"
    return AudioBlock(source, media_type) if file.kind == "audio" else VideoBlock(source, media_type)


def _wire(given: MessageGiven) -> dict[str, Any]:
    """A message as it is read. A user's is never a piece of another one, whatever its metadata says."""
    return given.wire if given.role != "user" else {name: given.wire[name] for name in given.wire if name != "metadata"}


def _check_tool_names(message: Message) -> None:
    """Refuse a message that calls a tool by a name that no tool can have."""
    for _, call in calls_of(message):
        where = f"Message {wire_id_of(message)}: the name of a tool call"
        if "\0" in call.name:
            raise Refusal(422, "invalid_character", f"{where} holds a NUL.")
        if is_tool_name(call.name) is None:
            what = f"has to be 1 to {MAX_NAME_LENGTH} of A-Z a-z 0-9 _ - and begin with a letter or an underscore"
            raise Refusal(422, "invalid_message", f"{where} {what}.")


def _title(new: New) -> str | None:
    """The beginning of what the user says, as the title of a new thread."""
    asked = new.asked or next((one for one in new.imported if one.role == "user"), None)
    return None if asked is None else " ".join(asked.text.lstrip()[:1_000].replace("\0", "").split())[:60] or None
