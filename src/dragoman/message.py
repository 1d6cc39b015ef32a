"""What is said: the canonical message. Start here; every other room turns something into this, or this into something.

A conversation is a *session*: an ordered list of messages. A message is a role and an ordered list of typed blocks.
Tool results are messages of their own (role ``tool``), and so are system prompts (role ``system``), whatever a
provider's wire makes of them. A message is written down as it is held: there is no second form for the database.

    Message
      id, session_id, created_at           which, where, when
      role                                 user | assistant | system | tool
      content  (blocks, in order)          text, tool_use, tool_result, image, thinking, redacted_thinking,
                                           document, audio, video, invalid_tool_use, opaque
      metadata                             who produced it, why that model, what it cost, how it ended
      schema_version                       of this format

Everything here is a frozen, hashable value. Two rules for maintainers. This room does no I/O, reads no clock and
imports nothing from the rooms above. And the format only grows: a field is added as optional, a block under a new
``type``; a default never changes its meaning, because defaults are not written down.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec

from dragoman.jsontext import validate_json
from dragoman.value import UNSET, OpenEnum, UnknownFields, UnknownValue, UnsetType, ValidatedMeta, Value

SCHEMA_VERSION: Final = 1

# Every object below may carry fields that a newer version added; see ``dragoman.value``.
Unknown = UnknownFields | UnsetType

# What only one dialect can say about a block or a message: {"dialect": …, …}. Read and written by that dialect alone;
# never part of equality or of a hash.
ProviderRaw = dict[str, Any]


class Role(OpenEnum):
    """Who speaks."""

    USER = "user"  # a person, or whoever stands in for one
    ASSISTANT = "assistant"  # a model
    SYSTEM = "system"  # whoever set the model up
    TOOL = "tool"  # a tool, answering a call


Count = Annotated[int, msgspec.Meta(ge=0)]

# What one message can have consumed and cost at most. Larger figures are errors or forgeries: no reader of a provider's
# answer passes them on, and no store accepts them. A message that was stored before this bound existed stays readable.
MAX_TOKENS: Final = 10**12
MAX_USD: Final = Decimal(10**9)
_MAX_DECIMALS: Final = 100

NOT_RECORDED: Final = "not-recorded"  # a model, a reason or a price version that nobody wrote down
UNPRICED: Final = "unpriced"  # the pricing version of a call for which no price was known


# --- blocks ----------------------------------------------------------------------------------------------------------


class Block(Value, metaclass=ValidatedMeta, frozen=True):
    """The base of every block that we know."""

    def validate(self) -> None:
        super().validate()
        raw = getattr(self, "provider_raw", None)
        if raw is not None:
            validate_json(raw, "provider_raw")


class ImageSource(Value, metaclass=ValidatedMeta, frozen=True):
    """Where the bytes of an image, document, audio or video are."""

    kind: Literal["base64", "url", "file_ref"]  # how to read data
    data: str  # base64 text, URL, or workspace-relative path
    unknown_fields: Unknown = UNSET


class TextBlock(Block, frozen=True, tag_field="type", tag="text"):
    """Words."""

    type: ClassVar[Literal["text"]] = "text"
    text: str  # any characters, NUL included
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET


class ToolUseBlock(Block, frozen=True, tag_field="type", tag="tool_use"):
    """The assistant calls a tool, with an input that parsed as a JSON object."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    id: str  # canonical id, tu_<ulid>; each dialect spells it its own way
    name: str  # canonical tool name (snake_case, no provider prefix)
    input: dict[str, Any]  # a JSON object that fits the tool's input_schema
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        validate_json(self.input, "input")


class InvalidToolUseBlock(Block, frozen=True, tag_field="type", tag="invalid_tool_use"):
    """The assistant tried to call a tool, and what arrived is not a usable input. It is kept, shown and never executed.

    A type of its own, so that no code that runs ``ToolUseBlock`` can run one of these by mistake.
    """

    type: ClassVar[Literal["invalid_tool_use"]] = "invalid_tool_use"
    id: str  # canonical id, tu_<ulid>
    name: str  # canonical tool name, as far as it arrived
    input_text: str  # exactly what arrived in place of the input
    reason: str  # why it cannot be used
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET


