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
from dragoman.letters.codec import encode_letter, validate_letter
from dragoman.letters.records import DeadLetter, FailureOutcome, LeasedLetter, MailboxCounts, Receipt, StoredLetter
from dragoman.mail.encryption import Encryptor, make_encryptor
from dragoman.mail.evaluation import has_evaluation, record_sent_result
from dragoman.mail.mailbox import Mailbox
from dragoman.mail.notices import make_escalation, make_rejection_notice
from dragoman.mail.retry_policy import RULES, RetryRule, classify_error, get_rule, retry_at
from dragoman.mail.stored_letter import to_decrypted, to_masked, to_stored, to_transport
from dragoman.mail.waking import MailboxNotifier
from dragoman.offload import run_off_loop
from dragoman.redaction import Redactor

if TYPE_CHECKING:
    from dragoman.store import Store
    from dragoman.store.mailbox.mail_store import LetterStatus
    from dragoman.store.operation import Operation, Rows, Statement

    Effect = Operation[Any] | Callable[["Delivery"], Operation[Any] | Generator[Statement, Rows, Any]]

MAX_DEPENDENCIES: Final = 1_000  # tasks that a letter may depend on
MAX_INPUTS: Final = 256  # inputs that a letter may ask for
OUTBOX: Final = "outbox"
LEASE_S: Final = 60.0
_THREAD_LIMIT: Final = 1_000_000


class Transport(Protocol):
    """What carries letters to other stores."""

    max_bytes: int  # of what it can carry

    async def open(self, mail: Mail) -> None:
        """Begin to send what is in the outbox."""

    async def close(self) -> None:
        """Finish what was begun."""

    async def subscribe(self, recipient_id: str, team_id: str) -> None:
        """Bring the letters of this recipient to this store from now on."""

    @property
    def state(self) -> str:
        """``ok``, ``not connected`` or ``failing``."""

    async def health(self) -> Mapping[str, Any]:
        """How safe a letter is on the way, in words, and how many are."""


class Delivery:
    """A letter in somebody's hands. ``letter`` has ``***`` in place of what is sensitive; ``opened`` has it."""

    def __init__(self, mail: Mail, leased: LeasedLetter) -> None:
        self._mail = mail
        self.leased = leased
        self.is_ended = False  # it was acknowledged or given up, by way of this value

    def __repr__(self) -> str:
        return f"Delivery({self.letter_id!r}, attempt {self.attempts})"

    @functools.cached_property
    def letter(self) -> Letter:
        """The letter, as people may see it. Its ``retry_count`` counts the times that it was handed out before."""
        return to_masked(self.leased.letter, self.attempts)

    @property
    def letter_id(self) -> str:
        """What the letter is known by: the key for effects that are elsewhere."""
        return self.leased.letter.letter_id

    @property
    def attempts(self) -> int:
        """The how-manieth time it is handed out, beginning with 1."""
        return self.leased.attempts

    @property
    def lease(self) -> str:
        """What its holder is known by."""
        return self.leased.lease

    @property
    def until(self) -> datetime:
        """When somebody else may get it."""
        return self.leased.until

    async def decrypt(self) -> Letter:
        """The letter with what is sensitive, for its recipient."""
        return await self._mail.decrypt(self)

    def ack(self, effect: Effect | None = None) -> Coroutine[Any, Any, AckResult]:
        """See ``Mail.ack``."""
        return self._mail.ack(self, effect)

    async def nack(self, error: BaseException | str = "", **failure: Any) -> FailureOutcome | None:
        """See ``Mail.nack``."""
        return await self._mail.nack(self, error, **failure)

    async def extend(self, lease_s: float = LEASE_S) -> datetime:
        """See ``Mail.extend``."""
        return await self._mail.extend(self, lease_s)


