"""Complete the responses of servers that implement a part of the Responses API. Pure.

    completer = ResponseCompleter(make_echo, clock)
    completer.complete_body(body)          a whole response
    completer.complete_frame(frame)        a frame of a stream

A response without ``tools`` and ``tool_choice``, which the API always had, gets all fields that its clients rely on:
those that repeat the request, the details of the usage, and in events the positions of items and parts. What the
server sent stays as it is. Every other response passes unchanged, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.dialects.openai_responses.reply import complete_item, complete_part, default_reply
from dragoman.exchange import Reply, StopReason
from dragoman.jsontext import DECODE_ERRORS
from dragoman.wire.frames import sse_frame

Wire = dict[str, Any]
_DEFAULT: Final = {**default_reply(Reply(stop_reason=StopReason.END_TURN)), "output": [], "completed_at": None}
_DETAILS: Final = {
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


class ResponseCompleter:
    """Completes one response. ``make_echo`` returns the fields that a response repeats from its request."""

    def __init__(self, make_echo: Callable[[], Wire], clock: Callable[[], datetime]) -> None:
        self._make_echo = make_echo
        self._clock = clock
        self._echo: Wire = {}
        self._is_sparse: bool | None = None  # none: nothing of the response has arrived
        self._frames = 0
        self._indexes: dict[str, int] = {}  # of items, by their ids
        self._item_id = ""  # of the last item
        self._parts: dict[str, int] = {}  # the last part, by the id of its item

    def complete_body(self, body: bytes) -> bytes:
        """Return a whole response with all fields."""
        response = _decode(body)
        if response is None or not self._has_gaps(response):
            return body
        return msgspec.json.encode(self._complete_response(response))

    def complete_frame(self, frame: bytes) -> bytes:
        """Return a frame of a stream with all fields of its event."""
        if self._is_sparse is False:
            return frame
        data = b"".join(line[5:].strip() for line in frame.splitlines() if line.startswith(b"data:"))
        event = _decode(data)
        if event is None or not self._has_gaps(event.get("response")):
            return frame
        return sse_frame(self._complete_event(event), event.get("type"))

    def _has_gaps(self, response: Any) -> bool:
        if self._is_sparse is None:
            fields = response if isinstance(response, dict) else {}
            is_response = fields.get("object") == "response"
            self._is_sparse = is_response and fields.get("tools") is fields.get("tool_choice") is None
            self._echo = self._make_echo() if self._is_sparse else {}
        return self._is_sparse

    # --- responses ---------------------------------------------------------------------------------------------------

    def _complete_response(self, response: Wire) -> Wire:
        now = int(self._clock().timestamp())
        sent = {name: value for name, value in response.items() if value is not None}
        wire = {**_DEFAULT, "created_at": now, **self._echo, **sent}
        wire["output"] = [self._complete_item(place, item) for place, item in enumerate(wire["output"])]
        if wire["status"] == "completed" and wire["completed_at"] is None:
            wire["completed_at"] = now
        if isinstance(wire["usage"], dict):
            wire["usage"] = _complete_usage(wire["usage"])
        return wire

    def _complete_item(self, place: int, item: Any, status: str = "completed") -> Any:
        if not isinstance(item, dict):
            return item
        missing: Wire = {"summary": []} if item.get("type") == "reasoning" else {}
        if item.get("type") in ("message", "function_call"):
            missing["status"] = status
        return complete_item(place, {**missing, **item})

    # --- events ------------------------------------------------------------------------------------------------------

    def _complete_event(self, event: Wire) -> Wire:
        position: Wire = {"sequence_number": self._frames}
        self._frames += 1
        kind = event.get("type")
        if isinstance(event.get("response"), dict):
            event = {**event, "response": self._complete_response(event["response"])}
        elif isinstance(item := event.get("item"), dict):
            position["output_index"] = place = self._place_item(item, event)
            status = "in_progress" if kind == "response.output_item.added" else "completed"
            event = {**event, "item": self._complete_item(place, item, status)}
        elif "delta" in event or "part" in event or "item_id" in event:
            position |= self._place_part(event)
            if isinstance(event.get("part"), dict):
                event = {**event, "part": complete_part(event["part"])}
        return {"type": kind, **position, **event}

    def _place_item(self, item: Wire, event: Wire) -> int:
        """Return the index of an item, which is a new one if its id is."""
        self._item_id = str(item.get("id", ""))
        return self._indexes.setdefault(self._item_id, event.get("output_index", len(self._indexes)))

    def _place_part(self, event: Wire) -> Wire:
        """Return the item of an event and the place of its part."""
        item_id = str(event.get("item_id", self._item_id))
        kind = str(event.get("type"))
        if kind.endswith("_part.added"):
            self._parts[item_id] = self._parts.get(item_id, -1) + 1
        position: Wire = {"item_id": item_id, "output_index": self._indexes.get(item_id, 0)}
        if "function_call" not in kind:
            name = "summary_index" if "reasoning_summary" in kind else "content_index"
            position[name] = self._parts.get(item_id, 0)
        return position


def _decode(data: bytes) -> Wire | None:
    """Return a JSON object; none for anything else, such as the end of a stream."""
    try:
        wire = msgspec.json.decode(data)
    except DECODE_ERRORS:
        return None
    return wire if isinstance(wire, dict) else None


def _complete_usage(usage: Wire) -> Wire:
    total = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    details = {name: {**default, **(usage.get(name) or {})} for name, default in _DETAILS.items()}
    return {"input_tokens": 0, "output_tokens": 0, "total_tokens": total, **usage, **details}
