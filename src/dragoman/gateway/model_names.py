"""Which models answer a name: configured names and patterns, ids, aliases, and plain names of providers. Pure.

    ModelNames(registry, config).find("claude-sonnet-5", "openai_chat", seed) -> Resolution

The first of these that matches decides:

    1. a name in ``[gateway.models]``
    2. the id of a model, ``provider:name``, or an alias
    3. the longest pattern in ``[gateway.models]``
    4. a model with this name, of a provider that can be called; one of the caller's dialect first
    5. the provider of the caller's dialect, which receives the name as it is
    6. ``provider/name``, the spelling of LiteLLM, if that provider can be called

Weights are applied to ``seed``: calls of one session choose the same model, so that prompt caches stay valid.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from dragoman.catalog import Model, Provider, builtin, find_similar
from dragoman.errors import UnknownModelError
from dragoman.gateway.config import GatewayConfig, ModelRoute, WeightedModels
from dragoman.gateway.types import not_found_error
from dragoman.routing import Registry

# The provider of names that nothing else resolves, by dialect, if it can be called.
_DEFAULT_PROVIDERS: Final = {
    "anthropic": "anthropic",
    "bedrock_converse": "bedrock",
    "cohere": "cohere",
    "gemini": "gemini",
    "ollama": "ollama",
    "openai_chat": "openai-chat",
    "openai_responses": "openai",
}
_LOOKUP_DIALECTS: Final = {"ollama_generate": "ollama"}  # no provider has a row for the older API
_MAX_FOUND: Final = 1_024
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f]{1,512}")


class Resolution(msgspec.Struct, frozen=True):
    """The models that answer a name, in the order in which they are tried, and why."""

    models: tuple[Model, ...]
    reason: str  # route, id, pattern, name or provider


class ModelNames:
    """Lookup of the models for the names in requests."""

    def __init__(self, registry: Registry, config: GatewayConfig) -> None:
        self._registry = registry
        self._config = config
        patterns = [name for name in config.models if any(mark in name for mark in "*?[")]
        self._patterns = sorted(patterns, key=lambda name: (-len(name), name))
        # Whether any name is answered by models with weights.
        self.has_weights = any(isinstance(route, WeightedModels) for route in config.models.values())
        self._found: dict[tuple[str, str], Resolution] = {}  # by name and dialect
        self._by_name: dict[str, list[Model]] = {}
        for model in registry.catalog.models.values():
            if registry.is_configured(model):
                self._by_name.setdefault(model.name, []).append(model)

    def find(self, name: str, dialect: str, seed: str = "") -> Resolution:
        """Return the models for a name; ``GatewayError`` if there are none."""
        resolution = self._found.get((name, dialect))
        if resolution is None:
            resolution = self._find(name, dialect, seed)
            if resolution.reason not in ("route", "pattern"):  # else the seed may decide
                if len(self._found) >= _MAX_FOUND:
                    self._found.clear()
                self._found[name, dialect] = resolution
        return resolution

    def _find(self, name: str, dialect: str, seed: str) -> Resolution:
        dialect = _LOOKUP_DIALECTS.get(dialect, dialect)
        if not _NAME.fullmatch(name):
            raise unknown_model_error(name)
        if name in self._config.models:
            return Resolution(self._expand(self._config.models[name], seed), "route")
        if (model := self._find_id(name, dialect)) is not None:
            return Resolution((model,), "id")
        for pattern in self._patterns:
            if fnmatch.fnmatchcase(name, pattern):
                return Resolution(self._expand(self._config.models[pattern], seed), "pattern")
        plain = name.removeprefix("models/")
        if (model := self._find_plain(plain, dialect)) is not None:
            return Resolution((model,), "name")
        if (provider := self._default_provider(dialect)) is not None:
            return Resolution((self._model_of(provider, plain),), "provider")
        if (model := self._registry.find(name)) is not None and self._registry.is_configured(model):
            return Resolution((model,), "id")
        raise self._missing_model_error(name, dialect)

    def _missing_model_error(self, name: str, dialect: str) -> Exception:
        """Return the error for a name that no configured provider has, with what to do."""
        key = self._config.providers.get(dialect, _DEFAULT_PROVIDERS.get(dialect, ""))
        unreachable_reason = self._registry.unreachable_reason
        reason = unreachable_reason(name) or unreachable_reason(f"{key}:{name}")
        return unknown_model_error(name, reason, find_similar(name, [entry for entry, _ in self.entries()]))

    def entries(self) -> tuple[tuple[str, Model], ...]:
        """Return the names that clients can use: configured names, aliases, and names of declared models."""
        declared = [model for model in self._registry.catalog.models.values() if self._registry.is_configured(model)]
        routes = {
            name: self._expand(route, "")[0]
            for name, route in self._config.models.items()
            if name not in self._patterns
        }
        aliases = {alias: model for model in declared for alias in model.aliases}
        plain = {model.name: model for model in reversed(declared)}
        return tuple({**routes, **plain, **aliases, **routes}.items())

    def _expand(self, route: ModelRoute, seed: str) -> tuple[Model, ...]:
        match route:
            case str():
                names: tuple[str, ...] = (route,)
            case WeightedModels():
                names = _by_weight(route, seed)
            case _:
                names = route
        return tuple(self._registry.catalog.model(name) for name in names)

    def _find_id(self, name: str, dialect: str) -> Model | None:
        found = self._registry.find(name)
        key, colon, _ = name.partition(":")
        if found is None or (colon and "/" not in key):  # ``vendor/model:variant`` is a name of an aggregator
            return found
        is_alias = name in self._registry.aliases_of(found.id) and self._registry.is_configured(found)
        return found if is_alias and not self._is_assumed(found, dialect) else None

    def _is_assumed(self, model: Model, dialect: str) -> bool:
        """Whether a model is a built-in row of a local provider, while the caller's dialect has a provider of its own.

        Nobody has configured such a model, so it does not take its name from that provider.
        """
        is_local = self._provider(model.provider).runs_locally and model.id in builtin().models
        return is_local and self._default_provider(dialect) is not None

    def _find_plain(self, name: str, dialect: str) -> Model | None:
        """Return the model of that name; if its provider also serves the caller's dialect, the same model there."""
        models = self._by_name.get(name, [])
        for model in models:
            if self._provider(model.provider).dialect == dialect:
                return model
        for model in models:
            if (twin := self._find_twin(self._provider(model.provider), dialect)) is not None:
                return model.replace(id=f"{twin.key}:{name}", provider=twin.key)
        return next((model for model in models if not self._is_assumed(model, dialect)), None)

    def _find_twin(self, provider: Provider, dialect: str) -> Provider | None:
        """Return the row of the same service with another dialect: it shares the variable of the key or the address."""
        for row in self._registry.catalog.providers.values():
            shares_key = set(row.key_variables) & set(provider.key_variables)
            if row.dialect == dialect and shares_key and row.key in self._registry.configured:
                return row
        return None

    def _default_provider(self, dialect: str) -> Provider | None:
        providers = self._registry.catalog.providers
        key = self._config.providers.get(dialect, _DEFAULT_PROVIDERS.get(dialect, ""))
        if key in providers and key in self._registry.configured:
            return providers[key]
        return None

    def _provider(self, key: str) -> Provider:
        return self._registry.catalog.providers[key]

    def _model_of(self, provider: Provider, name: str) -> Model:
        try:
            return self._registry.catalog.model(f"{provider.key}:{name}")
        except UnknownModelError:
            raise unknown_model_error(name) from None


def unknown_model_error(name: str, reason: str | None = None, similar: Sequence[str] = ()) -> Exception:
    """Return the error for a name that no model has; ``reason`` is why its provider cannot be called."""
    hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
    if reason is not None:
        return not_found_error(f"The model {name!r} cannot be called here. {reason}.{hint}")
    return not_found_error(
        f"The model {name!r} does not exist here.{hint} GET /v1/models lists the names; [gateway.models] in the"
        " configuration file adds one."
    )


def _by_weight(route: WeightedModels, seed: str) -> tuple[str, ...]:
    """Return the models with the chosen one first. The seed decides, in proportion to the weights."""
    weights = route.weights or (1.0,) * len(route.models)
    digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()
    point = int.from_bytes(digest[:8]) / 2**64 * sum(weights)
    index = 0
    while index < len(weights) - 1 and point >= weights[index]:
        point -= weights[index]
        index += 1
    return (route.models[index], *route.models[:index], *route.models[index + 1 :])
