"""Writing a stream: events come in, and the bytes that this API would have sent go out.

The one rule: a message that did not end properly is never written as one that did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dragoman.dialects.openai_responses.blocks import NAME, part_text, read_reasoning
from dragoman.dialects.openai_responses.reply import write_reply
from dragoman.dialects.parts.framing import sse_frame
from dragoman.event import (
    StreamEvent,
    fold,
)
from dragoman.exchange import (
    Reply,
)


class StreamWriter:
    """Events in, bytes out, in the order that the official SDKs expect: one item after the other."""

    def __init__(self, framing: str | None = None) -> None:
        self._events: list[StreamEvent] = []
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the response has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        events = _written_stream(fold(self._events))
        frames = [sse_frame({**wire, "sequence_number": number}, wire["type"]) for number, wire in enumerate(events)]
        return b"".join([*frames, b"data: [DONE]\n\n"])


def _written_stream(reply: Reply) -> Iterator[dict[str, Any]]:
    wire = write_reply(reply).wire
    begun = {**wire, "status": "in_progress", "output": [], "usage": None, "error": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for place, item in enumerate(wire["output"]):
        yield from _written_stream_item(place, item)
    status = wire.get("status")
    end = status if status in ("incomplete", "failed") else "completed"
    yield {"type": f"response.{end}", "response": wire}


def _written_stream_item(place: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    about = {"item_id": item.get("id") or item.get("call_id") or "", "output_index": place}
    begun = {**item, "status": "in_progress"} if "status" in item else dict(item)
    pieces: list[dict[str, Any]] = []
    match item:
        case {"type": "function_call", "arguments": str(text)}:
            begun["arguments"] = ""
            pieces = [
                {"type": "response.function_call_arguments.delta", **about, "delta": text},
                {"type": "response.function_call_arguments.done", **about, "arguments": text},
            ]
        case {"type": "reasoning"} if read_reasoning(item) is not None:
            begun["summary"] = []
            for index, part in enumerate(item.get("summary") or []):
                pieces.extend(_written_summary({**about, "summary_index": index}, part))
            for index, part in enumerate(item.get("content") or []):
                where = {**about, "content_index": index}
                pieces.append({"type": "response.reasoning_text.delta", **where, "delta": part["text"]})
                pieces.append({"type": "response.reasoning_text.done", **where, "text": part["text"]})
            if "content" in begun:
                begun["content"] = []
        case {"role": "assistant", "content": list(parts)}:
            begun["content"] = []
            for index, part in enumerate(parts):
                pieces.extend(_written_stream_part({**about, "content_index": index}, part))
    yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    yield from pieces
    yield {"type": "response.output_item.done", "output_index": place, "item": item}


def _written_summary(about: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "response.reasoning_summary_part.added", **about, "part": {**part, "text": ""}}
    yield {"type": "response.reasoning_summary_text.delta", **about, "delta": part["text"]}
    yield {"type": "response.reasoning_summary_text.done", **about, "text": part["text"]}
    yield {"type": "response.reasoning_summary_part.done", **about, "part": part}


def _written_stream_part(about: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = part_text(part)
    if text is None:
        return
    is_refusal = part.get("type") == "refusal"
    name, key = ("refusal", "refusal") if is_refusal else ("output_text", "text")
    extra: dict[str, Any] = {} if is_refusal else {"logprobs": []}
    empty = {**part, key: ""}
    yield {
        "type": "response.content_part.added",
        **about,
        "part": empty if is_refusal else {**empty, "annotations": []},
    }
    yield {"type": f"response.{name}.delta", **about, "delta": text, **extra}
    yield {"type": f"response.{name}.done", **about, key: text, **extra}
    yield {"type": "response.content_part.done", **about, "part": part}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
