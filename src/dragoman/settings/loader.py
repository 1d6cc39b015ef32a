"""Loads the settings from the environment and the configuration file.

Invariant: a file that others can read is rejected, since it may contain API keys.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dragoman import catalog as rows
from dragoman.catalog import Catalog
from dragoman.errors import SettingsError
from dragoman.settings.keyring import system_keyring
from dragoman.settings.provider_file import merge_provider_tables, provider_file, read_provider_file
from dragoman.settings.settings import VARIABLES, Settings
from dragoman.settings.types import Account, Keyring, Setting, validate_key

CONFIG_VARIABLE: Final = "DRAGOMAN_CONFIG"
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TABLES: Final = ("providers", "models", "mcp_servers", "serve", "gateway")


def load(
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | str | None = None,
    keyring: Keyring | None = None,
    catalog: Catalog | None = None,
) -> Settings:
    """Load the settings of the environment and of the file. An explicit file must exist."""
    environment = os.environ if environment is None else environment
    explicit_file = file or environment.get(CONFIG_VARIABLE)
    path = Path(explicit_file).expanduser() if explicit_file else default_file(environment)
    config = _read_file(path, must_exist=explicit_file is not None)
    catalog = catalog or rows.builtin()
    tables = merge_provider_tables(read_provider_file(provider_file(path)), config or {})
    accounts, overlay = _split_accounts(tables, catalog, str(path))
    choices = {name: _read_setting(name, variable, environment, config, path) for name, variable in VARIABLES.items()}
    return Settings(
        catalog=catalog.overlay(overlay, str(path)) if overlay else catalog,
        file=str(path) if config is not None else None,
        accounts=accounts,
        environment=dict(environment),
        keyring=keyring or system_keyring,
        mcp_servers=_read_mcp_servers(config or {}, path),
        serve=_read_table("serve", config or {}, path),
        gateway=_read_table("gateway", config or {}, path),
        **choices,
    )


def default_file(environment: Mapping[str, str]) -> Path:
    """Return the default path of the configuration file."""
    if sys.platform == "win32":
        folder = Path(environment.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        folder = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "dragoman" / "config.toml"


def data_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the default store and of the weights of the embedded model."""
    if sys.platform == "win32":
        folder = Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        folder = Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "dragoman"


def private_paths(settings: Settings) -> tuple[Path, ...]:
    """Return the files of this machine that contain settings and keys, existing or not."""
    default = default_file(settings.environment)
    key_files = (default.with_name(name) for name in ("pepper.json", "mail-keys.json"))
    own_file = config_file(settings)
    return (default, *key_files, provider_file(default), own_file, provider_file(own_file))


def config_file(settings: Settings) -> Path:
    """Return the path of the configuration file, existing or not."""
    return Path(settings.file) if settings.file is not None else default_file(settings.environment)


def reload(settings: Settings) -> Settings:
    """Return the settings as their files and the keyring have them now."""
    fresh = load(environment=settings.environment, file=settings.file, keyring=settings.keyring)
    if settings.default_model.origin not in (VARIABLES["default_model"], settings.file, "nowhere"):
        fresh = msgspec.structs.replace(fresh, default_model=settings.default_model)  # of an option
    return fresh


def _read_setting(
    name: str, variable: str, environment: Mapping[str, str], config: Mapping[str, Any] | None, path: Path
) -> Setting:
    if text := environment.get(variable, "").strip():
        return Setting(text, variable)
    value = (config or {}).get(name)
    if value is None:
        return Setting()
    if not isinstance(value, str):
        raise _config_error(path, f"{name} must be a string")
    return Setting(value, str(path))


def _read_file(path: Path, *, must_exist: bool) -> dict[str, Any] | None:
    try:
        with path.open("rb") as stream:
            _require_private(path, os.fstat(stream.fileno()))
            config = tomllib.loads(stream.read().decode("utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise _config_error(path, "the file does not exist") from None
        return None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        what = error.strerror or "cannot be read" if isinstance(error, OSError) else f"is not TOML: {error}"
        raise _config_error(path, what) from None
    known_keys = (*VARIABLES, *_TABLES)
    unknown_keys = sorted(set(config) - set(known_keys))
    if unknown_keys:
        raise _config_error(path, f"unknown key {unknown_keys[0]!r}; known keys are {', '.join(known_keys)}")
    return config


def _read_mcp_servers(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    servers = config.get("mcp_servers") or {}
    if not isinstance(servers, dict) or not all(isinstance(server, dict) for server in servers.values()):
        raise _config_error(path, "mcp_servers must be a table of tables")
    return servers


def _read_table(name: str, config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    table = config.get(name) or {}
    if not isinstance(table, dict):
        raise _config_error(path, f"{name} must be a table")
    return table


def _require_private(path: Path, status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if status.st_mode & 0o077:
        raise SettingsError(
            "other users can read or change the file, which may contain API keys",
            where=str(path),
            remedy=f"Run: chmod 600 {shlex.quote(str(path))}",
            code="unsafe_config",
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise SettingsError(
            "the file belongs to another user",
            where=str(path),
            remedy="Use your own file",
            code="unsafe_config",
        )


def _split_accounts(
    config: Mapping[str, Any], catalog: Catalog, path: str
) -> tuple[dict[str, Account], dict[str, Any]]:
    """Split the providers of the file into accounts (keys and headers) and catalog rows."""
    accounts: dict[str, Account] = {}
    providers: dict[str, Any] = {}
    for key, row in (config.get("providers") or {}).items():
        if not isinstance(row, dict):
            raise _config_error(path, f"providers.{key} must be a table")
        fields = set(Account.__struct_fields__)
        accounts[key] = _parse_account({name: row[name] for name in fields & set(row)}, key, path)
        own = {name: value for name, value in row.items() if name not in fields}
        if key not in catalog.providers:
            own = {"title": key, "dialect": "openai_chat", **own}
            if own["dialect"] == "openai_chat":
                own = {"quirks": ["usage_when_asked"], **own}  # most report the usage of a stream only on request
        if own:
            providers[key] = own
    overlay = {"providers": providers, "models": config.get("models") or {}}
    return accounts, {name: table for name, table in overlay.items() if table}


def _parse_account(fields: dict[str, Any], key: str, path: str) -> Account:
    text = fields.pop("api_key", None)
    if text is not None and not isinstance(text, str):
        raise _config_error(path, f"providers.{key}.api_key must be a string")
    try:
        account = msgspec.convert(fields, Account)
    except msgspec.ValidationError as error:
        raise _config_error(path, f"providers.{key}: {error}") from None
    for name, value in account.headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isprintable():
            raise _config_error(path, f"providers.{key}.headers: {name!r} is not a valid header")
    return msgspec.structs.replace(account, api_key=validate_key(text, f"{path}, providers.{key}")) if text else account


def _config_error(path: Path | str, what: str) -> SettingsError:
    return SettingsError(what, where=str(path), remedy="Correct the configuration file", code="invalid_config")
