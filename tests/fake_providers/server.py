"""The fake providers as HTTP servers on the loopback interface.

    async with strict_provider("anthropic") as fake:
        fake.answer_with(thinking_part("Hm."), call_part("read_file", {"path": "README.md"}))
        fake.reply("It is Foo.")
        …                       # send requests to fake.base_url, streamed or not
        assert fake.refusals == []

The fake of a dialect checks each request. It rejects the requests that the real provider rejects, with the same status
and text, and adds the texts to ``refusals``. It answers the others with the scripted replies in order, and then with a
default reply that is derived from the request. It accepts only signatures that it issued. Invariant: a fake writes its
replies itself and imports no dialect, so that an error of a dialect cannot hide itself.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

import msgspec
from aiohttp import web

from tests.fake_providers.script import (
    CallPart,
    IssuedSignatures,
    Part,
    TextPart,
    ThinkingPart,
    default_reply,
    json_text,
)

Signatures = Literal["issued", "any"]
_OTHER_MODULES: Final = ("conftest", "rules", "script", "server", "shape")
_MAX_BODY: Final = 64 * 1024 * 1024


def fakes() -> dict[str, ModuleType]:
    """Return every fake by the name of its dialect."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    names = [name for name in names if name not in _OTHER_MODULES and not name.startswith("test_")]
    return {name: importlib.import_module(f"tests.fake_providers.{name}") for name in names}


def refusals(dialect: str, body: Any, issued: IssuedSignatures | None = None, model: str = "") -> list[str]:
    """Return the reasons why the provider of a dialect rejects a request."""
    found: list[str] = fakes()[dialect].refusals(body, issued, model)
    return found


class ReceivedRequest(msgspec.Struct, frozen=True):
    """A request and the reasons for its rejection."""

    path: str
    headers: dict[str, str]  # names in lower case
    body: Any
    refusals: tuple[str, ...]


class _Failure(msgspec.Struct, frozen=True):
    status: int
    message: str
    headers: dict[str, str]


_KEYS = ("authorization", "x-api-key", "x-goog-api-key")


