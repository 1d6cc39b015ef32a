"""What is asked and what is answered, in nobody's wire format: requests, tools, replies, faults and losses.

A ``Reply`` is what came back from a model, whole or folded from a stream. It is not yet a message: the turn adds the
id, the reason for the model and the price. A ``Fault`` is a failure of the other side as a value, so that it can
travel in a stream, be stored, and be written out in another dialect. The one rule: a reply with a fault never looks
finished.
"""

from __future__ import annotations

import enum
from typing import Any, Final, Literal

import msgspec

from dragoman.jsontext import validate_json
from dragoman.message import ContentBlock, Message, ProviderRaw, TokenUsage, blocks_from
from dragoman.value import ValidatedMeta, Value


class SideEffects(enum.StrEnum):
    """The most that a tool can do. It decides about confirmation, routing and how a call is traced."""

    NONE = "none"  # pure read or computation
    READ = "read"  # filesystem or network read
    WRITE = "write"  # filesystem write
    EXECUTE = "execute"  # shell or arbitrary code execution
    NETWORK = "network"  # outbound network mutation (POST, etc.)


class ToolDefinition(Value, metaclass=ValidatedMeta, frozen=True):
    """A tool that a model may call."""

    name: str  # canonical, snake_case, globally unique
    description: str  # what the model is told about it
    input_schema: dict[str, Any]  # JSON Schema, in the subset that every provider accepts
    side_effects: SideEffects  # the most that it can do, declared honestly
    requires_workspace: bool = True  # it works on files of a workspace
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about it

    def validate(self) -> None:
        super().validate()
        validate_json(self.input_schema, "input_schema")
        if self.provider_raw is not None:
            validate_json(self.provider_raw, "provider_raw")


class OpaqueTool(Value, metaclass=ValidatedMeta, frozen=True):
    """A tool that only one dialect understands, for example a web search that the provider runs itself."""

    dialect: str  # the only dialect that may write it out again
    wire: dict[str, Any]  # the object as it stood on the wire

    def validate(self) -> None:
        validate_json(self.wire, "wire")


class ToolChoice(Value, frozen=True):
    """Whether the model may, must or must not call a tool."""

    mode: Literal["auto", "none", "required", "tool"]  # "tool": the one of that name
    name: str | None = None  # the tool that it must call


class ResponseFormat(Value, frozen=True):
    """What the answer has to look like."""

    kind: Literal["text", "json", "json_schema"]  # free, any JSON, or JSON that fits the schema
    json_schema: dict[str, Any] | None = None  # the schema
    name: str | None = None  # what the schema is called
    strict: bool | None = None  # whether the provider has to enforce it


class Reasoning(Value, frozen=True, kw_only=True):
    """How much the model shall think before it answers."""

    enabled: bool | None = None  # on or off, where that is all there is to say
    effort: str | None = None  # low, medium, high, …
    budget_tokens: int | None = None  # at most so many tokens


class Options(Value, frozen=True, kw_only=True):
    """How to answer: what most providers understand. The rest is residue of the dialect that said it."""

    max_output_tokens: int | None = None  # at most so many tokens
    temperature: int | float | None = None  # how much chance
    top_p: int | float | None = None  # from the likeliest tokens that add up to this
    top_k: int | None = None  # from so many of the likeliest tokens
    stop_sequences: tuple[str, ...] = ()  # words that end the answer
    seed: int | None = None  # for the same chance again
    presence_penalty: int | float | None = None  # against what was said at all
    frequency_penalty: int | float | None = None  # against what was said often
    tool_choice: ToolChoice | None = None  # whether to call a tool
    parallel_tool_calls: bool | None = None  # whether several at once
    response_format: ResponseFormat | None = None  # what the answer has to look like
    reasoning: Reasoning | None = None  # how much to think
    service_tier: str | None = None  # which tier to serve it on
    user: str | None = None  # who it is for, in the caller's words
    stream: bool | None = None  # whether to answer in pieces


class Request(Value, frozen=True, kw_only=True, omit_defaults=False):
    """What a model is asked."""

    model: str | None  # the model, in the provider's words
    messages: tuple[Message, ...]  # the conversation, system prompts included
    tools: tuple[ToolDefinition | OpaqueTool, ...] = ()  # what it may call
    options: Options = Options()  # how to answer
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about it


class Loss(Value, frozen=True):
    """Something that the target of a translation cannot carry."""

    session_id: str  # where it was
    message_id: str  # in which message
    block_type: str  # of the block that was left out, or the option's name
    adapter: str  # the dialect that cannot say it
    reason: str  # why not


