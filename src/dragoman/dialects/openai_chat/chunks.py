"""The chunks of a chat completion and the completion itself, both as they stand on the wire.

    Completion.add(chunk) -> pieces     what each chunk adds
    Completion.wire()                   the whole, as the official SDK puts it together
    chunks_from(wire)                   the chunks of a whole completion

Nothing here knows the canonical format: a piece only says to which place of the message some text belongs. A place is
a key of the message and a position: ``("content", 0)``, ``("tool_calls", 2)``, ``("reasoning_details", 1)``. Of several
choices only the one with index 0 has pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from dragoman.errors import FormatError, JsonError
from dragoman.jsontext import OWN, read_json

Place = tuple[str, int]

THINKING_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text")  # the same, by vendor
_TEXT_FIELDS: Final = (*THINKING_FIELDS, "refusal", "reasoning_opaque")
_FIRST: Final = ("id", "created", "model")  # the first chunk that has one counts; Groq gives every chunk another id
_REPEATED: Final = (*_FIRST, "system_fingerprint", "service_tier", "provider")
_PADDING: Final = ("object", "choices", "usage", "obfuscation", "p", "stream_options")
_BESIDE_DELTA: Final = (
    "index",
    "delta",
    "finish_reason",
    "message",
    "text",
    "logprobs",
)  # Perplexity repeats the whole
_CALLS: Final = ("tool_calls", "function_call")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")  # an escape for half of a character
_DETAIL_TEXTS: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}


class Piece(msgspec.Struct, frozen=True):
    """What a chunk adds to one place. A ``whole`` can only be read when the message is complete."""

    place: Place
    kind: Literal["text", "thinking", "call", "whole"]
    text: str


def origin_of_thinking(message: dict[str, Any]) -> str | None:
    """The key that the reasoning is read from, where several say the same: the one that can be replayed."""
    details = message.get("reasoning_details")
    if isinstance(details, list) and any(detail_text(detail) for detail in details):
        return "reasoning_details"
    return next((key for key in THINKING_FIELDS if isinstance(message.get(key), str) and message[key]), None)


def detail_text(detail: Any) -> str:
    """The words of one of OpenRouter's reasoning details."""
    text = detail.get(_DETAIL_TEXTS.get(str(detail.get("type")), "")) if isinstance(detail, dict) else None
    return text if isinstance(text, str) else ""


def chunk_from(data: bytes) -> dict[str, Any] | None:
    """The object in an event; ``None`` if there is none. Half a character is let through: its other half may follow."""
    try:
        wire = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            wire = json.loads(data) if _HALF.search(data) else None
        except ValueError:
            return None
    return wire if isinstance(wire, dict) else None


