"""The extension point of the gateway: one function before and one after every call of a model.

    [gateway]
    before_call = "my_company.limits:check_budget"
    after_call = "my_company.limits:settle"

Both are asynchronous and take one value: ``before_call`` a ``CallStart``, ``after_call`` a ``CallEnd``. If
``before_call`` raises ``GatewayError``, the caller receives that failure in its own API and no provider is called.
``after_call`` runs once for every call that ``before_call`` has accepted, also for a call that failed or was cancelled,
and before the last byte is sent. What it raises is logged.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from dragoman.errors import SettingsError
from dragoman.exchange import Fault
from dragoman.gateway.types import Caller
from dragoman.message import Usage

_log: Final = logging.getLogger("dragoman.gateway")


class CallStart(msgspec.Struct, frozen=True, kw_only=True):
    """A call before any provider is called."""

    caller: Caller
    dialect: str  # the API that the caller speaks
    name: str  # the model name in the request
    models: tuple[str, ...]  # the models that may answer, in order: provider:name
    is_stream: bool
    body: bytes
    request_id: str


class CallEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A call after its answer, its failure or its cancellation."""

    start: CallStart
    model: str | None  # the model that answered; none if all failed
    usage: Usage | None  # with its cost; estimated if the provider has reported none
    fault: Fault | None
    is_cancelled: bool
    latency_ms: int
    session_id: str | None  # where it was recorded


BeforeCall = Callable[[CallStart], Awaitable[None]]
AfterCall = Callable[[CallEnd], Awaitable[None]]


class Hooks(msgspec.Struct, frozen=True):
    """The functions of the extension point."""

    before_call: BeforeCall | None = None
    after_call: AfterCall | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no function."""
        return self.before_call is None and self.after_call is None

    async def start(self, call: CallStart) -> None:
        """Run the function before a call; ``GatewayError`` rejects the call."""
        if self.before_call is not None:
            await self.before_call(call)

    async def end(self, call: CallEnd) -> None:
        """Run the function after a call."""
        if self.after_call is None:
            return
        try:
            await self.after_call(call)
        except Exception:  # noqa: BLE001  code of somebody else
            _log.exception("after_call failed", extra={"request_id": call.start.request_id})


def load_hook(path: str | None, field: str) -> Any:
    """Return the function that a setting names as ``module:function``."""
    if path is None:
        return None
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"{path!r} cannot be loaded: {error}",
            where=f"gateway.{field}",
            remedy="Write module:function, and install the module where the server runs",
            code="invalid_config",
        ) from None
    return function
