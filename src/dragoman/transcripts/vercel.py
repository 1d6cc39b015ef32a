"""The AI SDK's ``UIMessage``: the message list of a front end, made of parts.

A call and its result are one part, and an assistant message with several steps is one message. One wire message may
become several messages: one per step, and the results. Those after the first are noted as ``part_of``. New messages
become one wire message each, with the results of their calls; a result without a call is a data part, which the SDK
leaves to applications. Other parts, such as sources, data and provider tools, are opaque. Published as ``ai`` on npm
(versions 5 to 7).

Invariant: a result stays with its call; a changed position is reported as a loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from dragoman import message as msg
from dragoman.errors import FormatError
from dragoman.exchange import Written
from dragoman.jsontext import expect_list, expect_object
from dragoman.transcripts import base
from dragoman.wire.residue import get_notes
from dragoman.wire.tool_definitions import read_arguments

NAME: Final = "vercel"
_ROLES: Final = {"system": msg.Role.SYSTEM, "user": msg.Role.USER, "assistant": msg.Role.ASSISTANT}
_STEP: Final = {"type": "step-start"}
_MESSAGE_FIELDS: Final = (
    "empty",
    "steps",
)  # fields under our key about a wire message
_RESULT_FIELDS: Final = ("order", "parts")
_INPUT_NOT_COMPLETE: Final = "the input is incomplete"
_ORPHAN_RESULT_TYPE: Final = "data-dragoman-result"
_DENIED_TEXT: Final = "Tool call execution denied."  # the SDK's text for the model
_FILE_SCHEME: Final = "dragoman:"  # the URL scheme of workspace files
_DATA_URL: Final = re.compile(r"data:([^,;]*);base64,(.*)", re.DOTALL)
_Result = tuple[msg.Message, msg.ToolResultBlock]


class _Draft(msgspec.Struct):
    """A wire message being built: one message per step, and the results by call id."""

    steps: list[msg.Message]
    results: dict[str, _Result] = msgspec.field(default_factory=dict)


class _Step(msgspec.Struct):
    """The parts of one step of an assistant."""

    number: int
    start: dict[str, Any] | None  # its step-start part
    parts: list[dict[str, Any]]


# --- reading ---------------------------------------------------------------------------------------------------------


def looks_like(wire: Any) -> bool:
    """Return whether a value may be a list of UI messages: they have an id, one of three roles, and typed parts."""
    return base.is_list_of(wire, _is_message)


def _is_message(item: Any) -> bool:
    match item:
        case {"id": str(), "role": "system" | "user" | "assistant", "parts": list(parts)}:
            return base.has_typed_parts(parts)
        case _:
            return False


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[msg.Message, ...]:
    """Read a list of UI messages."""
    return base.read_transcript(wire, _read_list, base.TranscriptReader(NAME, session_id, created_at))


def _read_list(value: Any, reader: base.TranscriptReader) -> None:
    for index, item in enumerate(expect_list(value, "$")):
        reader.path = f"$[{index}]"
        _read_item(expect_object(item, reader.path), reader)


def _read_item(item: dict[str, Any], reader: base.TranscriptReader) -> None:
    where, role = reader.path, item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FormatError(f"expected a role of {', '.join(_ROLES)}, not {role!r}", where=f"{where}.role")
    if not isinstance(item.get("id"), str):
        raise FormatError("a message needs an id", where=f"{where}.id")
    parts = [
        expect_object(part, f"{where}.parts[{index}]")
        for index, part in enumerate(expect_list(item.get("parts"), f"{where}.parts"))
    ]
    draft = _Draft([])
    orphan_result = _read_orphan_result(parts, reader) if role == "assistant" else None
    if orphan_result is not None:
        extra = base.own_fields(item.get("metadata"))
        draft.steps.append(reader.make_message(msg.Role.TOOL, [orphan_result], wire_id=item["id"], own_extra=extra))
        reader.messages.append(base.add_residue(draft.steps[0], _default_message(draft), item, NAME))
        return
    for step in _split_steps(parts) if role == "assistant" else [_Step(0, None, parts)]:
        _read_step(item, step, draft, reader)
    first = len(reader.messages) - len(draft.steps) - len(draft.results)
    reader.messages[first] = base.add_residue(reader.messages[first], _default_message(draft), item, NAME)


def _split_steps(parts: list[dict[str, Any]]) -> list[_Step]:
    """Return the steps. An empty step belongs to the previous one."""
    steps = [_Step(0, None, [])]
    for index, part in enumerate(parts):
        is_start = (
            part.get("type") == "step-start" and index + 1 < len(parts) and parts[index + 1].get("type") != "step-start"
        )
        if is_start and not steps[-1].parts and steps[-1].start is None:
            steps[-1].start = part
        elif is_start:
            steps.append(_Step(len(steps), part, []))
        else:
            steps[-1].parts.append(part)
    return steps


def _read_step(item: dict[str, Any], step: _Step, draft: _Draft, reader: base.TranscriptReader) -> None:
    role, own = _ROLES[item["role"]], base.own_fields(item.get("metadata"))
    blocks: list[msg.ContentBlock] = []
    answers: list[tuple[int, msg.ToolResultBlock, dict[str, Any] | None]] = []
    for part in step.parts:
        call = _read_call(part, reader) if role is msg.Role.ASSISTANT else None
        if call is None:
            blocks.append(_read_part(part, role))
            continue
        block, answer = call
        blocks.append(block)
        if answer is not None:
            result_fields = base.own_fields(part.get("resultProviderMetadata"))
            order = (result_fields or {}).get("order")
            answers.append((order if type(order) is int else len(answers), answer, result_fields))
    if (own or {}).get("empty") is True:
        blocks = []
    _add_step(item, step, blocks, draft, reader)
    step_message = draft.steps[-1]
    for _, answer, result_fields in sorted(answers, key=lambda each: each[0]):
        extra = (
            None
            if result_fields is None
            else {key: value for key, value in result_fields.items() if key not in _RESULT_FIELDS}
        )
        message = reader.make_message(msg.Role.TOOL, [answer], own_extra=extra)
        reader.messages.append(message)
        draft.results[answer.tool_use_id] = (message, answer)
    blocks_with_notes = [
        _add_call_notes(block, part, draft) for block, part in zip(step_message.content, step.parts, strict=False)
    ]
    if step_message.content:
        draft.steps[-1] = step_message.replace(content=tuple(blocks_with_notes))
        reader.messages[-1 - len(answers)] = draft.steps[-1]


def _add_step(
    item: dict[str, Any], step: _Step, blocks: list[msg.ContentBlock], draft: _Draft, reader: base.TranscriptReader
) -> None:
    """Add the message of a step; the first one has the wire id, the others are noted as a part of it."""
    own = base.own_fields(item.get("metadata"))
    notes: dict[str, Any] = {}
    if step.number == 0:
        extra = None if own is None else {key: value for key, value in own.items() if key not in _MESSAGE_FIELDS}
        message = reader.make_message(_ROLES[item["role"]], blocks, wire_id=item["id"], own_extra=extra)
        if step.start is not None:
            notes["starts"] = step.start
    else:
        steps = (own or {}).get("steps")
        extra = steps.get(str(step.number)) if isinstance(steps, dict) else None
        message = reader.make_message(
            _ROLES[item["role"]], blocks, own_extra=extra if isinstance(extra, dict) else None
        )
        notes["part_of"] = item["id"]
        if step.start != _STEP:
            notes["starts"] = step.start
    message = base.add_notes(message, NAME, **notes)
    draft.steps.append(message)
    reader.messages.append(message)


def _read_part(part: dict[str, Any], role: msg.Role) -> msg.ContentBlock:
    block, form = _match_part(part, role)
    return base.with_residue(NAME, block, part, lambda block: _default_part(block, form), form=form)


def _match_part(part: dict[str, Any], role: msg.Role) -> tuple[msg.ContentBlock | None, str | None]:
    match part:
        case {"type": "text", "text": str(text)}:
            return msg.TextBlock(text), None
        case {"type": "reasoning", "text": str(text)} if role is msg.Role.ASSISTANT:
            return _read_thinking(part, text)
        case {"type": "file", "mediaType": str(media_type), "url": str(url)} if role is msg.Role.USER:
            return _read_file(part, media_type, url), None
        case _:
            return None, None


def _read_thinking(part: dict[str, Any], text: str) -> tuple[msg.ContentBlock, str | None]:
    """Return reasoning, and the namespace of its signature."""
    metadata = part.get("providerMetadata")
    for namespace in (base.KEY, "anthropic"):
        match metadata.get(namespace) if isinstance(metadata, dict) else None:
            case {"redactedData": str(data)} if not text:
                return msg.RedactedThinkingBlock(data), None if namespace == base.KEY else namespace
            case {"signature": str(signature)}:
                return msg.ThinkingBlock(text, signature), None if namespace == base.KEY else namespace
    return msg.ThinkingBlock(text), None


def _read_file(part: dict[str, Any], media_type: str, url: str) -> msg.MediaBlock:
    own, name = base.own_fields(part.get("providerMetadata")) or {}, part.get("filename")
    kind = own.get("type") if own.get("type") in base.MEDIA_BLOCKS else base.media_kind(media_type)
    source = msg.ImageSource("url", url) if own.get("url") is True else _read_url(url, media_type)
    return base.make_medium(str(kind), source, media_type, name)


def _read_url(url: str, media_type: str) -> msg.ImageSource:
    head = f"data:{media_type};base64,"
    if url.startswith(head):
        return msg.ImageSource("base64", url[len(head) :])
    if url.startswith(_FILE_SCHEME):
        return msg.ImageSource("file_ref", unquote(url[len(_FILE_SCHEME) :]))
    match = _DATA_URL.fullmatch(url)
    return msg.ImageSource("url", url) if match is None else msg.ImageSource("base64", match[2])


# --- calls and results -----------------------------------------------------------------------------------------------


def _read_call(
    part: dict[str, Any], reader: base.TranscriptReader
) -> tuple[msg.CallBlock, msg.ToolResultBlock | None] | None:
    """Return a call and its result, if any; ``None`` if it is not a call, or one that the provider executed."""
    kind, wire_id, state = part.get("type"), part.get("toolCallId"), part.get("state")
    name = part.get("toolName") if kind == "dynamic-tool" else str(kind).removeprefix("tool-")
    is_tool = kind == "dynamic-tool" or (isinstance(kind, str) and kind.startswith("tool-"))
    if not is_tool or not isinstance(wire_id, str) or not isinstance(name, str) or part.get("providerExecuted") is True:
        return None
    if not isinstance(state, str) or not isinstance(part.get("errorText", ""), str):
        return None
    our_id = reader.call_id(wire_id)
    notes: dict[str, Any] = {"dialect": NAME}
    if wire_id != our_id:
        notes["id"] = wire_id
    if kind == "dynamic-tool":
        notes["form"] = "dynamic"
    block = _make_call(part, our_id, name, state).replace(provider_raw=notes if len(notes) > 1 else None)
    return block, _make_result(part, our_id, state)


def _make_call(part: dict[str, Any], our_id: str, name: str, state: str) -> msg.CallBlock:
    value, raw = part.get("input"), part.get("rawInput")
    stated_reason = (base.own_fields(part.get("callProviderMetadata")) or {}).get("invalid")
    if type(value) is dict and state != "input-streaming" and not isinstance(stated_reason, str):
        return msg.ToolUseBlock(our_id, name, value)
    if isinstance(stated_reason, str) and isinstance(value, str):
        text = value
    elif isinstance(raw, str):
        text = raw
    else:
        fallback = value if value is not None else raw
        text = "" if fallback is None else msgspec.json.encode(fallback).decode()
    if isinstance(stated_reason, str):
        return msg.InvalidToolUseBlock(our_id, name, text, stated_reason)
    if state == "input-streaming":
        return msg.InvalidToolUseBlock(our_id, name, text, _INPUT_NOT_COMPLETE)
    return msg.InvalidToolUseBlock(our_id, name, text, part.get("errorText") or "its input is not a JSON object")


def _make_result(part: dict[str, Any], our_id: str, state: str) -> msg.ToolResultBlock | None:
    own = base.own_fields(part.get("resultProviderMetadata")) or {}
    match state:
        case "output-available":
            return _read_output(part.get("output"), our_id, in_parts=own.get("parts") is True)
        case "output-error":
            parts = own.get("parts")
            blocks = _read_blocks(parts) if isinstance(parts, list) else None
            return msg.ToolResultBlock(our_id, blocks or (msg.TextBlock(part.get("errorText", "")),), is_error=True)
        case "output-denied":
            approval = part.get("approval")
            reason = approval.get("reason") if isinstance(approval, dict) else None
            return msg.ToolResultBlock(
                our_id, (msg.TextBlock(reason if isinstance(reason, str) else _DENIED_TEXT),), is_error=True
            )
        case _:
            return None


def _read_orphan_result(parts: list[dict[str, Any]], reader: base.TranscriptReader) -> msg.ToolResultBlock | None:
    """Return a result without its call, as we write it."""
    data = parts[0].get("data") if [part.get("type") for part in parts] == [_ORPHAN_RESULT_TYPE] else None
    if not isinstance(data, dict) or not isinstance(data.get("errorText", ""), str):
        return None
    wire_id, state = data.get("toolCallId"), data.get("state")
    if not isinstance(wire_id, str) or not isinstance(state, str):
        return None
    our_id = reader.result_id(wire_id)
    answer = _make_result({**data, "resultProviderMetadata": {base.KEY: data}}, our_id, state)
    if answer is None or wire_id == our_id:
        return answer
    return answer.replace(provider_raw={"dialect": NAME, **get_notes(answer.provider_raw, NAME), "id": wire_id})


def _default_orphan_result(answer: msg.ToolResultBlock) -> dict[str, Any]:
    """Write a result without a call, or a second result, as a data part."""
    wire_id = get_notes(answer.provider_raw, NAME).get("id", answer.tool_use_id)
    output_fields, own = _default_output(answer)
    return {
        "type": _ORPHAN_RESULT_TYPE,
        "data": {"toolCallId": wire_id, "state": _result_state(answer, ""), **output_fields, **own},
    }


def _read_output(output: Any, our_id: str, *, in_parts: bool) -> msg.ToolResultBlock:
    blocks = _read_blocks(output) if in_parts and isinstance(output, list) else None
    if blocks is not None:
        return msg.ToolResultBlock(our_id, blocks)
    if isinstance(output, str):
        return msg.ToolResultBlock(our_id, (msg.TextBlock(output),))
    text = msgspec.json.encode(output).decode()
    return msg.ToolResultBlock(our_id, (msg.TextBlock(text),), provider_raw={"dialect": NAME, "form": "json"})


def _read_blocks(parts: list[Any]) -> tuple[msg.ContentBlock, ...] | None:
    """Return the blocks of a result that we wrote as parts."""
    if not all(isinstance(part, dict) for part in parts):
        return None
    return tuple(_read_part(part, msg.Role.USER) for part in parts)


def _add_call_notes(block: msg.ContentBlock, part: dict[str, Any], draft: _Draft) -> msg.ContentBlock:
    """Return the block; a call with the residue of its part."""
    if not isinstance(block, msg.CallBlock):
        return block
    notes = {key: note for key, note in get_notes(block.provider_raw, NAME).items() if key != "dialect"}
    order = base.own_fields(part.get("resultProviderMetadata")) or {}
    default = _default_call(block, draft.results.get(block.id), order.get("order"))
    return block.replace(provider_raw=base.make_notes(NAME, default, part, **notes))


# --- writing ---------------------------------------------------------------------------------------------------------


def write_messages(messages: Iterable[msg.Message]) -> Written:
    """Write messages as a list of UI messages and report losses."""
    drafts: list[_Draft] = []
    calls: dict[str, _Draft] = {}
    history = tuple(messages)
    collector = base.LossCollector(NAME, history)
    for message in history:
        _draft_message(message, drafts, calls, collector)
    return Written([_write_draft(draft) for draft in drafts], tuple(collector.losses))


def _draft_message(
    message: msg.Message, drafts: list[_Draft], calls: dict[str, _Draft], collector: base.LossCollector
) -> None:
    if message.role not in base.KNOWN_ROLES:
        collector.add_loss(message, "message", f"this format has no role {message.role}")
    elif message.role is msg.Role.TOOL:
        _draft_result(message, drafts, calls, collector)
    else:
        blocks = collector.supported_blocks(
            message, message.content, lambda block: base.unsupported_reason(block, message.role, NAME)
        )
        supported = message.replace(content=blocks)
        if drafts and _continues_draft(supported, drafts[-1]):
            drafts[-1].steps.append(supported)
        else:
            drafts.append(_Draft([supported]))
        calls.update((block.id, drafts[-1]) for block in blocks if isinstance(block, msg.CallBlock))


def _continues_draft(message: msg.Message, draft: _Draft) -> bool:
    """Return whether a message was a later step of the current draft."""
    message_wire_id = base.message_notes(message, NAME).get("part_of")
    return message_wire_id is not None and bool(message.content) and base.get_wire_id(draft.steps[0]) == message_wire_id


def _draft_result(
    message: msg.Message, drafts: list[_Draft], calls: dict[str, _Draft], collector: base.LossCollector
) -> None:
    blocks = collector.supported_blocks(
        message, message.content, lambda block: base.unsupported_reason(block, msg.Role.TOOL, NAME)
    )
    if not blocks:
        collector.add_loss(message, "message", "a tool message without a result")
    for position, block in enumerate(blocks):
        assert isinstance(block, msg.ToolResultBlock)
        if position:
            collector.add_loss(message, block.type, "a message has only one result in this format")
            continue
        content = collector.supported_blocks(
            message, block.content, lambda inner: base.unsupported_reason(inner, msg.Role.USER, NAME)
        )
        answer = block.replace(content=content)
        draft = calls.get(block.tool_use_id)
        if draft is None or block.tool_use_id in draft.results:
            drafts.append(_Draft([message.replace(content=(answer,))]))
            continue
        if draft is not drafts[-1] or not _belongs_to_step(block, draft.steps[-1]):
            collector.add_loss(message, "order", "a result is stored with its call in this format")
        draft.results[block.tool_use_id] = (message.replace(content=(answer,)), answer)


def _belongs_to_step(result: msg.ToolResultBlock, step: msg.Message) -> bool:
    return any(isinstance(block, msg.CallBlock) and block.id == result.tool_use_id for block in step.content)


def _write_draft(draft: _Draft) -> dict[str, Any]:
    wire: dict[str, Any] = base.apply_notes(_default_message(draft), base.message_notes(draft.steps[0], NAME))
    return wire


def _default_message(draft: _Draft) -> dict[str, Any]:
    """Write a wire message without its residue."""
    first = draft.steps[0]
    extra = base.extra_fields(first, NAME)
    if first.role is msg.Role.TOOL:
        answers = [_default_orphan_result(block) for block in first.content if isinstance(block, msg.ToolResultBlock)]
        metadata = {} if extra is None else {"metadata": {base.KEY: extra}}
        return {"id": base.get_wire_id(first), "role": "assistant", **metadata, "parts": answers}
    parts = [part for number, step in enumerate(draft.steps) for part in _default_step(step, number, draft)]
    steps = {
        str(number_of_step): step_extra
        for number_of_step, step in enumerate(draft.steps)
        if number_of_step and (step_extra := _step_extra_fields(step)) is not None
    }
    if steps:
        extra = {**(extra or {}), "steps": steps}
    if not parts and first.role is not msg.Role.ASSISTANT:
        parts, extra = [{"type": "text", "text": ""}], {"empty": True, **(extra or {})}  # parts must not be empty
    metadata = {} if extra is None else {"metadata": {base.KEY: extra}}
    return {"id": base.get_wire_id(first), "role": str(first.role), **metadata, "parts": parts}


def _step_extra_fields(step: msg.Message) -> dict[str, Any] | None:
    return base.extra_fields(step, NAME, has_id=False)


def _default_step(step: msg.Message, number: int, draft: _Draft) -> Iterator[dict[str, Any]]:
    start = base.message_notes(step, NAME).get("starts", _STEP if number else None)
    if start is not None:
        yield start
    calls = [block.id for block in step.content if isinstance(block, msg.CallBlock) and block.id in draft.results]
    answered_calls = [call for call in draft.results if call in calls]
    for block in step.content:
        if isinstance(block, msg.CallBlock):
            order = answered_calls.index(block.id) if block.id in answered_calls and answered_calls != calls else None
            notes = get_notes(block.provider_raw, NAME)
            yield base.apply_notes(_default_call(block, draft.results.get(block.id), order), notes)
        else:
            yield _write_part(block)


def _default_call(call: msg.CallBlock, result: _Result | None, order: int | None) -> dict[str, Any]:
    """Write a call and its result, if any, as one part."""
    notes = get_notes(call.provider_raw, NAME)
    name_fields = (
        {"type": "dynamic-tool", "toolName": call.name}
        if notes.get("form") == "dynamic"
        else {"type": f"tool-{call.name}"}
    )
    wire: dict[str, Any] = {**name_fields, "toolCallId": notes.get("id") or call.id}
    answer = None if result is None else result[1]
    if isinstance(call, msg.ToolUseBlock):
        wire |= {"state": _result_state(answer, "input-available"), "input": call.input}
    else:
        key = "input" if answer is not None and not answer.is_error else "rawInput"
        wire |= {"state": _result_state(answer, "input-streaming"), key: call.input_text}
        wire["callProviderMetadata"] = {base.KEY: {"invalid": call.reason}}
    return wire if result is None else {**wire, **_default_result(result, order)}


def _result_state(answer: msg.ToolResultBlock | None, default: str) -> str:
    if answer is None:
        return default
    return "output-error" if answer.is_error else "output-available"


def _default_result(result: _Result, order: int | None) -> dict[str, Any]:
    message, answer = result
    own = base.extra_fields(message, NAME, has_id=False) or {}
    if order is not None:
        own["order"] = order
    wire, output_own_fields = _default_output(answer)
    own |= output_own_fields
    return {**wire, "resultProviderMetadata": {base.KEY: own}} if own else wire


def _default_output(answer: msg.ToolResultBlock) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the output of a result, and the fields under our key."""
    wire: dict[str, Any] = {}
    own: dict[str, Any] = {}
    match answer.content:
        case (msg.TextBlock(text),) if not _has_notes(answer.content[0]):
            wire["errorText" if answer.is_error else "output"] = _output_value(text, answer)
        case blocks if answer.is_error:
            wire["errorText"] = "\n".join(block.text for block in blocks if isinstance(block, msg.TextBlock))
            own["parts"] = [_write_part(block) for block in blocks]
        case blocks:
            wire["output"], own["parts"] = [_write_part(block) for block in blocks], True
    return wire, own


