"""Streams of Chat Completions: events in, bytes out, each event as soon as the wire allows it.

Every chunk repeats who answers; the bytes around the words of a block are made once. What is only known at the end
(extra fields, what it has consumed) is said in the last chunks.

The one rule: what the beginning could not say yet is said with the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dragoman.dialects.openai_chat.blocks import NAME, cannot_say, natural_message, place_of
from dragoman.dialects.openai_chat.error import write_error
from dragoman.dialects.openai_chat.reply import natural_choice, natural_reply
from dragoman.dialects.parts.framing import json_text, sse_frame
from dragoman.dialects.parts.residue import notes_of, restored
from dragoman.dialects.parts.writing import EventWriter
from dragoman.event import (
    MessageComplete,
    MessageStart,
    StreamError,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
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


class _Block:
    """A block that was begun: how it was written, and the bytes around its words."""

    def __init__(self, said: dict[str, Any], around: list[bytes], raw: ProviderRaw | None) -> None:
        self.said = said
        self.around = around
        self.raw = raw
        self.call: ToolUseBlock | None = None
        self.number = 0  # of a call


class StreamWriter(EventWriter):
    """Events in, bytes out: chunks as the official SDKs expect them, and ``[DONE]``."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        super().__init__(NAME)
        self._model: str | None = None
        self._said: dict[str, Any] = {}  # what was said around the choices when it began
        self._base: dict[str, Any] = {}  # what of it every chunk repeats
        self._message: dict[str, Any] = {}  # what was said of the message beside its blocks
        self._opened: dict[int, _Block] = {}
        self._calls = 0
        self._has_legacy_call = False
        self._has_content = False
        self._has_parts = False  # whether the content was said as a list

    # --- the message

    def begun(self, start: MessageStart) -> bytes:
        """The first chunk: who answers, and in which role."""
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

    def completed(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Why it ended and what was not said of the message; other choices; what was consumed; and the end."""
        notes = notes_of(end.provider_raw, NAME)
        legacy = (TextBlock("", {"dialect": NAME, "at": "function_call"}),) if self._has_legacy_call else ()
        reply = Reply(
            content=legacy,
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=usage,
            model=self._model,
        )
        choice = restored(natural_choice(reply), notes.get("choice"))
        choice.pop("message", None)
        choice.update({"index": 0, "delta": self._unsaid(notes.get("message", {}))})
        if end.stop_reason is not StopReason.UNKNOWN or not notes:  # else whoever said it gives no reasons
            choice["finish_reason"] = choice.get("finish_reason") or "stop"  # without one it looks cut
        others = [one for other in notes.get("others", ()) for one in _choice_chunks(other)]
        out = b"".join(sse_frame({**self._base, "choices": [one]}) for one in (choice, *others))
        whole = restored(natural_reply(reply), notes.get("residue"))
        unsaid = {
            key: value for key, value in whole.items() if key != "object" and self._said.get(key, _WORDS) != value
        }
        return out + (sse_frame({**self._base, **unsaid, "choices": []}) if unsaid else b"") + b"data: [DONE]\n\n"

    def failed(self, error: StreamError) -> bytes:
        """An error. What was consumed is said before it."""
        out = b""
        if self.usage is not None:
            usage = natural_reply(Reply(stop_reason=StopReason.END_TURN, usage=self.usage))["usage"]
            out = sse_frame({**self._base, "choices": [], "usage": usage})
        return out + sse_frame(write_error(error.fault).wire)

    def _chunk(self, delta: dict[str, Any], once: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return sse_frame({**self._base, **(once or {}), "choices": [choice]})

    def _unsaid(self, notes: ProviderRaw) -> dict[str, Any]:
        """What stands in the message beside its blocks and was not said when it began."""
        whole = _beside_blocks(notes)
        unsaid = {key: value for key, value in whole.items() if self._message.get(key, _WORDS) != value}
        if self._has_content or ("content" in self._message and whole.get("content") is None):
            unsaid.pop("content", None)
        if self._has_content and not self._has_parts and notes.get("form") == "list":
            unsaid["content"] = []  # the words were the words of a part
        return unsaid

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

    def _note_content(self, delta: dict[str, Any]) -> None:
        self._has_content = self._has_content or "content" in delta
        self._has_parts = self._has_parts or isinstance(delta.get("content"), list)

    def _bytes_around(self, delta: dict[str, Any]) -> list[bytes]:
        return self._chunk(delta).split(_WORDS_BYTES)

    def text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """More words."""
        if not text:
            return b""
        block = self._opened.get(index)
        if block is None:
            begin = self._delta_of(TextBlock(_WORDS, raw))
            block = self._opened[index] = _Block(begin, self._bytes_around(begin), raw)
            self._note_content(begin)
        return self._words(TextDelta, index, text, block)

    def _words(self, kind: type, index: int, text: str, block: _Block) -> bytes:
        if len(block.around) == 2:
            self.grows(kind, index, block.raw, (block.around[0], block.around[1]))
        return json_text(text).join(block.around)

    def reasoning(self, delta: ThinkingDelta, text: str) -> bytes:
        """More reasoning, if it is this dialect's own; another's is never said."""
        index, signature, raw = delta.index, delta.signature, delta.provider_raw
        block = self._opened.get(index)
        if block is None:
            whole = ThinkingBlock(_WORDS, signature, raw)
            if cannot_say(whole, Role.ASSISTANT, is_own=True) is not None:
                return b""
            begin = self._delta_of(whole)
            goes_on = self._delta_of(ThinkingBlock(_WORDS, None, raw))
            self._opened[index] = _Block(begin, self._bytes_around(goes_on), raw)
            self._note_content(begin)
            return json_text(text).join(self._bytes_around(begin))
        out = self._words(ThinkingDelta, index, text, block) if text else b""
        if signature is None and raw is None:
            return out
        block.raw = {**(block.raw or {}), **(raw or {})}
        learnt = self._delta_of(ThinkingBlock(_WORDS, signature, block.raw))
        if learnt == block.said or "reasoning_details" not in learnt:
            return out
        block.said = learnt
        return out + b'""'.join(self._bytes_around(learnt))

    def call_begun(self, start: ToolUseStart) -> bytes:
        """A call begins, without its arguments."""
        call = ToolUseBlock(start.id, start.name, {}, start.provider_raw)
        begin = _without_arguments(self._delta_of(call))
        goes_on: dict[str, Any] = {"function_call": {"arguments": _WORDS}}
        if "tool_calls" in begin:
            begin["tool_calls"][0] = {"index": self._calls, **begin["tool_calls"][0]}
            goes_on = {"tool_calls": [{"index": self._calls, "function": {"arguments": _WORDS}}]}
        else:
            self._has_legacy_call = True
        block = self._opened[start.index] = _Block(begin, self._bytes_around(goes_on), start.provider_raw)
        block.call, block.number = call, self._calls
        self._calls += "tool_calls" in begin
        return self._chunk(begin)

    def call_input(self, index: int, text: str) -> bytes:
        """More of the arguments of a call."""
        return json_text(text).join(self._opened[index].around) if text else b""

    def call_ended(self, end: ToolUseEnd) -> bytes:
        """The wire has no end of a call. What was learnt about it after its beginning is said here."""
        block = self._opened[end.index]
        if block.call is None or end.provider_raw in (None, block.raw):
            return b""
        learnt = _without_arguments(self._delta_of(block.call.replace(provider_raw=end.provider_raw)))
        if "function_call" in learnt:
            unsaid = _unsaid(learnt["function_call"], block.said["function_call"])
            return self._chunk({"function_call": unsaid}) if unsaid else b""
        unsaid = _unsaid(learnt["tool_calls"][0], block.said["tool_calls"][0])
        return self._chunk({"tool_calls": [{"index": block.number, **unsaid}]}) if unsaid else b""

    def whole(self, index: int, block: ContentBlock) -> bytes:  # noqa: ARG002  nothing follows it
        """A block that comes whole."""
        if cannot_say(block, Role.ASSISTANT, is_own=True) is not None:
            return b""
        delta = self._delta_of(block)
        if "tool_calls" in delta:
            delta["tool_calls"] = [{**call, "index": self._calls} for call in delta["tool_calls"]]
            self._calls += 1
        self._has_legacy_call = self._has_legacy_call or place_of(block) == "function_call"
        self._note_content(delta)
        return self._chunk(delta)


def _beside_blocks(notes: ProviderRaw) -> dict[str, Any]:
    """What stands in a message beside its blocks, as it was noted."""
    made: dict[str, Any] = restored(
        natural_message(Role.ASSISTANT, (), notes, reply=True), notes_of(notes, NAME).get("residue")
    )
    return made


def _without_arguments(delta: dict[str, Any]) -> dict[str, Any]:
    """The beginning of a call. Who said that there are no arguments says it again."""
    if "function_call" in delta:
        return {"function_call": _begun(delta["function_call"])}
    (call,) = delta["tool_calls"]
    return {"tool_calls": [{**call, "function": _begun(call["function"])}]}


def _begun(function: dict[str, Any]) -> dict[str, Any]:
    return function if function.get("arguments") is None else {**function, "arguments": ""}


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
