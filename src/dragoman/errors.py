"""What can go wrong, as one tree.

    DragomanError                     everything this package raises on purpose
    ├── InputError                    what we were given cannot be used: fix the input
    │   ├── JsonError                 the text is not JSON that we accept
    │   ├── FormatError               JSON, but a known part of the format is malformed
    │   ├── RuleViolationError        messages break a rule of the format, and a strict store refuses them
    │   ├── NewerVersionError         written by a newer version, in a shape we cannot read
    │   ├── ToolSchemaError           a tool definition uses what not every provider accepts
    │   ├── SchemaSizeError           a JSON Schema from outside is beyond a limit
    │   ├── ToolInputError            a tool call does not fit its tool's schema
    │   ├── EventError                an event does not match its type
    │   ├── EnvelopeError             not an agent message envelope, or not a conversation of them
    │   ├── LetterError               not a letter between agents
    │   ├── PolicyError               a routing policy has errors, and none of it is taken
    │   ├── AttachmentError           a file cannot be taken as an attachment, or a path cannot be one's
    │   ├── AttachmentUrlError        a URL of an attachment is not ours, was changed, or is over
    │   └── CriticalLossError         a critical message would lose a part on the way to a provider
    ├── UnknownNameError              a name that no row of data answers to
    │   ├── UnknownModelError         no such model in the catalog
    │   ├── UnknownPriceError         no price for that model at that time
    │   ├── UnknownEventError         the event type does not exist
    │   ├── UnknownSessionError       no such session in the store
    │   ├── UnknownToolError          no such tool in the registry
    │   ├── UnknownAttachmentError    no such attachment, or somebody else's
    │   ├── UnknownLetterError        no such letter, or somebody else's
    │   └── UnknownMessageError       no such message in that session
    ├── RoutingError                  no model may answer the turn, so it does not begin
    │   ├── RoutingConstraintError    the model that was chosen may not answer this turn
    │   └── RoutingFailedError        no slot has a model that may answer this turn
    ├── StoreError                    the store cannot do what was asked
    │   ├── ConflictError             somebody else was first, or the same thing was said differently before
    │   ├── CorruptDataError          what is stored is not what was written
    │   ├── StoreUnusableError        the store cannot be opened safely
    │   └── StorageError              the disk or the database server failed or is full
    ├── SettingsError                 a key, an address or the file of settings is missing or cannot be used
    ├── ToolError                     a tool cannot do what was asked
    │   ├── ToolFailedError           a tool failed, and its text is for the model to read
    │   └── ToolSourceError           a server of tools cannot be started or reached, or does not behave
    ├── BusError                      the bus cannot take an event
    ├── TransportError                letters cannot be carried: the broker is not there, or not as it should be
    └── RemoteFaultError              the other side failed: a provider answered with a fault

Every error has a stable ``code`` for programs, and ``where``, ``what`` and ``remedy`` for people; its text is made of
these three, so nothing has to be parsed back out of prose. The one rule: a local error never carries the text of a
remote one, and a remote fault is never raised as an ``InputError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.exchange import Fault, Loss
    from dragoman.message import Message
    from dragoman.repair import Action
    from dragoman.rules import Violation


class DragomanError(Exception):
    """Where it happened, what is wrong, and what to do about it."""

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
    """``breaches`` lists every one; ``repaired`` are messages to append instead, and ``actions`` how they were made."""

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
        super().__init__(text, where=where, remedy="Append error.repaired instead, or correct the messages")
        self.violations = violations
        self.repaired_messages = repaired_messages
        self.actions = actions


class NewerVersionError(InputError):
    """``data`` is the text as it was read, so that a caller can keep it."""

    code = "newer_version"

    def __init__(self, what: str, *, data: bytes, version: int, where: str = "") -> None:
        super().__init__(what, where=where, remedy="Read it with a newer Dragoman; the stored text is untouched")
        self.data = data
        self.version = version


class ToolSchemaError(InputError):
    """``problems`` lists every one found, each beginning with its JSON path."""

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
    """A JSON Schema beyond a limit; ``where`` is the JSON path at which the limit was reached."""

    code = "schema_too_large"

    def __init__(self, what: str, *, where: str) -> None:
        super().__init__(what, where=where, remedy="Make the schema smaller, or split the tool")


class ToolInputError(InputError):
    """``problems`` lists every one found, each beginning with its JSON path."""

    code = "tool_input_invalid"

    def __init__(self, tool: str, problems: tuple[str, ...]) -> None:
        super().__init__(
            "; ".join(problems),
            where=f"input of tool {tool!r}",
            remedy="The call was not made; tell the model what is wrong",
        )
        self.tool = tool
        self.problems = problems


class EventError(InputError):
    code = "invalid_event"


class EnvelopeError(InputError):
    """Codes: invalid_ai_message_envelope, invalid_agent_conversation_result. The text begins with the code."""

    code = "invalid_ai_message_envelope"

    def __init__(self, what: str, *, where: str = "", code: str | None = None) -> None:
        super().__init__(what, where=where, code=code)
        self.args = (" ".join(part for part in (f"{self.code}:", where, what) if part),)


class LetterError(InputError):
    """Codes: invalid_letter, unknown_letter_type, unsupported_protocol_version, inconsistent_result,
    invalid_answer, sender_mismatch, letter_too_large, too_many_dependencies, too_many_inputs; and of what a broker has
    brought: unsigned_letter, unknown_mail_key, forged_letter, wrong_mailbox, stale_letter.

    ``problems`` lists every one found, each beginning with its JSON path.
    """

    code = "invalid_letter"

    def __init__(self, problems: tuple[str, ...], *, code: str | None = None) -> None:
        super().__init__("; ".join(problems), where="letter", remedy="See the page on letters", code=code)
        self.problems = problems


class PolicyError(InputError):
    """``problems`` lists every one found, each beginning with its place."""

    code = "invalid_policy"

    def __init__(self, problems: tuple[str, ...], *, where: str = "") -> None:
        super().__init__("; ".join(problems), where=where, remedy="See the routing page of the documentation")
        self.problems = problems


class AttachmentError(InputError):
    """Codes: type_not_allowed, type_mismatch, attachment_too_large, empty_attachment, image_too_large, invalid_path."""

    code = "type_not_allowed"


class AttachmentUrlError(InputError):
    """Codes: bad_signature, url_expired, foreign_attachment_url. Its text never holds the URL, which has a token."""

    code = "bad_signature"


class CriticalLossError(InputError):
    """``loss`` names what would be lost."""

    code = "critical_loss"

    def __init__(self, loss: Loss) -> None:
        super().__init__(
            f"{loss.adapter} cannot carry its {loss.block_type} block ({loss.reason}), and it is marked critical",
            where=f"message {loss.message_id}",
            remedy="Choose another model, or take the mark off",
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
    """The same for what is missing and for what is somebody else's."""

    code = "attachment_not_found"


