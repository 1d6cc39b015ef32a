"""Mail between agents: letters are checked, kept, handed out in order, and done with once.

    mail = Mail(store)
    receipt = await mail.send(letter)                          taken: it will be handed out until somebody is done
    for delivery in await mail.receive("CA", lease_s=60):      in order, one of a task at a time
        await mail.ack(delivery, effect)                       done, in one transaction with what it led to
        await mail.nack(delivery, error)                       later again, or given up and somebody is told
    async with mail.mailbox("CA") as mailbox:                  the same as a loop
        async for delivery in mailbox: …

``mail.of(team_id=…, user_id=…)`` is the mail of one team: recipients, tasks and letters of another team are not there.
With a transport (``dragoman.mail.nats``) a letter goes to the outbox first, and from there to whichever store its
recipient is attended to in; open such a mail with ``async with``.

The one rule: what the outbox or an inbox has taken stays until it is done or dead, whatever becomes of a process, a
transport or a consumer; and an effect that is given to ``ack`` happens once.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import random
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import msgspec

from dragoman.errors import ConflictError, DragomanError, InputError, LetterError, SettingsError, UnknownLetterError
from dragoman.letters import (
    HUMAN,
    Letter,
    NeedsInputLetter,
    TaskResultLetter,
    answer_letter,
    answer_problems,
    hints_from,
    letter_from,
    read_letter,
    read_stored_letter,
    sensitive_ids,
)
from dragoman.letters.kept import DeadLetter, Handed, MailboxCounts, Outcome, Posted, Receipt
from dragoman.letters.reading import as_written, reread
from dragoman.mail.evaluation import note_result, says_how_it_went
from dragoman.mail.mailbox import Mailbox
from dragoman.mail.posting import opened, packed, posted_of, shown
from dragoman.mail.retrying import RULES, RetryRule, class_of, retry_at, rule_for
from dragoman.mail.sealing import Sealing, sealing_for
from dragoman.mail.telling import escalation, refusal
from dragoman.mail.waking import Waking
from dragoman.offload import off_loop
from dragoman.redaction import Redactor

if TYPE_CHECKING:
    from dragoman.store import Store
    from dragoman.store.mail import Standing
    from dragoman.store.operation import Operation, Rows, Statement

    Effect = Operation[Any] | Callable[["Delivery"], Operation[Any] | Generator[Statement, Rows, Any]]

MOST_NEEDS: Final = 1_000  # tasks that a letter may depend on
MOST_INPUTS: Final = 256  # inputs that a letter may ask for
OUTBOX: Final = "outbox"
LEASE_S: Final = 60.0
_MANY: Final = 1_000_000


class Transport(Protocol):
    """What carries letters to other stores."""

    most_bytes: int  # of what it can carry

    async def open(self, mail: Mail) -> None:
        """Begin to send what is in the outbox."""

    async def close(self) -> None:
        """Finish what was begun."""

    async def attend(self, recipient_id: str, team_id: str) -> None:
        """Bring the letters of this recipient to this store from now on."""

    @property
    def state(self) -> str:
        """``ok``, ``not connected`` or ``failing``."""

    async def health(self) -> Mapping[str, Any]:
        """How safe a letter is on the way, in words, and how many are."""


class Delivery:
    """A letter in somebody's hands. ``letter`` has ``***`` in place of what is sensitive; ``opened`` has it."""

    def __init__(self, mail: Mail, handed: Handed) -> None:
        self._mail = mail
        self.handed = handed
        self.is_ended = False  # it was acknowledged or given up, by way of this value

    def __repr__(self) -> str:
        return f"Delivery({self.letter_id!r}, attempt {self.attempts})"

    @functools.cached_property
    def letter(self) -> Letter:
        """The letter, as people may see it. Its ``retry_count`` counts the times that it was handed out before."""
        return shown(self.handed.posted, self.attempts)

    @property
    def letter_id(self) -> str:
        """What the letter is known by: the key for effects that are elsewhere."""
        return self.handed.posted.letter_id

    @property
    def attempts(self) -> int:
        """The how-manieth time it is handed out, beginning with 1."""
        return self.handed.attempts

    @property
    def lease(self) -> str:
        """What its holder is known by."""
        return self.handed.lease

    @property
    def until(self) -> datetime:
        """When somebody else may get it."""
        return self.handed.until

    async def opened(self) -> Letter:
        """The letter with what is sensitive, for its recipient."""
        return await self._mail.opened(self)

    def ack(self, effect: Effect | None = None) -> Coroutine[Any, Any, Acked]:
        """See ``Mail.ack``."""
        return self._mail.ack(self, effect)

    async def nack(self, error: BaseException | str = "", **said: Any) -> Outcome | None:
        """See ``Mail.nack``."""
        return await self._mail.nack(self, error, **said)

    async def extend(self, lease_s: float = LEASE_S) -> datetime:
        """See ``Mail.extend``."""
        return await self._mail.extend(self, lease_s)


