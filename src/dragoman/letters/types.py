"""The types of letters: the envelope, three payloads, and their fields.

    TaskResultLetter    the result of a task
    ErrorLetter         a failure
    NeedsInputLetter    a request for input

The top-level ``type`` selects one of the three. An absent field is ``UNSET``, which is false; no field is null. Unknown
fields are kept with their bytes in ``unknown_fields``. ``context`` is open; ``KnownContext`` declares its known keys.
Invariant: these types accept what the published schema accepts; a test compares both.

``letter_id`` returns ``context.message_id``, or an id derived from sender, recipient, task, type and payload. The
derived id ignores ``retry_count``, ``timestamp`` and ``trace_id``, so that a letter that is sent again keeps its id.
Invariant: the derived id of a letter never changes between versions; inboxes rely on it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.message import MAX_TOKENS
from dragoman.value import UnknownFields, Value, encode

PROTOCOL_VERSION: Final = "1.3"  # the version that is written; every 1.x is read
HUMAN: Final = "HUMAN"  # the recipient id of a person


LAST_LINE: Final = r"(?!\n)"  # Python's $ also matches before a final line break; that of a schema does not


def _text(expected: str, pattern: str | None = None, **options: Any) -> Meta:
    """A text with a pattern, and its description for people."""
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
    """A file or other product of a task. Its path is a plain text; nothing opens it."""

    type: str
    path: str
    description: str | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


class Result(Value, frozen=True, kw_only=True):
    """The result of a task. ``inputs`` are the answers to a request for input, by input id."""

    output: str
    artifacts: tuple[Artifact, ...] | UnsetType = UNSET
    inputs: dict[str, Any] | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


class Metrics(Value, frozen=True, kw_only=True):
    """Resources that a task used."""

    duration_ms: Amount | UnsetType = UNSET
    memory_usage_mb: Amount | UnsetType = UNSET
    cpu_usage_percent: Amount | UnsetType = UNSET  # of one core: may exceed 100
    network_io_mb: Amount | UnsetType = UNSET
    disk_usage_mb: Amount | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


RESOURCES: Final = ("memory_usage_mb", "cpu_usage_percent", "network_io_mb", "disk_usage_mb")


class TaskResult(Value, frozen=True, kw_only=True):
    """The outcome of a task. ``success`` is true exactly if the status is ``success``."""

    status: Status
    success: bool | UnsetType = UNSET
    score: Score | UnsetType = UNSET
    duration_sec: Amount | UnsetType = UNSET
    notes: Notes | UnsetType = UNSET
    result: Result
    metrics: Metrics | UnsetType = UNSET
    unknown_fields: Unknown = UNSET

    @property
    def resources(self) -> dict[str, float]:
        """The reported resources, without amounts beyond ``MAX_TOKENS``."""
        if self.metrics is UNSET:
            return {}
        values = {name: getattr(self.metrics, name) for name in RESOURCES}
        return {name: float(value) for name, value in values.items() if value is not UNSET and value <= MAX_TOKENS}


# --- an error --------------------------------------------------------------------------------------------------------


class ErrorReport(Value, frozen=True, kw_only=True):
    """A failure, whether a retry makes sense, and suggested actions."""

    code: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    suggested_actions: tuple[str, ...] | UnsetType = UNSET
    unknown_fields: Unknown = UNSET


# --- a request for input ---------------------------------------------------------------------------------------------


class RequestedInput(Value, frozen=True, kw_only=True):
    """One requested input. The value of a ``sensitive`` input is encrypted at rest and displayed as ``***``."""

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
        """Whether its value is a secret; default false."""
        return self.sensitive is True

    @property
    def is_required(self) -> bool:
        """Whether an answer must contain it; default true."""
        return self.required is not False


class InputRequest(Value, frozen=True, kw_only=True):
    """A request for input."""

    requested_inputs: tuple[RequestedInput, ...]
    context: str | UnsetType = UNSET  # a text for the recipient
    unknown_fields: Unknown = UNSET


# --- the envelope ----------------------------------------------------------------------------------------------------


class KnownContext(msgspec.Struct, frozen=True, kw_only=True):
    """The known keys of ``context``. Other keys are allowed."""

    message_id: LetterId | UnsetType = UNSET  # the id of the letter
    in_reply_to: LetterId | UnsetType = UNSET  # the id of the letter that this one answers
    depends_on: tuple[Name, ...] | UnsetType = UNSET  # tasks that must succeed first
    session_id: Filled | UnsetType = UNSET  # the session it belongs to
    turn_id: Filled | UnsetType = UNSET  # the turn it belongs to


class Letter(Value, frozen=True, kw_only=True, tag_field="type"):
    """Fields of all letters."""

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
        """The number of retries; 0 if absent."""
        return self.retry_count or 0

    def with_attempts(self, attempts: int) -> Self:
        """Return the letter for its n-th delivery: ``retry_count`` includes earlier deliveries."""
        return self.replace(retry_count=self.retries + attempts - 1) if attempts > 1 else self

    @property
    def message_id(self) -> str | None:
        """The id that the sender has set. ``letter_id`` returns one for every letter."""
        return self._get_context("message_id")

    @property
    def in_reply_to(self) -> str | None:
        """The id of the letter that it answers."""
        return self._get_context("in_reply_to")

    @property
    def session_id(self) -> str | None:
        """The session, as the sender has set it."""
        return self._get_context("session_id")

    @property
    def turn_id(self) -> str | None:
        """The turn, as the sender has set it."""
        return self._get_context("turn_id")

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The tasks that must succeed before delivery."""
        return tuple(self.context.get("depends_on", ())) if self.context else ()

    @property
    def may_hold_secrets(self) -> bool:
        """Whether it requests inputs or contains inputs. No other letter has secrets."""
        return self.type == "needs_input" or (self.type == "task_result" and bool(self.payload.result.inputs))

    def _get_context(self, name: str) -> str | None:
        return self.context.get(name) if self.context else None


