"""The system's keyring, by the package of the extra ``keyring``. It may have to ask a person, and so take a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dragoman.catalog import Provider
from dragoman.errors import SettingsError
from dragoman.settings.types import validate_key

KEYRING_NAME: Final = "dragoman"


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


def store_key(provider: Provider, key: str) -> None:
    """Put a key into the system's keyring."""
    secret = validate_key(key, "argument")
    _update_keyring(lambda keyring: keyring.set_password(KEYRING_NAME, provider.key, secret.reveal()))


def delete_key(provider: Provider) -> bool:
    """Take a key out of the system's keyring; whether it was there."""

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
            "the package for it is not installed",
            where="keyring",
            remedy="Run: pip install 'dragoman[keyring]'",
            code="missing_package",
        ) from None
    try:
        return change(keyring)
    except KeyringError as error:
        raise SettingsError(
            f"it cannot be written ({type(error).__name__})",
            where="keyring",
            remedy="Unlock it, or keep the key in a variable or the configuration file",
            code="keyring_failed",
        ) from None
