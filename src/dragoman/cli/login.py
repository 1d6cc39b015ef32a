"""``dragoman login`` and ``logout``: API keys of providers in the system keyring."""

from __future__ import annotations

import getpass
import sys

from dragoman import settings as keys
from dragoman.cli.terminal import console
from dragoman.errors import InputError


def login(provider: str, /) -> None:
    """Store the API key of a provider in the system keyring. The key is read from a prompt or a pipe.

    Parameters
    ----------
    provider
        The provider. dragoman models --providers lists the names.
    """
    row = keys.load().catalog.provider(provider)
    key = getpass.getpass(f"API key for {row.title}: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not key.strip():
        raise InputError("no key", remedy="Enter it at the prompt, or pipe it to standard input")
    keys.store_key(row, key.strip())
    console().print(f"The API key for {row.title} is stored in the keyring.", markup=False)


def logout(provider: str, /) -> None:
    """Delete the API key of a provider from the system keyring.

    Parameters
    ----------
    provider
        The provider.
    """
    row = keys.load().catalog.provider(provider)
    was_there = keys.delete_key(row)
    result = "was deleted from the keyring" if was_there else "was not in the keyring"
    console().print(f"The API key for {row.title} {result}.", markup=False)
