"""Streams of version 1: lines of JSON, each an event of version 2 or a part of one.

A call arrives whole in ``tool-calls-generation``; ``tool-calls-chunk`` has parts of the same calls before. The last
event, ``stream-end``, has the whole reply.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from dragoman.dialects.cohere_v1.body import DIALECT, NAME, write_reply
from dragoman.dialects.cohere_v1.tools import CallIds, call_to_base
from dragoman.jsontext import expect_list, expect_object
from dragoman.wire.derivation import DerivedStreamReader, DerivedStreamWriter, Wire
from dragoman.wire.frames import json_line, select_framing, sse_frame

_TEXT_INDEX: Final = 0


class StreamReader(DerivedStreamReader):
    """Convert lines to events. A call is emitted when it is whole."""

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(DIALECT, NAME, framing or "ndjson", "sse", quirks)
        self._has_text = False
        self._call_count = 0
        self._ids = CallIds()
        self._body: Wire | None = None

    def to_base_events(self, wire: Wire, _name: str | None) -> Iterable[tuple[Wire, str | None]]:
        """Return the events of version 2 for one line."""
        for event in self._read_line(wire):
            yield event, event.get("type")

    def whole_body(self) -> Wire | None:
        """Return the reply in the last line."""
        return self._body

    def _read_line(self, wire: Wire) -> Iterable[Wire]:
        match wire.get("event_type"):
            case "stream-start":
                yield {"type": "message-start", "id": wire.get("generation_id"), "delta": {"message": _START}}
            case "text-generation":
                yield from self._read_text(wire.get("text"))
            case "tool-calls-generation":
                for call in expect_list(wire.get("tool_calls") or [], "tool_calls"):
                    yield from self._read_call(expect_object(call, "tool_calls"))
            case "stream-end":
                yield from self._read_end(wire)
            case None if isinstance(wire.get("message"), str):
                yield {"type": "error", **wire}
            case _:
                return  # a search, a citation or a part of a call: the last line repeats them

    def _read_text(self, text: Any) -> Iterable[Wire]:
        if not isinstance(text, str):
            return
        if not self._has_text:
            self._has_text = True
            yield _delta("content-start", _TEXT_INDEX, {"content": {"type": "text", "text": ""}})
        yield _delta("content-delta", _TEXT_INDEX, {"content": {"text": text}})

    def _read_call(self, call: Wire) -> Iterable[Wire]:
        index, self._call_count = self._call_count, self._call_count + 1
        yield _delta("tool-call-start", index, {"tool_calls": call_to_base(call, self._ids.add(call))})
        yield {"type": "tool-call-end", "index": index}

    def _read_end(self, wire: Wire) -> Iterable[Wire]:
        response = wire.get("response")
        self._body = body = dict(response) if isinstance(response, dict) else {}
        if "finish_reason" in wire and "finish_reason" not in body:
            body["finish_reason"] = wire["finish_reason"]
        calls = expect_list(body.get("tool_calls") or [], "tool_calls")
        if not self._has_text and not calls:
            yield from self._read_text(body.get("text") or "")
        for call in calls[self._call_count :]:
            yield from self._read_call(expect_object(call, "tool_calls"))
        if self._has_text:
            yield {"type": "content-end", "index": _TEXT_INDEX}
        reason = wire.get("finish_reason")
        is_call = self._call_count and reason == "COMPLETE"
        usage = {"usage": body["meta"]} if isinstance(body.get("meta"), dict) else {}
        yield {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL" if is_call else reason, **usage}}


_START: Final[Wire] = {"role": "assistant", "content": []}


def _delta(kind: str, index: int, message: Wire) -> Wire:
    return {"type": kind, "index": index, "delta": {"message": message}}


class StreamWriter(DerivedStreamWriter):
    """Convert events to lines. Text is written immediately; calls and the whole reply are written at the end."""

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(DIALECT, "sse")
        self._is_sse = select_framing(NAME, framing, ("ndjson", "sse")) == "sse"

    def from_base_event(self, wire: Wire, _name: str | None) -> bytes:
        """Return the lines for one event of version 2."""
        match wire:
            case {"type": "message-start"}:
                return self._write({"event_type": "stream-start", "generation_id": wire.get("id")})
            case {"type": "content-delta", "delta": {"message": {"content": {"text": str(text)}}}}:
                return self._write({"event_type": "text-generation", "text": text})
            case {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": str(text)}}}:
                return self._write({"event_type": "text-generation", "text": text})
            case {"type": "message-end", "delta": {"error": str(message)}}:
                return self._write({"message": message})
            case {"type": "message-end"}:
                return self._write_end()
            case _:
                return b""

    def _write_end(self) -> bytes:
        body = write_reply(self.accumulator.reply()).wire
        calls = body.get("tool_calls")
        before = self._write({"event_type": "tool-calls-generation", "tool_calls": calls}) if calls else b""
        end = {"event_type": "stream-end", "finish_reason": body.get("finish_reason", "COMPLETE"), "response": body}
        return before + self._write(end, is_finished=True)

    def _write(self, wire: Wire, *, is_finished: bool = False) -> bytes:
        wire = {"is_finished": is_finished, **wire} if "event_type" in wire else wire
        return sse_frame(wire) if self._is_sse else json_line(wire) + b"\n"


stream_reader = StreamReader


stream_writer = StreamWriter
