"""The limits of a target: what its API and its models accept.

    Limits                        the limits of one model
    LimitTable(base, families)    the limits of an API, and where the families of its models differ
    find_limits(table, name, model, quirks) -> Limits
    Report(dialect)               the adjustments and losses of one request
    CLAUDE_FAMILIES               the families of Claude, for the table of every API that serves them

Each dialect has a table in its module ``support``. Invariant: a field that is not set means that the target is not
known to reject anything.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from dragoman.exchange import Loss
from dragoman.message import Message

if TYPE_CHECKING:
    from dragoman.catalog import Model

Range = tuple[float, float]
Families = tuple[tuple[str, dict[str, Any]], ...]  # a pattern of names of models, and the fields that differ
UNKNOWN_OUTPUT: Final = 4_096  # the default of a model's row: the limit is not known


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a model through its API."""

    # sampling
    ranges: dict[str, Range] = {}  # by name of the option; a value outside is moved to the nearest bound
    rejected: tuple[str, ...] = ()  # options that the model does not have
    rejected_beside_reasoning: tuple[str, ...] = ()
    is_effort_reasoning: bool = True  # an effort alone turns reasoning on
    one_of_temperature_top_p: bool = False
    max_stop_sequences: int | None = None
    allows_blank_stop: bool = True
    # the answer
    output: tuple[int, int] | None = None  # least and greatest number of output tokens
    default_output: int | None = None  # if the API requires a number and the request has none
    default_output_whole: int | None = None  # at most this default for an answer that is not streamed
    needs_json_word: Literal["no", "any role", "not system"] = "no"  # in a message, to ask for any JSON
    allows_format_beside_tools: bool = True
    # reasoning
    reasons: bool = True
    efforts: tuple[str, ...] | None = None  # from least to greatest; ``None``: any; empty: no such setting
    budget: tuple[int, int] | None = None  # least and greatest number of tokens; ``None``: no such setting
    is_budget_in_output: bool = False  # a budget must be below the output limit
    allows_effort_and_budget: bool = True
    has_switch: bool = True  # reasoning can be turned on without an effort and without a budget
    can_disable: bool = True
    # tools
    choice_needs_tools: bool = True
    allows_parallel: bool = True
    allows_forced_choice_beside_budget: bool = True
    needs_closed_schemas: bool = False  # of strict tools: every property is required, and no others are allowed
    max_strict_tools: int | None = None
    needs_schema_type: bool = False  # the schema of every tool has a type
    # messages
    allows_empty_text: bool = True
    allows_blank_text: bool = True
    starts_with_user: Literal["always", "before calls", "never"] = "never"
    ends_with_user: bool = False
    system_place: Literal["any", "not last", "first"] = "any"  # of system messages in the list
    allows_trailing_space: bool = True  # at the end of an assistant message that the model continues
    alternates: bool = False  # two messages of one role must not follow each other
    media_types: dict[str, tuple[str, ...]] = {}  # by type of block: the types of its bytes; any other block: any type
    url_schemes: tuple[str, ...] = ()  # of media; empty: any
    max_user_length: int | None = None
    service_tiers: tuple[str, ...] | None = None  # ``None``: not known; empty: there is one tier


class LimitTable(msgspec.Struct, frozen=True):
    """The limits of an API and of the families of its models."""

    dialect: str
    base: Limits
    families: Families = ()
    quirks: Families = ()  # the same by the quirk of a provider
    has_result_ids: bool = True  # results name their calls by an id
    may_end_in_reasoning: bool = False  # the API accepts reasoning without an answer

    def __hash__(self) -> int:
        return hash(self.dialect)


def find_limits(table: LimitTable, name: str | None, model: Model | None, quirks: Collection[str]) -> Limits:
    """Return the limits of a model, by its name and its row."""
    limits = _find_by_name(table, (model.name if model is not None else name) or "", frozenset(quirks))
    return limits if model is None else _apply_row(limits, model)


