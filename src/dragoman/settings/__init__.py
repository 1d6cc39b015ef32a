"""Where models are reached, with which key, and what a person has chosen: from arguments, variables, a file, a keyring.

    settings = load()                                the environment and the file, read once
    settings.catalog                                 the built-in rows with the file's laid over them
    settings.endpoint("openai")                      where to call, with which key, and where each of these came from
    settings.endpoint("openai", api_key=…)           an argument comes before everything else
    settings.has_key("openai")                       whether there is a key at all
    settings.access_source("openai")                    what it can be called with, or none
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

from dragoman.settings.keyring import delete_key, store_key, system_keyring
from dragoman.settings.loader import CONFIG_VARIABLE, default_file, load, private_paths
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
    "default_file",
    "delete_key",
    "find_missing_packages",
    "is_true",
    "load",
    "private_paths",
    "store_key",
    "system_keyring",
]