def _with_whole_characters(value: Any) -> Any:
    """The value, the halves of characters in its texts joined. A half that stayed alone is left out."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    if isinstance(value, list):
        return [_with_whole_characters(item) for item in value]
    return {key: _with_whole_characters(item) for key, item in value.items()} if isinstance(value, dict) else value


class Completion:
    """One completion, put together from its chunks."""

    def __init__(self) -> None:
        self.top: dict[str, Any] = {}
        self.choices: dict[int, ChoiceSoFar] = {}

    def add(self, chunk: dict[str, Any]) -> list[Piece]:
        """Take one chunk; what it adds to the first choice. A chunk in disorder is a ``FormatError``."""
        for key, value in chunk.items():
            if key == "usage" and isinstance(value, dict):
                self.top[key] = value
            elif key in _FIRST:
                self.top[key] = self.top.get(key) or value
            elif key not in _PADDING and (key not in self.top or value not in (None, "")):
                self.top[key] = value
        pieces: list[Piece] = []
        for choice in _objects(chunk.get("choices") or [], "choices"):
            index = choice.get("index") if type(choice.get("index")) is int else 0
            added = self.choices.setdefault(index or 0, ChoiceSoFar()).add(choice)
            pieces.extend(added if not index else ())
        return pieces

    @property
    def first(self) -> ChoiceSoFar:
        """The choice that becomes the reply."""
        return self.choices.get(0) or ChoiceSoFar()

    def wire(self) -> dict[str, Any]:
        """The whole completion."""
        choices = [{"index": index, **self.choices[index].wire()} for index in sorted(self.choices)]
        whole = {**self.top, "object": "chat.completion", "choices": choices}
        try:
            msgspec.json.encode(whole)
        except UnicodeEncodeError:  # a character was cut between two chunks
            whole = _with_whole_characters(whole)
        return whole


class ChoiceSoFar:
    """One choice, put together from its deltas."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {"role": "assistant"}
        self.rest: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.origin: str | None = None  # where the reasoning is read from
        self.late: list[str] = []  # what came after the end
        self._call_keys: list[int | None] = []

    def add(self, choice: dict[str, Any]) -> list[Piece]:
        """Take what one chunk says about this choice."""
        for key, value in choice.items():
            if key not in _BESIDE_DELTA and (key not in self.rest or value not in (None, "", {}, [])):
                self.rest[key] = value
        if "logprobs" in choice:
            self.rest["logprobs"] = _merged_logprobs(self.rest.get("logprobs"), choice["logprobs"])
        pieces: list[Piece] = []
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self.origin = self.origin or origin_of_thinking(delta)
            for key, value in delta.items():
                pieces.extend(self._add(key, value))
        reason = choice.get("finish_reason")
        self.finish_reason = reason if isinstance(reason, str) and reason else self.finish_reason
        return pieces

    def wire(self) -> dict[str, Any]:
        """The whole choice."""
        return {"message": self.message, **self.rest, "finish_reason": self.finish_reason}

    def call(self, place: Place) -> dict[str, Any]:
        """The call at a place, as far as it has come."""
        if place[0] == "function_call":
            return {"function": self.message["function_call"]}
        made: dict[str, Any] = self.message["tool_calls"][place[1]]
        return made

    def _add(self, key: str, value: Any) -> Iterator[Piece]:
        if key == "token_id":
            return
        if value is None or value == "" or (value == [] and key not in self.message):
            if self.message.get(key) is None:
                self.message[key] = value
            return
        if self.finish_reason is not None and self._is_late(key):
            self.late.append(str(value))
        elif key == "content":
            yield from self._add_content(value)
        elif key in _TEXT_FIELDS:
            self.message[key] = (self.message.get(key) or "") + _a_text(value, key)
            if key not in THINKING_FIELDS or key == self.origin:
                kind = "text" if key == "refusal" else "whole" if key == "reasoning_opaque" else "thinking"
                yield Piece((key, 0), kind, value)  # type: ignore[arg-type]
        elif key == "tool_calls":
            for call in _objects(value, key):
                yield self._add_call(call)
        elif key == "function_call":
            function = _with_text(value, key)
            self.message[key] = _merged_call(self.message.get(key) or {}, function)
            yield Piece((key, 0), "call", function.get("arguments") or "")
        elif key == "reasoning_details":
            for detail in _objects(value, key):
                yield from self._add_detail(detail)
        else:
            self.message[key] = _merged_value(key, self.message.get(key), value)

    def _is_late(self, key: str) -> bool:
        """Text after the end is late. Another call is not: Together ends each of several calls by itself."""
        return key in ("content", *_TEXT_FIELDS) or (key in _CALLS and self.finish_reason not in _CALLS)

    def _add_content(self, value: Any) -> Iterator[Piece]:
        known = self.message.get("content")
        if isinstance(value, str) and not isinstance(known, list):
            self.message["content"] = (known or "") + value
            yield Piece(("content", 0), "text", value)
            return
        parts = known if isinstance(known, list) else [{"type": "text", "text": known}] if known else []
        self.message["content"] = parts
        for part in _objects([{"type": "text", "text": value}] if isinstance(value, str) else value, "content"):
            yield _add_part(parts, part)

    def _add_call(self, delta: dict[str, Any]) -> Piece:
        function: dict[str, Any] | None = None
        if delta.get("function") is not None:
            function = _with_text(delta["function"], "tool_calls")
            delta = {**delta, "function": function}
        calls = self.message["tool_calls"] = self.message.get("tool_calls") or []
        at = self._position(delta, calls)
        if at == len(calls):
            if not delta.get("id") and function is not None and not function.get("name"):
                raise FormatError(f"a fragment of call {delta.get('index')}, which has not begun", where="tool_calls")
            index = delta.get("index")
            calls.append({})
            self._call_keys.append(index if type(index) is int else None)
        calls[at] = _merged_call(calls[at], {key: value for key, value in delta.items() if key != "index"})
        kind: Literal["call", "whole"] = "call" if isinstance(calls[at].get("function"), dict) else "whole"
        return Piece(("tool_calls", at), kind, (function or {}).get("arguments") or "")

    def _position(self, delta: dict[str, Any], calls: list[dict[str, Any]]) -> int:
        """Which call a delta belongs to: by index, or by id where there is no index; the number of calls for a new one.

        Some vendors give every call of a chunk the index 0, so another id with another name begins another call, once
        the call before it is complete. Another id alone does not: some give every fragment a new one.
        """
        index, call_id = delta.get("index"), delta.get("id")
        if type(index) is int:
            known = [at for at, key in enumerate(self._call_keys) if key == index]
            if not known:
                return len(calls)
            return len(calls) if _begins_another(calls[known[-1]], delta) else known[-1]
        if call_id:
            same = [at for at, call in enumerate(calls) if call.get("id") == call_id]
            return same[-1] if same else len(calls)
        if calls and not _begins_another({**calls[-1], "id": ""}, {**delta, "id": "new"}):
            return len(calls) - 1
        return len(calls)

    def _add_detail(self, detail: dict[str, Any]) -> Iterator[Piece]:
        details = self.message["reasoning_details"] = self.message.get("reasoning_details") or []
        field = _DETAIL_TEXTS.get(str(detail.get("type")))
        at = _same_detail(details, detail) if field else None
        if at is None:
            at = len(details)
            details.append({})
        known = details[at]
        text = detail_text(detail)
        details[at] = {
            **known,
            **{key: value for key, value in detail.items() if value is not None or key not in known},
        }
        if field and text:
            details[at][field] = detail_text(known) + text
        elif field and field in known:
            details[at][field] = known[field]
        if field and self.origin in (None, "reasoning_details"):
            yield Piece(("reasoning_details", at), "thinking", text)
        else:
            yield Piece(("reasoning_details", at), "whole", "")


