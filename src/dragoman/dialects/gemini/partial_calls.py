"""Read calls in streams: raw arguments, and arguments that arrive in several parts.

    raw_arguments(data) -> texts          the unparsed arguments of the calls in a chunk
    PartialCall                           a call assembled from partial arguments

Invariant: a partial argument with an invalid path is an error.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from dragoman.errors import FormatError
from dragoman.jsontext import expect_list, expect_object


class _RawCall(msgspec.Struct):
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _RawPart(msgspec.Struct):
    functionCall: _RawCall | None = None  # noqa: N815
    function_call: _RawCall | None = None


class _RawContent(msgspec.Struct):
    parts: list[_RawPart] | None = None


class _RawCandidate(msgspec.Struct):
    content: _RawContent | None = None
    index: int = 0


class _RawChunk(msgspec.Struct):
    candidates: list[_RawCandidate] | None = None


_decode_raw: Final = msgspec.json.Decoder(_RawChunk).decode


def raw_arguments(data: bytes) -> list[str]:
    """Return the arguments of the calls in a chunk as text, so that duplicate keys can be detected."""
    if b"functionCall" not in data and b"function_call" not in data:
        return []
    try:
        chunk = _decode_raw(data)
    except msgspec.DecodeError:
        return []
    parts = [
        part
        for candidate in chunk.candidates or ()
        if candidate.index <= 0 and candidate.content is not None
        for part in candidate.content.parts or ()
    ]
    calls = [part.functionCall or part.function_call for part in parts]
    return [bytes(call.args).decode() for call in calls if call is not None]


_STEP: Final = re.compile(r"\.([^.\[\]]+)|\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d{1,6})\]")


class PartialCall:
    """A call whose arguments arrive one by one, each with its JSON path (Vertex, streamFunctionCallArguments)."""

    def __init__(self, index: int, part: dict[str, Any], call: dict[str, Any]) -> None:
        if not isinstance(call.get("name"), str) or not isinstance(call.get("id", ""), str):
            raise FormatError("partial arguments before the start of a call", where="functionCall")
        self.index, self.name, self.provider_id, self.id = index, call["name"], call.get("id", ""), ""
        self.args: dict[str, Any] = {}
        self._part = {key: value for key, value in part.items() if key != "functionCall"}
        self._open_path: str | None = None

    def add(self, part: dict[str, Any], call: dict[str, Any]) -> bool:
        """Add partial arguments; return whether the call is complete."""
        if call.get("name") not in (None, "", self.name) or call.get("id") not in (None, "", self.provider_id):
            raise FormatError("a call starts before the previous call has ended", where="functionCall")
        self._part.update((key, value) for key, value in part.items() if key != "functionCall")
        if isinstance(call.get("args"), dict):
            self.args.update(call["args"])
        for piece in expect_list(call.get("partialArgs") or [], "partialArgs"):
            self._set_argument(expect_object(piece, "partialArgs"))
        return not call.get("willContinue")

    def _set_argument(self, piece: dict[str, Any]) -> None:
        path = str(piece.get("jsonPath", ""))
        steps = [
            int(match[4]) if match[4] else match[1] or match[2] or match[3] or "" for match in _STEP.finditer(path)
        ]
        if not path.startswith("$") or not steps or "".join(match[0] for match in _STEP.finditer(path)) != path[1:]:
            raise FormatError(f"invalid argument path: {path!r}", where="partialArgs")
        kinds = ("stringValue", "numberValue", "boolValue")
        value = next((piece[kind] for kind in kinds if kind in piece), None)
        container: Any = self.args
        for step, next_step in zip(steps, [*steps[1:], None], strict=True):
            _add_slot(container, step, path)
            if next_step is None:
                current = container[step]
                continues = self._open_path == path and isinstance(current, str) and isinstance(value, str)
                container[step] = current + value if continues else value
            elif container[step] is None:
                container[step] = [] if type(next_step) is int else {}
            container = container[step]
        self._open_path = path if piece.get("willContinue") else None

    def to_part(self) -> dict[str, Any]:
        """Return the call as one complete part."""
        id_field = {"id": self.provider_id} if self.provider_id else {}
        return {"functionCall": {**id_field, "name": self.name, "args": self.args}, **self._part}


def _add_slot(container: Any, step: int | str, path: str) -> None:
    if type(container) is list and type(step) is int and step <= len(container):
        container.extend([None] * (step + 1 - len(container)))
    elif type(container) is dict and type(step) is str:
        container.setdefault(step, None)
    else:
        raise FormatError(f"argument path does not match the arguments: {path!r}", where="partialArgs")
