"""Translate between the caller's dialect and the provider's. Pure.

    translate_request(request, dialect, model, provider, stream=…)    the provider's body and the losses
    write_reply(reply, form)                                          the reply for the caller
    StreamTranslator(…).feed(chunk) / close()                         the stream for the caller

Ids of tool calls keep the form that their issuer gave them, as far as the other side accepts it, so that a provider
finds its own ids in the next request. Reasoning of another provider is shown to the caller in the caller's dialect; its
signature contains the origin, so that it returns only there.

Invariant: events that do not end properly never become a stream that looks complete.
"""

from __future__ import annotations

import base64
import binascii
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from dragoman import dialects
from dragoman.catalog import Model, Provider
from dragoman.dialects.openai_responses.reply import rename_items
from dragoman.event import (
    Accumulator,
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
    mark_unusable,
)
from dragoman.exchange import Fault, Loss, Reply, Request, StopReason, Written
from dragoman.gateway.tool_forms import ToolForms
from dragoman.ids import ToolIds
from dragoman.message import (
    CallBlock,
    ContentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    ProviderRaw,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.prompt_cache import place_cache_hints
from dragoman.wire.stream_writer import BaseStreamWriter

# The note with which a dialect recognizes its own reasoning.
_OWN_REASONING: Final[dict[str, ProviderRaw]] = {
    "anthropic": {"own": True},
    "bedrock_converse": {"own": True},
    "cohere": {"form": "thinking"},
    "gemini": {"own": True},
    "ollama": {},
    "ollama_generate": {},
    "openai_chat": {"at": "reasoning_content"},
    "openai_responses": {"own": True},
}
# The note with which the APIs of OpenAI recognize a refusal that is a part of an answer.
_REFUSALS: Final[dict[str, ProviderRaw]] = {"openai_chat": {"at": "refusal"}, "openai_responses": {"form": "refusal"}}
_SIGNATURE: Final = "dragoman."  # of reasoning of another dialect: base64 of dragoman.<dialect>.<its signature>
SIGNATURE_MARK: Final = base64.b64encode(_SIGNATURE.encode())  # the beginning of all of these signatures
_ITEM_END: Final = "~"  # between the id of a reasoning item and its signature
_MAX_ID_LENGTH: Final = 64
_SIGNED: Final = ("anthropic", "bedrock_converse", "gemini", "openai_responses")  # dialects whose reasoning is signed
_TEXT_RESULTS: Final = ("openai_chat",)  # results of tools are text only, and messages of the user have images
_LIFTED: Final = TextBlock("[image: in the next message of the user]")
_LIFTED_HEAD: Final = TextBlock("[images of the results of the tools]")
_INPUT_AS_TEXT: Final = ("cohere", "openai_chat", "openai_responses")  # their clients parse the input of a call
_CALLS_AND_RESULTS: Final = (ToolUseBlock, InvalidToolUseBlock, ToolResultBlock)
_STREAM_END: Final = b"data: [DONE]\n\n"  # Open Responses demands it; clients of OpenAI ignore it


# --- requests --------------------------------------------------------------------------------------------------------


def translate_request(
    request: Request, dialect: str, model: Model, provider: Provider, *, stream: bool, with_caching: bool = False
) -> Written:
    """Write a request that was read in ``dialect`` for a provider."""
    names = _Names(ToolIds(), ToolForms(request.tools), is_same=provider.dialect == dialect)
    messages = tuple([_prepare_message(message, provider, names) for message in request.messages])
    if provider.dialect in _TEXT_RESULTS and not names.is_same and model.accepts_images:
        messages = _lift_images(messages)
    options = request.options.replace(stream=True if stream else None)
    if provider.dialect == "openai_responses" and not names.is_same:
        options = options.replace(store=False)  # the state is here, and reasoning returns by its encrypted content
    tools = request.tools if names.is_same else names.forms.tools
    if with_caching and not names.is_same and options.cache_hint is None:
        messages, tools = place_cache_hints(messages, tools, model, provider)
    target = request.replace(model=model.name, messages=messages, options=options, tools=tools)
    written: Written = dialects.load(provider.dialect).write_request(target, provider.quirks, model)
    return written


class _Names(msgspec.Struct, frozen=True):
    """The ids and names of the calls of one request."""

    ids: ToolIds
    forms: ToolForms
    is_same: bool  # whether caller and provider have the same dialect


def _prepare_message(message: Message, provider: Provider, names: _Names) -> Message:
    if message.role not in (Role.ASSISTANT, Role.TOOL):
        return message
    content = tuple([_prepare_block(block, provider, names) for block in message.content])
    return msgspec.structs.replace(message, content=content)


def _prepare_block(block: ContentBlock, provider: Provider, names: _Names) -> ContentBlock:
    if isinstance(block, TextBlock):
        return block
    if isinstance(block, ThinkingBlock):
        return _restore_reasoning(block, provider.dialect)
    if not isinstance(block, _CALLS_AND_RESULTS) or names.is_same:
        return block
    if isinstance(block, ToolResultBlock):
        call_id = block.tool_use_id
    else:
        block = names.forms.to_provider(block)
        call_id = block.id
    ids, raw = names.ids, block.provider_raw or {}
    issued = raw.get("id")
    if isinstance(issued, str) and provider.tool_ids.accepts(issued):
        ids.add(provider.key, call_id, issued)
    wire_id = ids.to_provider_id(provider.key, call_id, provider.tool_ids)
    own = raw if raw.get("dialect") == provider.dialect else {}
    # Notes that were validated, and an id: no validation is necessary.
    return msgspec.structs.replace(block, provider_raw={**own, "dialect": provider.dialect, "id": wire_id})


def _lift_images(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Move the images of results into the message of the user after them."""
    lifted: list[Message] = []
    images: list[ContentBlock] = []
    for message in messages:
        if message.role is Role.TOOL:
            images += [block for result in message.content for block in _images_of(result)]
            content = tuple(map(_without_images, message.content))
            lifted.append(msgspec.structs.replace(message, content=content) if images else message)
            continue
        if images and message.role is Role.USER:
            content = (_LIFTED_HEAD, *images, *message.content)
            lifted.append(msgspec.structs.replace(message, content=content))
        else:
            lifted += [_image_message(lifted[-1], images), message] if images else [message]
        images = []
    return (*lifted, _image_message(lifted[-1], images)) if images else tuple(lifted)


def _images_of(block: ContentBlock) -> list[ContentBlock]:
    return (
        [part for part in block.content if isinstance(part, ImageBlock)] if isinstance(block, ToolResultBlock) else []
    )


def _without_images(block: ContentBlock) -> ContentBlock:
    if not isinstance(block, ToolResultBlock) or not _images_of(block):
        return block
    return block.replace(content=tuple(_LIFTED if isinstance(part, ImageBlock) else part for part in block.content))


def _image_message(after: Message, images: list[ContentBlock]) -> Message:
    return after.replace(role=Role.USER, content=(_LIFTED_HEAD, *images), metadata=MessageMetadata())


def _restore_reasoning(block: ThinkingBlock, dialect: str) -> ThinkingBlock:
    """Return reasoning with its original signature, if it returns to the dialect that produced it."""
    try:
        text = base64.b64decode(block.signature or "", validate=True).decode()
    except (binascii.Error, ValueError):
        return block
    prefix = f"{_SIGNATURE}{dialect}."
    if text.startswith(_SIGNATURE) and not text.startswith(prefix):
        return ThinkingBlock(block.text)  # of another dialect than the provider's: its signature would be rejected
    if dialect not in _OWN_REASONING or not text.startswith(prefix):
        return block
    item_id, _, signature = text.removeprefix(prefix).rpartition(_ITEM_END)
    raw = _own_reasoning(dialect)
    if item_id:
        raw["residue"] = {"set": {"id": item_id}}
    return ThinkingBlock(block.text, signature or None, raw)


# --- replies ---------------------------------------------------------------------------------------------------------


def read_reply(dialect: str, body: bytes) -> Reply:
    """Read a whole reply. Raises ``InputError`` if it is not one."""
    reply: Reply = dialects.load(dialect).read_reply(body)
    return mark_unusable(reply)


def is_answer(reply: Reply) -> bool:
    """Whether the caller receives a reply as an answer. An empty one is, as in a stream: models end a turn so."""
    return reply.fault is None or reply.fault.code == "empty_response"


class CallerForm(msgspec.Struct, frozen=True):
    """The facts about a call that its reply depends on, if the caller has another dialect."""

    dialect: str
    model: str  # for a reply that does not name its model: those of Cohere and Bedrock do not
    identity: dict[str, Any]  # top-level fields of the reply
    tools: ToolForms
    new_call_id: Callable[[], str]
    end_fields: Callable[[], dict[str, Any]] = dict  # top-level fields that are known at the end only

    def call_notes(self, name: str, raw: ProviderRaw | None) -> ProviderRaw:
        """Return the notes of a call: the provider's id, or a new one if it has none, and its namespace."""
        issued = (raw or {}).get("id")
        is_usable = isinstance(issued, str) and 0 < len(issued) <= _MAX_ID_LENGTH
        call_id = issued if is_usable else self.new_call_id()
        return {"dialect": self.dialect, "id": call_id, **self.tools.caller_notes(name)}


def write_reply(reply: Reply, form: CallerForm) -> Written:
    """Write a reply for a caller of another dialect."""
    if reply.fault is not None and is_answer(reply):
        reply = reply.replace(content=(), stop_reason=StopReason.END_TURN, fault=None)
    elif any(isinstance(block, TextBlock) and _is_refusal(block.provider_raw, form.dialect) for block in reply.content):
        reply = reply.replace(stop_reason=StopReason.END_TURN)  # the part says it
    content = tuple(_to_client_block(block, form) for block in reply.content)
    named = reply.replace(content=content, model=reply.model or form.model)
    written: Written = dialects.load(form.dialect).write_reply(named)
    wire = {**written.wire, **form.identity, **form.end_fields()}
    if form.dialect == "openai_responses":
        wire["output"] = rename_items(wire["output"], wire["id"].partition("_")[2])
    return Written(wire, written.losses)


def _to_client_block(block: ContentBlock, form: CallerForm) -> ContentBlock:
    if isinstance(block, CallBlock):
        notes = form.call_notes(block.name, block.provider_raw)
        return form.tools.to_caller(block).replace(provider_raw=notes)
    if isinstance(block, ThinkingBlock):
        signature = _sign(block.signature, _origin(block.provider_raw), _item_id(block.provider_raw))
        return ThinkingBlock(block.text, signature, _own_reasoning(form.dialect))
    if isinstance(block, TextBlock) and _is_refusal(block.provider_raw, form.dialect):
        return block.replace(provider_raw=_own_refusal(form.dialect))
    return block


def _is_refusal(raw: ProviderRaw | None, dialect: str) -> bool:
    """Whether a text is a refusal by its notes, and the caller's dialect has refusals as well."""
    notes = _REFUSALS.get(_origin(raw)) if raw is not None and dialect in _REFUSALS else None
    return raw is not None and notes is not None and notes.items() <= raw.items()


def _own_refusal(dialect: str) -> ProviderRaw:
    return {"dialect": dialect, **_REFUSALS[dialect]}


def _origin(raw: ProviderRaw | None) -> str:
    return str((raw or {}).get("dialect") or "unknown")


def _item_id(raw: ProviderRaw | None) -> str | None:
    """Return the id of a reasoning item, to which the Responses API ties the encrypted content."""
    match raw:
        case {"residue": {"set": {"id": str(item_id)}}}:
            return item_id
        case _:
            return None


def _sign(signature: str | None, origin: str, item_id: str | None = None) -> str:
    """Return a signature that contains the origin. It is base64, as clients of some APIs expect."""
    issued = f"{item_id}{_ITEM_END}{signature or ''}" if item_id is not None else signature or ""
    return base64.b64encode(f"{_SIGNATURE}{origin}.{issued}".encode()).decode()


def _own_reasoning(dialect: str) -> ProviderRaw:
    return {"dialect": dialect, **_OWN_REASONING[dialect]}


# --- streams ---------------------------------------------------------------------------------------------------------


class StreamTranslator:
    """Reads a provider's stream and writes it in the caller's dialect. ``accumulator`` has the reply so far."""

    def __init__(self, provider: Provider, form: CallerForm, framing: str | None, *, with_usage: bool = True) -> None:
        self._reader = dialects.load(provider.dialect).stream_reader(None, provider.quirks)
        self._writer = _open_writer(form.dialect, framing)
        self._writer.identity = form.identity
        self._origin = provider.dialect
        self._form = form
        self._dialect = form.dialect
        self._call_ids: dict[int, ProviderRaw] = {}
        self._item_ids: dict[int, str] = {}  # of reasoning
        self._texts: set[int] = set()  # calls of tools that take one text; they are written whole
        self._has_refusal = False  # whether a refusal is a part of the answer
        self._empty: set[int] = set()  # calls without input so far
        self._empty_end: ToolUseEnd | None = None  # of such a call; the next event decides whether it was cut off
        self._signed: set[int] = set()  # reasoning whose signature has arrived
        self._thought: int | None = None  # reasoning that has no end yet
        self._with_usage = with_usage
        self.accumulator = Accumulator()
        self.fault: Fault | None = None
        self.has_content = False  # whether anything of the answer has arrived
        self.is_complete = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the caller's bytes for a chunk of the provider's stream."""
        events = self._reader.feed(chunk)
        return self._write(events[0]) if len(events) == 1 else b"".join(map(self._write, events))

    def close(self) -> bytes:
        """Return the last bytes."""
        out = b"".join(map(self._write, self._reader.close()))
        return out + self._close_writer()

    def fail(self, fault: Fault) -> bytes:
        """Return the bytes that end the stream with a failure."""
        return self._write(StreamError(fault))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of the events so far: parts that the caller's dialect cannot represent."""
        return self._writer.losses

    def _close_writer(self) -> bytes:
        data: bytes = self._writer.close()
        return data + _STREAM_END if self._dialect == "openai_responses" and self.is_complete else data

    def _write(self, event: StreamEvent) -> bytes:
        if type(event) is TextDelta:  # most events are; the text is the same for the caller
            self.accumulator.add(event)
            self.has_content = True
            if event.provider_raw is not None and _is_refusal(event.provider_raw, self._dialect):
                self._has_refusal = True
                event = event.replace(provider_raw=_own_refusal(self._dialect))
            return self._end_parts(event) + self._writer.feed(event)
        self._note(event)
        if isinstance(event, MessageComplete):
            self._writer.identity = {**self._form.identity, **self._form.end_fields()}
        if isinstance(event, UsageUpdate) and not self._with_usage:
            return b""
        data = self._end_parts(event)
        client_event = self._to_client_event(event)
        return data + self._writer.feed(client_event) if client_event is not None else data

    def _end_parts(self, event: StreamEvent) -> bytes:
        """End the reasoning and the call before an event that starts another part, or that ends the message."""
        if self._thought is None and self._empty_end is None:
            return b""
        match event:
            case ThinkingDelta(index=index) if index == self._thought:
                return b""
            case TextDelta() | ThinkingDelta() | ToolUseStart() | ToolUseEnd() | BlockComplete():
                return self._end_thought() + self._end_empty_call(is_whole=True)
            case MessageComplete(stop_reason=reason):
                return self._end_thought() + self._end_empty_call(is_whole=reason is not StopReason.MAX_TOKENS)
            case _:
                return b""

    def _end_thought(self) -> bytes:
        """End reasoning. Without a signature of its provider it gets one with its origin.

        The Messages API has one open block at a time, and rejects reasoning without a signature later.
        """
        if self._thought is None:
            return b""
        index, self._thought = self._thought, None
        signature = self._own_signature(index)
        if signature is None and self._dialect != "anthropic":
            return b""
        return self._writer.feed(ThinkingDelta(index, "", signature, _own_reasoning(self._dialect)))

    def _end_empty_call(self, *, is_whole: bool) -> bytes:
        """End a call without input. Clients parse the input, so that of a whole call is an empty object."""
        if self._empty_end is None:
            return b""
        end, self._empty_end = self._empty_end, None
        data = self._writer.feed(ToolUseInputDelta(end.index, "{}")) if is_whole else b""
        return data + self._writer.feed(end)

    def _own_signature(self, index: int) -> str | None:
        """Return a signature with the origin of reasoning; none if its provider has signed it."""
        return None if index in self._signed else _sign(None, self._origin, self._item_ids.get(index))

    def _note(self, event: StreamEvent) -> None:
        self.accumulator.add(event)
        match event:
            case StreamError(fault=fault):
                self.fault = self.fault or fault
            case MessageComplete():
                self.is_complete = True
            case MessageStart() | UsageUpdate():
                pass
            case _:
                self.has_content = True

    def _to_client_event(self, event: StreamEvent) -> StreamEvent | None:
        match event:
            case MessageStart(model=model):
                return event.replace(model=model or self._form.model)
            case ToolUseStart(index=index) if self._form.tools.takes_text(event.name):
                self._texts.add(index)
                return None
            case ToolUseInputDelta(index=index) if index in self._texts:
                return None
            case ToolUseInputDelta(index=index, partial_json=text):
                if text:
                    self._empty.discard(index)
                return event
            case ToolUseEnd(index=index) if index in self._texts:
                return self._whole_call(index)
            case ToolUseStart(index=index, name=name, provider_raw=raw):
                self._call_ids[index] = notes = self._form.call_notes(name, raw)
                if self._dialect in _INPUT_AS_TEXT:
                    self._empty.add(index)
                return event.replace(name=self._form.tools.caller_name(name), provider_raw=notes)
            case ToolUseEnd(index=index):
                end = event.replace(provider_raw=self._end_notes(index))
                if index not in self._empty:
                    return end
                self._empty_end = end
                return None
            case MessageComplete(stop_reason=StopReason.REFUSAL) if self._has_refusal:
                return event.replace(stop_reason=StopReason.END_TURN)
            case BlockComplete(block=block):
                return event.replace(block=_to_client_block(block, self._form))
            case ThinkingDelta():
                return self._to_client_thought(event)
            case StreamError(fault=fault):
                return event.replace(fault=self._to_client_fault(fault), provider_raw=None)
            case _:
                return event

    def _to_client_thought(self, delta: ThinkingDelta) -> ThinkingDelta:
        index, signature = delta.index, delta.signature or None
        if (item_id := _item_id(delta.provider_raw)) is not None:
            self._item_ids[index] = item_id
        if signature is not None:
            self._signed.add(index)
            signature = _sign(signature, self._origin, self._item_ids.get(index))
        elif not delta.text and self._thought == index and self._dialect == "anthropic":  # it closes the block
            signature = self._own_signature(index)
        if delta.text and self._dialect in _SIGNED:
            self._thought = index
        return delta.replace(signature=signature, provider_raw=_own_reasoning(self._dialect))

    def _whole_call(self, index: int) -> BlockComplete | None:
        block = self.accumulator.blocks[index]
        return BlockComplete(index, _to_client_block(block, self._form)) if isinstance(block, CallBlock) else None

    def _end_notes(self, index: int) -> ProviderRaw | None:
        """Return the notes of a call at its end. A call with notes counts as native, so an unusable one has none."""
        block = self.accumulator.blocks.get(index)
        is_usable = isinstance(block, ToolUseBlock) and (block.input or self._dialect != "ollama")
        return self._call_ids.get(index) if is_usable else None

    def _to_client_fault(self, fault: Fault) -> Fault:
        """Return a fault for the caller. One that names an unusable call is a failure of its own without that call."""
        has_call = any(isinstance(block, InvalidToolUseBlock) for block in self.accumulator.blocks.values())
        if fault.code == "tool_input_invalid" and not has_call:
            fault = fault.replace(code="server_error")
        return fault.replace(provider_code=None)


def failure_frames(dialect: str, framing: str | None, fault: Fault) -> bytes:
    """Return the bytes that end a stream that already began with a failure."""
    return _open_writer(dialect, framing).write_failure(StreamError(fault))


def _open_writer(dialect: str, framing: str | None) -> BaseStreamWriter:
    """Return a writer of a dialect that clients of the gateway use: each of them has this base."""
    return typing.cast("BaseStreamWriter", dialects.load(dialect).stream_writer(framing))


def loss_names(losses: Iterable[Loss]) -> tuple[str, ...]:
    """Return the names of what was lost, each once."""
    return tuple(dict.fromkeys([loss.block_type for loss in losses]))
