"""Requests, tools, replies, faults and losses, independent of any wire format.

A ``Reply`` is the answer of a model, whole or folded from a stream. The turn converts it to a message and adds the id,
the routing decision and the price. A ``Fault`` is a failure of a provider as a value, so that it can be streamed,
stored, and written in another dialect. Invariant: a reply with a fault has the stop reason ``error``.
"""

from __future__ import annotations

import enum
from typing import Any, Final, Literal

import msgspec

from dragoman.jsontext import validate_json
from dragoman.message import (
    Alternative,
    CacheHint,
    ContentBlock,
    Message,
    ProviderRaw,
    StopDetails,
    TokenUsage,
    blocks_from,
)
from dragoman.message import StopReason as StopReason  # noqa: PLC0414  exported again: it is part of a reply
from dragoman.value import ValidatedMeta, Value


class SideEffects(enum.StrEnum):
    """The strongest effect of a tool. It determines confirmation, routing and tracing of calls."""

    NONE = "none"  # pure read or computation
    READ = "read"  # filesystem or network read
    WRITE = "write"  # filesystem write
    EXECUTE = "execute"  # shell or arbitrary code execution
    NETWORK = "network"  # outbound network mutation (POST, etc.)


class Grammar(Value, frozen=True):
    """The grammar of the text that a free-form tool takes."""

    syntax: str  # lark or regex
    definition: str  # the grammar


# The input schema of a free-form tool: its text is the only property.
FREE_FORM_SCHEMA: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class ToolDefinition(Value, metaclass=ValidatedMeta, frozen=True):
    """A tool that a model may call."""

    name: str  # canonical, snake_case, globally unique
    description: str  # the description for the model
    input_schema: dict[str, Any]  # JSON Schema, in the subset that every provider accepts
    side_effects: SideEffects  # the strongest effect of the tool
    requires_workspace: bool = True  # the tool accesses files of a workspace
    provider_raw: ProviderRaw | None = None  # fields that only one dialect supports
    strict: bool | None = None  # whether the provider must enforce the schema
    cache_hint: CacheHint | None = None  # cache the prompt up to and including this tool
    defer_loading: bool | None = None  # sent to the model only after a tool search
    free_form: bool = False  # the input is one text instead of an object; see ``FREE_FORM_SCHEMA``
    grammar: Grammar | None = None  # the grammar of that text

    def validate(self) -> None:
        super().validate()
        validate_json(self.input_schema, "input_schema")
        if self.provider_raw is not None:
            validate_json(self.provider_raw, "provider_raw")


class OpaqueTool(Value, metaclass=ValidatedMeta, frozen=True):
    """A tool that the provider runs, such as a web search. Other dialects write their own tool of the same kind."""

    dialect: str  # the dialect of ``wire``
    wire: dict[str, Any]  # the original wire object
    kind: str | None = None  # one word for all dialects: web_search, web_fetch, code_execution, …
    settings: dict[str, Any] | None = None  # settings that several dialects share: allowed_domains, max_uses, …

    def validate(self) -> None:
        validate_json(self.wire, "wire")


class ToolChoice(Value, frozen=True):
    """Whether the model may, must or must not call a tool."""

    mode: Literal["auto", "none", "required", "tool"]  # "tool": the tool named below
    name: str | None = None  # the tool that it must call
    allowed: tuple[str, ...] = ()  # the tools that it may call; empty: all


class ResponseFormat(Value, frozen=True):
    """The format of the answer."""

    kind: Literal["text", "json", "json_schema"]  # any text, any JSON, or JSON that matches the schema
    json_schema: dict[str, Any] | None = None  # the schema
    name: str | None = None  # name of the schema
    strict: bool | None = None  # whether the provider must enforce it
    description: str | None = None  # purpose of the format, for the model


