"""The rules of the format, and a check that reports every violation.

    check(message), check(messages)     all violations, each with its rule and its path; raises nothing

A rule has an id, a statement, a reason and an origin: a section of the format's specification, or this project. Rules
about one message apply when it is complete; a message that is still streaming (PARTIAL) may break any of them. Rules
about a session apply to the list and ignore PARTIAL messages. Every rule has a test with its name, and
``dragoman.repair`` corrects its violations.
"""

from __future__ import annotations

import binascii
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from dragoman import message as msg
from dragoman.ids import TOOL_ID
from dragoman.media_types import DETECTABLE_TYPES, detect_media_type
from dragoman.value import SlowPathRequired, Value, encode_fast

InputProblems = Callable[[str, dict[str, Any]], Sequence[str]]
"""Returns the problems of a tool's input, by the name of the tool. An unknown tool has no problems."""


class Rule(msgspec.Struct, frozen=True):
    """One rule. A rule without a check is a guarantee of this package, verified by its test."""

    id: str
    section: str  # of the specification; empty for rules of this project
    statement: str
    reason: str


class Violation(msgspec.Struct, frozen=True):
    """One violation of a rule at one path."""

    rule: str
    where: str  # like $[3].content[0].id, or $.content for a single message
    what: str
    message_id: str


RULES: Final = {
    rule.id: rule
    for rule in (
        Rule(
            "content-not-empty",
            "5.1.1",
            "A complete user or assistant message has at least one block.",
            "Providers reject an empty message in every later turn of the session.",
        ),
        Rule(
            "system-may-be-empty",
            "5.1.2",
            "A system message may have no content.",
            "It is a placeholder while a prompt is being composed.",
        ),
        Rule(
            "user-content",
            "5.1.3",
            "A user message contains text, images, documents, audio, video and opaque blocks.",
            "Calls belong to the assistant and results to tools, in every wire format.",
        ),
        Rule(
            "assistant-content",
            "5.1.3",
            "An assistant message contains text, images, audio, calls, thinking, redacted thinking and opaque blocks.",
            "Models generate images and audio; they return no results, documents or videos as blocks.",
        ),
        Rule(
            "tool-content",
            "5.1.3",
            "A tool message contains exactly one tool result.",
            "With one row per result, a result can be found, replaced and replayed.",
        ),
        Rule(
            "system-content",
            "5.1.3",
            "A system message contains text only.",
            "No provider accepts other blocks there.",
        ),
        Rule(
            "result-content",
            "",
            "A tool result contains text, images, documents, audio, video and opaque blocks.",
            "A call inside a result would never have a result.",
        ),
        Rule(
            "text-says-something",
            "",
            "A text block, of a message or of a result, is not blank.",
            "A model may end with a blank line; some providers reject the whole history for it.",
        ),
        Rule(
            "media-is-readable",
            "",
            "The data of an image, document, audio or video is base64 and has the declared type.",
            "One image that cannot be decoded makes providers reject every later turn.",
        ),
        Rule(
            "order-is-kept",
            "5.1.4",
            "The order of blocks is preserved.",
            "The order has a meaning: a text before a call is not a text after it.",
        ),
        Rule(
            "partial-is-exempt",
            "5.1.5",
            "A message that is still streaming may break any rule.",
            "An incomplete message cannot be valid; it is checked when it is complete.",
        ),
        Rule(
            "partial-is-last",
            "",
            "No user or assistant message follows an assistant message that is still streaming.",
            "Otherwise a crash has interrupted the message: it and its calls will never be completed.",
        ),
        Rule(
            "tool-id-is-ours",
            "5.2.1",
            "The id of a tool call is tu_ and a ULID, created by Dragoman.",
            "Ids of providers differ in alphabet and length, and repeat; Dragoman's ids stay valid for every provider.",
        ),
        Rule(
            "tool-name-is-plain",
            "",
            "The name of a called tool has at most 64 letters, digits, _ and -, and starts with a letter or _.",
            "Models invent names; a provider that does not accept one rejects the whole history.",
        ),
        Rule(
            "result-has-call",
            "5.2.2",
            "A tool result answers an earlier call of the same session.",
            "Providers reject a history with a result that has no call.",
        ),
        Rule(
            "one-result-per-call",
            "5.2.3",
            "A call has at most one result.",
            "With two results it is unknown which one the model received. A retry is a new call.",
        ),
        Rule(
            "call-id-once",
            "5.2.3",
            "No two calls of a session have the same id.",
            "With a new id for a retry, its result can be distinguished from the first one.",
        ),
        Rule(
            "call-is-answered",
            "",
            "A call has its result before the next user or assistant message.",
            "Providers reject a history with an unanswered call. At the end of a history a call is pending.",
        ),
        Rule(
            "tool-input-fits",
            "5.2.4",
            "The input of a call matches the tool's schema.",
            "A tool never runs with an input that it did not declare.",
        ),
        Rule(
            "assistant-names-model",
            "5.3.1",
            "A complete assistant message names its model and its provider.",
            "Replay and analytics need the origin of a message.",
        ),
        Rule(
            "assistant-has-routing",
            "5.3.2",
            "A complete assistant message has its routing decision.",
            "Every choice of a model can be traced.",
        ),
        Rule(
            "assistant-has-usage",
            "5.3.3",
            "A complete assistant message has its usage.",
            "Costs are sums of these amounts.",
        ),
        Rule(
            "reasoning-names-origin",
            "",
            "A message with reasoning names its provider.",
            "Reasoning is sent only to its origin; other providers reject its signature.",
        ),
        Rule(
            "tool-names-parent",
            "5.3.4",
            "The metadata of a tool message names the same call as its result.",
            "The link is available without reading the content.",
        ),
        Rule(
            "provider-raw-is-opaque",
            "5.3.5",
            "Only the dialect that wrote provider_raw reads it.",
            "Any other reader would depend on one provider.",
        ),
        Rule(
            "tool-schema-subset",
            "5.4",
            "A tool's input_schema uses only what every provider accepts.",
            "The error is reported at registration, not during a conversation.",
        ),
        Rule(
            "message-id-once",
            "",
            "No two messages of a session have the same id.",
            "A reference to such an id would be ambiguous.",
        ),
        Rule(
            "one-session",
            "",
            "All messages of a session have the same session id.",
            "Tool ids are unique only within a session.",
        ),
        Rule(
            "names-are-plain",
            "",
            "Ids, names and metadata have no NUL character. Text may.",
            "They become keys, columns and file names, and some stores cannot hold a NUL.",
        ),
    )
}

