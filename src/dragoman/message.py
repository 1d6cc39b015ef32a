"""The canonical message format. Read this module first; most others convert to it or from it.

A conversation is a *session*: an ordered list of messages. A message is a role and an ordered list of typed blocks.
Tool results are separate messages (role ``tool``), and so are system prompts (role ``system``), in every dialect. The
JSON of a message is also its stored form.

    Message
      id, session_id, created_at           identity and time
      role                                 user | assistant | system | tool
      content  (blocks, in order)          text, tool_use, tool_result, image, thinking, redacted_thinking,
                                           document, audio, video, invalid_tool_use, opaque
      metadata                             model, routing, usage and cost, status
      schema_version                       version of this format

All classes are frozen, hashable structs. The module does no I/O, reads no clock and imports only the modules below it.
Invariant: the format only grows. New fields are optional, new blocks have a new ``type``, and a default never changes
its meaning, because defaults are not written.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec

from dragoman.html_repr import block_html, message_html
from dragoman.jsontext import validate_json
from dragoman.value import UNSET, OpenEnum, UnknownFields, UnknownValue, UnsetType, ValidatedMeta, Value

SCHEMA_VERSION: Final = 1

# Every object may carry fields that a newer version has added; see ``dragoman.value``.
Unknown = UnknownFields | UnsetType

# Fields of a block or a message that only one dialect supports: {"dialect": …, …}. Only that dialect reads and writes
# them. They are not part of equality or of a hash; neither are cache hints and token probabilities.
ProviderRaw = dict[str, Any]


class Role(OpenEnum):
    """The author of a message."""

    USER = "user"  # a person or a program that acts for one
    ASSISTANT = "assistant"  # a model
    SYSTEM = "system"  # the operator of the model
    TOOL = "tool"  # the result of a tool call


Count = Annotated[int, msgspec.Meta(ge=0)]

# Upper limits for the usage of one message. Larger figures are errors or forgeries: readers of provider replies drop
# them, and stores reject them. Messages that were stored before this limit existed stay readable.
MAX_TOKENS: Final = 10**12
MAX_USD: Final = Decimal(10**9)
_MAX_DECIMALS: Final = 100

NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # of a message that is not stored; the store sets the time
OMITTED_MESSAGES: Final = "omitted_messages"  # key in metadata.extra: the messages that did not fit the context window
NOT_RECORDED: Final = "not-recorded"  # a model, a reason or a price version that was not recorded
UNPRICED: Final = "unpriced"  # the pricing version of a call without a known price


# --- blocks ----------------------------------------------------------------------------------------------------------


class Block(Value, metaclass=ValidatedMeta, frozen=True):
    """Base of all known blocks."""

    def validate(self) -> None:
        super().validate()
        raw = getattr(self, "provider_raw", None)
        if raw is not None:
            validate_json(raw, "provider_raw")

    def _repr_html_(self) -> str:
        return block_html(self)


class ImageSource(Value, metaclass=ValidatedMeta, frozen=True):
    """The location of the bytes of an image, document, audio or video."""

    kind: Literal["base64", "url", "file_ref"]  # how ``data`` is interpreted
    data: str  # base64 text, URL, or workspace-relative path
    unknown_fields: Unknown = UNSET


class CacheHint(Value, frozen=True):
    """A request to cache the prompt up to and including this part. Some providers cache without a request."""

    ttl: str | None = None  # lifetime, "5m" or "1h"; absent: the provider's default
    unknown_fields: Unknown = UNSET


class Citation(Value, frozen=True, kw_only=True):
    """A source of a text, or of a part of it."""

    start: int | None = None  # first character of the text that the source supports; absent: the whole text
    end: int | None = None  # character after the last one
    url: str | None = None  # address of the source
    title: str | None = None  # title of the source
    cited_text: str | None = None  # quotation from the source
    source_id: str | None = None  # id of the source: a file, a document or a tool call
    document: int | None = None  # number of the source among the documents of the request, from 0
    unit: Literal["char", "page", "block"] | None = None  # the unit of the next two fields
    source_start: int | None = None  # first character, page or block of the source
    source_end: int | None = None  # the one after the last
    unknown_fields: Unknown = UNSET


class TokenLogprob(Value, frozen=True):
    """The logarithm of the probability of one generated token."""

    token: str  # the token as text
    logprob: int | float  # natural logarithm of its probability
    bytes: tuple[int, ...] | None = None  # its UTF-8 bytes; a token may be part of a character
    top: tuple[TokenLogprob, ...] = ()  # the most likely tokens at this place, most likely first
    unknown_fields: Unknown = UNSET


class TextBlock(Block, frozen=True, tag_field="type", tag="text"):
    """Text."""

    type: ClassVar[Literal["text"]] = "text"
    text: str  # any characters, NUL included
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    citations: tuple[Citation, ...] = ()  # sources of the text
    token_logprobs: tuple[TokenLogprob, ...] = ()  # probabilities of its tokens, if requested
    cache_hint: CacheHint | None = None  # cache the prompt up to here
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        for name in ("citations", "token_logprobs"):
            if type(items := getattr(self, name)) is not tuple:
                msgspec.structs.force_setattr(self, name, tuple(items))


class ToolUseBlock(Block, frozen=True, tag_field="type", tag="tool_use"):
    """A tool call whose input is a JSON object."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    id: str  # canonical id, tu_<ulid>; each dialect translates it
    name: str  # canonical tool name (snake_case, no provider prefix)
    input: dict[str, Any]  # a JSON object that matches the tool's input_schema
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    free_form: bool = False  # the input is one text: ``input["input"]``
    cache_hint: CacheHint | None = None  # cache the prompt up to here
    unknown_fields: Unknown = UNSET

    @property
    def free_text(self) -> str | None:
        """The text of a free-form call; ``None`` for a call with an object."""
        text = self.input.get("input") if self.free_form and len(self.input) == 1 else None
        return text if isinstance(text, str) else None

    def validate(self) -> None:
        super().validate()
        validate_json(self.input, "input")


