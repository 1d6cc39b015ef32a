"""Repair: convert any history to one that breaks no rule, and report the changes.

    repair(messages) -> RepairResult(messages, actions)

Imported transcripts, crashed turns and provider swaps leave calls without results, results without calls, and foreign
ids. Providers reject such a history in every later turn. ``repair`` changes what is sent to a model; its argument and
stored messages stay unchanged. Created ids are derived from the message, so that a history is repaired to the same
bytes in every turn. Invariant: repair may remove content and may add marked content, but never changes a text.
"""

from __future__ import annotations

import bisect
import enum
import itertools
from collections import Counter
from collections.abc import Container, Iterable
from typing import Any

import msgspec

from dragoman import message as msg
from dragoman import rules
from dragoman.ids import derive_ulid
from dragoman.value import Value


class Action(msgspec.Struct, frozen=True):
    """One change: the rule, the message and a description."""

    rule: str
    message_id: str
    what: str


class RemovedContent(msgspec.Struct, frozen=True):
    """Removed content: a message that contains only that content."""

    rule: str
    message: msg.Message
    what: str


class RepairResult(msgspec.Struct, frozen=True):
    """A history that breaks no rule, and the changes. Without actions it is the original history."""

    messages: tuple[msg.Message, ...]
    actions: tuple[Action, ...]
    set_aside: tuple[RemovedContent, ...] = ()


def repair(
    messages: Iterable[msg.Message], input_problems: rules.InputProblems | None = None, *, fill_origin: bool = True
) -> RepairResult:
    """Return a valid history. The argument stays unchanged.

    ``fill_origin=False`` is for formats without fields for provider, model, routing and usage: these stay unrecorded.
    """
    messages = tuple(messages)
    if not rules.check(messages, input_problems):
        return RepairResult(messages, ())
    log = _RepairLog(messages)
    result = _close_unfinished(messages, log)
    result = [_with_plain_names(message, log) for message in result]
    result = [_with_plain_calls(message, log) for message in result]
    result = _keep_one_session(result, log)
    result = _with_unique_ids(result, log)
    result = [_with_readable_content(message, log) for message in result]
    result = [part for message in result for part in _fit_to_role(message, log)]
    result = _with_answers(result, log)
    result = [_with_usable_inputs(message, input_problems, log) for message in result]
    if fill_origin:
        result = [_with_origin(message, log) for message in result]
        result = [_with_assistant_metadata(message, log) for message in result]
    return RepairResult(tuple(result), tuple(log.actions), tuple(log.removed))


class _RepairLog:
    """The changes so far, and the ids in use."""

    def __init__(self, messages: tuple[msg.Message, ...]) -> None:
        self.actions: list[Action] = []
        self.removed: list[RemovedContent] = []
        self._used_ids = {message.id for message in messages}
        self._used_ids |= {call.id for message in messages for _, call in rules.calls_of(message)}

    def add(self, rule: str, message_id: str, what: str) -> None:
        self.actions.append(Action(rule, message_id, what))

    def remove(self, rule: str, message: msg.Message, what: str, *blocks: msg.ContentBlock) -> None:
        """Record removed content: these blocks of the message, or the whole message."""
        self.add(rule, message.id, what)
        removed = message.replace(content=blocks) if blocks else message
        self.removed.append(RemovedContent(rule, removed, what))

    def new_id(self, message: msg.Message, *seeds: str, prefix: str = "") -> str:
        """Return an unused id that depends only on the message and the seeds."""
        time_ms = max(0, int(message.created_at.timestamp() * 1000))
        for attempt in itertools.count():
            suffix = (str(attempt),) if attempt else ()
            candidate = prefix + derive_ulid(time_ms, message.session_id, message.id, *seeds, *suffix)
            if candidate not in self._used_ids:
                break
        self._used_ids.add(candidate)
        return candidate


def _close_unfinished(messages: tuple[msg.Message, ...], log: _RepairLog) -> list[msg.Message]:
    """Mark messages that a crash left streaming as cancelled. Their content stays."""
    unfinished = rules.unfinished_messages(messages)
    result = []
    for index, message in enumerate(messages):
        if index in unfinished:
            log.add("partial-is-last", message.id, "closed as cancelled: later messages exist")
            metadata = message.metadata.replace(status=msg.MessageStatus.CANCELLED)
            result.append(message.replace(metadata=metadata))
        else:
            result.append(message)
    return result


