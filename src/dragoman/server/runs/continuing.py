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

from dragoman.dialects.parts.conversation import tool_id_for
from dragoman.errors import UnknownMessageError
from dragoman.message import Message, Role, TextBlock, ToolResultBlock
from dragoman.offload import in_turns
from dragoman.server.refusing import Refusal
from dragoman.server.runs.given import Given, MessageGiven, ResumeGiven
from dragoman.server.runs.telling import INPUT_REQUIRED
from dragoman.store import Session, Store
from dragoman.store.runs import Run
from dragoman.tools import Approval, problems_of_answer
from dragoman.transcripts.parts import wire_id_of

_TAIL: Final = 100
_DECLINED: Final = "The user declined to answer."
_PIECE: Final = re.compile(r"(.+)\.\d+")
_CHOSEN: Final = re.compile(r"\A\s*@\S+\s+")  # a model


class New(msgspec.Struct, frozen=True):
    """What the thread has not."""

    imported: tuple[MessageGiven, ...] = ()
    answers: tuple[MessageGiven, ...] = ()
    asked: MessageGiven | None = None


async def new_of(store: Store, session: Session | None, given: Given) -> New:
    """What stands behind the last message that the thread has."""
    known = _Known(store, session)
    fresh: list[MessageGiven] = []
    async for message in in_turns(reversed(given.messages)):
        if message.role == "activity":  # for people's eyes
            continue
        stored = await known.find(message.id)
        if stored is not None:
            _check_same(message, stored)
            break
        fresh.append(message)
    fresh = _without_repeats(reversed(fresh))
    return _sorted(fresh, await known.results() if any(one.role == "tool" for one in fresh) else {})


def _without_repeats(fresh: Iterable[MessageGiven]) -> list[MessageGiven]:
    """Each new message once. Two different messages with one id are refused."""
    by_id: dict[str, MessageGiven] = {}
    for message in fresh:
        if by_id.setdefault(message.id, message) != message:
            what = (
                f"Two different messages of the request have the id {message.id}. Give each message an id of its own."
            )
            raise Refusal(422, "invalid_message", what)
    return list(by_id.values())


def _sorted(fresh: Sequence[MessageGiven], results: dict[str, ToolResultBlock]) -> New:
    """Split what is new into results of stored calls, earlier messages and the question, without changing the order."""
    called = {call for one in fresh for call in _calls(one.wire)}
    answers, rest = list[MessageGiven](), list[MessageGiven]()
    for one in fresh:
        (answers if one.role == "tool" and one.call_id not in called else rest).append(one)
    asked = rest.pop() if rest and rest[-1].role == "user" else None
    if rest and asked is None and rest[-1].role != "tool":
        what = (
            f"The conversation ends with a message of the {rest[-1].role}. End it with the user's, or a tool's result."
        )
        raise Refusal(422, "nothing_to_answer", what)
    return New(tuple(rest), tuple(one for one in answers if not _is_told(one, results)), asked)


def _calls(wire: dict[str, Any]) -> Iterable[str]:
    told = wire.get("toolCalls")
    for call in told if isinstance(told, list) else ():
        if isinstance(call, dict) and isinstance(call.get("id"), str):
            yield call["id"]


def _is_told(answer: MessageGiven, results: dict[str, ToolResultBlock]) -> bool:
    """Whether the thread has this very answer: the client comes again, after its first try failed."""
    stored = results.get(tool_id_for(answer.call_id or ""))
    return stored is not None and _text(stored.content) == answer.text and stored.is_error == answer.is_error