class StrictProvider:
    """A strict fake as an HTTP server."""

    def __init__(
        self,
        dialect: str,
        *,
        signatures: Signatures = "issued",
        needs_key: bool = True,
        seed: str = "",
        further_rules: Callable[[Any], list[str]] | None = None,
    ) -> None:
        self._further_rules = further_rules
        self.dialect = dialect
        self.fake = fakes()[dialect]
        self.issued = IssuedSignatures(seed or dialect)
        self.received: list[ReceivedRequest] = []
        self.connections: set[Any] = set()  # addresses of the clients
        self.base_url = ""  # of the provider; the dialect appends its path
        self._signatures = signatures
        self._needs_key = needs_key
        self.play: Callable[[Any], list[Part]] | None = None  # answers requests after the end of the script
        self._script: deque[list[Part] | _Failure] = deque()
        self._cuts: deque[int | None] = deque()
        self.listed: Any = None  # response body of the list of models
        self.shown: dict[str, Any] = {}  # responses of Ollama's /api/show, by model
        self.good_key: str | None = None  # required by the list of models

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the requests, in order."""
        return [received.body for received in self.received]

    @property
    def refusals(self) -> list[str]:
        """The reasons for all rejections, in order."""
        return [text for received in self.received for text in received.refusals]

    def answer_with(self, *parts: Part) -> None:
        """Add a reply that consists of these parts."""
        self._script.append(list(parts))
        self._cuts.append(None)

    def reply(self, text: str, *, thinking: str = "") -> None:
        """Add a reply with a text."""
        self.answer_with(*([ThinkingPart(thinking)] if thinking else []), TextPart(text))

    def call(self, name: str, input: dict[str, Any] | None = None, *, thinking: str = "") -> None:  # noqa: A002
        """Add a reply with a tool call."""
        self.answer_with(*([ThinkingPart(thinking)] if thinking else []), CallPart(name, input or {}))

    def fail(self, status: int, message: str = "busy", headers: Mapping[str, str] | None = None) -> None:
        """Add an error response in the shape of the provider."""
        self._script.append(_Failure(status, message, dict(headers or {})))
        self._cuts.append(None)

    def cut(self, after_bytes: int, *parts: Part) -> None:
        """Add a reply whose stream ends after ``after_bytes`` bytes without an end."""
        self._script.append(list(parts))
        self._cuts.append(after_bytes)

    def clear_script(self) -> None:
        """Remove the scripted replies that were not sent."""
        self._script.clear()
        self._cuts.clear()

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        """Answer with the list of models."""
        keys = [value.removeprefix("Bearer ") for name, value in request.headers.items() if name.lower() in _KEYS]
        if self.good_key is not None and self.good_key not in keys:
            return self._error(401, f"Incorrect API key provided: {''.join(keys)}.", {})
        return self._error(404, "Not found", {}) if self.listed is None else web.json_response(self.listed)

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Check a request and answer it."""
        raw = await request.read()
        try:
            body = msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            return self._refusal(request, None, 400, [f"We could not parse the JSON body of your request. ({error})"])
        if request.path.endswith("/api/show") and body.get("model") in self.shown:
            return web.json_response(self.shown[body["model"]])
        if self.fake.PATH.fullmatch(request.path) is None:
            return self._refusal(request, body, 404, [f"Not found: {request.path}"])
        if (
            self._needs_key
            and self.fake.KEY_HEADERS
            and not any(name in request.headers for name in self.fake.KEY_HEADERS)
        ):
            return self._refusal(request, body, 401, ["You did not provide a key."])
        issued = self.issued if self._signatures == "issued" else None
        model = self.fake.model_of(request.path, body)
        found = self.fake.refusals(body, issued, model)
        if self._further_rules is not None:
            found = [*found, *self._further_rules(body)]
        if found:
            return self._refusal(request, body, 400, found)
        self._receive(request, body, ())
        return await self._answer(request, body, model)

    async def _answer(self, request: web.Request, body: Any, model: str) -> web.StreamResponse:
        scripted = self._script.popleft() if self._script else self._make_reply(body)
        cut = self._cuts.popleft() if self._cuts else None
        if isinstance(scripted, _Failure):
            return self._error(scripted.status, scripted.message, scripted.headers)
        if not self.fake.is_streamed(request.path, body):
            return web.json_response(self.fake.write_reply(scripted, model, self.issued), dumps=json_text)
        return await self._stream(request, self.fake.write_stream(scripted, model, self.issued), cut)

    def _make_reply(self, body: Any) -> list[Part]:
        return self.play(body) if self.play is not None else [default_reply(json_text(body))]

    async def _stream(self, request: web.Request, chunks: list[bytes], cut: int | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": self.fake.STREAM_TYPE})
        await response.prepare(request)
        for chunk in chunks if cut is None else _first_bytes(chunks, cut):
            await response.write(chunk)
        if cut is None:
            await response.write_eof()
        elif request.transport is not None:
            request.transport.close()  # without the last chunk of the HTTP framing
        return response

    def _refusal(self, request: web.Request, body: Any, status: int, found: list[str]) -> web.Response:
        self._receive(request, body, tuple(found))
        return self._error(status, found[0], getattr(self.fake, "ERROR_HEADERS", {}))

    def _error(self, status: int, message: str, headers: Mapping[str, str]) -> web.Response:
        return web.json_response(self.fake.refusal(status, message), status=status, headers=headers)

    def _receive(self, request: web.Request, body: Any, found: tuple[str, ...]) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.connections.add(request.transport and request.transport.get_extra_info("peername"))
        self.received.append(ReceivedRequest(request.path, headers, body, found))


def _first_bytes(chunks: list[bytes], count: int) -> Iterator[bytes]:
    data = b"".join(itertools.chain(chunks))[:count]
    yield from (data[at : at + 64] for at in range(0, len(data), 64))


@asynccontextmanager
async def strict_provider(
    dialect: str,
    *,
    signatures: Signatures = "issued",
    needs_key: bool = True,
    seed: str = "",
    further_rules: Callable[[Any], list[str]] | None = None,
) -> AsyncIterator[StrictProvider]:
    """Serve a strict fake of a dialect until the block ends."""
    provider = StrictProvider(
        dialect, signatures=signatures, needs_key=needs_key, seed=seed, further_rules=further_rules
    )
    app = web.Application(client_max_size=_MAX_BODY)
    app.router.add_route("POST", "/{path:.*}", provider.respond)
    app.router.add_route("GET", "/{path:.*}", provider.list_models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        provider.base_url = f"http://127.0.0.1:{port}{provider.fake.BASE_PATH}"
        yield provider
    finally:
        await runner.cleanup()