def _with_plain_names(message: msg.Message, log: _RepairLog) -> msg.Message:
    violations: list[rules.Violation] = []
    if message.metadata.status is msg.MessageStatus.PARTIAL:
        return message
    rules.check_names(message, "$", violations)
    if any(isinstance(block, rules.CALL) and "\0" in block.name for block in message.content):
        violations.append(rules.Violation("names-are-plain", "$.content", "a tool's name holds a NUL", message.id))
    if not violations:
        return message
    result = message.replace(
        id=message.id.replace("\0", ""),
        session_id=message.session_id.replace("\0", ""),
        content=tuple(
            block.replace(name=block.name.replace("\0", "")) if isinstance(block, rules.CALL) else block
            for block in message.content
        ),
        metadata=_without_nul(message.metadata),
    )
    log.add("names-are-plain", result.id, f"took the NUL out of {', '.join(b.where for b in violations)}")
    return result


def _with_plain_calls(message: msg.Message, log: _RepairLog) -> msg.Message:
    """Rename calls to names that every provider accepts: other characters become ``_``."""
    if _is_partial(message):
        return message
    blocks: list[msg.ContentBlock] = list(message.content)
    for index, call in rules.calls_of(message):
        if rules.is_tool_name(call.name) is None:
            name = rules.to_tool_name(call.name)
            blocks[index] = call.replace(name=name)
            log.add("tool-name-is-plain", message.id, f"the tool {call.name!r} is now called {name!r}")
    return message if tuple(blocks) == message.content else message.replace(content=tuple(blocks))


