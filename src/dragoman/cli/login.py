"""``dragoman login`` and ``logout``: a provider's key in the system's keyring, so that it stands in no file."""

from __future__ import annotations

import getpass
import sys

from dragoman import settings as keys
from dragoman.cli.terminal import console
from dragoman.errors import InputError


def login(provider: str) -> None:
    """Keep a provider's key in the system's keyring. It is asked for, or read from a pipe; it is never shown.

    Parameters
    ----------
    provider
        Whose key it is. See the names with dragoman models --providers.
    """
    row = keys.load().catalog.provider(provider)
    key = getpass.getpass(f"Key for {row.title}: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not key.strip():
        raise InputError("no key was given", remedy="Paste it, or pipe it in")
    keys.store_key(row, key.strip())
    console().print(f"The key for {row.title} is in the keyring.", markup=False)


def logout(provider: str) -> None:
    """Take a provider's key out of the system's keyring.

    Parameters
    ----------
    provider
        Whose key it is.
    """
    row = keys.load().catalog.provider(provider)
    was_there = keys.delete_key(row)
    result = "is not in the keyring any more" if was_there else "was not in the keyring"
    console().print(f"The key for {row.title} {result}.", markup=False)
