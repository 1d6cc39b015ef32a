"""A turn, told in the events of AG-UI: what a model says as it arrives, what tools gave, and how it all ended.

    telling = Telling(thread_id, run_id, version="1.0")
    telling.started(at_ms)                the first event
    telling.take(event, at_ms)            what each event of a turn becomes: none, one or several
    telling.interrupted(…) / ended(…) / failed(…)       the last ones

Values come in and values go out: no store, no clock. The ids of messages are those that ``transcripts.ag_ui`` writes
for the same history, so that a client which is told the messages later finds those that it has. A client of protocol
1.0 is told a little more than one before it, which refuses what it does not know. The one rule: whatever was opened is
closed before the last event, and no id is opened twice in a thread.
"""

from __future__ import annotations

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
from dragoman.store import Row
from dragoman.transcripts.ag_ui import write_messages
from dragoman.transcripts.parts import KEY
from dragoman.turn import AnswerBegan, AnswerEnded, Pending, ResultStored, TurnBegan, TurnEnded, TurnEvent
from dragoman.turn.stages import stage_of

PROTOCOL_VERSION: Final = "1.0"
STEP: Final = "answer"
INPUT_REQUIRED: Final = "input_required"  # the reason of an interrupt that asks for values
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


class Telling:
    """What a run has told so far, as far as it matters for what comes next."""

    def __init__(
        self, thread_id: str, run_id: str, *, version: str | None = None, parent_run_id: str | None = None
    ) -> None:
        self._thread_id = thread_id
        self._run_id = run_id
        self._parent_run_id = parent_run_id
        self.is_modern = version is not None
        self._answer: _Answer | None = None  # the one that is arriving
        self._used = _Used()
        self._asked: Row | None = None

    def started(self, began: TurnBegan | None, at_ms: int) -> list[Event]:
        """The first event."""
        asked = began.asked if began is not None else None
        about = None if asked is None else {"id": asked.message.id, "seq": asked.seq}
        return [
            _event(
                "RUN_STARTED",
                at_ms,
                threadId=self._thread_id,
                runId=self._run_id,
                parentRunId=self._parent_run_id,
                protocolVersion=PROTOCOL_VERSION,
                metadata=None if about is None else {KEY: {"asked": about}},
            )
        ]

    def take(self, event: TurnEvent, at_ms: int) -> list[Event]:
        """What one event of the turn becomes. Its end becomes nothing here: see below."""
        match event:
            case TurnBegan():
                return [self._result(row.message, at_ms) for row in event.answers if _is_of_resume(row.message)]
            case TurnEnded():
                return []
            case AnswerBegan():
                return [*self._closed(at_ms), self._step_started(event, at_ms)]
            case AnswerEnded():
                return [*self._closed(at_ms), self._step_finished(event, at_ms)]
            case ResultStored(row):
                return [self._result(row.message, at_ms)]
            case _ if self._answer is not None:
                return self._answer.take(event, at_ms)
            case _:
                return []

    def _step_started(self, began: AnswerBegan, at_ms: int) -> Event:
        self._answer = _Answer(began.message_id)
        about: dict[str, Any] = {"message_id": began.message_id, "seq": began.seq, "model": began.model}
        if began.left_out:
            about["left_out"] = began.left_out
        if began.losses:
            about["losses"] = [{"block_type": loss.block_type, "reason": loss.reason} for loss in began.losses]
        return _event("STEP_STARTED", at_ms, stepName=STEP, metadata={KEY: about})

    def _step_finished(self, ended: AnswerEnded, at_ms: int) -> Event:
        self._answer = None
        message = ended.row.message
        about: dict[str, Any] = {"message_id": message.id, "seq": ended.row.seq, "stop_reason": ended.stop_reason}
        about["stage"] = stage_of(message)
        usage = message.metadata.usage
        if usage is not None:
            self._used.add(message, usage)
            about["usage"] = receipt(usage)
        return _event("STEP_FINISHED", at_ms, stepName=STEP, metadata={KEY: about})

    def _result(self, message: Message, at_ms: int) -> Event:
        (wire,) = write_messages([message]).wire
        content = wire["content"]
        if not self.is_modern and not isinstance(content, str):
            content = as_text(content)
        return _event(
            "TOOL_CALL_RESULT",
            at_ms,
            messageId=wire["id"],
            toolCallId=wire["toolCallId"],
            content=content,
            role="tool",
            metadata={KEY: {"is_error": True}} if "error" in wire else None,
        )

    def _closed(self, at_ms: int) -> list[Event]:
        return [] if self._answer is None else self._answer.closed(at_ms)

    def _left_open(self, at_ms: int) -> list[Event]:
        """What closes everything that is open, the step included."""
        if self._answer is None:
            return []
        closing = [*self._answer.closed(at_ms), _event("STEP_FINISHED", at_ms, stepName=STEP)]
        self._answer = None
        return closing

    # --- the end -----------------------------------------------------------------------------------------------------

    def ended(self, ended: TurnEnded, at_ms: int) -> list[Event]:
        """The last events of a turn that nobody has to decide about."""
        if ended.fault is not None:
            return self.failed(ended.fault.code, ended.fault.message, at_ms)
        if ended.stop_reason is StopReason.CANCELLED:
            return self.cancelled(at_ms)
        return [*self._left_open(at_ms), self._finished(self._success(ended), at_ms, _summary(ended))]

    def _success(self, ended: TurnEnded) -> dict[str, Any] | None:
        """The outcome of a turn that ended well.

        A client before 1.0 cannot read which calls wait for it, and some take a plain success for an end without open
        calls and never send their results. Without an outcome they look at the calls themselves.
        """
        if not ended.pending:
            return {"type": "success"}
        if not self.is_modern:
            return None
        return {"type": "success", "pendingToolCallIds": [pending.call_id for pending in ended.pending]}

    def interrupted(
        self, ended: TurnEnded, messages: list[dict[str, Any]] | None, state: Any, at_ms: int
    ) -> list[Event]:
        """The last events of a turn that waits for a person. ``messages`` are those of the thread."""
        told = self._left_open(at_ms)
        if messages is not None:
            told.append(_event("MESSAGES_SNAPSHOT", at_ms, messages=messages))
        if state is not None:
            told.append(_event("STATE_SNAPSHOT", at_ms, snapshot=state))
        outcome = {"type": "interrupt", "interrupts": list(interrupts_of(ended))}
        return [*told, self._finished(outcome, at_ms, _summary(ended))]

    def cancelled(self, at_ms: int) -> list[Event]:
        """The last events of a run that was stopped."""
        if not self.is_modern:  # which has no word for it but an error
            return self.failed("cancelled", "The run was cancelled.", at_ms)
        return [*self._left_open(at_ms), self._finished({"type": "cancelled"}, at_ms)]

    def failed(self, code: str, message: str, at_ms: int) -> list[Event]:
        """The last events of a run that failed."""
        said = with_names(redact(message)) or code
        error = _event("RUN_ERROR", at_ms, message=said, code=code, usage=self._used.told())
        return [*self._left_open(at_ms), error]

    def _finished(self, outcome: dict[str, Any] | None, at_ms: int, about: dict[str, Any] | None = None) -> Event:
        return _event(
            "RUN_FINISHED",
            at_ms,
            threadId=self._thread_id,
            runId=self._run_id,
            outcome=outcome,
            usage=self._used.told(),
            metadata=None if about is None else {KEY: about},
        )


