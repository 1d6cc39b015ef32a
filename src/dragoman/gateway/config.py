"""The configuration of the gateway: the table ``[gateway]`` of the configuration file.

    [gateway]
    retries = 1                                            # of one model, before the first token

    [gateway.models]
    "claude-*" = "openai:gpt-6.1"                          # an agent's fixed names reach any model
    "fast" = ["groq:llama-4", "openai:gpt-6.1-mini"]       # the second model answers if the first one fails
    "cheap" = { models = ["a:x", "b:y"], weights = [3, 1] }

Invariant: a table that is not valid is rejected when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from dragoman.errors import SettingsError

Weight = Annotated[float, msgspec.Meta(gt=0)]


class WeightedModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models that share the calls for one name."""

    models: tuple[str, ...]
    weights: tuple[Weight, ...] = ()  # by default all equal

    def __post_init__(self) -> None:
        if not self.models or (self.weights and len(self.weights) != len(self.models)):
            raise ValueError("models must not be empty, and weights must have as many items")


ModelRoute = str | tuple[str, ...] | WeightedModels


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of the gateway."""

    models: dict[str, ModelRoute] = {}  # names and patterns of requests, and the models that answer them
    providers: dict[str, str] = {}  # by dialect: the provider of model names that nothing else resolves
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0  # of one model, before the first token
    prompt_caching: bool = True  # mark translated prompts for providers that cache only what is marked
    before_call: str | None = None  # module:function of the extension point, see ``hooks``
    after_call: str | None = None
    ping_s: Annotated[float, msgspec.Meta(gt=0, le=300)] = 15.0  # a silent stream gets a keep-alive after this time


def config_from(table: Mapping[str, Any], origin: str | None = None) -> GatewayConfig:
    """Return the configuration of a table, or raise ``SettingsError``."""
    try:
        return msgspec.convert(table, GatewayConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(
            str(error), where=f"gateway in {origin}", remedy="Correct the configuration file", code="invalid_config"
        ) from None
