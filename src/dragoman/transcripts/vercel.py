"""The AI SDK's ``UIMessage``: what a front end keeps of a conversation, as a list of messages made of parts.

A call and its answer are one part there, and what an assistant did in several steps is one message. So one message of
theirs may be several of ours: those of a step, and the answers to its calls. Those after the first are noted as
``part_of`` it. Written for the first time, each message of ours is one of theirs, the answers to its calls within; an
answer without a call is a part of data, which the SDK leaves to applications.
Parts that we have no word for, such as sources, data and tools that a provider ran, are opaque. Published as ``ai`` on
npm (versions 5 to 7).

The one rule: a result stays with its call; where that moves it, a loss says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from dragoman.dialects.parts.body import a_list, an_object
from dragoman.dialects.parts.functions import read_arguments
from dragoman.errors import FormatError
from dragoman.exchange import Written
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.transcripts.parts import (
    KEY,
    KNOWN_ROLES,
    Losing,
    Reading,
    cannot_say,
    carried,
    noted,
    notes_of,
    notes_on,
    read_all,
    restored,
    settled,
    wire_id_of,
    with_notes,
)

NAME: Final = "vercel"
_ROLES: Final = {"system": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_STEP: Final = {"type": "step-start"}
_MARKS: Final = ("empty", "steps")  # what is said under our key about one of their messages and not about one of ours
_RESULT_MARKS: Final = ("order", "parts")
_NOT_ENDED: Final = "the input had not ended"
_LONELY: Final = "data-dragoman-result"
_DENIED: Final = "Tool call execution denied."  # what the SDK itself tells a model then
_OURS: Final = "dragoman:"  # the scheme of an address that is a file of ours
_DATA_URL: Final = re.compile(r"data:([^,;]*);base64,(.*)", re.DOTALL)
_Medium = ImageBlock | AudioBlock | VideoBlock | DocumentBlock
_MEDIA: Final[dict[str, type[_Medium]]] = {"image": ImageBlock, "audio": AudioBlock, "video": VideoBlock}
_Call = ToolUseBlock | InvalidToolUseBlock
_Result = tuple[Message, ToolResultBlock]


class _Draft(msgspec.Struct):
    """One message of theirs in the making: one of ours for each step, and the answers, by the id of their call."""

    steps: list[Message]
    results: dict[str, _Result] = msgspec.field(default_factory=dict)


class _Step(msgspec.Struct):
    """What an assistant did at once."""

    number: int
    start: dict[str, Any] | None  # the part that began it
    parts: list[dict[str, Any]]


# --- reading ---------------------------------------------------------------------------------------------------------


def looks_like(wire: Any) -> bool:
    """Whether a value may be a list of UI messages: they have an id, one of three roles, and parts that have types."""
    return isinstance(wire, list) and bool(wire) and all(_is_shaped(item) for item in wire)


def _is_shaped(item: Any) -> bool:
    match item:
        case {"id": str(), "role": "system" | "user" | "assistant", "parts": list(parts)}:
            return all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts)
        case _:
            return False


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[Message, ...]:
    """The messages of a list of UI messages."""
    return read_all(wire, _read_list, Reading(NAME, session_id, created_at))


def _read_list(value: Any, reading: Reading) -> None:
    for index, item in enumerate(a_list(value, "$")):
        reading.place = f"$[{index}]"
        _read_item(an_object(item, reading.place), reading)


def _read_item(item: dict[str, Any], reading: Reading) -> None:
    where, role = reading.place, item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FormatError(f"a role is one of {', '.join(_ROLES)}, not {role!r}", where=f"{where}.role")
    if not isinstance(item.get("id"), str):
        raise FormatError("a message has an id", where=f"{where}.id")
    parts = [
        an_object(part, f"{where}.parts[{at}]") for at, part in enumerate(a_list(item.get("parts"), f"{where}.parts"))
    ]
    draft = _Draft([])
    lonely = _read_lonely(parts, reading) if role == "assistant" else None
    if lonely is not None:
        told = _ours(item.get("metadata"))
        draft.steps.append(reading.made(Role.TOOL, [lonely], wire_id=item["id"], carried=told))
        reading.messages.append(settled(draft.steps[0], _natural(draft), item, NAME))
        return
    for step in _steps(parts) if role == "assistant" else [_Step(0, None, parts)]:
        _read_step(item, step, draft, reading)
    first = len(reading.messages) - len(draft.steps) - len(draft.results)
    reading.messages[first] = settled(reading.messages[first], _natural(draft), item, NAME)


def _steps(parts: list[dict[str, Any]]) -> list[_Step]:
    """The steps. One in which nothing was done is a part of the one before."""
    steps = [_Step(0, None, [])]
    for at, part in enumerate(parts):
        begins = part.get("type") == "step-start" and at + 1 < len(parts) and parts[at + 1].get("type") != "step-start"
        if begins and not steps[-1].parts and steps[-1].start is None:
            steps[-1].start = part
        elif begins:
            steps.append(_Step(len(steps), part, []))
        else:
            steps[-1].parts.append(part)
    return steps


def _read_step(item: dict[str, Any], step: _Step, draft: _Draft, reading: Reading) -> None:
    role, ours = _ROLES[item["role"]], _ours(item.get("metadata"))
    blocks: list[ContentBlock] = []
    answers: list[tuple[int, ToolResultBlock, dict[str, Any] | None]] = []
    for part in step.parts:
        call = _read_call(part, reading) if role is Role.ASSISTANT else None
        if call is None:
            blocks.append(_read_part(part, role))
            continue
        block, answer = call
        blocks.append(block)
        if answer is not None:
            told = _ours(part.get("resultProviderMetadata"))
            order = (told or {}).get("order")
            answers.append((order if type(order) is int else len(answers), answer, told))
    if (ours or {}).get("empty") is True:
        blocks = []
    _say_step(item, step, blocks, draft, reading)
    said = draft.steps[-1]
    for _, answer, told in sorted(answers, key=lambda each: each[0]):
        kept = None if told is None else {key: value for key, value in told.items() if key not in _RESULT_MARKS}
        message = reading.made(Role.TOOL, [answer], carried=kept)
        reading.messages.append(message)
        draft.results[answer.tool_use_id] = (message, answer)
    noted_calls = [_with_residue(block, part, draft) for block, part in zip(said.content, step.parts, strict=False)]
    if said.content:
        draft.steps[-1] = said.replace(content=tuple(noted_calls))
        reading.messages[-1 - len(answers)] = draft.steps[-1]


def _say_step(item: dict[str, Any], step: _Step, blocks: list[ContentBlock], draft: _Draft, reading: Reading) -> None:
    """The message of a step; the first one has the id of theirs, and the others are noted as a part of it."""
    ours = _ours(item.get("metadata"))
    notes: dict[str, Any] = {}
    if step.number == 0:
        told = None if ours is None else {key: value for key, value in ours.items() if key not in _MARKS}
        message = reading.made(_ROLES[item["role"]], blocks, wire_id=item["id"], carried=told)
        if step.start is not None:
            notes["starts"] = step.start
    else:
        steps = (ours or {}).get("steps")
        told = steps.get(str(step.number)) if isinstance(steps, dict) else None
        message = reading.made(_ROLES[item["role"]], blocks, carried=told if isinstance(told, dict) else None)
        notes["part_of"] = item["id"]
        if step.start != _STEP:
            notes["starts"] = step.start
    if notes:
        message = with_notes(message, {"dialect": NAME, **notes_on(message, NAME), **notes})
    draft.steps.append(message)
    reading.messages.append(message)


def _ours(metadata: Any) -> dict[str, Any] | None:
    """What stands under our key, if it is an object."""
    found = metadata.get(KEY) if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else None


def _read_part(part: dict[str, Any], role: Role) -> ContentBlock:
    block, form = _known_part(part, role)
    if block is None:
        return OpaqueBlock(NAME, part)
    return block.replace(provider_raw=noted(NAME, _natural_part(block, form), part, form=form))


def _known_part(part: dict[str, Any], role: Role) -> tuple[ContentBlock | None, str | None]:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text), None
        case {"type": "reasoning", "text": str(text)} if role is Role.ASSISTANT:
            return _read_thought(part, text)
        case {"type": "file", "mediaType": str(media_type), "url": str(url)} if role is Role.USER:
            return _read_file(part, media_type, url), None
        case _:
            return None, None


def _read_thought(part: dict[str, Any], text: str) -> tuple[ContentBlock, str | None]:
    """A thought, and in whose words its signature stands beside it."""
    metadata = part.get("providerMetadata")
    for whose in (KEY, "anthropic"):
        match metadata.get(whose) if isinstance(metadata, dict) else None:
            case {"redactedData": str(data)} if not text:
                return RedactedThinkingBlock(data), None if whose == KEY else whose
            case {"signature": str(signature)}:
                return ThinkingBlock(text, signature), None if whose == KEY else whose
    return ThinkingBlock(text), None


def _read_file(part: dict[str, Any], media_type: str, url: str) -> _Medium:
    marks, name = _ours(part.get("providerMetadata")) or {}, part.get("filename")
    kind = marks.get("type") if marks.get("type") in (*_MEDIA, "document") else _kind(media_type)
    source = ImageSource("url", url) if marks.get("url") is True else _read_url(url, media_type)
    if kind == "document":
        return DocumentBlock(source, media_type, name if isinstance(name, str) else None)
    return _MEDIA[str(kind)](source, media_type)


def _kind(media_type: str) -> str:
    first = media_type.partition("/")[0]
    return first if first in _MEDIA else "document"


def _read_url(url: str, media_type: str) -> ImageSource:
    head = f"data:{media_type};base64,"
    if url.startswith(head):
        return ImageSource("base64", url[len(head) :])
    if url.startswith(_OURS):
        return ImageSource("file_ref", unquote(url[len(_OURS) :]))
    match = _DATA_URL.fullmatch(url)
    return ImageSource("url", url) if match is None else ImageSource("base64", match[2])


# --- calls and their answers -----------------------------------------------------------------------------------------


def _read_call(part: dict[str, Any], reading: Reading) -> tuple[_Call, ToolResultBlock | None] | None:
    """A call, and its answer if it has one; nothing if it is no call, or one that the provider itself answered."""
    kind, wire_id, state = part.get("type"), part.get("toolCallId"), part.get("state")
    name = part.get("toolName") if kind == "dynamic-tool" else str(kind).removeprefix("tool-")
    is_tool = kind == "dynamic-tool" or (isinstance(kind, str) and kind.startswith("tool-"))
    if not is_tool or not isinstance(wire_id, str) or not isinstance(name, str) or part.get("providerExecuted") is True:
        return None
    if not isinstance(state, str) or not isinstance(part.get("errorText", ""), str):
        return None
    our_id = reading.call_id(wire_id)
    notes: dict[str, Any] = {"dialect": NAME}
    if wire_id != our_id:
        notes["id"] = wire_id
    if kind == "dynamic-tool":
        notes["form"] = "dynamic"
    block = _call_of(part, our_id, name, state).replace(provider_raw=notes if len(notes) > 1 else None)
    return block, _answer_of(part, our_id, state)


def _call_of(part: dict[str, Any], our_id: str, name: str, state: str) -> _Call:
    given, raw = part.get("input"), part.get("rawInput")
    stated = (_ours(part.get("callProviderMetadata")) or {}).get("invalid")
    if type(given) is dict and state != "input-streaming" and not isinstance(stated, str):
        return ToolUseBlock(our_id, name, given)
    if isinstance(stated, str) and isinstance(given, str):
        text = given
    elif isinstance(raw, str):
        text = raw
    else:
        left = given if given is not None else raw
        text = "" if left is None else msgspec.json.encode(left).decode()
    if isinstance(stated, str):
        return InvalidToolUseBlock(our_id, name, text, stated)
    if state == "input-streaming":
        return InvalidToolUseBlock(our_id, name, text, _NOT_ENDED)
    return InvalidToolUseBlock(our_id, name, text, part.get("errorText") or "its input is no JSON object")


def _answer_of(part: dict[str, Any], our_id: str, state: str) -> ToolResultBlock | None:
    told = _ours(part.get("resultProviderMetadata")) or {}
    match state:
        case "output-available":
            return _read_output(part.get("output"), our_id, in_parts=told.get("parts") is True)
        case "output-error":
            listed = told.get("parts")
            blocks = _read_blocks(listed) if isinstance(listed, list) else None
            return ToolResultBlock(our_id, blocks or (TextBlock(part.get("errorText", "")),), is_error=True)
        case "output-denied":
            approval = part.get("approval")
            reason = approval.get("reason") if isinstance(approval, dict) else None
            return ToolResultBlock(our_id, (TextBlock(reason if isinstance(reason, str) else _DENIED),), is_error=True)
        case _:
            return None


def _read_lonely(parts: list[dict[str, Any]], reading: Reading) -> ToolResultBlock | None:
    """An answer that stands without its call, as we write it."""
    data = parts[0].get("data") if [part.get("type") for part in parts] == [_LONELY] else None
    if not isinstance(data, dict) or not isinstance(data.get("errorText", ""), str):
        return None
    wire_id, state = data.get("toolCallId"), data.get("state")
    if not isinstance(wire_id, str) or not isinstance(state, str):
        return None
    our_id = reading.answered_id(wire_id)
    answer = _answer_of({**data, "resultProviderMetadata": {KEY: data}}, our_id, state)
    if answer is None or wire_id == our_id:
        return answer
    return answer.replace(provider_raw={"dialect": NAME, **notes_of(answer.provider_raw, NAME), "id": wire_id})


def _natural_lonely(answer: ToolResultBlock) -> dict[str, Any]:
    """An answer without its call, or a second one: the SDK lets applications have parts of their own."""
    wire_id = notes_of(answer.provider_raw, NAME).get("id", answer.tool_use_id)
    made, marks = _natural_output(answer)
    return {"type": _LONELY, "data": {"toolCallId": wire_id, "state": _state(answer, ""), **made, **marks}}


def _read_output(output: Any, our_id: str, *, in_parts: bool) -> ToolResultBlock:
    blocks = _read_blocks(output) if in_parts and isinstance(output, list) else None
    if blocks is not None:
        return ToolResultBlock(our_id, blocks)
    if isinstance(output, str):
        return ToolResultBlock(our_id, (TextBlock(output),))
    text = msgspec.json.encode(output).decode()
    return ToolResultBlock(our_id, (TextBlock(text),), provider_raw={"dialect": NAME, "form": "json"})


def _read_blocks(listed: list[Any]) -> tuple[ContentBlock, ...] | None:
    """The blocks of an answer that we wrote as parts."""
    if not all(isinstance(part, dict) for part in listed):
        return None
    return tuple(_read_part(part, Role.USER) for part in listed)


def _with_residue(block: ContentBlock, part: dict[str, Any], draft: _Draft) -> ContentBlock:
    """The block; if it is a call, with what is left over of its part."""
    if not isinstance(block, _Call):
        return block
    notes = {key: note for key, note in notes_of(block.provider_raw, NAME).items() if key != "dialect"}
    order = _ours(part.get("resultProviderMetadata")) or {}
    natural = _natural_call(block, draft.results.get(block.id), order.get("order"))
    return block.replace(provider_raw=noted(NAME, natural, part, **notes))


# --- writing ---------------------------------------------------------------------------------------------------------


def write_messages(messages: Iterable[Message]) -> Written:
    """The messages as a list of UI messages, and what it cannot say."""
    drafts: list[_Draft] = []
    calls: dict[str, _Draft] = {}
    losing = Losing(NAME)
    for message in messages:
        _draft(message, drafts, calls, losing)
    return Written([_written(draft) for draft in drafts], tuple(losing.losses))


def _draft(message: Message, drafts: list[_Draft], calls: dict[str, _Draft], losing: Losing) -> None:
    if message.role not in KNOWN_ROLES:
        losing.lose(message, "message", f"there is no role {message.role} here")
    elif message.role is Role.TOOL:
        _draft_answer(message, drafts, calls, losing)
    else:
        kept = losing.sayable(message, message.content, lambda block: cannot_say(block, message.role, NAME))
        said = message.replace(content=kept)
        if drafts and _continues(said, drafts[-1]):
            drafts[-1].steps.append(said)
        else:
            drafts.append(_Draft([said]))
        calls.update((block.id, drafts[-1]) for block in kept if isinstance(block, _Call))


def _continues(message: Message, draft: _Draft) -> bool:
    """Whether a message was a later step of the one that is being made."""
    whole = notes_on(message, NAME).get("part_of")
    return whole is not None and bool(message.content) and wire_id_of(draft.steps[0]) == whole


def _draft_answer(message: Message, drafts: list[_Draft], calls: dict[str, _Draft], losing: Losing) -> None:
    kept = losing.sayable(message, message.content, lambda block: cannot_say(block, Role.TOOL, NAME))
    if not kept:
        losing.lose(message, "message", "a tool's message without a result")
    for at, block in enumerate(kept):
        assert isinstance(block, ToolResultBlock)
        if at:
            losing.lose(message, block.type, "a message has one result here")
            continue
        content = losing.sayable(message, block.content, lambda inner: cannot_say(inner, Role.USER, NAME))
        answer = block.replace(content=content)
        draft = calls.get(block.tool_use_id)
        if draft is None or block.tool_use_id in draft.results:
            drafts.append(_Draft([message.replace(content=(answer,))]))
            continue
        if draft is not drafts[-1] or not _is_of(block, draft.steps[-1]):
            losing.lose(message, "order", "a result stands with its call here, before what was said since")
        draft.results[block.tool_use_id] = (message.replace(content=(answer,)), answer)


def _is_of(result: ToolResultBlock, step: Message) -> bool:
    return any(isinstance(block, _Call) and block.id == result.tool_use_id for block in step.content)


def _written(draft: _Draft) -> dict[str, Any]:
    made: dict[str, Any] = restored(_natural(draft), notes_on(draft.steps[0], NAME))
    return made


def _natural(draft: _Draft) -> dict[str, Any]:
    """What we would write for a message if nobody had noted anything but what its parts are."""
    first = draft.steps[0]
    ours = carried(first, NAME)
    if first.role is Role.TOOL:
        answers = [_natural_lonely(block) for block in first.content if isinstance(block, ToolResultBlock)]
        metadata = {} if ours is None else {"metadata": {KEY: ours}}
        return {"id": wire_id_of(first), "role": "assistant", **metadata, "parts": answers}
    parts = [part for number, step in enumerate(draft.steps) for part in _natural_step(step, number, draft)]
    steps = {str(at): told for at, step in enumerate(draft.steps) if at and (told := _carried_step(step)) is not None}
    if steps:
        ours = {**(ours or {}), "steps": steps}
    if not parts and first.role is not Role.ASSISTANT:
        parts, ours = [{"type": "text", "text": ""}], {"empty": True, **(ours or {})}  # a message has at least one
    metadata = {} if ours is None else {"metadata": {KEY: ours}}
    return {"id": wire_id_of(first), "role": str(first.role), **metadata, "parts": parts}


def _carried_step(step: Message) -> dict[str, Any] | None:
    return carried(step, NAME, has_id=False)


def _natural_step(step: Message, number: int, draft: _Draft) -> Iterator[dict[str, Any]]:
    start = notes_on(step, NAME).get("starts", _STEP if number else None)
    if start is not None:
        yield start
    calls = [block.id for block in step.content if isinstance(block, _Call) and block.id in draft.results]
    answered = [call for call in draft.results if call in calls]
    for block in step.content:
        if isinstance(block, _Call):
            order = answered.index(block.id) if block.id in answered and answered != calls else None
            notes = notes_of(block.provider_raw, NAME)
            yield restored(_natural_call(block, draft.results.get(block.id), order), notes)
        else:
            yield _written_part(block)


def _natural_call(call: _Call, result: _Result | None, order: int | None) -> dict[str, Any]:
    """A call, and its answer if it has one, as one part."""
    notes = notes_of(call.provider_raw, NAME)
    named = (
        {"type": "dynamic-tool", "toolName": call.name}
        if notes.get("form") == "dynamic"
        else {"type": f"tool-{call.name}"}
    )
    made: dict[str, Any] = {**named, "toolCallId": notes.get("id") or call.id}
    answer = None if result is None else result[1]
    if isinstance(call, ToolUseBlock):
        made |= {"state": _state(answer, "input-available"), "input": call.input}
    else:
        key = "input" if answer is not None and not answer.is_error else "rawInput"
        made |= {"state": _state(answer, "input-streaming"), key: call.input_text}
        made["callProviderMetadata"] = {KEY: {"invalid": call.reason}}
    return made if result is None else {**made, **_natural_answer(result, order)}


def _state(answer: ToolResultBlock | None, without: str) -> str:
    if answer is None:
        return without
    return "output-error" if answer.is_error else "output-available"


def _natural_answer(result: _Result, order: int | None) -> dict[str, Any]:
    message, answer = result
    ours = carried(message, NAME, has_id=False) or {}
    if order is not None:
        ours["order"] = order
    made, marks = _natural_output(answer)
    ours |= marks
    return {**made, "resultProviderMetadata": {KEY: ours}} if ours else made


def _natural_output(answer: ToolResultBlock) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was answered, and what has to be said under our key about it."""
    made: dict[str, Any] = {}
    marks: dict[str, Any] = {}
    match answer.content:
        case (TextBlock(text),) if not _is_noted(answer.content[0]):
            made["errorText" if answer.is_error else "output"] = _output(text, answer)
        case blocks if answer.is_error:
            made["errorText"] = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
            marks["parts"] = [_written_part(block) for block in blocks]
        case blocks:
            made["output"], marks["parts"] = [_written_part(block) for block in blocks], True
    return made, marks


