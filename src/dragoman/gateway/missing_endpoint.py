"""The response to a request of a provider's API that the gateway does not serve. Pure.

missing_endpoint("POST", "/v1/batches", headers, request_id)  -> 404 in the shape of OpenAI
missing_endpoint("POST", "/v1/v1/messages", …)                -> 404; the message names the base URL that is meant
missing_endpoint("GET", "/v1/messages", …)                    -> 405 with the header ``allow``
missing_endpoint("GET", "/logo.png", …)                       -> none: not a path of a provider's API
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dragoman.exchange import ErrorClass, Fault
from dragoman.gateway import endpoints
from dragoman.gateway.error_shapes import OPENAI_DIALECTS, error_response
from dragoman.gateway.types import GatewayResponse

_DIALECTS: Final = {  # by the first segment of a path
    "v1": "openai_chat",
    "v1alpha": "gemini",
    "v1beta": "gemini",
    "v2": "cohere",
    "model": "bedrock_converse",
    "guardrail": "bedrock_converse",
    "async-invoke": "bedrock_converse",
    "upload": "gemini",
    "chat": "openai_chat",
    "responses": "openai_responses",
    "messages": "anthropic",
}
_OLLAMA: Final = ("blobs", "copy", "create", "delete", "me", "pull", "push")
_VERSIONS: Final = ("", "/v1", "/v1beta")
_GEMINI_VERSIONS: Final = ("/v1alpha", "/v1beta")
_MAX_SEGMENTS: Final = 8  # more than any endpoint has


def missing_endpoint(
    method: str, path: str, headers: Mapping[str, str], request_id: str = ""
) -> GatewayResponse | None:
    """Return the response in the shape of the API to which a path belongs; none if it belongs to no such API."""
    if path.startswith("/api/v1/"):  # the chat API
        return None
    methods = () if _has_verb(method, path) else endpoints.methods_of(path)
    similar = None if methods else _find_similar(method, path)
    dialect = _detect_dialect(path, similar or path, headers)
    if dialect is None:
        return None
    if methods:
        message = f"{path} does not support {method}. Send {' or '.join(methods)}."
    elif similar is not None:
        message = f"{method} {path} does not exist here; {method} {similar} does. Correct the base URL of the client."
    else:
        message = (
            f"{method} {path} does not exist here: the gateway does not serve this endpoint."
            " Send the request to the provider itself."
        )
    fault = Fault(
        code="invalid_request" if methods else "not_found",
        message=message,
        error_class=ErrorClass.INVALID_REQUEST,
        status=405 if methods else 404,
        provider=dialect,
        provider_code="unknown_url" if dialect in OPENAI_DIALECTS and not methods else None,
    )
    response = error_response(dialect, fault, request_id)
    if methods:
        response.headers["allow"] = ", ".join(methods)
    return response


def _has_verb(method: str, path: str) -> bool:
    """Whether a path is a call of Gemini, such as ``models/imagen:predict``: it looks like the name of a model."""
    return method == "POST" and ":" in path and endpoints.methods_of(path) == ("GET",)


def _detect_dialect(path: str, similar: str, headers: Mapping[str, str]) -> str | None:
    """Return the dialect of the client of a path."""
    segments = [segment for segment in similar.split("/") if segment]
    if segments[:1] == ["api"]:
        return "ollama" if endpoints.has_path(similar) or "".join(segments[1:2]) in _OLLAMA else None
    if not segments or segments[0] not in _DIALECTS:
        return None
    if "anthropic-version" in headers or "messages" in segments[:2]:
        return "anthropic"
    if "x-goog-api-key" in headers or any(version in path for version in _GEMINI_VERSIONS):
        return "gemini"
    return _DIALECTS[segments[0]]


def _find_similar(method: str, path: str) -> str | None:
    """Return the endpoint that a path ends with: a base URL may have a wrong prefix, a version too much, or none."""
    segments = [segment for segment in path.split("/") if segment][-_MAX_SEGMENTS:]
    for start in range(len(segments)):
        rest = "/" + "/".join(segments[start:])
        for version in _VERSIONS:
            if endpoints.match(method, version + rest) is not None:
                return version + rest
    return None