class ToolResultBlock(Block, frozen=True, tag_field="type", tag="tool_result"):
    """What a tool answered."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_use_id: str  # the ToolUseBlock.id that this answers
    content: tuple[ContentBlock, ...]  # usually one text; may include images
    is_error: bool = False  # the tool failed, and the content says how
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        msgspec.structs.force_setattr(self, "content", blocks_from(self.content))


class ImageBlock(Block, frozen=True, tag_field="type", tag="image"):
    """A picture."""

    type: ClassVar[Literal["image"]] = "image"
    source: ImageSource  # where its bytes are
    media_type: str  # IANA media type, e.g. "image/png"
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET


class DocumentBlock(Block, frozen=True, tag_field="type", tag="document"):
    """A document, such as a PDF."""

    type: ClassVar[Literal["document"]] = "document"
    source: ImageSource  # where its bytes are
    media_type: str  # IANA media type, e.g. "application/pdf"
    name: str | None = None  # its title or file name
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET


class AudioBlock(Block, frozen=True, tag_field="type", tag="audio"):
    """A recording."""

    type: ClassVar[Literal["audio"]] = "audio"
    source: ImageSource  # where its bytes are
    media_type: str  # IANA media type, e.g. "audio/wav"
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET


class VideoBlock(Block, frozen=True, tag_field="type", tag="video"):
    """A film."""

    type: ClassVar[Literal["video"]] = "video"
    source: ImageSource  # where its bytes are
    media_type: str  # IANA media type, e.g. "video/mp4"
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET


class ThinkingBlock(Block, frozen=True, tag_field="type", tag="thinking"):
    """The model's own reasoning. Replayed only to where it came from; never shown to another model as speech."""

    type: ClassVar[Literal["thinking"]] = "thinking"
    text: str  # what the provider shows of it; may be empty
    signature: str | None = None  # opaque provider token that lets the provider verify its own reasoning
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET


