"""A client for the mail of a server, with the methods of ``Mail``.

    async with RemoteMail("https://mail.example.com", key=key) as mail:
        await mail.send(letter)
        async with mail.mailbox("CA") as mailbox:
            async for delivery in mailbox: …      acknowledged when the body succeeds, retried later when it raises

An effect cannot share a transaction with a letter in another store: use ``delivery.letter_id`` as its idempotency key.
A rejection of the server raises an error with the code of the server. A request without a response is retried; every
method is idempotent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast

import aiohttp
import msgspec

from dragoman.errors import ConflictError, LetterError, TransportError, UnknownLetterError
from dragoman.jsontext import DECODE_ERRORS
from dragoman.letters import Letter, letter_from, read_letter, write_letter
from dragoman.letters.records import FailureOutcome, Receipt
from dragoman.mail.mail import LEASE_S, MailboxNotifier
from dragoman.mail.mailbox import Mailbox

if TYPE_CHECKING:
    from dragoman.mail.mail import Mail

_PATH: Final = "/api/v1/mail"
_WAIT_S: Final = 20.0  # for the server to wait for a letter
_MAX_ATTEMPTS: Final = 4
_RETRY_STATUSES: Final = (429, 502, 503, 504)


class RemoteDelivery:
    """A leased letter. ``letter`` has masked secrets; ``decrypt`` returns them."""

    def __init__(self, mail: RemoteMail, recipient: str, payload: Mapping[str, Any]) -> None:
        self._mail = mail
        self.recipient = recipient
        self.letter_id: str = payload["letter_id"]
        self.lease: str = payload["lease"]
        self.attempts: int = payload["attempts"]
        self.until = datetime.fromisoformat(payload["until"])
        self.letter: Letter = letter_from(payload["letter"])
        self.is_ended = False

    def __repr__(self) -> str:
        return f"RemoteDelivery({self.letter_id!r}, attempt {self.attempts})"

    async def decrypt(self) -> Letter:
        """See ``RemoteMail.decrypt``."""
        return await self._mail.decrypt(self)

    async def ack(self) -> bool:
        """See ``RemoteMail.ack``."""
        return await self._mail.ack(self)

    async def nack(self, error: BaseException | str = "", **failure: Any) -> FailureOutcome | None:
        """See ``RemoteMail.nack``."""
        return await self._mail.nack(self, error, **failure)

    async def extend(self, lease_s: float = LEASE_S) -> datetime:
        """See ``RemoteMail.extend``."""
        return await self._mail.extend(self, lease_s)


class RemoteMail:
    """The mail of a server. Use it with ``async with``."""

    team_id = ""  # determined by the key

    def __init__(self, base_url: str, *, key: str | None = None, wait_s: float = _WAIT_S) -> None:
        self.notifier = MailboxNotifier()
        self._base_url = base_url.rstrip("/")
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._wait_s = wait_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=self._wait_s + 30)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    # --- send --------------------------------------------------------------------------------------------------------

    async def send(self, letter: Letter | Mapping[str, Any] | bytes | str) -> Receipt:
        """Send a letter. The same letter again returns the same receipt."""
        match letter:
            case Letter():
                data = write_letter(letter)
            case bytes() | str():
                data = write_letter(read_letter(letter))
            case _:
                data = write_letter(letter_from(letter))
        result = await self._request("POST", "", data)
        return Receipt(**{name: result[name] for name in Receipt.__struct_fields__})

    async def answer(self, delivery: RemoteDelivery, inputs: Mapping[str, Any], *, output: str = "Input given") -> str:
        """Answer a request for input and acknowledge it; return the id of the answer."""
        result = await self._post(delivery, "answer", inputs=dict(inputs), output=output)
        delivery.is_ended = True
        return str(result["letter_id"])

    # --- receive -----------------------------------------------------------------------------------------------------

    async def receive(self, recipient: str, *, lease_s: float = LEASE_S, limit: int = 10) -> list[RemoteDelivery]:
        """Lease the next letters of a mailbox; wait for the first one."""
        payload = {"lease_s": lease_s, "limit": limit, "wait_s": self._wait_s}
        result = await self._request("POST", f"/inbox/{recipient}/receive", payload)
        return [RemoteDelivery(self, recipient, fields) for fields in result["deliveries"]]

    def mailbox(self, recipient: str, *, lease_s: float = LEASE_S, concurrency: int = 1) -> Mailbox:
        """Return the letters of a recipient as a loop that waits for new ones."""
        return Mailbox(cast("Mail", self), recipient, lease_s=lease_s, concurrency=concurrency)

    async def decrypt(self, delivery: RemoteDelivery) -> Letter:
        """Return a letter with its secrets, for the holder of its lease."""
        return letter_from((await self._post(delivery, "open"))["letter"])

    async def ack(self, delivery: RemoteDelivery) -> bool:
        """Acknowledge a letter; false if it was acknowledged before."""
        result = await self._post(delivery, "ack")
        delivery.is_ended = True
        return bool(result["is_first"])

    async def nack(
        self,
        delivery: RemoteDelivery,
        error: BaseException | str = "",
        *,
        error_class: str | None = None,
        retry_after_s: float | None = None,
    ) -> FailureOutcome | None:
        """Report a failure: the letter is retried or becomes a dead letter. None if it was acknowledged before."""
        options = {"error_class": error_class or getattr(error, "error_class", None), "retry_after_s": retry_after_s}
        fields = {name: value for name, value in options.items() if value is not None}
        result = await self._post(delivery, "nack", error=str(error)[:2_000], **fields)
        delivery.is_ended = True
        if result["attempts"] == 0:
            return None
        retry_at = None if result["retry_at"] is None else datetime.fromisoformat(result["retry_at"])
        return FailureOutcome(retry_at=retry_at, attempts=result["attempts"], dead_letter_id=result["dead_letter_id"])

    async def release(self, delivery: RemoteDelivery) -> None:
        """End a lease without counting the delivery."""
        await self._post(delivery, "give-back")

    async def extend(self, delivery: RemoteDelivery, lease_s: float = LEASE_S) -> datetime:
        """Extend a lease; ``ConflictError`` (``lease_lost``) if the letter was leased again."""
        result = await self._post(delivery, "extend", lease_s=lease_s)
        delivery.until = datetime.fromisoformat(result["until"])
        return delivery.until

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _post(self, delivery: RemoteDelivery, verb: str, **fields: Any) -> Any:
        path = f"/inbox/{delivery.recipient}/{delivery.letter_id}/{verb}"
        return await self._request("POST", path, {"lease": delivery.lease, **fields})

    async def _request(self, method: str, path: str, payload: Mapping[str, Any] | bytes) -> Any:
        """Return the response body. Network errors and transient statuses are retried."""
        assert self._session is not None, "use it with async with"
        data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        headers = {"content-type": "application/json"}
        url = f"{self._base_url}{_PATH}{path}"
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                async with self._session.request(method, url, data=data, headers=headers) as response:
                    body = await response.read()
                    if response.status < 400:
                        return msgspec.json.decode(body) if body else None
                    if response.status not in _RETRY_STATUSES or attempt == _MAX_ATTEMPTS:
                        raise _to_error(response.status, body)
            except (aiohttp.ClientError, TimeoutError) as error:
                if attempt == _MAX_ATTEMPTS:
                    what = f"the server cannot be reached ({type(error).__name__})"
                    raise TransportError(what, where=self._base_url, remedy="Try again later") from None
            await asyncio.sleep(min(5.0, 0.2 * 2**attempt) * (0.5 + random.random()))
        raise AssertionError("unreachable")


def _to_error(status: int, body: bytes) -> Exception:
    """Convert an error response."""
    try:
        error = msgspec.json.decode(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (*DECODE_ERRORS, LookupError, TypeError):
        code, message = "unexpected_answer", f"the server answered with status {status}"
    match status:
        case 404:
            return UnknownLetterError(message)
        case 409:
            return ConflictError(message, code=code)
        case 422:
            return LetterError((message,), code=code)
        case _:
            return TransportError(message, where=f"status {status}", code=code)