class InvalidToolUseBlock(Block, frozen=True, tag_field="type", tag="invalid_tool_use"):
    """A tool call without a usable input. It is stored and displayed, and never executed.

    It is a separate type, so that code that runs a ``ToolUseBlock`` cannot run it by mistake.
    """

    type: ClassVar[Literal["invalid_tool_use"]] = "invalid_tool_use"
    id: str  # canonical id, tu_<ulid>
    name: str  # canonical tool name, possibly truncated
    input_text: str  # the received text in place of the input
    reason: str  # why the input cannot be used
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    unknown_fields: Unknown = UNSET


class ToolResultBlock(Block, frozen=True, tag_field="type", tag="tool_result"):
    """The result of a tool call."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_use_id: str  # the id of the ToolUseBlock
    content: tuple[ContentBlock, ...]  # usually one text; may include images
    is_error: bool = False  # the tool failed; the content describes the failure
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    cache_hint: CacheHint | None = None  # cache the prompt up to here
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        msgspec.structs.force_setattr(self, "content", blocks_from(self.content))


class ImageBlock(Block, frozen=True, tag_field="type", tag="image"):
    """An image."""

    type: ClassVar[Literal["image"]] = "image"
    source: ImageSource  # location of its bytes
    media_type: str  # IANA media type, e.g. "image/png"
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    cache_hint: CacheHint | None = None  # cache the prompt up to here
    detail: str | None = None  # resolution for the model: low, high, auto
    unknown_fields: Unknown = UNSET


class DocumentBlock(Block, frozen=True, tag_field="type", tag="document"):
    """A document, such as a PDF."""

    type: ClassVar[Literal["document"]] = "document"
    source: ImageSource  # location of its bytes
    media_type: str  # IANA media type, e.g. "application/pdf"
    name: str | None = None  # title or file name
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    cache_hint: CacheHint | None = None  # cache the prompt up to here
    context: str | None = None  # information about the document that is not cited
    cite: bool | None = None  # whether the answer should cite it
    unknown_fields: Unknown = UNSET


class AudioBlock(Block, frozen=True, tag_field="type", tag="audio"):
    """An audio recording."""

    type: ClassVar[Literal["audio"]] = "audio"
    source: ImageSource  # location of its bytes
    media_type: str  # IANA media type, e.g. "audio/wav"
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    cache_hint: CacheHint | None = None  # cache the prompt up to here
    unknown_fields: Unknown = UNSET


class VideoBlock(Block, frozen=True, tag_field="type", tag="video"):
    """A video."""

    type: ClassVar[Literal["video"]] = "video"
    source: ImageSource  # location of its bytes
    media_type: str  # IANA media type, e.g. "video/mp4"
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    cache_hint: CacheHint | None = None  # cache the prompt up to here
    unknown_fields: Unknown = UNSET


class ThinkingBlock(Block, frozen=True, tag_field="type", tag="thinking"):
    """The reasoning of a model. It is sent only to the provider that created it."""

    type: ClassVar[Literal["thinking"]] = "thinking"
    text: str  # the part that the provider returns; may be empty
    signature: str | None = None  # opaque token with which the provider verifies its reasoning
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    is_summary: bool = False  # the text is a summary that the provider made of the reasoning
    unknown_fields: Unknown = UNSET


class RedactedThinkingBlock(Block, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Reasoning that the provider returns encrypted."""

    type: ClassVar[Literal["redacted_thinking"]] = "redacted_thinking"
    data: str  # opaque provider-encoded blob
    provider_raw: ProviderRaw | None = None  # fields of this block that only one dialect supports
    unknown_fields: Unknown = UNSET