class RedactedThinkingBlock(Block, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Reasoning that the provider only hands out encrypted."""

    type: ClassVar[Literal["redacted_thinking"]] = "redacted_thinking"
    data: str  # opaque provider-encoded blob
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this block
    unknown_fields: Unknown = UNSET


class OpaqueBlock(Block, frozen=True, tag_field="type", tag="opaque"):
    """A block that only one dialect understands, for example a web search that the provider ran on its own servers."""

    type: ClassVar[Literal["opaque"]] = "opaque"
    dialect: str  # the only dialect that may write it out again
    wire: dict[str, Any]  # the object as it stood on the wire
    provider_raw: ProviderRaw | None = None  # what else that dialect has to remember
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        validate_json(self.wire, "wire")


class UnknownBlock(UnknownValue, frozen=True, tag_field="type", tag="unknown_block"):
    """A block whose ``type`` a newer version added. It is kept, written back byte for byte, and otherwise ignored."""

    @property
    def type(self) -> str:
        """The type that the newer version gave it."""
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


def blocks_from(content: Iterable[ContentBlock]) -> tuple[ContentBlock, ...]:
    """Blocks as a tuple; anything else is refused."""
    blocks = content if type(content) is tuple else tuple(content)
    for block in blocks:
        if not isinstance(block, Block | UnknownBlock):
            raise ValueError(f"content: {type(block).__name__} is not a block")
    return blocks


# --- metadata --------------------------------------------------------------------------------------------------------


class MessageStatus(enum.StrEnum):
    """How far a message has come."""

    COMPLETE = "complete"  # it is whole, and every rule holds
    PARTIAL = "partial"  # streaming in progress
    CANCELLED = "cancelled"  # user cancelled mid-generation
    ERROR = "error"  # generation failed


class RoutingMode(enum.StrEnum):
    """Why this turn picked this model, coarsely. The ``route.decided`` event has the whole chain."""

    OVERRIDE = "override"  # per-message @model
    MANUAL = "manual"  # session sticky
    RULE = "rule"  # configured rule matched
    PATTERN = "pattern"  # pattern store recommendation
    DELEGATE = "delegate"  # planner delegation
    DEFAULT = "default"  # workspace or global default


class RoutingDecisionRecord(Value, metaclass=ValidatedMeta, frozen=True):
    """A compact summary of the routing decision behind an assistant message."""

    mode: RoutingMode  # which kind of reason decided
    chosen_model: str  # echoes metadata.model
    reason: str  # human-readable
    rule_name: str | None = None  # for RULE mode
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None  # for PATTERN mode (0..1)
    alternatives_considered: tuple[str, ...] = ()  # model ids that were weighed and not taken
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
    """What a call consumed. The buckets are disjoint: input, cached and cache creation add up to the whole prompt."""

    input_tokens: Count  # prompt tokens neither read from nor written to a cache
    output_tokens: Count  # everything generated, reasoning included
    cached_input_tokens: Count = 0  # prompt tokens read from a cache
    cache_creation_input_tokens: Count = 0  # prompt tokens written to a cache, whatever its lifetime
    cache_creation_1h_input_tokens: Count = 0  # the part of cache_creation_input_tokens kept for an hour
    reasoning_tokens: Count = 0  # the part of output_tokens spent on reasoning, where known
    input_audio_tokens: Count = 0  # the part of input_tokens that was audio
    output_audio_tokens: Count = 0  # the part of output_tokens that was audio
    server_tool_calls: dict[str, Count] | None = None  # calls of tools that the provider ran, by name
    service_tier: str | None = None  # the tier that was really served, where told
    estimated: bool = False  # the provider sent no usage, or an impossible one: the counts are our own estimate
    provider_cost_usd: Decimal | None = None  # what the provider said it cost: for comparison, never used
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        counts = [value for name in self.__struct_fields__ if type(value := getattr(self, name)) is int]
        if min([*counts, *(self.server_tool_calls or {}).values()]) < 0:
            raise ValueError("a count is a number from 0")
        if self.provider_cost_usd is not None and not self.provider_cost_usd.is_finite():
            raise ValueError(f"provider_cost_usd: {self.provider_cost_usd} is not an amount")


class Usage(TokenUsage, frozen=True, kw_only=True):
    """What a message consumed, and what that cost."""

    cost_usd: Decimal | None  # computed from our price table, never the provider's figure; null if no price was known
    pricing_version: str  # which price table that was; "unpriced" if none had a price
    latency_ms: Count  # from the request to the last byte

    def validate(self) -> None:
        super().validate()
        if not self.is_finite():
            raise ValueError(f"cost_usd: {self.cost_usd} is not an amount")

    def is_finite(self) -> bool:
        """Whether its amounts are numbers: a Decimal may also be NaN or infinite."""
        return all(amount is None or amount.is_finite() for amount in (self.cost_usd, self.provider_cost_usd))

    @property
    def amount_usd(self) -> Decimal | None:
        """What it cost; none if no price was known. Earlier versions wrote such a cost as 0."""
        return None if self.pricing_version in (UNPRICED, NOT_RECORDED) else self.cost_usd

    @property
    def state(self) -> Literal["priced", "unpriced"]:
        """Whether its cost is known."""
        return "unpriced" if self.amount_usd is None else "priced"


def usage_problems(usage: TokenUsage, max_count: int = MAX_TOKENS) -> dict[str, str]:
    """What is impossible about a usage: fields, and what is wrong with them; empty if it is possible.

    ``most`` is the largest possible count.
    """
    problems = {}
    for name in usage.__struct_fields__:
        figure = getattr(usage, name)
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
    """The usage without these figures: counts are 0, and what may be unknown is."""
    return usage.replace(**{name: 0 if name.endswith(("_tokens", "_ms")) else None for name in names})


def is_possible_cost(amount: Decimal) -> bool:
    """Whether a message can have cost so much: a finite amount from 0 to MOST_USD, with at most 100 decimals."""
    exponent = amount.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -_MAX_DECIMALS and 0 <= amount <= MAX_USD


def _format_figure(figure: int | Decimal) -> str:
    if isinstance(figure, Decimal):
        return f"{figure:.3e}" if figure.is_finite() else str(figure)
    return str(figure) if figure.bit_length() <= 128 else "a number of too many digits"


class Attachment(Value, frozen=True):
    """A file that came with a user's message: where it is stored, never a signed URL."""

    bucket: str  # storage bucket name
    path: str  # object path inside the bucket
    mime_type: str  # IANA media type, e.g. "image/jpeg"
    unknown_fields: Unknown = UNSET


class MessageMetadata(Value, metaclass=ValidatedMeta, frozen=True, kw_only=True):
    """Who produced a message, why, at what cost, and how it ended."""

    model: str | None = None  # canonical model id, e.g. "anthropic:claude-sonnet-4-6"
    provider: str | None = None  # provider key, e.g. "anthropic"
    routing: RoutingDecisionRecord | None = None  # why this model (assistant messages)
    usage: Usage | None = None  # tokens and cost (assistant messages)
    parent_tool_use_id: str | None = None  # the call that a tool message answers
    status: MessageStatus = MessageStatus.COMPLETE  # how far it has come
    provider_raw: ProviderRaw | None = None  # what only one dialect can say about this message
    user_id: str | None = None  # pseudonymous principal, resolved from the key at the door
    team_id: str | None = None  # pseudonymous team, resolved from the key at the door
    run_id: str | None = None  # the run that produced it
    stage: str | None = None  # processing stage, e.g. "intent"
    latency_ms: int | float | None = None  # processing latency of that stage
    message_id: str | None = None  # the id that a client knows it by
    user_message_attachments: Attachment | tuple[Attachment, ...] | None = None  # what came with a user's message
    critical: bool = False  # losing part of this message in a translation fails the request instead
    extra: dict[str, Any] | None = None  # anything else an application wants to keep with it
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
            attachments = self.attachments  # one is written as itself, several as a list, none not at all
            value = attachments if len(attachments) > 1 else attachments[0] if attachments else None
            msgspec.structs.force_setattr(self, "user_message_attachments", value)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """Files that came with a user's message, always as a list."""
        value = self.user_message_attachments
        return () if value is None else (value,) if isinstance(value, Attachment) else tuple(value)


# --- the message -----------------------------------------------------------------------------------------------------


class Message(Value, metaclass=ValidatedMeta, frozen=True, omit_defaults=False):
    """One message of a session: a role, and blocks in order."""

    id: str  # ULID, monotonic within its session
    session_id: str  # the session it belongs to
    role: Role  # who speaks
    content: tuple[ContentBlock, ...]  # in order; may be empty for system messages only
    metadata: MessageMetadata  # everything about it that is not said in it
    created_at: Annotated[datetime, msgspec.Meta(tz=True)]  # microsecond precision, UTC
    schema_version: int = SCHEMA_VERSION  # the version of this format that it conforms to
    unknown_fields: Unknown = UNSET

    def validate(self) -> None:
        super().validate()
        if type(self.role) is not Role:
            msgspec.structs.force_setattr(self, "role", Role(self.role))
        if (blocks := blocks_from(self.content)) is not self.content:
            msgspec.structs.force_setattr(self, "content", blocks)
        if self.created_at.tzinfo is not UTC:
            msgspec.structs.force_setattr(self, "created_at", _to_utc(self.created_at))


def _to_utc(when: datetime) -> datetime:
    if when.tzinfo is None:
        raise ValueError("created_at: a time without a time zone")
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"created_at: {when.isoformat()} is before or after all time in UTC") from None
