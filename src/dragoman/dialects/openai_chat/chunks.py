"""Assemble a chat completion from its chunks, both as they are on the wire.

    Completion.add(chunk) -> pieces     what each chunk adds
    Completion.to_wire()                the whole, as the official SDK assembles it

This module does not use canonical types: a piece names the place in the message that a text belongs to. A place is a
key of the message and a position: ``("content", 0)``, ``("tool_calls", 2)``, ``("reasoning_details", 1)``. Only the
choice with index 0 has pieces. Texts are lists that are joined once, so the cost of a chunk does not grow with the
stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from dragoman.errors import FormatError, JsonError
from dragoman.jsontext import DECODE_ERRORS, OWN, join_surrogates, read_json

Place = tuple[str, int]

THINKING_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text")  # one field, three vendor names
_TEXT_FIELDS: Final = (*THINKING_FIELDS, "refusal", "reasoning_opaque")
_STABLE_KEYS: Final = (
    "id",
    "created",
    "model",
)  # the first chunk with an id counts; Groq sends another id with every chunk
_REPEATED_KEYS: Final = (*_STABLE_KEYS, "system_fingerprint", "service_tier", "provider")
_IGNORED_KEYS: Final = ("object", "choices", "usage", "obfuscation", "p", "stream_options")
_CHOICE_KEYS: Final = (
    "index",
    "delta",
    "finish_reason",
    "message",
    "text",
    "logprobs",
)  # Perplexity repeats the whole message
_CALL_KEYS: Final = ("tool_calls", "function_call")
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")  # an escaped half of a surrogate pair
_DETAIL_TEXTS: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}


class Piece(msgspec.Struct, frozen=True):
    """An addition of a chunk to one place: ``whole`` is complete; ``grows`` can be read only when the stream ends."""

    place: Place
    kind: Literal["text", "thinking", "call", "whole", "grows"]
    text: str


def find_thinking_key(message: dict[str, Any]) -> str | None:
    """Return the key to read the reasoning from, if several repeat it: the one that can be sent back."""
    details = message.get("reasoning_details")
    if isinstance(details, list) and any(detail_text(detail) for detail in details):
        return "reasoning_details"
    return next((key for key in THINKING_FIELDS if isinstance(message.get(key), str) and message[key]), None)


def detail_text(detail: Any) -> str:
    """Return the text of a reasoning detail of OpenRouter."""
    text = detail.get(_DETAIL_TEXTS.get(str(detail.get("type")), "")) if isinstance(detail, dict) else None
    return text if isinstance(text, str) else ""


def decode_chunk(data: bytes) -> dict[str, Any] | None:
    """Return the object in an event, or ``None``. A lone surrogate is allowed: its pair may be in the next chunk."""
    try:
        wire = msgspec.json.decode(data)
    except DECODE_ERRORS:
        try:
            wire = json.loads(data) if _SURROGATE_ESCAPE.search(data) else None
        except (ValueError, RecursionError):
            return None
    return wire if isinstance(wire, dict) else None


def _join_all_surrogates(value: Any) -> Any:
    """Return the value with surrogate pairs in its texts joined and lone surrogates dropped."""
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, list):
        return [_join_all_surrogates(item) for item in value]
    return {key: _join_all_surrogates(item) for key, item in value.items()} if isinstance(value, dict) else value


class Completion:
    """One completion, assembled from its chunks."""

    def __init__(self) -> None:
        self.top: dict[str, Any] = {}
        self.choices: dict[int, PartialChoice] = {}
        self.has_common_end = False  # an end without an index is the end of every choice

    def add(self, chunk: dict[str, Any]) -> list[Piece]:
        """Add a chunk and return its additions to the first choice. An invalid chunk raises ``FormatError``."""
        for key, value in chunk.items():
            if key == "usage" and isinstance(value, dict):
                self.top[key] = value
            elif key in _STABLE_KEYS:
                self.top[key] = self.top.get(key) or value
            elif key not in _IGNORED_KEYS and (key not in self.top or value not in (None, "")):
                self.top[key] = value
        pieces: list[Piece] = []
        for choice in _expect_objects(chunk.get("choices") or [], "choices"):
            index = choice.get("index") if type(choice.get("index")) is int else 0
            if index is None or index < 0:
                raise FormatError(f"choices are counted from 0, not {index}", where="choices")
            self.has_common_end = self.has_common_end or (
                choice.get("index") is None and bool(choice.get("finish_reason"))
            )
            new_pieces = self.choices.setdefault(index, PartialChoice()).add(choice)
            pieces.extend(new_pieces if not index else ())
        return pieces

    @property
    def has_stable_keys(self) -> bool:
        """Whether the keys that only count once have values."""
        return all(self.top.get(key) for key in _STABLE_KEYS)

    @property
    def first(self) -> PartialChoice:
        """The choice that becomes the reply."""
        return self.choices.get(0) or PartialChoice()

    def to_wire(self) -> dict[str, Any]:
        """Return the whole completion."""
        choices = [{"index": index, **self.choices[index].to_wire()} for index in sorted(self.choices)]
        completion = {**self.top, "object": "chat.completion", "choices": choices}
        try:
            msgspec.json.encode(completion)
        except UnicodeEncodeError:  # two chunks split a surrogate pair
            completion = _join_all_surrogates(completion)
        return completion


class PartialChoice:
    """One choice, assembled from its deltas."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {"role": "assistant"}
        self.rest: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.origin: str | None = None  # the field of the reasoning text
        self.trailing: list[str] = []  # chunks after the end
        self.texts: dict[Place, list[str]] = {}  # text received so far, by place
        self._call_keys: list[int | None] = []

    def add(self, choice: dict[str, Any]) -> list[Piece]:
        """Add the part of a chunk that belongs to this choice."""
        for key, value in choice.items():
            if key not in _CHOICE_KEYS and (key not in self.rest or value not in (None, "", {}, [])):
                self.rest[key] = value
        if "logprobs" in choice:
            self.rest["logprobs"] = _merge_logprobs(self.rest.get("logprobs"), choice["logprobs"])
        pieces: list[Piece] = []
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if self.finish_reason is None:
                self.origin = self.origin or find_thinking_key(delta)
            for key, value in delta.items():
                pieces.extend(self._add_field(key, value))
        reason = choice.get("finish_reason")
        self.finish_reason = reason if isinstance(reason, str) and reason else self.finish_reason
        return pieces

    def to_wire(self) -> dict[str, Any]:
        """Return the whole choice."""
        message = dict(self.message)
        for (key, at), fragments in self.texts.items():
            text = "".join(fragments)
            match key:
                case "tool_calls":
                    message[key][at]["function"]["arguments"] = text
                case "function_call":
                    message[key]["arguments"] = text
                case "reasoning_details":
                    message[key][at][_DETAIL_TEXTS[message[key][at]["type"]]] = text
                case "content" if isinstance(message[key], list):
                    _set_part_text(message[key][at], text)
                case "audio.data" | "audio.transcript":
                    message["audio"][key.removeprefix("audio.")] = text
                case _:
                    message[key] = text
        return {"message": message, **self.rest, "finish_reason": self.finish_reason}

    def get_call(self, place: Place) -> dict[str, Any]:
        """Return the call at a place, without its arguments."""
        if place[0] == "function_call":
            return {"function": self.message["function_call"]}
        call: dict[str, Any] = self.message["tool_calls"][place[1]]
        return call

    def get_detail(self, at: int) -> dict[str, Any]:
        """Return a reasoning detail, without its text."""
        detail: dict[str, Any] = self.message["reasoning_details"][at]
        return detail

    def get_part(self, at: int) -> dict[str, Any] | None:
        """Return a part of the content, without its text; ``None`` if the content is a text."""
        content = self.message.get("content")
        return content[at] if isinstance(content, list) else None

    def find_call(self, index: int) -> int | None:
        """Return the position of the call that a fragment with this index and without an id belongs to."""
        positions = [at for at, key in enumerate(self._call_keys) if key == index]
        return positions[-1] if positions else None

    def _append_text(self, place: Place, text: str) -> None:
        self.texts.setdefault(place, []).append(text)

    def _add_field(self, key: str, value: Any) -> Iterator[Piece]:
        if key == "token_id":
            return
        if value is None or value == "" or (value == [] and key not in self.message):
            if self.message.get(key) is None:
                self.message[key] = value
            return
        if self.finish_reason is not None and self._is_trailing(key):
            self.trailing.append(str(value))
        elif key == "content":
            yield from self._add_content(value)
        elif key in _TEXT_FIELDS:
            self._append_text((key, 0), _expect_text(value, key))
            self.message[key] = ""
            if key not in THINKING_FIELDS or key == self.origin:
                kind = "text" if key == "refusal" else "grows" if key == "reasoning_opaque" else "thinking"
                yield Piece((key, 0), kind, value)  # type: ignore[arg-type]
        elif key == "tool_calls":
            for call in _expect_objects(value, key):
                yield self._add_call(call)
        elif key == "function_call":
            function = _encode_arguments(value, key)
            function_call = self.message[key] = self.message.get(key) or {}
            self._merge_function((key, 0), function_call, function)
            if function_call.get("name") or function.get("arguments"):  # Snowflake sends an empty one without a call
                yield Piece((key, 0), "call", function.get("arguments") or "")
        elif key == "reasoning_details":
            for detail in _expect_objects(value, key):
                yield from self._add_detail(detail)
        elif key == "audio" and isinstance(value, dict):
            yield from self._add_audio(value)
        else:
            self.message[key] = _merge_value(self.message.get(key), value)

    def _is_trailing(self, key: str) -> bool:
        """Whether a key is trailing data after the finish reason.

        A call is not: Together ends each of several calls.
        """
        return key in ("content", *_TEXT_FIELDS) or (key in _CALL_KEYS and self.finish_reason not in _CALL_KEYS)

    def _add_content(self, value: Any) -> Iterator[Piece]:
        parts = self.message.get("content")
        if isinstance(value, dict):  # Cloudflare parses JSON for the client
            value = msgspec.json.encode(value).decode()
        if isinstance(value, str) and not isinstance(parts, list):
            self.message["content"] = ""
            self._append_text(("content", 0), value)
            yield Piece(("content", 0), "text", value)
            return
        if not isinstance(parts, list):
            parts = self.message["content"] = [{"type": "text", "text": ""}] if ("content", 0) in self.texts else []
        for part in _expect_objects([{"type": "text", "text": value}] if isinstance(value, str) else value, "content"):
            yield self._add_part(parts, part)

    def _add_part(self, parts: list[dict[str, Any]], part: dict[str, Any]) -> Piece:
        last = parts[-1] if parts else {}
        kind, text = part.get("type"), _part_text(part)
        if text is None:
            parts.append(part)
            return Piece(("content", len(parts) - 1), "whole", "")
        if last.get("type") != kind or _part_text(last) is None:
            parts.append({**part})
        else:
            last.update(part)
        _set_part_text(parts[-1], "")
        place = ("content", len(parts) - 1)
        self._append_text(place, text)
        return Piece(place, "text" if kind == "text" else "thinking", text)

    def _add_call(self, delta: dict[str, Any]) -> Piece:
        function: dict[str, Any] | None = None
        if delta.get("function") is not None:
            function = _encode_arguments(delta["function"], "tool_calls")
        calls = self.message["tool_calls"] = self.message.get("tool_calls") or []
        at = self._call_position(delta, function, calls)
        if at == len(calls):
            if not delta.get("id") and function is not None and not function.get("name"):
                raise FormatError(f"a fragment of call {delta.get('index')}, which has not begun", where="tool_calls")
            index = delta.get("index")
            calls.append({})
            self._call_keys.append(index if type(index) is int else None)
        call, place = calls[at], ("tool_calls", at)
        _merge_call(call, {key: value for key, value in delta.items() if key not in ("index", "function")})
        if function is not None:
            if not isinstance(call.get("function"), dict):
                call["function"] = {}
            self._merge_function(place, call["function"], function)
        elif "function" in delta and "function" not in call:
            call["function"] = None
        kind: Literal["call", "grows"] = "call" if isinstance(call.get("function"), dict) else "grows"
        return Piece(place, kind, (function or {}).get("arguments") or "")

    def _merge_function(self, place: Place, target: dict[str, Any], function: dict[str, Any]) -> None:
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self._append_text(place, arguments)
            target["arguments"] = ""
        _merge_call(target, {key: value for key, value in function.items() if key != "arguments" or value is None})

    def _call_position(
        self, delta: dict[str, Any], function: dict[str, Any] | None, calls: list[dict[str, Any]]
    ) -> int:
        """Return the position of the call that a delta belongs to: by index, else by id.

        The number of calls for a new one.

        Some providers use index 0 for every call of a chunk, so another id with another name starts another call once
        the call before it is complete. Another id alone does not: some providers use a new id for every fragment.
        """
        index, call_id = delta.get("index"), delta.get("id")
        name = function.get("name") if function is not None else None
        if type(index) is int:
            position = self.find_call(index)
            if position is None:
                return len(calls)
            is_other = name and call_id and call_id != calls[position].get("id")
            return len(calls) if is_other and self._is_complete(position) else position
        if call_id:
            same = [at for at, call in enumerate(calls) if call.get("id") == call_id]
            return same[-1] if same else len(calls)
        return len(calls) if not calls or (name and self._is_complete(len(calls) - 1)) else len(calls) - 1

    def _is_complete(self, at: int) -> bool:
        if not isinstance(self.message["tool_calls"][at].get("function"), dict):
            return False
        try:
            return isinstance(read_json("".join(self.texts.get(("tool_calls", at), ())), OWN), dict)
        except JsonError:
            return False

    def _add_detail(self, detail: dict[str, Any]) -> Iterator[Piece]:
        details = self.message["reasoning_details"] = self.message.get("reasoning_details") or []
        field = _DETAIL_TEXTS.get(str(detail.get("type")))
        if field is None:
            details.append(detail)
            yield Piece(("reasoning_details", len(details) - 1), "whole", "")
            return
        at = _find_detail(details, detail)
        if at is None:
            at = len(details)
            details.append({})
        target, text, place = details[at], detail_text(detail), ("reasoning_details", at)
        previous_text = {field: target[field]} if field in target else {}
        target.update({key: value for key, value in detail.items() if value is not None or key not in target})
        if text:
            self._append_text(place, text)
            target[field] = ""
        else:
            target.update(previous_text)
        yield Piece(place, "thinking" if self.origin in (None, "reasoning_details") else "grows", text)

    def _add_audio(self, value: dict[str, Any]) -> Iterator[Piece]:
        audio = self.message["audio"] = self.message.get("audio") or {}
        audio.update(value)
        for name in ("data", "transcript"):
            if isinstance(value.get(name), str):
                place = (f"audio.{name}", 0)
                self._append_text(place, value[name])
                if value[name]:
                    yield Piece(place, "text" if name == "transcript" else "grows", value[name])


