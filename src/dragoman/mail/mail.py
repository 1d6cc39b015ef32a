"""The mail of a store: letters are validated, stored, delivered in order and acknowledged once.

    mail = Mail(store)
    receipt = await mail.send(letter)                          stored durably
    for delivery in await mail.receive("CA", lease_s=60):      in order, one letter per task at a time
        await mail.ack(delivery, effect)                       acknowledged, in one transaction with its effect
        await mail.nack(delivery, error)                       retried later, or a dead letter
    async with mail.mailbox("CA") as mailbox:                  the same as a loop
        async for delivery in mailbox: …

``mail.for_team(team_id=…, user_id=…)`` is the mail of one team, isolated from other teams. With a transport
(``dragoman.mail.nats``) a letter is written to the outbox, and the transport sends it to the store of its recipient;
open such a mail with ``async with``.

Invariants: a letter in the outbox or an inbox stays there until it is acknowledged or dead, whatever happens to a
process, a transport or a consumer. An effect passed to ``ack`` is committed exactly once.
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

from dragoman.errors import ConflictError, DragomanError, InputError, LetterError, UnknownLetterError
from dragoman.letters import (
    HUMAN,
    Letter,
    NeedsInputLetter,
    TaskResultLetter,
    answer_letter,
    answer_problems,
    letter_from,
    read_letter,
    read_stored_letter,
    sensitive_ids,
)
from dragoman.letters.codec import encode_letter, validate_letter
from dragoman.letters.records import DeadLetter, FailureOutcome, LeasedLetter, MailboxCounts, Receipt, StoredLetter
from dragoman.mail import dead_letters
from dragoman.mail.encryption import Encryptor, make_encryptor
from dragoman.mail.evaluation import record_sent_result
from dragoman.mail.mailbox import Mailbox
from dragoman.mail.notices import make_escalation
from dragoman.mail.retry_policy import RULES, RetryRule, classify_error, get_rule, retry_at
from dragoman.mail.stored_letter import to_decrypted, to_masked, to_stored, to_transport
from dragoman.offload import LARGE, run_off_loop
from dragoman.redaction import Redactor
from dragoman.signals import MAIL, Signals, Subscription

if TYPE_CHECKING:
    from dragoman.store import Store
    from dragoman.store.mailbox.mail_store import LetterStatus
    from dragoman.store.operation import Operation, Rows, Statement

    Effect = Operation[Any] | Callable[["Delivery"], Operation[Any] | Generator[Statement, Rows, Any]]

MAX_DEPENDENCIES: Final = 1_000  # tasks that a letter may depend on
MAX_INPUTS: Final = 256  # inputs that a letter may request
OUTBOX: Final = "outbox"
LEASE_S: Final = 60.0
MIN_WAIT_S: Final = 0.05
MAX_WAIT_S: Final = 0.5
_THREAD_LIMIT: Final = 1_000_000


class Transport(Protocol):
    """Transports letters to other stores."""

    max_bytes: int  # of a letter

    async def open(self, mail: Mail) -> None:
        """Start to send the letters of the outbox."""

    async def close(self) -> None:
        """Stop."""

    async def subscribe(self, recipient_id: str, team_id: str) -> None:
        """Deliver the letters of a recipient to this store from now on."""

    @property
    def state(self) -> str:
        """``ok``, ``not connected`` or ``failing``."""

    async def health(self) -> Mapping[str, Any]:
        """Return the durability of letters in transit."""


class MailboxNotifier:
    """Wakes waiters when a letter is stored. Waiters also poll, so a lost wake-up only delays."""

    def __init__(self, signals: Signals | None = None) -> None:
        self._signals = signals or Signals()
        self.busy: set[str] = set()  # mailboxes that had letters at the last receive

    def notify(self, name: str) -> None:
        """Wake the waiters of a name."""
        self._signals.publish(MAIL, name)

    def waiter(self, name: str) -> Waiter:
        """Return a waiter, to be used with ``with``."""
        return Waiter(self._signals.subscribe(MAIL, name))


class Waiter:
    """Waits for a notification, or for a time that doubles from ``MIN_WAIT_S`` to ``MAX_WAIT_S``."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._wait_s = MIN_WAIT_S

    def __enter__(self) -> Waiter:
        self._subscription.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._subscription.close()

    def reset(self) -> None:
        """Make the next wait short."""
        self._wait_s = MIN_WAIT_S

    async def wait(self, max_s: float = MAX_WAIT_S) -> None:
        """Wait for a notification or the time-out."""
        was_notified = await self._subscription.wait(min(self._wait_s, max_s))
        self._wait_s = MIN_WAIT_S if was_notified else min(2 * self._wait_s, MAX_WAIT_S)


