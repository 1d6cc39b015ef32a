"""Configuration: endpoints, API keys and choices, from arguments, variables, a file and the keyring.

    settings = load()                                the environment and the file, read once
    settings.catalog                                 the built-in catalog with the rows of the file
    settings.endpoint("openai")                      URL and API key, each with its origin
    settings.endpoint("openai", api_key=…)           an argument overrides every other source
    settings.has_key("openai")                       whether an API key exists
    settings.access_source("openai")                 origin of the access, or none
    settings.default_model, .store, .workspace       each a ``Setting``: a value and its origin

The first source with a value wins: the argument, the environment, the file, the keyring, the catalog row. The keyring
may ask a person and block, so call ``endpoint`` in a thread where that matters. The embedded model (``local:``) has a
URL only while it runs: see ``dragoman.local``, and pass it as ``base_url``.

The web page stores providers in ``providers.json`` beside the file; rows of the file take precedence over it.

The file is ``~/.config/dragoman/config.toml``, or below ``XDG_CONFIG_HOME``, or the value of ``DRAGOMAN_CONFIG``. It
may contain API keys, so a file that others can read is rejected.

Invariant: an API key is never shown, logged or raised; at most its last four characters are.
"""

from __future__ import annotations

from dragoman.settings.keyring import delete_key, store_key, system_keyring
from dragoman.settings.loader import (
    CONFIG_VARIABLE,
    config_file,
    data_folder,
    default_file,
    load,
    private_paths,
    reload,
)
from dragoman.settings.settings import EMBEDDED, VARIABLES, Settings, find_missing_packages, is_true
from dragoman.settings.types import Endpoint, Keyring, Secret, Setting

__all__ = [
    "CONFIG_VARIABLE",
    "EMBEDDED",
    "VARIABLES",
    "Endpoint",
    "Keyring",
    "Secret",
    "Setting",
    "Settings",
    "config_file",
    "data_folder",
    "default_file",
    "delete_key",
    "find_missing_packages",
    "is_true",
    "load",
    "private_paths",
    "reload",
    "store_key",
    "system_keyring",
]