_MEDIA: Final = frozenset({msg.ImageBlock, msg.DocumentBlock, msg.AudioBlock, msg.VideoBlock})
_USER_BLOCKS: Final = _MEDIA | {msg.TextBlock, msg.OpaqueBlock, msg.UnknownBlock}
_GENERATED_MEDIA: Final = frozenset({msg.ImageBlock, msg.AudioBlock})
_ASSISTANT_BLOCKS: Final = _GENERATED_MEDIA | {
    msg.TextBlock,
    msg.ToolUseBlock,
    msg.InvalidToolUseBlock,
    msg.ThinkingBlock,
    msg.RedactedThinkingBlock,
    msg.OpaqueBlock,
    msg.UnknownBlock,
}
_SYSTEM_BLOCKS: Final = frozenset({msg.TextBlock, msg.UnknownBlock})
_TOOL_BLOCKS: Final = frozenset({msg.ToolResultBlock, msg.UnknownBlock})
RESULT_BLOCKS: Final = _MEDIA | {msg.TextBlock, msg.OpaqueBlock, msg.UnknownBlock}
Call = msg.ToolUseBlock | msg.InvalidToolUseBlock
CALL: Final = (msg.ToolUseBlock, msg.InvalidToolUseBlock)

is_tool_id: Final = TOOL_ID.fullmatch
MAX_NAME_LENGTH: Final = 64
is_tool_name: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}").fullmatch
_ENCODED_NUL: Final = b"\\u0000"
_NOT_IN_TOOL_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")

# Bound once: attribute access and hashing of enum members take longer than a comparison (Python 3.11).
_USER, _ASSISTANT, _SYSTEM, _TOOL = msg.Role.USER, msg.Role.ASSISTANT, msg.Role.SYSTEM, msg.Role.TOOL
_COMPLETE, _PARTIAL, _CANCELLED = msg.MessageStatus.COMPLETE, msg.MessageStatus.PARTIAL, msg.MessageStatus.CANCELLED


def to_tool_name(name: str) -> str:
    """Convert a text to a tool name that every provider accepts: other characters become ``_``."""
    plain = _NOT_IN_TOOL_NAME.sub("_", name[:MAX_NAME_LENGTH])
    return (plain if is_tool_name(plain[:1]) else f"_{plain}")[:MAX_NAME_LENGTH]


# --- check -----------------------------------------------------------------------------------------------------------


