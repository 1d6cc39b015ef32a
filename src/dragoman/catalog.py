"""Providers and models as rows of data, and lookup by id or alias.

    dialect     code: a wire format                                           dragoman.dialects
    provider    a row: a service, its address and its key variable            [providers.NAME]
    model       a row: capabilities and limits                                [models."provider:name"]

A new provider with a known dialect is a new row. ``builtin()`` returns the rows of ``catalog.toml`` beside this file;
``overlay`` adds the rows of another file. A capability that the dialect does not expose is declared as false, because
model swaps depend on it. Invariant: a row contains verified facts only; unknown fields are omitted and have
conservative defaults.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from dragoman.errors import FormatError, UnknownModelError
from dragoman.ids import DEFAULT_ID_FORMAT, IdFormat
from dragoman.value import Value

QUIRKS: Final = {
    # other names than OpenAI's
    "max_tokens": "the limit on the answer is `max_tokens`, not `max_completion_tokens`",
    "random_seed": "the seed is `random_seed`, not `seed`",
    "any_for_required": "a required tool call is `any`, not `required`",
    "reasoning_object": "reasoning is configured by `reasoning`, with `effort`, `max_tokens` or `enabled`",
    "thinking_object": "reasoning is enabled by `thinking`, with the type `enabled` or `disabled`, besides the effort",
    "enable_thinking": "reasoning is enabled by `enable_thinking`, in addition to the effort",
    "thinking_budget": "with `enable_thinking`: the limit on reasoning is `thinking_budget`",
    # additional options
    "top_k": "`top_k` is supported",
    "metadata": "`metadata` is supported, despite `no_openai_options`",
    "prompt_cache_key": "`prompt_cache_key` is supported, despite `no_openai_options`",
    "own_service_tiers": "`service_tier` has other names, so any name is written",
    "usage_when_asked": "a stream reports its usage on request: `stream_options` with `include_usage` is written",
    # unsupported options
    "no_effort": "reasoning can be enabled, but has no `reasoning_effort`",
    "no_max_output_tokens": "no limit on the answer",
    "no_temperature": "no `temperature`",
    "no_stop": "no `stop`",
    "no_seed": "no `seed`",
    "no_penalties": "no `presence_penalty` and no `frequency_penalty`",
    "no_service_tier": "no `service_tier`",
    "no_user": "no `user`",
    "no_openai_options": "no `store`, `metadata`, `verbosity`, `safety_identifier`, `prompt_cache_key`, `modalities`",
    "no_strict": "no `strict`, neither of a tool nor of a schema",
    "no_stream_options": "no `stream_options`",
    "no_json_schema": "no schema for the answer: the request asks for any JSON instead",
    "no_named_tool": "`tool_choice` cannot name a tool: the request asks for any tool instead",
    "auto_tool_choice_only": "`tool_choice` can only be `auto`",
    "store_nothing": "answers are not stored: `store` is false",
    # messages
    "alternate_roles": "chat templates reject two messages of one role in a row, and system messages after the first",
    "no_prefill": "the last message must not be of the assistant: a user message is added",
    # replies
    "terminal_reason_optional": "a complete answer may end without a stop reason",
}
_MAX_LISTED: Final = 12  # providers in an error
_SNAPSHOT: Final = re.compile(r"(?:-\d{8}|-\d{4}-\d{2}-\d{2}|@\d{8}|-latest)\Z")


Tokens = Annotated[int, msgspec.Meta(ge=1)]


class AdapterCapabilities(Value, frozen=True, kw_only=True):
    """The capabilities of a model through its dialect. The defaults allow text, tools and streaming."""

    supports_thinking: bool = False
    supports_images: bool = False
    supports_tools: bool = True
    supports_system_prompt: bool = True
    supports_structured_output: bool = False
    supports_streaming: bool = True
    supports_streaming_tool_calls: bool = True
    supports_parallel_tool_calls: bool = False
    supports_prompt_caching: bool = False
    supports_system_messages_in_list: bool = True  # otherwise they are moved out of the list
    max_context_tokens: Tokens = 8_192
    max_output_tokens: Tokens = 4_096
    accepted_image_media_types: tuple[str, ...] = ()  # only with supports_images
    supports_documents: bool = False
    supports_audio: bool = False
    supports_video: bool = False


class Provider(Value, frozen=True, kw_only=True, omit_defaults=False):
    """A service that serves models."""

    key: str  # the part of a model id before the colon
    title: str  # display name
    dialect: str  # wire format
    aliases: tuple[str, ...] = ()  # other names, also from recorded traffic
    base_url: str | None = None  # the address, unless a variable overrides it
    base_url_variable: str | None = None  # the variable that the provider's own SDK reads
    base_url_path: str = ""  # the path to append to the address in that variable
    key_variables: tuple[str, ...] = ()  # the first variable that is set contains the key
    token_variables: tuple[str, ...] = ()  # the same for a token that is sent as ``authorization: Bearer``
    key_header: str | None = None  # the header of the key, if not the dialect's
    runs_locally: bool = False  # needs no key, and its models have a price of zero
    prices_as: str | None = None  # its name in the price library, if different
    tool_ids: IdFormat = DEFAULT_ID_FORMAT  # format of tool-call ids that it accepts
    quirks: tuple[str, ...] = ()  # named differences from its dialect


class Model(Value, frozen=True, kw_only=True):
    """A model of a provider."""

    id: str  # canonical: provider:name
    provider: str
    name: str  # the name in requests
    aliases: tuple[str, ...] = ()
    capabilities: AdapterCapabilities
    is_declared: bool = True  # false: no row of its own, only the defaults of its provider

    @property
    def accepts_images(self) -> bool:
        """Whether images are sent to it. Of a model without a row nothing is known, and its provider decides."""
        return self.capabilities.supports_images or not self.is_declared


Row = TypeVar("Row")


class _File(msgspec.Struct, forbid_unknown_fields=True):
    providers: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}


class Catalog:
    """Lookup of providers and models by name."""

    def __init__(self, rows: Mapping[str, Any], origin: str = "catalog") -> None:
        self._rows = rows
        self._origin = origin
        file = self._read(rows, _File, "its tables")
        self._defaults = {key: row.get("capabilities", {}) for key, row in file.providers.items()}
        self.providers = {key: self._provider(key, row) for key, row in file.providers.items()}
        self.models = {model_id: self._model(model_id, row) for model_id, row in file.models.items()}
        self._aliases = self._alias_table()
        self._bare_names = self._name_table()
        self._check_provider_aliases()

    def provider(self, name: str, dialect: str | None = None) -> Provider:
        """Return the provider with that key or alias; with ``dialect``, the one that uses it."""
        direct = self.providers.get(name)
        if direct is not None and dialect in (None, direct.dialect):
            return direct
        candidates = [row for row in self.providers.values() if dialect in (None, row.dialect)]
        match [row for row in candidates if name in row.aliases]:
            case [row]:
                return row
            case []:
                what, choices = (
                    f"no provider {name!r}" + (f" with the dialect {dialect!r}" if dialect else ""),
                    candidates,
                )
            case matches:
                what, choices = f"{name!r} is an alias of several providers", matches
        raise UnknownModelError(what, where="catalog", remedy=_suggest_provider(name, choices))

    def model(self, name: str) -> Model:
        """Return the model with that id or alias. A model without a row has the defaults of its provider."""
        model_id = self._aliases.get(name) or self._find_by_bare_name(name) or self._id_from_path(name)
        key, colon, model_name = model_id.partition(":")
        if not colon or not model_name:
            raise UnknownModelError(f"no model is called {name!r}", where="catalog", remedy=self._suggest(name))
        provider = self.provider(key)
        model_id = f"{provider.key}:{model_name}"
        row = self.models.get(model_id) or self._find_by_snapshot(model_id)
        if row is not None:
            return row if row.id == model_id else row.replace(id=model_id, name=model_name, aliases=())
        capabilities = self._capabilities(provider.key, {}, model_id)
        return Model(id=model_id, provider=provider.key, name=model_name, capabilities=capabilities, is_declared=False)

    def _find_by_bare_name(self, name: str) -> str | None:
        """Return the id of the only model with a name that omits the provider, also of a dated snapshot of it."""
        match = _SNAPSHOT.search(name)
        end = match[0] if match else ""
        for suffix in ("", end):
            if len(ids := self._bare_names.get(name.removesuffix(suffix), [])) == 1:
                return ids[0] + suffix
        return None

    def _id_from_path(self, name: str) -> str:
        """Return ``provider:model`` for ``provider/model``, the spelling of LiteLLM; other names as they are."""
        key, slash, model_name = name.partition("/")
        is_provider = key in self.providers or any(key in row.aliases for row in self.providers.values())
        return f"{key}:{model_name}" if slash and is_provider else name

    def _suggest(self, name: str) -> str:
        """Return the names of models that are similar to an unknown one, as a remedy."""
        if ids := self._bare_names.get(name):
            return f"Several providers have it: use {' or '.join(ids)}"
        similar = find_similar(name, (*self._aliases, *self._bare_names, *self.models))
        hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
        return f"{hint}Run dragoman models for all names, or use provider:model"

    def overlay(self, rows: Mapping[str, Any], origin: str = "overlay") -> Catalog:
        """Return this catalog with more rows. A row with an existing name changes it field by field."""
        return Catalog(_merge(self._rows, rows), f"{self._origin}+{origin}")

    @property
    def price_names(self) -> dict[str, str]:
        """Provider keys and their names in the price library, where these differ."""
        return {key: provider.prices_as for key, provider in self.providers.items() if provider.prices_as}

    def is_free(self, model_id: str) -> bool:
        """Whether the model runs locally."""
        provider = self.providers.get(model_id.partition(":")[0])
        return provider is not None and provider.runs_locally

    def _find_by_snapshot(self, model_id: str) -> Model | None:
        """Return the model of a dated snapshot: gpt-4o-2024-11-20 is gpt-4o, but gpt-4o-mini is not."""
        match = _SNAPSHOT.search(model_id, max(0, len(model_id) - len("-2026-05-08")))
        return self.models.get(model_id[: match.start()]) if match else None

    def _provider(self, key: str, row: Mapping[str, Any]) -> Provider:
        fields = {name: value for name, value in row.items() if name != "capabilities"}
        provider = self._read({**fields, "key": key}, Provider, f"providers.{key}")
        self._capabilities(key, {}, f"providers.{key}.capabilities")
        for quirk in provider.quirks:
            if quirk not in QUIRKS:
                raise self._error(f"unknown quirk {quirk!r}; known are {', '.join(QUIRKS)}", f"providers.{key}.quirks")
        return provider

    def _model(self, model_id: str, row: Mapping[str, Any]) -> Model:
        key, colon, name = model_id.partition(":")
        where = f'models."{model_id}"'
        if not colon or not name or key not in self.providers:
            raise self._error("a model is named provider:model, and the provider needs a row", where)
        aliases = self._read(row.get("aliases", []), tuple[str, ...], f"{where}.aliases")
        own = {field: value for field, value in row.items() if field != "aliases"}
        capabilities = self._capabilities(key, own, where)
        return Model(id=model_id, provider=key, name=name, aliases=aliases, capabilities=capabilities)

    def _capabilities(self, key: str, own: Mapping[str, Any], where: str) -> AdapterCapabilities:
        defaults = self._read(self._defaults[key], dict[str, Any], where)
        return self._read({**defaults, **own}, AdapterCapabilities, where)

    def _alias_table(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for model in self.models.values():
            for alias in model.aliases:
                if table.get(alias, model.id) != model.id or alias in self.models:
                    raise self._error(f"the alias {alias!r} belongs to {table.get(alias, alias)!r}", model.id)
                table[alias] = model.id
        return table

    def _name_table(self) -> dict[str, list[str]]:
        """The ids of models by their names without the provider, and without the path before the last part."""
        table: dict[str, list[str]] = {}
        for model in self.models.values():
            for name in {model.name, model.name.rpartition("/")[2]}:
                table.setdefault(name, []).append(model.id)
        return table

    def _check_provider_aliases(self) -> None:
        """In one dialect a name belongs to one provider."""
        owners: dict[tuple[str, str], str] = {}
        for row in self.providers.values():
            for name in {row.key, *row.aliases}:
                owner = owners.setdefault((row.dialect, name), row.key)
                if owner != row.key:
                    raise self._error(
                        f"the name {name!r} belongs to {owner!r}, which also uses {row.dialect}",
                        f"providers.{row.key}.aliases",
                    )

    def _read(self, row: Any, kind: type[Row], where: str) -> Row:
        try:
            return msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            raise self._error(str(error), where) from None

    def _error(self, what: str, where: str) -> FormatError:
        return FormatError(what, where=f"{self._origin}, {where}", code="invalid_catalog")


def catalog_from_toml(text: str, origin: str = "catalog") -> Catalog:
    """Return a catalog of TOML text."""
    return Catalog(rows_from_toml(text, origin), origin)


def rows_from_toml(text: str, origin: str = "catalog") -> dict[str, Any]:
    """Return the rows of TOML text without validation."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError(str(error), where=origin, code="invalid_catalog", remedy="A catalog is a TOML file") from None


@functools.cache
def builtin() -> Catalog:
    """Return the rows of this package."""
    # Package data. Modules of this layer open no files of the user.
    return catalog_from_toml(
        importlib.resources.files("dragoman").joinpath("catalog.toml").read_text("utf-8"), "built-in"
    )


def _suggest_provider(name: str, choices: Iterable[Provider]) -> str:
    """Return the providers to choose from; of many, those with a similar name."""
    keys = sorted(row.key for row in choices)
    if len(keys) <= _MAX_LISTED:
        return f"Known are {', '.join(keys)}"
    hint = " or ".join(find_similar(name, keys))
    return f"{f'Did you mean {hint}? ' if hint else ''}Run dragoman models --providers for all names"


def find_similar(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that are similar to a name, the most similar first."""
    import difflib  # noqa: PLC0415  only for an error

    return difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        are_mappings = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merge(result[key], value) if are_mappings else value
    return result
