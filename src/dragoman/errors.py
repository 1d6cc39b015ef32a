"""The errors of this package, as one tree.

    DragomanError                     base of all errors
    ├── InputError                    invalid input: correct it
    │   ├── JsonError                 the text is not JSON, or exceeds a limit
    │   ├── FormatError               JSON with an invalid field
    │   ├── RuleViolationError        messages break a rule of the format, and the append was strict
    │   ├── NewerVersionError         a message of a newer version that cannot be read
    │   ├── ToolSchemaError           a tool definition that some provider rejects
    │   ├── SchemaSizeError           a JSON Schema that exceeds a limit
    │   ├── ToolInputError            a tool call that does not match its tool's schema
    │   ├── EventError                an event that does not match its type
    │   ├── EnvelopeError             not an agent message envelope, or an invalid result of a runner
    │   ├── LetterError               not a letter between agents
    │   ├── PolicyError               an invalid routing policy
    │   ├── AttachmentError           a file that is not accepted as an attachment, or an invalid path
    │   ├── AttachmentUrlError        an attachment URL that is foreign, changed or expired
    │   └── CriticalLossError         a critical message would lose a part in a conversion
    ├── UnknownNameError              an unknown name
    │   ├── UnknownModelError         no such model in the catalog
    │   ├── UnknownPriceError         no price for that model at that time
    │   ├── UnknownEventError         no such event type
    │   ├── UnknownSessionError       no such session in the store
    │   ├── UnknownToolError          no such tool in the registry
    │   ├── UnknownAttachmentError    no such attachment, or another owner's
    │   ├── UnknownLetterError        no such letter, or another owner's
    │   └── UnknownMessageError       no such message in that session
    ├── RoutingError                  no model can answer the turn
    │   ├── RoutingConstraintError    the chosen model cannot answer this turn
    │   └── RoutingFailedError        no slot has a valid model
    ├── StoreError                    the store cannot execute the operation
    │   ├── ConflictError             a concurrent change, or another value for the same id
    │   ├── CorruptDataError          stored data does not match its hash
    │   ├── StoreUnusableError        the store cannot be opened safely
    │   └── StorageError              the disk or the database server failed or is full
    ├── SettingsError                 a missing or invalid key, address or setting
    ├── ToolError                     a tool failed or is unavailable
    │   ├── ToolFailedError           a tool failed; the model receives its text
    │   └── ToolSourceError           a tool server cannot be started or reached, or violates its protocol
    ├── BusError                      the bus does not accept the event
    ├── TransportError                the broker is unreachable or misconfigured
    └── RemoteFaultError              a provider answered with a fault
        └── AnswerError               a question has no usable answer

Every error has a stable ``code`` for programs, and ``where``, ``what`` and ``remedy`` for people; its text consists of
these three. Invariant: a local error never contains the text of a remote one, and a remote fault is never raised as an
``InputError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.exchange import Fault, Loss
    from dragoman.message import Message
    from dragoman.repair import Action
    from dragoman.rules import Violation


class DragomanError(Exception):
    """Base of all errors: ``where``, ``what`` and ``remedy``."""

    code = "error"

    def __init__(self, what: str, *, where: str = "", remedy: str = "", code: str | None = None) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        if code is not None:
            self.code = code
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text}. {remedy}" if remedy else text)

    def __reduce__(self) -> Any:
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(cls: type[DragomanError], args: tuple[Any, ...], fields: dict[str, Any]) -> DragomanError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(fields)
    return error


class InputError(DragomanError):
    code = "invalid_input"


class JsonError(InputError):
    """Codes: invalid_json, duplicate_key, number_out_of_range, too_deep, too_many_keys, too_many_values,
    invalid_unicode, too_large.
    """

    code = "invalid_json"


class FormatError(InputError):
    """Codes: invalid_message, unknown_tool_use."""

    code = "invalid_message"


class RuleViolationError(InputError):
    """``violations`` lists all of them; ``repaired_messages`` can be appended instead, and ``actions`` describe the
    changes.
    """

    code = "breaks_rules"

    def __init__(
        self,
        violations: tuple[Violation, ...],
        repaired_messages: tuple[Message, ...] = (),
        actions: tuple[Action, ...] = (),
        *,
        where: str = "",
    ) -> None:
        text = "; ".join(f"{violation.where}: {violation.what} [{violation.rule}]" for violation in violations)
        super().__init__(text, where=where, remedy="Append error.repaired_messages instead, or correct the messages")
        self.violations = violations
        self.repaired_messages = repaired_messages
        self.actions = actions


class NewerVersionError(InputError):
    """``data`` is the original text, so that the caller can store it."""

    code = "newer_version"

    def __init__(self, what: str, *, data: bytes, version: int, where: str = "") -> None:
        super().__init__(what, where=where, remedy="Read it with a newer Dragoman; the stored text is untouched")
        self.data = data
        self.version = version


class ToolSchemaError(InputError):
    """``problems`` lists all of them, each with its JSON path."""

    code = "invalid_tool_schema"

    def __init__(self, tool: str, problems: tuple[str, ...]) -> None:
        super().__init__(
            "; ".join(problems),
            where=f"tool {tool!r}",
            remedy="Use the JSON Schema subset that every provider accepts",
        )
        self.tool = tool
        self.problems = problems


class SchemaSizeError(InputError):
    """A JSON Schema exceeds a limit; ``where`` is the JSON path of the value that exceeds it."""

    code = "schema_too_large"

    def __init__(self, what: str, *, where: str) -> None:
        super().__init__(what, where=where, remedy="Make the schema smaller, or split the tool")


class ToolInputError(InputError):
    """``problems`` lists all of them, each with its JSON path."""

    code = "tool_input_invalid"

    def __init__(self, tool: str, problems: tuple[str, ...]) -> None:
        super().__init__(
            "; ".join(problems),
            where=f"input of tool {tool!r}",
            remedy="The call was not made; send the problems to the model",
        )
        self.tool = tool
        self.problems = problems


class EventError(InputError):
    code = "invalid_event"


class EnvelopeError(InputError):
    """Codes: invalid_ai_message_envelope, invalid_agent_conversation_result. The text starts with the code."""

    code = "invalid_ai_message_envelope"

    def __init__(self, what: str, *, where: str = "", code: str | None = None) -> None:
        super().__init__(what, where=where, code=code)
        self.args = (" ".join(part for part in (f"{self.code}:", where, what) if part),)


class LetterError(InputError):
    """Codes: invalid_letter, unknown_letter_type, unsupported_protocol_version, inconsistent_result,
    invalid_answer, sender_mismatch, letter_too_large, too_many_dependencies, too_many_inputs; and for letters of a
    broker: unsigned_letter, unknown_mail_key, forged_letter, wrong_mailbox, stale_letter.

    ``problems`` lists all of them, each with its JSON path.
    """

    code = "invalid_letter"

    def __init__(self, problems: tuple[str, ...], *, code: str | None = None) -> None:
        super().__init__("; ".join(problems), where="letter", remedy="See the page on letters", code=code)
        self.problems = problems


class PolicyError(InputError):
    """``problems`` lists all of them, each with its path."""

    code = "invalid_policy"

    def __init__(self, problems: tuple[str, ...], *, where: str = "") -> None:
        super().__init__("; ".join(problems), where=where, remedy="See the routing page of the documentation")
        self.problems = problems


class AttachmentError(InputError):
    """Codes: type_not_allowed, type_mismatch, attachment_too_large, empty_attachment, image_too_large, invalid_path."""

    code = "type_not_allowed"


class AttachmentUrlError(InputError):
    """Codes: bad_signature, url_expired, foreign_attachment_url. The text omits the URL, which contains a token."""

    code = "bad_signature"


class CriticalLossError(InputError):
    """``loss`` describes the part that would be lost."""

    code = "critical_loss"

    def __init__(self, loss: Loss) -> None:
        super().__init__(
            f"{loss.adapter} cannot carry its {loss.block_type} block ({loss.reason}), and it is marked critical",
            where=f"message {loss.message_id}",
            remedy="Choose another model, or remove the mark",
        )
        self.loss = loss


class UnknownNameError(DragomanError):
    code = "unknown_name"


class UnknownModelError(UnknownNameError):
    code = "unknown_model"


class UnknownPriceError(UnknownNameError):
    code = "unknown_price"


class UnknownEventError(UnknownNameError):
    code = "unknown_event"


class UnknownSessionError(UnknownNameError):
    code = "session_not_found"


class UnknownMessageError(UnknownNameError):
    code = "message_not_found"


class UnknownToolError(UnknownNameError):
    code = "unknown_tool"


class UnknownAttachmentError(UnknownNameError):
    """Also raised if the attachment belongs to another owner."""

    code = "attachment_not_found"


class UnknownLetterError(UnknownNameError):
    """Also raised if the letter belongs to another owner."""

    code = "letter_not_found"


class RoutingError(DragomanError):
    code = "routing_error"


class RoutingConstraintError(RoutingError):
    """``source`` is the slot of the choice, ``validation_failure`` the failed gate, ``would_fall_back_to`` the model
    that would answer without the choice."""

    code = "routing_constraint_failure"

    def __init__(
        self, what: str, *, source: str, model: str, validation_failure: str, would_fall_back_to: str | None
    ) -> None:
        alternative = f"; if you choose none, {would_fall_back_to} answers" if would_fall_back_to else ""
        super().__init__(what, remedy=f"Active model unchanged. Choose another model{alternative}")
        self.source = source
        self.model = model
        self.validation_failure = validation_failure
        self.would_fall_back_to = would_fall_back_to

    @property
    def details(self) -> dict[str, Any]:
        """The fields as a dict."""
        names = ("source", "model", "validation_failure", "would_fall_back_to")
        return {name: getattr(self, name) for name in names}


class RoutingFailedError(RoutingError):
    """``tried`` has model, policy, rule_name and reason of each rejected candidate."""

    code = "routing_failed"

    def __init__(
        self,
        tried: tuple[dict[str, Any], ...],
        alternative_providers_configured: tuple[str, ...],
        detail: str | None = None,
    ) -> None:
        """``detail`` is why a candidate cannot be called, and what to do."""
        candidates = ", ".join(f"{candidate['model']} ({candidate['reason']})" for candidate in tried)
        super().__init__(
            f"no model may answer: {candidates}" if candidates else "no model may answer: none is named anywhere",
            remedy=detail or "Choose one with /model or @model, or write a global_default into the routing policy",
        )
        self.tried = tried
        self.alternative_providers_configured = alternative_providers_configured

    @property
    def details(self) -> dict[str, Any]:
        """The fields as a dict."""
        providers = list(self.alternative_providers_configured)
        return {"tried": list(self.tried), "alternative_providers_configured": providers}


class StoreError(DragomanError):
    code = "store_error"


class ConflictError(StoreError):
    """Codes: seq_conflict, id_conflict, idempotency_key_reused, turn_in_flight, already_answered, session_exists,
    message_ended, letter_conflict, lease_lost, dependency_cycle, target_exists."""

    code = "seq_conflict"


class CorruptDataError(StoreError):
    """Stored data does not match its hash. It is not returned; ``verify`` lists it."""

    code = "damaged"


class StoreUnusableError(StoreError):
    """Codes: unsafe_store, cannot_open, newer_store, not_a_store, missing_extra."""

    code = "unsafe_store"


class StorageError(StoreError):
    """Codes: disk_full, read_only, storage_failed, attachments_left. Whether a write succeeded is unknown after
    ``storage_failed``: retry with the same idempotency key or message ids."""

    code = "storage_failed"


class SettingsError(DragomanError):
    """Codes: invalid_config, unsafe_config, unsafe_workspace, missing_key, invalid_key, missing_base_url,
    invalid_base_url, keyring_failed, missing_package, local_model_failed, weights_unavailable, weights_damaged."""

    code = "invalid_config"


class ToolError(DragomanError):
    code = "tool_error"


class ToolFailedError(ToolError):
    """Raised by a tool. ``error_class`` is the class in the event ``tool.failed``."""

    code = "tool_failed"

    def __init__(self, what: str, *, error_class: str = "execution_error", where: str = "", remedy: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.error_class = error_class


class ToolSourceError(ToolError):
    code = "tool_source_failed"


class BusError(DragomanError):
    """Codes: bus_overflow, bus_closed."""

    code = "bus_overflow"


class TransportError(DragomanError):
    """Letters stay in the outbox. Codes: transport_failed, missing_extra."""

    code = "transport_failed"


class RemoteFaultError(DragomanError):
    """Raised for a fault of a provider; ``fault`` has its fields."""

    code = "remote_fault"

    def __init__(self, fault: Fault, remedy: str = "") -> None:
        super().__init__(fault.message, where=fault.provider or "", remedy=remedy, code=fault.code)
        self.fault = fault


class AnswerError(RemoteFaultError):
    """Raised by ``ask`` if the turn ends with a fault. ``answer`` is the ``Answer`` with what arrived."""

    code = "no_answer"

    def __init__(self, fault: Fault, answer: Any) -> None:
        remedy = f"Run dragoman login {fault.provider}, or set the variable that dragoman models --providers names"
        super().__init__(fault, remedy if fault.code == "unauthorized" and fault.provider else "")
        self.answer = answer