class AckResult(msgspec.Struct, frozen=True):
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
        encryptor: Encryptor | None = None,
        retry_rules: Mapping[str, RetryRule] = RULES,
        escalate_to: str = HUMAN,
        team_id: str | None = None,
        user_id: str | None = None,
        random_source: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self.transport = transport
        self.encryptor = encryptor or make_encryptor(store)
        self.notifier = MailboxNotifier()
        self.team_id = team_id or ""
        self.user_id = user_id
        self._retry_rules = retry_rules
        self._escalate_to = escalate_to
        self._random_source = random_source
        self._redactor = Redactor()

    def for_team(self, *, team_id: str | None = None, user_id: str | None = None) -> Mail:
        """The mail of a team, with the person that letters are sent for."""
        mail = copy.copy(self)
        mail.team_id, mail.user_id = team_id or "", user_id
        return mail

    async def __aenter__(self) -> Self:
        if self.transport is not None:
            await self.transport.open(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.transport is not None:
            await self.transport.close()

    @property
    def uses_transport(self) -> bool:
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
        valid_letter, text = await run_off_loop(size, _validate, letter)
        if sender is not None and sender != valid_letter.sender_id:
            raise LetterError(
                (f"sender_id: it is {valid_letter.sender_id!r}, and it was sent by {sender!r}",), code="sender_mismatch"
            )
        stored = await self._prepare(valid_letter, text, session_id=session_id, message_id=message_id, turn_id=turn_id)
        receipt = await self.store.mail.post(stored, via_transport=self.uses_transport)
        self.notify(stored)
        if has_evaluation(valid_letter):
            await record_sent_result(self.store, valid_letter, team_id=self.team_id, user_id=self.user_id)
        return receipt

    async def send_all(self, letters: Iterable[Letter | Mapping[str, Any]], **links: str | None) -> list[Receipt]:
        """Take letters in one transaction: all of them, in this order, or none."""
        valid_letters = [_validate(letter) for letter in letters]
        stored = [await self._prepare(letter, text, **links) for letter, text in valid_letters]
        receipts = await self.store.mail.post_all(stored, via_transport=self.uses_transport)
        for one in {one.recipient_id: one for one in stored}.values():
            self.notify(one)
        for letter, _ in valid_letters:
            if has_evaluation(letter):
                await record_sent_result(self.store, letter, team_id=self.team_id, user_id=self.user_id)
        return receipts

    async def send_operation(self, letter: Letter | Mapping[str, Any], **links: str | None) -> Operation[Receipt]:
        """A letter that is sent when another one is done: ``await delivery.ack(await mail.sending(reply))``."""
        valid_letter, text = _validate(letter)
        return self.store.mail.post_operation(
            await self._prepare(valid_letter, text, **links), via_transport=self.uses_transport
        )

    async def _prepare(self, letter: Letter, text: bytes, **links: str | None) -> StoredLetter:
        """What is kept of a letter, if it may be sent."""
        if len(letter.depends_on) > MAX_DEPENDENCIES:
            what = f"context.depends_on: {len(letter.depends_on)} tasks are more than the {MAX_DEPENDENCIES} allowed"
            raise LetterError((what,), code="too_many_dependencies")
        if isinstance(letter, NeedsInputLetter) and len(letter.payload.requested_inputs) > MAX_INPUTS:
            count = len(letter.payload.requested_inputs)
            what = f"payload.requested_inputs: {count} inputs are more than the {MAX_INPUTS} allowed"
            raise LetterError((what,), code="too_many_inputs")
        ids = await self._requested_secrets(letter) if letter.in_reply_to is not None else None
        arguments: dict[str, Any] = {
            "text": text,
            "ids": ids,
            "team_id": self.team_id,
            "user_id": self.user_id,
            **links,
        }
        stored = await run_off_loop(len(text), functools.partial(to_stored, letter, self.encryptor, **arguments))
        if self.transport is not None:
            await self._require_size(stored, self.transport)
        return stored

    async def accept(self, data: bytes, *, sender: str | None = None) -> Receipt | DeadLetter:
        """Take bytes that should be a letter. What is none is kept as a dead letter, and its sender is told."""
        try:
            return await self.send(data, sender=sender)
        except InputError as error:
            return await self.reject(data, error)

    async def reject(
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
        hints = await run_off_loop(len(data), hints_from, data)
        now = self.store.clock()
        notice = None
        if is_trusted:
            notice = make_rejection_notice(hints, error.code, self._redactor.text(error.what), self.store.new_id(), now)
        key_id, raw = self._encrypt_raw(data)
        dead = await self.store.mail.insert_dead_letter(
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
            notices=() if notice is None else (self._to_stored(notice),),
            via_transport=self.uses_transport,
            dead_id=dead_id,
        )
        if notice is not None:
            self.notify(self._to_stored(notice))
        return dead

    def _encrypt_raw(self, data: bytes) -> tuple[str | None, bytes | None]:
        """Bytes that may hold anything, sealed; nothing of them is kept where nothing can be sealed."""
        try:
            return self.encryptor.encrypt_bytes(data, "dead letter", self.team_id)
        except SettingsError:
            return None, None

    async def answer(
        self, delivery: Delivery, inputs: Mapping[str, Any], *, output: str = "Input given", **links: str | None
    ) -> Receipt:
        """Answer a request for input: the answer goes back to whoever asked, and there is one answer to a request.

        ``LetterError`` (``invalid_answer``) with every problem if it does not fit what was asked.
        """
        request = await run_off_loop(len(delivery.leased.letter.text), lambda: delivery.letter)
        if not isinstance(request, NeedsInputLetter):
            raise LetterError(("type: only a needs_input letter is answered",))
        context = {**(request.context or {}), "message_id": delivery.letter_id}
        answer = answer_letter(
            request.replace(context=context),
            inputs=inputs,
            timestamp=self.store.clock(),
            output=output,
            message_id=_answer_id(delivery.letter_id),
        )
        return await self.send(answer, **links)

    async def _requested_secrets(self, letter: Letter) -> frozenset[str] | None:
        """The sensitive inputs of the request that a letter answers; ``None`` where that is not known."""
        if not isinstance(letter, TaskResultLetter) or letter.in_reply_to is None:
            return None
        request_row = await self.store.mail.get(letter.sender_id, letter.in_reply_to, self.team_id)
        if request_row is None or request_row.type != "needs_input":
            return None
        if request_row.sender_id != letter.recipient_id:
            raise LetterError(
                (f"recipient_id: this answers a letter of {request_row.sender_id}, and must be sent to that agent",)
            )
        request = await run_off_loop(len(request_row.text), read_stored_letter, request_row.text.encode())
        if letter.is_answer and isinstance(request, NeedsInputLetter):
            _require_valid_answer(request, letter)
        return sensitive_ids(request)

    async def _require_size(self, stored: StoredLetter, transport: Transport) -> None:
        if (size := len(to_transport(stored))) <= transport.max_bytes:
            return
        what = f"it takes {size} bytes, and the transport carries {transport.max_bytes}"
        await self.store.mail.mark_undeliverable(stored, reason="letter_too_large", error=what)
        raise LetterError((f"letter: {what}; it is among the dead letters",), code="letter_too_large")

    def _to_stored(self, letter: Letter) -> StoredLetter:
        return to_stored(letter, self.encryptor, team_id=self.team_id, user_id=self.user_id)

    def notify(self, stored: StoredLetter) -> None:
        """Tell whoever waits in this process that there is something."""
        self.notifier.notify(OUTBOX if self.uses_transport else _mailbox_key(stored.recipient_id, stored.team_id))

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def receive(
        self, recipient: str, *, lease_s: float = LEASE_S, limit: int = 10, letter_id: str | None = None
    ) -> list[Delivery]:
        """The next letters of a mailbox, in order and of each task one; nobody else gets them while the lease lasts.

        ``letter_id`` asks for one letter, which is given if nobody has it and nothing of its task stands before it.
        """
        if self.transport is not None:
            await self.transport.subscribe(recipient, self.team_id)
        mailbox_key = _mailbox_key(recipient, self.team_id)
        if mailbox_key not in self.notifier.busy and not await self.store.mail.has_ready(recipient, self.team_id):
            return []  # to look is cheap, and who waits does it often
        leased = await self.store.mail.lease_letters(
            recipient, self.team_id, lease_s=lease_s, limit=limit, letter_id=letter_id
        )
        (self.notifier.busy.add if leased else self.notifier.busy.discard)(mailbox_key)
        return [Delivery(self, one) for one in leased]

    async def delivery(self, recipient: str, letter_id: str, lease: str) -> Delivery:
        """A letter that was handed out before, for whoever knows its lease."""
        stored = await self.store.mail.get(recipient, letter_id, self.team_id)
        if stored is None:
            raise UnknownLetterError("there is no such letter", where=f"letter {letter_id} to {recipient}")
        now = self.store.clock()
        return Delivery(self, LeasedLetter(letter=stored, number=0, attempts=0, lease=lease, until=now))

    def mailbox(self, recipient: str, *, lease_s: float = LEASE_S, concurrency: int = 1) -> Mailbox:
        """The letters of a recipient as a loop that waits for more."""
        return Mailbox(self, recipient, lease_s=lease_s, concurrency=concurrency)

    async def decrypt(self, delivery: Delivery) -> Letter:
        """A letter with what is sensitive in it. Only who holds it can have it."""
        await self.store.mail.require_lease(delivery.leased)
        stored = delivery.leased.letter
        sealed = await self.store.mail.sealed_values(stored)
        complete = msgspec.structs.replace(stored, sealed=sealed)
        letter = await run_off_loop(len(stored.text), to_decrypted, complete, self.encryptor)
        return letter.with_attempts(delivery.attempts or await self._count_attempts(stored))

    async def _count_attempts(self, stored: StoredLetter) -> int:
        """How often a letter was handed out."""
        matches = await self.letters(recipient_id=stored.recipient_id, letter_id=stored.letter_id, limit=1)
        return matches[0].attempts if matches else 0

    async def ack(self, delivery: Delivery, effect: Effect | None = None) -> AckResult:
        """A letter is done. Its effect, an operation of the store or a function that gives one, happens with it.

        Both are one transaction: either the effect happened and the letter is done, or neither. An effect may be begun
        again when the database undid it. ``ConflictError`` (``lease_lost``) if the letter is in other hands by now.
        """
        begin: Callable[[], Any] | None = None
        if effect is not None:
            begin = (lambda: effect(delivery)) if callable(effect) else (lambda: effect)
        is_first, result = await self.store.mail.acknowledge(delivery.leased, begin)
        delivery.is_ended = True
        self.notifier.notify(
            _mailbox_key(delivery.leased.letter.recipient_id, self.team_id)
        )  # the next one of its task
        if effect is not None:
            self.notifier.notify(OUTBOX)  # the effect may have been a letter
        return AckResult(is_first, result)

    async def ack_all(self, deliveries: Sequence[Delivery]) -> list[AckResult | ConflictError]:
        """Letters are done, in one transaction. What is in other hands by now is told, and keeps nothing else up."""
        results = await self.store.mail.acknowledge_all([delivery.leased for delivery in deliveries])
        for delivery, result in zip(deliveries, results, strict=True):
            delivery.is_ended = delivery.is_ended or not isinstance(result, ConflictError)
        for recipient_id in {delivery.leased.letter.recipient_id for delivery in deliveries}:
            self.notifier.notify(_mailbox_key(recipient_id, self.team_id))
        return [result if isinstance(result, ConflictError) else AckResult(result) for result in results]

    async def nack(
        self,
        delivery: Delivery,
        error: BaseException | str = "",
        *,
        error_class: str | None = None,
        retry_after_s: float | None = None,
    ) -> FailureOutcome | None:
        """A letter could not be handled: it is handed out again later, or given up. Nothing if it was done before.

        How often and how much later, the rule of the error's class says. Who is told at the end gets an error letter.
        """
        name = error_class or classify_error(error)
        rule = get_rule(self._retry_rules, name)
        now = self.store.clock()
        text = self._redactor.text(str(error) or name)
        stored = delivery.leased.letter
        random_value = self._random_source()

        def next_attempt(attempts: int) -> datetime | None:
            at = retry_at(rule, attempts, now, random_value)
            return at if at is None or retry_after_s is None else now + timedelta(seconds=retry_after_s)

        def make_notices(attempts: int, is_dead: bool) -> list[StoredLetter]:
            if not is_dead and not (rule.escalate_immediately and attempts == 1):
                return []
            notice = make_escalation(
                stored,
                self._escalate_to,
                error_class=name,
                error=text,
                attempts=attempts,
                is_dead=is_dead,
                now=now,
            )
            return [] if notice is None else [self._to_stored(notice)]

        outcome = await self.store.mail.fail(
            delivery.leased,
            error_class=name,
            reason="retries_exhausted" if rule.retries else name,
            error=text,
            retry_at=next_attempt,
            make_notices=make_notices,
            via_transport=self.uses_transport,
        )
        delivery.is_ended = True
        self.notifier.notify(_mailbox_key(self._escalate_to, self.team_id))
        self.notifier.notify(_mailbox_key(stored.recipient_id, self.team_id))
        self.notifier.notify(OUTBOX)
        return outcome

    async def release(self, delivery: Delivery) -> None:
        """Let somebody else have a letter, as if it had not been handed out."""
        await self.store.mail.release(delivery.leased)
        self.notifier.notify(_mailbox_key(delivery.leased.letter.recipient_id, self.team_id))

    async def extend(self, delivery: Delivery, lease_s: float = LEASE_S) -> datetime:
        """Keep a letter for longer; ``ConflictError`` (``lease_lost``) if somebody else has it."""
        until = await self.store.mail.extend(delivery.leased, lease_s)
        delivery.leased = msgspec.structs.replace(delivery.leased, until=until)
        return until

    # --- looking -----------------------------------------------------------------------------------------------------

    async def letters(self, **filters: Any) -> list[LetterStatus]:
        """Letters, with where they stand, in the order in which they were taken: by ``recipient_id``, ``sender_id``,
        ``task_id``, ``letter_id``, ``session_id`` or ``user_id``; ``after`` the last of a page, so many (``limit``)."""
        return await self.store.mail.find(team_id=self.team_id, **filters)

    async def thread(self, task_id: str, limit: int = _THREAD_LIMIT) -> list[LetterStatus]:
        """Every letter of a task, in the order in which they were taken."""
        return await self.letters(task_id=task_id, limit=limit)

    async def counts(self) -> list[MailboxCounts]:
        """How much is in each mailbox."""
        return await self.store.mail.counts(self.team_id)

    async def dead_letters(self, **filters: Any) -> list[DeadLetter]:
        """Dead letters, the newest first: by ``dead_id``, ``recipient_id``, ``sender_id`` or ``user_id``."""
        return await self.store.mail.dead_letters(team_id=self.team_id, **filters)

    def get_raw(self, dead: DeadLetter) -> bytes | None:
        """What came, as it came; nothing where it could not be kept. ``seen`` makes it a text for people."""
        if dead.key_id is None or dead.raw is None:
            return dead.raw
        return self.encryptor.decrypt_bytes(dead.key_id, dead.raw, "dead letter", self.team_id)

    async def resend(self, dead_id: str) -> Receipt:
        """Send a dead letter again. One that is no letter is still none: ``LetterError``."""
        matches = await self.dead_letters(dead_id=dead_id, include_resent=True)
        if not matches:
            raise UnknownLetterError("there is no such dead letter", where=dead_id)
        dead = matches[0]
        stored = None
        if dead.key_id is not None and (data := self.get_raw(dead)) is not None:
            letter = read_letter(data)
            stored = to_stored(letter, self.encryptor, ids=await self._requested_secrets(letter), team_id=self.team_id)
        receipt = await self.store.mail.resend(dead, stored, via_transport=self.uses_transport)
        self.notifier.notify(OUTBOX)
        self.notifier.notify(_mailbox_key(receipt.recipient_id, self.team_id))
        return receipt

    @property
    def state(self) -> str:
        """``ok``; ``not connected`` while letters wait for a broker; ``failing`` while a task of mail does not work."""
        return "ok" if self.transport is None else self.transport.state

    async def health(self) -> dict[str, Any]:
        """How safe letters are, in words, and how many are on their way."""
        counts = await self.store.mail.counts()
        report: dict[str, Any] = {
            "durability": self.store.durability,
            "transport": "embedded" if self.transport is None else type(self.transport).__name__,
            "state": self.state,
            "waiting": sum(one.ready + one.waiting + one.leased + one.behind + one.held for one in counts),
            "away": sum(one.away for one in counts),
            "dead": sum(one.dead for one in counts),
        }
        if self.transport is not None:
            report.update(await self.transport.health())
        return report

    async def rotate_keys(self) -> int:
        """Seal what older keys have sealed with the one that seals now; how many values that were."""
        return await self.store.mail.reencrypt(self.encryptor.key_names()[0], self._reencrypt)

    def _reencrypt(self, key_id: str, ciphertext: bytes, *context: str) -> tuple[str, bytes]:
        return self.encryptor.encrypt_bytes(self.encryptor.decrypt_bytes(key_id, ciphertext, *context), *context)


def _require_valid_answer(request: NeedsInputLetter, answer: TaskResultLetter) -> None:
    """``LetterError`` with every problem of an answer that does not fit what was asked."""
    payload = answer.payload
    if problems := answer_problems(
        request.payload, payload.result.inputs or {}, is_complete=payload.status == "success"
    ):
        raise LetterError(tuple(map(str, problems)), code="invalid_answer")


def _validate(letter: Letter | Mapping[str, Any] | bytes | str) -> tuple[Letter, bytes]:
    """A letter that keeps every rule, whoever made it, and its text."""
    match letter:
        case Letter():
            return validate_letter(letter)
        case bytes() | str():
            valid_letter = read_letter(letter)
        case _:
            valid_letter = letter_from(letter)
    return valid_letter, encode_letter(valid_letter)


def _answer_id(letter_id: str) -> str:
    return f"answer:{hashlib.sha256(letter_id.encode()).hexdigest()[:40]}"


def _mailbox_key(recipient_id: str, team_id: str) -> str:
    return f"{team_id}/{recipient_id}"