def _objects(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise FormatError("a list of objects belongs here", where=where)
    return value


def _a_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"a text belongs here, not {type(value).__name__}", where=where)
    return value


def _with_text(function: Any, where: str) -> dict[str, Any]:
    """A function whose arguments are a text: some vendors send the object itself, in one piece."""
    made = dict(_objects([function], where)[0])
    if isinstance(made.get("arguments"), dict):
        made["arguments"] = msgspec.json.encode(made["arguments"]).decode()
    if made.get("arguments") is not None:
        _a_text(made["arguments"], f"{where}.arguments")
    return made


def _same_detail(details: list[dict[str, Any]], detail: dict[str, Any]) -> int | None:
    """The detail that a delta goes on with: of the same type, and of the same index or the last one."""
    kind, index = detail.get("type"), detail.get("index")
    start = max(len(details) - 1, 0) if index is None else 0
    same = (known.get("type") == kind and known.get("index") == index for known in details[start:])
    return next((at for at, is_same in enumerate(same, start) if is_same), None)


def _add_part(parts: list[dict[str, Any]], part: dict[str, Any]) -> Piece:
    last = parts[-1] if parts else {}
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        if last.get("type") != "text" or not isinstance(last.get("text"), str):
            parts.append({**part, "text": ""})
        parts[-1] = {**parts[-1], **part, "text": parts[-1]["text"] + part["text"]}
        return Piece(("content", len(parts) - 1), "text", part["text"])
    texts = thinking_texts(part)
    if kind == "thinking" and texts is not None:
        if last.get("type") != "thinking" or thinking_texts(last) is None:
            parts.append({**part, "thinking": [{"type": "text", "text": ""}]})
        words = "".join(thinking_texts(parts[-1]) or ()) + "".join(texts)
        parts[-1] = {**parts[-1], **part, "thinking": [{"type": "text", "text": words}]}
        return Piece(("content", len(parts) - 1), "thinking", "".join(texts))
    parts.append(part)
    return Piece(("content", len(parts) - 1), "whole", "")


def thinking_texts(part: dict[str, Any]) -> list[str] | None:
    """The words of one of Mistral's thinking parts; ``None`` if it holds anything else."""
    items = part.get("thinking")
    if not isinstance(items, list):
        return None
    plain = all(isinstance(item, dict) and set(item) == {"type", "text"} and item["type"] == "text" for item in items)
    return [item["text"] for item in items] if plain and all(isinstance(item["text"], str) for item in items) else None