def check(
    subject: msg.Message | Iterable[msg.Message],
    input_problems: InputProblems | None = None,
) -> tuple[Violation, ...]:
    """Return every violation: for a session, first those of each message, then those between messages."""
    violations: list[Violation] = []
    if type(subject) is msg.Message:  # isinstance calls the metaclass, which takes as long as the check
        _check_message(subject, "$", violations, input_problems)
    else:
        messages = tuple(subject)  # type: ignore[arg-type]
        for index, message in enumerate(messages):
            _check_message(message, f"$[{index}]", violations, input_problems)
        _check_session(messages, violations)
    return tuple(violations)


def _check_message(
    message: msg.Message, where: str, violations: list[Violation], problems: InputProblems | None
) -> None:
    status, role = message.metadata.status, message.role
    if status is _PARTIAL:
        return
    if role is _TOOL:
        _check_tool_message(message, where, violations)
    else:
        _check_blocks(message, where, violations, problems)
    if role is _ASSISTANT:
        check_origin(message, where, violations)
        if status is _COMPLETE:
            check_assistant_metadata(message, where, violations)
    if "\0" in message.id or "\0" in message.session_id or _may_hold_nul(message.metadata):
        check_names(message, where, violations)


def _may_hold_nul(metadata: msg.MessageMetadata) -> bool:
    try:
        return _ENCODED_NUL in encode_fast(metadata)
    except SlowPathRequired:  # it has unknown fields
        return True


def allowed_blocks(role: msg.Role) -> frozenset[type] | None:
    """The blocks that a role may contain; ``None`` for an unknown role, which has no rules."""
    if role is _ASSISTANT:
        return _ASSISTANT_BLOCKS
    if role is _USER:
        return _USER_BLOCKS
    if role is _SYSTEM:
        return _SYSTEM_BLOCKS
    return _TOOL_BLOCKS if role is _TOOL else None


def _check_blocks(
    message: msg.Message, where: str, violations: list[Violation], problems: InputProblems | None
) -> None:
    role = message.role
    allowed = allowed_blocks(role) if message.metadata.status is _COMPLETE else None
    for index, block in enumerate(message.content):
        kind = type(block)
        if allowed is not None and kind not in allowed:
            block_problems = [(f"{role}-content", "", f"{role} messages do not contain {block.type} blocks")]
        elif kind is msg.TextBlock or kind in _MEDIA:
            block_problems = _content_problems(block)
        elif role is _ASSISTANT and kind in CALL:
            block_problems = _call_problems(block, problems)  # type: ignore[arg-type]
        else:
            continue
        if block_problems:
            violations.extend(
                Violation(rule, f"{where}.content[{index}]{field}", what, message.id)
                for rule, field, what in block_problems
            )
    if not message.content and allowed is not None and role is not _SYSTEM:
        violations.append(Violation("content-not-empty", f"{where}.content", "no content", message.id))


Problems = list[tuple[str, str, str]]  # the rule, the field with a leading dot, and a description


def _content_problems(block: Any) -> Problems:
    """The rule that a text or a medium breaks."""
    if type(block) is msg.TextBlock:
        return [("text-says-something", "", "nothing but white space")] if is_blank(block.text) else []
    problem = media_problem(block)
    return [] if problem is None else [("media-is-readable", f".{problem[0]}", problem[1])]


def _call_problems(block: Call, input_problems: InputProblems | None) -> Problems:
    """The rules that a call breaks."""
    call_problems: Problems = []
    if is_tool_id(block.id) is None:
        call_problems.append(("tool-id-is-ours", ".id", f"{block.id!r} is not one of our ids"))
    if is_tool_name(block.name) is None:
        has_nul = "\0" in block.name
        rule, what = (
            ("names-are-plain", "it holds a NUL") if has_nul else ("tool-name-is-plain", f"{block.name!r} is not plain")
        )
        call_problems.append((rule, ".name", what))
    if input_problems is not None and type(block) is msg.ToolUseBlock:
        call_problems.extend(
            ("tool-input-fits", ".input", problem) for problem in input_problems(block.name, block.input)
        )
    return call_problems


