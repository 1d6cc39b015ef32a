"""Transports letters between stores with NATS JetStream. The broker never holds the only copy of a letter.

    servers = ["tls://one:4222", "tls://two:4222", "tls://three:4222"]
    transport = NatsTransport(servers, BrokerAccess(nkey="user.seed", ca="ca.pem"), replicas=3)
    async with Mail(store, transport=transport) as mail: …

A sent letter is in the outbox of the sender's store. The relay publishes it and marks it when JetStream has it. The
store that subscribes to the recipient pulls it, commits it to its inbox, and then acknowledges it to the broker and
sends a receipt. Only the receipt removes the letter from the outbox; if both sides have the same store, the row in the
inbox is the receipt. Without a receipt after ``resend_s``, the sender looks for the letter on the broker and publishes
it again if it is missing; the inbox discards duplicates. So a broker that loses everything loses no letter. Messages
pulled by a consumer that crashed are redelivered after ``redeliver_s``.

The outbox sends one letter per task and recipient at a time, which preserves the order. A recipient has one store:
``receive`` subscribes to its letters.

With shared mail keys, letters and receipts are signed and encrypted (``dragoman.mail.message_codec``), and other
messages become dead letters. A broker on another machine requires such keys.

Invariants: a message is acknowledged to the broker only after the inbox committed it. A letter leaves the outbox only
after a verified receipt.
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
from dragoman.letters.records import StoredLetter
from dragoman.mail.broker_access import BrokerAccess, is_loopback
from dragoman.mail.encryption import KEYS_VARIABLE
from dragoman.mail.mail import OUTBOX
from dragoman.mail.message_codec import MESSAGE_ID, ORIGIN, UNTRUSTED_CODES, MessageCodec
from dragoman.mail.stored_letter import from_transport, to_transport
from dragoman.mail.supervisor import Supervisor

try:
    import nats.errors
    import nats.js.errors
    from nats.aio.client import Client
    from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
except ImportError:
    raise TransportError(
        "the package nats-py is not installed", remedy="Run pip install 'dragoman[nats]'", code="missing_extra"
    ) from None

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

    from dragoman.mail.mail import Mail

    ReceivedLetter = tuple[Msg, StoredLetter]

Key = tuple[str, str, str]
_log: Final = logging.getLogger("dragoman.mail.nats")
_HEADER_BYTES: Final = 2048  # headers count towards the payload limit
_MAX_PAYLOAD: Final = 1024 * 1024  # default of a NATS server
_FETCH_S: Final = 5.0
_PUBLISH_S: Final = 5.0
_MAX_MAILBOXES: Final = 512  # that this store pulls letters of
_RECONNECT_S: Final = 0.25
_CLOSE_TIMEOUT_S: Final = 5.0
_STORE_ERRORS: Final = (StorageError, StoreUnusableError)
_MAX_RAW_BYTES: Final = 64 * 1024  # bytes of an invalid message that are stored
_PARSE_ERROR: Final = "the message cannot be read ({})"
_NETWORK_ERRORS: Final = (nats.errors.Error, OSError, TimeoutError, EOFError)


class _Client(Client):
    """A client that authenticates with an nkey, and sends nothing to a server without required TLS."""

    def __init__(self, access: BrokerAccess, *, requires_tls: bool) -> None:
        super().__init__()
        self._public_nkey = access.public_nkey()
        self._requires_tls = requires_tls or access.requires_tls

    def _connect_command(self) -> bytes:
        if self._requires_tls and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS, which is required")
        return super()._connect_command()


class NatsTransport:
    """Transports letters with JetStream. ``Mail`` opens and closes it."""

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
        self.max_bytes = _MAX_PAYLOAD - _HEADER_BYTES
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
        self._wire: MessageCodec | None = None
        self._mail: Mail | None = None
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._origin = ""
        self._connect_error = ""
        self._connected = asyncio.Event()
        self._supervisor = Supervisor("dragoman-nats")
        self._pull_tasks: dict[str, asyncio.Task[None]] = {}  # by mailbox, the last used one last

    # --- connection --------------------------------------------------------------------------------------------------

    async def open(self, mail: Mail) -> None:
        """Start to send. Until the broker is available, letters wait in the outbox."""
        self._access.options()  # raises now for an unusable file, rather than as a failed connection
        self._wire = MessageCodec(mail.encryptor, mail.store.clock, encrypt=not self._sign_only)
        if not self._wire.is_signed:
            self._require_loopback()
        self._mail = mail
        self._origin = await mail.store.mail.origin()
        await mail.store.mail.resend_unconfirmed()  # a crashed process may have missed receipts
        self._supervisor.start("connect", self._stay_connected)
        self._supervisor.start("relay", self._relay)

    def _require_loopback(self) -> None:
        """Without shared keys, accept only a broker on this machine."""
        remote_servers = [server for server in self._servers if not is_loopback(server)]
        if remote_servers:
            raise SettingsError(
                "a broker on another machine requires mail keys",
                where=", ".join(map(_mask_credentials, remote_servers)),
                remedy=f'Set {KEYS_VARIABLE} to the same text on every machine: "name:$(openssl rand -base64 32)"',
                code="missing_mail_keys",
            )
        _log.warning("letters on NATS are neither signed nor encrypted: set %s", KEYS_VARIABLE)

    async def close(self) -> None:
        """Stop. Letters stay in the outbox."""
        await self._supervisor.stop()
        client, self._client, self._js = self._client, None, None
        self._connected.clear()
        self._pull_tasks.clear()
        if client is not None:
            await _close_quietly(client.close())

    async def _stay_connected(self) -> None:
        """Connect, and reconnect whenever the connection is lost."""
        while True:
            lost = asyncio.Event()
            try:
                client = await self._connect(lost)
            except _NETWORK_ERRORS as error:
                self._log_connect_error(f"{type(error).__name__}: {error}")
                await asyncio.sleep(_RECONNECT_S)
                continue
            self._connect_error = ""
            self._client, self._js = client, client.jetstream(timeout=_PUBLISH_S)
            self.max_bytes = client.max_payload - _HEADER_BYTES
            with contextlib.suppress(*_NETWORK_ERRORS):
                await client.subscribe(
                    f"{self._prefix}-receipts.{self._origin}", queue="receipts", cb=self._handle_receipt
                )
                await self._ensure_stream()
                self._connected.set()
                self._supervisor.report_success("connect")
                await lost.wait()
            self._connected.clear()
            await _close_quietly(client.close())

    def _log_connect_error(self, reason: str) -> None:
        """Log a failed connection: as a warning only when the reason changes."""
        level = logging.DEBUG if reason == self._connect_error else logging.WARNING
        self._connect_error = reason
        _log.log(level, "no connection to NATS: %s. Letters stay in the outbox", reason)

    async def _connect(self, lost: asyncio.Event) -> Client:
        """Return a connection without automatic reconnection, which would leak sockets."""

        async def on_error(error: Exception) -> None:
            _log.debug("broker error: %s", error)

        async def on_close() -> None:
            lost.set()

        client = _Client(self._access, requires_tls=any(server.startswith("tls:") for server in self._servers))
        try:
            await client.connect(
                servers=self._servers,
                name="dragoman",
                error_cb=on_error,
                closed_cb=on_close,
                disconnected_cb=on_close,
                allow_reconnect=False,
                reconnect_time_wait=_RECONNECT_S,  # type: ignore[arg-type]  # a float works
                connect_timeout=2,
                **self._access.options(),
            )
        except BaseException:
            await _close_quietly(client.close())
            raise
        return client

    async def _ensure_stream(self) -> None:
        """Create the stream if it is missing, and send its letters again."""
        assert self._js is not None
        config = StreamConfig(
            name=self._stream,
            subjects=[f"{self._prefix}.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            num_replicas=self._replicas,
        )
        with contextlib.suppress(*_NETWORK_ERRORS):
            try:
                await self._js.stream_info(self._stream)
            except nats.js.errors.NotFoundError:
                with contextlib.suppress(nats.js.errors.BadRequestError):  # created concurrently
                    await self._js.add_stream(config)
                if self._mail is not None:
                    await self._mail.store.mail.resend_unconfirmed()
                    self._mail.notifier.notify(OUTBOX)

    # --- send --------------------------------------------------------------------------------------------------------

    async def _relay(self) -> None:
        """Publish the letters of the outbox, without end."""
        assert self._mail is not None
        with self._mail.notifier.waiter(OUTBOX) as wait:
            while True:
                await self._connected.wait()
                try:
                    sent = await self._relay_batch()
                except (DragomanError, *_NETWORK_ERRORS) as error:
                    _log.warning("letters stay in the outbox and are sent later: %s", error)
                    if self._connected.is_set():
                        self._supervisor.report_failure("relay", type(error).__name__)
                    sent = 0
                else:
                    self._supervisor.report_success("relay")
                if sent:
                    wait.reset()
                else:
                    await wait.wait()

    async def _relay_batch(self) -> int:
        assert self._mail is not None
        mail_store = self._mail.store.mail
        if not await mail_store.has_unsent():
            return 0
        batch = await mail_store.claim(self._resend_s, self._batch)
        sequences = await asyncio.gather(*(self._send(*item) for item in batch))
        keys = [_letter_key(posted) for posted, _, _ in batch]
        sent = [(key, place) for key, place in zip(keys, sequences, strict=True) if place is not None]
        failed = [key for key, place in zip(keys, sequences, strict=True) if place is None]
        if sent:
            await mail_store.mark_published(sent, self._resend_s)
        if failed:
            await mail_store.postpone(failed, _RECONNECT_S)
            await self._ensure_stream()
        return len(sent)

    async def _send(self, stored: StoredLetter, attempts: int, broker_seq: int | None) -> int | None:
        """Publish a letter unless JetStream has it; return its sequence, or none if that failed."""
        name = hashlib.sha256(msgspec.json.encode(_letter_key(stored))).hexdigest()  # any id as a header
        try:
            if broker_seq is not None and not _should_resend(attempts) and await self._is_on_broker(name, broker_seq):
                return broker_seq
            return await self._publish(stored, name, attempts)
        except _NETWORK_ERRORS as error:
            _log.debug("letter %s is sent later: %s", stored.letter_id, error)
            return None

    async def _is_on_broker(self, name: str, broker_seq: int) -> bool:
        """Whether the broker still has a letter."""
        assert self._js is not None
        try:
            message = await self._js.get_msg(self._stream, seq=broker_seq)
        except nats.js.errors.NotFoundError:
            return False
        message_id: str = (message.headers or {}).get(MESSAGE_ID, "")
        return message_id.partition("#")[0] == name

    async def _publish(self, stored: StoredLetter, name: str, attempts: int) -> int:
        """Publish a letter and wait for the acknowledgement of JetStream."""
        assert self._js is not None
        assert self._wire is not None
        assert self._mail is not None
        suffix = f"#{attempts}" if attempts else ""  # the broker must not discard a resent letter as a duplicate
        subject = self._subject(stored.recipient_id, stored.team_id)
        message_headers = {MESSAGE_ID: f"{name}{suffix}", ORIGIN: self._origin}
        headers, data = self._wire.encode("letter", subject, to_transport(stored), message_headers)
        try:
            ack = await self._js.publish(subject, data, headers=headers)
        except nats.errors.MaxPayloadError:
            what = "the letter exceeds the payload limit of the broker"
            await self._mail.store.mail.mark_undeliverable(stored, reason="letter_too_large", error=what)
            return 0
        return ack.seq

    def _subject(self, recipient_id: str, team_id: str) -> str:
        return f"{self._prefix}.{team_id.encode().hex() or '_'}.{recipient_id}"

    def _parse_subject(self, subject: str) -> tuple[str, str]:
        """Return recipient and team of a subject that this store subscribed to."""
        team, _, recipient_id = subject.removeprefix(f"{self._prefix}.").partition(".")
        return recipient_id, "" if team == "_" else bytes.fromhex(team).decode()

    async def _handle_receipt(self, message: Msg) -> None:
        """Remove letters that another store committed from the outbox."""
        assert self._mail is not None
        assert self._wire is not None
        try:
            data = self._wire.decode("receipt", message.subject, message.headers, message.data)
            keys = msgspec.json.decode(data, type=list[Key])
            await self._mail.store.mail.confirm(keys)
        except Exception as error:  # noqa: BLE001  the entry point of a message: an invalid receipt changes nothing
            reason = getattr(error, "code", type(error).__name__)
            _log.warning("a receipt was rejected [%s]; its letters stay in the outbox", reason)
            return
        self._mail.notifier.notify(OUTBOX)

    # --- receive -----------------------------------------------------------------------------------------------------

    async def subscribe(self, recipient_id: str, team_id: str) -> None:
        """Deliver the letters of a recipient to this store from now on.

        Above ``_MAX_MAILBOXES``, the letters of the mailbox that was not used for the longest time wait for its next
        receive.
        """
        if not is_agent_name(recipient_id):
            return  # it has no letters, and could be a subject pattern
        name = f"pull {recipient_id}" + (f" of {team_id}" if team_id else "")
        task = self._pull_tasks.pop(name, None)
        if task is None:
            task = self._supervisor.start(name, functools.partial(self._pull, name, recipient_id, team_id))
        self._pull_tasks[name] = task  # the last one was used last
        if len(self._pull_tasks) > _MAX_MAILBOXES:
            oldest = next(iter(self._pull_tasks))
            self._supervisor.cancel(oldest, self._pull_tasks.pop(oldest))

    async def _pull(self, name: str, recipient_id: str, team_id: str) -> None:
        while True:
            await self._connected.wait()
            try:
                subscription = await self._consumer(recipient_id, team_id)
                try:
                    await self._pull_messages(subscription, name)
                finally:
                    await _close_quietly(subscription.unsubscribe())
            except _NETWORK_ERRORS as error:
                _log.debug("pulling letters of %s failed: %s", recipient_id, error)
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

    async def _pull_messages(self, subscription: Any, name: str) -> None:
        """Pull letters until the consumer fails. Acknowledgements run while the next letters are pulled."""
        ack_task: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    messages = await subscription.fetch(self._batch, timeout=_FETCH_S)
                except TimeoutError:
                    await subscription.consumer_info()  # fails if the broker has lost the consumer
                    self._supervisor.report_success(name)
                    continue
                received = await self._receive(messages)
                self._supervisor.report_success(name)
                if ack_task is not None:
                    await ack_task
                ack_task = asyncio.create_task(self._acknowledge_all(received))
        finally:
            if ack_task is not None:
                ack_task.cancel()
                await asyncio.wait([ack_task])

    async def _receive(self, messages: Sequence[Msg]) -> list[ReceivedLetter]:
        """Commit messages and return the committed letters. Others become dead letters or are redelivered."""
        assert self._mail is not None
        letters = [(message, stored) for message in messages if (stored := await self._parse(message)) is not None]
        received = await self._insert(letters)
        for _, stored in received:
            self._mail.notifier.notify(f"{stored.team_id}/{stored.recipient_id}")
        self._mail.notifier.notify(OUTBOX)  # the next letters of their tasks
        return received

    async def _insert(self, letters: list[ReceivedLetter]) -> list[ReceivedLetter]:
        """Commit letters in one transaction; if one of them fails, commit each by itself."""
        assert self._mail is not None
        if not letters:
            return []
        foreign = {_letter_key(posted) for message, posted in letters if _get_origin(message) != self._origin}
        try:
            await self._mail.store.mail.receive([posted for _, posted in letters], foreign)
        except _STORE_ERRORS as error:
            _log.warning("letters were not stored and are redelivered: %s", error)
            for message, _ in letters:
                await _redeliver(message)
            return []
        except Exception as error:  # noqa: BLE001  the entry point of a message: the next one is independent
            if len(letters) == 1:
                await self._reject(letters[0][0], error)
                return []
            return [stored for letter in letters for stored in await self._insert([letter])]
        return letters

    async def _acknowledge_all(self, received: Sequence[ReceivedLetter]) -> None:
        """Send receipts and acknowledge messages."""
        origins: dict[str, list[Key]] = {}
        for message, stored in received:
            origins.setdefault(_get_origin(message), []).append(_letter_key(stored))
        await self._send_receipts(origins)
        for message, _ in received:
            await self._acknowledge(message)

    async def _parse(self, message: Msg) -> StoredLetter | None:
        """Return the letter of a message; an invalid message becomes a dead letter."""
        assert self._wire is not None
        try:
            data = self._wire.decode("letter", message.subject, message.headers, message.data)
            return _parse_letter(data, *self._parse_subject(message.subject))
        except Exception as error:  # noqa: BLE001  the entry point of a message: the next one is independent
            await self._reject(message, error)
        return None

    async def _reject(self, message: Msg, error: Exception) -> None:
        """Store a message as a dead letter and remove it from the broker."""
        assert self._mail is not None
        recipient_id, team_id = self._parse_subject(message.subject)
        reason = error if isinstance(error, DragomanError) else FormatError(_PARSE_ERROR.format(type(error).__name__))
        _log.warning("a message to %s was rejected [%s]", recipient_id, reason.code)
        is_trusted = reason.code not in UNTRUSTED_CODES
        try:
            await self._mail.for_team(team_id=team_id).reject(
                message.data[:_MAX_RAW_BYTES],
                reason,
                recipient_id=recipient_id,
                dead_id=None if is_trusted else _dead_id(message, reason.code),
                is_trusted=is_trusted,
            )
        except _STORE_ERRORS as failure:
            _log.warning("a dead letter was not stored and is redelivered: %s", failure)
            await _redeliver(message)
            return
        with contextlib.suppress(*_NETWORK_ERRORS):
            await message.term()

    async def _acknowledge(self, message: Msg) -> None:
        with contextlib.suppress(*_NETWORK_ERRORS):  # else the message is redelivered, and the inbox has its letter
            await message.ack()

    async def _send_receipts(self, origins: Mapping[str, list[Key]]) -> None:
        assert self._client is not None
        assert self._wire is not None
        for origin, keys in origins.items():
            if origin and origin != self._origin:
                subject = f"{self._prefix}-receipts.{origin}"
                headers, data = self._wire.encode("receipt", subject, msgspec.json.encode(keys))
                with contextlib.suppress(*_NETWORK_ERRORS):
                    await self._client.publish(subject, data, headers=headers or None)

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """``ok``, ``not connected`` or ``failing`` (a task fails)."""
        if self._supervisor.failures():
            return "failing"
        return "ok" if self._is_connected else "not connected"

    @property
    def _is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def health(self) -> Mapping[str, Any]:
        """Return the state and the durability of the broker. The outbox keeps every letter in any case."""
        return {
            "failing": self._supervisor.failures(),
            "broker": "connected" if self._is_connected else "not connected",
            "delivery_durability": await self._durability(),
            "kept_until_receipt": True,
            "is_signed": self._wire is not None and self._wire.is_signed,
        }

    async def _durability(self) -> str:
        """Return what the broker survives, from its monitoring port."""
        if self._monitor is None:
            return "unknown"
        import aiohttp  # noqa: PLC0415  slow to import

        try:
            timeout = aiohttp.ClientTimeout(total=2)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"{self._monitor}/varz") as response,
            ):
                server_info = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return "unknown"
        config = (server_info.get("jetstream") or {}).get("config") or {}
        if config.get("sync_always"):
            return "power-safe"
        return "replicated-unsynced" if self._replicas > 1 else "process-crash-safe"


def _should_resend(attempts: int) -> bool:
    """Whether to publish a letter again although the broker has it: after 4, 8, 16, … attempts.

    A broker with damaged files may have a message that its consumer skips.
    """
    return attempts >= 4 and attempts & (attempts - 1) == 0


async def _close_quietly(coroutine: Coroutine[Any, Any, None]) -> None:
    """Await a close with a timeout and ignore network errors."""
    with contextlib.suppress(*_NETWORK_ERRORS):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await coroutine


def _parse_letter(data: bytes, recipient_id: str, team_id: str) -> StoredLetter:
    """Return the letter of a message to a mailbox, or raise ``InputError``."""
    try:
        stored = from_transport(data)
    except msgspec.MsgspecError:
        raise FormatError("the message is not a letter") from None
    if (stored.recipient_id, stored.team_id) != (recipient_id, team_id):
        raise LetterError(("the mailbox or team differs from the subject",), code="wrong_mailbox")
    letter = read_stored_letter(stored.text.encode())
    identity = (
        letter.recipient_id,
        letter.sender_id,
        letter.task_id,
        letter.type,
        letter.message_id or stored.letter_id,
    )
    if identity != (stored.recipient_id, stored.sender_id, stored.task_id, stored.type, stored.letter_id):
        raise FormatError("the fields of the message contradict its letter")
    return stored


def _dead_id(message: Msg, code: str) -> str:
    """Return the same id for every copy of a rejected message."""
    name = (message.headers or {}).get(MESSAGE_ID, "").partition("#")[0] or hashlib.sha256(message.data).hexdigest()
    return f"dead_{hashlib.sha256(msgspec.json.encode((message.subject, code, name))).hexdigest()[:40]}"


def _mask_credentials(server: str) -> str:
    """Return the address of a server without user and password."""
    scheme, _, rest = server.rpartition("//")
    return f"{scheme}//{rest.rpartition('@')[2]}" if scheme else rest.rpartition("@")[2]


def _get_origin(message: Msg) -> str:
    """Return the store that sent a message."""
    return str((message.headers or {}).get(ORIGIN, ""))


async def _redeliver(message: Msg) -> None:
    """Let the broker redeliver a message after a second."""
    with contextlib.suppress(*_NETWORK_ERRORS):
        await message.nak(delay=1)


def _letter_key(stored: StoredLetter) -> Key:
    return stored.recipient_id, stored.team_id, stored.letter_id
