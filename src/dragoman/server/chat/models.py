"""``GET /models``: the available models, their capabilities and prices."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.catalog import Model
from dragoman.errors import UnknownPriceError
from dragoman.server.auth.principal import get_principal
from dragoman.server.auth.scopes import ADMIN
from dragoman.server.http.endpoint import chat_endpoint
from dragoman.server.http.requests import app_state
from dragoman.server.http.responses import json_response
from dragoman.server.state import AppState


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An available model."""

    id: str
    name: str  # at its provider
    provider: str
    aliases: tuple[str, ...]
    is_configured: bool  # has a key or needs none
    is_default: bool  # used if no model is chosen
    context_tokens: int
    output_tokens: int
    images: bool
    documents: bool
    audio: bool
    tools: bool
    thinking: bool
    input_usd: str | None  # for a million tokens; none without a price
    output_usd: str | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The available models; the default and configured ones first."""

    models: list[ModelResponse]
    default: str | None
    can_manage_providers: bool  # the caller is an administrator


async def list_models(request: Request) -> Response:
    """Return the available models."""
    state = app_state(request)
    await state.provider_settings.refresh()
    agent = state.agent
    default_model = agent.services.registry.find(agent.services.default_model) if agent.services.default_model else None
    default_id = default_model.id if default_model is not None else None
    responses = [_model_response(state, model, default_id) for model in agent.services.settings.catalog.models.values()]
    responses.sort(key=lambda response: (not response.is_default, not response.is_configured))
    is_admin = ADMIN in get_principal(request).scopes
    return json_response(ModelList(models=responses, default=default_id, can_manage_providers=is_admin))


def _model_response(state: AppState, model: Model, default_id: str | None) -> ModelResponse:
    capabilities, (input_usd, output_usd) = model.capabilities, _prices(state, model)
    return ModelResponse(
        id=model.id,
        name=model.name,
        provider=model.provider,
        aliases=state.agent.services.registry.aliases_of(model.id),
        is_configured=state.agent.services.registry.is_configured(model),
        is_default=model.id == default_id,
        context_tokens=capabilities.max_context_tokens,
        output_tokens=capabilities.max_output_tokens,
        images=capabilities.supports_images,
        documents=capabilities.supports_documents,
        audio=capabilities.supports_audio,
        tools=capabilities.supports_tools,
        thinking=capabilities.supports_thinking,
        input_usd=input_usd,
        output_usd=output_usd,
    )


def _prices(state: AppState, model: Model) -> tuple[str | None, str | None]:
    try:
        rates = state.agent.services.price_table.price(model.id, state.agent.services.clock()).rates
    except UnknownPriceError:
        return None, None
    return f"{rates.input_per_mtok_usd:f}", f"{rates.output_per_mtok_usd:f}"


ENDPOINTS = (
    chat_endpoint(
        "GET",
        "/api/v1/agent/models",
        list_models,
        "Available models, and which of them are configured",
        {200: ModelList},
    ),
)