class Delivery:
    """A leased letter. ``letter`` has masked secrets; ``decrypt`` returns them."""

    def __init__(self, mail: Mail, leased: LeasedLetter) -> None:
        self._mail = mail
        self.leased = leased
        self.is_ended = False  # acknowledged or failed through this object

    def __repr__(self) -> str:
        return f"Delivery({self.letter_id!r}, attempt {self.attempts})"

    @functools.cached_property
    def letter(self) -> Letter:
        """The letter with masked secrets. Its ``retry_count`` is the number of earlier deliveries."""
        return to_masked(self.leased.letter, self.leased.attempts)

    @property
    def letter_id(self) -> str:
        """The id of the letter: an idempotency key for effects outside the store."""
        return self.leased.letter.letter_id

    @property
    def attempts(self) -> int:
        """The number of deliveries, this one included."""
        return self.leased.attempts

    @property
    def lease(self) -> str:
        """The secret of the lease holder."""
        return self.leased.lease

    @property
    def until(self) -> datetime:
        """The end of the lease."""
        return self.leased.until

    async def decrypt(self) -> Letter:
        """See ``Mail.decrypt``."""
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
    """The result of an acknowledgement."""

    is_first: bool  # false if the letter was acknowledged before; the effect did not run again
    result: Any = None  # the result of the effect


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
        self.notifier = MailboxNotifier(store.signals)
        self.redactor = Redactor()
        self.team_id = team_id or ""
        self.user_id = user_id
        self._retry_rules = retry_rules
        self._escalate_to = escalate_to
        self._random_source = random_source

    def for_team(self, *, team_id: str | None = None, user_id: str | None = None) -> Mail:
        """Return the mail of a team; letters are sent on behalf of the user."""
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
        """Whether letters are sent with a transport."""
        return self.transport is not None

    # --- send --------------------------------------------------------------------------------------------------------

    async def send(
        self,
        letter: Letter | Mapping[str, Any] | bytes | str,
        *,
        sender: str | None = None,
        session_id: str | None = None,
        message_id: str | None = None,
        turn_id: str | None = None,
    ) -> Receipt:
        """Store a letter durably. The same letter again returns the same receipt.

        ``sender`` is the authenticated sender, which must equal ``sender_id``. The other arguments link the letter to
        its origin. Raises ``LetterError`` for an invalid letter, and ``ConflictError`` for a different letter with the
        same id or a dependency cycle.
        """
        size = len(letter) if isinstance(letter, bytes | str) else 0
        valid_letter, text = _validate(letter) if size < LARGE else await run_off_loop(size, _validate, letter)
        if sender is not None and sender != valid_letter.sender_id:
            raise LetterError(
                (f"sender_id: it is {valid_letter.sender_id!r}, but {sender!r} sent the letter",),
                code="sender_mismatch",
            )
        stored = await self._prepare(valid_letter, text, session_id=session_id, message_id=message_id, turn_id=turn_id)
        receipt = await self.store.mail.post(stored, via_transport=self.uses_transport)
        self.notify(stored)
        await self._record_evaluation(valid_letter)
        return receipt

    async def send_all(self, letters: Iterable[Letter | Mapping[str, Any]], **links: str | None) -> list[Receipt]:
        """Store letters in one transaction: all of them, in this order, or none."""
        valid_letters = [_validate(letter) for letter in letters]
        batch = [await self._prepare(letter, text, **links) for letter, text in valid_letters]
        receipts = await self.store.mail.post_all(batch, via_transport=self.uses_transport)
        for stored in {stored.recipient_id: stored for stored in batch}.values():
            self.notify(stored)
        for letter, _ in valid_letters:
            await self._record_evaluation(letter)
        return receipts

    async def send_operation(self, letter: Letter | Mapping[str, Any], **links: str | None) -> Operation[Receipt]:
        """Return a letter as the effect of another: ``await delivery.ack(await mail.send_operation(reply))``."""
        valid_letter, text = _validate(letter)
        stored = await self._prepare(valid_letter, text, **links)
        return self.store.mail.post_operation(stored, via_transport=self.uses_transport)

    async def _prepare(self, letter: Letter, text: bytes, **links: str | None) -> StoredLetter:
        """Check the limits of a letter and convert it to its stored form."""
        if len(letter.depends_on) > MAX_DEPENDENCIES:
            what = f"context.depends_on: {len(letter.depends_on)} tasks are more than the limit of {MAX_DEPENDENCIES}"
            raise LetterError((what,), code="too_many_dependencies")
        if isinstance(letter, NeedsInputLetter) and len(letter.payload.requested_inputs) > MAX_INPUTS:
            count = len(letter.payload.requested_inputs)
            what = f"payload.requested_inputs: {count} inputs are more than the limit of {MAX_INPUTS}"
            raise LetterError((what,), code="too_many_inputs")
        ids = await self.requested_secrets(letter) if letter.in_reply_to is not None else None
        owner: dict[str, Any] = {"team_id": self.team_id, "user_id": self.user_id, **links}
        convert = functools.partial(to_stored, letter, self.encryptor, text=text, ids=ids, **owner)
        stored = convert() if len(text) < LARGE else await run_off_loop(len(text), convert)
        if self.transport is not None:
            await self._require_size(stored, self.transport)
        return stored

    async def requested_secrets(self, letter: Letter) -> frozenset[str] | None:
        """Return the sensitive inputs of the request that a letter answers; ``None`` if the request is unknown."""
        if not isinstance(letter, TaskResultLetter) or letter.in_reply_to is None:
            return None
        row = await self.store.mail.get(letter.sender_id, letter.in_reply_to, self.team_id)
        if row is None or row.type != "needs_input":
            return None
        if row.sender_id != letter.recipient_id:
            raise LetterError((f"recipient_id: expected {row.sender_id}, the sender of the request",))
        request = await run_off_loop(len(row.text), read_stored_letter, row.text.encode())
        if letter.is_answer and isinstance(request, NeedsInputLetter):
            _require_valid_answer(request, letter)
        return sensitive_ids(request)

    async def _require_size(self, stored: StoredLetter, transport: Transport) -> None:
        if (size := len(to_transport(stored))) <= transport.max_bytes:
            return
        what = f"{size} bytes are more than the {transport.max_bytes} bytes of the transport"
        await self.store.mail.mark_undeliverable(stored, reason="letter_too_large", error=what)
        raise LetterError((f"letter: {what}; it is stored as a dead letter",), code="letter_too_large")

    async def _record_evaluation(self, letter: Letter) -> None:
        if isinstance(letter, TaskResultLetter) and letter.has_evaluation:
            await record_sent_result(self.store, letter, team_id=self.team_id, user_id=self.user_id)

    async def answer(
        self, delivery: Delivery, inputs: Mapping[str, Any], *, output: str = "Input given", **links: str | None
    ) -> Receipt:
        """Answer a request for input. The answer is sent to the sender of the request; a request has one answer.

        Raises ``LetterError`` (``invalid_answer``) with every problem if the inputs do not match the request.
        """
        request = await run_off_loop(len(delivery.leased.letter.text), lambda: delivery.letter)
        if not isinstance(request, NeedsInputLetter):
            raise LetterError(("type: only a needs_input letter can be answered",))
        context = {**(request.context or {}), "message_id": delivery.letter_id}
        answer = answer_letter(
            request.replace(context=context),
            inputs=inputs,
            timestamp=self.store.clock(),
            output=output,
            message_id=f"answer:{hashlib.sha256(delivery.letter_id.encode()).hexdigest()[:40]}",
        )
        return await self.send(answer, **links)

    def notify(self, stored: StoredLetter) -> None:
        """Wake the waiters for a new letter."""
        self.notifier.notify(OUTBOX if self.uses_transport else self._mailbox_key(stored.recipient_id))

    def notify_all(self, *recipient_ids: str) -> None:
        """Wake the waiters of mailboxes and of the outbox."""
        for recipient_id in recipient_ids:
            self.notifier.notify(self._mailbox_key(recipient_id))
        self.notifier.notify(OUTBOX)

    def _mailbox_key(self, recipient_id: str) -> str:
        return f"{self.team_id}/{recipient_id}"

    # --- receive -----------------------------------------------------------------------------------------------------

    async def receive(
        self, recipient: str, *, lease_s: float = LEASE_S, limit: int = 10, letter_id: str | None = None
    ) -> list[Delivery]:
        """Lease the next letters of a mailbox, in order, at most one per task.

        ``letter_id`` selects one letter, if it is available and the first of its task.
        """
        if self.transport is not None:
            await self.transport.subscribe(recipient, self.team_id)
        key = self._mailbox_key(recipient)
        if key not in self.notifier.busy and not await self.store.mail.has_ready(recipient, self.team_id):
            return []  # this query is cheap, and waiters repeat it often
        letters = await self.store.mail.lease_letters(
            recipient, self.team_id, lease_s=lease_s, limit=limit, letter_id=letter_id
        )
        (self.notifier.busy.add if letters else self.notifier.busy.discard)(key)
        return [Delivery(self, leased) for leased in letters]

    async def delivery(self, recipient: str, letter_id: str, lease: str) -> Delivery:
        """Return a delivery for the holder of a lease."""
        stored = await self.store.mail.get(recipient, letter_id, self.team_id)
        if stored is None:
            raise UnknownLetterError("the letter does not exist", where=f"letter {letter_id} to {recipient}")
        now = self.store.clock()
        return Delivery(self, LeasedLetter(letter=stored, number=0, attempts=0, lease=lease, until=now))

    def mailbox(self, recipient: str, *, lease_s: float = LEASE_S, concurrency: int = 1) -> Mailbox:
        """Return the letters of a recipient as a loop that waits for new ones."""
        return Mailbox(self, recipient, lease_s=lease_s, concurrency=concurrency)

    async def decrypt(self, delivery: Delivery) -> Letter:
        """Return a letter with its secrets, for the holder of its lease."""
        await self.store.mail.require_lease(delivery.leased)
        stored = delivery.leased.letter
        complete = msgspec.structs.replace(stored, sealed=await self.store.mail.sealed_values(stored))
        letter = await run_off_loop(len(stored.text), to_decrypted, complete, self.encryptor)
        return letter.with_attempts(delivery.attempts or await self._count_attempts(stored))

    async def _count_attempts(self, stored: StoredLetter) -> int:
        matches = await self.letters(recipient_id=stored.recipient_id, letter_id=stored.letter_id, limit=1)
        return matches[0].attempts if matches else 0

    async def ack(self, delivery: Delivery, effect: Effect | None = None) -> AckResult:
        """Acknowledge a letter. ``effect`` is an operation of the store, or a function that returns one.

        Both are committed in one transaction. The store may restart an effect after a rollback. Raises
        ``ConflictError`` (``lease_lost``) if the letter was leased again.
        """
        make_effect: Callable[[], Any] | None = None
        if effect is not None:
            make_effect = (lambda: effect(delivery)) if callable(effect) else (lambda: effect)
        is_first, result = await self.store.mail.acknowledge(delivery.leased, make_effect)
        delivery.is_ended = True
        self.notifier.notify(self._mailbox_key(delivery.leased.letter.recipient_id))  # the next letter of the task
        if effect is not None:
            self.notifier.notify(OUTBOX)  # the effect may be a letter
        return AckResult(is_first, result)

    async def ack_all(self, deliveries: Sequence[Delivery]) -> list[AckResult | ConflictError]:
        """Acknowledge letters in one transaction. A lost lease is returned and does not affect the others."""
        results = await self.store.mail.acknowledge_all([delivery.leased for delivery in deliveries])
        for delivery, result in zip(deliveries, results, strict=True):
            delivery.is_ended = delivery.is_ended or not isinstance(result, ConflictError)
        for recipient_id in {delivery.leased.letter.recipient_id for delivery in deliveries}:
            self.notifier.notify(self._mailbox_key(recipient_id))
        return [result if isinstance(result, ConflictError) else AckResult(result) for result in results]

    async def nack(
        self,
        delivery: Delivery,
        error: BaseException | str = "",
        *,
        error_class: str | None = None,
        retry_after_s: float | None = None,
    ) -> FailureOutcome | None:
        """Report a failure: the letter is retried by the rule of its error class, or becomes a dead letter.

        A dead letter is escalated. Returns none if the letter was acknowledged before.
        """
        name = error_class or classify_error(error)
        rule = get_rule(self._retry_rules, name)
        now = self.store.clock()
        text = self.redactor.text(str(error) or name)
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
            if notice is None:
                return []
            return [to_stored(notice, self.encryptor, team_id=self.team_id, user_id=self.user_id)]

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
        self.notify_all(self._escalate_to, stored.recipient_id)
        return outcome

    async def release(self, delivery: Delivery) -> None:
        """End a lease without counting the delivery."""
        await self.store.mail.release(delivery.leased)
        self.notifier.notify(self._mailbox_key(delivery.leased.letter.recipient_id))

    async def extend(self, delivery: Delivery, lease_s: float = LEASE_S) -> datetime:
        """Extend a lease; ``ConflictError`` (``lease_lost``) if the letter was leased again."""
        until = await self.store.mail.extend(delivery.leased, lease_s)
        delivery.leased = msgspec.structs.replace(delivery.leased, until=until)
        return until

    # --- list --------------------------------------------------------------------------------------------------------

    async def letters(self, **filters: Any) -> list[LetterStatus]:
        """Return letters with their status, in the order of sending: by ``recipient_id``, ``sender_id``, ``task_id``,
        ``letter_id``, ``session_id`` or ``user_id``; ``after`` the last letter of a page, at most ``limit``."""
        return await self.store.mail.find(team_id=self.team_id, **filters)

    async def thread(self, task_id: str, limit: int = _THREAD_LIMIT) -> list[LetterStatus]:
        """Return the letters of a task in the order of sending."""
        return await self.letters(task_id=task_id, limit=limit)

    async def counts(self) -> list[MailboxCounts]:
        """Return the counts of each mailbox."""
        return await self.store.mail.counts(self.team_id)

    @property
    def state(self) -> str:
        """``ok``, ``not connected`` (letters wait for the broker) or ``failing`` (a task of the transport fails)."""
        return "ok" if self.transport is None else self.transport.state

    async def health(self) -> dict[str, Any]:
        """Return the durability of letters and the number of letters in each state."""
        counts = await self.store.mail.counts()
        report: dict[str, Any] = {
            "durability": self.store.durability,
            "transport": "embedded" if self.transport is None else type(self.transport).__name__,
            "state": self.state,
            "waiting": sum(box.ready + box.waiting + box.leased + box.behind + box.held for box in counts),
            "away": sum(box.away for box in counts),
            "dead": sum(box.dead for box in counts),
        }
        if self.transport is not None:
            report.update(await self.transport.health())
        return report

    async def rotate_keys(self) -> int:
        """Encrypt the values of older keys with the current key; return their number."""
        return await self.store.mail.reencrypt(self.encryptor.key_names()[0], self._reencrypt)

    def _reencrypt(self, key_id: str, ciphertext: bytes, *context: str) -> tuple[str, bytes]:
        return self.encryptor.encrypt_bytes(self.encryptor.decrypt_bytes(key_id, ciphertext, *context), *context)

    # --- dead letters ------------------------------------------------------------------------------------------------

    async def accept(self, data: bytes, *, sender: str | None = None) -> Receipt | DeadLetter:
        """Send bytes. An invalid letter is stored as a dead letter, and its sender is notified."""
        try:
            return await self.send(data, sender=sender)
        except InputError as error:
            return await self.reject(data, error)

    async def reject(self, data: bytes, error: DragomanError, **options: Any) -> DeadLetter:
        """Store an invalid letter, encrypted, as a dead letter and notify its sender, if it is known.

        ``recipient_id`` is the mailbox; the default is that of the letter. A ``dead_id`` is stored once. With
        ``is_trusted=False`` the sender may be forged and is not notified.
        """
        return await dead_letters.reject(self, data, error, **options)

    async def dead_letters(self, **filters: Any) -> list[DeadLetter]:
        """Return dead letters, newest first: by ``dead_id``, ``recipient_id``, ``sender_id`` or ``user_id``."""
        return await self.store.mail.dead_letters(team_id=self.team_id, **filters)

    async def resend(self, dead_id: str) -> Receipt:
        """Send a dead letter again; ``LetterError`` if it is an invalid letter."""
        return await dead_letters.resend(self, dead_id)


def _require_valid_answer(request: NeedsInputLetter, answer: TaskResultLetter) -> None:
    payload = answer.payload
    is_complete = payload.status == "success"
    if problems := answer_problems(request.payload, payload.result.inputs or {}, is_complete=is_complete):
        raise LetterError(tuple(map(str, problems)), code="invalid_answer")


def _validate(letter: Letter | Mapping[str, Any] | bytes | str) -> tuple[Letter, bytes]:
    """Return a valid letter and its text."""
    match letter:
        case Letter():
            return validate_letter(letter)
        case bytes() | str():
            valid_letter = read_letter(letter)
        case _:
            valid_letter = letter_from(letter)
    return valid_letter, encode_letter(valid_letter)
