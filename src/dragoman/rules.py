"""What must hold: the rules of the format, a check that names every breach, and a repair that says what it did.

    check(message), check(messages)     every breach, with its rule and its place; nothing is raised
    repair(messages)                    a history that breaks no rule, made from one that may; what is given stays

Each rule has an id, what it says, why, and where it comes from: a section of the format's specification, or this
project. Rules about one message hold when it is complete; a message still streaming (PARTIAL) may break any of them.
Rules about a session hold over the list, and what a PARTIAL message says counts for none of them. The one rule for
maintainers: repair may leave out and may mark what it made up, but it never changes words.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from dragoman.ids import TOOL_ID, derived_ulid
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    Usage,
    VideoBlock,
)
from dragoman.value import Value

InputProblems = Callable[[str, dict[str, Any]], Sequence[str]]
"""Given a tool's name and an input: what is wrong with it. A tool that it does not know has no problems."""


class Rule(msgspec.Struct, frozen=True):
    """One rule. A rule without a check is a promise of this package that its test holds it to."""

    id: str
    section: str  # of the specification; empty for this project's own
    statement: str
    reason: str


class Breach(msgspec.Struct, frozen=True):
    """One rule broken at one place."""

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
            "Providers refuse an empty message, and every later turn of the session with it.",
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
            "A user message holds text, images, documents, audio, video and opaque blocks.",
            "Calls and results belong to the assistant and to tools, whatever a wire makes of them.",
        ),
        Rule(
            "assistant-content",
            "5.1.3",
            "An assistant message holds text, tool calls, thinking, redacted thinking and opaque blocks.",
            "Results and pictures are not what a model says; a picture that it made is an opaque block.",
        ),
        Rule(
            "tool-content",
            "5.1.3",
            "A tool message holds exactly one tool result.",
            "One call, one answer, one row: that is what lets an answer be found, replaced and replayed.",
        ),
        Rule(
            "system-content",
            "5.1.3",
            "A system message holds text only.",
            "No provider takes anything else there.",
        ),
        Rule(
            "result-content",
            "",
            "A tool result holds text, images, documents, audio, video and opaque blocks.",
            "A call inside a result would be answered by nobody.",
        ),
        Rule(
            "order-is-kept",
            "5.1.4",
            "The order of blocks is kept from end to end.",
            "It carries meaning: what was said before a call is not what was said after it.",
        ),
        Rule(
            "partial-is-exempt",
            "5.1.5",
            "A message that is still streaming may break any rule.",
            "Half a message cannot be whole; it is judged when it is complete.",
        ),
        Rule(
            "tool-id-is-ours",
            "5.2.1",
            "The id of a tool call is tu_ and a ULID, made by us.",
            "Providers' ids differ in alphabet and length and repeat; ours survive a change of provider.",
        ),
        Rule(
            "result-has-call",
            "5.2.2",
            "A tool result answers a call that stands before it in the same session.",
            "An answer to nothing makes providers refuse the whole history.",
        ),
        Rule(
            "one-result-per-call",
            "5.2.3",
            "A call has at most one result.",
            "With two answers nobody knows which one the model saw. A retry is a new call.",
        ),
        Rule(
            "call-id-once",
            "5.2.3",
            "No two calls of a session have the same id.",
            "A retry gets a new id, else its answer cannot be told from the first one's.",
        ),
        Rule(
            "call-is-answered",
            "",
            "A call has its result before anything else is said.",
            "A call without an answer makes providers refuse the whole history. At the end it is merely pending.",
        ),
        Rule(
            "tool-input-fits",
            "5.2.4",
            "The input of a call fits the tool's schema.",
            "A tool must never run on what it did not declare.",
        ),
        Rule(
            "assistant-names-model",
            "5.3.1",
            "A complete assistant message names its model and its provider.",
            "Replay and analytics need to know who spoke.",
        ),
        Rule(
            "assistant-has-routing",
            "5.3.2",
            "A complete assistant message says why that model was chosen.",
            "Every choice can be traced.",
        ),
        Rule(
            "assistant-has-usage",
            "5.3.3",
            "A complete assistant message has its usage.",
            "The bill is the sum of these.",
        ),
        Rule(
            "tool-names-parent",
            "5.3.4",
            "A tool message names the call that it answers, the same as its result does.",
            "The link is needed without opening the content.",
        ),
        Rule(
            "provider-raw-is-opaque",
            "5.3.5",
            "Nothing but the dialect that wrote it reads provider_raw.",
            "It is a private note; whoever else read it would depend on one provider.",
        ),
        Rule(
            "tool-schema-subset",
            "5.4",
            "A tool's input_schema uses only what every provider accepts.",
            "Better to fail when a tool is registered than in the middle of a conversation.",
        ),
        Rule(
            "message-id-once",
            "",
            "No two messages of a session have the same id.",
            "An id that means two things means nothing.",
        ),
        Rule(
            "one-session",
            "",
            "All messages of a session name the same session.",
            "Tool ids never cross sessions.",
        ),
        Rule(
            "names-are-plain",
            "",
            "Ids, names and metadata have no NUL character. Text may.",
            "They become keys, columns and file names, and not every store can hold a NUL there.",
        ),
    )
}