class UnknownLetterError(UnknownNameError):
    """The same for what is missing and for what is somebody else's."""

    code = "letter_not_found"


class RoutingError(DragomanError):
    code = "routing_error"


class RoutingConstraintError(RoutingError):
    """``source`` is the slot of the choice, ``validation_failure`` the gate that it failed, ``would_fall_back_to`` what
    would answer if nothing had been chosen."""

    code = "routing_constraint_failure"

    def __init__(
        self, what: str, *, source: str, model: str, validation_failure: str, would_fall_back_to: str | None
    ) -> None:
        alternative = f"; without a choice {would_fall_back_to} would answer" if would_fall_back_to else ""
        super().__init__(what, remedy=f"Active model unchanged. Choose another one{alternative}")
        self.source = source
        self.model = model
        self.validation_failure = validation_failure
        self.would_fall_back_to = would_fall_back_to

    @property
    def details(self) -> dict[str, Any]:
        """The same for programs."""
        names = ("source", "model", "validation_failure", "would_fall_back_to")
        return {name: getattr(self, name) for name in names}


class RoutingFailedError(RoutingError):
    """``tried`` has a model, policy, rule_name and reason for each candidate that was rejected."""

    code = "routing_failed"

    def __init__(self, tried: tuple[dict[str, Any], ...], alternative_providers_configured: tuple[str, ...]) -> None:
        candidates = ", ".join(f"{candidate['model']} ({candidate['reason']})" for candidate in tried)
        super().__init__(
            f"no model may answer: {candidates}" if candidates else "no model may answer: none is named anywhere",
            remedy="Choose one with /model or @model, or write a global_default into the routing policy",
        )
        self.tried = tried
        self.alternative_providers_configured = alternative_providers_configured

    @property
    def details(self) -> dict[str, Any]:
        """The same for programs."""
        providers = list(self.alternative_providers_configured)
        return {"tried": list(self.tried), "alternative_providers_configured": providers}


class StoreError(DragomanError):
    code = "store_error"


class ConflictError(StoreError):
    """Codes: seq_conflict, id_conflict, idempotency_key_reused, turn_in_flight, already_answered, session_exists,
    message_ended, letter_conflict, lease_lost, dependency_cycle, target_exists."""

    code = "seq_conflict"


class CorruptDataError(StoreError):
    """It is never served as good: whoever asked for it gets this, and ``verify`` lists it."""

    code = "damaged"


class StoreUnusableError(StoreError):
    """Codes: unsafe_store, newer_store, not_a_store, missing_extra."""

    code = "unsafe_store"


class StorageError(StoreError):
    """Codes: disk_full, read_only, storage_failed, attachments_left. Whether a write happened is not known after
    ``storage_failed``: ask again with the same idempotency key, or the same message ids."""

    code = "storage_failed"


class SettingsError(DragomanError):
    """Codes: invalid_config, unsafe_config, unsafe_workspace, missing_key, invalid_key, missing_base_url,
    invalid_base_url, keyring_failed, missing_package, local_model_failed."""

    code = "invalid_config"


class ToolError(DragomanError):
    code = "tool_error"


class ToolFailedError(ToolError):
    """Raised by a tool. ``error_class`` is the class that the event ``tool.failed`` names."""

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
    """Nothing is lost by it: a letter that was taken stays in the outbox. Codes: transport_failed, missing_extra."""

    code = "transport_failed"


class RemoteFaultError(DragomanError):
    """A fault of a provider, raised; ``fault`` holds its fields."""

    code = "remote_fault"

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message, where=fault.provider or "", code=fault.code)
        self.fault = fault
