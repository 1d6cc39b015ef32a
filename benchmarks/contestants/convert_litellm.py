"""LiteLLM: the body that it sends to a provider for a chat request, caught before it leaves the process."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from typing import Any

os.environ.update(
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    LITELLM_LOG="ERROR",
    LITELLM_TELEMETRY="False",
    AWS_ACCESS_KEY_ID="none",
    AWS_SECRET_ACCESS_KEY="none",
    AWS_REGION_NAME="us-east-1",
)

import httpx
import litellm

VERSION = version("litellm")
_PREFIXES = {
    "anthropic": "anthropic/",
    "bedrock_converse": "bedrock/converse/",
    "cohere": "cohere_chat/",
    "gemini": "gemini/",
    "ollama": "ollama_chat/",
    "openai_responses": "openai/responses/",
}
_PATHS = ("/messages", "/converse", "/chat", ":generateContent", ":streamGenerateContent", "/responses", "stream")
PAIRS = [("openai_chat", target) for target in _PREFIXES]


class CaughtError(Exception):
    """The request was caught."""


class _Bodies:
    last: bytes | None = None


def _catch(request: httpx.Request) -> httpx.Response:
    if any(request.url.path.endswith(path) for path in _PATHS):
        _Bodies.last = request.read()
    raise CaughtError


class _Transport(httpx.BaseTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return _catch(request)


def _make_client(*_: Any, **__: Any) -> httpx.BaseTransport:
    return _Transport()


httpx.Client._init_transport = _make_client  # type: ignore[assignment]  # every client that LiteLLM makes
litellm.suppress_debug_info = True
litellm.num_retries = 0


def convert(_source: str, target: str, model: str, wire: dict[str, Any]) -> Any:
    """Return the body for the target. An option that LiteLLM rejects raises its error."""
    _Bodies.last = None
    options = {key: value for key, value in wire.items() if key not in ("model", "messages")}
    try:
        answer = litellm.completion(
            model=_PREFIXES[target] + model, messages=wire["messages"], api_key="none", max_retries=0, **options
        )
        list(answer)  # a stream is requested when it is read
    except Exception:
        if _Bodies.last is None:
            raise
    assert _Bodies.last is not None
    return json.loads(_Bodies.last)
