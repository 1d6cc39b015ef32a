"""Letters between machines, carried by NATS JetStream, which is a carrier and never the place where a letter is kept.

    servers = ["tls://one:4222", "tls://two:4222", "tls://three:4222"]
    transport = NatsTransport(servers, BrokerAccess(nkey="user.seed", ca="ca.pem"), replicas=3)
    async with Mail(store, transport=transport) as mail: …

A letter that is sent is in the outbox of the sender's store. The relay publishes it and marks it when JetStream has it.
Whoever attends to the recipient pulls it, commits it to the inbox of its own store, and acknowledges after that. Then a
receipt goes back, and only the receipt takes the letter out of the outbox; where both sides have one store, the row in
the inbox is the receipt. What has none after ``resend_s`` is looked for on the broker and published again if it is not
there, and the inbox knows what it has: so a broker that loses everything loses nothing. What was given to somebody who
died is brought again after ``redeliver_s``.

Of one task, the outbox sends one letter to a recipient at a time, so that the order holds on the way.

A recipient is attended to in one store: whoever asks for its letters there brings them there.

With shared mail keys, letters and receipts are signed and encrypted (``dragoman.mail.wire``), and what is not is a dead
letter. A broker on another machine is not used without them.

Invariants: nothing is acknowledged to the broker before the inbox has committed it, and no letter leaves the outbox
before a receipt that was checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import (
    DragomanError,
    FormatError,
    LetterError,
    SettingsError,
    StorageError,
    StoreUnusableError,
    TransportError,
)
from dragoman.letters import is_agent_name, read_stored_letter
from dragoman.letters.kept import Posted
from dragoman.mail.broker_access import BrokerAccess, is_this_machine
from dragoman.mail.mail import OUTBOX
from dragoman.mail.posting import packed, unpacked
from dragoman.mail.sealing import KEYS_VARIABLE
from dragoman.mail.supervisor import Supervisor
from dragoman.mail.wire import MESSAGE_ID, ORIGIN, UNTRUSTED, Wire

try:
    import nats.errors
    import nats.js.errors
    from nats.aio.client import Client
    from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
except ImportError:
    raise TransportError(
        "NATS needs a package that is not installed", remedy="Install dragoman[nats]", code="missing_extra"
    ) from None

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

    from dragoman.mail.mail import Mail

    Taken = tuple[Msg, Posted]

Key = tuple[str, str, str]
_log: Final = logging.getLogger("dragoman.mail.nats")
_ROOM: Final = 2048  # for the headers, which count as well
_MAX_PAYLOAD: Final = 1024 * 1024  # what a server takes unless it is told otherwise
_FETCH_S: Final = 5.0
_PUBLISH_S: Final = 5.0
_RECONNECT_S: Final = 0.25
_CLOSING_S: Final = 5.0
_STORE_AWAY: Final = (StorageError, StoreUnusableError)
_MOST_RAW: Final = 64 * 1024  # bytes that are kept of a message that is no letter
_UNREADABLE: Final = "it cannot be read ({})"
_TROUBLE: Final = (nats.errors.Error, OSError, TimeoutError, EOFError)


class _Client(Client):
    """A client that proves who it is with an nkey, and sends nothing to a server without TLS where TLS is wanted."""

    def __init__(self, access: BrokerAccess, *, wants_tls: bool) -> None:
        super().__init__()
        self._public_nkey = access.public_nkey()
        self._wants_tls = wants_tls or access.wants_tls

    def _connect_command(self) -> bytes:
        if self._wants_tls and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS, and TLS is wanted")
        return super()._connect_command()


class NatsTransport:
    """Carries letters by JetStream. ``Mail`` opens and closes it."""

    def __init__(
        self,
        servers: str | Sequence[str],
        access: BrokerAccess | None = None,
        *,
        sign_only: bool = False,
        stream: str = "DRAGOMAN_MAIL",
        prefix: str = "dragoman.mail",
        replicas: int = 1,
        resend_s: float = 30.0,
        redeliver_s: float = 10.0,
        batch: int = 256,
        monitor: str | None = None,
    ) -> None:
        self.most_bytes = _MAX_PAYLOAD - _ROOM
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self._stream = stream
        self._prefix = prefix
        self._replicas = replicas
        self._resend_s = resend_s
        self._redeliver_s = redeliver_s
        self._batch = batch
        self._monitor = monitor
        self._access = access or BrokerAccess()
        self._sign_only = sign_only
        self._wire: Wire | None = None
        self._mail: Mail | None = None
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._origin = ""
        self._refusal = ""
        self._connected = asyncio.Event()
        self._supervisor = Supervisor("dragoman-nats")
        self._attended: set[tuple[str, str]] = set()

    # --- opening -----------------------------------------------------------------------------------------------------

    async def open(self, mail: Mail) -> None:
        """Begin to send. A broker that is not there yet is waited for; letters are taken meanwhile."""
        self._access.options()  # a file that cannot be used is an error now, and not a broker that is not there
        self._wire = Wire(mail.sealing, mail.store.clock, encrypts=not self._sign_only)
        if not self._wire.is_signed:
            self._refuse_unsigned()
        self._mail = mail
        self._origin = await mail.store.mail.origin()
        await mail.store.mail.hurry()  # whoever sent something before may have died before the receipt
        self._supervisor.start("connect", self._stay_connected)
        self._supervisor.start("relay", self._relay)

    def _refuse_unsigned(self) -> None:
        """Without shared keys, only a broker of this machine is trusted."""
        far = [server for server in self._servers if not is_this_machine(server)]
        if far:
            raise SettingsError(
                "letters would travel without a signature, and there are no mail keys",
                where=", ".join(map(_without_secrets, far)),
                remedy=f'Set {KEYS_VARIABLE} to the same text on every machine: "name:$(openssl rand -base64 32)"',
                code="missing_mail_keys",
            )
        _log.warning("letters on NATS are neither signed nor encrypted: set %s", KEYS_VARIABLE)

    async def close(self) -> None:
        """Stop. What is in the outbox stays there."""
        await self._supervisor.stop()
        client, self._client, self._js = self._client, None, None
        self._connected.clear()
        self._attended.clear()
        if client is not None:
            await _ended(client.close())

    async def _stay_connected(self) -> None:
        """Connect, however long it takes, and again whenever the connection is lost."""
        while True:
            lost = asyncio.Event()
            try:
                client = await self._connection(lost)
            except _TROUBLE as error:
                self._log_refusal(f"{type(error).__name__}: {error}")
                await asyncio.sleep(_RECONNECT_S)
                continue
            self._refusal = ""
            self._client, self._js = client, client.jetstream(timeout=_PUBLISH_S)
            self.most_bytes = client.max_payload - _ROOM
            with contextlib.suppress(*_TROUBLE):
                await client.subscribe(f"{self._prefix}-receipts.{self._origin}", queue="receipts", cb=self._receipt)
                await self._ensure_stream()
                self._connected.set()
                self._supervisor.report_success("connect")
                await lost.wait()
            self._connected.clear()
            await _ended(client.close())

    def _log_refusal(self, reason: str) -> None:
        """Log why there is no connection: once as a warning, then only when the reason changes."""
        level = logging.DEBUG if reason == self._refusal else logging.WARNING
        self._refusal = reason
        _log.log(level, "no connection to NATS: %s. Letters stay in the outbox meanwhile", reason)

    async def _connection(self, lost: asyncio.Event) -> Client:
        """A connection that is not mended when it is lost: the client would leave sockets open behind it."""

        async def trouble(error: Exception) -> None:
            _log.debug("the broker: %s", error)

        async def closed() -> None:
            lost.set()

        client = _Client(self._access, wants_tls=any(server.startswith("tls:") for server in self._servers))
        try:
            await client.connect(
                servers=self._servers,
                name="dragoman",
                error_cb=trouble,
                closed_cb=closed,
                disconnected_cb=closed,
                allow_reconnect=False,
                reconnect_time_wait=_RECONNECT_S,  # type: ignore[arg-type]  # any time will do
                connect_timeout=2,
                **self._access.options(),
            )
        except BaseException:
            await _ended(client.close())
            raise
        return client

    async def _ensure_stream(self) -> None:
        """Make the stream if there is none, and have everything that it had sent again."""
        assert self._js is not None
        config = StreamConfig(
            name=self._stream,
            subjects=[f"{self._prefix}.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            num_replicas=self._replicas,
        )
        with contextlib.suppress(*_TROUBLE):
            try:
                await self._js.stream_info(self._stream)
            except nats.js.errors.NotFoundError:
                with contextlib.suppress(nats.js.errors.BadRequestError):  # somebody else was faster
                    await self._js.add_stream(config)
                if self._mail is not None:
                    await self._mail.store.mail.hurry()
                    self._mail.waking.wake(OUTBOX)

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _relay(self) -> None:
        """Publish what is in the outbox, for ever."""
        assert self._mail is not None
        with self._mail.waking.wait_for(OUTBOX) as wait:
            while True:
                await self._connected.wait()
                try:
                    sent = await self._relay_some()
                except (DragomanError, *_TROUBLE) as error:
                    _log.warning("letters are kept, and sent later: %s", error)
                    if self._connected.is_set():
                        self._supervisor.report_failure("relay", type(error).__name__)
                    sent = 0
                else:
                    self._supervisor.report_success("relay")
                if sent:
                    wait.found()
                else:
                    await wait.pause()

    async def _relay_some(self) -> int:
        assert self._mail is not None
        room = self._mail.store.mail
        if not await room.is_any_to_send():
            return 0
        claimed = await room.claim(self._resend_s, self._batch)
        outcomes = await asyncio.gather(*(self._hand_over(*one) for one in claimed))
        keys = [_key(posted) for posted, _, _ in claimed]
        sent = [(key, place) for key, place in zip(keys, outcomes, strict=True) if place is not None]
        failed = [key for key, place in zip(keys, outcomes, strict=True) if place is None]
        if sent:
            await room.published(sent, self._resend_s)
        if failed:
            await room.put_off(failed, _RECONNECT_S)
            await self._ensure_stream()
        return len(sent)

    async def _hand_over(self, posted: Posted, attempts: int, place: int | None) -> int | None:
        """Hand a letter to JetStream, unless it has it already; where it has it, or nothing if that failed."""
        name = hashlib.sha256(msgspec.json.encode(_key(posted))).hexdigest()  # an id may hold what no header can
        try:
            if place is not None and not _is_doubtful(attempts) and await self._is_there(name, place):
                return place
            return await self._publish(posted, name, attempts)
        except _TROUBLE as error:
            _log.debug("letter %s is sent later: %s", posted.letter_id, error)
            return None

    async def _is_there(self, name: str, place: int) -> bool:
        """Whether the broker says that it still has a letter: nobody has asked for it yet, or somebody is about to."""
        assert self._js is not None
        try:
            found = await self._js.get_msg(self._stream, seq=place)
        except nats.js.errors.NotFoundError:
            return False
        said: str = (found.headers or {}).get(MESSAGE_ID, "")
        return said.partition("#")[0] == name

    async def _publish(self, posted: Posted, name: str, attempts: int) -> int:
        """Hand a letter to JetStream, and wait until it has it."""
        assert self._js is not None
        assert self._wire is not None
        assert self._mail is not None
        again = f"#{attempts}" if attempts else ""  # what was lost behind the broker's back must not count as doubled
        subject = self._subject(posted.recipient_id, posted.team_id)
        named = {MESSAGE_ID: f"{name}{again}", ORIGIN: self._origin}
        headers, data = self._wire.write("letter", subject, packed(posted), named)
        try:
            taken = await self._js.publish(subject, data, headers=headers)
        except nats.errors.MaxPayloadError:
            what = "the broker does not carry a letter of that size"
            await self._mail.store.mail.give_up_sending(posted, reason="letter_too_large", error=what)
            return 0
        return taken.seq

    def _subject(self, recipient_id: str, team_id: str) -> str:
        return f"{self._prefix}.{team_id.encode().hex() or '_'}.{recipient_id}"

    def _mailbox_of(self, subject: str) -> tuple[str, str]:
        """The recipient and the team that a subject names. Only subjects that this store asked for come here."""
        team, _, recipient_id = subject.removeprefix(f"{self._prefix}.").partition(".")
        return recipient_id, "" if team == "_" else bytes.fromhex(team).decode()

    async def _receipt(self, message: Msg) -> None:
        """The recipients' side has committed letters of ours."""
        assert self._mail is not None
        assert self._wire is not None
        try:
            data = self._wire.read("receipt", message.subject, message.headers, message.data)
            keys = msgspec.json.decode(data, type=list[Key])
            await self._mail.store.mail.receipts(keys)
        except Exception as error:  # noqa: BLE001  the entry point of a message: a bad receipt changes nothing
            reason = getattr(error, "code", type(error).__name__)
            _log.warning("a receipt was refused [%s]; its letters stay in the outbox", reason)
            return
        self._mail.waking.wake(OUTBOX)

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def attend(self, recipient_id: str, team_id: str) -> None:
        """Bring the letters of a recipient to this store, from now on and until this is closed."""
        if (recipient_id, team_id) in self._attended or not is_agent_name(recipient_id):
            return  # no letter can be addressed to what is no name, and a subject could be a pattern
        self._attended.add((recipient_id, team_id))
        name = f"pull {recipient_id}" + (f" of {team_id}" if team_id else "")
        self._supervisor.start(name, functools.partial(self._pull, name, recipient_id, team_id))

    async def _pull(self, name: str, recipient_id: str, team_id: str) -> None:
        while True:
            await self._connected.wait()
            try:
                subscription = await self._consumer(recipient_id, team_id)
                try:
                    await self._pull_from(subscription, name)
                finally:
                    await _ended(subscription.unsubscribe())
            except _TROUBLE as error:
                _log.debug("the letters of %s are waited for: %s", recipient_id, error)
                if self._connected.is_set():
                    self._supervisor.report_failure(name, type(error).__name__)
                await asyncio.sleep(_RECONNECT_S)

    async def _consumer(self, recipient_id: str, team_id: str) -> Any:
        assert self._js is not None
        subject = self._subject(recipient_id, team_id)
        name = f"mail-{hashlib.sha256(team_id.encode()).hexdigest()[:16]}-{recipient_id}"
        config = ConsumerConfig(
            durable_name=name,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._redeliver_s,
            filter_subject=subject,
            max_ack_pending=4 * self._batch,
        )
        await self._ensure_stream()
        await self._js.add_consumer(self._stream, config)
        return await self._js.pull_subscribe_bind(consumer=name, stream=self._stream)

    async def _pull_from(self, subscription: Any, name: str) -> None:
        """Take letters until something is wrong with the consumer. While some are acknowledged, the next ones come."""
        acknowledging: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    messages = await subscription.fetch(self._batch, timeout=_FETCH_S)
                except TimeoutError:
                    await subscription.consumer_info()  # which fails if the broker has lost it
                    self._supervisor.report_success(name)
                    continue
                taken = await self._take(messages)
                self._supervisor.report_success(name)
                if acknowledging is not None:
                    await acknowledging
                acknowledging = asyncio.create_task(self._acknowledge_all(taken))
        finally:
            if acknowledging is not None:
                acknowledging.cancel()
                await asyncio.wait([acknowledging])

    async def _take(self, messages: Sequence[Msg]) -> list[Taken]:
        """Commit what has arrived; what is committed. The rest is a dead letter, or comes again."""
        assert self._mail is not None
        read = [(message, posted) for message in messages if (posted := await self._read(message)) is not None]
        taken = await self._store(read)
        for _, posted in taken:
            self._mail.waking.wake(f"{posted.team_id}/{posted.recipient_id}")
        self._mail.waking.wake(OUTBOX)  # the next ones of their tasks
        return taken

    async def _store(self, read: list[Taken]) -> list[Taken]:
        """Commit letters together; where that fails because of one of them, one by one."""
        assert self._mail is not None
        if not read:
            return []
        foreign = {_key(posted) for message, posted in read if _origin_of(message) != self._origin}
        try:
            await self._mail.store.mail.arrive([posted for _, posted in read], foreign)
        except _STORE_AWAY as error:
            _log.warning("letters were not stored, and come again: %s", error)
            for message, _ in read:
                await _deliver_again(message)
            return []
        except Exception as error:  # noqa: BLE001  whatever a letter does to the store, the next one is not to blame
            if len(read) == 1:
                await self._bury(read[0][0], error)
                return []
            return [one for letter in read for one in await self._store([letter])]
        return read

    async def _acknowledge_all(self, taken: Sequence[Taken]) -> None:
        """Tell the senders, and the broker, that letters have arrived."""
        origins: dict[str, list[Key]] = {}
        for message, posted in taken:
            origins.setdefault(_origin_of(message), []).append(_key(posted))
        await self._send_receipts(origins)
        for message, _ in taken:
            await self._acknowledge(message)

    async def _read(self, message: Msg) -> Posted | None:
        """The letter of a message; what is none is a dead letter, and is not brought again."""
        assert self._wire is not None
        try:
            data = self._wire.read("letter", message.subject, message.headers, message.data)
            return _letter_in(data, *self._mailbox_of(message.subject))
        except Exception as error:  # noqa: BLE001  whatever a message does to its reader, the next one is not to blame
            await self._bury(message, error)
        return None

    async def _bury(self, message: Msg, error: Exception) -> None:
        """Keep what cannot be delivered as a dead letter, and let the broker forget it."""
        assert self._mail is not None
        recipient_id, team_id = self._mailbox_of(message.subject)
        reason = error if isinstance(error, DragomanError) else FormatError(_UNREADABLE.format(type(error).__name__))
        _log.warning("a message to %s is no letter that can be delivered [%s]", recipient_id, reason.code)
        is_trusted = reason.code not in UNTRUSTED
        try:
            await self._mail.of(team_id=team_id).bury(
                message.data[:_MOST_RAW],
                reason,
                recipient_id=recipient_id,
                dead_id=None if is_trusted else _dead_id(message, reason.code),
                is_trusted=is_trusted,
            )
        except _STORE_AWAY as failure:
            _log.warning("a dead letter was not stored, and comes again: %s", failure)
            await _deliver_again(message)
            return
        with contextlib.suppress(*_TROUBLE):
            await message.term()

    async def _acknowledge(self, message: Msg) -> None:
        with contextlib.suppress(*_TROUBLE):  # nobody waits for an answer: it comes again, and the inbox knows it
            await message.ack()

    async def _send_receipts(self, origins: Mapping[str, list[Key]]) -> None:
        assert self._client is not None
        assert self._wire is not None
        for origin, keys in origins.items():
            if origin and origin != self._origin:
                subject = f"{self._prefix}-receipts.{origin}"
                headers, data = self._wire.write("receipt", subject, msgspec.json.encode(keys))
                with contextlib.suppress(*_TROUBLE):
                    await self._client.publish(subject, data, headers=headers or None)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """``ok``; ``not connected`` while there is no broker; ``failing`` while a task does not work."""
        if self._supervisor.failures():
            return "failing"
        return "ok" if self._is_connected else "not connected"

    @property
    def _is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def health(self) -> Mapping[str, Any]:
        """Whether the broker is there, and how safe what it has is. The outbox keeps every letter in any case."""
        return {
            "failing": self._supervisor.failures(),
            "broker": "connected" if self._is_connected else "not connected",
            "delivery_durability": await self._durability(),
            "kept_until_receipt": True,
            "is_signed": self._wire is not None and self._wire.is_signed,
        }

    async def _durability(self) -> str:
        """What a power cut takes from the broker, in words; its monitoring port says so."""
        if self._monitor is None:
            return "unknown"
        import aiohttp  # noqa: PLC0415  only who asks pays for it

        try:
            timeout = aiohttp.ClientTimeout(total=2)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"{self._monitor}/varz") as answer,
            ):
                told = await answer.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return "unknown"
        config = (told.get("jetstream") or {}).get("config") or {}
        if config.get("sync_always"):
            return "power-safe"
        return "replicated-unsynced" if self._replicas > 1 else "process-crash-safe"