class Reasoning(Value, frozen=True, kw_only=True):
    """Settings of the model's reasoning before it answers."""

    enabled: bool | None = None  # on or off, for providers without other settings
    effort: str | None = None  # low, medium, high, …
    budget_tokens: int | None = None  # maximum number of tokens
    summary: str | None = None  # whether the answer shows a summary of it: none, auto, concise, detailed

    @property
    def is_off(self) -> bool:
        """Whether the model must not reason: the switch is off, or the effort is ``none``."""
        return self.enabled is False or self.effort == "none"


class Options(Value, frozen=True, kw_only=True):
    """Options that most providers support. Other options are residue of their dialect."""

    max_output_tokens: int | None = None  # maximum number of tokens
    temperature: int | float | None = None  # randomness
    top_p: int | float | None = None  # sample from the most likely tokens with this total probability
    top_k: int | None = None  # sample from this number of most likely tokens
    stop_sequences: tuple[str, ...] = ()  # texts that end the answer
    seed: int | None = None  # for reproducible sampling
    presence_penalty: int | float | None = None  # penalty for tokens that occurred
    frequency_penalty: int | float | None = None  # penalty for tokens by their frequency
    tool_choice: ToolChoice | None = None  # whether the model calls a tool
    parallel_tool_calls: bool | None = None  # whether one answer may contain several calls
    response_format: ResponseFormat | None = None  # format of the answer
    reasoning: Reasoning | None = None  # how much to reason
    service_tier: str | None = None  # the service tier
    user: str | None = None  # the end user, as the caller names them
    stream: bool | None = None  # whether to stream the answer
    n: int | None = None  # number of answers
    logprobs: bool | None = None  # whether to return the probabilities of tokens
    top_logprobs: int | None = None  # number of most likely tokens to return for each place
    verbosity: str | None = None  # length of the answer: low, medium, high
    store: bool | None = None  # whether the provider keeps the answer
    metadata: dict[str, str] | None = None  # labels that the provider keeps with the answer
    safety_identifier: str | None = None  # stable pseudonym of the end user, for abuse detection
    prompt_cache_key: str | None = None  # requests with the same key share a prompt cache
    cache_hint: CacheHint | None = None  # cache the whole prompt
    modalities: tuple[str, ...] = ()  # kinds of output: text, image, audio


class Request(Value, frozen=True, kw_only=True, omit_defaults=False):
    """A request to a model."""

    model: str | None  # the model, as the provider names it
    messages: tuple[Message, ...]  # the conversation, system prompts included
    tools: tuple[ToolDefinition | OpaqueTool, ...] = ()  # tools that the model may call
    options: Options = Options()  # options of the answer
    provider_raw: ProviderRaw | None = None  # fields that only one dialect supports


class Loss(Value, frozen=True):
    """A part that the target format of a conversion cannot represent, or represents in another way."""

    session_id: str  # session of the message
    message_id: str  # id of the message
    block_type: str  # type of the omitted block, or the name of the option
    adapter: str  # the dialect that cannot represent it
    reason: str  # the reason, or the adjustment
    kind: Literal["loss", "adjusted", "hint"] = "loss"  # left out; written in another way; a hint without effect there


class Written(msgspec.Struct, frozen=True):
    """A wire object, the losses of the conversion, and its adjustments and dropped hints."""

    wire: Any
    losses: tuple[Loss, ...] = ()  # everything that is left out
    notes: tuple[Loss, ...] = ()  # what is written in another way, and hints that have no effect there

    def __post_init__(self) -> None:
        """Move adjustments and hints from the losses to the notes."""
        if not self.losses:
            return
        others = tuple([loss for loss in self.losses if loss.kind != "loss"])
        if others:
            losses = tuple(loss for loss in self.losses if loss.kind == "loss")
            msgspec.structs.force_setattr(self, "losses", losses)
            msgspec.structs.force_setattr(self, "notes", (*self.notes, *others))

    @property
    def adjustments(self) -> tuple[Loss, ...]:
        """A value that is written in another way, because the target rejects the original."""
        return tuple(note for note in self.notes if note.kind == "adjusted")


