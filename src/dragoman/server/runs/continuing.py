"""What of a conversation is new. A client sends all of it, every time; the thread has most of it already.

    new = await new_of(store, session, given)
    new.answers        results of calls that the thread holds open; they come first, directly after their calls
    new.imported       earlier messages that the thread lacks, in the client's order
    new.asked          the user's message that is to be answered; none if the conversation ends with results

Messages are known by their ids: ours, those that the client gave, and those of the pieces that one of ours is told in.
What stands behind the last known message is new. A message before it that the thread has not is passed over: a client
keeps a question that was refused while a run was going on before the answer of that run, and would be refused for ever.
Invariant: the same id never stands for two different messages of a request, or for two different texts of a user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from dragoman.errors import UnknownMessageError
from dragoman.message import Message, Role, TextBlock, ToolResultBlock
from dragoman.offload import iterate_fairly
from dragoman.server.http.http_errors import ApiError
from dragoman.server.runs.agui_encoder import INPUT_REQUIRED
from dragoman.server.runs.run_input import InputMessage, InputResume, RunInput
from dragoman.store import Session, Store
from dragoman.store.runs import Run
from dragoman.tools import Approval, problems_of_answer
from dragoman.transcripts.base import get_wire_id
from dragoman.wire.message_builder import tool_id_for

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
    if problems := problems_of_answer(interrupt["responseSchema"], item.payload):
        raise ApiError(422, "invalid_resume", f"The payload for {item.interrupt_id}: {'; '.join(problems)}.")
    return ToolResultBlock(interrupt["toolCallId"], (TextBlock(msgspec.json.encode(item.payload).decode()),))