def interrupts_of(ended: TurnEnded) -> tuple[dict[str, Any], ...]:
    """What a turn waits for, as interrupts: one for each call that a person decides about."""
    return tuple(_interrupt(pending) for pending in ended.pending if pending.why != "caller")


def _interrupt(pending: Pending) -> dict[str, Any]:
    is_input = pending.why == "input"
    return {
        "id": interrupt_id(pending.call_id),
        "reason": INPUT_REQUIRED if is_input else "tool_call",
        "message": pending.input.get("question", pending.name) if is_input else f"May {pending.name} be run?",
        "toolCallId": pending.call_id,
        "responseSchema": pending.answer_schema if is_input else RESPONSE_SCHEMA,
        "metadata": {KEY: {"name": pending.name, "input": pending.input}},
    }


def _is_of_resume(answer: Message) -> bool:
    """Whether an answer came without a message of the client, which therefore does not have it."""
    return answer.metadata.message_id is None


def interrupt_id(call_id: str) -> str:
    """The name of the interrupt that asks about a call."""
    return f"int-{call_id}"


def run_error(code: str, message: str, at_ms: int) -> Event:
    """The last event of a run of which nothing else is known."""
    return _event("RUN_ERROR", at_ms, message=message, code=code)


def receipt(usage: Usage) -> dict[str, Any]:
    """What an answer consumed and cost, for people to see."""
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