class OpaqueBlock(Block, frozen=True, tag_field="type", tag="opaque"):
    """A block that only one dialect supports, for example a web search that the provider ran."""

    type: ClassVar[Literal["opaque"]] = "opaque"
    dialect: str  # the only dialect that writes it
    wire: dict[str, Any]  # the original wire object
    provider_raw: ProviderRaw | None = None  # other fields that this dialect needs
    kind: str | None = None  # its kind, with one name for all dialects: web_search, code_execution, file, …
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        validate_json(self.wire, "wire")


class UnknownBlock(UnknownValue, frozen=True, tag_field="type", tag="unknown_block"):
    """A block with an unknown ``type`` of a newer version. It is stored and written byte for byte, and otherwise
    ignored.
    """

    @property
    def type(self) -> str:
        """The type that the newer version has written."""
        return str(msgspec.json.decode(self.raw.data)["type"])


ContentBlock = (
    TextBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | DocumentBlock
    | AudioBlock
    | VideoBlock
    | InvalidToolUseBlock
    | OpaqueBlock
    | UnknownBlock
)
CallBlock = ToolUseBlock | InvalidToolUseBlock
MediaBlock = ImageBlock | DocumentBlock | AudioBlock | VideoBlock


def blocks_from(content: Iterable[ContentBlock]) -> tuple[ContentBlock, ...]:
    """Return blocks as a tuple. Any other item raises ``ValueError``."""
    blocks = content if type(content) is tuple else tuple(content)
    for block in blocks:
        if not isinstance(block, Block | UnknownBlock):
            raise ValueError(f"content: {type(block).__name__} is not a block")
    return blocks


# --- metadata --------------------------------------------------------------------------------------------------------


class MessageStatus(enum.StrEnum):
    """The state of a message."""

    COMPLETE = "complete"  # finished; all rules apply
    PARTIAL = "partial"  # streaming in progress
    CANCELLED = "cancelled"  # user cancelled mid-generation
    ERROR = "error"  # generation failed


class RoutingMode(enum.StrEnum):
    """The kind of the routing decision. The ``route.decided`` event has the whole chain."""

    OVERRIDE = "override"  # per-message @model
    MANUAL = "manual"  # session sticky
    RULE = "rule"  # configured rule matched
    PATTERN = "pattern"  # pattern store recommendation
    DELEGATE = "delegate"  # planner delegation
    DEFAULT = "default"  # workspace or global default


