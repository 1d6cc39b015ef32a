"""Where models are reached, with which key, and what a person has chosen: from arguments, variables, a file, a keyring.

    settings = load()                                the environment and the file, read once
    settings.catalog                                 the built-in rows with the file's laid over them
    settings.endpoint("openai")                      where to call, with which key, and where each of these came from
    settings.endpoint("openai", api_key=…)           an argument comes before everything else
    settings.has_key("openai")                       whether there is a key at all
    settings.default_model, .store, .workspace       each a ``Setting``: its value, and where it came from

For each thing the first place that has it counts: the argument, the environment, the file, the keyring, the row of the
catalog. The keyring comes late because it may have to ask a person. It can take a while, so code that must not wait
calls ``endpoint`` in a thread. The model that is embedded (``local:``) has an address only while it runs: see
``dragoman.local``, and give it as ``base_url``.

The file is ``~/.config/dragoman/config.toml``, under ``XDG_CONFIG_HOME`` if that is set, or what ``DRAGOMAN_CONFIG``
names. It may hold keys, so one that others can read is refused. The one rule: a key is never shown, logged or raised;
of a long one the last four characters are, so that people can tell which it is.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from dragoman import catalog as rows
from dragoman.catalog import Catalog, Provider
from dragoman.errors import SettingsError

CONFIG_VARIABLE: Final = "DRAGOMAN_CONFIG"
KEYRING_NAME: Final = "dragoman"
_VARIABLES: Final = {"default_model": "DRAGOMAN_MODEL", "store": "DRAGOMAN_STORE", "workspace": "DRAGOMAN_WORKSPACE"}
_LONG_KEY: Final = 12  # of a shorter one, four characters would be too much to show
_NAMED: Final = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")  # a variable in the address of a row
_ALSO_NAMED: Final = {"AWS_REGION": "AWS_DEFAULT_REGION"}

Keyring = Callable[[str], str | None]


class Secret:
    """A key. What shows it shows its last four characters at most."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The key itself, for the header that carries it and nothing else."""
        return self._text

    def withheld_from(self, text: str) -> str:
        """A text in which this key does not stand any more. Some providers repeat the key that they refuse."""
        return text.replace(self._text, str(self)) if self._text else text

    def __repr__(self) -> str:
        return "…" + self._text[-4:] if len(self._text) >= _LONG_KEY else "…"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not written down")


