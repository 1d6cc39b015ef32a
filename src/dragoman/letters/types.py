"""What a letter is made of: the envelope, the three payloads, and every field in them.

    TaskResultLetter    a task is done, wholly, partly or not, and this is what came of it
    ErrorLetter         something failed on the way
    NeedsInputLetter    somebody has to say something before it can go on

The top-level ``type`` says which of the three it is. A field that was not given is ``UNSET``, which is false; nothing
here is ever null. A field that no version known here declares is kept with its bytes in ``unknown_fields`` and written
again. ``context`` is open; the keys of it that have a meaning are ``KnownContext``. The one rule: what these types take
is what the published schema takes, and a test compares the two.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.value import UnknownFields, Value

PROTOCOL_VERSION: Final = "1.3"  # what we write; every 1.x is read
HUMAN: Final = "HUMAN"  # the recipient that stands for a person


LAST_LINE: Final = r"(?!\n)"  # Python's $ also matches before a line break at the end, a schema's does not


def _text(expected: str, pattern: str | None = None, **options: Any) -> Meta:
    """What a text looks like, and how that is said to people."""
    strict = None if pattern is None else pattern + LAST_LINE
    return Meta(pattern=strict, extra_json_schema={"description": expected}, extra={"expected": expected}, **options)


def _number(expected: str, **bounds: Any) -> Meta:
    return Meta(extra_json_schema={"description": expected}, extra={"expected": expected}, **bounds)


Name: TypeAlias = Annotated[
    str, _text("capital letters, digits, '_' and '-', as in TASK-070C", "^[A-Z0-9_-]+$", max_length=128)
]
Version: TypeAlias = Annotated[str, _text("a major and a minor number, as in 1.3", r"^[0-9]{1,9}\.[0-9]{1,9}$")]
LetterId: TypeAlias = Annotated[
    str, _text("1 to 128 letters, digits and the signs _.:-", "^[A-Za-z0-9_.:-]+$", min_length=1, max_length=128)
]
Time: TypeAlias = Annotated[
    str,
    Meta(
        max_length=64,
        extra={"expected": "a time with its zone, as in 2025-05-21T20:00:00Z"},
        extra_json_schema={
            "description": "a time with its zone, as in 2025-05-21T20:00:00Z",
            "format": "date-time",
        },
    ),
]
Filled: TypeAlias = Annotated[str, _text("a text that is not empty", min_length=1)]
Notes: TypeAlias = Annotated[str, _text("a text of at most 1000 characters", max_length=1000)]
_AMOUNT: Final = _number("a number from 0", ge=0)
_SCORE: Final = _number("a number from 0 to 1", ge=0, le=1)
Amount: TypeAlias = Annotated[int, _AMOUNT] | Annotated[float, _AMOUNT]
Score: TypeAlias = Annotated[int, _SCORE] | Annotated[float, _SCORE]
Count: TypeAlias = Annotated[int, _number("a whole number from 0", ge=0)]
Scalar: TypeAlias = str | int | float | bool
Unknown: TypeAlias = UnknownFields | UnsetType

Status: TypeAlias = Literal["success", "partial_success", "failed"]
InputType: TypeAlias = Literal["string", "number", "boolean", "enum", "file"]


# --- a result --------------------------------------------------------------------------------------------------------


class Artifact(Value, frozen=True, kw_only=True):
    """Something that a task left behind. Its path is a text like any other: nothing here ever opens it."""

    type: str
    path: str
    description: str | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


class Result(Value, frozen=True, kw_only=True):
    """What came of a task. ``inputs`` are the answers to a request for input, by the ids that it asked for."""

    output: str
    artifacts: tuple[Artifact, ...] | UnsetType = UNSET
    inputs: dict[str, Any] | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


class Metrics(Value, frozen=True, kw_only=True):
    """What a task took."""

    duration_ms: Amount | UnsetType = UNSET
    memory_usage_mb: Amount | UnsetType = UNSET
    cpu_usage_percent: Amount | UnsetType = UNSET  # of one core: it may be more than 100
    network_io_mb: Amount | UnsetType = UNSET
    disk_usage_mb: Amount | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


class TaskResult(Value, frozen=True, kw_only=True):
    """How a task ended. ``success`` is true exactly if the status is ``success``."""

    status: Status
    success: bool | UnsetType = UNSET
    score: Score | UnsetType = UNSET
    duration_sec: Amount | UnsetType = UNSET
    notes: Notes | UnsetType = UNSET
    result: Result
    metrics: Metrics | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


# --- an error --------------------------------------------------------------------------------------------------------


class ErrorReport(Value, frozen=True, kw_only=True):
    """What failed, whether trying again makes sense, and what else might help."""

    code: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    suggested_actions: tuple[str, ...] | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


# --- a request for input ---------------------------------------------------------------------------------------------


class RequestedInput(Value, frozen=True, kw_only=True):
    """One thing that is asked for. What is ``sensitive`` is sealed at rest and shown as ``***``."""

    id: Filled
    type: InputType
    options: tuple[Scalar, ...] | UnsetType = UNSET
    description: str
    sensitive: bool | UnsetType = UNSET
    default: Any = UNSET
    required: bool | UnsetType = UNSET
    unknown_fields: Unknown = UNSET

    @property
    def is_sensitive(self) -> bool:
        """Whether its value is a secret; not unless it says so."""
        return self.sensitive is True

    @property
    def is_required(self) -> bool:
        """Whether it has to be answered; so unless it says otherwise."""
        return self.required is not False


class InputRequest(Value, frozen=True, kw_only=True):
    """What is needed before it can go on."""

    requested_inputs: tuple[RequestedInput, ...]
    context: str | UnsetType = UNSET  # a text here, for whoever is asked
    unknown_fields: Unknown = UNSET


# --- the envelope ----------------------------------------------------------------------------------------------------


class KnownContext(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ``context`` that have a meaning here. Any other key may stand beside them."""

    message_id: LetterId | UnsetType = UNSET  # the letter's own id
    in_reply_to: LetterId | UnsetType = UNSET  # the id of the letter that this one answers
    depends_on: tuple[Name, ...] | UnsetType = UNSET  # tasks that have to succeed first
    session_id: Filled | UnsetType = UNSET  # the conversation behind it
    turn_id: Filled | UnsetType = UNSET  # the turn of it


