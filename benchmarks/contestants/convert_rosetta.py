"""llm-rosetta converts a request from one provider's format to another."""

from __future__ import annotations

import copy
from importlib.metadata import version
from typing import Any

from llm_rosetta import convert as convert_request

VERSION = version("llm-rosetta")
_NAMES = {
    "openai_chat": "openai_chat",
    "anthropic": "anthropic",
    "gemini": "google",
    "openai_responses": "openai_responses",
}
_REST_KEYS = ("system_instruction", "tools", "tool_config", "safety_settings", "cached_content", "labels")
PAIRS = [(source, target) for source in _NAMES for target in _NAMES if source != target]


def convert(source: str, target: str, model: str, wire: dict[str, Any]) -> Any:
    """Return the request in the format of the target."""
    body = {**copy.deepcopy(wire), "model": model}
    converted: Any = convert_request(body, _NAMES[target], source_provider=_NAMES[source])
    return _to_rest(converted) if target == "gemini" else converted


def _to_rest(body: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of Google's SDK, which it writes, as a body of the REST API."""
    config = dict(body.get("config", {}))
    rest = {key: config.pop(key) for key in _REST_KEYS if key in config}
    wire = {key: value for key, value in body.items() if key not in ("config", "model")}
    return {**wire, **rest, **({"generation_config": config} if config else {})}