def _check_tool_message(message: msg.Message, where: str, violations: list[Violation]) -> None:
    if len(message.content) != 1:
        what = f"{len(message.content)} blocks where exactly one tool result belongs"
        violations.append(Violation("tool-content", f"{where}.content", what, message.id))
    elif type(message.content[0]) not in _TOOL_BLOCKS:
        what = f"tool messages do not contain {message.content[0].type} blocks"
        violations.append(Violation("tool-content", f"{where}.content[0]", what, message.id))
    parent = message.metadata.parent_tool_use_id
    if not parent:
        place = f"{where}.metadata.parent_tool_use_id"
        violations.append(Violation("tool-names-parent", place, "it is not set", message.id))
    for index, result in results_of(message):
        if parent and result.tool_use_id != parent:
            what = f"the result answers {result.tool_use_id!r}, the metadata names {parent!r}"
            violations.append(Violation("tool-names-parent", f"{where}.content[{index}].tool_use_id", what, message.id))
        for inner, block in enumerate(result.content):
            if type(block) not in RESULT_BLOCKS:
                place = f"{where}.content[{index}].content[{inner}]"
                what = f"a result does not contain {block.type} blocks"
                violations.append(Violation("result-content", place, what, message.id))
            elif type(block) is msg.TextBlock or type(block) in _MEDIA:
                for rule, field, what in _content_problems(block):
                    place = f"{where}.content[{index}].content[{inner}]{field}"
                    violations.append(Violation(rule, place, what, message.id))


def check_origin(message: msg.Message, where: str, violations: list[Violation]) -> None:
    if message.metadata.provider:
        return
    for index, block in enumerate(message.content):
        if isinstance(block, msg.ThinkingBlock | msg.RedactedThinkingBlock):
            what = "reasoning without a provider"
            violations.append(Violation("reasoning-names-origin", f"{where}.content[{index}]", what, message.id))


def check_assistant_metadata(message: msg.Message, where: str, violations: list[Violation]) -> None:
    metadata = message.metadata
    if metadata.model and metadata.provider and metadata.routing and metadata.usage:
        return
    for field, rule in _ASSISTANT_FIELDS.items():
        if not getattr(metadata, field):
            violations.append(Violation(rule, f"{where}.metadata.{field}", "it is not set", message.id))


_ASSISTANT_FIELDS: Final = {
    "model": "assistant-names-model",
    "provider": "assistant-names-model",
    "routing": "assistant-has-routing",
    "usage": "assistant-has-usage",
}


def check_names(message: msg.Message, where: str, violations: list[Violation]) -> None:
    for name in ("id", "session_id"):
        if "\0" in getattr(message, name):
            violations.append(Violation("names-are-plain", f"{where}.{name}", "it holds a NUL", message.id))
    for place in _nul_places(message.metadata, f"{where}.metadata"):
        violations.append(Violation("names-are-plain", place, "it holds a NUL", message.id))