class RoutingDecisionRecord(Value, metaclass=ValidatedMeta, frozen=True):
    """A compact summary of the routing decision behind an assistant message."""

    mode: RoutingMode  # the slot that decided
    chosen_model: str  # echoes metadata.model
    reason: str  # human-readable
    rule_name: str | None = None  # for RULE mode
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None  # for PATTERN mode (0..1)
    alternatives_considered: tuple[str, ...] = ()  # model ids that were considered and not chosen
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        msgspec.structs.force_setattr(self, "mode", RoutingMode(self.mode))
        if self.confidence is not None:
            if not 0 <= self.confidence <= 1:
                raise ValueError(f"confidence: {self.confidence} is not between 0 and 1")
            msgspec.structs.force_setattr(self, "confidence", float(self.confidence))
        if type(self.alternatives_considered) is not tuple:
            msgspec.structs.force_setattr(self, "alternatives_considered", tuple(self.alternatives_considered))


class TokenUsage(Value, metaclass=ValidatedMeta, frozen=True, kw_only=True):
    """The tokens of a call. The buckets are disjoint: input, cached and cache creation add up to the prompt."""

    input_tokens: Count  # prompt tokens neither read from nor written to a cache
    output_tokens: Count  # all generated tokens, reasoning included
    cached_input_tokens: Count = 0  # prompt tokens read from a cache
    cache_creation_input_tokens: Count = 0  # prompt tokens written to a cache of any lifetime
    cache_creation_1h_input_tokens: Count = 0  # the part of cache_creation_input_tokens with a lifetime of one hour
    reasoning_tokens: Count = 0  # the part of output_tokens spent on reasoning, if known
    input_audio_tokens: Count = 0  # the part of input_tokens that was audio
    output_audio_tokens: Count = 0  # the part of output_tokens that was audio
    server_tool_calls: dict[str, Count] | None = None  # calls of tools that the provider ran, by name
    service_tier: str | None = None  # the tier that served the call, if reported
    estimated: bool = False  # the provider sent no usage or an impossible one; the counts are Dragoman's estimate
    provider_cost_usd: Decimal | None = None  # the cost that the provider reported; for comparison only
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        counts = [value for name in self.__struct_fields__ if type(value := getattr(self, name)) is int]
        if min([*counts, *(self.server_tool_calls or {}).values()]) < 0:
            raise ValueError("a count is a number from 0")
        if self.provider_cost_usd is not None and not self.provider_cost_usd.is_finite():
            raise ValueError(f"provider_cost_usd: {self.provider_cost_usd} is not an amount")


class Usage(TokenUsage, frozen=True, kw_only=True):
    """The tokens and the cost of a message."""

    cost_usd: Decimal | None  # computed from the price table; null without a known price
    pricing_version: str  # version of the price table; "unpriced" without a price
    latency_ms: Count  # from the request to the last byte

    def validate(self) -> None:
        super().validate()
        if not self.is_finite():
            raise ValueError(f"cost_usd: {self.cost_usd} is not an amount")

    def is_finite(self) -> bool:
        """Whether its amounts are finite: a Decimal may also be NaN or infinite."""
        return all(amount is None or amount.is_finite() for amount in (self.cost_usd, self.provider_cost_usd))

    @property
    def amount_usd(self) -> Decimal | None:
        """The cost, or ``None`` without a known price. Earlier versions stored such a cost as 0."""
        return None if self.pricing_version in (UNPRICED, NOT_RECORDED) else self.cost_usd

    @property
    def state(self) -> Literal["priced", "unpriced"]:
        """Whether its cost is known."""
        return "unpriced" if self.amount_usd is None else "priced"


