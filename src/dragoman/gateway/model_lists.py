"""Lists and descriptions of models in the shape of each API. Pure.

list_models(names, dialect, query)      OpenAI, Anthropic, Gemini, Ollama or Cohere
show_model(names, dialect, name)        one model
confirm_load(client_request, now)       Ollama's response to a request without a question
describe_prices(names, prices, now)     ``/v1/model/info``, which clients of LiteLLM read
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from dragoman.catalog import Model
from dragoman.errors import UnknownPriceError
from dragoman.gateway.client_request import ClientRequest
from dragoman.gateway.model_names import ModelNames
from dragoman.gateway.types import JSON_TYPE, GatewayResponse, invalid_request_error
from dragoman.pricing import MILLION, PriceTable

OLLAMA_VERSION: Final = "0.12.0"  # clients compare it with the version that a feature needs
_CREATED: Final = 1_767_225_600  # clients demand a time; a catalog row has none
_CREATED_AT: Final = "2026-01-01T00:00:00Z"
_MAX_PAGE: Final = 1_000
_METHODS: Final = ("generateContent", "streamGenerateContent", "countTokens")


def list_models(names: ModelNames, dialect: str, query: str = "") -> GatewayResponse:
    """Return the models that clients can name, or a page of them, if the API has pages and the query asks for one."""
    items = [_describe(name, model, dialect) for name, model in names.entries()]
    parameters = {name: values[-1] for name, values in parse_qs(query).items()}
    match dialect:
        case "anthropic":
            return json_response(_anthropic_page(items, parameters))
        case "gemini":
            return json_response(_page_by_name(items, parameters, ("pageSize", "pageToken", "nextPageToken")))
        case "cohere":
            return json_response(_page_by_name(items, parameters, ("page_size", "page_token", "next_page_token")))
        case "ollama":
            return json_response({"models": items})
        case _:
            return json_response({"object": "list", "data": items})


def _anthropic_page(items: list[dict[str, Any]], parameters: dict[str, str]) -> dict[str, Any]:
    ids = [item["id"] for item in items]
    size = _read_size(parameters, "limit", len(items))
    if "before_id" in parameters:
        end = _find_place(ids, parameters["before_id"], "before_id")
        start, has_more = max(end - size, 0), end > size
    else:
        start = _find_place(ids, parameters["after_id"], "after_id") + 1 if "after_id" in parameters else 0
        end = min(start + size, len(items))
        has_more = end < len(items)
    first, last = (ids[start], ids[end - 1]) if start < end else (None, None)
    return {"data": items[start:end], "has_more": has_more, "first_id": first, "last_id": last}


def _page_by_name(
    items: list[dict[str, Any]], parameters: dict[str, str], fields: tuple[str, str, str]
) -> dict[str, Any]:
    """Return a page of Gemini or Cohere. The token of the next page is the name of the last model of this one."""
    size_field, token_field, next_field = fields
    names = [item["name"] for item in items]
    size = _read_size(parameters, size_field, len(items))
    token = parameters.get(token_field)
    start = _find_place(names, token, token_field) + 1 if token else 0
    page = items[start : start + size]
    return {"models": page, next_field: page[-1]["name"]} if start + size < len(items) else {"models": page}


def _read_size(parameters: dict[str, str], name: str, default: int) -> int:
    text = parameters.get(name, str(max(default, 1)))
    if not text.isdecimal() or int(text) < 1:
        raise invalid_request_error(f"{name}: a positive number is required.")
    return min(int(text), _MAX_PAGE)


def _find_place(names: list[str], name: str, parameter: str) -> int:
    if name not in names:
        raise invalid_request_error(f"{parameter}: there is no model {name!r}.")
    return names.index(name)


def show_model(names: ModelNames, dialect: str, name: str) -> GatewayResponse:
    """Return one model, also one that only its provider knows."""
    model = names.find(name, dialect).models[0]
    if dialect == "ollama":
        return json_response(_describe_for_ollama(model))
    return json_response(_describe(name.removeprefix("models/"), model, dialect))


def _describe(name: str, model: Model, dialect: str) -> dict[str, Any]:
    capabilities = model.capabilities
    match dialect:
        case "anthropic":
            return {
                "type": "model",
                "id": name,
                "display_name": name,
                "created_at": _CREATED_AT,
                "lifecycle": "active",
                "max_input_tokens": capabilities.max_context_tokens,
                "max_tokens": capabilities.max_output_tokens,
            }
        case "gemini":
            return {
                "name": f"models/{name}",
                "displayName": name,
                "inputTokenLimit": capabilities.max_context_tokens,
                "outputTokenLimit": capabilities.max_output_tokens,
                "supportedGenerationMethods": list(_METHODS),
            }
        case "cohere":
            return {
                "name": name,
                "endpoints": ["chat"],
                "default_endpoints": [],
                "finetuned": False,
                "is_deprecated": False,
                "context_length": capabilities.max_context_tokens,
            }
        case "ollama":
            digest = hashlib.sha256(model.id.encode()).hexdigest()
            details = {"name": name, "model": name, "modified_at": _CREATED_AT, "size": 0, "digest": digest}
            return {**details, "details": _ollama_details(model)}
        case _:
            return {"id": name, "object": "model", "created": _CREATED, "owned_by": model.provider}


def _ollama_details(model: Model) -> dict[str, Any]:
    family = model.provider
    return {
        "parent_model": "",
        "format": "",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": "",
    }


def _describe_for_ollama(model: Model) -> dict[str, Any]:
    capabilities = model.capabilities
    features = {
        "completion": True,
        "tools": capabilities.supports_tools,
        "vision": capabilities.supports_images,
        "thinking": capabilities.supports_thinking,
    }
    architecture = model.provider
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _ollama_details(model),
        "model_info": {
            "general.architecture": architecture,
            f"{architecture}.context_length": capabilities.max_context_tokens,
        },
        "capabilities": [name for name, has_it in features.items() if has_it],
        "modified_at": _CREATED_AT,
    }


def confirm_load(client_request: ClientRequest, now: datetime) -> GatewayResponse:
    """Return Ollama's response to a request that only loads or unloads a model; other APIs do not load models."""
    is_chat = client_request.dialect == "ollama"
    answer = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    reason = "unload" if client_request.value("keep_alive") in (0, "0") else "load"
    created = now.isoformat().replace("+00:00", "Z")
    wire = {"model": client_request.model, "created_at": created, **answer, "done": True, "done_reason": reason}
    if not client_request.stream:
        return json_response(wire)
    return GatewayResponse(headers={"content-type": "application/x-ndjson"}, body=msgspec.json.encode(wire) + b"\n")