class Written(msgspec.Struct, frozen=True):
    """A wire object, and what of the canonical one is not in it."""

    wire: Any
    losses: tuple[Loss, ...] = ()


class StopReason(enum.StrEnum):
    """Why a model stopped."""

    END_TURN = "end_turn"  # it was done
    MAX_TOKENS = "max_tokens"  # the limit on its output was reached
    STOP_SEQUENCE = "stop_sequence"  # it said one of the words that end it
    TOOL_USE = "tool_use"  # it waits for the results of its calls
    REFUSAL = "refusal"  # it, or a filter of its provider, declined
    PAUSED = "paused"  # the provider wants the same request again, to go on
    CANCELLED = "cancelled"  # we stopped it
    ERROR = "error"  # it failed; the fault says how
    UNKNOWN = "unknown"  # it ended properly and did not say why


class ErrorClass(enum.StrEnum):
    """What kind of failure, so far as it matters for what to do next."""

    RATE_LIMIT = "rate_limit"
    AUTH = "auth"
    SERVER_ERROR = "server_error"
    NETWORK = "network"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_REQUEST = "invalid_request"
    CANCELLED = "cancelled"
    OTHER = "other"


FAULT_CODES: Final = {
    "stream_incomplete": "the stream ended before the model did",
    "stream_broken": "the connection broke or fell silent before the model was done",
    "unreachable": "nobody could be reached at that address",
    "empty_response": "the model ended properly and said nothing",
    "bad_content_type": "what came is neither an answer nor a stream: a page, or an error with status 200",
    "too_large": "more came than is taken",
    "bad_event": "an event of the stream is not what it should be",
    "protocol_violation": "events out of order",
    "tool_input_truncated": "a call was cut off",
    "tool_input_invalid": "the input of a call is not a JSON object",
    "malformed_output": "the provider could not make sense of what its model said",
    "output_invalid": "the answer is not JSON, or does not fit the schema that was asked for",
    "output_truncated": "the answer reached its token limit before the JSON that was asked for was complete",
    "too_many_tool_calls": "the answer asks for more tools at once than are run",
    "unexplained_error": "the provider ended the answer as failed and did not say why",
    "overloaded": "the provider is too busy",
    "rate_limited": "too much, too fast",
    "unauthorized": "the key is missing or wrong",
    "forbidden": "the key may not do this, or its account may not",
    "not_found": "no such model, or no such thing",
    "context_overflow": "the history is longer than the model takes",
    "invalid_request": "the provider refused what was asked",
    "timeout": "the provider took too long",
    "too_many_steps": "the model kept asking for tools, and was stopped",
    "cancelled": "somebody stopped it",
    "server_error": "the provider broke",
}


class Fault(Value, metaclass=ValidatedMeta, frozen=True, kw_only=True):
    """A failure of the other side. Its texts are for people: half of a character in one is left out."""

    code: str  # stable, ours: one of FAULT_CODES
    message: str  # what happened, for people
    error_class: ErrorClass = ErrorClass.OTHER  # what kind
    retryable: bool = False  # whether the same request may work later
    retry_after_s: float | None = None  # how long the other side asked us to wait
    status: int | None = None  # HTTP status, if there was one
    provider: str | None = None  # who failed
    provider_code: str | None = None  # what the provider calls it
    request_id: str | None = None  # the provider's name for the request, to ask them about it

    def validate(self) -> None:
        for name in ("code", "message", "provider", "provider_code", "request_id"):
            text = getattr(self, name)
            if type(text) is str and not text.isascii():
                msgspec.structs.force_setattr(self, name, text.encode("utf-8", "ignore").decode())


class Reply(Value, metaclass=ValidatedMeta, frozen=True, kw_only=True):
    """What a model answered."""

    content: tuple[ContentBlock, ...] = ()  # blocks, in order
    stop_reason: StopReason  # why it stopped
    stop_sequence: str | None = None  # the word that ended it
    usage: TokenUsage | None = None  # what it consumed, if the provider said
    model: str | None = None  # the model that really answered, in the provider's words
    fault: Fault | None = None  # set if, and only if, it did not end well; the content is what arrived before
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about it

    def validate(self) -> None:
        msgspec.structs.force_setattr(self, "content", blocks_from(self.content))
        if (self.fault is not None) != (self.stop_reason is StopReason.ERROR):
            raise ValueError("stop_reason: a reply has a fault if, and only if, it stops with 'error'")
        if self.fault is not None and self.stop_sequence is not None:
            raise ValueError("stop_sequence: a reply that failed was not ended by a word")
