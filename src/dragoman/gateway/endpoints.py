"""The endpoints of the gateway, and which of them a method and a path name.

    match("POST", "/v1/messages") -> Match(endpoint, {})
    match("POST", "/v1beta/models/gemini-3:generateContent") -> Match(endpoint, {"model": "gemini-3"})
    detect_dialect(match, headers)     the dialect of a path that several APIs share, by its headers

The table is the only list of paths. Documentation and tests enumerate it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec


class GatewayEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint of one API. ``{name}`` in a path stands for any text."""

    method: str
    path: str
    operation: str  # the name under which the gateway handles it
    dialect: str | None  # none: headers decide
    stream: bool | None = None  # none: the field ``stream`` of the body decides
    versions: tuple[str, ...] = ("",)  # prefixes of the path

    @property
    def paths(self) -> tuple[str, ...]:
        """The path with each prefix."""
        return tuple(version + self.path for version in self.versions)


class Match(msgspec.Struct, frozen=True):
    """An endpoint and the values of its path."""

    endpoint: GatewayEndpoint
    values: dict[str, str]


_OPENAI: Final = ("/v1", "")  # clients differ in whether their base URL contains the version
_GEMINI: Final = ("/v1beta", "/v1")


def _chat(path: str, dialect: str, versions: tuple[str, ...] = ("",), stream: bool | None = None) -> GatewayEndpoint:
    return GatewayEndpoint(
        method="POST", path=path, operation="chat", dialect=dialect, stream=stream, versions=versions
    )


def _post(path: str, dialect: str, versions: tuple[str, ...] = ("",), operation: str = "chat") -> GatewayEndpoint:
    return GatewayEndpoint(method="POST", path=path, operation=operation, dialect=dialect, versions=versions)


def _get(path: str, dialect: str, versions: tuple[str, ...] = ("",), operation: str = "models") -> GatewayEndpoint:
    return GatewayEndpoint(method="GET", path=path, operation=operation, dialect=dialect, versions=versions)


def _state(method: str, path: str, operation: str) -> GatewayEndpoint:
    return GatewayEndpoint(method=method, path=path, operation=operation, dialect="openai_responses", versions=_OPENAI)


ENDPOINTS: Final = (
    _chat("/chat/completions", "openai_chat", _OPENAI),
    _chat("/responses", "openai_responses", _OPENAI),
    _chat("/messages", "anthropic", ("/v1",)),
    _chat("/models/{model}:generateContent", "gemini", _GEMINI, stream=False),
    _chat("/models/{model}:streamGenerateContent", "gemini", _GEMINI, stream=True),
    _chat("/api/chat", "ollama"),
    _chat("/api/generate", "ollama_generate"),
    _chat("/v2/chat", "cohere"),
    _chat("/model/{model}/converse", "bedrock_converse", stream=False),
    _chat("/model/{model}/converse-stream", "bedrock_converse", stream=True),
    GatewayEndpoint(
        method="POST", path="/model/{model}/invoke", operation="invoke", dialect="bedrock_converse", stream=False
    ),
    GatewayEndpoint(
        method="POST",
        path="/model/{model}/invoke-with-response-stream",
        operation="invoke",
        dialect="bedrock_converse",
        stream=True,
    ),
    _post("/messages/count_tokens", "anthropic", ("/v1",), "count"),
    _post("/responses/input_tokens", "openai_responses", _OPENAI, "count"),
    _post("/responses/compact", "openai_responses", _OPENAI, "compact"),
    _post("/models/{model}:countTokens", "gemini", _GEMINI, "count"),
    _post("/model/{model}/count-tokens", "bedrock_converse", operation="count"),
    _post("/embeddings", "openai_chat", _OPENAI, "embed"),
    _post("/models/{model}:embedContent", "gemini", _GEMINI, "embed"),
    _post("/models/{model}:batchEmbedContents", "gemini", _GEMINI, "embed"),
    _post("/api/embed", "ollama", operation="embed"),
    _post("/api/embeddings", "ollama", operation="embed"),
    _post("/v2/embed", "cohere", operation="embed"),
    _post("/api/show", "ollama", operation="show"),
    _get("/api/tags", "ollama", operation="models"),
    _get("/api/version", "ollama", operation="version"),
    _get("/api/ps", "ollama", operation="processes"),
    GatewayEndpoint(method="HEAD", path="/api/hello", operation="hello", dialect="anthropic"),
    _get("/model/info", "openai_chat", _OPENAI, "model_info"),
    _state("GET", "/responses/{id}", "retrieve_response"),
    _state("DELETE", "/responses/{id}", "delete_response"),
    _state("POST", "/responses/{id}/cancel", "cancel_response"),
    _state("GET", "/responses/{id}/input_items", "list_input_items"),
    _state("POST", "/conversations", "create_conversation"),
    _state("GET", "/conversations/{id}", "retrieve_conversation"),
    _state("POST", "/conversations/{id}", "update_conversation"),
    _state("DELETE", "/conversations/{id}", "delete_conversation"),
    _state("GET", "/conversations/{id}/items", "list_items"),
    _state("POST", "/conversations/{id}/items", "create_items"),
    _state("GET", "/conversations/{id}/items/{item}", "retrieve_item"),
    _state("DELETE", "/conversations/{id}/items/{item}", "delete_item"),
    GatewayEndpoint(method="GET", path="/models", operation="models", dialect=None, versions=("/v1", "/v1beta", "")),
    GatewayEndpoint(
        method="GET", path="/models/{model}", operation="model", dialect=None, versions=("/v1", "/v1beta", "")
    ),
)
_PLACE: Final = re.compile(r"\\\{(\w+)\\\}")


def _compile(path: str) -> re.Pattern[str]:
    """Return the pattern of a path. The name of a model may contain slashes, an id may not."""
    return re.compile(
        _PLACE.sub(lambda place: f"(?P<{place[1]}>{'.+' if place[1] == 'model' else '[^/]+'})", re.escape(path))
    )


_PATTERNS: Final = tuple(
    (endpoint.method, _compile(path), endpoint) for endpoint in ENDPOINTS for path in endpoint.paths
)
_LITERALS: Final = {
    (endpoint.method, path): Match(endpoint, {}) for endpoint in ENDPOINTS for path in endpoint.paths if "{" not in path
}


def match(method: str, path: str) -> Match | None:
    """Return the endpoint of a method and a decoded path; none if the gateway does not serve it."""
    literal = _LITERALS.get((method, path))
    if literal is not None:
        return literal
    for expected, pattern, endpoint in _PATTERNS:
        if expected == method and (found := pattern.fullmatch(path)) is not None:
            return Match(endpoint, found.groupdict())
    return None


def methods_of(path: str) -> tuple[str, ...]:
    """Return the methods with which the gateway serves a path; empty if it does not serve it."""
    return tuple(dict.fromkeys(method for method, pattern, _ in _PATTERNS if pattern.fullmatch(path)))


def has_path(path: str) -> bool:
    """Whether the gateway serves a path with any method."""
    return bool(methods_of(path))


def detect_dialect(found: Match, path: str, headers: Mapping[str, str]) -> str:
    """Return the dialect of a request. A path that several APIs share is decided by the headers of their clients."""
    if found.endpoint.dialect is not None:
        return found.endpoint.dialect
    if "anthropic-version" in headers:
        return "anthropic"
    if path.startswith("/v1beta") or "x-goog-api-key" in headers:
        return "gemini"
    if headers.get("x-fern-sdk-name", "").startswith("cohere"):
        return "cohere"
    return "openai_chat"
