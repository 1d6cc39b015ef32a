"""Encode the events of a turn as AG-UI events.

    encoder = AguiEncoder(thread_id, run_id, version="1.0")
    encoder.encode_start(start, at_ms)               the first event
    encoder.encode(event, at_ms)                     none, one or several events for each event of the turn
    encoder.encode_interrupt(…) / encode_end(…) / encode_error(…)       the last ones

Pure: no store, no clock. Message ids are those that ``transcripts.ag_ui`` writes for the same history, so a client
recognizes the messages later. Clients before protocol 1.0 get fewer fields, because they reject unknown ones.
Invariants: every open message, call and step is closed before the last event, and no id is opened twice in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from dragoman.event import (
    BlockComplete,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from dragoman.exchange import StopReason
from dragoman.ids import with_names
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.redaction import redact
from dragoman.transcripts.ag_ui import write_messages
from dragoman.transcripts.base import KEY
from dragoman.turn import AnswerEnd, AnswerStart, PendingCall, ToolResultEvent, TurnEnd, TurnEvent, TurnStart
from dragoman.turn.state import stage_of

PROTOCOL_VERSION: Final = "1.0"
STEP: Final = "answer"
INPUT_REQUIRED: Final = "input_required"  # reason of an interrupt that requests values
RESPONSE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object"},
        "reason": {"type": "string"},
    },
    "required": ["approved"],
}
Event = dict[str, Any]


class AguiEncoder:
    """Encodes the events of one run, and tracks what is open."""

    def __init__(
        self, thread_id: str, run_id: str, *, version: str | None = None, parent_run_id: str | None = None
    ) -> None:
        self._thread_id = thread_id
        self._run_id = run_id
        self._parent_run_id = parent_run_id
        self.is_modern = version is not None
        self._answer: _AnswerEncoder | None = None  # the current one
        self._usage = _UsageTotals()

    def encode_start(self, start: TurnStart | None, at_ms: int) -> list[Event]:
        """The first event."""
        question = start.question if start is not None else None
        details = None if question is None else {"id": question.message.id, "seq": question.seq}
        return [
            _make_event(
                "RUN_STARTED",
                at_ms,
                threadId=self._thread_id,
                runId=self._run_id,
                parentRunId=self._parent_run_id,
                protocolVersion=PROTOCOL_VERSION,
                metadata=None if details is None else {KEY: {"asked": details}},
            )
        ]

    def checkpoint(self) -> Callable[[], None]:
        """A function that undoes what is encoded from now on: of an end that was not stored."""
        answer, restore_usage = self._answer, self._usage.checkpoint()
        restore_answer = None if answer is None else answer.checkpoint()

        def restore() -> None:
            self._answer = answer
            restore_usage()
            if restore_answer is not None:
                restore_answer()

        return restore

    def encode(self, event: TurnEvent, at_ms: int) -> list[Event]:
        """The AG-UI events of one turn event. The end of the turn is encoded separately."""
        match event:
            case TurnStart():
                return [
                    self._encode_result(row.message, at_ms) for row in event.answers if _is_from_resume(row.message)
                ]
            case TurnEnd():
                return []
            case AnswerStart():
                return [*self._close_answer(at_ms), self._encode_step_start(event, at_ms)]
            case AnswerEnd():
                return [*self._close_answer(at_ms), self._encode_step_end(event, at_ms)]
            case ToolResultEvent(row):
                return [self._encode_result(row.message, at_ms)]
            case _ if self._answer is not None:
                return self._answer.encode(event, at_ms)
            case _:
                return []

    def _encode_step_start(self, start: AnswerStart, at_ms: int) -> Event:
        self._answer = _AnswerEncoder(start.message_id)
        details: dict[str, Any] = {"message_id": start.message_id, "seq": start.seq, "model": start.model}
        if start.omitted_count:
            details["left_out"] = start.omitted_count
        if start.losses:
            details["losses"] = [{"block_type": loss.block_type, "reason": loss.reason} for loss in start.losses]
        if start.adjustments:
            details["adjustments"] = [{"name": item.block_type, "reason": item.reason} for item in start.adjustments]
        return _make_event("STEP_STARTED", at_ms, stepName=STEP, metadata={KEY: details})

    def _encode_step_end(self, end: AnswerEnd, at_ms: int) -> Event:
        self._answer = None
        message = end.row.message
        details: dict[str, Any] = {"message_id": message.id, "seq": end.row.seq, "stop_reason": end.stop_reason}
        details["stage"] = stage_of(message)
        if sources := _find_sources(message):
            details["sources"] = sources
        usage = message.metadata.usage
        if usage is not None:
            self._usage.add(message, usage)
            details["usage"] = usage_receipt(usage)
        return _make_event("STEP_FINISHED", at_ms, stepName=STEP, metadata={KEY: details})

    def _encode_result(self, message: Message, at_ms: int) -> Event:
        (wire,) = write_messages([message]).wire
        content = wire["content"]
        if not self.is_modern and not isinstance(content, str):
            content = parts_to_text(content)
        return _make_event(
            "TOOL_CALL_RESULT",
            at_ms,
            messageId=wire["id"],
            toolCallId=wire["toolCallId"],
            content=content,
            role="tool",
            metadata={KEY: {"is_error": True}} if "error" in wire else None,
        )

    def _close_answer(self, at_ms: int) -> list[Event]:
        return [] if self._answer is None else self._answer.close(at_ms)

    def _close_step(self, at_ms: int) -> list[Event]:
        """Close everything that is open, including the step."""
        if self._answer is None:
            return []
        events = [*self._answer.close(at_ms), _make_event("STEP_FINISHED", at_ms, stepName=STEP)]
        self._answer = None
        return events

    # --- the end -----------------------------------------------------------------------------------------------------

    def encode_end(self, end: TurnEnd, at_ms: int) -> list[Event]:
        """The last events of a turn without interrupts."""
        if end.fault is not None:
            return self.encode_error(end.fault.code, end.fault.message, at_ms)
        if end.stop_reason is StopReason.CANCELLED:
            return self.encode_cancel(at_ms)
        return [*self._close_step(at_ms), self._encode_finish(self._success_outcome(end), at_ms, _turn_summary(end))]

    def _success_outcome(self, end: TurnEnd) -> dict[str, Any] | None:
        """The outcome of a successful turn.

        Clients before 1.0 do not support ``pendingToolCallIds``, and some read a plain success as an end without open
        calls and never send their results. Without an outcome they inspect the calls themselves.
        """
        if not end.pending:
            return {"type": "success"}
        if not self.is_modern:
            return None
        return {"type": "success", "pendingToolCallIds": [pending.call_id for pending in end.pending]}

    def encode_interrupt(
        self, end: TurnEnd, messages: list[dict[str, Any]] | None, state: Any, at_ms: int
    ) -> list[Event]:
        """The last events of a turn with interrupts. ``messages`` are those of the thread."""
        events = self._close_step(at_ms)
        if messages is not None:
            events.append(_make_event("MESSAGES_SNAPSHOT", at_ms, messages=messages))
        if state is not None:
            events.append(_make_event("STATE_SNAPSHOT", at_ms, snapshot=state))
        outcome = {"type": "interrupt", "interrupts": list(make_interrupts(end))}
        return [*events, self._encode_finish(outcome, at_ms, _turn_summary(end))]

    def encode_restored(
        self, messages: list[dict[str, Any]], state: Any, interrupts: Sequence[dict[str, Any]], at_ms: int
    ) -> list[Event]:
        """All events for a client that opens a thread without an active run."""
        outcome = {"type": "interrupt", "interrupts": list(interrupts)} if interrupts else {"type": "success"}
        return [
            *self.encode_start(None, at_ms),
            _make_event("MESSAGES_SNAPSHOT", at_ms, messages=messages),
            *([] if state is None else [_make_event("STATE_SNAPSHOT", at_ms, snapshot=state)]),
            self._encode_finish(outcome, at_ms),
        ]

    def encode_cancel(self, at_ms: int) -> list[Event]:
        """The last events of a cancelled run."""
        if not self.is_modern:  # which has only an error for it
            return self.encode_error("cancelled", "The run was cancelled.", at_ms)
        return [*self._close_step(at_ms), self._encode_finish({"type": "cancelled"}, at_ms)]

    def encode_error(self, code: str, message: str, at_ms: int) -> list[Event]:
        """The last events of a failed run."""
        text = with_names(redact(message)) or code
        error = _make_event("RUN_ERROR", at_ms, message=text, code=code, usage=self._usage.to_json())
        return [*self._close_step(at_ms), error]

    def _encode_finish(
        self, outcome: dict[str, Any] | None, at_ms: int, details: dict[str, Any] | None = None
    ) -> Event:
        return _make_event(
            "RUN_FINISHED",
            at_ms,
            threadId=self._thread_id,
            runId=self._run_id,
            outcome=outcome,
            usage=self._usage.to_json(),
            metadata=None if details is None else {KEY: details},
        )


def make_interrupts(end: TurnEnd) -> tuple[dict[str, Any], ...]:
    """The interrupts of a turn: one for each call that a person decides."""
    return tuple(_make_interrupt(pending) for pending in end.pending if pending.reason != "caller")


def _make_interrupt(pending: PendingCall) -> dict[str, Any]:
    is_input = pending.reason == "input"
    return {
        "id": interrupt_id(pending.call_id),
        "reason": INPUT_REQUIRED if is_input else "tool_call",
        "message": pending.input.get("question", pending.name) if is_input else f"May {pending.name} be run?",
        "toolCallId": pending.call_id,
        "responseSchema": pending.answer_schema if is_input else RESPONSE_SCHEMA,
        "metadata": {KEY: {"name": pending.name, "input": pending.input}},
    }


def _is_from_resume(answer: Message) -> bool:
    """Whether a result was sent by a resume, so that the client has no message of it."""
    return answer.metadata.message_id is None


def interrupt_id(call_id: str) -> str:
    """The id of the interrupt for a call."""
    return f"int-{call_id}"


def run_error(code: str, message: str, at_ms: int) -> Event:
    """The last event of a run without further information."""
    return _make_event("RUN_ERROR", at_ms, message=message, code=code)


def _find_sources(message: Message) -> list[dict[str, Any]]:
    """The web pages that an answer cites, each once."""
    texts = (block for block in message.content if isinstance(block, TextBlock))
    citations = (citation for block in texts for citation in block.citations or ())
    by_url = {citation.url: citation.title for citation in citations if citation.url is not None}
    return [
        {"id": f"{message.id}.source-{number}", "url": url, **({} if title is None else {"title": title})}
        for number, (url, title) in enumerate(by_url.items())
    ]


def usage_receipt(usage: Usage) -> dict[str, Any]:
    """Tokens and cost of an answer."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cost_usd": None if usage.amount_usd is None else str(usage.amount_usd),
        "state": usage.state,
        "pricing_version": usage.pricing_version,
        "latency_ms": usage.latency_ms,
    }


