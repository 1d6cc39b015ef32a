"""Streams of Chat Completions: events in, bytes out, each event as soon as the wire allows it.

Every chunk repeats who answers; the bytes around the words of a block are made once. What is only known at the end
(extra fields, what it has consumed) is said in the last chunks.

The one rule: only a message that was told to be complete is ended like one; everything else ends as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from dragoman.dialects.openai_chat.blocks import NAME, cannot_say, natural_message, place_of
from dragoman.dialects.openai_chat.error import write_error
from dragoman.dialects.openai_chat.reply import natural_choice, natural_reply
from dragoman.dialects.parts.faults import stream_error
from dragoman.dialects.parts.framing import json_text, sse_frame
from dragoman.dialects.parts.residue import notes_of, restored
from dragoman.event import (
    BlockComplete,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from dragoman.exchange import Reply, StopReason
from dragoman.message import (
    ContentBlock,
    ProviderRaw,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)

_REPEATED: Final = ("id", "created", "model", "system_fingerprint", "service_tier", "provider")
_GROWING: Final = ("reasoning_content", "reasoning", "reasoning_text", "refusal", "reasoning_opaque", "content")
_WORDS: Final = "\0words\0"  # in place of the words, while the bytes around them are made
_WORDS_BYTES: Final = json_text(_WORDS)
_DONE: Final = b"data: [DONE]\n\n"


class _Block:
    """A block that was begun: how it was written, and the bytes around its words."""

    def __init__(self, said: dict[str, Any], around: list[bytes], raw: ProviderRaw | None) -> None:
        self.said = said
        self.around = around
        self.raw = raw
        self.call: ToolUseBlock | None = None
        self.number = 0  # of a call


class StreamWriter:
    """Events in, bytes out: chunks as the official SDKs expect them, and ``[DONE]``."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        self._model: str | None = None
        self._said: dict[str, Any] | None = None  # what was said around the choices when it began
        self._base: dict[str, Any] = {}  # what of it every chunk repeats
        self._message: dict[str, Any] = {}  # what was said of the message beside its blocks
        self._blocks: dict[int, _Block] = {}
        self._calls = 0
        self._has_legacy_call = False
        self._has_content = False
        self._usage: TokenUsage | None = None
        self._end: MessageComplete | None = None
        self._over = False

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        if self._over:
            return b""
        try:
            if type(event) is TextDelta and event.text and event.provider_raw is None:
                block = self._blocks.get(event.index)
                if block is not None and self._end is None:
                    return json_text(event.text).join(block.around)
            return _WRITES[type(event)](self, event)
        except UnicodeEncodeError:
            return self._error(stream_error(NAME, "bad_event", "half of a character in a text"))

    def close(self) -> bytes:
        """The rest of the stream: its end if that was told, else an error."""
        if self._over:
            return b""
        if self._end is not None:
            return self._finish(self._end)
        return self._error(stream_error(NAME, "stream_incomplete", "the stream ended before the model did"))

    # --- the message

    def _begin(self, start: MessageStart) -> bytes:
        """The first chunk: who answers, and in which role."""
        if self._said is not None:
            return self._error(stream_error(NAME, "protocol_violation", "the message begins a second time"))
        notes = notes_of(start.provider_raw, NAME)
        natural = natural_reply(Reply(stop_reason=StopReason.END_TURN, model=start.model))
        said = restored(natural, notes.get("residue"))
        said.pop("usage", None)
        self._model, self._said = start.model, said
        self._base = {key: said[key] for key in _REPEATED if key in said}
        self._base["object"] = "chat.completion.chunk"
        once = {key: value for key, value in said.items() if key not in self._base}
        self._message = _beside_blocks(notes.get("message", {}))
        return self._chunk(self._message, once)

    def _begun(self) -> bytes:
        return b"" if self._said is not None else self._begin(MessageStart())

    def _chunk(self, delta: dict[str, Any], once: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return sse_frame({**self._base, **(once or {}), "choices": [choice]})

    def _update_usage(self, event: UsageUpdate) -> bytes:
        self._usage = event.usage
        return self._finish(self._end) if self._end is not None else b""

    def _complete(self, end: MessageComplete) -> bytes:
        """The reason, with what was not said of the message. What it has consumed may still come."""
        if self._end is not None:
            return b""
        if end.stop_reason is StopReason.ERROR:
            return self._error(stream_error(NAME, "unexplained_error", "the model ended as failed and did not say why"))
        self._end = end
        notes = notes_of(end.provider_raw, NAME)
        legacy = (TextBlock("", {"dialect": NAME, "at": "function_call"}),) if self._has_legacy_call else ()
        reply = Reply(content=legacy, stop_reason=end.stop_reason, stop_sequence=end.stop_sequence)
        choice = restored(natural_choice(reply), notes.get("choice"))
        choice.pop("message", None)
        choice.update({"index": 0, "delta": self._unsaid(notes.get("message", {}))})
        choice["finish_reason"] = choice.get("finish_reason") or "stop"  # without one it looks cut
        out = self._begun() + sse_frame({**self._base, "choices": [choice]})
        for other in notes.get("others", ()):
            out += b"".join(sse_frame({**self._base, "choices": [one]}) for one in _choice_chunks(other))
        return out if self._usage is None else out + self._finish(end)

    def _unsaid(self, notes: ProviderRaw) -> dict[str, Any]:
        """What stands in the message beside its blocks and was not said when it began."""
        whole = _beside_blocks(notes)
        delta = {}
        for key, value in whole.items():
            if key == "content":
                is_said = self._has_content or (
                    "content" in self._message and (value is None or value == self._message[key])
                )
            else:
                is_said = key in self._message and self._message[key] == value
            if not is_said:
                delta[key] = value
        return delta

    def _finish(self, end: MessageComplete) -> bytes:
        """The last chunk: what it has consumed, and what else was learnt about the answer."""
        self._over = True
        reply = Reply(stop_reason=end.stop_reason, usage=self._usage, model=self._model)
        whole = restored(natural_reply(reply), notes_of(end.provider_raw, NAME).get("residue"))
        said = self._said or {}
        unsaid = {key: value for key, value in whole.items() if key != "object" and said.get(key, _WORDS) != value}
        return (sse_frame({**self._base, **unsaid, "choices": []}) if unsaid else b"") + _DONE

    def _error(self, event: StreamError) -> bytes:
        """The end of a stream that is not complete. What it has consumed is said before it."""
        self._over = True
        out = b""
        if self._said is not None and self._usage is not None:
            usage = natural_reply(Reply(stop_reason=StopReason.END_TURN, usage=self._usage))["usage"]
            out = sse_frame({**self._base, "choices": [], "usage": usage})
        return out + sse_frame(write_error(event.fault).wire)

    # --- blocks

    def _delta_of(self, block: ContentBlock) -> dict[str, Any]:
        """The delta that says a block, or what there is of one."""
        notes = notes_of(getattr(block, "provider_raw", None), NAME)
        at, form = notes.get("at"), {}
        if "beside" in notes and at == "reasoning_details":
            form = {"shown": notes["beside"]}
        elif "beside" in notes:
            block = block.replace(provider_raw={**notes, "also": notes["beside"]})
        elif at == "content" and isinstance(block, TextBlock):
            form = {"form": "list"}
        wire = natural_message(Role.ASSISTANT, (block,), form, reply=True)
        del wire["role"]
        if wire.get("content", "") is None:
            del wire["content"]
        return wire

    def _around(self, delta: dict[str, Any]) -> list[bytes]:
        return self._chunk(delta).split(_WORDS_BYTES)

    def _text(self, delta: TextDelta) -> bytes:
        if not delta.text or self._end is not None:
            return b""
        block = self._blocks.get(delta.index)
        out = b""
        if block is None:
            out = self._begun()
            begin = self._delta_of(TextBlock(_WORDS, delta.provider_raw))
            block = self._blocks[delta.index] = _Block(begin, self._around(begin), delta.provider_raw)
            self._has_content = self._has_content or "content" in begin
        return out + json_text(delta.text).join(block.around)

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        """More reasoning, if it is this dialect's own; another's is never said."""
        block = self._blocks.get(delta.index)
        raw = delta.provider_raw
        if self._end is not None:
            return b""
        if block is None:
            whole = ThinkingBlock(_WORDS, delta.signature, raw)
            if cannot_say(whole, Role.ASSISTANT, is_own=True) is not None:
                return b""
            begin = self._delta_of(whole)
            out = self._begun() + json_text(delta.text).join(self._around(begin))
            goes_on = self._delta_of(ThinkingBlock(_WORDS, None, raw))
            self._blocks[delta.index] = _Block(begin, self._around(goes_on), raw)
            self._has_content = self._has_content or "content" in begin
            return out
        out = json_text(delta.text).join(block.around) if delta.text else b""
        if delta.signature is None and raw is None:
            return out
        block.raw = {**(block.raw or {}), **(raw or {})}
        learnt = self._delta_of(ThinkingBlock(_WORDS, delta.signature, block.raw))
        if learnt == block.said or "reasoning_details" not in learnt:
            return out
        block.said = learnt
        return out + b'""'.join(self._around(learnt))

    def _call(self, start: ToolUseStart) -> bytes:
        if self._end is not None:
            return b""
        call = ToolUseBlock(start.id, start.name, {}, start.provider_raw)
        begin = _without_arguments(self._delta_of(call))
        goes_on: dict[str, Any] = {"function_call": {"arguments": _WORDS}}
        if "tool_calls" in begin:
            begin["tool_calls"][0] = {"index": self._calls, **begin["tool_calls"][0]}
            goes_on = {"tool_calls": [{"index": self._calls, "function": {"arguments": _WORDS}}]}
        else:
            self._has_legacy_call = True
        out = self._begun()
        block = self._blocks[start.index] = _Block(begin, self._around(goes_on), start.provider_raw)
        block.call, block.number = call, self._calls
        self._calls += "tool_calls" in begin
        return out + self._chunk(begin)

    def _input(self, delta: ToolUseInputDelta) -> bytes:
        block = self._blocks.get(delta.index)
        if self._end is not None:
            return b""
        if block is None:
            what = f"a piece of input for block {delta.index}, which is no call"
            return self._error(stream_error(NAME, "protocol_violation", what))
        return json_text(delta.partial_json).join(block.around)

    def _call_end(self, end: ToolUseEnd) -> bytes:
        """The wire has no end of a call. What was learnt about it after its beginning is said here."""
        block = self._blocks.get(end.index)
        if block is None or block.call is None or self._end is not None or end.provider_raw in (None, block.raw):
            return b""
        learnt = _without_arguments(self._delta_of(block.call.replace(provider_raw=end.provider_raw)))
        if "function_call" in learnt:
            unsaid = _unsaid(learnt["function_call"], block.said["function_call"])
            return self._chunk({"function_call": unsaid}) if unsaid else b""
        unsaid = _unsaid(learnt["tool_calls"][0], block.said["tool_calls"][0])
        return self._chunk({"tool_calls": [{"index": block.number, **unsaid}]}) if unsaid else b""

    def _whole(self, event: BlockComplete) -> bytes:
        """A block that comes whole."""
        if self._end is not None or cannot_say(event.block, Role.ASSISTANT, is_own=True) is not None:
            return b""
        delta = self._delta_of(event.block)
        for call in delta.get("tool_calls", ()):
            call["index"] = self._calls
            self._calls += 1
        self._has_legacy_call = self._has_legacy_call or place_of(event.block) == "function_call"
        self._has_content = self._has_content or "content" in delta
        return self._begun() + self._chunk(delta)


_WRITES: Final[dict[type, Callable[[StreamWriter, Any], bytes]]] = {
    MessageStart: StreamWriter._begin,
    TextDelta: StreamWriter._text,
    ThinkingDelta: StreamWriter._thinking,
    ToolUseStart: StreamWriter._call,
    ToolUseInputDelta: StreamWriter._input,
    ToolUseEnd: StreamWriter._call_end,
    BlockComplete: StreamWriter._whole,
    UsageUpdate: StreamWriter._update_usage,
    MessageComplete: StreamWriter._complete,
    StreamError: StreamWriter._error,
}


def _beside_blocks(notes: ProviderRaw) -> dict[str, Any]:
    """What stands in a message beside its blocks, as it was noted."""
    made: dict[str, Any] = restored(
        natural_message(Role.ASSISTANT, (), notes, reply=True), notes_of(notes, NAME).get("residue")
    )
    return made


def _without_arguments(delta: dict[str, Any]) -> dict[str, Any]:
    """The beginning of a call."""
    if "function_call" in delta:
        return {"function_call": {**delta["function_call"], "arguments": ""}}
    (call,) = delta["tool_calls"]
    return {"tool_calls": [{**call, "function": {**call["function"], "arguments": ""}}]}


def _unsaid(learnt: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """What is known now and was not said."""
    unsaid = {key: value for key, value in learnt.items() if key != "function" and said.get(key, _WORDS) != value}
    inside = _unsaid(learnt["function"], said["function"]) if "function" in learnt else {}
    return {**unsaid, "function": inside} if inside else unsaid


def _choice_chunks(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of a choice that is not the answer: all that it says in one, then why it ended."""
    index, message = choice.get("index", 0), dict(choice.get("message") or {})
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    yield {"index": index, "delta": message, "finish_reason": None}
    rest = {key: value for key, value in choice.items() if key not in ("index", "message")}
    yield {"index": index, "delta": {}, "finish_reason": None, **rest}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
