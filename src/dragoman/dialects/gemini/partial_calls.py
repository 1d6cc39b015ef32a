"""Calls in streams: arguments as they stood on the wire, and arguments that arrive one by one.

    raw_arguments(data) -> texts          the arguments of the calls in a chunk, unparsed
    PartialCall                           a call that is put together from pieces

The one rule: a piece that fits nowhere is an error and never guessed at.
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
    """The arguments of the calls in a chunk, as text: two equal keys in them are for the strict reader to refuse."""
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
            raise FormatError("a piece of a call that has not begun", where="functionCall")
        self.index, self.name, self.provider_id, self.id = index, call["name"], call.get("id", ""), ""
        self.args: dict[str, Any] = {}
        self._part = {key: value for key, value in part.items() if key != "functionCall"}
        self._open_path: str | None = None

    def add(self, part: dict[str, Any], call: dict[str, Any]) -> bool:
        """Take a piece; whether it was the last one."""
        if call.get("name") not in (None, "", self.name) or call.get("id") not in (None, "", self.provider_id):
            raise FormatError("a call begins before another one has ended", where="functionCall")
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
            raise FormatError(f"no path of an argument: {path!r}", where="partialArgs")
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
        """The whole call, as it would have come in one piece."""
        id_field = {"id": self.provider_id} if self.provider_id else {}
        return {"functionCall": {**id_field, "name": self.name, "args": self.args}, **self._part}


def _add_slot(container: Any, step: int | str, path: str) -> None:
    if type(container) is list and type(step) is int and step <= len(container):
        container.extend([None] * (step + 1 - len(container)))
    elif type(container) is dict and type(step) is str:
        container.setdefault(step, None)
    else:
        raise FormatError(f"an argument that fits nowhere: {path!r}", where="partialArgs")
