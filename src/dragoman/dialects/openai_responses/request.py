"""Requests: the conversation as a list of items, ``instructions`` beside it, tools and options.

The one rule: what was read is written as it was, and what this API cannot take is named as a loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from dragoman.dialects.openai_responses.blocks import (
    BETWEEN,
    NAME,
    ROLE_WORDS,
    known_tier,
    noted_down,
    read_item,
    read_part,
    read_result,
    written_items,
)
from dragoman.dialects.parts.asides import lost_asides
from dragoman.dialects.parts.body import a_list, an_object, from_body
from dragoman.dialects.parts.conversation import Conversation, with_ids_of_calls, worth_sending
from dragoman.dialects.parts.functions import NO_INPUT, written_tools
from dragoman.dialects.parts.quirks import REFUSALS, without_refused
from dragoman.dialects.parts.residue import difference, noted, notes_of, restored
from dragoman.dialects.parts.scalars import flag_or_none, integer_or_none, number_or_none, text_or_none
from dragoman.errors import FormatError
from dragoman.exchange import (
    Loss,
    OpaqueTool,
    Options,
    Reasoning,
    Request,
    ResponseFormat,
    SideEffects,
    ToolChoice,
    ToolDefinition,
    Written,
)
from dragoman.message import (
    ContentBlock,
    Message,
    OpaqueBlock,
    Role,
    TextBlock,
)

_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
}
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
QUIRKS: Final = (*REFUSALS, "store_nothing")
_APART: Final = ("input", "instructions", "tools")  # parts of a request that are read one by one


@from_body
def read_request(body: dict[str, Any]) -> Request:
    """A request as the Responses API takes it."""
    conversation = Conversation()
    instructions = body.get("instructions")
    if instructions and not isinstance(instructions, str):
        raise FormatError(f"a text belongs here, not {type(instructions).__name__}", where="$.instructions")
    if instructions:
        conversation.add(Role.SYSTEM, [TextBlock(instructions)], {"dialect": NAME, "form": "instructions"})
    _read_input(body.get("input"), conversation)
    tools = tuple(_read_tool(an_object(tool, "$.tools")) for tool in a_list(body.get("tools") or [], "$.tools"))
    request = Request(
        model=text_or_none(body.get("model")),
        messages=tuple(conversation.messages),
        tools=tools,
        options=_read_options(body),
    )
    rest = {key: value for key, value in body.items() if key not in _APART}
    empty = {key: body[key] for key in _APART if key in body and not body[key]}
    absent = None if "input" in body else True
    raw = noted(NAME, _written_options(request), rest, empty=empty or None, absent=absent)
    return request.replace(provider_raw=raw)


def write_request(request: Request, quirks: Collection[str] = ()) -> Written:
    """The request as the Responses API takes it, or one who speaks it with these quirks, and what they cannot take."""
    losses: list[Loss] = []
    request = worth_sending(with_ids_of_calls(request, NAME), NAME, losses)
    if quirks:
        request = request.replace(options=without_refused(request.options, quirks, NAME, losses))
    notes = notes_of(request.provider_raw, NAME)
    top = restored(_written_options(request), notes.get("residue"))
    if "store_nothing" in quirks:
        _store_nothing(top, losses)
    wire: dict[str, Any] = {"model": top["model"]} if "model" in top else {}
    instructions, messages = _hoisted(request.messages)
    if instructions is not None:
        wire["instructions"] = _joined_text(instructions)
    items = _written_input(messages, losses)
    if items or not notes.get("absent"):
        wire["input"] = items
    tools = written_tools(request.tools, _natural_tool, NAME, losses)
    if tools:
        wire["tools"] = tools
    wire.update((key, value) for key, value in notes.get("empty", {}).items() if not wire.get(key))
    losses.extend(_lost_options(request.options, top))
    losses.extend(lost_asides(request, NAME))
    return Written({**wire, **top}, tuple(losses))


def _store_nothing(top: dict[str, Any], losses: list[Loss]) -> None:
    if top.get("store"):
        losses.append(Loss("", "", "store", NAME, "this provider keeps no answers"))
    top["store"] = False


def _read_input(value: Any, conversation: Conversation) -> None:
    if not value and not isinstance(value, list):
        return  # none at all, or the empty text: noted by the request
    if isinstance(value, str):
        conversation.add(Role.USER, [TextBlock(value)], {"dialect": NAME, "form": "input"})
        return
    turn: list[ContentBlock] = []
    for index, item in enumerate(a_list(value, "$.input")):
        where = f"$.input[{index}]"
        wire = an_object(item, where)
        role = _side(wire, where)
        if role is Role.ASSISTANT:
            turn.extend(read_item(wire, where, conversation, after=turn))
            continue
        if turn:
            conversation.add(Role.ASSISTANT, turn)
            turn = []
        _read_message(wire, role, where, conversation)
    if turn:
        conversation.add(Role.ASSISTANT, turn)


def _side(wire: dict[str, Any], where: str) -> Role:
    """Who an item comes from. What a client ran and sends back is the user's; all else without a role the model's."""
    kind, role = wire.get("type"), wire.get("role")
    if role is not None or kind == "message":
        if not isinstance(role, str) or role not in _ROLES:
            raise FormatError(f"a role is one of {', '.join(_ROLES)}, not {role!r}", where=f"{where}.role")
        return _ROLES[role]
    if kind == "function_call_output" and isinstance(wire.get("call_id"), str):
        return Role.TOOL if isinstance(wire.get("output"), str | list) else Role.USER
    answers = isinstance(kind, str) and kind.endswith(("_output", "_response")) and wire.get("execution") != "server"
    return Role.USER if answers else Role.ASSISTANT


def _read_message(wire: dict[str, Any], role: Role, where: str, conversation: Conversation) -> None:
    if role is Role.TOOL:
        result = read_result(wire, where, conversation)
        conversation.add(Role.TOOL, [result], answers=result.tool_use_id)
        return
    content = wire.get("content")
    form = "listed" if role is Role.SYSTEM else None
    if wire.get("type", "message") != "message" or content == []:
        raw = {"dialect": NAME, "form": form} if form else None
        conversation.add(role, [OpaqueBlock(NAME, wire)], raw)
        return
    shape = "string" if isinstance(content, str) else None
    parts = [{"type": "input_text", "text": content}] if shape else a_list(content, f"{where}.content")
    blocks = [read_part(an_object(part, f"{where}.content"), role) for part in parts]
    envelope = {key: value for key, value in wire.items() if key != "content"}
    item = difference({"role": ROLE_WORDS.get(role, "user")}, envelope)
    conversation.add(role, blocks, noted_down(item=item, content=shape, form=form))


def _hoisted(messages: tuple[Message, ...]) -> tuple[Message | None, list[Message]]:
    """The system message that stands beside the list: the one that stood there, else one that leads the others."""
    forms = [notes_of(message.metadata.provider_raw, NAME).get("form") for message in messages]
    fit = [
        index
        for index, (message, form) in enumerate(zip(messages, forms, strict=True))
        if message.role is Role.SYSTEM
        and (form == "instructions" or (index == 0 and form is None))
        and message.content
        and all(isinstance(block, TextBlock) for block in message.content)
    ]
    if not fit:
        return None, list(messages)
    chosen = next((index for index in fit if forms[index] == "instructions"), fit[0])
    return messages[chosen], [message for index, message in enumerate(messages) if index != chosen]


def _joined_text(message: Message) -> str:
    return BETWEEN.join(block.text for block in message.content if isinstance(block, TextBlock))


def _written_input(messages: list[Message], losses: list[Loss]) -> Any:
    items: list[dict[str, Any]] = []
    for message in messages:

        def lose(what: str, why: str, message: Message = message) -> None:
            losses.append(Loss(message.session_id, message.id, what, NAME, why))

        items.extend(written_items(message.content, message.role, message.metadata.provider_raw, lose))
    if len(messages) == 1 and notes_of(messages[0].metadata.provider_raw, NAME).get("form") == "input":
        content = items[0].get("content") if len(items) == 1 else None
        if isinstance(content, list) and len(content) == 1 and set(content[0]) == {"type", "text"}:
            return content[0]["text"]
    return items


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    name, schema = wire.get("name"), wire.get("parameters")
    if wire.get("type") != "function" or not isinstance(name, str) or not isinstance(schema, dict | None):
        return OpaqueTool(NAME, wire)
    description = text_or_none(wire.get("description")) or ""
    tool = ToolDefinition(name, description, dict(NO_INPUT) if schema is None else schema, SideEffects.EXECUTE)
    return tool.replace(provider_raw=noted(NAME, _natural_tool(tool), wire))


def _natural_tool(tool: ToolDefinition) -> dict[str, Any]:
    wire: dict[str, Any] = {"type": "function", "name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    # Not strict, and said so: without a word this API makes every parameter a required one.
    return {**wire, "parameters": tool.input_schema, "strict": False}


def _read_options(body: dict[str, Any]) -> Options:
    return Options(
        max_output_tokens=integer_or_none(body.get("max_output_tokens")),
        temperature=number_or_none(body.get("temperature")),
        top_p=number_or_none(body.get("top_p")),
        presence_penalty=number_or_none(body.get("presence_penalty")),
        frequency_penalty=number_or_none(body.get("frequency_penalty")),
        tool_choice=_read_choice(body.get("tool_choice")),
        parallel_tool_calls=flag_or_none(body.get("parallel_tool_calls")),
        response_format=_read_format(body.get("text")),
        reasoning=_read_effort(body.get("reasoning")),
        service_tier=text_or_none(body.get("service_tier")),
        user=text_or_none(body.get("user")),
        stream=flag_or_none(body.get("stream")),
    )


def _read_choice(choice: Any) -> ToolChoice | None:
    match choice:
        case "auto" | "none" | "required":
            return ToolChoice(choice)
        case {"type": "function", "name": str(name)}:
            return ToolChoice("tool", name)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode}:
            return ToolChoice(mode)
        case _:
            return None


def _read_format(text: Any) -> ResponseFormat | None:
    match text:
        case {"format": {"type": "json_schema", "schema": dict(schema)} as asked}:
            return ResponseFormat(
                "json_schema", schema, text_or_none(asked.get("name")), flag_or_none(asked.get("strict"))
            )
        case {"format": {"type": "json_object"}}:
            return ResponseFormat("json")
        case {"format": {"type": "text"}}:
            return ResponseFormat("text")
        case _:
            return None


def _read_effort(reasoning: Any) -> Reasoning | None:
    effort = text_or_none(reasoning.get("effort")) if isinstance(reasoning, dict) else None
    if effort == "none":
        return Reasoning(enabled=False)
    return Reasoning(effort=effort) if effort else None


def _written_options(request: Request) -> dict[str, Any]:
    options = request.options
    asked = {
        "model": request.model,
        "max_output_tokens": options.max_output_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "tool_choice": _written_choice(options.tool_choice),
        "parallel_tool_calls": options.parallel_tool_calls,
        "service_tier": known_tier(options.service_tier),
        "user": options.user,
        "stream": options.stream,
    }
    wire = {key: value for key, value in asked.items() if value is not None}
    if options.response_format is not None:
        wire["text"] = {"format": _written_format(options.response_format)}
    if options.reasoning is not None:
        effort = options.reasoning.effort or ("none" if options.reasoning.enabled is False else None)
        if effort in _EFFORTS:
            wire["reasoning"] = {"effort": effort}
    return wire


def _written_choice(choice: ToolChoice | None) -> Any:
    if choice is None or choice.mode != "tool":
        return choice.mode if choice is not None else None
    return {"type": "function", "name": choice.name}


def _written_format(asked: ResponseFormat) -> dict[str, Any]:
    if asked.kind != "json_schema":
        return {"type": "json_object" if asked.kind == "json" else "text"}
    wire = {"type": "json_schema", "name": asked.name or "response", "schema": asked.json_schema or {}}
    return wire if asked.strict is None else {**wire, "strict": asked.strict}


def _lost_options(options: Options, wire: dict[str, Any]) -> Iterator[Loss]:
    """What was asked for and cannot be asked for here, but for what this very wire said in words of its own."""
    budget = options.reasoning.budget_tokens if options.reasoning is not None else None
    switch = options.reasoning.enabled if options.reasoning is not None else None
    for name, value in (
        ("top_k", options.top_k),
        ("stop_sequences", options.stop_sequences or None),
        ("seed", options.seed),
        ("presence_penalty", options.presence_penalty),  # OpenAI answers with both and takes neither (September 2026)
        ("frequency_penalty", options.frequency_penalty),
        ("reasoning.budget_tokens", budget),
        ("service_tier", options.service_tier),
        ("reasoning", (options.reasoning.effort or switch or budget) if options.reasoning is not None else None),
    ):
        if value is not None and name not in wire:
            yield Loss("", "", name, NAME, "this API takes no such option")