def _expect_objects(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise FormatError("expected a list of objects", where=where)
    return value


def _expect_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"expected text, not {type(value).__name__}", where=where)
    return value


def _encode_arguments(function: Any, where: str) -> dict[str, Any]:
    """Return a function with arguments as text: some providers send the object itself."""
    result = dict(_expect_objects([function], where)[0])
    if isinstance(result.get("arguments"), dict):
        result["arguments"] = msgspec.json.encode(result["arguments"]).decode()
    if result.get("arguments") is not None:
        _expect_text(result["arguments"], f"{where}.arguments")
    return result


def _find_detail(details: list[dict[str, Any]], detail: dict[str, Any]) -> int | None:
    """Return the position of the detail that a delta continues: same type, and same index or the last one."""
    kind, index = detail.get("type"), detail.get("index")
    start = max(len(details) - 1, 0) if index is None else 0
    matches = (known.get("type") == kind and known.get("index") == index for known in details[start:])
    return next((at for at, is_match in enumerate(matches, start) if is_match), None)


def _part_text(part: dict[str, Any]) -> str | None:
    """Return the text of a part that can grow, a text or thinking of Mistral; ``None`` for others."""
    if part.get("type") == "text":
        text = part.get("text")
        return text if isinstance(text, str) else None
    texts = thinking_texts(part) if part.get("type") == "thinking" else None
    return None if texts is None else "".join(texts)


