"""Requests of Cohere Chat, both ways: the messages, the tools and the options.

The one rule: a result goes out under the id that its call came with.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final

from dragoman.dialects.cohere.blocks import (
    NAME,
    cannot_answer,
    cannot_say,
    natural_message,
    read_part,
    read_said,
    written_part,
)
from dragoman.dialects.parts.asides import lost_asides
from dragoman.dialects.parts.body import a_list, an_object, from_body
from dragoman.dialects.parts.conversation import Conversation, with_ids_of_calls, worth_sending
from dragoman.dialects.parts.functions import natural_tool, read_tool, written_tools
from dragoman.dialects.parts.losses import lost_failure, lost_options, sayable
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import integer_or_none, number_or_none, text_or_none, texts_of
from dragoman.errors import FormatError
from dragoman.exchange import (
    Loss,
    Options,
    Reasoning,
    Request,
    ResponseFormat,
    ToolChoice,
    Written,
)
from dragoman.ids import AS_IT_IS, spell
from dragoman.message import ContentBlock, Message, Role, TextBlock, ToolResultBlock

_CHOICES: Final = {"REQUIRED": "required", "NONE": "none"}
_CHOICE_WORDS: Final = {"required": "REQUIRED", "tool": "REQUIRED", "none": "NONE"}
_APART: Final = ("messages", "tools")  # parts of a request that are read one by one


@from_body
def read_request(body: dict[str, Any]) -> Request:
    """A request as ``/v2/chat`` takes it."""
    conversation = Conversation()
    for index, message in enumerate(a_list(body.get("messages"), "$.messages")):
        _read_message(an_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", conversation)
    tools = a_list(body.get("tools") or [], "$.tools")
    request = Request(
        model=text_or_none(body.get("model")),
        messages=tuple(conversation.messages),
        tools=tuple(read_tool(an_object(tool, f"$.tools[{index}]"), NAME) for index, tool in enumerate(tools)),
        options=_read_options(body),
    )
    rest = {key: value for key, value in body.items() if key not in _APART}
    empty = {"tools": body["tools"]} if "tools" in body and not body["tools"] else None
    return request.replace(provider_raw=noted(NAME, _written_options(request), rest, empty=empty))


def write_request(request: Request, quirks: Collection[str] = ()) -> Written:  # noqa: ARG001  it has none
    """The request as ``/v2/chat`` takes it, and what it cannot take."""
    losses = _lost_options(request.options)
    request = worth_sending(with_ids_of_calls(request, NAME), NAME, losses)
    notes = notes_of(request.provider_raw, NAME)
    top = restored(_written_options(request), notes.get("residue"))
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = _written_messages(request.messages, losses)
    tools = written_tools(request.tools, natural_tool, NAME, losses)
    if tools:
        wire["tools"] = tools
    elif "empty" in notes:
        wire.update(notes["empty"])
    wire.update(top)
    losses.extend(lost_asides(request, NAME))
    return Written(wire, tuple(losses))


def _read_message(wire: dict[str, Any], where: str, conversation: Conversation) -> None:
    role = wire.get("role")
    if role == "tool":
        result = _read_result(wire, where, conversation)
        conversation.add(Role.TOOL, [result], answers=result.tool_use_id)
        return
    if role not in ("user", "assistant", "system"):
        raise FormatError(f"a role is user, assistant, system or tool, not {role!r}", where=f"{where}.role")
    blocks, form = read_said(wire, where, conversation)
    raw = noted(NAME, natural_message(role, blocks, form), wire, form=form)
    conversation.add(Role(role), blocks, raw)


def _read_result(wire: dict[str, Any], where: str, conversation: Conversation) -> ToolResultBlock:
    provider_id, content = wire.get("tool_call_id"), wire.get("content")
    if not isinstance(provider_id, str):
        raise FormatError("a result has the id of its call", where=f"{where}.tool_call_id")
    blocks: list[ContentBlock] = []
    if isinstance(content, str):
        blocks.append(TextBlock(content))
    elif content is not None:
        for index, part in enumerate(a_list(content, f"{where}.content")):
            blocks.append(read_part(an_object(part, f"{where}.content[{index}]")))
    call_id = conversation.answered_id(provider_id)
    result = ToolResultBlock(call_id, tuple(blocks))
    note = provider_id if provider_id != call_id else None
    form = "list" if isinstance(content, list) else "absent" if "content" not in wire else None
    return result.replace(provider_raw=noted(NAME, _natural_result(result, note, form), wire, id=note, form=form))


def _natural_result(result: ToolResultBlock, provider_id: str | None, form: str | None) -> dict[str, Any]:
    parts = [written_part(block) for block in result.content if cannot_answer(block) is None]
    content: Any = parts
    if form != "list" and (not parts or (len(parts) == 1 and set(parts[0]) == {"type", "text"})):
        content = parts[0]["text"] if parts else ""
    wire = {"role": "tool", "tool_call_id": provider_id or spell(result.tool_use_id, AS_IT_IS)}
    return wire if form == "absent" and not parts else {**wire, "content": content}


def _written_messages(messages: tuple[Message, ...], losses: list[Loss]) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    for message in messages:
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        wire.extend(_written_result(result, message, losses) for result in results)
        others = [block for block in message.content if not isinstance(block, ToolResultBlock)]
        blocks = sayable(others, partial(cannot_say, role=message.role), NAME, losses, message)
        if blocks or not message.content:  # else nothing of it can be said here; the losses name it
            notes = notes_of(message.metadata.provider_raw, NAME)
            natural = natural_message(message.role.value, blocks, notes.get("form"))
            wire.append(restored(natural, notes.get("residue")))
    return wire


def _written_result(result: ToolResultBlock, message: Message, losses: list[Loss]) -> dict[str, Any]:
    losses.extend(lost_failure(result, message, NAME))
    sayable(result.content, cannot_answer, NAME, losses, message)
    notes = notes_of(result.provider_raw, NAME)
    natural = _natural_result(result, notes.get("id"), notes.get("form"))
    made: dict[str, Any] = restored(natural, notes.get("residue"))
    return made


def _read_options(body: dict[str, Any]) -> Options:
    mode = _CHOICES.get(str(body.get("tool_choice")))
    return Options(
        max_output_tokens=integer_or_none(body.get("max_tokens")),
        temperature=number_or_none(body.get("temperature")),
        top_p=number_or_none(body.get("p")),
        top_k=integer_or_none(body.get("k")),
        stop_sequences=texts_of(body.get("stop_sequences")),
        seed=integer_or_none(body.get("seed")),
        presence_penalty=number_or_none(body.get("presence_penalty")),
        frequency_penalty=number_or_none(body.get("frequency_penalty")),
        tool_choice=ToolChoice(mode) if mode else None,  # type: ignore[arg-type]
        response_format=_read_format(body.get("response_format")),
        reasoning=_read_reasoning(body.get("thinking")),
        stream=body["stream"] if isinstance(body.get("stream"), bool) else None,
    )


def _read_format(asked: Any) -> ResponseFormat | None:
    match asked:
        case {"type": "json_object", "json_schema": dict(schema)}:
            return ResponseFormat("json_schema", schema)
        case {"type": "json_object"}:
            return ResponseFormat("json")
        case {"type": "text"}:
            return ResponseFormat("text")
        case _:
            return None


def _read_reasoning(thinking: Any) -> Reasoning | None:
    if not isinstance(thinking, dict):
        return None
    enabled = {"enabled": True, "disabled": False}.get(str(thinking.get("type")))
    return Reasoning(enabled=enabled, budget_tokens=integer_or_none(thinking.get("token_budget")))


def _written_options(request: Request) -> dict[str, Any]:
    options = request.options
    wire: dict[str, Any] = {
        key: value
        for key, value in (
            ("model", request.model),
            ("max_tokens", options.max_output_tokens),
            ("temperature", options.temperature),
            ("p", options.top_p),
            ("k", options.top_k),
            ("stop_sequences", list(options.stop_sequences) or None),
            ("seed", options.seed),
            ("presence_penalty", options.presence_penalty),
            ("frequency_penalty", options.frequency_penalty),
            ("thinking", _written_thinking(options.reasoning)),
            ("stream", options.stream),
        )
        if value is not None
    }
    if options.tool_choice is not None and options.tool_choice.mode != "auto":
        wire["tool_choice"] = _CHOICE_WORDS[options.tool_choice.mode]
    match options.response_format:
        case ResponseFormat(kind="text"):
            wire["response_format"] = {"type": "text"}
        case ResponseFormat(json_schema=dict(schema)):
            wire["response_format"] = {"type": "json_object", "json_schema": schema}
        case ResponseFormat():
            wire["response_format"] = {"type": "json_object"}
    return wire


def _written_thinking(reasoning: Reasoning | None) -> dict[str, Any] | None:
    if reasoning is None or reasoning == Reasoning():
        return None
    if reasoning.enabled is False or reasoning.effort == "none":
        return {"type": "disabled"}
    wire: dict[str, Any] = {"type": "enabled"}
    return wire if reasoning.budget_tokens is None else {**wire, "token_budget": reasoning.budget_tokens}


def _lost_options(options: Options) -> list[Loss]:
    reasoning = options.reasoning or Reasoning()
    lost = {
        "tool_choice.name": options.tool_choice is not None and options.tool_choice.name is not None,
        "parallel_tool_calls": options.parallel_tool_calls is False,
        "response_format.name": options.response_format is not None and options.response_format.name is not None,
        "reasoning.effort": reasoning.effort not in (None, "none"),
        "service_tier": options.service_tier is not None,
        "user": options.user is not None,
    }
    return lost_options(lost, NAME)
