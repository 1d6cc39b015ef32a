"""The models that a provider serves, from its own list. The request also checks the address and the API key.

    models = await list_models(endpoint)     ``RemoteFaultError`` with the provider's words if it fails

Providers have one path per dialect; Bedrock has none that an API key of its runtime can read. Requests are rare, so
they have a session of their own. Invariant: a redirect is not followed, since the request contains the API key.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from dragoman import dialects
from dragoman.client.call import build_headers, network_fault
from dragoman.errors import DragomanError, FormatError, RemoteFaultError
from dragoman.exchange import ErrorClass, Fault
from dragoman.jsontext import DECODE_ERRORS
from dragoman.redaction import redact
from dragoman.settings import Endpoint

if TYPE_CHECKING:
    import aiohttp

_PATHS: Final = {
    "anthropic": "/v1/models?limit=1000",
    "cohere": "/v1/models?page_size=1000",
    "gemini": "/v1beta/models?pageSize=1000",
    "gemini_interactions": "/v1beta/models?pageSize=1000",
    "ollama": "/api/tags",
    "openai_chat": "/models",
    "openai_responses": "/models",
}
_VERSIONS: Final = ("/v1beta", "/v1")  # some base URLs contain them as well
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")  # not through a proxy
_TIMEOUT_S: Final = 15.0
_MAX_BYTES: Final = 4 * 2**20
_MAX_DETAILS: Final = 40  # models whose details are requested
# Names of the context length in lists of OpenAI-compatible servers: OpenRouter, vLLM, LM Studio, Anthropic.
_CONTEXT_NAMES: Final = ("context_length", "max_model_len", "max_context_length", "max_input_tokens", "inputTokenLimit")


class RemoteModel(msgspec.Struct, frozen=True):
    """A model in the list of a provider."""

    name: str
    max_context_tokens: int | None = None
    supports_images: bool | None = None
    supports_tools: bool | None = None

    def row(self) -> dict[str, Any]:
        """The known fields, as a row of the catalog."""
        fields = msgspec.structs.asdict(self)
        return {name: value for name, value in fields.items() if name != "name" and value is not None}


async def list_models(endpoint: Endpoint) -> list[RemoteModel]:
    """Return the models of a provider, in the order of its list."""
    import aiohttp  # noqa: PLC0415  it is slow to import, and most servers never need it

    dialect = endpoint.provider.dialect
    if dialect not in _PATHS:
        raise FormatError("this provider has no list of models", where=endpoint.provider.title)
    is_local = (urlsplit(endpoint.base_url).hostname or "") in _LOOPBACK_HOSTS
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=_TIMEOUT_S / 3)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=jar, trust_env=not is_local) as session:
        wire = await _fetch(session, endpoint, _url(endpoint, _PATHS[dialect]))
        models = [model for item in _items(wire) if (model := _read_model(item)) is not None]
        if dialect == "ollama":
            models = await asyncio.gather(*(_read_details(session, endpoint, model) for model in models[:_MAX_DETAILS]))
    return models


def _url(endpoint: Endpoint, path: str) -> str:
    base = endpoint.base_url
    for version in _VERSIONS:
        if path.startswith(f"{version}/"):
            base = base.removesuffix(version)
    return base + path


async def _fetch(session: aiohttp.ClientSession, endpoint: Endpoint, url: str, body: bytes | None = None) -> Any:
    """The JSON value at a URL, with POST if there is a body."""
    import aiohttp  # noqa: PLC0415

    headers = build_headers(endpoint, stream=False)
    method = "GET" if body is None else "POST"
    try:
        async with session.request(method, url, data=body, headers=headers, allow_redirects=False) as response:
            data = await _read(response)
            status, response_headers = response.status, {key.lower(): text for key, text in response.headers.items()}
    except (aiohttp.ClientError, OSError) as error:
        raise RemoteFaultError(_network_fault(endpoint, url, error)) from None
    if not 200 <= status < 300:
        raise RemoteFaultError(_read_fault(endpoint, status, response_headers, data))
    try:
        return msgspec.json.decode(data)
    except DECODE_ERRORS:
        what = "the response is not a list of models. Check the address"
        raise RemoteFaultError(_fault(endpoint, "bad_content_type", what)) from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, cut at the limit."""
    data = b""
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) >= _MAX_BYTES:
            break
    return data[:_MAX_BYTES]


def _network_fault(endpoint: Endpoint, url: str, error: Exception) -> Fault:
    """The fault of a connection, without the text of the library, which may quote the request."""
    import aiohttp  # noqa: PLC0415

    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    if isinstance(error, TimeoutError):
        fault = network_fault("timeout", f"the response of {where} timed out")
    elif isinstance(error, aiohttp.ClientConnectorError):
        fault = network_fault("unreachable", f"no connection to {where}: {error.os_error.strerror or 'refused'}")
    else:
        fault = network_fault("unreachable", f"the connection to {where} failed: {type(error).__name__}")
    return fault.replace(provider=endpoint.provider.key)


def _read_fault(endpoint: Endpoint, status: int, headers: dict[str, str], data: bytes) -> Fault:
    """The error text of the provider, without the key."""
    try:
        fault: Fault = dialects.load(endpoint.provider.dialect).read_error(status, headers, data)
    except DragomanError:
        fault = _fault(endpoint, "server_error", f"the provider returned the status {status}")
    text = redact(endpoint.key.mask_in(fault.message) if endpoint.key is not None else fault.message)
    return fault.replace(message=text, provider=endpoint.provider.key)


def _fault(endpoint: Endpoint, code: str, message: str) -> Fault:
    return Fault(code=code, message=message, error_class=ErrorClass.OTHER, provider=endpoint.provider.key)


def _items(wire: Any) -> list[dict[str, Any]]:
    """The entries of a list: of a field ``data`` or ``models``, or the list itself."""
    rows = wire.get("data", wire.get("models")) if isinstance(wire, dict) else wire
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _read_model(item: dict[str, Any]) -> RemoteModel | None:
    name = item.get("id") or item.get("name") or item.get("model")
    if not isinstance(name, str) or not name:
        return None
    lengths = [item[key] for key in _CONTEXT_NAMES if isinstance(item.get(key), int) and item[key] > 0]
    return RemoteModel(name.removeprefix("models/"), max_context_tokens=lengths[0] if lengths else None)


async def _read_details(session: aiohttp.ClientSession, endpoint: Endpoint, model: RemoteModel) -> RemoteModel:
    """An Ollama model with its context length and capabilities; as listed if it has no details."""
    body = msgspec.json.encode({"model": model.name})
    try:
        wire = await _fetch(session, endpoint, f"{endpoint.base_url}/api/show", body)
    except RemoteFaultError:
        return model
    details = wire if isinstance(wire, dict) else {}
    info, capabilities = details.get("model_info") or {}, details.get("capabilities")
    lengths = [value for key, value in info.items() if key.endswith(".context_length") and isinstance(value, int)]
    known = capabilities if isinstance(capabilities, list) else None
    return RemoteModel(
        model.name,
        max_context_tokens=lengths[0] if lengths else None,
        supports_images=None if known is None else "vision" in known,
        supports_tools=None if known is None else "tools" in known,
    )