class Setting(msgspec.Struct, frozen=True):
    """One thing that was chosen, and where: the name of a variable, the path of a file, or ``nowhere``."""

    value: str | None = None
    origin: str = "nowhere"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider is called, and with which key. It may be shown: the key is not in its text."""

    provider: Provider
    base_url: str  # without a slash at its end
    base_url_origin: str
    key: Secret | None = None
    key_origin: str = "nowhere"
    is_token: bool = False  # it goes as a bearer token also where keys have a header of their own
    headers: Mapping[str, str] = {}  # further ones, from the file


class _Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says about a provider besides its row."""

    api_key: Secret | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, once and for all. Made by ``load``."""

    catalog: Catalog
    default_model: Setting = Setting()
    store: Setting = Setting()
    workspace: Setting = Setting()
    file: str | None = None  # the file that was read
    accounts: Mapping[str, _Account] = {}
    environment: Mapping[str, str] = {}
    keyring: Keyring | None = None

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={getattr(self, name).value!r}" for name in _VARIABLES)
        return f"Settings({chosen}, file={self.file!r})"

    def endpoint(
        self, provider: Provider | str, *, api_key: str | None = None, base_url: str | None = None
    ) -> Endpoint:
        """Where this provider is called, and with which key. ``SettingsError`` says what is missing and how to give it.

        It may ask the keyring, and so a person.
        """
        row = self.catalog.provider(provider) if isinstance(provider, str) else provider
        where, where_from = self._base_url(row, base_url)
        key, key_from = self._key(row, api_key)
        if key is None and _needs_key(row):
            raise _missing_key(row, self.file)
        return Endpoint(
            provider=row,
            base_url=where.rstrip("/"),
            base_url_origin=where_from,
            key=key,
            key_origin=key_from,
            is_token=key_from in row.token_variables,
            headers=self._account(row).headers,
        )

    def has_key(self, provider: Provider | str) -> bool:
        """Whether the provider can be called at all: it needs no key, or there is one."""
        row = self.catalog.provider(provider) if isinstance(provider, str) else provider
        return not _needs_key(row) or self._key(row, None)[0] is not None

    def _account(self, row: Provider) -> _Account:
        return self.accounts.get(row.key) or _Account()

    def _key(self, row: Provider, given: str | None) -> tuple[Secret | None, str]:
        if given:
            return _usable(given, "argument"), "argument"
        account = self._account(row)
        named = (account.api_key_env,) if account.api_key_env else ()
        for variable in (*named, *row.key_variables, *row.token_variables):
            if text := self.environment.get(variable, "").strip():
                return _usable(text, variable), variable
        if account.api_key is not None:
            return account.api_key, self.file or "file"
        if self.keyring is not None and (kept := self.keyring(row.key)):
            return _usable(kept, "keyring"), "keyring"
        return None, "nowhere"

    def _base_url(self, row: Provider, given: str | None) -> tuple[str, str]:
        if given:
            return _address(given, "argument"), "argument"
        variable = row.base_url_variable or ""
        if text := self.environment.get(variable, "").strip():
            address = _host_address(text) if variable == "OLLAMA_HOST" else text
            return _completed(_address(address, variable), row.base_url_path), variable
        if row.base_url is None:
            raise _missing_base_url(row)
        origin = self.file if self.file and row != rows.builtin().providers.get(row.key) else "catalog"
        return _address(self._filled_in(row), f"providers.{row.key}.base_url"), origin

    def _filled_in(self, row: Provider) -> str:
        """The address of a row, with the variables that it names."""
        address = row.base_url or ""
        values = {name: self._variable(name) for name in _NAMED.findall(address)}
        for variable, value in values.items():
            if not value:
                raise SettingsError(
                    f"its address depends on {variable}, which is not set",
                    where=row.title,
                    remedy=f"Set {variable}, or give a base URL",
                    code="missing_base_url",
                )
        return _NAMED.sub(lambda found: values[found[1]], address)

    def _variable(self, name: str) -> str:
        return self.environment.get(name, "") or self.environment.get(_ALSO_NAMED.get(name, ""), "")


# --- reading ---------------------------------------------------------------------------------------------------------


def load(
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | str | None = None,
    keyring: Keyring | None = None,
    catalog: Catalog | None = None,
) -> Settings:
    """The settings of the environment, and of the file if there is one. A file that is named has to be there."""
    environment = os.environ if environment is None else environment
    named = file or environment.get(CONFIG_VARIABLE)
    path = Path(named).expanduser() if named else default_file(environment)
    said = _read_file(path, must_exist=named is not None)
    accounts, overlay = _accounts_and_rows(said or {}, catalog or rows.builtin(), str(path))
    chosen = {name: _chosen(name, variable, environment, said, path) for name, variable in _VARIABLES.items()}
    return Settings(
        catalog=(catalog or rows.builtin()).overlaid(overlay, str(path)) if overlay else catalog or rows.builtin(),
        file=str(path) if said is not None else None,
        accounts=accounts,
        environment=dict(environment),
        keyring=keyring or system_keyring,
        **chosen,
    )


def default_file(environment: Mapping[str, str]) -> Path:
    """Where the file is when nobody says otherwise."""
    if sys.platform == "win32":
        folder = Path(environment.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        folder = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "dragoman" / "config.toml"


def _chosen(
    name: str, variable: str, environment: Mapping[str, str], said: Mapping[str, Any] | None, path: Path
) -> Setting:
    if text := environment.get(variable, "").strip():
        return Setting(text, variable)
    value = (said or {}).get(name)
    if value is None:
        return Setting()
    if not isinstance(value, str):
        raise _invalid(path, f"{name} has to be a text")
    return Setting(value, str(path))


def _read_file(path: Path, *, must_exist: bool) -> dict[str, Any] | None:
    try:
        with path.open("rb") as opened:
            _refuse_if_readable_by_others(path, os.fstat(opened.fileno()))
            said = tomllib.loads(opened.read().decode("utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise _invalid(path, "there is no such file") from None
        return None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        what = error.strerror or "cannot be read" if isinstance(error, OSError) else f"is not TOML: {error}"
        raise _invalid(path, what) from None
    unknown = sorted(set(said) - {*_VARIABLES, "providers", "models"})
    if unknown:
        raise _invalid(
            path, f"{unknown[0]!r} is not known here; known are {', '.join((*_VARIABLES, 'providers', 'models'))}"
        )
    return said


def _refuse_if_readable_by_others(path: Path, status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if status.st_mode & 0o077:
        raise SettingsError(
            "others on this machine can read or change it, and it may hold keys",
            where=str(path),
            remedy=f"Run: chmod 600 {shlex.quote(str(path))}",
            code="unsafe_config",
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise SettingsError(
            "it belongs to somebody else",
            where=str(path),
            remedy="Use a file of your own",
            code="unsafe_config",
        )


def _accounts_and_rows(
    said: Mapping[str, Any], catalog: Catalog, path: str
) -> tuple[dict[str, _Account], dict[str, Any]]:
    """What the file says about keys, and the rows of a catalog that are left when that is taken out."""
    accounts: dict[str, _Account] = {}
    providers: dict[str, Any] = {}
    for key, row in (said.get("providers") or {}).items():
        if not isinstance(row, dict):
            raise _invalid(path, f"providers.{key} has to be a table")
        fields = set(_Account.__struct_fields__)
        accounts[key] = _account({name: row[name] for name in fields & set(row)}, key, path)
        own = {name: value for name, value in row.items() if name not in fields}
        if key not in catalog.providers:
            own = {"title": key, "dialect": "openai_chat", **own}
        if own:
            providers[key] = own
    overlay = {"providers": providers, "models": said.get("models") or {}}
    return accounts, {name: table for name, table in overlay.items() if table}


def _account(said: dict[str, Any], key: str, path: str) -> _Account:
    text = said.pop("api_key", None)
    if text is not None and not isinstance(text, str):
        raise _invalid(path, f"providers.{key}.api_key has to be a text")
    try:
        account = msgspec.convert(said, _Account)
    except msgspec.ValidationError as error:
        raise _invalid(path, f"providers.{key}: {error}") from None
    return msgspec.structs.replace(account, api_key=_usable(text, f"{path}, providers.{key}")) if text else account


def _usable(text: str, origin: str) -> Secret:
    """A key that can stand in a header. One with a line end or a letter beyond ASCII was not copied well."""
    text = text.strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError(
            "the key has a space, a line end or a sign that no key has",
            where=origin,
            remedy="Copy it again",
            code="invalid_key",
        )
    return Secret(text)


def _address(text: str, origin: str) -> str:
    """A base URL that can be called."""
    if not re.match(r"https?://[^/\s@]+(?:/[^\s?#]*)?\Z", text):
        raise SettingsError(
            "is not an address that can be called",
            where=origin,
            remedy="Write it as https://host/path, without a user, a query or a fragment",
            code="invalid_base_url",
        )
    return text.rstrip("/")


def _host_address(text: str) -> str:
    """What Ollama's variable means: a host, a port, both, or a URL; every address of the machine is this machine."""
    scheme, _, rest = text.rpartition("://")
    host, slash, path = rest.partition("/")
    name, colon, port = host.rpartition(":") if re.search(r":\d+\Z", host) else (host, ":", "11434")
    if name in ("", "0.0.0.0", "[::]"):
        name = "127.0.0.1"
    return f"{scheme or 'http'}://{name}{colon}{port}{slash}{path}"


