"""Bodies of Gemini Code Assist: a request under the key ``request``, and a response under the key ``response``.

    unwrap_request(wire) -> body, wrapper       ``wrapper`` is ``None`` for a body of the public API
    wrap_request(body, wrapper) -> wire
    unwrap_response(wire) -> body, wrapper      the same for a response and for a chunk of a stream
    wrap_response(body, wrapper) -> wire

The model is beside the request. A wrapper is residue: the fields beside the body, such as the project. Invariant: what
was unwrapped is wrapped as it was.
"""

from __future__ import annotations

from typing import Any

Wire = dict[str, Any]
Wrapper = dict[str, Wire]


def unwrap_request(wire: Wire) -> tuple[Wire, Wrapper | None]:
    """Return the body of a request with its model, and its wrapper."""
    body, wrapper = _unwrap(wire, "request", "contents")
    if wrapper is None or "model" in body:
        return wire, None
    model = wrapper["set"].pop("model", None)
    return body if model is None else {**body, "model": model}, wrapper


def wrap_request(body: Wire, wrapper: Any) -> Wire:
    """Return the request in its wrapper, if it had one."""
    fields = _fields_of(wrapper)
    if fields is None:
        return body
    model = {"model": body["model"]} if "model" in body else {}
    inner = {key: value for key, value in body.items() if key != "model"}
    return {**model, **fields, "request": inner}


def unwrap_response(wire: Wire) -> tuple[Wire, Wrapper | None]:
    """Return the body of a response, and its wrapper."""
    return _unwrap(wire, "response", "candidates")


def wrap_response(body: Wire, wrapper: Any) -> Wire:
    """Return the response in its wrapper, if it had one. Errors have none."""
    fields = _fields_of(wrapper)
    return body if fields is None or "error" in body else {"response": body, **fields}


def _fields_of(wrapper: Any) -> Wire | None:
    """Return the fields beside the body; ``None`` for no wrapper, and for one that a foreign program has stored."""
    fields = wrapper.get("set") if isinstance(wrapper, dict) else None
    return fields if isinstance(fields, dict) else None


def _unwrap(wire: Wire, key: str, body_key: str) -> tuple[Wire, Wrapper | None]:
    body = wire.get(key)
    if type(body) is not dict or body_key in wire:
        return wire, None
    return body, {"set": {name: value for name, value in wire.items() if name != key}}