_MEDIA: Final = frozenset({ImageBlock, DocumentBlock, AudioBlock, VideoBlock})
_IN_USER: Final = _MEDIA | {TextBlock, OpaqueBlock, UnknownBlock}
_IN_ASSISTANT: Final = frozenset(
    {TextBlock, ToolUseBlock, InvalidToolUseBlock, ThinkingBlock, RedactedThinkingBlock, OpaqueBlock, UnknownBlock}
)
_IN_SYSTEM: Final = frozenset({TextBlock, UnknownBlock})
_IN_TOOL: Final = frozenset({ToolResultBlock, UnknownBlock})
_IN_RESULT: Final = _MEDIA | {TextBlock, OpaqueBlock, UnknownBlock}
Call = ToolUseBlock | InvalidToolUseBlock
CALL: Final = (ToolUseBlock, InvalidToolUseBlock)

_is_tool_id: Final = TOOL_ID.fullmatch

# Looking a member up on its enum, or hashing it, takes as long as all the rest of a rule (Python 3.11).
_USER, _ASSISTANT, _SYSTEM, _TOOL = Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.TOOL
_COMPLETE, _PARTIAL, _CANCELLED = MessageStatus.COMPLETE, MessageStatus.PARTIAL, MessageStatus.CANCELLED


# --- check -----------------------------------------------------------------------------------------------------------


def check(
    subject: Message | Iterable[Message],
    input_problems: InputProblems | None = None,
) -> tuple[Breach, ...]:
    """Every breach. For a session, first those of each message, then those between messages."""
    breaches: list[Breach] = []
    if isinstance(subject, Message):
        _check_message(subject, "$", breaches, input_problems)
    else:
        messages = tuple(subject)
        for index, message in enumerate(messages):
            _check_message(message, f"$[{index}]", breaches, input_problems)
        _check_session(messages, breaches)
    return tuple(breaches)


def _check_message(message: Message, where: str, breaches: list[Breach], problems: InputProblems | None) -> None:
    # Every message passes here on its way in and out, so this decides quickly and leaves the explaining to others.
    metadata = message.metadata
    status = metadata.status
    if status is _PARTIAL:
        return
    role = message.role
    is_complete = status is _COMPLETE
    if role is _TOOL:
        _check_tool_message(message, where, breaches)
    else:
        allowed = _allowed_in(role) if is_complete else None
        for block in message.content:
            kind = type(block)
            if kind is TextBlock:
                continue
            if allowed is not None and kind not in allowed:
                _report_foreign_block(block, message, where, breaches)
            elif (
                role is _ASSISTANT
                and isinstance(block, CALL)
                and (problems is not None or _is_tool_id(block.id) is None or "\0" in block.name)
            ):
                _check_call(block, message, where, breaches, problems)
        if allowed is not None and not message.content and role is not _SYSTEM:
            breaches.append(Breach("content-not-empty", f"{where}.content", "no content", message.id))
    if (
        role is _ASSISTANT
        and is_complete
        and not (metadata.model and metadata.provider and metadata.routing and metadata.usage)
    ):
        _check_assistant_metadata(message, where, breaches)
    if "\0" in message.id or "\0" in message.session_id or _may_hold_nul(metadata):
        _check_names(message, where, breaches)


