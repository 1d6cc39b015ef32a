"""The mail of a server, from another machine: the same verbs over HTTP.

    async with RemoteMail("https://mail.example.com", key=key) as mail:
        await mail.send(letter)
        async with mail.mailbox("CA") as mailbox:
            async for delivery in mailbox: …      done when the body ends well, tried again later when it raises

An effect cannot be in one transaction with a letter of another machine's store: make it once by ``delivery.letter_id``,
which is the same however often a letter comes. The one rule: what the server said no to is an error with the server's
own code; what never got an answer is asked again, as every verb here may be said twice.
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
from dragoman.letters import Letter, letter_from, read_letter, write_letter
from dragoman.letters.records import FailureOutcome, Receipt
from dragoman.mail.mailbox import Mailbox
from dragoman.mail.waking import MailboxNotifier

if TYPE_CHECKING:
    from dragoman.mail.mail import Mail

_PATH: Final = "/api/v1/mail"
_LEASE_S: Final = 60.0
_WAIT_S: Final = 20.0  # how long the server may wait for a letter before it says that there is none
_MAX_ATTEMPTS: Final = 4
_RETRY_STATUSES: Final = (429, 502, 503, 504)


class RemoteDelivery:
    """A letter in this program's hands. ``letter`` has ``***`` in place of what is sensitive; ``opened`` has it."""

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
        """The letter with what is sensitive in it."""
        return await self._mail.decrypt(self)

    async def ack(self) -> bool:
        """It is done; false if it had been done before."""
        return await self._mail.ack(self)

    async def nack(self, error: BaseException | str = "", **failure: Any) -> FailureOutcome | None:
        """It could not be handled."""
        return await self._mail.nack(self, error, **failure)

    async def extend(self, lease_s: float = _LEASE_S) -> datetime:
        """Keep it for longer."""
        return await self._mail.extend(self, lease_s)


class RemoteMail:
    """The mail of a server. Use it with ``async with``."""

    team_id = ""  # the server knows it

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

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(self, letter: Letter | Mapping[str, Any] | bytes | str) -> Receipt:
        """Send a letter; when this returns, it is safe. The same again gives the same receipt."""
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
        """Answer a request for input, which is done by that; the id of the answer."""
        payload = {"lease": delivery.lease, "inputs": dict(inputs), "output": output}
        result = await self._post(delivery, "answer", payload)
        delivery.is_ended = True
        return str(result["letter_id"])

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def receive(self, recipient: str, *, lease_s: float = _LEASE_S, limit: int = 10) -> list[RemoteDelivery]:
        """The next letters of a mailbox; waits a while for the first."""
        payload = {"lease_s": lease_s, "limit": limit, "wait_s": self._wait_s}
        result = await self._request("POST", f"/inbox/{recipient}/receive", payload)
        return [RemoteDelivery(self, recipient, one) for one in result["deliveries"]]

    def mailbox(self, recipient: str, *, lease_s: float = _LEASE_S, concurrency: int = 1) -> Mailbox:
        """The letters of a recipient as a loop that waits for more."""
        return Mailbox(cast("Mail", self), recipient, lease_s=lease_s, concurrency=concurrency)

    async def decrypt(self, delivery: RemoteDelivery) -> Letter:
        """A letter with what is sensitive in it. Only who holds it can have it."""
        result = await self._post(delivery, "open", {"lease": delivery.lease})
        return letter_from(result["letter"])

    async def ack(self, delivery: RemoteDelivery) -> bool:
        """A letter is done; false if it had been done before."""
        result = await self._post(delivery, "ack", {"lease": delivery.lease})
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
        """A letter could not be handled: it is handed out again later, or given up. Nothing if it was done before."""
        options = {"error_class": error_class or getattr(error, "error_class", None), "retry_after_s": retry_after_s}
        payload: dict[str, Any] = {"lease": delivery.lease, "error": str(error)[:2_000]}
        payload.update({name: value for name, value in options.items() if value is not None})
        result = await self._post(delivery, "nack", payload)
        delivery.is_ended = True
        if result["attempts"] == 0:
            return None
        retry_at = None if result["retry_at"] is None else datetime.fromisoformat(result["retry_at"])
        return FailureOutcome(retry_at=retry_at, attempts=result["attempts"], dead_letter_id=result["dead_letter_id"])

    async def release(self, delivery: RemoteDelivery) -> None:
        """Let somebody else have a letter, as if it had not been handed out."""
        await self._post(delivery, "give-back", {"lease": delivery.lease})

    async def extend(self, delivery: RemoteDelivery, lease_s: float = _LEASE_S) -> datetime:
        """Keep a letter for longer; ``ConflictError`` (``lease_lost``) if somebody else has it."""
        result = await self._post(delivery, "extend", {"lease": delivery.lease, "lease_s": lease_s})
        delivery.until = datetime.fromisoformat(result["until"])
        return delivery.until

    # --- asking ------------------------------------------------------------------------------------------------------

    async def _post(self, delivery: RemoteDelivery, verb: str, payload: Mapping[str, Any]) -> Any:
        return await self._request("POST", f"/inbox/{delivery.recipient}/{delivery.letter_id}/{verb}", payload)

    async def _request(self, method: str, path: str, payload: Mapping[str, Any] | bytes | None = None) -> Any:
        """What the server answers. What never got an answer, or was told to come again, is asked again."""
        assert self._session is not None, "use it with async with"
        data = payload if isinstance(payload, bytes) or payload is None else msgspec.json.encode(payload)
        headers = {} if data is None else {"content-type": "application/json"}
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
                    what = f"it cannot be reached ({type(error).__name__})"
                    raise TransportError(what, where=self._base_url, remedy="Try again later") from None
            await asyncio.sleep(min(5.0, 0.2 * 2**attempt) * (0.5 + random.random()))
        raise AssertionError("unreachable")


def _to_error(status: int, body: bytes) -> Exception:
    """The error that a refusal of the server is here."""
    try:
        error = msgspec.json.decode(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
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
