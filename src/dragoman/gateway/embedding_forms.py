"""Requests for embeddings and their replies in the forms of four APIs. Pure.

    request = read_request("openai_chat", path, body)            the texts, and the form of the reply
    write_request("ollama", request, model)                      the provider's body
    embeddings = read_reply("ollama", wire)                      the vectors
    write_reply(request, embeddings, model, reply_id)            the reply in the caller's form
    read_tokens(wire)                                            the provider's count, of any form
    estimate_tokens(body, model)                                 an estimate, if the provider has none

Only texts are translated: tokens and media mean nothing to a model of another provider.
"""

from __future__ import annotations

import base64
import struct
from typing import Any, Final

import msgspec

from dragoman import tokens
from dragoman.gateway.types import invalid_request_error
from dragoman.jsontext import DECODE_ERRORS
from dragoman.message import TextBlock
from dragoman.wire.counts import MAX_CALL_TOKENS

OPENAI: Final = "openai_chat"
GEMINI: Final = "gemini"
OLLAMA: Final = "ollama"
COHERE: Final = "cohere"
FORMS: Final = {  # by dialect
    OPENAI: OPENAI,
    "openai_responses": OPENAI,
    GEMINI: GEMINI,
    OLLAMA: OLLAMA,
    COHERE: COHERE,
}
_PATH_ENDS: Final = {OPENAI: "/embeddings", GEMINI: ":batchEmbedContents", OLLAMA: "/api/embed", COHERE: "/embed"}
_READ: Final = {
    OPENAI: frozenset(("model", "input", "dimensions", "encoding_format", "user")),
    GEMINI: frozenset(("model", "content", "requests", "outputDimensionality", "output_dimensionality")),
    OLLAMA: frozenset(("model", "input", "prompt", "dimensions", "keep_alive", "truncate")),
    COHERE: frozenset(("model", "texts", "output_dimension", "embedding_types")),
}
_COHERE_TYPES: Final = ("float", "base64")  # of a vector of floating-point numbers
_COHERE_PURPOSE: Final = "search_document"  # Cohere requires one; the other APIs have none


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a request, and the form of its reply."""

    form: str
    texts: tuple[str, ...]
    dimensions: int | None = None
    is_single: bool = False  # Gemini, and Ollama's older endpoint: the reply has one vector and no list
    is_base64: bool = False  # OpenAI: a vector is base64 of its numbers
    types: tuple[str, ...] = ()  # Cohere: the ways in which each vector is written
    losses: tuple[str, ...] = ()  # fields that no other API has


class Embeddings(msgspec.Struct, frozen=True):
    """Vectors, in the order of the texts."""

    vectors: list[list[float]]
    tokens: int = 0


def path_end(form: str) -> str:
    """Return the end of the path to which a request of a form is sent."""
    return _PATH_ENDS[form]


# --- requests --------------------------------------------------------------------------------------------------------


def read_request(form: str, path: str, body: dict[str, Any]) -> EmbeddingRequest:
    """Return the request of a caller; ``GatewayError`` if it has anything but texts."""
    if form == COHERE:
        return EmbeddingRequest(
            form=form,
            texts=_read_texts(body.get("texts"), "texts"),
            dimensions=_read_dimensions(body.get("output_dimension")),
            types=_read_types(body.get("embedding_types")),
            losses=_find_losses(form, body),
        )
    if form != GEMINI:
        is_single = form == OLLAMA and path.endswith("/embeddings")
        return EmbeddingRequest(
            form=form,
            is_single=is_single,
            texts=_read_texts(body.get("prompt" if is_single else "input")),
            dimensions=_read_dimensions(body.get("dimensions")),
            is_base64=body.get("encoding_format") == "base64",
            losses=_find_losses(form, body),
        )
    is_single = path.endswith(":embedContent")
    parts = [body] if is_single else body.get("requests")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise invalid_request_error("requests: at least one content is required.")
    size = parts[0].get("outputDimensionality", parts[0].get("output_dimensionality"))
    return EmbeddingRequest(
        form=form,
        texts=tuple(_read_content(part.get("content")) for part in parts),
        dimensions=_read_dimensions(size),
        is_single=is_single,
        losses=tuple(dict.fromkeys(name for part in parts for name in _find_losses(form, part))),
    )


def _find_losses(form: str, body: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"embedding.{name}" for name, value in body.items() if value is not None and name not in _READ[form])


def _read_types(value: Any) -> tuple[str, ...]:
    types = ["float"] if value is None else value
    if not isinstance(types, list) or not types or not all(name in _COHERE_TYPES for name in types):
        raise invalid_request_error("embedding_types: only float and base64 are available for a model of another API.")
    return tuple(types)


def _read_texts(value: Any, name: str = "input") -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise invalid_request_error(f"{name}: a text or a list of texts is required for a model of another API.")
    return tuple(texts)


def _read_content(content: Any) -> str:
    parts = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) and "text" in part for part in parts):
        raise invalid_request_error("content: parts with texts are required for a model of another API.")
    return "".join(str(part["text"]) for part in parts)


def _read_dimensions(value: Any) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise invalid_request_error("dimensions: a positive number is required.")


def write_request(form: str, request: EmbeddingRequest, model: str) -> dict[str, Any]:
    """Return the body for a provider."""
    if form == GEMINI:
        size = {} if request.dimensions is None else {"outputDimensionality": request.dimensions}
        name = f"models/{model}"
        return {"requests": [{"model": name, "content": {"parts": [{"text": text}]}, **size} for text in request.texts]}
    if form == COHERE:
        size = {} if request.dimensions is None else {"output_dimension": request.dimensions}
        fixed = {"input_type": _COHERE_PURPOSE, "embedding_types": ["float"]}
        return {"model": model, "texts": list(request.texts), **fixed, **size}
    body: dict[str, Any] = {"model": model, "input": list(request.texts)}
    return body if request.dimensions is None else {**body, "dimensions": request.dimensions}


# --- replies ---------------------------------------------------------------------------------------------------------


class _Usage(msgspec.Struct):
    """The counts in a reply of any form, without its vectors."""

    usage: _OpenAiUsage | None = None
    usage_metadata: _GeminiUsage | None = msgspec.field(name="usageMetadata", default=None)
    prompt_eval_count: int | None = None
    meta: _CohereMeta | None = None


class _GeminiUsage(msgspec.Struct):
    prompt_token_count: int | None = msgspec.field(name="promptTokenCount", default=None)


class _CohereUnits(msgspec.Struct):
    input_tokens: float | None = None  # a whole number


class _CohereMeta(msgspec.Struct):
    billed_units: _CohereUnits | None = None


class _OpenAiUsage(msgspec.Struct):
    prompt_tokens: int | None = None


def read_tokens(body: bytes) -> int | None:
    """Return the tokens that a provider has counted; none if its reply has no count."""
    try:
        reply = msgspec.json.decode(body, type=_Usage)
    except DECODE_ERRORS:
        return None
    units = reply.meta.billed_units if reply.meta is not None else None
    counts = (
        reply.usage.prompt_tokens if reply.usage is not None else None,
        reply.usage_metadata.prompt_token_count if reply.usage_metadata is not None else None,
        reply.prompt_eval_count,
        int(units.input_tokens) if units is not None and units.input_tokens is not None else None,
    )
    return next((count for count in counts if count is not None and 0 <= count <= MAX_CALL_TOKENS), None)


def estimate_tokens(fields: dict[str, Any], model: str) -> int:
    """Estimate the number of tokens in a request: of its texts, and of the token ids that it has instead."""
    texts: list[str] = []
    token_count = 0
    pending = [fields.get(name) for name in ("input", "prompt", "content", "requests", "texts", "inputs")]
    while pending:
        match pending.pop():
            case str() as text:
                texts.append(text)
            case int():
                token_count += 1
            case list() as items:
                pending.extend(items)
            case dict() as part:
                pending.extend(part.get(name) for name in ("text", "parts", "content"))
    return token_count + tokens.estimate_content([TextBlock(text) for text in texts], model)


class _OpenAiVector(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _OpenAiReply(msgspec.Struct):
    data: list[_OpenAiVector]


class _GeminiVector(msgspec.Struct):
    values: list[float]


class _GeminiReply(msgspec.Struct):
    embeddings: list[_GeminiVector]


class _OllamaReply(msgspec.Struct):
    embeddings: list[list[float]]


class _CohereVectors(msgspec.Struct):
    vectors: list[list[float]] = msgspec.field(name="float")


class _CohereReply(msgspec.Struct):
    embeddings: _CohereVectors


def read_reply(form: str, body: bytes) -> Embeddings:
    """Return the vectors of a provider. Raises one of ``DECODE_ERRORS`` if it is not a reply."""
    tokens_read = read_tokens(body) or 0
    if form == GEMINI:
        vectors = msgspec.json.decode(body, type=_GeminiReply).embeddings
        return Embeddings([vector.values for vector in vectors], tokens_read)
    if form == OLLAMA:
        return Embeddings(msgspec.json.decode(body, type=_OllamaReply).embeddings, tokens_read)
    if form == COHERE:
        return Embeddings(msgspec.json.decode(body, type=_CohereReply).embeddings.vectors, tokens_read)
    data = sorted(msgspec.json.decode(body, type=_OpenAiReply).data, key=lambda vector: vector.index)
    return Embeddings([vector.embedding for vector in data], tokens_read)


def write_reply(request: EmbeddingRequest, embeddings: Embeddings, model: str, reply_id: str) -> dict[str, Any]:
    """Return the reply in the form of the request."""
    if request.form == OLLAMA and request.is_single:
        return {"embedding": embeddings.vectors[0]}
    if request.form == OLLAMA:
        return {"model": model, "embeddings": embeddings.vectors, "prompt_eval_count": embeddings.tokens}
    if request.form == COHERE:
        return _write_cohere_reply(request, embeddings, reply_id)
    if request.form == GEMINI:
        vectors = [{"values": vector} for vector in embeddings.vectors]
        return {"embedding": vectors[0]} if request.is_single else {"embeddings": vectors}
    data = [
        {"object": "embedding", "index": index, "embedding": _pack(vector) if request.is_base64 else vector}
        for index, vector in enumerate(embeddings.vectors)
    ]
    usage = {"prompt_tokens": embeddings.tokens, "total_tokens": embeddings.tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _write_cohere_reply(request: EmbeddingRequest, embeddings: Embeddings, reply_id: str) -> dict[str, Any]:
    packed = {"float": embeddings.vectors, "base64": [_pack(vector) for vector in embeddings.vectors]}
    return {
        "response_type": "embeddings_by_type",
        "id": reply_id,
        "embeddings": {name: packed[name] for name in request.types},
        "texts": list(request.texts),
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": embeddings.tokens}},
    }


def _pack(vector: list[float]) -> str:
    """Return numbers of 32 bits in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