def usage_problems(usage: TokenUsage, max_count: int = MAX_TOKENS) -> dict[str, str]:
    """Return the impossible fields of a usage with a description; empty if all are possible.

    ``max_count`` is the largest possible count.
    """
    problems = {}
    for name, figure in zip(usage.__struct_fields__, msgspec.structs.astuple(usage), strict=True):
        if type(figure) is int and not 0 <= figure <= max_count:
            problems[name] = f"{name}: {_format_figure(figure)} is not between 0 and {max_count}"
        elif isinstance(figure, Decimal) and not is_possible_cost(figure):
            problems[name] = f"{name}: {_format_figure(figure)} is not an amount between 0 and {MAX_USD}"
    for name, calls in (usage.server_tool_calls or {}).items():
        if not 0 <= calls <= max_count:
            problems["server_tool_calls"] = (
                f"server_tool_calls.{name}: {_format_figure(calls)} is not between 0 and {max_count}"
            )
    return problems


AnyUsage = TypeVar("AnyUsage", bound=TokenUsage)


def without_figures(usage: AnyUsage, names: Iterable[str]) -> AnyUsage:
    """Return the usage with these fields removed: counts become 0, optional fields ``None``."""
    return usage.replace(**{name: 0 if name.endswith(("_tokens", "_ms")) else None for name in names})


def is_possible_cost(amount: Decimal) -> bool:
    """Whether a message can have this cost: finite, from 0 to MAX_USD, with at most 100 decimals."""
    exponent = amount.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -_MAX_DECIMALS and 0 <= amount <= MAX_USD


def _format_figure(figure: int | Decimal) -> str:
    if isinstance(figure, Decimal):
        return f"{figure:.3e}" if figure.is_finite() else str(figure)
    return str(figure) if figure.bit_length() <= 128 else "a number of too many digits"


class StopReason(enum.StrEnum):
    """Why a model stopped."""

    END_TURN = "end_turn"  # finished
    MAX_TOKENS = "max_tokens"  # the output limit was reached
    STOP_SEQUENCE = "stop_sequence"  # a stop sequence was generated
    TOOL_USE = "tool_use"  # the model waits for tool results
    REFUSAL = "refusal"  # the model or a filter of its provider declined
    PAUSED = "paused"  # the provider expects the same request again to continue
    CANCELLED = "cancelled"  # cancelled by the caller
    ERROR = "error"  # failed; see the fault
    UNKNOWN = "unknown"  # ended properly without a reason


class StopDetails(Value, frozen=True, kw_only=True):
    """The details that a provider adds to a stop reason."""

    category: str | None = None  # the provider's word for the kind of refusal
    explanation: str | None = None  # a sentence for people
    unknown_fields: Unknown = UNSET


class Alternative(Value, metaclass=ValidatedMeta, frozen=True, kw_only=True):
    """A further answer to a request for several. It is kept beside the first answer and never continued."""

    content: tuple[ContentBlock, ...] = ()  # blocks, in order
    stop_reason: StopReason  # why the model stopped
    stop_sequence: str | None = None  # the stop sequence that ended it
    stop_details: StopDetails | None = None  # more about the reason
    provider_raw: ProviderRaw | None = None  # fields that only one dialect supports
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        msgspec.structs.force_setattr(self, "content", blocks_from(self.content))


class Attachment(Value, frozen=True):
    """A file of a user message: its location in the storage, not a signed URL."""

    bucket: str  # storage bucket name
    path: str  # object path inside the bucket
    mime_type: str  # IANA media type, e.g. "image/jpeg"
    unknown_fields: Unknown = UNSET


