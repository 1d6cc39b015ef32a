"""Options that some provider refuses although its dialect has them. The names are the same in every dialect.

The one rule: what is left out is a loss, under the option's name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from dragoman.exchange import Loss, Options

REFUSALS: Final = {
    "no_max_output_tokens": ("max_output_tokens",),
    "no_temperature": ("temperature",),
    "no_stop": ("stop_sequences",),
    "no_seed": ("seed",),
    "no_penalties": ("presence_penalty", "frequency_penalty"),
    "no_service_tier": ("service_tier",),
    "no_user": ("user",),
}


def drop_refused_options(options: Options, quirks: Collection[str], dialect: str, losses: list[Loss]) -> Options:
    """The options that a provider of these quirks takes."""
    changes: dict[str, Any] = {}
    for quirk in quirks:
        for name in REFUSALS.get(quirk, ()):
            if getattr(options, name) not in (None, ()):
                changes[name] = () if name == "stop_sequences" else None
                losses.append(Loss("", "", name, dialect, "this provider has no such option"))
    return options.replace(**changes) if changes else options
