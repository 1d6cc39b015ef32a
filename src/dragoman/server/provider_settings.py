"""The providers of a running server: their access, changes of it without a restart, and a test with a real request.

    await settings.refresh()                           uses changes of another process
    await settings.store("openai", change, models)     in the keyring, or in a file that only the owner can read
    await settings.remove("openai")
    await settings.test("openai", change)              the models that the provider lists, or its fault

A key in a variable or in the configuration file takes precedence, so it cannot be changed here. Invariant: a key is
never returned; at most its last four characters are.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from dragoman import settings as keys
from dragoman.catalog import Provider
from dragoman.client.model_list import RemoteModel, list_models
from dragoman.errors import InputError, SettingsError
from dragoman.gateway import Gateway
from dragoman.settings import Endpoint, Settings
from dragoman.settings.provider_file import change_provider, provider_file, read_provider_file
from dragoman.settings.settings import validate_url
from dragoman.settings.types import validate_key
from dragoman.turn import Agent

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
_CHECK_S: Final = 1.0  # between two looks at the file
_CUSTOM: Final = {"dialect": "openai_chat", "quirks": ["usage_when_asked"]}


class ProviderChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Access to a provider. A field that is missing stays as it is."""

    api_key: str | None = None
    base_url: str | None = None
    title: str | None = None


class ProviderSettings:
    """The providers of the agent of a server."""

    def __init__(self, agent: Agent, gateway: Gateway, *, is_watching: bool = True) -> None:
        """``is_watching``: other processes may change the files. An application that mounts the server has its own."""
        self._is_watching = is_watching
        self._agent = agent
        self._gateway = gateway
        self._file = provider_file(keys.config_file(self.settings))
        self._stamp = _stamp(self._file)
        self._checked_at = time.monotonic()
        self._lock = asyncio.Lock()

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return self._agent.services.settings

    async def refresh(self) -> None:
        """Use the settings again if another process has changed them; checked once a second."""
        now = time.monotonic()
        if not self._is_watching or now - self._checked_at < _CHECK_S:
            return
        self._checked_at = now
        if _stamp(self._file) != self._stamp:
            await self._reload()

    async def _reload(self) -> None:
        self._stamp = _stamp(self._file)
        fresh = await asyncio.to_thread(keys.reload, self.settings)
        self._agent.services.change_settings(fresh)
        self._gateway.reload_models()

    def stored_row(self, provider: str) -> dict[str, Any] | None:
        """The row of a provider that was stored here."""
        return read_provider_file(self._file).get("providers", {}).get(provider)

    async def store(self, provider: str, change: ProviderChange, models: Iterable[RemoteModel] | None) -> None:
        """Store the access to a provider and its models, and use them from the next call on."""
        async with self._lock:
            row = self._changed_row(provider, change)
            if change.api_key is not None and await self._store_in_keyring(provider, row, change.api_key):
                row.pop("api_key", None)
            rows = None if models is None else {f"{provider}:{model.name}": model.row() for model in models}
            await asyncio.to_thread(change_provider, self._file, provider, row, rows)
            await self._reload()

    async def remove(self, provider: str) -> None:
        """Remove what was stored here about a provider."""
        async with self._lock:
            row = self.settings.catalog.providers.get(provider)
            if row is not None:
                with contextlib.suppress(SettingsError):  # there is no keyring
                    await asyncio.to_thread(keys.delete_key, row)
            await asyncio.to_thread(change_provider, self._file, provider, None)
            await self._reload()

    async def test(self, provider: str, change: ProviderChange) -> list[RemoteModel]:
        """The models that the provider lists; ``RemoteFaultError`` with its words if it does not."""
        endpoint = await asyncio.to_thread(self._endpoint, provider, change)
        return await list_models(endpoint)

    def _endpoint(self, provider: str, change: ProviderChange) -> Endpoint:
        row = self.settings.catalog.providers.get(provider)
        if row is None:
            row = _to_provider(provider, self._changed_row(provider, change))
        return self.settings.endpoint(row, api_key=change.api_key, base_url=change.base_url)

    def _changed_row(self, provider: str, change: ProviderChange) -> dict[str, Any]:
        """The stored row with a change."""
        row = dict(self.stored_row(provider) or {})
        if provider not in self.settings.catalog.providers:
            _require_new_provider(provider, change)
            row = {"title": provider, **_CUSTOM, **row}
        for name in ("api_key", "base_url", "title"):
            if value := getattr(change, name):
                row[name] = value.strip()
        try:
            if "api_key" in row:
                validate_key(row["api_key"], "apiKey")
            if "base_url" in row:
                row["base_url"] = validate_url(row["base_url"], "baseUrl")
        except SettingsError as error:  # here it is the input of a person
            raise InputError(error.what, where=error.where, remedy=error.remedy, code=error.code) from None
        return row

    async def _store_in_keyring(self, provider: str, row: dict[str, Any], api_key: str) -> bool:
        """Store a key in the keyring; false if this machine has none."""
        known = self.settings.catalog.providers.get(provider)
        if self.settings.keyring is not keys.system_keyring:
            return False
        target = known or _to_provider(provider, row)
        try:
            await asyncio.to_thread(keys.store_key, target, api_key)
        except SettingsError:
            return False
        return True


def _to_provider(provider: str, row: dict[str, Any]) -> Provider:
    fields = {name: value for name, value in row.items() if name != "api_key"}
    return msgspec.convert({"key": provider, **fields}, Provider)


def _require_new_provider(provider: str, change: ProviderChange) -> None:
    if not _NAME.fullmatch(provider):
        raise InputError("a provider is named with a-z, 0-9 and -", where=provider[:60], remedy="Choose another name")
    if not change.base_url:
        raise InputError("a new provider needs its base URL", where=provider, remedy="Send baseUrl")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
