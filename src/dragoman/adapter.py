"""The adapter: a dialect, a provider row and the tool ids of a session.

    to_wire(messages, tools, options)        the request and its losses, each logged at WARN
    from_wire_response(response, context)    the reply as a message
    stream_response(chunks, context)         the reply as events
    estimate_input_tokens(messages, tools)   an estimate of the prompt length

    message_budget(model, tools, options)    the tokens of a context window that messages may use

It adds the names of model and provider, and the ids of calls. Time, ids and prices are in the context. Invariant: a
loss is always logged, and a loss on a critical message is an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman import dialects, tokens
from dragoman import message as msg
from dragoman.catalog import AdapterCapabilities, Model, Provider
from dragoman.errors import CriticalLossError
from dragoman.event import (
    BlockComplete,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    mark_unusable,
)
from dragoman.exchange import Fault, Loss, OpaqueTool, Options, Reply, Request, ToolDefinition, Written
from dragoman.ids import DEFAULT_ID_FORMAT, ToolIds, derive_ulid, ulid
from dragoman.rules import MAX_NAME_LENGTH, to_tool_name
from dragoman.value import unvalidated
from dragoman.wire.residue import get_notes
from dragoman.wire.stream_reader import BaseStreamReader

_SIGNING: Final = ("anthropic", "bedrock_converse", "gemini", "openai_responses")  # dialects that sign reasoning
_make_message: Final = unvalidated(msg.Message)  # the parts of a reply were validated when it was read
_make_metadata: Final = unvalidated(msg.MessageMetadata)
_DEFAULT_ANSWER_TOKENS: Final = 4096  # reserved for the answer if the options set no limit
_TIMELESS_PREFIX: Final = "tu_" + ulid(0, 0)[:10]


def message_budget(model: Model, tools: Iterable[ToolDefinition], options: Options | None = None) -> int:
    """Return the tokens of the window for messages: without the tools and the room for the answer."""
    offered = tuple(tools)
    tool_tokens = tokens.estimate((), offered, model.id) if offered else 0
    return max(1, model.capabilities.max_context_tokens - tool_tokens - answer_reserve(model, options))


def answer_reserve(model: Model, options: Options | None = None) -> int:
    """Return the tokens of the window that are reserved for the answer."""
    capabilities = model.capabilities
    default = min(capabilities.max_output_tokens or _DEFAULT_ANSWER_TOKENS, _DEFAULT_ANSWER_TOKENS)
    requested = None if options is None else options.max_output_tokens
    return min(requested or default, capabilities.max_context_tokens // 2)


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a reply that the caller supplies."""

    session_id: str
    message_id: str  # of the reply
    created_at: datetime
    routing: msg.RoutingDecisionRecord | None = None
    usage: msg.Usage | None = None  # usage and cost, once known