class ErrorClass(enum.StrEnum):
    """The kind of a failure, as far as it affects the next step."""

    RATE_LIMIT = "rate_limit"
    AUTH = "auth"
    SERVER_ERROR = "server_error"
    NETWORK = "network"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_REQUEST = "invalid_request"
    CANCELLED = "cancelled"
    OTHER = "other"


FAULT_CODES: Final = {
    "stream_incomplete": "the stream ended before the answer",
    "stream_broken": "the connection broke or timed out before the end of the answer",
    "unreachable": "no connection to the address",
    "empty_response": "the answer is empty",
    "bad_content_type": "the response is neither an answer nor a stream: an HTML page, or an error with status 200",
    "too_large": "the response exceeds the limit",
    "bad_event": "an invalid event of the stream",
    "protocol_violation": "events out of order",
    "tool_input_truncated": "a call was truncated",
    "tool_input_invalid": "the input of a call is not a JSON object",
    "malformed_output": "the provider could not parse the output of its model",
    "output_invalid": "the answer is not JSON, or does not match the requested schema",
    "output_truncated": "the answer reached its token limit before the requested JSON was complete",
    "too_many_tool_calls": "the answer has more tool calls than are run",
    "unexplained_error": "the provider reported a failure without a reason",
    "overloaded": "the provider is overloaded",
    "rate_limited": "the rate limit is exceeded",
    "unauthorized": "the key is missing or wrong",
    "forbidden": "the key or its account has no permission",
    "not_found": "no such model or resource",
    "context_overflow": "the history exceeds the context of the model",
    "invalid_request": "the provider rejected the request",
    "unknown_item": "the provider does not know an item of the request, or cannot decrypt its reasoning",
    "timeout": "the provider timed out",
    "too_many_steps": "the model exceeded the limit of tool steps",
    "cancelled": "cancelled by the caller",
    "server_error": "an internal error of the provider",
}


class Fault(Value, metaclass=ValidatedMeta, frozen=True, kw_only=True):
    """A failure of a provider. Lone surrogates in its texts are dropped."""

    code: str  # stable: one of FAULT_CODES
    message: str  # description for people
    error_class: ErrorClass = ErrorClass.OTHER  # kind of failure
    retryable: bool = False  # whether the same request may succeed later
    retry_after_s: float | None = None  # the delay that the provider requested
    status: int | None = None  # HTTP status, if there was one
    provider: str | None = None  # the provider that failed
    provider_code: str | None = None  # the provider's own code
    request_id: str | None = None  # the provider's request id, for support

    def validate(self) -> None:
        for name in ("code", "message", "provider", "provider_code", "request_id"):
            text = getattr(self, name)
            if type(text) is str and not text.isascii():
                msgspec.structs.force_setattr(self, name, text.encode("utf-8", "ignore").decode())


class Reply(Value, metaclass=ValidatedMeta, frozen=True, kw_only=True):
    """The answer of a model."""

    content: tuple[ContentBlock, ...] = ()  # blocks, in order
    stop_reason: StopReason  # why the model stopped
    stop_sequence: str | None = None  # the stop sequence that ended it
    usage: TokenUsage | None = None  # tokens, if the provider reported them
    model: str | None = None  # the model that answered, as the provider names it
    fault: Fault | None = None  # set if and only if the reply failed; the content is what arrived before
    provider_raw: ProviderRaw | None = None  # fields that only one dialect supports
    stop_details: StopDetails | None = None  # more about the stop reason
    alternatives: tuple[Alternative, ...] = ()  # further answers, if several were requested; this is the first one

    def validate(self) -> None:
        msgspec.structs.force_setattr(self, "content", blocks_from(self.content))
        if (self.fault is not None) != (self.stop_reason is StopReason.ERROR):
            raise ValueError("stop_reason: a reply has a fault if and only if it is 'error'")
        if self.fault is not None and self.stop_sequence is not None:
            raise ValueError("stop_sequence: a reply with a fault has none")