def _completed(address: str, path: str) -> str:
    """The address with the path that the row says belongs behind what its variable holds."""
    return address if not path or address.endswith(path) else address + path


def _needs_key(row: Provider) -> bool:
    return bool(row.key_variables or row.token_variables) and not row.runs_locally


# --- the keyring -----------------------------------------------------------------------------------------------------


def system_keyring(provider_key: str) -> str | None:
    """The key that the system's keyring has for a provider; none if there is no keyring, or no package for it."""
    try:
        import keyring  # noqa: PLC0415  an extra, and slow to load
        from keyring.errors import KeyringError, NoKeyringError  # noqa: PLC0415
    except ImportError:
        return None
    try:
        return keyring.get_password(KEYRING_NAME, provider_key)
    except NoKeyringError:
        return None
    except KeyringError as error:
        raise SettingsError(
            f"it cannot be read ({type(error).__name__})", where="keyring", remedy="Unlock it", code="keyring_failed"
        ) from None


def keep_key(provider: Provider, key: str) -> None:
    """Put a key into the system's keyring."""
    secret = _usable(key, "argument")
    try:
        import keyring  # noqa: PLC0415
        from keyring.errors import KeyringError  # noqa: PLC0415
    except ImportError:
        raise SettingsError(
            "the package for it is not installed",
            where="keyring",
            remedy="Run: pip install 'dragoman[keyring]'",
            code="missing_package",
        ) from None
    try:
        keyring.set_password(KEYRING_NAME, provider.key, secret.reveal())
    except KeyringError as error:
        raise SettingsError(
            f"it cannot be written ({type(error).__name__})",
            where="keyring",
            remedy="Unlock it, or keep the key in a variable or the configuration file",
            code="keyring_failed",
        ) from None


# --- errors ----------------------------------------------------------------------------------------------------------


def _missing_key(row: Provider, file: str | None) -> SettingsError:
    variables = " or ".join((*row.key_variables, *row.token_variables))
    return SettingsError(
        "there is no key for it",
        where=row.title,
        remedy=f"Set {variables}, or write api_key under [providers.{row.key}] in {file or 'the configuration file'}",
        code="missing_key",
    )


def _missing_base_url(row: Provider) -> SettingsError:
    by_variable = f"Set {row.base_url_variable}, or write" if row.base_url_variable else "Write"
    return SettingsError(
        "nobody has said where it is",
        where=row.title,
        remedy=f"{by_variable} base_url under [providers.{row.key}] in the configuration file",
        code="missing_base_url",
    )


def _invalid(path: Path | str, what: str) -> SettingsError:
    return SettingsError(what, where=str(path), remedy="Correct the configuration file", code="invalid_config")