class Adapter:
    """Access to one model of one provider in one session."""

    def __init__(self, provider: Provider, model: Model, ids: ToolIds | None = None) -> None:
        self.provider = provider
        self.model = model
        self.ids = ids if ids is not None else ToolIds()
        self.dialect = dialects.load(provider.dialect)

    @property
    def capabilities(self) -> AdapterCapabilities:
        """The capabilities of the model."""
        return self.model.capabilities

    def to_wire(
        self,
        messages: Iterable[msg.Message],
        tools: Iterable[ToolDefinition | OpaqueTool] = (),
        options: Options | None = None,
        *,
        forget_items: bool = False,
    ) -> Written:
        """Write the request. Raises ``CriticalLossError`` for a loss on a critical message.

        ``forget_items`` leaves out ids and reasoning that the provider issued, for a provider that knows them no more.
        """
        history = tuple(messages)
        request = self.make_request(map(_drop_items, history) if forget_items else history, tools, options)
        written = _add_session(self.write_request(request), history)
        log_losses(written.losses)
        critical = {message.id for message in history if message.metadata.critical}
        critical_losses = [loss for loss in written.losses if loss.message_id in critical]
        if critical_losses:
            raise CriticalLossError(critical_losses[0])
        return written

    def write_request(self, request: Request) -> Written:
        """Write a request for the model, fitted to its limits."""
        written: Written = self.dialect.write_request(request, self.provider.quirks, self.model)
        return written

    def make_request(
        self,
        messages: Iterable[msg.Message],
        tools: Iterable[ToolDefinition | OpaqueTool] = (),
        options: Options | None = None,
    ) -> Request:
        """Return the request, with a call id for each call that the provider issued or accepts."""
        history = tuple(messages)
        names = self._call_wire_ids(history)
        return Request(
            model=self.model.name,
            messages=tuple(self._prepare_message(message, names) for message in history),
            tools=tuple(tools),
            options=options or Options(),
        )

    def from_wire_response(self, response: Any, context: RequestContext) -> msg.Message:
        """Return a whole reply as a message; a failed one too, with its content so far."""
        reply: Reply = self.dialect.read_reply(response)
        content = tuple(_validate_block_name(block) for block in reply.content)
        if content != reply.content:
            reply = mark_unusable(reply.replace(content=content))
        return self.make_message(reply, context)

    def make_message(
        self, reply: Reply, context: RequestContext, status: msg.MessageStatus | None = None, **metadata_fields: Any
    ) -> msg.Message:
        """Return a reply, whole or folded from a stream, as a message with further metadata."""
        make = msg.MessageMetadata if metadata_fields else _make_metadata
        metadata = make(
            model=self.model.id,
            provider=self.provider.key,
            routing=context.routing,
            usage=context.usage,
            status=status or (msg.MessageStatus.COMPLETE if reply.fault is None else msg.MessageStatus.ERROR),
            provider_raw=message_notes(reply),
            alternatives=tuple([_set_alternative_ids(each, context) for each in reply.alternatives]),
            **metadata_fields,
        )
        content = tuple([_set_block_id(block, context) for block in reply.content])
        for block in content:
            _learn_block(self, block)
        return _make_message(
            context.message_id, context.session_id, msg.Role.ASSISTANT, content, metadata, context.created_at
        )

    async def stream_response(
        self, chunks: AsyncIterable[bytes], context: RequestContext
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events of a reply as its bytes arrive; the last event is its end or its fault.

        Calls get ids of the session in the context, provider ids of complete calls are stored, and a failure is logged
        with the session.
        """
        decoder = self.stream_decoder(context)
        async for chunk in chunks:
            for event in decoder.feed(chunk):
                yield event
        for event in decoder.close():
            yield event

    def stream_decoder(self, context: RequestContext, *, joins_deltas: bool = False) -> StreamDecoder:
        """Return the decoder of one streamed reply, in whose events deltas of one chunk may be joined."""
        return StreamDecoder(self, context, joins_deltas=joins_deltas)

    def estimate_input_tokens(self, messages: Iterable[msg.Message], tools: Iterable[ToolDefinition] = ()) -> int:
        """Return an estimate of the prompt tokens, corrected by the last usage of this model among the messages."""
        return tokens.estimate_with_history(tuple(messages), tuple(tools), self.model.id)

    def _call_wire_ids(self, messages: Iterable[msg.Message]) -> dict[str, str]:
        """Return the id of each call for this provider: the issued id if the provider accepts it, else a formatted one.

        Several providers may share a dialect, and one may reject the ids of another.
        """
        wire_ids: dict[str, str] = {}
        spelling = self.provider.tool_ids
        for message in messages:
            is_native = message.metadata.provider == self.provider.key
            for block in message.content:
                if isinstance(block, msg.CallBlock):
                    issued = get_notes(block.provider_raw, self.dialect.NAME).get("id")
                    if issued and (is_native or spelling == DEFAULT_ID_FORMAT or spelling.accepts(issued)):
                        wire_ids[block.id] = issued
                    else:
                        wire_ids[block.id] = self.ids.to_provider_id(self.provider.key, block.id, spelling)
        return wire_ids

    def _prepare_message(self, message: msg.Message, wire_ids: dict[str, str]) -> msg.Message:
        """Return the message with call ids for this provider.

        Notes of another provider are removed, also within one dialect: above all its reasoning.
        """
        if message.role not in (msg.Role.ASSISTANT, msg.Role.TOOL):
            return message
        metadata, content = message.metadata, message.content
        if metadata.provider not in (None, self.provider.key):
            metadata = msgspec.structs.replace(metadata, provider_raw=None)
            content = tuple(_drop_notes(block) for block in content)
        elif metadata.provider is not None and self.dialect.NAME in _SIGNING:
            content = tuple(self._restore_reasoning(block) for block in content)
        blocks = tuple(self._prepare_block(block, wire_ids) for block in content)
        return msgspec.structs.replace(message, content=blocks, metadata=metadata)

    def _restore_reasoning(self, block: msg.ContentBlock) -> msg.ContentBlock:
        """Return signed reasoning of this provider with the note that lets it go back, if it was stored without one."""
        match block:
            case msg.ThinkingBlock(signature=str(), provider_raw=None) | msg.RedactedThinkingBlock(provider_raw=None):
                return msgspec.structs.replace(block, provider_raw={"dialect": self.dialect.NAME, "own": True})
            case _:
                return block

    def _prepare_block(self, block: msg.ContentBlock, wire_ids: dict[str, str]) -> msg.ContentBlock:
        match block:
            case (
                msg.ToolUseBlock(id=call_id)
                | msg.InvalidToolUseBlock(id=call_id)
                | msg.ToolResultBlock(tool_use_id=call_id)
            ):
                notes = get_notes(block.provider_raw, self.dialect.NAME)
                wire_id = wire_ids.get(call_id) or notes.get("id")
                wire_id = wire_id or self.ids.to_provider_id(self.provider.key, call_id, self.provider.tool_ids)
                raw = {**notes, "dialect": self.dialect.NAME, "id": wire_id}
                return msgspec.structs.replace(block, provider_raw=raw)
            case _:
                return block


class StreamDecoder:
    """Decodes one streamed reply to events with ids of the session, and stores the provider ids of complete calls."""

    def __init__(self, adapter: Adapter, context: RequestContext, *, joins_deltas: bool) -> None:
        self._adapter = adapter
        self._context = context
        self._reader = adapter.dialect.stream_reader(None, adapter.provider.quirks)
        if isinstance(self._reader, BaseStreamReader):
            self._reader.joins_deltas = joins_deltas
        self._calls: dict[int, str] = {}
        self._rejected: set[int] = set()  # the indexes of calls with an invalid name

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events of some bytes."""
        return self._record_events(self._reader.feed(chunk))

    def close(self) -> list[StreamEvent]:
        """Return the last events."""
        return self._record_events(self._reader.close())

    def _record_events(self, events: Iterable[StreamEvent]) -> list[StreamEvent]:
        result: list[StreamEvent] = []
        for event in events:
            if type(event) is TextDelta:  # most events are: there is nothing to check
                result.append(event)
            elif (valid_event := _validate_event_name(event, self._rejected)) is not None:
                result.append(self._record_event(valid_event))
        return result

    def _record_event(self, event: StreamEvent) -> StreamEvent:
        """Return the event with ids of the session; store provider ids and log faults."""
        event = _set_event_id(event, self._context)
        adapter = self._adapter
        match event:
            case ToolUseStart(index=index, id=call_id, provider_raw=raw):
                self._calls[index] = call_id
                _learn_id(adapter, call_id, raw)
            case ToolUseEnd(index=index, provider_raw=raw) if index in self._calls:
                _learn_id(adapter, self._calls[index], raw)
            case BlockComplete(block=block):
                _learn_block(adapter, block)
            case StreamError(fault=fault):
                _log_fault(fault, adapter.model.id, self._context)
        return event


def _learn_block(adapter: Adapter, block: msg.ContentBlock) -> None:
    if isinstance(block, msg.CallBlock):
        _learn_id(adapter, block.id, block.provider_raw)


def _learn_id(adapter: Adapter, call_id: str, raw: msg.ProviderRaw | None) -> None:
    """Store the provider id of a call."""
    wire_id = get_notes(raw, adapter.dialect.NAME).get("id")
    if wire_id:
        adapter.ids.add(adapter.provider.key, call_id, wire_id)


def _drop_items(message: msg.Message) -> msg.Message:
    """Return the message as if another provider had answered."""
    if message.metadata.provider is None:
        return message
    metadata = msgspec.structs.replace(message.metadata, provider="", provider_raw=None)
    return msgspec.structs.replace(message, metadata=metadata)


def _drop_notes(block: msg.ContentBlock) -> msg.ContentBlock:
    """Return the block without notes of its provider; an opaque block is unchanged."""
    if isinstance(block, msg.OpaqueBlock | msg.UnknownBlock) or block.provider_raw is None:
        return block
    return msgspec.structs.replace(block, provider_raw=None)


def _set_alternative_ids(alternative: msg.Alternative, context: RequestContext) -> msg.Alternative:
    return alternative.replace(content=tuple(_set_block_id(block, context) for block in alternative.content))


def message_notes(reply: Reply) -> msg.ProviderRaw | None:
    """Return the notes of a reply in the form of its message.

    Fields around the message of a reply are not allowed in a request, so their notes are separate.
    """
    if reply.provider_raw is None:
        return None
    reply_notes = {name: note for name, note in reply.provider_raw.items() if name not in ("dialect", "message")}
    notes = {**(reply.provider_raw.get("message") or {}), "dialect": reply.provider_raw["dialect"]}
    return {**notes, "reply": reply_notes} if reply_notes else notes


def _validate_event_name(event: StreamEvent, rejected: set[int]) -> StreamEvent | None:
    """Return the event; a call with an invalid tool name becomes an invalid block, and its other events are dropped.

    ``rejected`` collects the indexes of such calls.
    """
    match event:
        case TextDelta() | ThinkingDelta():
            return event
        case ToolUseStart(index=index, id=call_id, name=name, provider_raw=raw):
            if (problem := _name_problem(name)) is not None:
                rejected.add(index)
                return BlockComplete(index, msg.InvalidToolUseBlock(call_id, to_tool_name(name), "", problem, raw))
        case ToolUseInputDelta(index=index) | ToolUseEnd(index=index) if index in rejected:
            return None
        case BlockComplete(index=index, block=block):
            return BlockComplete(index, _validate_block_name(block))
    return event


def _validate_block_name(block: msg.ContentBlock) -> msg.ContentBlock:
    """Return the block; a call with an invalid tool name becomes an invalid call with a shorter name."""
    match block:
        case msg.ToolUseBlock(call_id, name, value, raw) if (problem := _name_problem(name)) is not None:
            text = msgspec.json.encode(value).decode()
            return msg.InvalidToolUseBlock(call_id, to_tool_name(name), text, problem, raw)
        case msg.InvalidToolUseBlock(name=name) if _name_problem(name) is not None:
            return block.replace(name=to_tool_name(name))
        case _:
            return block


def _name_problem(name: str) -> str | None:
    """Return why a tool name is invalid. Any other unknown name is answered with "no such tool"."""
    if len(name) > MAX_NAME_LENGTH:
        return f"the tool's name has {len(name)} characters; {MAX_NAME_LENGTH} are allowed"
    return "the tool's name holds a NUL" if "\0" in name else None


def _set_event_id(event: StreamEvent, context: RequestContext) -> StreamEvent:
    match event:
        case ToolUseStart(id=derived_id):
            return msgspec.structs.replace(event, id=_make_call_id(derived_id, context))
        case BlockComplete(block=block):
            return msgspec.structs.replace(event, block=_set_block_id(block, context))
        case _:
            return event


def _set_block_id(block: msg.ContentBlock, context: RequestContext) -> msg.ContentBlock:
    if isinstance(block, msg.CallBlock):
        return msgspec.structs.replace(block, id=_make_call_id(block.id, context))
    return block


def _make_call_id(derived_id: str, context: RequestContext) -> str:
    """Return a call id that is unique in the session.

    A dialect reads one reply and derives ids from it without a time. Some providers use the same ids in every reply,
    or none, so the id of the reply is added here. The same reply always gets the same ids.
    """
    if not derived_id.startswith(_TIMELESS_PREFIX):
        return derived_id
    time_ms = int(context.created_at.timestamp() * 1000)
    return "tu_" + derive_ulid(time_ms, context.session_id, context.message_id, derived_id)


def _add_session(written: Written, messages: tuple[msg.Message, ...]) -> Written:
    """Return the output with the session in losses and notes without a message: those of options and tools."""
    if not messages or all(loss.session_id for loss in (*written.losses, *written.notes)):
        return written
    session_id = messages[0].session_id
    losses = (loss if loss.session_id else loss.replace(session_id=session_id) for loss in written.losses)
    notes = (note if note.session_id else note.replace(session_id=session_id) for note in written.notes)
    return Written(written.wire, tuple(losses), tuple(notes))


def _log_fault(fault: Fault, model_id: str, context: RequestContext) -> None:
    import logging  # noqa: PLC0415  see dragoman.codec

    logging.getLogger("dragoman.adapter").warning(
        "the answer of %s failed: %s",
        model_id,
        fault.code,
        extra={
            "session_id": context.session_id,
            "message_id": context.message_id,
            "model": model_id,
            "code": fault.code,
        },
    )


def log_losses(losses: Iterable[Loss]) -> None:
    """Log each loss at WARN. There is no bus event: it is a diagnostic."""
    import logging  # noqa: PLC0415  see dragoman.codec

    for loss in losses:
        logging.getLogger("dragoman.adapter").warning(
            "left out a %s block for %s: %s",
            loss.block_type,
            loss.adapter,
            loss.reason,
            extra={
                "session_id": loss.session_id,
                "message_id": loss.message_id,
                "block_type": loss.block_type,
                "adapter": loss.adapter,
                "reason": loss.reason,
            },
        )
