"""Options that a wire format holds as plain values: one table of a dialect serves reading and writing.

    fields = OptionFields("temperature", "top_p", top_p="p")   options in order, and the keys that differ from the names
    Options(**fields.read(body), reasoning=…)
    wire = fields.write(options)

Invariant: options are written in the order of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from dragoman.exchange import Options
from dragoman.jsontext import flag_or_none, integer_or_none, number_or_none, text_map_or_none, text_or_none, text_tuple

_READERS: Final = {
    "max_output_tokens": integer_or_none,
    "temperature": number_or_none,
    "top_p": number_or_none,
    "top_k": integer_or_none,
    "stop_sequences": text_tuple,
    "seed": integer_or_none,
    "presence_penalty": number_or_none,
    "frequency_penalty": number_or_none,
    "parallel_tool_calls": flag_or_none,
    "service_tier": text_or_none,
    "user": text_or_none,
    "stream": flag_or_none,
    "n": integer_or_none,
    "logprobs": flag_or_none,
    "top_logprobs": integer_or_none,
    "verbosity": text_or_none,
    "store": flag_or_none,
    "metadata": text_map_or_none,
    "safety_identifier": text_or_none,
    "prompt_cache_key": text_or_none,
}


class OptionFields:
    """The keys of at least two options on the wire."""

    __slots__ = ("_get_values", "_keys", "_readers")

    def __init__(self, *names: str, **other_keys: str) -> None:
        keys = {name: other_keys.get(name, name) for name in names}
        self._readers = tuple((name, key, _READERS[name]) for name, key in keys.items())
        self._keys = tuple(keys.values())
        self._get_values = attrgetter(*keys)

    def read(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that an object holds. A value of a wrong type reads as unset."""
        return {name: read(wire[key]) for name, key, read in self._readers if key in wire}

    def write(self, options: Options) -> dict[str, Any]:
        """Return the options that are set, under their keys on the wire."""
        wire = {}
        for key, value in zip(self._keys, self._get_values(options), strict=True):
            if type(value) is tuple:
                if value:
                    wire[key] = list(value)
            elif value is not None:
                wire[key] = value
        return wire
