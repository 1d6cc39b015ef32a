"""Calls in streams: arguments as they stood on the wire, and arguments that arrive one by one.

    raw_arguments(data) -> texts          the arguments of the calls in a chunk, unparsed
    PartialCall                           a call that is put together from pieces

The one rule: a piece that fits nowhere is an error and never guessed at.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.body import a_list, an_object
from dragoman.errors import FormatError


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


_read_raw: Final = msgspec.json.Decoder(_RawChunk).decode


def raw_arguments(data: bytes) -> list[str]:
    """The arguments of the calls in a chunk, as text: two equal keys in them are for the strict reader to refuse."""
    if b"functionCall" not in data and b"function_call" not in data:
        return []
    try:
        chunk = _read_raw(data)
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
        self._continued: str | None = None

    def take(self, part: dict[str, Any], call: dict[str, Any]) -> bool:
        """Take a piece; whether it was the last one."""
        if call.get("name") not in (None, "", self.name) or call.get("id") not in (None, "", self.provider_id):
            raise FormatError("a call begins before another one has ended", where="functionCall")
        self._part.update((key, value) for key, value in part.items() if key != "functionCall")
        if isinstance(call.get("args"), dict):
            self.args.update(call["args"])
        for piece in a_list(call.get("partialArgs") or [], "partialArgs"):
            self._place(an_object(piece, "partialArgs"))
        return not call.get("willContinue")

    def _place(self, piece: dict[str, Any]) -> None:
        path = str(piece.get("jsonPath", ""))
        steps = [
            int(match[4]) if match[4] else match[1] or match[2] or match[3] or "" for match in _STEP.finditer(path)
        ]
        if not path.startswith("$") or not steps or "".join(match[0] for match in _STEP.finditer(path)) != path[1:]:
            raise FormatError(f"no path of an argument: {path!r}", where="partialArgs")
        kinds = ("stringValue", "numberValue", "boolValue")
        value = next((piece[kind] for kind in kinds if kind in piece), None)
        holder: Any = self.args
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            _make_room(holder, step, path)
            if following is None:
                known = holder[step]
                continues = self._continued == path and isinstance(known, str) and isinstance(value, str)
                holder[step] = known + value if continues else value
            elif holder[step] is None:
                holder[step] = [] if type(following) is int else {}
            holder = holder[step]
        self._continued = path if piece.get("willContinue") else None

    def part(self) -> dict[str, Any]:
        """The whole call, as it would have come in one piece."""
        identified = {"id": self.provider_id} if self.provider_id else {}
        return {"functionCall": {**identified, "name": self.name, "args": self.args}, **self._part}


def _make_room(holder: Any, step: int | str, path: str) -> None:
    if type(holder) is list and type(step) is int and step <= len(holder):
        holder.extend([None] * (step + 1 - len(holder)))
    elif type(holder) is dict and type(step) is str:
        holder.setdefault(step, None)
    else:
        raise FormatError(f"an argument that fits nowhere: {path!r}", where="partialArgs")