def _allowed_in(role: Role) -> frozenset[type] | None:
    """What a role may hold; ``None`` for a role that a newer version added, of which we know no rule."""
    if role is _ASSISTANT:
        return _IN_ASSISTANT
    if role is _USER:
        return _IN_USER
    if role is _SYSTEM:
        return _IN_SYSTEM
    return _IN_TOOL if role is _TOOL else None


def _report_foreign_block(block: ContentBlock, message: Message, where: str, breaches: list[Breach]) -> None:
    place = f"{where}.content[{_index(block, message)}]"
    what = f"{message.role} messages do not hold {block.type} blocks"
    breaches.append(Breach(f"{message.role}-content", place, what, message.id))


def _index(block: ContentBlock, message: Message) -> int:
    return next(index for index, other in enumerate(message.content) if other is block)


def _check_tool_message(message: Message, where: str, breaches: list[Breach]) -> None:
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    if len(message.content) != 1:
        what = f"{len(message.content)} blocks where exactly one tool result belongs"
        breaches.append(Breach("tool-content", f"{where}.content", what, message.id))
    elif type(message.content[0]) not in _IN_TOOL:
        what = f"tool messages do not hold {message.content[0].type} blocks"
        breaches.append(Breach("tool-content", f"{where}.content[0]", what, message.id))
    parent = message.metadata.parent_tool_use_id
    if not parent:
        place = f"{where}.metadata.parent_tool_use_id"
        breaches.append(Breach("tool-names-parent", place, "it is not set", message.id))
    for index, result in enumerate(results):
        if parent and result.tool_use_id != parent:
            what = f"the result answers {result.tool_use_id!r}, the metadata names {parent!r}"
            breaches.append(Breach("tool-names-parent", f"{where}.content[{index}].tool_use_id", what, message.id))
        for inner, block in enumerate(result.content):
            if type(block) not in _IN_RESULT:
                place = f"{where}.content[{index}].content[{inner}]"
                what = f"a result does not hold {block.type} blocks"
                breaches.append(Breach("result-content", place, what, message.id))


def _check_assistant_metadata(message: Message, where: str, breaches: list[Breach]) -> None:
    metadata = message.metadata
    for rule, field in (
        ("assistant-names-model", "model"),
        ("assistant-names-model", "provider"),
        ("assistant-has-routing", "routing"),
        ("assistant-has-usage", "usage"),
    ):
        if not getattr(metadata, field):
            breaches.append(Breach(rule, f"{where}.metadata.{field}", "it is not set", message.id))


def _check_call(
    block: Call, message: Message, where: str, breaches: list[Breach], problems: InputProblems | None
) -> None:
    if _is_tool_id(block.id) is None:
        place = f"{where}.content[{_index(block, message)}].id"
        breaches.append(Breach("tool-id-is-ours", place, f"{block.id!r} is not one of our ids", message.id))
    if "\0" in block.name:
        place = f"{where}.content[{_index(block, message)}].name"
        breaches.append(Breach("names-are-plain", place, "it holds a NUL", message.id))
    if problems is not None and type(block) is ToolUseBlock:
        for problem in problems(block.name, block.input):
            place = f"{where}.content[{_index(block, message)}].input"
            breaches.append(Breach("tool-input-fits", place, problem, message.id))


def _check_names(message: Message, where: str, breaches: list[Breach]) -> None:
    for name in ("id", "session_id"):
        if "\0" in getattr(message, name):
            breaches.append(Breach("names-are-plain", f"{where}.{name}", "it holds a NUL", message.id))
    for place in _nul_places(message.metadata, f"{where}.metadata"):
        breaches.append(Breach("names-are-plain", place, "it holds a NUL", message.id))


def _may_hold_nul(metadata: MessageMetadata) -> bool:
    """Whether its words need a closer look: they hold a NUL, or there are some that are rare."""
    routing, usage = metadata.routing, metadata.usage
    return bool(
        metadata.extra is not None
        or metadata.run_id is not None
        or metadata.stage is not None
        or metadata.message_id is not None
        or metadata.user_id is not None
        or metadata.team_id is not None
        or metadata.parent_tool_use_id is not None
        or metadata.user_message_attachments != ()
        or (metadata.model is not None and "\0" in metadata.model)
        or (metadata.provider is not None and "\0" in metadata.provider)
        or (usage is not None and ("\0" in usage.pricing_version or usage.service_tier or usage.server_tool_calls))
        or (routing is not None and ("\0" in routing.reason or "\0" in f"{routing.chosen_model}{routing.rule_name}"))
        or (routing is not None and routing.alternatives_considered != ())
    )