def _has_notes(block: msg.ContentBlock) -> bool:
    return bool(get_notes(getattr(block, "provider_raw", None), NAME))


def _output_value(text: str, answer: msg.ToolResultBlock) -> Any:
    """Return the output of a tool: text, or the value whose JSON was read as text."""
    if answer.is_error or get_notes(answer.provider_raw, NAME).get("form") != "json":
        return text
    value, problem = read_arguments(f'{{"value":{text}}}')
    return text if problem is not None else value.get("value")


def _write_part(block: msg.ContentBlock) -> Any:
    return base.write_with_notes(block, NAME, lambda notes: _default_part(block, notes.get("form")))


def _default_part(block: msg.ContentBlock, form: str | None) -> dict[str, Any]:
    match block:
        case msg.TextBlock(text):
            return {"type": "text", "text": text}
        case msg.ThinkingBlock(text, signature):
            signature_field = {} if signature is None else _provider_metadata(block, form, "signature", signature)
            return {"type": "reasoning", "text": text, **signature_field}
        case msg.RedactedThinkingBlock(data):
            return {"type": "reasoning", "text": "", **_provider_metadata(block, form, "redactedData", data)}
        case msg.OpaqueBlock(wire=wire):
            return wire
        case _ if isinstance(block, msg.MediaBlock):
            return _default_file(block)
        case _:
            raise AssertionError(f"{block.type} is not a part")


def _provider_metadata(
    block: msg.ThinkingBlock | msg.RedactedThinkingBlock, form: str | None, name: str, value: str
) -> dict[str, Any]:
    """Return the signature in the SDK's field for Anthropic, if Anthropic signed it, else under our key."""
    is_anthropic = form == "anthropic" or bool(get_notes(block.provider_raw, "anthropic"))
    return {"providerMetadata": {"anthropic" if is_anthropic else base.KEY: {name: value}}}


def _default_file(block: msg.MediaBlock) -> dict[str, Any]:
    source, media_type = block.source, block.media_type
    match source.kind:
        case "base64":
            url = f"data:{media_type};base64,{source.data}"
        case "url":
            url = source.data
        case _:
            url = _FILE_SCHEME + quote(source.data)
    own: dict[str, Any] = {}
    if base.media_kind(media_type) != block.type:
        own["type"] = block.type
    if source.kind == "url" and url.startswith(("data:", _FILE_SCHEME)):
        own["url"] = True
    name = getattr(block, "name", None)
    name_field = {} if name is None else {"filename": name}
    metadata = {"providerMetadata": {base.KEY: own}} if own else {}
    return {"type": "file", "mediaType": media_type, **name_field, "url": url, **metadata}