class Letter(Value, frozen=True, kw_only=True, tag_field="type"):
    """What the three kinds have in common."""

    type: ClassVar[str]
    protocol_version: Version
    sender_id: Name
    recipient_id: Name
    timestamp: Time
    task_id: Name
    retry_count: Count | UnsetType = UNSET
    trace_id: Filled | UnsetType = UNSET
    payload: Any
    context: dict[str, Any] | UnsetType = UNSET
    unknown_fields: Unknown = UNSET

    @property
    def retries(self) -> int:
        """How often it was tried again; 0 where it does not say."""
        return self.retry_count or 0

    def with_attempts(self, attempts: int) -> Self:
        """The letter as it is handed out for the how-manieth time: ``retry_count`` has the retries that there were."""
        return self.replace(retry_count=self.retries + attempts - 1) if attempts > 1 else self

    @property
    def message_id(self) -> str | None:
        """The id that its sender gave it. ``letter_id`` has one for every letter."""
        return self._get_context("message_id")

    @property
    def in_reply_to(self) -> str | None:
        """The id of the letter that it answers."""
        return self._get_context("in_reply_to")

    @property
    def session_id(self) -> str | None:
        """The conversation behind it, as its sender says."""
        return self._get_context("session_id")

    @property
    def turn_id(self) -> str | None:
        """The turn behind it, as its sender says."""
        return self._get_context("turn_id")

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The tasks that have to succeed before it may be handed out."""
        return tuple(self.context.get("depends_on", ())) if self.context else ()

    def _get_context(self, name: str) -> str | None:
        return self.context.get(name) if self.context else None


class TaskResultLetter(Letter, frozen=True, kw_only=True, tag="task_result"):
    """A task is done, wholly, partly or not."""

    type: ClassVar[str] = "task_result"
    payload: TaskResult

    @property
    def is_answer(self) -> bool:
        """Whether it answers a request for input. Such a letter says nothing about how the task went."""
        return self.payload.result.inputs is not UNSET

    @property
    def is_success(self) -> bool:
        """Whether the task succeeded."""
        return self.payload.status == "success" and not self.is_answer


class ErrorLetter(Letter, frozen=True, kw_only=True, tag="error"):
    """Something failed."""

    type: ClassVar[str] = "error"
    payload: ErrorReport


class NeedsInputLetter(Letter, frozen=True, kw_only=True, tag="needs_input"):
    """Somebody has to say something first."""

    type: ClassVar[str] = "needs_input"
    payload: InputRequest


AnyLetter: TypeAlias = TaskResultLetter | ErrorLetter | NeedsInputLetter
KINDS: Final[dict[str, type[Letter]]] = {kind.type: kind for kind in (TaskResultLetter, ErrorLetter, NeedsInputLetter)}