def _text(content: Iterable[Any]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _check_same(message: MessageGiven, stored: Message) -> None:
    """Refuse a user's message that says something else than the stored one of the same id."""
    if message.role != "user" or (stored.metadata.extra or {}).get("erased"):
        return
    said, kept = message.text, _text(stored.content)
    bare = _CHOSEN.sub("", said)
    if message.files:  # an attached text is a text of the stored message
        is_same = all(line in kept for line in bare.split("\n"))
    else:
        is_same = kept in (said, bare, said.replace("\\@", "@", 1))
    if stored.role is not Role.USER or not is_same:
        raise Refusal(409, "id_conflict", f"Message {message.id} said something else before.")


class _Known:
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
        for wanted in (name, piece[1]) if piece else (name,):
            found = await self._named(self._session, wanted)
            if found is not None:
                return found
        return None

    async def _named(self, session: Session, name: str) -> Message | None:
        tail = await self._newest(session)
        if name in tail or session.last_seq <= _TAIL:
            return tail.get(name)
        try:
            return (await self._store.find_message(session.id, name)).message
        except UnknownMessageError:
            return None

    async def _newest(self, session: Session) -> dict[str, Message]:
        if self._tail is None:
            rows = await self._store.tail(session.id, _TAIL)
            self._tail = {name: row.message for row in rows for name in (row.message.id, wire_id_of(row.message))}
        return self._tail

    async def results(self) -> dict[str, ToolResultBlock]:
        """What tools gave lately, by call."""
        if self._session is None:
            return {}
        newest = (await self._newest(self._session)).values()
        blocks = (block for message in newest for block in message.content)
        return {block.tool_use_id: block for block in blocks if isinstance(block, ToolResultBlock)}


# --- what was decided ------------------------------------------------------------------------------------------------


class Decided(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody says to an interrupt."""

    approved: bool
    edited_args: dict[str, Any] | None = None
    reason: str | None = None


class Resumed(msgspec.Struct, frozen=True):
    """What was said to the interrupts of a run."""

    approvals: tuple[Approval, ...] = ()
    answers: tuple[ToolResultBlock, ...] = ()  # to questions


def resumed_by(resume: Sequence[ResumeGiven], newest: Run | None) -> Resumed:
    """What was said about the calls that the last run was interrupted for: about each of them, or about none."""
    if not resume:
        return Resumed()
    waits = {one["id"]: one for one in newest.interrupts} if newest is not None else {}
    named = [one.interrupt_id for one in resume]
    if len(set(named)) != len(named):
        raise Refusal(422, "invalid_resume", "An interrupt is answered twice.")
    if unknown := set(named) - set(waits):
        raise Refusal(422, "unknown_interrupt", f"Nothing waits for {', '.join(sorted(unknown))[:300]}.")
    if missing := set(waits) - set(named):
        raise Refusal(422, "resume_incomplete", f"Also to be answered: {', '.join(sorted(missing))}.")
    said = [(one, waits[one.interrupt_id]) for one in resume]
    return Resumed(
        tuple(_approval(one, wait["toolCallId"]) for one, wait in said if wait["reason"] != INPUT_REQUIRED),
        tuple(_answer(one, wait) for one, wait in said if wait["reason"] == INPUT_REQUIRED),
    )


def refuse_messages_to_questions(answers: Iterable[MessageGiven], newest: Run | None) -> None:
    """A question is answered by a resume, whose payload is checked, and not by a message."""
    waits = newest.interrupts if newest is not None else ()
    questions = {one["toolCallId"] for one in waits if one["reason"] == INPUT_REQUIRED}
    for answer in answers:
        if tool_id_for(answer.call_id or "") in questions:
            raise Refusal(422, "unknown_tool_use", f"Call {answer.call_id} waits for a resume.")


def _approval(said: ResumeGiven, call_id: str) -> Approval:
    if said.status == "cancelled":
        return Approval(call_id, approved=False)
    try:
        decided = msgspec.convert(said.payload, Decided)
    except msgspec.ValidationError as error:
        raise Refusal(422, "invalid_resume", f"The payload for {said.interrupt_id}: {error}.") from None
    return Approval(call_id, decided.approved, decided.edited_args, decided.reason)


def _answer(said: ResumeGiven, wait: dict[str, Any]) -> ToolResultBlock:
    if said.status == "cancelled":
        return ToolResultBlock(wait["toolCallId"], (TextBlock(_DECLINED),), is_error=True)
    if problems := problems_of_answer(wait["responseSchema"], said.payload):
        raise Refusal(422, "invalid_resume", f"The payload for {said.interrupt_id}: {'; '.join(problems)}.")
    return ToolResultBlock(wait["toolCallId"], (TextBlock(msgspec.json.encode(said.payload).decode()),))
