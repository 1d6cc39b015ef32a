"""Streams of InvokeModelWithResponseStream: AWS frames, each with an event of the model family in base64.

The fields that Bedrock adds to events (``amazon-bedrock-…``) become fields of the reply.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from dragoman.dialects import bedrock_converse
from dragoman.dialects.bedrock_invoke.families import (
    CONVERSE_EVENTS,
    FAMILIES,
    NAME,
    family_from_notes,
    family_of_model,
    family_of_reply,
)
from dragoman.dialects.bedrock_invoke.text_families import TEXT_FAMILIES, TextFamily
from dragoman.event import MessageComplete, MessageStart, StreamEvent
from dragoman.exchange import Fault, Loss
from dragoman.message import ProviderRaw
from dragoman.wire.derivation import DerivedDialect, DerivedStreamReader, DerivedStreamWriter, Wire
from dragoman.wire.frames import Frame, FramingError, aws_frame, aws_frame_as_json, json_line, select_framing
from dragoman.wire.residue import get_notes

FRAMINGS: Final = ("aws-eventstream", "aws-eventstream-decoded", "ndjson")
_ADDED: Final = "amazon-bedrock-"
_TEXT: Final = {family.name: family for family in TEXT_FAMILIES}


def _inner_framing(dialect: DerivedDialect) -> str:
    return {"bedrock_converse": "ndjson", "cohere_v1": "ndjson"}.get(dialect.base.NAME, "sse")


class StreamReader(DerivedStreamReader):
    """Convert the bytes of a stream to events. The first event names the family."""

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(None, NAME, select_framing(NAME, framing, FRAMINGS), "sse", quirks)
        self._added: Wire = {}

    def unwrap(self, frame: Frame) -> bytes:
        """Return the event in a frame."""
        try:
            wire: Any = msgspec.json.decode(frame.data)
            wire = wire.get("chunk", wire)
            return base64.b64decode(wire["bytes"], validate=True) if isinstance(wire.get("bytes"), str) else frame.data
        except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
            return frame.data  # the caller reports it
        except (binascii.Error, ValueError):
            raise FramingError("an event is not base64", where="stream") from None

    def read_failure(self, frame: Frame) -> Fault | None:
        """Return the fault of an exception frame."""
        name = frame.event or ""
        headers = {"x-amzn-errortype": name[:1].upper() + name[1:]}
        return bedrock_converse.read_error(None, headers, frame.data).replace(provider=NAME)

    def to_base_events(self, wire: Wire, _name: str | None) -> Iterable[tuple[Wire, str | None]]:
        """Return the event of the family without the fields that Bedrock adds."""
        if self.dialect is None:
            dialect = family_of_reply(wire)
            self.start_inner(dialect, _inner_framing(dialect))
        self._added.update((key, value) for key, value in wire.items() if key.startswith(_ADDED))
        family = self.dialect.family if self.dialect is not None else None
        if family in _TEXT:
            yield _TEXT[family].chunk_to_base(wire), None
            return
        wire = {key: value for key, value in wire.items() if not key.startswith(_ADDED)}
        if family == "nova":
            wire = {key: wire[key] for key in sorted(wire, key=lambda key: key not in CONVERSE_EVENTS)}
        kind = wire.get("type")
        yield wire, kind if isinstance(kind, str) else None

    def _end_notes(self, dialect: DerivedDialect, raw: ProviderRaw | None) -> ProviderRaw:
        notes = super()._end_notes(dialect, raw)
        return {**notes, "outer": {"set": self._added}} if self._added else notes


class _FamilyWriter(DerivedStreamWriter):
    """Writes the events of one family. What Bedrock added is written with the last event."""

    def __init__(self, dialect: DerivedDialect, framing: str) -> None:
        super().__init__(dialect, _inner_framing(dialect))
        self._framing = framing
        self._text_family: TextFamily | None = _TEXT.get(dialect.family or "")
        self._added: Wire = {}

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        if isinstance(event, MessageComplete):
            outer = get_notes(event.provider_raw, NAME).get("outer", {})
            self._added = {key: value for key, value in outer.get("set", {}).items() if key.startswith(_ADDED)}
        return super().feed(event)

    def from_base_event(self, wire: Wire, _name: str | None) -> bytes:
        """Return the frame of an event."""
        if self._text_family is not None:
            return self._write_text_event(self._text_family, wire)
        if "error" in wire and self.dialect.family == "openai":
            return self._write_exception(wire)
        if wire.get("type") == "error" or any(key.endswith("Exception") for key in wire):
            return self._write_exception(wire)
        added, self._added = self._added, {}
        return self._write({**wire, **added})

    def _write_text_event(self, family: TextFamily, wire: Wire) -> bytes:
        choices = wire.get("choices")
        if not choices:
            return self._write_exception(wire) if "error" in wire else b""
        text, reason = choices[0].get("delta", {}).get("content"), choices[0].get("finish_reason")
        if not text and reason is None:
            return b""
        usage = self.accumulator.usage
        counts = None
        if usage is not None:
            prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
            counts = (prompt, usage.output_tokens)
        added, self._added = (self._added, {}) if reason is not None else ({}, self._added)
        return self._write({**family.chunk_from_base(text, reason, counts), **added})

    def _write_exception(self, wire: Wire) -> bytes:
        fault = self.accumulator.fault or Fault(code="stream_incomplete", message="the stream ended before the message")
        error = bedrock_converse.write_error(fault).wire
        name = str(error["__type"])
        name, wire = name[:1].lower() + name[1:], {"message": error["message"]}
        if self._framing == "ndjson":
            return json_line({name: wire}) + b"\n"
        write = aws_frame if self._framing == FRAMINGS[0] else aws_frame_as_json
        return write(wire, name, "exception")

    def _write(self, wire: Wire) -> bytes:
        if self._framing == "ndjson":
            return json_line(wire) + b"\n"
        payload = {"bytes": base64.b64encode(json_line(wire)).decode()}
        return (aws_frame if self._framing == FRAMINGS[0] else aws_frame_as_json)(payload, "chunk")


class StreamWriter:
    """Convert events to the bytes of a stream. The notes of the first event, or its model, name the family."""

    def __init__(self, framing: str | None = None) -> None:
        self._framing = select_framing(NAME, framing, FRAMINGS)
        self._writer: _FamilyWriter | None = None

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Losses of the events so far."""
        return self._writer.losses if self._writer is not None else ()

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        return self._writer_for(event).feed(event)

    def close(self) -> bytes:
        """Return the last bytes."""
        return self._writer_for(None).close()

    def _writer_for(self, event: StreamEvent | None) -> _FamilyWriter:
        if self._writer is None:
            dialect = FAMILIES["claude"]
            if isinstance(event, MessageStart):
                dialect = family_from_notes(event.provider_raw) or family_of_model(event.model)
            self._writer = _FamilyWriter(dialect, self._framing)
        return self._writer


stream_reader = StreamReader


stream_writer = StreamWriter