class TaskResultLetter(Letter, frozen=True, kw_only=True, tag="task_result"):
    """The result of a task."""

    type: ClassVar[str] = "task_result"
    payload: TaskResult

    @property
    def is_answer(self) -> bool:
        """Whether it answers a request for input. Such a letter does not report the result of the task."""
        return self.payload.result.inputs is not UNSET

    @property
    def is_success(self) -> bool:
        """Whether the task succeeded."""
        return self.payload.status == "success" and not self.is_answer

    @property
    def has_evaluation(self) -> bool:
        """Whether it contains an evaluation of the task: a score, a success flag or resources."""
        payload = self.payload
        is_rated = payload.score is not UNSET or payload.success is not UNSET or bool(payload.resources)
        return is_rated and not self.is_answer


class ErrorLetter(Letter, frozen=True, kw_only=True, tag="error"):
    """A failure."""

    type: ClassVar[str] = "error"
    payload: ErrorReport


class NeedsInputLetter(Letter, frozen=True, kw_only=True, tag="needs_input"):
    """A request for input."""

    type: ClassVar[str] = "needs_input"
    payload: InputRequest


AnyLetter: TypeAlias = TaskResultLetter | ErrorLetter | NeedsInputLetter
KINDS: Final[dict[str, type[Letter]]] = {kind.type: kind for kind in (TaskResultLetter, ErrorLetter, NeedsInputLetter)}


# --- ids -----------------------------------------------------------------------------------------------------------


def letter_id(letter: Letter) -> str:
    """Return the id of a letter."""
    return letter.message_id or derive_id(letter)


def derive_id(letter: Letter) -> str:
    """Return the id of a letter without ``message_id``: 64 hexadecimal digits."""
    identity = [letter.sender_id, letter.recipient_id, letter.task_id, letter.type, to_canonical(letter.payload)]
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()


def to_canonical(payload: Any) -> str:
    """Return a payload as text with sorted keys, so that the order of keys does not matter."""
    plain = msgspec.json.decode(encode(payload))
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