def _turn_summary(end: TurnEnd) -> dict[str, Any]:
    return {
        "stop_reason": end.stop_reason,
        "model": end.model,
        "llm_calls": end.llm_calls,
        "tool_calls": end.tool_calls,
        "cost_usd": None if end.cost_usd is None else str(end.cost_usd),
        "state": end.state,
        "unpriced_calls": end.unpriced_calls,
        "latency_ms": round(end.wall_time_s * 1000),
    }


def parts_to_text(parts: list[dict[str, Any]]) -> str:
    """Parts as one text; other parts than text become their type in brackets."""
    return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in parts)


def _make_event(kind: str, at_ms: int, **fields: Any) -> Event:
    """An event. A field without a value is omitted, because clients reject null."""
    return {
        "type": kind,
        **{name: value for name, value in fields.items() if value is not None or name == "snapshot"},
        "timestamp": at_ms,
    }


# --- one answer ------------------------------------------------------------------------------------------------------


class _OpenMessage:
    """An AG-UI message: text with calls, or thinking."""

    def __init__(self, wire_id: str, kind: str) -> None:
        self.id = wire_id
        self.kind = kind  # text, thinking or calls
        self.is_open = False
        self.has_started = False
        self.partial_character = ""  # first half of a surrogate pair
        self.signature: str | None = None