def _is_doubtful(attempts: int) -> bool:
    """Whether to send a letter again even though the broker says that it has it: after 4 times, 8, 16, …

    One whose files were damaged may have a message that it will never bring: its consumer has gone past it.
    """
    return attempts >= 4 and attempts & (attempts - 1) == 0


async def _ended(ending: Coroutine[Any, Any, None]) -> None:
    """End something of the client's, however it goes, and not for long: a broker that does not read keeps nobody."""
    with contextlib.suppress(*_TROUBLE):
        async with asyncio.timeout(_CLOSING_S):
            await ending


def _letter_in(data: bytes, recipient_id: str, team_id: str) -> Posted:
    """The letter of a message to a mailbox; an ``InputError``, or whatever a reader raises, if there is none in it."""
    try:
        posted = unpacked(data)
    except msgspec.MsgspecError:
        raise FormatError("what a transport has brought is no letter") from None
    if (posted.recipient_id, posted.team_id) != (recipient_id, team_id):
        raise LetterError(("it is for another mailbox or team than its subject",), code="wrong_mailbox")
    letter = read_stored_letter(posted.text.encode())
    said = (letter.recipient_id, letter.sender_id, letter.task_id, letter.type, letter.message_id or posted.letter_id)
    if said != (posted.recipient_id, posted.sender_id, posted.task_id, posted.type, posted.letter_id):
        raise FormatError("what a transport has brought contradicts itself")
    return posted


def _dead_id(message: Msg, code: str) -> str:
    """One for all copies of a message that is refused: its sender may send it again and again."""
    name = (message.headers or {}).get(MESSAGE_ID, "").partition("#")[0] or hashlib.sha256(message.data).hexdigest()
    return f"dead_{hashlib.sha256(msgspec.json.encode((message.subject, code, name))).hexdigest()[:40]}"


def _without_secrets(server: str) -> str:
    """The address of a server without a user and a password."""
    scheme, _, rest = server.rpartition("//")
    return f"{scheme}//{rest.rpartition('@')[2]}" if scheme else rest.rpartition("@")[2]


def _origin_of(message: Msg) -> str:
    """The store that a message comes from."""
    return str((message.headers or {}).get(ORIGIN, ""))


async def _deliver_again(message: Msg) -> None:
    """Have the broker bring a message again after a second."""
    with contextlib.suppress(*_TROUBLE):
        await message.nak(delay=1)


def _key(posted: Posted) -> Key:
    return posted.recipient_id, posted.team_id, posted.letter_id