def _without_nul(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return value.replace("\0", "")
    if isinstance(value, Value):
        names = [name for name in value.__struct_fields__ if name not in rules.OPAQUE_FIELDS]
        return value.replace(**{name: _without_nul(getattr(value, name)) for name in names})
    if isinstance(value, dict):
        result: dict[str, Any] = {}
        for key, item in value.items():
            new_key = _without_nul(key)
            while new_key in result or (new_key != key and new_key in value):
                new_key += "_"
            result[new_key] = _without_nul(item)
        return result
    if isinstance(value, list | tuple):
        return type(value)(_without_nul(item) for item in value)
    return value


def _keep_one_session(messages: list[msg.Message], log: _RepairLog) -> list[msg.Message]:
    """Keep the messages of the most frequent session; of several, the first."""
    session_id = Counter(message.session_id for message in messages).most_common(1)[0][0]
    result = []
    for message in messages:
        if message.session_id == session_id:
            result.append(message)
        else:
            log.remove("one-session", message, f"set aside: it belongs to {message.session_id!r}")
    return result


def _with_unique_ids(messages: list[msg.Message], log: _RepairLog) -> list[msg.Message]:
    first_by_id: dict[str, msg.Message] = {}
    result = []
    for index, message in enumerate(messages):
        if message.id not in first_by_id:
            first_by_id[message.id] = message
        elif first_by_id[message.id] == message:
            log.remove("message-id-once", message, "set aside: the same message again")
            continue
        else:
            renamed = message.replace(id=log.new_id(message, "again", str(index)))
            log.add("message-id-once", renamed.id, f"renamed: {message.id!r} was taken")
            message = renamed  # noqa: PLW2901
        result.append(message)
    return result


def _with_readable_content(message: msg.Message, log: _RepairLog) -> msg.Message:
    """Remove blank texts and correct media. A message that becomes empty is removed later."""
    if _is_partial(message):
        return message
    blocks: list[msg.ContentBlock] = []
    for block in message.content:
        if isinstance(block, msg.ToolResultBlock):
            inner = tuple(
                result for part in block.content if (result := _to_readable_block(part, message, log)) is not None
            )
            blocks.append(block if inner == block.content else block.replace(content=inner))
        elif (result := _to_readable_block(block, message, log)) is not None:
            blocks.append(result)
    return message if tuple(blocks) == message.content else message.replace(content=tuple(blocks))


def _to_readable_block(block: msg.ContentBlock, message: msg.Message, log: _RepairLog) -> msg.ContentBlock | None:
    if isinstance(block, msg.TextBlock) and rules.is_blank(block.text):
        log.remove("text-says-something", message, "set aside a blank text", block)
        return None
    if not isinstance(block, rules.Medium) or (problem := rules.media_problem(block)) is None:
        return block
    field, what = problem
    result = rules.repair_media(block)
    if result is None:
        what = f"set aside a block of type {block.type}: {field}: {what}"
        log.remove("media-is-readable", message, what, block)
    else:
        log.add("media-is-readable", message.id, f"corrected {field}: {what}")
    return result


def _fit_to_role(message: msg.Message, log: _RepairLog) -> list[msg.Message]:
    """Remove blocks that the role may not contain. Tool results become separate messages."""
    status = message.metadata.status
    if status is msg.MessageStatus.PARTIAL or rules.allowed_blocks(message.role) is None:
        return [message]
    if message.role is msg.Role.TOOL:
        return _fit_tool_message(message, log)
    if status is not msg.MessageStatus.COMPLETE:
        return [message]
    allowed = rules.allowed_blocks(message.role) or frozenset()
    results = [block for block in message.content if isinstance(block, msg.ToolResultBlock)]
    blocks = []
    for block in message.content:
        if type(block) in allowed:
            blocks.append(block)
        elif not isinstance(block, msg.ToolResultBlock):
            log.remove(f"{message.role}-content", message, f"set aside a {block.type} block", block)
    answers = [_make_tool_message(message, result, index, log) for index, result in enumerate(results)]
    for answer in answers:
        log.add(f"{message.role}-content", answer.id, "made a tool message of a result")
    answers = [part for answer in answers for part in _fit_tool_message(answer, log)]
    if not blocks and message.role is not msg.Role.SYSTEM:
        if not results:
            log.remove("content-not-empty", message.replace(content=()), "set aside: it is empty")
        return answers
    rest = message if len(blocks) == len(message.content) else message.replace(content=tuple(blocks))
    return [rest, *answers] if message.role is msg.Role.ASSISTANT else [*answers, rest]


def _fit_tool_message(message: msg.Message, log: _RepairLog) -> list[msg.Message]:
    parent = message.metadata.parent_tool_use_id
    results = [block for block in message.content if isinstance(block, msg.ToolResultBlock)]
    others = [block for block in message.content if not isinstance(block, msg.ToolResultBlock)]
    if not results and parent and len(others) == 1 and isinstance(others[0], msg.UnknownBlock):
        return [message]
    usable = tuple(block for block in others if type(block) in rules.RESULT_BLOCKS)
    if not results and parent and usable:
        log.add("tool-content", message.id, "made a result of its content")
        results = [msg.ToolResultBlock(tool_use_id=parent, content=usable)]
        others = [block for block in others if type(block) not in rules.RESULT_BLOCKS]
    for block in others:
        log.remove("tool-content", message, f"set aside a {block.type} block", block)
    if not results:
        log.remove("tool-content", message.replace(content=()), "set aside: it holds no result")
    messages = []
    for index, result in enumerate(results):
        allowed = tuple(block for block in result.content if type(block) in rules.RESULT_BLOCKS)
        if len(allowed) != len(result.content):
            rejected = [block for block in result.content if type(block) not in rules.RESULT_BLOCKS]
            log.remove("result-content", message, "set aside blocks that a result cannot hold", *rejected)
            result = result.replace(content=allowed)  # noqa: PLW2901
        if index > 0:
            messages.append(_make_tool_message(message, result, index, log))
            log.add("tool-content", messages[-1].id, f"split from {message.id!r}")
        elif parent != result.tool_use_id:
            metadata = message.metadata.replace(parent_tool_use_id=result.tool_use_id)
            messages.append(message.replace(content=(result,), metadata=metadata))
            log.add("tool-names-parent", message.id, "named the call that its result answers")
        else:
            messages.append(message if message.content == (result,) else message.replace(content=(result,)))
    return messages


def _make_tool_message(origin: msg.Message, result: msg.ToolResultBlock, index: int, log: _RepairLog) -> msg.Message:
    """Create a tool message for a result inside another message. It keeps the metadata except model and cost."""
    metadata = origin.metadata.replace(
        parent_tool_use_id=result.tool_use_id, model=None, provider=None, routing=None, usage=None, provider_raw=None
    )
    message_id = log.new_id(origin, "result", str(index))
    return origin.replace(id=message_id, role=msg.Role.TOOL, content=(result,), metadata=metadata)


def _with_answers(messages: list[msg.Message], log: _RepairLog) -> list[msg.Message]:
    """Set a unique id on every call and move its result behind it. Results without a call are removed."""
    messages, places = _with_call_ids(messages, log)
    in_place: dict[int, msg.Message] = {}  # answers to calls of partial messages stay in place
    answers: dict[str, msg.Message] = {}
    for position, message in enumerate(messages):
        for _, result in rules.results_of(message):
            target = _find_call(position, places.get(result.tool_use_id, []), answers)
            if target is None or not target[1]:
                what = f"set aside: no call has the id {result.tool_use_id!r}"
                log.remove("result-has-call", message, what, result)
            elif target[1] in answers:
                what = "set aside: the call has its result already"
                log.remove("one-result-per-call", message, what, result)
            else:
                answers[target[1]] = answer = _with_call_id(message, result, target[1])
                if target[2]:
                    in_place[position] = answer
    return _place_answers(messages, answers, in_place, log)


_Place = tuple[int, str, bool]  # position of the message, id of the call, whether the message is partial


def _with_call_ids(messages: list[msg.Message], log: _RepairLog) -> tuple[list[msg.Message], dict[str, list[_Place]]]:
    used = {call.id for message in messages if _is_partial(message) for _, call in rules.calls_of(message)}
    places: dict[str, list[_Place]] = {}
    result = []
    for position, message in enumerate(messages):
        blocks: list[msg.ContentBlock] = list(message.content)
        for index, call in rules.calls_of(message):
            call_id = call.id
            if not _is_partial(message) and (call_id in used or rules.is_tool_id(call_id) is None):
                rule = "call-id-once" if call_id in used else "tool-id-is-ours"
                call_id = log.new_id(message, "call", str(index), call_id, prefix="tu_")
                blocks[index] = call.replace(id=call_id)
                log.add(rule, message.id, f"the call {call.id!r} is now {call_id!r}")
            used.add(call_id)
            places.setdefault(call.id, []).append((position, call_id, _is_partial(message)))
        result.append(message if tuple(blocks) == message.content else message.replace(content=tuple(blocks)))
    return result, places


def _find_call(position: int, places: list[_Place], answers: Container[str]) -> _Place | None:
    """Return the call of a result: in the nearest earlier message, the first call without a result.

    Without an earlier call of that id, the first later one, unless its message is partial.
    """
    at = bisect.bisect_left(places, (position,))
    if at == 0:
        return next((place for place in places if place[0] > position and not place[2]), None)
    nearest = at - 1
    while nearest > 0 and places[nearest - 1][0] == places[at - 1][0]:
        nearest -= 1
    return next((place for place in places[nearest:at] if place[1] not in answers), places[at - 1])


def _with_call_id(message: msg.Message, result: msg.ToolResultBlock, call_id: str) -> msg.Message:
    if result.tool_use_id == call_id and message.metadata.parent_tool_use_id == call_id:
        return message
    metadata = message.metadata.replace(parent_tool_use_id=call_id)
    return message.replace(content=(result.replace(tool_use_id=call_id),), metadata=metadata)


def _place_answers(
    messages: list[msg.Message], answers: dict[str, msg.Message], in_place: dict[int, msg.Message], log: _RepairLog
) -> list[msg.Message]:
    partially_answered = {
        result.tool_use_id for message in messages for _, result in rules.results_of(message, partial=True)
    }
    speakers = [index for index, message in enumerate(messages) if message.role is not msg.Role.TOOL]
    last = max((index for index in speakers if not _is_partial(messages[index])), default=-1)
    order = {id(answer): position for position, answer in enumerate(answers.values())}
    ordered: list[msg.Message] = []
    for position, message in enumerate(messages):
        if position in in_place:
            ordered.append(in_place[position])
        elif message.role is not msg.Role.TOOL or _is_partial(message) or not any(rules.results_of(message)):
            ordered.append(message)
        if _is_partial(message):
            continue
        calls = [call for _, call in rules.calls_of(message)]
        call_answers = [answers[call.id] for call in calls if call.id in answers]
        ordered.extend(sorted(call_answers, key=lambda answer: order[id(answer)]))
        for call in calls:
            if call.id not in answers and call.id not in partially_answered and position != last:
                ordered.append(_make_cancelled_result(message, call, log))
                log.add("call-is-answered", message.id, f"answered the call {call.id!r} as cancelled")
    _report_moves(messages, ordered, log)
    return ordered


def _report_moves(before: list[msg.Message], after: list[msg.Message], log: _RepairLog) -> None:
    after_ids, before_ids = {message.id for message in after}, {message.id for message in before}
    old_order = [message.id for message in before if message.id in after_ids]
    new_order = [message.id for message in after if message.id in before_ids]
    for old, new in zip(old_order, new_order, strict=False):
        if old != new:
            log.add("call-is-answered", new, "moved: results directly follow their calls")
            return


def _make_cancelled_result(message: msg.Message, call: rules.Call, log: _RepairLog) -> msg.Message:
    text = "cancelled: this call was never answered"
    if isinstance(call, msg.InvalidToolUseBlock):
        text = f"invalid: the input of this call cannot be used, and it was not run: {call.reason}"
    result = msg.ToolResultBlock(tool_use_id=call.id, content=(msg.TextBlock(text),), is_error=True)
    metadata = msg.MessageMetadata(
        parent_tool_use_id=call.id,
        user_id=message.metadata.user_id,
        team_id=message.metadata.team_id,
        status=msg.MessageStatus.CANCELLED,
        stage="repair",
    )
    return msg.Message(
        log.new_id(message, "cancelled", call.id),
        message.session_id,
        msg.Role.TOOL,
        (result,),
        metadata,
        message.created_at,
    )


def _with_usable_inputs(message: msg.Message, problems: rules.InputProblems | None, log: _RepairLog) -> msg.Message:
    if problems is None or _is_partial(message):
        return message
    blocks: list[msg.ContentBlock] = list(message.content)
    for index, call in rules.calls_of(message):
        errors = problems(call.name, call.input) if isinstance(call, msg.ToolUseBlock) else ()
        if isinstance(call, msg.ToolUseBlock) and errors:
            blocks[index] = msg.InvalidToolUseBlock(
                id=call.id,
                name=call.name,
                input_text=msgspec.json.encode(call.input).decode(),
                reason="; ".join(errors),
                provider_raw=call.provider_raw,
                unknown_fields=call.unknown_fields,
            )
            log.add("tool-input-fits", message.id, f"marked the call {call.id!r} as invalid")
    return message if tuple(blocks) == message.content else message.replace(content=tuple(blocks))


def _with_origin(message: msg.Message, log: _RepairLog) -> msg.Message:
    """Set the provider of reasoning without a recorded one, so that no provider receives the reasoning."""
    missing: list[rules.Violation] = []
    if message.role is msg.Role.ASSISTANT and not _is_partial(message):
        rules.check_origin(message, "$", missing)
    if not missing:
        return message
    prefix, colon, _ = (message.metadata.model or "").partition(":")
    provider = (prefix if colon else "") or msg.NOT_RECORDED
    log.add("reasoning-names-origin", message.id, f"the provider is filled in as {provider!r}")
    return message.replace(metadata=message.metadata.replace(provider=provider))


def _with_assistant_metadata(message: msg.Message, log: _RepairLog) -> msg.Message:
    """Fill in missing metadata with marked values, so that reports can distinguish them from facts."""
    metadata = message.metadata
    if message.role is not msg.Role.ASSISTANT or metadata.status is not msg.MessageStatus.COMPLETE:
        return message
    missing: list[rules.Violation] = []
    rules.check_assistant_metadata(message, "$", missing)
    if not missing:
        return message
    prefix, colon, _ = (metadata.model or "").partition(":")
    provider = metadata.provider or (prefix if colon else "") or msg.NOT_RECORDED
    model = metadata.model or f"{provider}:{msg.NOT_RECORDED}"
    complete = metadata.replace(
        model=model,
        provider=provider,
        routing=metadata.routing or msg.RoutingDecisionRecord(msg.RoutingMode.DEFAULT, model, msg.NOT_RECORDED),
        usage=metadata.usage
        or msg.Usage(input_tokens=0, output_tokens=0, cost_usd=None, pricing_version=msg.NOT_RECORDED, latency_ms=0),
    )
    for rule in dict.fromkeys(violation.rule for violation in missing):
        log.add(rule, message.id, f"filled in as {msg.NOT_RECORDED!r}")
    return message.replace(metadata=complete)


def _is_partial(message: msg.Message) -> bool:
    return message.metadata.status is msg.MessageStatus.PARTIAL
