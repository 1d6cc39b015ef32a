"""Token probabilities in the form that both OpenAI APIs and Ollama share.

read_logprobs(items) -> tuple        empty if an item has another form
write_logprobs(logprobs) -> list
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dragoman.jsontext import has_lone_surrogate, is_number, read_items
from dragoman.message import TokenLogprob


def read_logprobs(items: Any) -> tuple[TokenLogprob, ...]:
    """Return the probabilities of tokens; none if one of them has another form."""
    return read_items(items, _read_logprob)


def _read_logprob(item: Any) -> TokenLogprob | None:
    match item:
        case {"token": str(token), "logprob": logprob} if is_number(logprob) and not has_lone_surrogate(token):
            data = item.get("bytes")
            is_bytes = isinstance(data, list) and all(type(byte) is int for byte in data)
            return TokenLogprob(
                token, logprob, tuple(data) if is_bytes else None, read_logprobs(item.get("top_logprobs"))
            )
        case _:
            return None


def write_logprobs(logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Return the wire of token probabilities."""
    return [{**_write_logprob(item), "top_logprobs": [_write_logprob(top) for top in item.top]} for item in logprobs]


def _write_logprob(item: TokenLogprob) -> dict[str, Any]:
    data = list(item.bytes) if item.bytes is not None else list(item.token.encode("utf-8", "surrogatepass"))
    return {"token": item.token, "logprob": item.logprob, "bytes": data}
