"""The file of the providers that a person has added on the web page: ``providers.json`` beside the configuration file.

    read_provider_file(path) -> {"providers": {…}, "models": {…}}     empty if there is none
    change_provider(path, "ollama", row, models)                      add or replace a provider
    change_provider(path, "ollama", None)                             remove it

Its tables are those of the configuration file, whose rows take precedence. Invariant: only the owner can read it; it is
replaced as a whole, so that no reader receives a part of it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dragoman import permissions
from dragoman.errors import SettingsError
from dragoman.jsontext import DECODE_ERRORS

Tables = dict[str, dict[str, Any]]
_NAME: Final = "providers.json"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    providers: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}


def provider_file(config_file: Path) -> Path:
    """Return the path of the file that belongs to a configuration file."""
    return config_file.with_name(_NAME)


def read_provider_file(path: Path) -> Tables:
    """Return the tables of the file."""
    try:
        with path.open("rb") as stream:
            _require_private(path, os.fstat(stream.fileno()))
            return msgspec.structs.asdict(msgspec.json.decode(stream.read(), type=_File))
    except FileNotFoundError:
        return {}
    except (OSError, *DECODE_ERRORS) as error:
        what = error.strerror or "cannot be read" if isinstance(error, OSError) else f"is not valid: {error}"
        raise SettingsError(what, where=str(path), remedy="Correct or delete the file", code="invalid_config") from None


def merge_provider_tables(stored: Tables, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of both files. Single fields of the configuration file take precedence."""
    result = dict(config)
    for table, rows in stored.items():
        above = config.get(table) or {}
        if isinstance(above, dict):  # the loader rejects anything else
            merged = {key: _merge_row(row, above.get(key)) for key, row in rows.items()}
            result[table] = {**merged, **{key: row for key, row in above.items() if key not in merged}}
    return result


def _merge_row(row: dict[str, Any], above: Any) -> Any:
    if above is None:
        return row
    return {**row, **above} if isinstance(above, dict) else above


def change_provider(
    path: Path, provider: str, row: Mapping[str, Any] | None, models: Mapping[str, Any] | None = None
) -> None:
    """Store the row of a provider and its models in place of earlier ones; without a row, remove both.

    Without models, earlier ones stay.
    """
    tables = read_provider_file(path)
    providers = {key: value for key, value in tables.get("providers", {}).items() if key != provider}
    stored_models = tables.get("models", {})
    others = {key: value for key, value in stored_models.items() if not key.startswith(f"{provider}:")}
    if row is not None:
        providers[provider] = dict(row)
        others = stored_models if models is None else {**others, **models}
    _replace(path, msgspec.json.format(msgspec.json.encode(_File(providers, others))))


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        permissions.replace_file(path, data)
    except OSError as error:
        what = error.strerror or "cannot be written"
        raise SettingsError(what, where=str(path), remedy="Check its permissions", code="config_not_writable") from None


def _require_private(path: Path, status: os.stat_result) -> None:
    if os.name == "posix" and (status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0)):
        raise SettingsError(
            "other users can read or change the file, which may contain API keys",
            where=str(path),
            remedy=f"Run: chmod 600 {shlex.quote(str(path))}",
            code="unsafe_config",
        )