class MessageMetadata(Value, metaclass=ValidatedMeta, frozen=True, kw_only=True):
    """Model, routing, cost and status of a message."""

    model: str | None = None  # canonical model id, e.g. "anthropic:claude-sonnet-4-6"
    provider: str | None = None  # provider key, e.g. "anthropic"
    routing: RoutingDecisionRecord | None = None  # why this model (assistant messages)
    usage: Usage | None = None  # tokens and cost (assistant messages)
    parent_tool_use_id: str | None = None  # the call that a tool message answers
    status: MessageStatus = MessageStatus.COMPLETE  # state of the message
    provider_raw: ProviderRaw | None = None  # fields of this message that only one dialect supports
    user_id: str | None = None  # pseudonymous user id, resolved from the API key
    team_id: str | None = None  # pseudonymous team id, resolved from the API key
    run_id: str | None = None  # the run that produced it
    stage: str | None = None  # processing stage, e.g. "intent"
    latency_ms: int | float | None = None  # processing latency of that stage
    message_id: str | None = None  # the id that the client uses
    user_message_attachments: Attachment | tuple[Attachment, ...] | None = None  # files of a user message
    critical: bool = False  # a conversion that would lose part of this message fails instead
    extra: dict[str, Any] | None = None  # other fields of the application
    alternatives: tuple[Alternative, ...] = ()  # further answers, if several were requested
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        if type(self.status) is not MessageStatus:
            msgspec.structs.force_setattr(self, "status", MessageStatus(self.status))
        if self.extra is not None:
            validate_json(self.extra, "extra")
        if self.provider_raw is not None:
            validate_json(self.provider_raw, "provider_raw")
        if self.latency_ms is not None and not math.isfinite(self.latency_ms):
            raise ValueError(f"latency_ms: {self.latency_ms} is not a time")
        if self.user_message_attachments is not None:
            attachments = self.attachments  # one attachment is written as an object, several as a list
            value = attachments if len(attachments) > 1 else attachments[0] if attachments else None
            msgspec.structs.force_setattr(self, "user_message_attachments", value)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The files of a user message, always as a tuple."""
        value = self.user_message_attachments
        return () if value is None else (value,) if isinstance(value, Attachment) else tuple(value)


# --- the message -----------------------------------------------------------------------------------------------------


class Message(Value, metaclass=ValidatedMeta, frozen=True, omit_defaults=False):
    """One message of a session: a role and blocks in order."""

    id: str  # ULID, monotonic within its session
    session_id: str  # session of the message
    role: Role  # author of the message
    content: tuple[ContentBlock, ...]  # in order; may be empty for system messages only
    metadata: MessageMetadata  # model, usage, status and other data about the message
    created_at: Annotated[datetime, msgspec.Meta(tz=True)]  # microsecond precision, UTC
    schema_version: int = SCHEMA_VERSION  # version of this format
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        if type(self.role) is not Role:
            msgspec.structs.force_setattr(self, "role", Role(self.role))
        if (blocks := blocks_from(self.content)) is not self.content:
            msgspec.structs.force_setattr(self, "content", blocks)
        if self.created_at.tzinfo is not UTC:
            msgspec.structs.force_setattr(self, "created_at", _to_utc(self.created_at))

    @classmethod
    def user(cls, *content: str | ContentBlock) -> Message:
        """A message of the user, of texts and blocks. It has no id and no time: the store sets them."""
        return _new_message(Role.USER, content)

    @classmethod
    def assistant(cls, *content: str | ContentBlock) -> Message:
        """A message of a model."""
        return _new_message(Role.ASSISTANT, content)

    @classmethod
    def system(cls, *content: str | ContentBlock) -> Message:
        """A system prompt."""
        return _new_message(Role.SYSTEM, content)

    @classmethod
    def tool(cls, tool_use_id: str, *content: str | ContentBlock, is_error: bool = False) -> Message:
        """The result of a tool call."""
        result = ToolResultBlock(tool_use_id, _blocks_from_parts(content), is_error)
        metadata = MessageMetadata(parent_tool_use_id=tool_use_id)
        return Message("", "", Role.TOOL, (result,), metadata, NO_TIME)

    @property
    def text(self) -> str:
        """The text of all its text blocks."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """Its tool calls, without those whose input is invalid."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))

    def _repr_html_(self) -> str:
        return message_html(self)


def _new_message(role: Role, content: Iterable[str | ContentBlock]) -> Message:
    return Message("", "", role, _blocks_from_parts(content), MessageMetadata(), NO_TIME)


def _blocks_from_parts(content: Iterable[str | ContentBlock]) -> tuple[ContentBlock, ...]:
    return tuple(TextBlock(part) if isinstance(part, str) else part for part in content)


def _to_utc(when: datetime) -> datetime:
    if when.tzinfo is None:
        raise ValueError("created_at: a time without a time zone")
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"created_at: {when.isoformat()} is outside the calendar in UTC") from None