def _summary(ended: TurnEnded) -> dict[str, Any]:
    return {
        "stop_reason": ended.stop_reason,
        "model": ended.model,
        "llm_calls": ended.llm_calls,
        "tool_calls": ended.tool_calls,
        "cost_usd": None if ended.cost_usd is None else str(ended.cost_usd),
        "state": ended.state,
        "unpriced_calls": ended.unpriced_calls,
        "latency_ms": round(ended.wall_time_s * 1000),
    }


def as_text(parts: list[dict[str, Any]]) -> str:
    """Parts as one text, in which what is no text is named."""
    return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in parts)


def _event(kind: str, at_ms: int, **fields: Any) -> Event:
    """An event. A field that has nothing to say is left out: clients refuse a null."""
    return {
        "type": kind,
        **{name: value for name, value in fields.items() if value is not None or name == "snapshot"},
        "timestamp": at_ms,
    }


# --- one answer ------------------------------------------------------------------------------------------------------


class _Piece:
    """A message of theirs: words with the calls behind them, or a thought."""

    def __init__(self, wire_id: str, kind: str) -> None:
        self.id = wire_id
        self.kind = kind  # text, thinking or calls
        self.is_open = False
        self.was_opened = False
        self.half = ""  # of a character whose other half is still to come
        self.signature: str | None = None


class _Answer:
    """One answer of a model, in the making. What belongs to which message is as ``transcripts.ag_ui`` has it."""

    def __init__(self, message_id: str) -> None:
        self._id = message_id
        self._pieces: list[_Piece] = []
        self._by_index: dict[int, _Piece] = {}
        self._calls: dict[int, _Call] = {}

    def take(self, event: Any, at_ms: int) -> list[Event]:
        match event:
            case TextDelta(index, text):
                return self._more(index, "text", text, at_ms)
            case ThinkingDelta(index, text, signature):
                return [*self._more(index, "thinking", text, at_ms), *self._signed(index, signature, at_ms)]
            case ToolUseStart(index, call_id, name):
                return self._call_started(index, call_id, name, at_ms)
            case ToolUseInputDelta(index, fragment):
                call = self._calls.get(index)
                return [] if call is None else call.more(fragment, at_ms)
            case ToolUseEnd(index):
                call = self._calls.pop(index, None)
                return [] if call is None else call.ended(at_ms)
            case BlockComplete(index, block):
                return self._whole(index, block, at_ms)
            case _:
                return []

    def closed(self, at_ms: int) -> list[Event]:
        """What closes everything that is open."""
        told = self._close_pieces(at_ms)
        for call in self._calls.values():
            told.extend(call.ended(at_ms))
        self._calls.clear()
        return told

    def _more(self, index: int, kind: str, text: str, at_ms: int) -> list[Event]:
        told: list[Event] = []
        piece = self._by_index.get(index)
        if piece is None:
            piece = self._by_index[index] = self._new_piece(kind)
        if not piece.is_open and (text or not piece.was_opened):  # the end of a stream may add notes without words
            told = [*self._close_pieces(at_ms), *_opened(piece, at_ms)]
        words, piece.half = _whole_characters(piece.half + text)
        if words:
            told.append(_said(piece, words, at_ms))
        return told

    def _signed(self, index: int, signature: str | None, at_ms: int) -> list[Event]:
        """Note the signature of a thought. It is sent when the thought is closed, or at once if it already is."""
        piece = self._by_index[index]
        if signature is None or signature == piece.signature:
            return []
        piece.signature = signature
        return [] if piece.is_open else [_sealed(piece, signature, at_ms)]

    def _new_piece(self, kind: str) -> _Piece:
        is_main = kind != "thinking" and all(piece.kind == "thinking" for piece in self._pieces)
        piece = _Piece(self._id if is_main else f"{self._id}.{len(self._pieces)}", kind)
        self._pieces.append(piece)
        return piece

    def _close_pieces(self, at_ms: int) -> list[Event]:
        return [event for piece in self._pieces if piece.is_open for event in _ended(piece, at_ms)]

    def _call_started(self, index: int, call_id: str, name: str, at_ms: int) -> list[Event]:
        told = self._close_pieces(at_ms)
        last = self._pieces[-1] if self._pieces else None
        parent = last if last is not None and last.kind != "thinking" else self._new_piece("calls")
        call = self._calls[index] = _Call(call_id)
        return [*told, call.started(name, parent.id, at_ms)]

    def _whole(self, index: int, block: ContentBlock, at_ms: int) -> list[Event]:
        """A block that arrives at once."""
        match block:
            case TextBlock(text):
                return self._more(index, "text", text, at_ms)
            case ThinkingBlock(text, signature):
                return self.take(ThinkingDelta(index, text, signature), at_ms)
            case RedactedThinkingBlock(data):
                return self.take(ThinkingDelta(index, "", data), at_ms)
            case ToolUseBlock() | InvalidToolUseBlock():
                arguments = (
                    block.input_text
                    if isinstance(block, InvalidToolUseBlock)
                    else msgspec.json.encode(block.input).decode()
                )
                told = self._call_started(index, block.id, block.name, at_ms)
                return [*told, *self._calls[index].more(arguments, at_ms), *self._calls.pop(index).ended(at_ms)]
            case _:
                value = msgspec.to_builtins(block)
                return [_event("CUSTOM", at_ms, name=f"{KEY}.block", value={"message_id": self._id, "block": value})]