class _AnswerEncoder:
    """Encodes one model answer. Blocks are grouped into messages as in ``transcripts.ag_ui``."""

    def __init__(self, message_id: str) -> None:
        self._id = message_id
        self._messages: list[_OpenMessage] = []
        self._by_index: dict[int, _OpenMessage] = {}
        self._calls: dict[int, _CallEncoder] = {}

    def encode(self, event: Any, at_ms: int) -> list[Event]:
        match event:
            case TextDelta(index, text):
                return self._encode_delta(index, "text", text, at_ms)
            case ThinkingDelta(index, text, signature):
                return [
                    *self._encode_delta(index, "thinking", text, at_ms),
                    *self._encode_signature(index, signature, at_ms),
                ]
            case ToolUseStart(index, call_id, name):
                return self._start_call(index, call_id, name, at_ms)
            case ToolUseInputDelta(index, fragment):
                call = self._calls.get(index)
                return [] if call is None else call.encode_delta(fragment, at_ms)
            case ToolUseEnd(index):
                call = self._calls.pop(index, None)
                return [] if call is None else call.encode_end(at_ms)
            case BlockComplete(index, block):
                return self._encode_block(index, block, at_ms)
            case _:
                return []

    def checkpoint(self) -> Callable[[], None]:
        """A function that opens again what is closed from now on."""
        open_messages = [message for message in self._messages if message.is_open]
        calls = [(index, call, call.has_no_input) for index, call in self._calls.items()]

        def restore() -> None:
            for message in open_messages:
                message.is_open = True
            for index, call, has_no_input in calls:
                self._calls[index], call.has_no_input = call, has_no_input

        return restore

    def close(self, at_ms: int) -> list[Event]:
        """Close everything that is open."""
        events = self._close_messages(at_ms)
        for call in self._calls.values():
            events.extend(call.encode_end(at_ms))
        self._calls.clear()
        return events

    def _encode_delta(self, index: int, kind: str, text: str, at_ms: int) -> list[Event]:
        events: list[Event] = []
        message = self._by_index.get(index)
        if message is None:
            message = self._by_index[index] = self._add_message(kind)
        if not message.is_open and (text or not message.has_started):  # the end of a stream can add notes without text
            events = [*self._close_messages(at_ms), *_start_message(message, at_ms)]
        delta, message.partial_character = _split_partial_character(message.partial_character + text)
        if delta:
            events.append(_message_delta(message, delta, at_ms))
        return events

    def _encode_signature(self, index: int, signature: str | None, at_ms: int) -> list[Event]:
        """Record the signature of thinking. It is sent when the message closes, or immediately if it is closed."""
        message = self._by_index[index]
        if signature is None or signature == message.signature:
            return []
        message.signature = signature
        return [] if message.is_open else [_signature_event(message, signature, at_ms)]

    def _add_message(self, kind: str) -> _OpenMessage:
        is_main = kind != "thinking" and all(message.kind == "thinking" for message in self._messages)
        message = _OpenMessage(self._id if is_main else f"{self._id}.{len(self._messages)}", kind)
        self._messages.append(message)
        return message

    def _close_messages(self, at_ms: int) -> list[Event]:
        return [event for message in self._messages if message.is_open for event in _end_message(message, at_ms)]

    def _start_call(self, index: int, call_id: str, name: str, at_ms: int) -> list[Event]:
        events = self._close_messages(at_ms)
        last = self._messages[-1] if self._messages else None
        parent = last if last is not None and last.kind != "thinking" else self._add_message("calls")
        call = self._calls[index] = _CallEncoder(call_id)
        return [*events, call.encode_start(name, parent.id, at_ms)]

    def _encode_block(self, index: int, block: ContentBlock, at_ms: int) -> list[Event]:
        """A block that arrives complete."""
        match block:
            case TextBlock(text):
                return self._encode_delta(index, "text", text, at_ms)
            case ThinkingBlock(text, signature):
                return self.encode(ThinkingDelta(index, text, signature), at_ms)
            case RedactedThinkingBlock(data):
                return self.encode(ThinkingDelta(index, "", data), at_ms)
            case ToolUseBlock() | InvalidToolUseBlock():
                arguments = (
                    block.input_text
                    if isinstance(block, InvalidToolUseBlock)
                    else msgspec.json.encode(block.input).decode()
                )
                events = self._start_call(index, block.id, block.name, at_ms)
                return [
                    *events,
                    *self._calls[index].encode_delta(arguments, at_ms),
                    *self._calls.pop(index).encode_end(at_ms),
                ]
            case _:
                value = msgspec.to_builtins(block)
                return [
                    _make_event("CUSTOM", at_ms, name=f"{KEY}.block", value={"message_id": self._id, "block": value})
                ]