def _nul_places(value: Any, where: str) -> Iterable[str]:
    if isinstance(value, str):
        if "\0" in value:
            yield where
    elif isinstance(value, Value):
        for name in value.__struct_fields__:
            if name not in _NOT_OURS_TO_READ:
                yield from _nul_places(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _nul_places(key, f"{where} (the key {key!r})")
            yield from _nul_places(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _nul_places(item, f"{where}[{index}]")


_NOT_OURS_TO_READ: Final = ("provider_raw", "unknown_fields")


def _check_session(messages: tuple[Message, ...], breaches: list[Breach]) -> None:
    message_ids: set[str] = set()
    calls: set[str] = set()
    streaming: set[str] = set()  # calls of messages that are not complete yet
    answered: set[str] = set()
    being_answered = {block.tool_use_id for message in messages for block in _results(message, partial=True)}
    waiting: dict[str, Breach] = {}
    for index, message in enumerate(messages):
        where = f"$[{index}]"
        if message.session_id != messages[0].session_id:
            what = f"{message.session_id!r} among messages of {messages[0].session_id!r}"
            breaches.append(Breach("one-session", f"{where}.session_id", what, message.id))
        if message.id in message_ids:
            breaches.append(Breach("message-id-once", f"{where}.id", f"{message.id!r} again", message.id))
        message_ids.add(message.id)
        if message.metadata.status is _PARTIAL:
            streaming.update(call.id for _, call in _calls(message))
            continue
        if message.role is not _TOOL:
            breaches.extend(waiting.values())
            waiting.clear()
        for result in _results(message):
            if result.tool_use_id not in calls and result.tool_use_id not in streaming:
                what = f"no call before it has the id {result.tool_use_id!r}"
                breaches.append(Breach("result-has-call", f"{where}.content[0]", what, message.id))
                continue
            if result.tool_use_id in answered:
                what = f"the call {result.tool_use_id!r} has its result already"
                breaches.append(Breach("one-result-per-call", f"{where}.content[0]", what, message.id))
            answered.add(result.tool_use_id)
            waiting.pop(result.tool_use_id, None)
        for block_index, call in _calls(message):
            place = f"{where}.content[{block_index}]"
            if call.id in calls:
                breaches.append(Breach("call-id-once", f"{place}.id", f"{call.id!r} again", message.id))
            calls.add(call.id)
            if call.id not in being_answered:
                what = f"the call {call.id!r} has no result before the next message"
                waiting[call.id] = Breach("call-is-answered", place, what, message.id)


def _calls(message: Message) -> Iterable[tuple[int, Call]]:
    if message.role is _ASSISTANT:
        for index, block in enumerate(message.content):
            if isinstance(block, CALL):
                yield index, block


def _results(message: Message, *, partial: bool = False) -> Iterable[ToolResultBlock]:
    if message.role is _TOOL and (message.metadata.status is _PARTIAL) is partial:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                yield block


# --- repair ----------------------------------------------------------------------------------------------------------


class Action(msgspec.Struct, frozen=True):
    """One thing that repair did, to which message, for which rule."""

    rule: str
    message_id: str
    what: str


class Repaired(msgspec.Struct, frozen=True):
    """A history that breaks no rule, and how it came about. No actions: it is the history that was given."""

    messages: tuple[Message, ...]
    actions: tuple[Action, ...]


def repair(messages: Iterable[Message], input_problems: InputProblems | None = None) -> Repaired:
    """A valid history made from one that may not be. What is given, and what is stored, stays as it is."""
    messages = tuple(messages)
    if not check(messages, input_problems):
        return Repaired(messages, ())
    actions: list[Action] = []
    kept = [_with_plain_names(message, actions) for message in messages]
    kept = _of_one_session(kept, actions)
    kept = _with_ids_once(kept, actions)
    kept = [shaped for message in kept for shaped in _shaped(message, actions)]
    kept = _with_answers(kept, actions)
    kept = [_with_usable_inputs(message, input_problems, actions) for message in kept]
    kept = [_with_assistant_metadata(message, actions) for message in kept]
    return Repaired(tuple(kept), tuple(actions))


def _with_plain_names(message: Message, actions: list[Action]) -> Message:
    breaches: list[Breach] = []
    if message.metadata.status is _PARTIAL:
        return message
    _check_names(message, "$", breaches)
    if any(isinstance(block, CALL) and "\0" in block.name for block in message.content):
        breaches.append(Breach("names-are-plain", "$.content", "a tool's name holds a NUL", message.id))
    if not breaches:
        return message
    made = message.replace(
        id=message.id.replace("\0", ""),
        session_id=message.session_id.replace("\0", ""),
        content=tuple(
            block.replace(name=block.name.replace("\0", "")) if isinstance(block, CALL) else block
            for block in message.content
        ),
        metadata=_without_nul(message.metadata),
    )
    actions.append(Action("names-are-plain", made.id, f"took the NUL out of {', '.join(b.where for b in breaches)}"))
    return made


def _without_nul(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return value.replace("\0", "")
    if isinstance(value, Value):
        names = [name for name in value.__struct_fields__ if name not in _NOT_OURS_TO_READ]
        return value.replace(**{name: _without_nul(getattr(value, name)) for name in names})
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_nul(item) for item in value)
    return value


def _of_one_session(messages: list[Message], actions: list[Action]) -> list[Message]:
    session_id = messages[0].session_id
    kept = []
    for message in messages:
        if message.session_id == session_id:
            kept.append(message)
        else:
            actions.append(Action("one-session", message.id, f"set aside: it belongs to {message.session_id!r}"))
    return kept


def _with_ids_once(messages: list[Message], actions: list[Action]) -> list[Message]:
    seen: dict[str, Message] = {}
    kept = []
    for index, message in enumerate(messages):
        if message.id not in seen:
            seen[message.id] = message
        elif seen[message.id] == message:
            actions.append(Action("message-id-once", message.id, "set aside: the same message again"))
            continue
        else:
            made = message.replace(id=_derived_id(message, "again", str(index)))
            actions.append(Action("message-id-once", made.id, f"renamed: {message.id!r} was taken"))
            message = made  # noqa: PLW2901
        kept.append(message)
    return kept


def _shaped(message: Message, actions: list[Action]) -> list[Message]:
    """The message with nothing in it that does not belong to its role; results become messages of their own."""
    status = message.metadata.status
    if status is _PARTIAL or _allowed_in(message.role) is None:
        return [message]
    if message.role is _TOOL:
        return _shaped_tool_message(message, actions)
    if status is not _COMPLETE:
        return [message]
    allowed = _allowed_in(message.role) or frozenset()
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    blocks = []
    for block in message.content:
        if type(block) in allowed:
            blocks.append(block)
        elif not isinstance(block, ToolResultBlock):
            actions.append(Action(f"{message.role}-content", message.id, f"set aside a {block.type} block"))
    answers = [_tool_message(message, result, index) for index, result in enumerate(results)]
    for answer in answers:
        actions.append(Action(f"{message.role}-content", answer.id, "made a tool message of a result"))
    answers = [shaped for answer in answers for shaped in _shaped_tool_message(answer, actions)]
    if not blocks and message.role is not _SYSTEM:
        if not results:
            actions.append(Action("content-not-empty", message.id, "set aside: it is empty"))
        return answers
    kept = message if len(blocks) == len(message.content) else message.replace(content=tuple(blocks))
    return [kept, *answers] if message.role is _ASSISTANT else [*answers, kept]


def _shaped_tool_message(message: Message, actions: list[Action]) -> list[Message]:
    parent = message.metadata.parent_tool_use_id
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    others = [block for block in message.content if not isinstance(block, ToolResultBlock)]
    if not results and parent and len(others) == 1 and isinstance(others[0], UnknownBlock):
        return [message]
    usable = tuple(block for block in others if type(block) in _IN_RESULT)
    if not results and parent and usable:
        actions.append(Action("tool-content", message.id, "made a result of its content"))
        results = [ToolResultBlock(tool_use_id=parent, content=usable)]
        others = [block for block in others if type(block) not in _IN_RESULT]
    for block in others:
        actions.append(Action("tool-content", message.id, f"set aside a {block.type} block"))
    if not results:
        actions.append(Action("tool-content", message.id, "set aside: it holds no result"))
    made = []
    for index, result in enumerate(results):
        fitting = tuple(block for block in result.content if type(block) in _IN_RESULT)
        if len(fitting) != len(result.content):
            actions.append(Action("result-content", message.id, "set aside blocks that a result cannot hold"))
            result = result.replace(content=fitting)  # noqa: PLW2901
        if index > 0:
            made.append(_tool_message(message, result, index))
            actions.append(Action("tool-content", made[-1].id, f"split from {message.id!r}"))
        elif parent != result.tool_use_id:
            metadata = message.metadata.replace(parent_tool_use_id=result.tool_use_id)
            made.append(message.replace(content=(result,), metadata=metadata))
            actions.append(Action("tool-names-parent", message.id, "named the call that its result answers"))
        else:
            made.append(message if message.content == (result,) else message.replace(content=(result,)))
    return made


def _tool_message(origin: Message, result: ToolResultBlock, index: int) -> Message:
    metadata = MessageMetadata(
        parent_tool_use_id=result.tool_use_id, user_id=origin.metadata.user_id, team_id=origin.metadata.team_id
    )
    made_id = _derived_id(origin, "result", str(index))
    return origin.replace(id=made_id, role=_TOOL, content=(result,), metadata=metadata, unknown_fields=msgspec.UNSET)


def _with_answers(messages: list[Message], actions: list[Action]) -> list[Message]:
    """Every call under an id of its own, followed by its one result; results without a call are set aside."""
    messages, places = _with_call_ids(messages, actions)
    in_place: dict[int, Message] = {}  # answers to calls that are still streaming stay where they are
    answers: dict[str, Message] = {}
    for position, message in enumerate(messages):
        for result in _results(message):
            target = _call_answered_by(position, places.get(result.tool_use_id, []))
            if target is None:
                what = f"set aside: no call has the id {result.tool_use_id!r}"
                actions.append(Action("result-has-call", message.id, what))
            elif target[1] in answers:
                actions.append(Action("one-result-per-call", message.id, "set aside: the call has its result already"))
            else:
                answers[target[1]] = answer = _answering(message, result, target[1])
                if target[2]:
                    in_place[position] = answer
    return _placed(messages, answers, in_place, actions)


_Place = tuple[int, str, bool]  # the message's position, the call's id, whether the message is still streaming


def _with_call_ids(messages: list[Message], actions: list[Action]) -> tuple[list[Message], dict[str, list[_Place]]]:
    used = {call.id for message in messages if _is_partial(message) for _, call in _calls(message)}
    places: dict[str, list[_Place]] = {}
    made = []
    for position, message in enumerate(messages):
        blocks: list[ContentBlock] = list(message.content)
        for index, call in _calls(message):
            call_id = call.id
            if not _is_partial(message) and (call_id in used or _is_tool_id(call_id) is None):
                rule = "call-id-once" if call_id in used else "tool-id-is-ours"
                call_id = "tu_" + _derived_id(message, "call", str(index), call_id)
                blocks[index] = call.replace(id=call_id)
                actions.append(Action(rule, message.id, f"the call {call.id!r} is now {call_id!r}"))
            used.add(call_id)
            places.setdefault(call.id, []).append((position, call_id, _is_partial(message)))
        made.append(message if tuple(blocks) == message.content else message.replace(content=tuple(blocks)))
    return made, places


def _call_answered_by(position: int, places: list[_Place]) -> _Place | None:
    """The nearest call before the result; else the first one after it, unless that one is still streaming."""
    before = [place for place in places if place[0] < position]
    after = [place for place in places if place[0] > position and not place[2]]
    return before[-1] if before else next(iter(after), None)


def _answering(message: Message, result: ToolResultBlock, call_id: str) -> Message:
    if result.tool_use_id == call_id and message.metadata.parent_tool_use_id == call_id:
        return message
    metadata = message.metadata.replace(parent_tool_use_id=call_id)
    return message.replace(content=(result.replace(tool_use_id=call_id),), metadata=metadata)


def _placed(
    messages: list[Message], answers: dict[str, Message], in_place: dict[int, Message], actions: list[Action]
) -> list[Message]:
    being_answered = {result.tool_use_id for message in messages for result in _results(message, partial=True)}
    speaking = [index for index, message in enumerate(messages) if message.role is not _TOOL]
    last = max((index for index in speaking if not _is_partial(messages[index])), default=-1)
    order = {id(answer): position for position, answer in enumerate(answers.values())}
    placed: list[Message] = []
    for position, message in enumerate(messages):
        if position in in_place:
            placed.append(in_place[position])
        elif message.role is not _TOOL or _is_partial(message) or not any(_results(message)):
            placed.append(message)
        if _is_partial(message):
            continue
        calls = [call for _, call in _calls(message)]
        given = [answers[call.id] for call in calls if call.id in answers]
        placed.extend(sorted(given, key=lambda answer: order[id(answer)]))
        for call in calls:
            if call.id not in answers and call.id not in being_answered and position != last:
                placed.append(_cancelled(message, call))
                actions.append(Action("call-is-answered", message.id, f"answered the call {call.id!r} as cancelled"))
    _report_moves(messages, placed, actions)
    return placed


def _report_moves(before: list[Message], after: list[Message], actions: list[Action]) -> None:
    kept, known = {message.id for message in after}, {message.id for message in before}
    old_order = [message.id for message in before if message.id in kept]
    new_order = [message.id for message in after if message.id in known]
    for old, new in zip(old_order, new_order, strict=True):
        if old != new:
            actions.append(Action("call-is-answered", new, "moved: results stand right behind their calls"))
            return


def _cancelled(message: Message, call: Call) -> Message:
    result = ToolResultBlock(
        tool_use_id=call.id,
        content=(TextBlock(text="cancelled: this call was never answered"),),
        is_error=True,
    )
    made = _tool_message(message, result, 0)
    metadata = made.metadata.replace(status=_CANCELLED, stage="repair")
    return made.replace(id=_derived_id(message, "cancelled", call.id), metadata=metadata)


def _with_usable_inputs(message: Message, problems: InputProblems | None, actions: list[Action]) -> Message:
    if problems is None or _is_partial(message):
        return message
    blocks: list[ContentBlock] = list(message.content)
    for index, call in _calls(message):
        wrong = problems(call.name, call.input) if isinstance(call, ToolUseBlock) else ()
        if isinstance(call, ToolUseBlock) and wrong:
            blocks[index] = InvalidToolUseBlock(
                id=call.id,
                name=call.name,
                input_text=msgspec.json.encode(call.input).decode(),
                reason="; ".join(wrong),
                provider_raw=call.provider_raw,
            )
            actions.append(Action("tool-input-fits", message.id, f"marked the call {call.id!r} as invalid"))
    return message if tuple(blocks) == message.content else message.replace(content=tuple(blocks))


def _with_assistant_metadata(message: Message, actions: list[Action]) -> Message:
    """Fill in what was never recorded, so marked that no report can take it for a fact."""
    metadata = message.metadata
    if message.role is not _ASSISTANT or metadata.status is not _COMPLETE:
        return message
    missing: list[Breach] = []
    _check_assistant_metadata(message, "$", missing)
    if not missing:
        return message
    provider = metadata.provider or (metadata.model or "").partition(":")[0] or NOT_RECORDED
    model = metadata.model or f"{provider}:{NOT_RECORDED}"
    filled = metadata.replace(
        model=model,
        provider=provider,
        routing=metadata.routing or RoutingDecisionRecord(RoutingMode.DEFAULT, model, NOT_RECORDED),
        usage=metadata.usage
        or Usage(input_tokens=0, output_tokens=0, cost_usd=Decimal(0), pricing_version=NOT_RECORDED, latency_ms=0),
    )
    for rule in dict.fromkeys(breach.rule for breach in missing):
        actions.append(Action(rule, message.id, f"filled in as {NOT_RECORDED!r}"))
    return message.replace(metadata=filled)


NOT_RECORDED: Final = "not-recorded"  # a model, a reason or a price version that nobody wrote down


def _is_partial(message: Message) -> bool:
    return message.metadata.status is _PARTIAL


def _derived_id(message: Message, *seeds: str) -> str:
    time_ms = max(0, int(message.created_at.timestamp() * 1000))
    return derived_ulid(time_ms, message.session_id, message.id, *seeds)