class _Call:
    """A call whose input arrives."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.half = ""
        self.is_silent = True

    def started(self, name: str, parent: str, at_ms: int) -> Event:
        return _event("TOOL_CALL_START", at_ms, toolCallId=self.id, toolCallName=name, parentMessageId=parent)

    def more(self, fragment: str, at_ms: int) -> list[Event]:
        words, self.half = _whole_characters(self.half + fragment)
        if not words:
            return []
        self.is_silent = False
        return [_event("TOOL_CALL_ARGS", at_ms, toolCallId=self.id, delta=words)]

    def ended(self, at_ms: int) -> list[Event]:
        said = self.more("{}", at_ms) if self.is_silent else []  # no text at all is the input of no arguments
        return [*said, _event("TOOL_CALL_END", at_ms, toolCallId=self.id)]


def _opened(piece: _Piece, at_ms: int) -> list[Event]:
    piece.is_open = piece.was_opened = True
    if piece.kind == "thinking":
        return [
            _event("REASONING_START", at_ms, messageId=piece.id),
            _event("REASONING_MESSAGE_START", at_ms, messageId=piece.id, role="reasoning"),
        ]
    return [_event("TEXT_MESSAGE_START", at_ms, messageId=piece.id, role="assistant")]


def _said(piece: _Piece, words: str, at_ms: int) -> Event:
    kind = "REASONING_MESSAGE_CONTENT" if piece.kind == "thinking" else "TEXT_MESSAGE_CONTENT"
    return _event(kind, at_ms, messageId=piece.id, delta=words)


def _ended(piece: _Piece, at_ms: int) -> list[Event]:
    piece.is_open = False
    if piece.kind != "thinking":
        return [_event("TEXT_MESSAGE_END", at_ms, messageId=piece.id)]
    told = [_event("REASONING_MESSAGE_END", at_ms, messageId=piece.id)]
    if piece.signature is not None:
        told.append(_sealed(piece, piece.signature, at_ms))
    return [*told, _event("REASONING_END", at_ms, messageId=piece.id)]


def _sealed(piece: _Piece, signature: str, at_ms: int) -> Event:
    sealed = {"subtype": "message", "entityId": piece.id, "encryptedValue": signature}
    return _event("REASONING_ENCRYPTED_VALUE", at_ms, **sealed)


def _whole_characters(text: str) -> tuple[str, str]:
    """The text as far as its characters are whole, and the first half of one that may still come.

    Some providers cut a character in two. A half that stays alone is left out, as it is from the stored answer.
    """
    if text.isascii():
        return text, ""
    cut = len(text) - 1 if "\ud800" <= text[-1] <= "\udbff" else len(text)
    words = text[:cut].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return words, text[cut:]


# --- what it took ----------------------------------------------------------------------------------------------------


class _Used:
    """What the answers of a run consumed, by model."""

    def __init__(self) -> None:
        self._by_model: dict[str, dict[str, Any]] = {}

    def add(self, message: Message, usage: Usage) -> None:
        model, provider = message.metadata.model or "", message.metadata.provider or ""
        sums = self._by_model.setdefault(model, {"provider": provider, "model": model})
        whole = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        counts = {
            "inputTokens": whole,
            "outputTokens": usage.output_tokens,
            "totalTokens": whole + usage.output_tokens,
            "reasoningTokens": usage.reasoning_tokens,
            "cachedInputTokens": usage.cached_input_tokens,
            "cacheWriteInputTokens": usage.cache_creation_input_tokens,
        }
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count

    def told(self) -> list[dict[str, Any]] | None:
        return list(self._by_model.values()) or None
