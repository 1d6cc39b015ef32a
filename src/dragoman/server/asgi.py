"""The server as an ASGI application inside another one: FastAPI, Starlette, or any ASGI server.

    chat = dragoman.server.app("chats.db", model="gpt-5", tools=[weather])
    api = FastAPI(lifespan=chat.lifespan)
    api.mount("/chat", chat)

``lifespan`` opens the store and the agent, and closes them after active turns had their grace period: a mounted
application receives no lifespan events. Run alone, ``uvicorn module:chat``, it handles them. URLs that the
application writes start with the address of the request and the path of the mount, unless ``base_url`` is configured.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.server.application import make_app
from dragoman.server.auth.principal import FindUser
from dragoman.server.config import ServerConfig
from dragoman.server.server import open_app_state
from dragoman.server.state import AppState
from dragoman.settings import Settings
from dragoman.tools import Tool
from dragoman.turn import AgentConfig

_NOT_OPEN: Final = "The application is not open. Pass lifespan=chat.lifespan to the application that mounts it."


class MountableApp:
    """An ASGI application that another one can mount. ``app`` makes it."""

    def __init__(self, config: ServerConfig, **state_options: Any) -> None:
        self.config = config
        self._state_options = state_options
        self._app: ASGIApp | None = None
        self._state: AppState | None = None

    @property
    def state(self) -> AppState:
        """The store, the agent and the mail of the application, while it is open."""
        if self._state is None:
            raise RuntimeError(_NOT_OPEN)
        return self._state

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Open the application while the block lasts: the ``lifespan`` of the application that mounts it."""
        async with open_app_state(self.config, is_mounted=True, **self._state_options) as state:
            self._state, self._app = state, make_app(state)
            try:
                yield
            finally:
                self._state = self._app = None
                await state.runs.close(self.config.grace_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        else:
            body = {"error": {"code": "not_open", "message": _NOT_OPEN}}
            await JSONResponse(body, 503)(scope, receive, send)

    async def _handle_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


def app(
    store: str | Path,
    *,
    model: str | None = None,
    system_prompt: str | None = None,
    tools: Iterable[Tool | Callable[..., Any]] = (),
    find_user: FindUser | None = None,
    settings: Settings | None = None,
    agent_config: AgentConfig = AgentConfig(),  # noqa: B008  an immutable value
    **options: Any,
) -> MountableApp:
    """Make an ASGI application with the chat API, the web page and mail, over a store.

    ``store`` is its URL, or the path of a SQLite file. ``tools`` are functions or tools. ``find_user`` returns the id
    of the user of a request, or none to reject it; without it, callers are authenticated as by ``dragoman serve``.
    ``options`` are the other fields of ``ServerConfig``.
    """
    url = str(store) if ":" in str(store) else f"sqlite:///{quote(str(store))}"
    config = msgspec.convert({"store": url, "model": model, "system": system_prompt, **options}, ServerConfig)
    agent_options = {"tools": tuple(tools)} if tools else {}
    return MountableApp(config, settings=settings, agent_config=agent_config, find_user=find_user, **agent_options)
