"""Write streams: events to lines, each an object with a part of the message; calls and images are written complete."""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.ollama.blocks import NAME, is_native, unsupported_reply_reason, write_call
from dragoman.dialects.ollama.error import write_error
from dragoman.dialects.ollama.reply import DETAILS, PLACEHOLDER_TIME, REPEATED_FIELDS, default_reply, default_start
from dragoman.dialects.ollama.support import SUPPORT
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
    ImageBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.faults import stream_error
from dragoman.wire.frames import json_line, json_text, sse_frame
from dragoman.wire.logprobs import write_logprobs
from dragoman.wire.residue import apply_diff, get_notes
from dragoman.wire.stream_writer import BaseStreamWriter
from dragoman.wire.tool_definitions import read_arguments

_TEXT_MARKER: Final = "\0text\0"


class StreamWriter(BaseStreamWriter):
    """Convert events to lines, each with a message."""

    framings = ("ndjson", "sse")
    support = SUPPORT
    details = DETAILS
    find_loss = staticmethod(unsupported_reply_reason)

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing)
        self._write_frame = sse_frame if framing == "sse" else _write_json_line
        self._model: str | None = None
        self._repeated_fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {}  # fields of every message: role and content
        self._text_templates: dict[str, tuple[bytes, bytes]] = {}
        self._text_blocks: dict[str, set[int]] = {"content": set(), "thinking": set()}
        self._calls: dict[int, tuple[ToolUseStart, list[str]]] = {}
        self._calls_without_input: list[ToolUseBlock] = []  # at the token limit, these are truncated
        self._unusable_call: str | None = None

    def write_start(self, start: MessageStart) -> bytes:
        """Write nothing: the first line starts the message."""
        self._model = start.model
        notes = get_notes(start.provider_raw, NAME)
        start_fields = {**apply_diff(default_start(start.model), notes.get("residue")), **self.identity}
        self._repeated_fields = {key: start_fields[key] for key in REPEATED_FIELDS if key in start_fields}
        role, content = (
            ("role",) if "role" in start_fields["message"] else (),
            {} if notes.get("form") else {"content": ""},
        )
        self._message = {**{key: start_fields["message"][key] for key in role}, **content}
        self._text_templates = {key: self._make_template(key) for key in ("content", "thinking")}
        return b""

    def write_text_delta(self, delta: TextDelta, text: str) -> bytes:
        """Write text and the probabilities of its tokens."""
        if not delta.token_logprobs:
            return self.write_text(delta.index, text, delta.provider_raw)
        fields, self._repeated_fields = self._repeated_fields, {**self._repeated_fields}
        self._repeated_fields["logprobs"] = write_logprobs(delta.token_logprobs)
        line = self._write_line_text("content", delta.index, text) or self._write_line({})
        self._repeated_fields = fields
        return line

    def write_text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write text. A message has one text; a second block continues it."""
        line = self._write_line_text("content", index, text)
        self.set_text_template(TextDelta, index, raw, self._text_templates["content"])
        return line

    def write_thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write native reasoning."""
        if not get_notes(raw, NAME) and index not in self._text_blocks["thinking"]:
            return b""
        line = self._write_line_text("thinking", index, text)
        self.set_text_template(ThinkingDelta, index, raw, self._text_templates["thinking"])
        return line

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write nothing: calls are written complete."""
        self._calls[start.index] = (start, [])
        return b""

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write nothing: calls are written complete."""
        self._calls[index][1].append(text)
        return b""

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the call."""
        start, pieces = self._calls.pop(end.index)
        text = "".join(pieces)
        value, problem = read_arguments(text)
        if problem is not None:
            return self._write_call(InvalidToolUseBlock(start.id, start.name, text, problem, end.provider_raw))
        call = ToolUseBlock(start.id, start.name, value, end.provider_raw)
        if text.strip():
            return self._write_call(call)
        self._calls_without_input.append(call)
        return b""

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a complete block, if the API supports it."""
        match block:
            case TextBlock(text, raw):
                return self.write_text(index, text, raw)
            case ThinkingBlock(text, _, raw):
                return self.write_thinking(index, text, raw)
            case ToolUseBlock() | InvalidToolUseBlock():
                return self._write_call(block)
            case ImageBlock(source) if unsupported_reply_reason(block) is None:
                return self._write_line({"images": [source.data]})
            case _:
                return b""

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the line that is done, with all fields that were added since the start."""
        is_limit = end.stop_reason is StopReason.MAX_TOKENS
        truncated = next((call.name for call in self._calls_without_input if is_limit and not is_native(call)), None)
        if self._unusable_call is not None or truncated is not None:
            problem = f"the input of a call of {truncated or self._unusable_call!r} cannot be used"
            return self.write_failure(
                stream_error(NAME, "tool_input_truncated" if is_limit else "tool_input_invalid", problem)
            )
        calls = self._write_pending_calls()
        notes = get_notes(end.provider_raw, NAME)
        reply = Reply(stop_reason=end.stop_reason, usage=usage, model=self._model)
        default = default_reply(reply, (), notes.get("form"))
        if not notes:
            default["created_at"] = self._repeated_fields.get("created_at", PLACEHOLDER_TIME)
        return calls + self._write_frame({**apply_diff(default, notes.get("residue")), **self.identity})

    def write_failure(self, error: StreamError) -> bytes:
        """Write the error as a line."""
        return self._write_frame(write_error(error.fault).wire)

    def _write_line_text(self, key: str, index: int, text: str) -> bytes:
        started = self._text_blocks[key]
        if index not in started:
            text = "\n" + text if started else text
            started.add(index)
        return self._write_line({key: text}) if text else b""

    def _write_call(self, block: ToolUseBlock | InvalidToolUseBlock) -> bytes:
        if isinstance(block, InvalidToolUseBlock) and not is_native(block):
            self._unusable_call = self._unusable_call or block.name
            return b""
        return self._write_pending_calls() + self._write_line({"tool_calls": [write_call(block)]})

    def _write_pending_calls(self) -> bytes:
        """Write the calls without input that waited for the end."""
        calls, self._calls_without_input = self._calls_without_input, []
        return b"".join(self._write_line({"tool_calls": [write_call(call)]}) for call in calls)

    def _make_template(self, key: str) -> tuple[bytes, bytes]:
        """Return the bytes before and after a text in a line."""
        before, _, after = self._write_line({key: _TEXT_MARKER}).rpartition(json_text(_TEXT_MARKER))
        return before, after

    def _write_line(self, message: dict[str, Any]) -> bytes:
        return self._write_frame({**self._repeated_fields, "message": {**self._message, **message}, "done": False})


def _write_json_line(wire: Any) -> bytes:
    return json_line(wire) + b"\n"


stream_writer = StreamWriter