@functools.lru_cache(maxsize=1024)
def _find_by_name(table: LimitTable, name: str, quirks: frozenset[str]) -> Limits:
    limits = table.base
    for pattern, changes in table.families:
        if re.search(pattern, name):
            limits = msgspec.structs.replace(limits, **changes)
    for quirk, changes in table.quirks:
        if quirk in quirks:
            limits = msgspec.structs.replace(limits, **changes)
    return limits


def _apply_row(limits: Limits, model: Model) -> Limits:
    capabilities = model.capabilities
    changes: dict[str, Any] = {}
    image_types = limits.media_types.get("image")
    if not model.accepts_images:
        image_types = ()
    elif capabilities.accepted_image_media_types:
        image_types = capabilities.accepted_image_media_types
    if image_types is not None:
        changes["media_types"] = {**limits.media_types, "image": image_types}
    if model.is_declared and capabilities.max_output_tokens != UNKNOWN_OUTPUT:
        least = limits.output[0] if limits.output is not None else 1
        changes["output"] = (least, capabilities.max_output_tokens)
        if limits.default_output is not None:
            share = max(UNKNOWN_OUTPUT, capabilities.max_context_tokens // 8)
            changes["default_output"] = min(capabilities.max_output_tokens, share)
    return msgspec.structs.replace(limits, **changes) if changes else limits


class Report:
    """The adjustments and losses of one request."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.adjustments: list[Loss] = []
        self.losses: list[Loss] = []

    def adjust(self, name: str, reason: str, message: Message | None = None) -> None:
        """Record a change of an option, or of a block of a message."""
        self.adjustments.append(Loss(*_place_of(message), name, self.dialect, reason, "adjusted"))

    def lose(self, name: str, reason: str, message: Message | None = None) -> None:
        """Record an option, or a block of a message, that is left out."""
        self.losses.append(Loss(*_place_of(message), name, self.dialect, reason))


def _place_of(message: Message | None) -> tuple[str, str]:
    return (message.session_id, message.id) if message is not None else ("", "")


# --- Claude ----------------------------------------------------------------------------------------------------------

# Sources: platform.claude.com, the pages on models, extended and adaptive thinking, effort, and migration (2026).
_CLAUDE_FIRST: Final = r"claude-(?:v?[12]|instant|3-(?:opus|sonnet|haiku))"
CLAUDE_WITH_BUDGET: Final = r"claude-(?:3-7|[a-z]+-4(?:-[015]\b|-20|$))"  # reasons with a budget only
_CLAUDE_WITHOUT_BUDGET: Final = r"claude-(?:[a-z]+-4-[7-9]|[a-z]+-[5-9])"  # decides its reasoning and sampling itself
CLAUDE_FAMILIES: Final[Families] = (
    (
        r"claude",
        {
            "output": (1, 128_000),
            "budget": (1_024, 128_000),
            "is_budget_in_output": True,
            "efforts": ("low", "medium", "high", "max"),
            "is_effort_reasoning": False,
            "rejected_beside_reasoning": ("temperature", "top_p", "top_k"),
            "allows_forced_choice_beside_budget": False,
        },
    ),
    (_CLAUDE_FIRST, {"output": (1, 4_096), "reasons": False}),
    (r"claude-3-5-", {"output": (1, 8_192), "reasons": False}),
    (r"claude-(?:3-7|(?:sonnet|haiku)-4(?:-[05]\b|-20|$)|opus-4-5)", {"output": (1, 64_000)}),
    (r"claude-opus-4(?:-[01]\b|-20|$)", {"output": (1, 32_000)}),
    (CLAUDE_WITH_BUDGET, {"has_switch": False, "efforts": ()}),
    (r"claude-opus-4-5", {"efforts": ("low", "medium", "high")}),
    (
        _CLAUDE_WITHOUT_BUDGET,
        {
            "rejected": ("temperature", "top_p", "top_k"),
            "budget": None,
            "efforts": ("low", "medium", "high", "xhigh", "max"),
        },
    ),
    (r"claude-(?:opus-4-1|[a-z]+-4-[56])", {"one_of_temperature_top_p": True}),
)