def _is_noted(block: ContentBlock) -> bool:
    return bool(notes_of(getattr(block, "provider_raw", None), NAME))


def _output(text: str, answer: ToolResultBlock) -> Any:
    """What a tool gave: a text, or the value that was read as one."""
    if answer.is_error or notes_of(answer.provider_raw, NAME).get("form") != "json":
        return text
    value, problem = read_arguments(f'{{"value":{text}}}')
    return text if problem is not None else value.get("value")


def _written_part(block: ContentBlock) -> dict[str, Any]:
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: dict[str, Any] = restored(_natural_part(block, notes.get("form")), notes)
    return made


def _natural_part(block: ContentBlock, form: str | None) -> dict[str, Any]:
    match block:
        case TextBlock(text):
            return {"type": "text", "text": text}
        case ThinkingBlock(text, signature):
            told = {} if signature is None else _beside(block, form, "signature", signature)
            return {"type": "reasoning", "text": text, **told}
        case RedactedThinkingBlock(data):
            return {"type": "reasoning", "text": "", **_beside(block, form, "redactedData", data)}
        case OpaqueBlock(wire=wire):
            return wire
        case ImageBlock() | AudioBlock() | VideoBlock() | DocumentBlock():
            return _natural_file(block)
        case _:
            raise AssertionError(f"{block.type} is no part")


def _beside(block: ThinkingBlock | RedactedThinkingBlock, form: str | None, name: str, value: str) -> dict[str, Any]:
    """What seals a thought, in the words of the SDK's provider for Anthropic if it came from there."""
    from_there = form == "anthropic" or bool(notes_of(block.provider_raw, "anthropic"))
    return {"providerMetadata": {"anthropic" if from_there else KEY: {name: value}}}


def _natural_file(block: _Medium) -> dict[str, Any]:
    source, media_type = block.source, block.media_type
    match source.kind:
        case "base64":
            url = f"data:{media_type};base64,{source.data}"
        case "url":
            url = source.data
        case _:
            url = _OURS + quote(source.data)
    marks: dict[str, Any] = {}
    if _kind(media_type) != block.type:
        marks["type"] = block.type
    if source.kind == "url" and url.startswith(("data:", _OURS)):
        marks["url"] = True
    name = getattr(block, "name", None)
    named = {} if name is None else {"filename": name}
    told = {"providerMetadata": {KEY: marks}} if marks else {}
    return {"type": "file", "mediaType": media_type, **named, "url": url, **told}
