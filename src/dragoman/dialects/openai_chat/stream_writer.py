"""Streams of Chat Completions: events in, bytes out, each event as soon as the wire allows it.

Every chunk repeats the id and the model, so the bytes around the text of a block are made once. The last chunks contain
what is known at the end only: extra fields and the usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dragoman.dialects.openai_chat.blocks import NAME, default_message, place_of, unsupported_reason
from dragoman.dialects.openai_chat.error import write_error
from dragoman.dialects.openai_chat.reply import DETAILS, default_choice, default_reply, write_alternative
from dragoman.dialects.openai_chat.support import SUPPORT
from dragoman.event import (
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from dragoman.exchange import Reply, StopReason
from dragoman.message import (
    Alternative,
    ContentBlock,
    ProviderRaw,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenLogprob,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.annotations import write_url_citation
from dragoman.wire.frames import json_text, sse_frame
from dragoman.wire.residue import apply_diff, get_notes
from dragoman.wire.stream_writer import BaseStreamWriter

_REPEATED_KEYS: Final = ("id", "created", "model", "system_fingerprint", "service_tier", "provider")
_TEXT_MARK: Final = "\0words\0"  # marks the position of the text in the template bytes
_TEXT_MARK_JSON: Final = json_text(_TEXT_MARK)


class _Block:
    """A started block: its first delta, and the bytes around its text."""

    def __init__(self, start: dict[str, Any], template: list[bytes], raw: ProviderRaw | None) -> None:
        self.start = start
        self.template = template
        self.raw = raw
        self.call: ToolUseBlock | None = None
        self.number = 0  # number of the call


class StreamWriter(BaseStreamWriter):
    """Events in, bytes out: chunks as the official SDKs expect them, and ``[DONE]``."""

    support = SUPPORT
    details = DETAILS

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing)
        self._model: str | None = None
        self._is_native = False  # whether the events were read in this dialect
        self._start_fields: dict[str, Any] = {}  # fields around the choices in the first chunk
        self._base: dict[str, Any] = {}  # fields that every chunk repeats
        self._message: dict[str, Any] = {}  # fields of the message beside its blocks
        self._wire_blocks: dict[int, _Block] = {}
        self._calls = 0
        self._has_legacy_call = False
        self._has_content = False
        self._has_parts = False  # whether the content is a list
        self._length = 0  # characters of all texts so far
        self._starts: dict[int, int] = {}  # offset of each text
        self._annotations: list[dict[str, Any]] = []
        self._logprobs: list[TokenLogprob] = []
        self._alternatives: list[Alternative] = []

    # --- the message

    def write_start(self, start: MessageStart) -> bytes:
        """Write the first chunk: id, model and role."""
        notes = get_notes(start.provider_raw, NAME)
        self._is_native = bool(notes)
        default = default_reply(Reply(stop_reason=StopReason.END_TURN, model=start.model))
        fields = {**apply_diff(default, notes.get("residue")), **self.identity}
        fields.pop("usage", None)
        self._model, self._start_fields = start.model, fields
        self._base = {key: fields[key] for key in _REPEATED_KEYS if key in fields}
        self._base["object"] = "chat.completion.chunk"
        first_fields = {key: value for key, value in fields.items() if key not in self._base}
        self._message = _message_fields(notes.get("message", {}))
        return self._write_chunk(self._message, first_fields)

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the finish reason and late fields, other choices, the usage, and ``[DONE]``."""
        notes = get_notes(end.provider_raw, NAME)
        content: list[ContentBlock] = []
        if self._has_legacy_call:
            content.append(TextBlock("", {"dialect": NAME, "at": "function_call"}))
        if self._logprobs:
            content.append(TextBlock("", token_logprobs=tuple(self._logprobs)))
        reply = Reply(
            content=tuple(content),
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=usage,
            model=self._model,
        )
        default = default_choice(reply)
        choice = apply_diff(default, notes.get("choice"))
        choice.pop("message", None)
        choice.update({"index": 0, "delta": self._rest_of_message(notes.get("message", {}))})
        if self._annotations:
            residue = get_notes(notes.get("message"), NAME).get("residue")
            choice["delta"]["annotations"] = apply_diff({"annotations": self._annotations}, residue).get("annotations")
        # Without a finish reason, most clients see a cut stream; null is that of a stream that had none.
        if end.stop_reason is not StopReason.UNKNOWN or choice.get("finish_reason", "") is not None:
            choice["finish_reason"] = choice.get("finish_reason") or default["finish_reason"]
        alternatives = [write_alternative(each, at, []) for at, each in enumerate(self._alternatives, 1)]
        others = [chunk for other in (*notes.get("others", ()), *alternatives) for chunk in _choice_chunks(other)]
        out = b"".join(sse_frame({**self._base, "choices": [chunk]}) for chunk in (choice, *others))
        reply_wire = {**apply_diff(default_reply(reply), notes.get("residue")), **self.identity}
        rest = {
            key: value
            for key, value in reply_wire.items()
            if key != "object" and self._start_fields.get(key, _TEXT_MARK) != value
        }
        return out + (sse_frame({**self._base, **rest, "choices": []}) if rest else b"") + b"data: [DONE]\n\n"

    def write_failure(self, error: StreamError) -> bytes:
        """Write the usage so far and an error."""
        out = b""
        if self.usage is not None:
            usage = default_reply(Reply(stop_reason=StopReason.END_TURN, usage=self.usage))["usage"]
            out = sse_frame({**self._base, "choices": [], "usage": usage})
        return out + sse_frame(write_error(error.fault).wire)

    def _write_chunk(self, delta: dict[str, Any], first_fields: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return sse_frame({**self._base, **(first_fields or {}), "choices": [choice]})

    def _rest_of_message(self, notes: ProviderRaw) -> dict[str, Any]:
        """Return the fields of the message that the first chunk did not contain."""
        message = _message_fields(notes)
        rest = {key: value for key, value in message.items() if self._message.get(key, _TEXT_MARK) != value}
        if self._has_content or ("content" in self._message and message.get("content") is None):
            rest.pop("content", None)
        audio = notes.get("residue", {}).get("in", {}).get("audio", {}).get("set")
        if audio:
            rest["audio"] = audio
        if self._has_content and not self._has_parts and notes.get("form") == "list":
            rest["content"] = []  # the text belongs to a part
        return rest

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes that the wire has for one event."""
        if type(event) is TextDelta:
            self._length += len(event.text)
        return super().feed(event)

    def write_alternative(self, alternative: Alternative) -> bytes:
        """Keep a further answer; it is written after the first one."""
        self._alternatives.append(alternative)
        return b""

    # --- blocks

    def find_loss(self, block: ContentBlock) -> str | None:
        """Return why the wire cannot carry a block; ``None`` if it can. Media needs a provider that sends it."""
        return unsupported_reason(block, Role.ASSISTANT, is_native=self._is_native)

    def write_text_delta(self, delta: TextDelta, text: str) -> bytes:
        """Write more text; citations and probabilities are in the last chunk."""
        start = self._starts.setdefault(delta.index, self._length - len(delta.text))
        self._logprobs.extend(delta.token_logprobs)
        for citation in delta.citations:
            fields = write_url_citation(citation, " " * (self._length - start))
            place = {key: fields[key] + start for key in ("start_index", "end_index")}
            self._annotations.append({"type": "url_citation", "url_citation": {**fields, **place}})
        return self.write_text(delta.index, text, delta.provider_raw)

    def _make_delta(self, block: ContentBlock) -> dict[str, Any]:
        """Return the delta of a block or of a part of one."""
        notes = get_notes(getattr(block, "provider_raw", None), NAME)
        at, form = notes.get("at"), {}
        if "beside" in notes and at == "reasoning_details":
            form = {"shown": notes["beside"]}
        elif "beside" in notes:
            block = block.replace(provider_raw={**notes, "also": notes["beside"]})
        elif at == "content" and isinstance(block, TextBlock):
            form = {"form": "list"}
        wire = default_message(Role.ASSISTANT, (block,), form, reply=True)
        del wire["role"]
        if wire.get("content", "") is None:
            del wire["content"]
        if "tool_calls" in wire:  # in a stream the index is the number of the call
            wire["tool_calls"] = [{key: call[key] for key in call if key != "index"} for call in wire["tool_calls"]]
        return wire

    def _track_content(self, delta: dict[str, Any]) -> None:
        self._has_content = self._has_content or "content" in delta
        self._has_parts = self._has_parts or isinstance(delta.get("content"), list)

    def _make_template(self, delta: dict[str, Any]) -> list[bytes]:
        return self._write_chunk(delta).split(_TEXT_MARK_JSON)

    def write_text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write more text."""
        if not text:
            return b""
        block = self._wire_blocks.get(index)
        if block is None:
            start = self._make_delta(TextBlock(_TEXT_MARK, raw))
            block = self._wire_blocks[index] = _Block(start, self._make_template(start), raw)
            self._track_content(start)
        return self._write_more(TextDelta, index, text, block)

    def _write_more(self, kind: type, index: int, text: str, block: _Block) -> bytes:
        if len(block.template) == 2:
            self.set_text_template(kind, index, block.raw, (block.template[0], block.template[1]))
        return json_text(text).join(block.template)

    def write_thinking_delta(self, delta: ThinkingDelta, text: str) -> bytes:
        """Write more reasoning of this dialect; other reasoning is never written."""
        index, signature, raw = delta.index, delta.signature, delta.provider_raw
        block = self._wire_blocks.get(index)
        if block is None:
            opening = ThinkingBlock(_TEXT_MARK, signature, raw)
            if self.find_loss(opening) is not None:
                return b""
            start = self._make_delta(opening)
            continuation = self._make_delta(ThinkingBlock(_TEXT_MARK, None, raw))
            self._wire_blocks[index] = _Block(start, self._make_template(continuation), raw)
            self._track_content(start)
            return json_text(text).join(self._make_template(start))
        out = self._write_more(ThinkingDelta, index, text, block) if text else b""
        if signature is None and raw is None:
            return out
        block.raw = {**(block.raw or {}), **(raw or {})}
        update = self._make_delta(ThinkingBlock(_TEXT_MARK, signature, block.raw))
        has_more = "reasoning_details" in update or isinstance(update.get("content"), list)
        if update == block.start or not has_more:
            return out
        block.start = update
        return out + b'""'.join(self._make_template(update))

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write the start of a call, without its arguments."""
        call = ToolUseBlock(start.id, start.name, {}, start.provider_raw)
        delta = _drop_arguments(self._make_delta(call))
        continuation: dict[str, Any] = {"function_call": {"arguments": _TEXT_MARK}}
        if "tool_calls" in delta:
            delta["tool_calls"][0] = {"index": self._calls, **delta["tool_calls"][0]}
            continuation = {"tool_calls": [{"index": self._calls, "function": {"arguments": _TEXT_MARK}}]}
        else:
            self._has_legacy_call = True
        block = self._wire_blocks[start.index] = _Block(delta, self._make_template(continuation), start.provider_raw)
        block.call, block.number = call, self._calls
        self._calls += "tool_calls" in delta
        return self._write_chunk(delta)

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write more arguments of a call."""
        return json_text(text).join(self._wire_blocks[index].template) if text else b""

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the fields of a call that its start did not contain; the wire has no end of a call."""
        block = self._wire_blocks[end.index]
        if block.call is None or end.provider_raw in (None, block.raw):
            return b""
        update = _drop_arguments(self._make_delta(block.call.replace(provider_raw=end.provider_raw)))
        if "function_call" in update:
            rest = _new_fields(update["function_call"], block.start["function_call"])
            return self._write_chunk({"function_call": rest}) if rest else b""
        rest = _new_fields(update["tool_calls"][0], block.start["tool_calls"][0])
        return self._write_chunk({"tool_calls": [{"index": block.number, **rest}]}) if rest else b""

    def write_block(self, index: int, block: ContentBlock) -> bytes:  # noqa: ARG002  nothing follows it
        """Write a whole block."""
        if self.find_loss(block) is not None:
            return b""
        delta = self._make_delta(block)
        if "tool_calls" in delta:
            delta["tool_calls"] = [{**call, "index": self._calls} for call in delta["tool_calls"]]
            self._calls += 1
        self._has_legacy_call = self._has_legacy_call or place_of(block) == "function_call"
        self._track_content(delta)
        return self._write_chunk(delta)


def _message_fields(notes: ProviderRaw) -> dict[str, Any]:
    """Return the fields of a message beside its blocks, from its notes."""
    fields: dict[str, Any] = apply_diff(
        default_message(Role.ASSISTANT, (), notes, reply=True), get_notes(notes, NAME).get("residue")
    )
    return fields


def _drop_arguments(delta: dict[str, Any]) -> dict[str, Any]:
    """Return the start of a call; absent arguments stay absent."""
    if "function_call" in delta:
        return {"function_call": _drop_function_arguments(delta["function_call"])}
    (call,) = delta["tool_calls"]
    return {"tool_calls": [{**call, "function": _drop_function_arguments(call["function"])}]}


def _drop_function_arguments(function: dict[str, Any]) -> dict[str, Any]:
    return function if function.get("arguments") is None else {**function, "arguments": ""}


def _new_fields(fields: dict[str, Any], start: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the start did not contain."""
    missing = {key: value for key, value in fields.items() if key != "function" and start.get(key, _TEXT_MARK) != value}
    inside = _new_fields(fields["function"], start["function"]) if "function" in fields else {}
    return {**missing, "function": inside} if inside else missing


def _choice_chunks(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a choice that is not the reply: its message, then its end."""
    index, message = choice.get("index", 0), dict(choice.get("message") or {})
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [{**call, "index": at} for at, call in enumerate(calls)]
    yield {"index": index, "delta": message, "finish_reason": None}
    rest = {key: value for key, value in choice.items() if key not in ("index", "message")}
    yield {"index": index, "delta": {}, "finish_reason": None, **rest}


stream_writer = StreamWriter
