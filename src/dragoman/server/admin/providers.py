"""Providers: list them, add a key or an address, test it with a real request, remove it. For administrators only."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.catalog import Provider, builtin
from dragoman.client.model_list import RemoteModel
from dragoman.errors import DragomanError, FormatError, RemoteFaultError, SettingsError
from dragoman.server.auth.scopes import ADMIN
from dragoman.server.http.endpoint import Endpoint
from dragoman.server.http.http_errors import not_found_error
from dragoman.server.http.requests import app_state, json_body, parse_as
from dragoman.server.http.responses import json_response
from dragoman.server.provider_settings import ProviderChange, ProviderSettings
from dragoman.settings import EMBEDDED

_PATH: Final = "/api/v1/admin/providers"
_MAX_MODELS: Final = 500

ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f]+$")]


class ProviderResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A provider and the access to it."""

    key: str
    title: str
    dialect: str
    base_url: str | None
    needs_key: bool
    runs_locally: bool
    source: str | None  # of the access: a variable, a file, the keyring, this machine; null without access
    key_hint: str | None  # the end of the API key
    is_editable: bool  # no variable and no configuration file overrides what is stored here
    is_stored: bool  # something about it is stored here
    is_custom: bool  # it is not in the built-in catalog
    models: int  # in the catalog


class ProviderList(msgspec.Struct, frozen=True):
    """The providers; those with access first."""

    providers: list[ProviderResponse]


class StoreRequest(ProviderChange, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Access to a provider, and the models to offer: of its list, those with these names."""

    models: tuple[ModelName, ...] | None = None


class ListedModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model in the list of the provider."""

    name: str
    context_tokens: int | None
    is_offered: bool  # in the catalog of this server


class ProviderTest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a request for the provider's list of models."""

    is_working: bool
    latency_ms: int
    models: list[ListedModel]
    code: str | None  # of the fault
    message: str | None  # the error text of the provider


async def list_providers(request: Request) -> Response:
    """Return the providers and the access to them."""
    settings = app_state(request).provider_settings
    await settings.refresh()
    rows = [_to_response(settings, row) for row in settings.settings.catalog.providers.values() if row.key != EMBEDDED]
    rows.sort(key=lambda row: (row.source is None, not row.is_stored))
    return json_response(ProviderList(rows))


def _to_response(settings: ProviderSettings, row: Provider) -> ProviderResponse:
    current, stored = settings.settings, settings.stored_row(row.key)
    endpoint, source = None, current.access_source(row)
    with contextlib.suppress(SettingsError):  # there is no access
        endpoint = current.endpoint(row)
    key = endpoint.key if endpoint is not None else None
    is_own_key = key is not None and key.reveal() == (stored or {}).get("api_key")
    return ProviderResponse(
        key=row.key,
        title=row.title,
        dialect=row.dialect,
        base_url=endpoint.base_url if endpoint is not None else row.base_url,
        needs_key=bool(row.key_variables or row.token_variables) and not row.runs_locally,
        runs_locally=row.runs_locally,
        source=source,
        key_hint=None if key is None else str(key),
        is_editable=endpoint is None or key is None or is_own_key or endpoint.key_origin == "keyring",
        is_stored=stored is not None,
        is_custom=row.key not in builtin().providers,
        models=sum(model.provider == row.key for model in current.catalog.models.values()),
    )


async def test_provider(request: Request) -> Response:
    """Request the list of models of a provider, with new or stored access. Nothing is stored."""
    settings, provider = app_state(request).provider_settings, str(request.path_params["provider"])
    change = parse_as(await json_body(request), ProviderChange)
    return json_response(await _test(settings, provider, change))


async def _test(settings: ProviderSettings, provider: str, change: ProviderChange) -> ProviderTest:
    started_at = time.perf_counter()
    models: list[RemoteModel] = []
    code = message = None
    try:
        models = await settings.test(provider, change)
    except RemoteFaultError as error:
        code, message = error.code, error.fault.message
    except DragomanError as error:
        code, message = error.code, error.what
    offered = settings.settings.catalog.models
    return ProviderTest(
        is_working=code is None,
        latency_ms=round((time.perf_counter() - started_at) * 1000),
        models=[
            ListedModel(
                name=model.name,
                context_tokens=model.max_context_tokens,
                is_offered=f"{provider}:{model.name}" in offered,
            )
            for model in models[:_MAX_MODELS]
        ],
        code=code,
        message=message,
    )


async def store_provider(request: Request) -> Response:
    """Store the access to a provider. It is used from the next request on."""
    settings, provider = app_state(request).provider_settings, str(request.path_params["provider"])
    body = parse_as(await json_body(request), StoreRequest)
    change = ProviderChange(api_key=body.api_key, base_url=body.base_url, title=body.title)
    models = None if body.models is None else await _find_models(settings, provider, change, body.models)
    await settings.store(provider, change, models)
    return json_response(_to_response(settings, settings.settings.catalog.provider(provider)))


async def _find_models(
    settings: ProviderSettings, provider: str, change: ProviderChange, names: tuple[str, ...]
) -> list[RemoteModel]:
    """The models with these names, with their limits if the provider lists them."""
    listed: dict[str, RemoteModel] = {}
    with contextlib.suppress(RemoteFaultError, FormatError):  # it does not answer, or has no list
        listed = {model.name: model for model in await settings.test(provider, change)}
    return [listed.get(name, RemoteModel(name)) for name in names]


async def remove_provider(request: Request) -> Response:
    """Remove what is stored about a provider."""
    settings, provider = app_state(request).provider_settings, str(request.path_params["provider"])
    if provider not in settings.settings.catalog.providers:
        raise not_found_error()
    await settings.remove(provider)
    return Response(status_code=204)


ENDPOINTS = (
    Endpoint(
        "GET",
        _PATH,
        list_providers,
        "The providers, and the access of this server to them",
        {200: ProviderList},
        scope=ADMIN,
    ),
    Endpoint(
        "PUT",
        f"{_PATH}/{{provider}}",
        store_provider,
        "Store the key, the address and the models of a provider",
        {200: ProviderResponse},
        request_body=StoreRequest,
        scope=ADMIN,
    ),
    Endpoint(
        "DELETE",
        f"{_PATH}/{{provider}}",
        remove_provider,
        "Remove the stored key, address and models of a provider",
        {204: None},
        scope=ADMIN,
    ),
    Endpoint(
        "POST",
        f"{_PATH}/{{provider}}/test",
        test_provider,
        "Request the list of models of a provider",
        {200: ProviderTest},
        request_body=ProviderChange,
        scope=ADMIN,
    ),
)
