"""The system keyring, through the package of the extra ``keyring``. It may ask a person, and so block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dragoman.catalog import Provider
from dragoman.errors import SettingsError
from dragoman.settings.types import validate_key

KEYRING_NAME: Final = "dragoman"


def system_keyring(provider_key: str) -> str | None:
    """Return the key of a provider; none without a keyring or without the package."""
    try:
        import keyring  # noqa: PLC0415  an extra, and slow to import
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


def store_key(provider: Provider, key: str) -> None:
    """Store a key in the keyring."""
    secret = validate_key(key, "argument")
    _update_keyring(lambda keyring: keyring.set_password(KEYRING_NAME, provider.key, secret.reveal()))


def delete_key(provider: Provider) -> bool:
    """Delete a key from the keyring; false if there is none."""

    def delete(keyring: Any) -> bool:
        exists = keyring.get_password(KEYRING_NAME, provider.key) is not None
        if exists:
            keyring.delete_password(KEYRING_NAME, provider.key)
        return exists

    return bool(_update_keyring(delete))


def _update_keyring(change: Callable[[Any], Any]) -> Any:
    try:
        import keyring  # noqa: PLC0415
        from keyring.errors import KeyringError  # noqa: PLC0415
    except ImportError:
        raise SettingsError(
            "the package is not installed",
            where="keyring",
            remedy="Run pip install 'dragoman[keyring]'",
            code="missing_package",
        ) from None
    try:
        return change(keyring)
    except KeyringError as error:
        raise SettingsError(
            f"it cannot be written ({type(error).__name__})",
            where="keyring",
            remedy="Unlock it, or store the key in a variable or in the configuration file",
            code="keyring_failed",
        ) from None