def _begins_another(call: dict[str, Any], delta: dict[str, Any]) -> bool:
    function, known = delta.get("function"), call.get("function")
    if not isinstance(function, dict) or not isinstance(known, dict):
        return False
    if not delta.get("id") or delta["id"] == call.get("id") or not function.get("name"):
        return False
    try:
        return isinstance(read_json(known.get("arguments") or "", OWN), dict)
    except JsonError:
        return False


def _merged_call(known: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    """Arguments grow; an id or a name that is said again, or empty, changes nothing."""
    made = dict(known)
    for key, value in delta.items():
        if isinstance(value, dict):
            inner = made.get(key)
            made[key] = _merged_call(inner if isinstance(inner, dict) else {}, value)
        elif key in ("arguments", "input") and isinstance(value, str):
            made[key] = value if not isinstance(made.get(key), str) else made[key] + value
        elif not made.get(key):
            made[key] = value
    return made


def _merged_value(key: str, known: Any, value: Any) -> Any:
    """What nobody here understands: lists grow, the items of one index are the same item, and the last word counts."""
    if isinstance(known, list) and isinstance(value, list):
        made = list(known)
        for item in value:
            index = item.get("index") if isinstance(item, dict) else None
            same = [at for at, old in enumerate(made) if index is not None and old.get("index") == index]
            if same:
                made[same[0]] = {**made[same[0]], **item}
            else:
                made.append(item)
        return made
    if key == "audio" and isinstance(known, dict) and isinstance(value, dict):
        texts = {name: (known.get(name) or "") + (value.get(name) or "") for name in ("data", "transcript")}
        return {**known, **value, **{name: text for name, text in texts.items() if name in known or name in value}}
    return value


def _merged_logprobs(known: Any, value: Any) -> Any:
    if not isinstance(known, dict) or not isinstance(value, dict):
        return known if value is None else value
    made = dict(known)
    for key, items in value.items():
        if isinstance(items, list):
            made[key] = [*(made.get(key) or ()), *items]
        elif key not in made:
            made[key] = items
    return made


# --- writing ---------------------------------------------------------------------------------------------------------


def chunks_from(wire: dict[str, Any], *, finished: bool = True) -> Iterator[dict[str, Any]]:
    """The chunks of a completion: the role first, then the text and the calls, the reason and last what it consumed."""
    base: dict[str, Any] = {key: wire[key] for key in _REPEATED if key in wire}
    base["object"] = "chat.completion.chunk"
    once = {key: value for key, value in wire.items() if key not in (*_REPEATED, "object", "choices", "usage")}
    for choice in wire["choices"]:
        index = choice.get("index", 0)
        for delta in _deltas(choice.get("message") or {}):
            yield {**base, **once, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
            once = {}
        if finished:
            rest = {key: value for key, value in choice.items() if key not in ("index", "message")}
            rest["finish_reason"] = rest.get("finish_reason") or (None if index else "stop")  # without one it looks cut
            yield {**base, "choices": [{"index": index, "delta": {}, **rest}]}
    if wire.get("usage") is not None or once:
        usage = {"usage": wire["usage"]} if wire.get("usage") is not None else {}
        yield {**base, **once, "choices": [], **usage}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    grows = [key for key in (*_TEXT_FIELDS, "content", *_CALLS, "reasoning_details") if message.get(key)]
    first = {key: value for key, value in message.items() if key not in grows}
    if isinstance(message.get("content"), str):
        first["content"] = ""
    yield first
    for detail in message["reasoning_details"] if "reasoning_details" in grows else ():
        yield {"reasoning_details": [detail]}
    for key in _TEXT_FIELDS:
        if key in grows:
            yield {key: message[key]}
    if "content" in grows:
        content = message["content"]
        yield from ({"content": [part]} for part in content) if isinstance(content, list) else ({"content": content},)
    if "function_call" in grows:
        yield {"function_call": message["function_call"]}
    for index, call in enumerate(message["tool_calls"] if "tool_calls" in grows else ()):
        yield from _call_deltas(index, call)


def _call_deltas(index: int, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        yield {"tool_calls": [{**call, "index": index}]}
        return
    yield {"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]}
    if arguments:
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