def describe_prices(names: ModelNames, prices: PriceTable, now: datetime) -> GatewayResponse:
    """Return windows, features and prices of all models."""
    return json_response({"data": [_describe_price(name, model, prices, now) for name, model in names.entries()]})


def _describe_price(name: str, model: Model, prices: PriceTable, now: datetime) -> dict[str, Any]:
    capabilities = model.capabilities
    info: dict[str, Any] = {
        "id": model.id,
        "mode": "chat",
        "max_tokens": capabilities.max_output_tokens,
        "max_input_tokens": capabilities.max_context_tokens,
        "max_output_tokens": capabilities.max_output_tokens,
        "supports_function_calling": capabilities.supports_tools,
        "supports_vision": capabilities.supports_images,
        "supports_prompt_caching": capabilities.supports_prompt_caching,
        "supports_reasoning": capabilities.supports_thinking,
        "supports_response_schema": capabilities.supports_structured_output,
    }
    try:
        rates = prices.price(model.id, now).rates_for(0)[0]
    except UnknownPriceError:
        rates = None
    if rates is not None:
        info["input_cost_per_token"] = float(rates.input_per_mtok_usd / MILLION)
        info["output_cost_per_token"] = float(rates.output_per_mtok_usd / MILLION)
    return {"model_name": name, "litellm_params": {"model": model.id}, "model_info": info}


def json_response(value: Any) -> GatewayResponse:
    """Return a JSON response."""
    return GatewayResponse(headers={"content-type": JSON_TYPE}, body=msgspec.json.encode(value))