class Acked(msgspec.Struct, frozen=True):
    """That a letter is done."""

    is_first: bool  # false if it had been done before: the effect did not happen again
    result: Any = None  # what the effect gave


class Mail:
    """The mail of a store, or of one team in it."""

    def __init__(
        self,
        store: Store,
        *,
        transport: Transport | None = None,
        sealing: Sealing | None = None,
        rules: Mapping[str, RetryRule] = RULES,
        escalate_to: str = HUMAN,
        team_id: str | None = None,
        user_id: str | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self.transport = transport
        self.sealing = sealing or sealing_for(store)
        self.waking = Waking()
        self.team_id = team_id or ""
        self.user_id = user_id
        self._rules = rules
        self._escalate_to = escalate_to
        self._chance = chance
        self._redactor = Redactor()

    def of(self, *, team_id: str | None = None, user_id: str | None = None) -> Mail:
        """The mail of a team, with the person that letters are sent for."""
        made = copy.copy(self)
        made.team_id, made.user_id = team_id or "", user_id
        return made

    async def __aenter__(self) -> Self:
        if self.transport is not None:
            await self.transport.open(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.transport is not None:
            await self.transport.close()

    @property
    def is_away(self) -> bool:
        """Whether letters are carried by a transport."""
        return self.transport is not None

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        letter: Letter | Mapping[str, Any] | bytes | str,
        *,
        sender: str | None = None,
        session_id: str | None = None,
        message_id: str | None = None,
        turn_id: str | None = None,
    ) -> Receipt:
        """Take a letter; when this returns, it is safe. The same letter again gives the same receipt.

        ``sender`` is who is known to have sent it, and has to be the ``sender_id``. A letter that is none is a
        ``LetterError``; another letter of the same id, or one that would have tasks wait in a circle, a
        ``ConflictError``. The links say what it came from.
        """
        size = len(letter) if isinstance(letter, bytes | str) else 0
        checked, text = await off_loop(size, _checked, letter)
        if sender is not None and sender != checked.sender_id:
            raise LetterError(
                (f"sender_id: it is {checked.sender_id!r}, and it was sent by {sender!r}",), code="sender_mismatch"
            )
        posted = await self._ready(checked, text, session_id=session_id, message_id=message_id, turn_id=turn_id)
        receipt = await self.store.mail.post(posted, away=self.is_away)
        self.woken(posted)
        if says_how_it_went(checked):
            await note_result(self.store, checked, team_id=self.team_id, user_id=self.user_id)
        return receipt

    async def send_all(self, letters: Iterable[Letter | Mapping[str, Any]], **links: str | None) -> list[Receipt]:
        """Take letters in one transaction: all of them, in this order, or none."""
        checked = [_checked(letter) for letter in letters]
        posted = [await self._ready(letter, text, **links) for letter, text in checked]
        receipts = await self.store.mail.post_all(posted, away=self.is_away)
        for one in {one.recipient_id: one for one in posted}.values():
            self.woken(one)
        for letter, _ in checked:
            if says_how_it_went(letter):
                await note_result(self.store, letter, team_id=self.team_id, user_id=self.user_id)
        return receipts

    async def sending(self, letter: Letter | Mapping[str, Any], **links: str | None) -> Operation[Receipt]:
        """A letter that is sent when another one is done: ``await delivery.ack(await mail.sending(reply))``."""
        checked, text = _checked(letter)
        return self.store.mail.posting(await self._ready(checked, text, **links), away=self.is_away)

    async def _ready(self, letter: Letter, text: bytes, **links: str | None) -> Posted:
        """What is kept of a letter, if it may be sent."""
        if len(letter.depends_on) > MOST_NEEDS:
            what = f"context.depends_on: {len(letter.depends_on)} tasks are more than the {MOST_NEEDS} allowed"
            raise LetterError((what,), code="too_many_dependencies")
        if isinstance(letter, NeedsInputLetter) and len(letter.payload.requested_inputs) > MOST_INPUTS:
            count = len(letter.payload.requested_inputs)
            what = f"payload.requested_inputs: {count} inputs are more than the {MOST_INPUTS} allowed"
            raise LetterError((what,), code="too_many_inputs")
        ids = await self._asked_for(letter) if letter.in_reply_to is not None else None
        terms: dict[str, Any] = {"text": text, "ids": ids, "team_id": self.team_id, "user_id": self.user_id, **links}
        posted = await off_loop(len(text), functools.partial(posted_of, letter, self.sealing, **terms))
        if self.transport is not None:
            await self._refuse_if_too_large(posted, self.transport)
        return posted

    async def take(self, data: bytes, *, sender: str | None = None) -> Receipt | DeadLetter:
        """Take bytes that should be a letter. What is none is kept as a dead letter, and its sender is told."""
        try:
            return await self.send(data, sender=sender)
        except InputError as error:
            return await self.bury(data, error)

    async def bury(
        self,
        data: bytes,
        error: DragomanError,
        *,
        recipient_id: str | None = None,
        dead_id: str | None = None,
        is_trusted: bool = True,
    ) -> DeadLetter:
        """Keep bytes that are no letter, sealed, and tell whoever sent them, if that can be told.

        ``recipient_id`` is the mailbox that they were sent to; without it, the one that they name. What has the same
        ``dead_id`` is kept once. Nobody is told about what ``is_trusted`` says may be forged.
        """
        hints = await off_loop(len(data), hints_from, data)
        now = self.store.clock()
        told = None
        if is_trusted:
            told = refusal(hints, error.code, self._redactor.text(error.what), self.store.new_id(), now)
        key_id, raw = self._sealed_raw(data)
        dead = await self.store.mail.bury(
            reason=error.code,
            error=self._redactor.text(error.what),
            recipient_id=recipient_id or hints.recipient_id or "",
            team_id=self.team_id,
            letter_id=hints.message_id,
            sender_id=hints.sender_id,
            task_id=hints.task_id,
            user_id=self.user_id,
            key_id=key_id,
            raw=raw,
            told=() if told is None else (self._own(told),),
            away=self.is_away,
            dead_id=dead_id,
        )
        if told is not None:
            self.woken(self._own(told))
        return dead

    def _sealed_raw(self, data: bytes) -> tuple[str | None, bytes | None]:
        """Bytes that may hold anything, sealed; nothing of them is kept where nothing can be sealed."""
        try:
            return self.sealing.seal_bytes(data, "dead letter", self.team_id)
        except SettingsError:
            return None, None

    async def answer(
        self, delivery: Delivery, inputs: Mapping[str, Any], *, output: str = "Input given", **links: str | None
    ) -> Receipt:
        """Answer a request for input: the answer goes back to whoever asked, and there is one answer to a request.

        ``LetterError`` (``invalid_answer``) with every problem if it does not fit what was asked.
        """
        request = await off_loop(len(delivery.handed.posted.text), lambda: delivery.letter)
        if not isinstance(request, NeedsInputLetter):
            raise LetterError(("type: only a needs_input letter is answered",))
        said = {**(request.context or {}), "message_id": delivery.letter_id}
        made = answer_letter(
            request.replace(context=said),
            inputs=inputs,
            timestamp=self.store.clock(),
            output=output,
            message_id=_answer_id(delivery.letter_id),
        )
        return await self.send(made, **links)

    async def _asked_for(self, letter: Letter) -> frozenset[str] | None:
        """The sensitive inputs of the request that a letter answers; ``None`` where that is not known."""
        if not isinstance(letter, TaskResultLetter) or letter.in_reply_to is None:
            return None
        found = await self.store.mail.get(letter.sender_id, letter.in_reply_to, self.team_id)
        if found is None or found.type != "needs_input":
            return None
        if found.sender_id != letter.recipient_id:
            raise LetterError(
                (f"recipient_id: the letter that it answers was {found.sender_id}'s, and it goes to whoever asked",)
            )
        request = await off_loop(len(found.text), read_stored_letter, found.text.encode())
        if letter.is_answer and isinstance(request, NeedsInputLetter):
            _refuse_if_not_asked(request, letter)
        return sensitive_ids(request)

    async def _refuse_if_too_large(self, posted: Posted, transport: Transport) -> None:
        if (size := len(packed(posted))) <= transport.most_bytes:
            return
        what = f"it takes {size} bytes, and the transport carries {transport.most_bytes}"
        await self.store.mail.give_up_sending(posted, reason="letter_too_large", error=what)
        raise LetterError((f"letter: {what}; it is among the dead letters",), code="letter_too_large")

    def _own(self, letter: Letter) -> Posted:
        return posted_of(letter, self.sealing, team_id=self.team_id, user_id=self.user_id)

    def woken(self, posted: Posted) -> None:
        """Tell whoever waits in this process that there is something."""
        self.waking.wake(OUTBOX if self.is_away else _box(posted.recipient_id, posted.team_id))

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def receive(
        self, recipient: str, *, lease_s: float = LEASE_S, limit: int = 10, letter_id: str | None = None
    ) -> list[Delivery]:
        """The next letters of a mailbox, in order and of each task one; nobody else gets them while the lease lasts.

        ``letter_id`` asks for one letter, which is given if nobody has it and nothing of its task stands before it.
        """
        if self.transport is not None:
            await self.transport.attend(recipient, self.team_id)
        box = _box(recipient, self.team_id)
        if box not in self.waking.busy and not await self.store.mail.has_any(recipient, self.team_id):
            return []  # to look is cheap, and who waits does it often
        handed = await self.store.mail.hand_out(
            recipient, self.team_id, lease_s=lease_s, limit=limit, letter_id=letter_id
        )
        (self.waking.busy.add if handed else self.waking.busy.discard)(box)
        return [Delivery(self, one) for one in handed]

    async def delivery(self, recipient: str, letter_id: str, lease: str) -> Delivery:
        """A letter that was handed out before, for whoever knows its lease."""
        posted = await self.store.mail.get(recipient, letter_id, self.team_id)
        if posted is None:
            raise UnknownLetterError("there is no such letter", where=f"letter {letter_id} to {recipient}")
        now = self.store.clock()
        return Delivery(self, Handed(posted=posted, number=0, attempts=0, lease=lease, until=now))

    def mailbox(self, recipient: str, *, lease_s: float = LEASE_S, at_once: int = 1) -> Mailbox:
        """The letters of a recipient as a loop that waits for more."""
        return Mailbox(self, recipient, lease_s=lease_s, at_once=at_once)

    async def opened(self, delivery: Delivery) -> Letter:
        """A letter with what is sensitive in it. Only who holds it can have it."""
        await self.store.mail.check_held(delivery.handed)
        posted = delivery.handed.posted
        sealed = await self.store.mail.sealed(posted)
        whole = msgspec.structs.replace(posted, sealed=sealed)
        letter = await off_loop(len(posted.text), opened, whole, self.sealing)
        return letter.after(delivery.attempts or await self._attempts(posted))

    async def _attempts(self, posted: Posted) -> int:
        """How often a letter was handed out."""
        found = await self.letters(recipient_id=posted.recipient_id, letter_id=posted.letter_id, limit=1)
        return found[0].attempts if found else 0

    async def ack(self, delivery: Delivery, effect: Effect | None = None) -> Acked:
        """A letter is done. Its effect, an operation of the store or a function that gives one, happens with it.

        Both are one transaction: either the effect happened and the letter is done, or neither. An effect may be begun
        again when the database undid it. ``ConflictError`` (``lease_lost``) if the letter is in other hands by now.
        """
        begin: Callable[[], Any] | None = None
        if effect is not None:
            begin = (lambda: effect(delivery)) if callable(effect) else (lambda: effect)
        is_first, result = await self.store.mail.settle(delivery.handed, begin)
        delivery.is_ended = True
        self.waking.wake(_box(delivery.handed.posted.recipient_id, self.team_id))  # the next one of its task
        if effect is not None:
            self.waking.wake(OUTBOX)  # the effect may have been a letter
        return Acked(is_first, result)

    async def ack_all(self, deliveries: Sequence[Delivery]) -> list[Acked | ConflictError]:
        """Letters are done, in one transaction. What is in other hands by now is told, and keeps nothing else up."""
        ends = await self.store.mail.settle_all([delivery.handed for delivery in deliveries])
        for delivery, end in zip(deliveries, ends, strict=True):
            delivery.is_ended = delivery.is_ended or not isinstance(end, ConflictError)
        for recipient_id in {delivery.handed.posted.recipient_id for delivery in deliveries}:
            self.waking.wake(_box(recipient_id, self.team_id))
        return [end if isinstance(end, ConflictError) else Acked(end) for end in ends]

    async def nack(
        self,
        delivery: Delivery,
        error: BaseException | str = "",
        *,
        error_class: str | None = None,
        retry_after_s: float | None = None,
    ) -> Outcome | None:
        """A letter could not be handled: it is handed out again later, or given up. Nothing if it was done before.

        How often and how much later, the rule of the error's class says. Who is told at the end gets an error letter.
        """
        name = error_class or class_of(error)
        rule = rule_for(self._rules, name)
        now = self.store.clock()
        text = self._redactor.text(str(error) or name)
        posted = delivery.handed.posted
        chance = self._chance()

        def again(attempts: int) -> datetime | None:
            at = retry_at(rule, attempts, now, chance)
            return at if at is None or retry_after_s is None else now + timedelta(seconds=retry_after_s)

        def told(attempts: int, is_dead: bool) -> list[Posted]:
            if not is_dead and not (rule.tells_at_once and attempts == 1):
                return []
            made = escalation(
                posted,
                self._escalate_to,
                error_class=name,
                error=text,
                attempts=attempts,
                is_dead=is_dead,
                now=now,
            )
            return [] if made is None else [self._own(made)]

        outcome = await self.store.mail.fail(
            delivery.handed,
            error_class=name,
            reason="retries_exhausted" if rule.retries else name,
            error=text,
            retry_at=again,
            told=told,
            away=self.is_away,
        )
        delivery.is_ended = True
        self.waking.wake(_box(self._escalate_to, self.team_id))
        self.waking.wake(_box(posted.recipient_id, self.team_id))
        self.waking.wake(OUTBOX)
        return outcome

    async def give_back(self, delivery: Delivery) -> None:
        """Let somebody else have a letter, as if it had not been handed out."""
        await self.store.mail.give_back(delivery.handed)
        self.waking.wake(_box(delivery.handed.posted.recipient_id, self.team_id))

    async def extend(self, delivery: Delivery, lease_s: float = LEASE_S) -> datetime:
        """Keep a letter for longer; ``ConflictError`` (``lease_lost``) if somebody else has it."""
        until = await self.store.mail.extend(delivery.handed, lease_s)
        delivery.handed = msgspec.structs.replace(delivery.handed, until=until)
        return until

    # --- looking -----------------------------------------------------------------------------------------------------

    async def letters(self, **wanted: Any) -> list[Standing]:
        """Letters, with where they stand, in the order in which they were taken: by ``recipient_id``, ``sender_id``,
        ``task_id``, ``letter_id``, ``session_id`` or ``user_id``; ``after`` the last of a page, so many (``limit``)."""
        return await self.store.mail.find(team_id=self.team_id, **wanted)

    async def thread(self, task_id: str, limit: int = _MANY) -> list[Standing]:
        """Every letter of a task, in the order in which they were taken."""
        return await self.letters(task_id=task_id, limit=limit)

    async def counts(self) -> list[MailboxCounts]:
        """How much is in each mailbox."""
        return await self.store.mail.counts(self.team_id)

    async def dead_letters(self, **wanted: Any) -> list[DeadLetter]:
        """Dead letters, the newest first: by ``dead_id``, ``recipient_id``, ``sender_id`` or ``user_id``."""
        return await self.store.mail.dead_letters(team_id=self.team_id, **wanted)

    def raw_of(self, dead: DeadLetter) -> bytes | None:
        """What came, as it came; nothing where it could not be kept. ``seen`` makes it a text for people."""
        if dead.key_id is None or dead.raw is None:
            return dead.raw
        return self.sealing.open_bytes(dead.key_id, dead.raw, "dead letter", self.team_id)

    async def resend(self, dead_id: str) -> Receipt:
        """Send a dead letter again. One that is no letter is still none: ``LetterError``."""
        found = await self.dead_letters(dead_id=dead_id, resent_too=True)
        if not found:
            raise UnknownLetterError("there is no such dead letter", where=dead_id)
        dead = found[0]
        posted = None
        if dead.key_id is not None and (data := self.raw_of(dead)) is not None:
            letter = read_letter(data)
            posted = posted_of(letter, self.sealing, ids=await self._asked_for(letter), team_id=self.team_id)
        receipt = await self.store.mail.resend(dead, posted, away=self.is_away)
        self.waking.wake(OUTBOX)
        self.waking.wake(_box(receipt.recipient_id, self.team_id))
        return receipt

    @property
    def state(self) -> str:
        """``ok``; ``not connected`` while letters wait for a broker; ``failing`` while a task of mail does not work."""
        return "ok" if self.transport is None else self.transport.state

    async def health(self) -> dict[str, Any]:
        """How safe letters are, in words, and how many are on their way."""
        counts = await self.store.mail.counts()
        told: dict[str, Any] = {
            "durability": self.store.durability,
            "transport": "embedded" if self.transport is None else type(self.transport).__name__,
            "state": self.state,
            "waiting": sum(one.ready + one.waiting + one.leased + one.behind + one.held for one in counts),
            "away": sum(one.away for one in counts),
            "dead": sum(one.dead for one in counts),
        }
        if self.transport is not None:
            told.update(await self.transport.health())
        return told

    async def reseal(self) -> int:
        """Seal what older keys have sealed with the one that seals now; how many values that were."""
        return await self.store.mail.reseal(self.sealing.names()[0], self._resealed)

    def _resealed(self, key_id: str, box: bytes, *about: str) -> tuple[str, bytes]:
        return self.sealing.seal_bytes(self.sealing.open_bytes(key_id, box, *about), *about)


def _refuse_if_not_asked(request: NeedsInputLetter, answer: TaskResultLetter) -> None:
    """``LetterError`` with every problem of an answer that does not fit what was asked."""
    said = answer.payload
    if found := answer_problems(request.payload, said.result.inputs or {}, is_complete=said.status == "success"):
        raise LetterError(tuple(map(str, found)), code="invalid_answer")


def _checked(letter: Letter | Mapping[str, Any] | bytes | str) -> tuple[Letter, bytes]:
    """A letter that keeps every rule, whoever made it, and its text."""
    match letter:
        case Letter():
            return reread(letter)
        case bytes() | str():
            read = read_letter(letter)
        case _:
            read = letter_from(letter)
    return read, as_written(read)


def _answer_id(letter_id: str) -> str:
    return f"answer:{hashlib.sha256(letter_id.encode()).hexdigest()[:40]}"


def _box(recipient_id: str, team_id: str) -> str:
    return f"{team_id}/{recipient_id}"