def _nul_places(value: Any, where: str) -> Iterable[str]:
    if isinstance(value, str):
        if "\0" in value:
            yield where
    elif isinstance(value, Value):
        for name in value.__struct_fields__:
            if name not in OPAQUE_FIELDS:
                yield from _nul_places(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _nul_places(key, f"{where} (the key {key!r})")
            yield from _nul_places(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _nul_places(item, f"{where}[{index}]")


OPAQUE_FIELDS: Final = ("provider_raw", "unknown_fields")


def _check_session(messages: tuple[msg.Message, ...], violations: list[Violation]) -> None:
    message_ids: set[str] = set()
    calls: set[str] = set()
    partial_calls: set[str] = set()  # calls of messages that are not complete
    answered: set[str] = set()
    partially_answered = {result.tool_use_id for message in messages for _, result in results_of(message, partial=True)}
    unanswered: dict[str, Violation] = {}
    unfinished = unfinished_messages(messages)
    for index, message in enumerate(messages):
        where = f"$[{index}]"
        if index in unfinished:
            what = "still streaming, before later messages"
            violations.append(Violation("partial-is-last", f"{where}.metadata.status", what, message.id))
        if message.session_id != messages[0].session_id:
            what = f"{message.session_id!r} among messages of {messages[0].session_id!r}"
            violations.append(Violation("one-session", f"{where}.session_id", what, message.id))
        if message.id in message_ids:
            violations.append(Violation("message-id-once", f"{where}.id", f"{message.id!r} again", message.id))
        message_ids.add(message.id)
        if message.metadata.status is _PARTIAL:
            partial_calls.update(call.id for _, call in calls_of(message))
            continue
        if message.role is not _TOOL:
            violations.extend(unanswered.values())
            unanswered.clear()
        for block_index, result in results_of(message):
            place = f"{where}.content[{block_index}]"
            if result.tool_use_id not in calls and result.tool_use_id not in partial_calls:
                what = f"no call before it has the id {result.tool_use_id!r}"
                violations.append(Violation("result-has-call", place, what, message.id))
                continue
            if result.tool_use_id in answered:
                what = f"the call {result.tool_use_id!r} has its result already"
                violations.append(Violation("one-result-per-call", place, what, message.id))
            answered.add(result.tool_use_id)
            unanswered.pop(result.tool_use_id, None)
        for block_index, call in calls_of(message):
            place = f"{where}.content[{block_index}]"
            if call.id in calls:
                violations.append(Violation("call-id-once", f"{place}.id", f"{call.id!r} again", message.id))
            calls.add(call.id)
            if call.id not in partially_answered:
                what = f"the call {call.id!r} has no result before the next message"
                unanswered[call.id] = Violation("call-is-answered", place, what, message.id)


def unfinished_messages(messages: Sequence[msg.Message]) -> set[int]:
    """The indexes of assistant messages that are still streaming although a later user or assistant message is
    complete.
    """
    partial = [
        index
        for index, message in enumerate(messages)
        if message.metadata.status is _PARTIAL and message.role is _ASSISTANT
    ]
    if not partial:
        return set()
    complete = [
        index
        for index, message in enumerate(messages)
        if message.metadata.status is not _PARTIAL and (message.role is _USER or message.role is _ASSISTANT)
    ]
    return {index for index in partial if complete and index < complete[-1]}


def calls_of(message: msg.Message) -> Iterable[tuple[int, Call]]:
    if message.role is _ASSISTANT:
        for index, block in enumerate(message.content):
            if isinstance(block, CALL):
                yield index, block


def results_of(message: msg.Message, *, partial: bool = False) -> Iterable[tuple[int, msg.ToolResultBlock]]:
    if message.role is _TOOL and (message.metadata.status is _PARTIAL) is partial:
        for index, block in enumerate(message.content):
            if isinstance(block, msg.ToolResultBlock):
                yield index, block


# --- what can be read ------------------------------------------------------------------------------------------------

Medium = msg.ImageBlock | msg.DocumentBlock | msg.AudioBlock | msg.VideoBlock
_BASE64: Final = string.ascii_letters.encode() + b"0123456789+/"
_STANDARD_ALPHABET: Final = str.maketrans("-_", "+/", " \t\r\n")


def is_blank(text: str) -> bool:
    """Whether a text is empty or only white space."""
    return not text or text.isspace()


def media_problem(block: Medium) -> tuple[str, str] | None:
    """Return the invalid field of a medium and a description. Only inline base64 data is checked."""
    if block.source.kind != "base64":
        return None
    data = _decode_first_bytes(block.source.data)
    if not data:
        return "source.data", "it is not base64"
    declared, detected = block.media_type, detect_media_type(data)
    if detected is not None and detected != declared and _can_hold(block, detected):
        return "media_type", f"it is declared as {declared!r}, and is {detected}"
    if detected != declared and declared in DETECTABLE_TYPES:
        return "source.data", f"it is no {declared}"
    if "/" not in declared:
        return "media_type", f"{declared!r} is no media type"
    return None


def repair_media(block: Medium) -> Medium | None:
    """Return the medium with corrected base64 and media type, or ``None`` if the data is unusable."""
    match = re.fullmatch(r"data:[^,]*;base64,(.*)", block.source.data, flags=re.DOTALL)
    text = (match[1] if match else block.source.data).translate(_STANDARD_ALPHABET).rstrip("=")
    text += "=" * (-len(text) % 4)
    detected = detect_media_type(_decode_first_bytes(text))
    media_type = detected if detected is not None and _can_hold(block, detected) else block.media_type
    result = block.replace(source=block.source.replace(data=text), media_type=media_type)
    return result if media_problem(result) is None else None


def _can_hold(block: Medium, media_type: str) -> bool:
    """Whether a block of this kind can contain data of this type."""
    return media_type.startswith("image/") if type(block) is msg.ImageBlock else type(block) is msg.DocumentBlock


def _decode_first_bytes(text: str) -> bytes:
    """Decode the first bytes of base64 text, enough to detect its type; empty if the text is not base64.

    A history is checked in every turn, and images are large: only the first 24 bytes are decoded.
    """
    if len(text) % 4 or not text.isascii():
        return b""
    padding = text.encode().translate(None, _BASE64)
    if len(padding) > 2 or not text.endswith("=" * len(padding)):
        return b""
    return binascii.a2b_base64(text[:32])