def _set_part_text(part: dict[str, Any], text: str) -> None:
    if part["type"] == "text":
        part["text"] = text
    else:
        part["thinking"] = [{"type": "text", "text": text}]


def thinking_texts(part: dict[str, Any]) -> list[str] | None:
    """Return the texts of a thinking part of Mistral; ``None`` if it contains anything else."""
    items = part.get("thinking")
    if not isinstance(items, list):
        return None
    is_plain = all(
        isinstance(item, dict) and set(item) == {"type", "text"} and item["type"] == "text" for item in items
    )
    return (
        [item["text"] for item in items] if is_plain and all(isinstance(item["text"], str) for item in items) else None
    )


def _merge_call(target: dict[str, Any], delta: dict[str, Any]) -> None:
    """Merge a delta: a repeated or empty id or name changes nothing; the input of a custom tool grows."""
    for key, value in delta.items():
        if isinstance(value, dict):
            if not isinstance(target.get(key), dict):
                target[key] = {}
            _merge_call(target[key], value)
        elif key == "input" and isinstance(value, str):
            target[key] = value if not isinstance(target.get(key), str) else target[key] + value
        elif not target.get(key):
            target[key] = value


def _merge_value(previous: Any, value: Any) -> Any:
    """Merge an unknown value: lists grow, items with one index are one item, other values are replaced."""
    if not isinstance(previous, list) or not isinstance(value, list):
        return value
    for item in value:
        index = item.get("index") if isinstance(item, dict) else None
        matches = (
            [] if index is None else [old for old in previous if isinstance(old, dict) and old.get("index") == index]
        )
        if matches:
            matches[0].update(item)
        else:
            previous.append(item)
    return previous


def _merge_logprobs(previous: Any, value: Any) -> Any:
    if not isinstance(previous, dict) or not isinstance(value, dict):
        return previous if value is None else value
    for key, items in value.items():
        if isinstance(items, list) and isinstance(previous.get(key) or [], list):
            previous[key] = previous.get(key) or []
            previous[key].extend(items)
        elif key not in previous:
            previous[key] = items
    return previous