class _CallEncoder:
    """Encodes a call while its input arrives."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.partial_character = ""
        self.has_no_input = True

    def encode_start(self, name: str, parent: str, at_ms: int) -> Event:
        return _make_event("TOOL_CALL_START", at_ms, toolCallId=self.id, toolCallName=name, parentMessageId=parent)

    def encode_delta(self, fragment: str, at_ms: int) -> list[Event]:
        delta, self.partial_character = _split_partial_character(self.partial_character + fragment)
        if not delta:
            return []
        self.has_no_input = False
        return [_make_event("TOOL_CALL_ARGS", at_ms, toolCallId=self.id, delta=delta)]

    def encode_end(self, at_ms: int) -> list[Event]:
        events = self.encode_delta("{}", at_ms) if self.has_no_input else []  # no input text means no arguments
        return [*events, _make_event("TOOL_CALL_END", at_ms, toolCallId=self.id)]


def _start_message(message: _OpenMessage, at_ms: int) -> list[Event]:
    message.is_open = message.has_started = True
    if message.kind == "thinking":
        return [
            _make_event("REASONING_START", at_ms, messageId=message.id),
            _make_event("REASONING_MESSAGE_START", at_ms, messageId=message.id, role="reasoning"),
        ]
    return [_make_event("TEXT_MESSAGE_START", at_ms, messageId=message.id, role="assistant")]


def _message_delta(message: _OpenMessage, delta: str, at_ms: int) -> Event:
    kind = "REASONING_MESSAGE_CONTENT" if message.kind == "thinking" else "TEXT_MESSAGE_CONTENT"
    return _make_event(kind, at_ms, messageId=message.id, delta=delta)


def _end_message(message: _OpenMessage, at_ms: int) -> list[Event]:
    message.is_open = False
    if message.kind != "thinking":
        return [_make_event("TEXT_MESSAGE_END", at_ms, messageId=message.id)]
    events = [_make_event("REASONING_MESSAGE_END", at_ms, messageId=message.id)]
    if message.signature is not None:
        events.append(_signature_event(message, message.signature, at_ms))
    return [*events, _make_event("REASONING_END", at_ms, messageId=message.id)]


def _signature_event(message: _OpenMessage, signature: str, at_ms: int) -> Event:
    fields = {"subtype": "message", "entityId": message.id, "encryptedValue": signature}
    return _make_event("REASONING_ENCRYPTED_VALUE", at_ms, **fields)


def _split_partial_character(text: str) -> tuple[str, str]:
    """The text up to its last complete character, and the first half of a surrogate pair.

    Some providers split a surrogate pair. A half that stays alone is omitted, as in the stored answer.
    """
    if text.isascii():
        return text, ""
    cut = len(text) - 1 if "\ud800" <= text[-1] <= "\udbff" else len(text)
    complete = text[:cut].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return complete, text[cut:]


# --- what it took ----------------------------------------------------------------------------------------------------


class _UsageTotals:
    """The usage of the answers of a run, by model."""

    def __init__(self) -> None:
        self._by_model: dict[str, dict[str, Any]] = {}

    def checkpoint(self) -> Callable[[], None]:
        saved = {model: dict(sums) for model, sums in self._by_model.items()}

        def restore() -> None:
            self._by_model = saved

        return restore

    def add(self, message: Message, usage: Usage) -> None:
        model, provider = message.metadata.model or "", message.metadata.provider or ""
        sums = self._by_model.setdefault(model, {"provider": provider, "model": model})
        input_tokens = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        counts = {
            "inputTokens": input_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": input_tokens + usage.output_tokens,
            "reasoningTokens": usage.reasoning_tokens,
            "cachedInputTokens": usage.cached_input_tokens,
            "cacheWriteInputTokens": usage.cache_creation_input_tokens,
        }
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count

    def to_json(self) -> list[dict[str, Any]] | None:
        return list(self._by_model.values()) or None
