"""Lists of models in the shape of each API. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.gateway.model_names import ModelNames, unknown_model_error
from dragoman.gateway.types import JSON_TYPE, GatewayResponse

_CREATED: Final = 1_767_225_600  # clients demand a time; a catalog row has none
_CREATED_AT: Final = "2026-01-01T00:00:00Z"
_METHODS: Final = ("generateContent", "streamGenerateContent", "countTokens")


def list_models(names: ModelNames, dialect: str) -> GatewayResponse:
    """Return the models that clients can name."""
    items = [_describe(name, dialect) for name in names.names()]
    match dialect:
        case "anthropic":
            ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
            return _json({"data": items, "has_more": False, "first_id": None, "last_id": None, **ends})
        case "gemini":
            return _json({"models": items})
        case _:
            return _json({"object": "list", "data": items})


def show_model(names: ModelNames, dialect: str, name: str) -> GatewayResponse:
    """Return one model. A name that some provider of the dialect may know is described, too."""
    names.find(name, dialect)
    plain = name.removeprefix("models/")
    if not plain:
        raise unknown_model_error(name)
    return _json(_describe(plain, dialect))


def _describe(name: str, dialect: str) -> dict[str, Any]:
    match dialect:
        case "anthropic":
            return {"type": "model", "id": name, "display_name": name, "created_at": _CREATED_AT, "lifecycle": "active"}
        case "gemini":
            return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": list(_METHODS)}
        case _:
            return {"id": name, "object": "model", "created": _CREATED, "owned_by": "dragoman"}


def _json(value: Any) -> GatewayResponse:
    return GatewayResponse(headers={"content-type": JSON_TYPE}, body=msgspec.json.encode(value))
