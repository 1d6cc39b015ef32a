"""Requests of the Responses API: items, ``instructions``, tools and options.

Invariant: a request that was read is written as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects.openai_responses.blocks import (
    NAME,
    ROLE_NAMES,
    SUMMARY_SEPARATOR,
    item_notes,
    mark_free_form_results,
    read_item,
    read_part,
    read_result,
    supported_tier,
    unsupported_reason,
    write_items,
)
from dragoman.dialects.openai_responses.support import (
    LIMITS,
    REASONING,
    SUPPORT,
    WITHOUT_REASONING,
    read_server_tool,
    write_server_tool,
)
from dragoman.errors import FormatError
from dragoman.exchange import (
    FREE_FORM_SCHEMA,
    Grammar,
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
from dragoman.jsontext import (
    accepts_json_text,
    expect_list,
    expect_object,
    flag_or_none,
    list_or_empty,
    number_or_none,
    text_or_none,
)
from dragoman.message import ContentBlock, Message, OpaqueBlock, Role, TextBlock
from dragoman.wire.losses import REFUSALS, drop_refused_options
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.preparation import Quirks, prepare_request
from dragoman.wire.residue import apply_diff, diff, get_notes, make_notes
from dragoman.wire.support import OptionFields, request_losses
from dragoman.wire.tool_definitions import EMPTY_SCHEMA, write_tools

if TYPE_CHECKING:
    from dragoman.catalog import Model

_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
}
_FIELDS: Final = OptionFields(
    "max_output_tokens",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "user",
    "stream",
    "top_logprobs",
    "store",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
)
_LOGPROBS: Final = "message.output_text.logprobs"  # requests token probabilities
_SUMMARIES: Final = ("auto", "concise", "detailed")
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
QUIRKS: Final = (*REFUSALS, "store_nothing")
_ENCRYPTED: Final = "reasoning.encrypted_content"  # an additional output, requested in ``include``
_SEPARATE_KEYS: Final = ("input", "instructions", "tools")  # read by their own functions


@accepts_json_text()
def read_request(body: dict[str, Any]) -> Request:
    """Read a request of the Responses API."""
    builder = MessageBuilder()
    instructions = body.get("instructions")
    if instructions and not isinstance(instructions, str):
        raise FormatError(f"expected text, not {type(instructions).__name__}", where="$.instructions")
    if instructions:
        builder.add(Role.SYSTEM, [TextBlock(instructions)], {"dialect": NAME, "form": "instructions"})
    _read_input(body.get("input"), builder)
    tools = tuple(
        _read_tool(expect_object(tool, "$.tools")) for tool in expect_list(body.get("tools") or [], "$.tools")
    )
    request = Request(
        model=text_or_none(body.get("model")),
        messages=tuple(builder.messages),
        tools=tools,
        options=_read_options(body),
    )
    rest = {key: value for key, value in body.items() if key not in _SEPARATE_KEYS}
    empty = {key: body[key] for key in _SEPARATE_KEYS if key in body and not body[key]}
    absent = None if "input" in body else True
    raw = make_notes(NAME, _write_options(request), rest, empty=empty or None, absent=absent)
    return request.replace(provider_raw=raw or {"dialect": NAME})


def write_request(request: Request, quirks: Quirks = (), model: Model | None = None, *, fit: bool = True) -> Written:
    """Write a request for a provider with these quirks, with losses."""
    request, losses, adjustments, is_plain = prepare_request(request, LIMITS, _carries, model, quirks, fit=fit)
    request = mark_free_form_results(request)
    if quirks:
        request = request.replace(options=drop_refused_options(request.options, quirks, NAME, losses))
    notes = get_notes(request.provider_raw, NAME)
    options_wire = apply_diff(_write_options(request), notes.get("residue"))
    if "store_nothing" in quirks:
        _disable_storage(options_wire, losses)
    wire: dict[str, Any] = {"model": options_wire["model"]} if "model" in options_wire else {}
    instructions, messages = _split_instructions(request.messages)
    if instructions is not None:
        wire["instructions"] = _join_text(instructions)
    if not notes or "store_nothing" in quirks:
        _request_encrypted_reasoning(options_wire, request.model)
    items = _write_input(messages, losses, is_stored=bool(notes) or options_wire.get("store") is not False)
    if items or not notes.get("absent"):
        wire["input"] = items
    tools = write_tools(request.tools, _default_tool, NAME, losses, write_server_tool)
    if tools:
        wire["tools"] = tools
    wire.update((key, value) for key, value in notes.get("empty", {}).items() if not wire.get(key))
    losses.extend(_option_losses(request.options, options_wire))
    losses.extend(request_losses(request, NAME, SUPPORT, is_plain=is_plain))
    return Written({**wire, **options_wire}, tuple(losses), tuple(adjustments))


def _request_encrypted_reasoning(options_wire: dict[str, Any], model: str | None) -> None:
    """Ask for the encrypted content of reasoning, without which it cannot be replayed where items are not stored.

    Organisations may forbid to store items, whatever a request says, so it is asked for in any case. Models without
    reasoning reject the request.
    """
    is_unstored = options_wire.get("store") is False and not re.match(WITHOUT_REASONING, model or "")
    if is_unstored or re.match(REASONING, model or ""):
        include = options_wire.get("include")
        include = include if isinstance(include, list) else []
        if _ENCRYPTED not in include:
            options_wire["include"] = [*include, _ENCRYPTED]


def _carries(block: ContentBlock, role: Role) -> bool:
    return unsupported_reason(block, role) is None


def _disable_storage(options_wire: dict[str, Any], losses: list[Loss]) -> None:
    if options_wire.get("store"):
        losses.append(Loss("", "", "store", NAME, "this provider keeps no answers"))
    options_wire["store"] = False


def _read_input(value: Any, builder: MessageBuilder) -> None:
    if not value and not isinstance(value, list):
        return  # absent or empty: the request has a note
    if isinstance(value, str):
        builder.add(Role.USER, [TextBlock(value)], {"dialect": NAME, "form": "input"})
        return
    turn: list[ContentBlock] = []
    for index, item in enumerate(expect_list(value, "$.input")):
        where = f"$.input[{index}]"
        wire = expect_object(item, where)
        role = _item_role(wire, where)
        if role is Role.ASSISTANT:
            turn.extend(read_item(wire, where, builder, after=turn))
            continue
        if turn:
            builder.add(Role.ASSISTANT, turn)
            turn = []
        _read_message(wire, role, where, builder)
    if turn:
        builder.add(Role.ASSISTANT, turn)


def _item_role(wire: dict[str, Any], where: str) -> Role:
    """Return the role of an item.

    Outputs of client-side calls are the user's; other items without a role are the model's.
    """
    kind, role = wire.get("type"), wire.get("role")
    if role is not None or kind == "message":
        if not isinstance(role, str) or role not in _ROLES:
            raise FormatError(f"a role is one of {', '.join(_ROLES)}, not {role!r}", where=f"{where}.role")
        return _ROLES[role]
    if kind in ("function_call_output", "custom_tool_call_output") and isinstance(wire.get("call_id"), str):
        return Role.TOOL if isinstance(wire.get("output"), str | list) else Role.USER
    is_client_output = (
        isinstance(kind, str) and kind.endswith(("_output", "_response")) and wire.get("execution") != "server"
    )
    return Role.USER if is_client_output else Role.ASSISTANT


def _read_message(wire: dict[str, Any], role: Role, where: str, builder: MessageBuilder) -> None:
    if role is Role.TOOL:
        result = read_result(wire, where, builder)
        builder.add(Role.TOOL, [result], parent_id=result.tool_use_id)
        return
    content = wire.get("content")
    form = "listed" if role is Role.SYSTEM else None
    if wire.get("type", "message") != "message" or content == []:
        raw = {"dialect": NAME, "form": form} if form else None
        builder.add(role, [OpaqueBlock(NAME, wire)], raw)
        return
    shape = "string" if isinstance(content, str) else None
    parts = [{"type": "input_text", "text": content}] if shape else expect_list(content, f"{where}.content")
    blocks = [read_part(expect_object(part, f"{where}.content"), role) for part in parts]
    envelope = {key: value for key, value in wire.items() if key != "content"}
    item = diff({"role": ROLE_NAMES.get(role, "user")}, envelope)
    builder.add(role, blocks, item_notes(item=item, content=shape, form=form))


def _split_instructions(messages: tuple[Message, ...]) -> tuple[Message | None, list[Message]]:
    """Separate the system message beside the list: the one that was there, else the first message."""
    forms = [get_notes(message.metadata.provider_raw, NAME).get("form") for message in messages]
    candidates = [
        index
        for index, (message, form) in enumerate(zip(messages, forms, strict=True))
        if message.role is Role.SYSTEM
        and (form == "instructions" or (index == 0 and form is None))
        and message.content
        and all(isinstance(block, TextBlock) for block in message.content)
    ]
    if not candidates:
        return None, list(messages)
    index_of_instructions = next((index for index in candidates if forms[index] == "instructions"), candidates[0])
    return messages[index_of_instructions], [
        message for index, message in enumerate(messages) if index != index_of_instructions
    ]


def _join_text(message: Message) -> str:
    return SUMMARY_SEPARATOR.join(block.text for block in message.content if isinstance(block, TextBlock))


def _write_input(messages: list[Message], losses: list[Loss], *, is_stored: bool) -> Any:
    items: list[dict[str, Any]] = []
    for message in map(_drop_logprobs, messages):

        def add_loss(what: str, why: str, message: Message = message) -> None:
            losses.append(Loss(message.session_id, message.id, what, NAME, why))

        items.extend(
            write_items(message.content, message.role, message.metadata.provider_raw, add_loss, is_stored=is_stored)
        )
    if len(messages) == 1 and get_notes(messages[0].metadata.provider_raw, NAME).get("form") == "input":
        content = items[0].get("content") if len(items) == 1 else None
        if isinstance(content, list) and len(content) == 1 and set(content[0]) == {"type", "text"}:
            return content[0]["text"]
    return items


def _drop_logprobs(message: Message) -> Message:
    """Return the message without token probabilities of another API, which no model needs."""
    if not any(type(block) is TextBlock and block.token_logprobs for block in message.content):
        return message
    blocks = (
        block.replace(token_logprobs=())
        if type(block) is TextBlock and not get_notes(block.provider_raw, NAME)
        else block
        for block in message.content
    )
    return message.replace(content=tuple(blocks))


def _read_custom_tool(wire: dict[str, Any]) -> ToolDefinition:
    """Read a tool whose input is one text."""
    grammar = None
    match wire.get("format"):
        case {"type": "grammar", "syntax": str(syntax), "definition": str(definition)}:
            grammar = Grammar(syntax, definition)
    tool = ToolDefinition(
        wire["name"],
        text_or_none(wire.get("description")) or "",
        dict(FREE_FORM_SCHEMA),
        SideEffects.EXECUTE,
        free_form=True,
        grammar=grammar,
    )
    return tool.replace(provider_raw=make_notes(NAME, _default_tool(tool), wire))


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    name, schema = wire.get("name"), wire.get("parameters")
    if wire.get("type") == "custom" and isinstance(name, str):
        return _read_custom_tool(wire)
    if wire.get("type") != "function" or not isinstance(name, str) or not isinstance(schema, dict | None):
        return read_server_tool(wire, NAME)
    description = text_or_none(wire.get("description")) or ""
    tool = ToolDefinition(
        name,
        description,
        dict(EMPTY_SCHEMA) if schema is None else schema,
        SideEffects.EXECUTE,
        strict=flag_or_none(wire.get("strict")),
        defer_loading=flag_or_none(wire.get("defer_loading")),
    )
    return tool.replace(provider_raw=make_notes(NAME, _default_tool(tool), wire))


def _default_tool(tool: ToolDefinition) -> dict[str, Any]:
    wire: dict[str, Any] = {"type": "custom" if tool.free_form else "function", "name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    if tool.grammar is not None:
        grammar = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        wire["format"] = {"type": "grammar", **grammar}
    if tool.free_form:
        return wire
    # Explicitly not strict: by default this API makes every parameter required.
    wire.update(parameters=tool.input_schema, strict=tool.strict or False)
    return wire if tool.defer_loading is None else {**wire, "defer_loading": tool.defer_loading}


def _read_options(body: dict[str, Any]) -> Options:
    return Options(
        **_FIELDS.read(body),
        presence_penalty=number_or_none(body.get("presence_penalty")),
        frequency_penalty=number_or_none(body.get("frequency_penalty")),
        tool_choice=_read_choice(body.get("tool_choice")),
        response_format=_read_format(body.get("text")),
        reasoning=_read_effort(body.get("reasoning")),
        service_tier=text_or_none(body.get("service_tier")),
        logprobs=True if _LOGPROBS in list_or_empty(body.get("include")) else None,
        verbosity=text_or_none(text.get("verbosity")) if isinstance(text := body.get("text"), dict) else None,
    )


def _read_choice(choice: Any) -> ToolChoice | None:
    match choice:
        case "auto" | "none" | "required":
            return ToolChoice(choice)
        case {"type": "function" | "custom", "name": str(name)}:
            return ToolChoice("tool", name)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*tools]}:
            names = [tool.get("name") if isinstance(tool, dict) else None for tool in tools]
            return ToolChoice(mode, allowed=tuple(map(str, names)) if None not in names else ())
        case _:
            return None


def _read_format(text: Any) -> ResponseFormat | None:
    match text:
        case {"format": {"type": "json_schema", "schema": dict(schema)} as schema_wire}:
            name, description = text_or_none(schema_wire.get("name")), text_or_none(schema_wire.get("description"))
            strict = flag_or_none(schema_wire.get("strict"))
            return ResponseFormat("json_schema", schema, name, strict, description)
        case {"format": {"type": "json_object"}}:
            return ResponseFormat("json")
        case {"format": {"type": "text"}}:
            return ResponseFormat("text")
        case _:
            return None


def _read_effort(reasoning: Any) -> Reasoning | None:
    if not isinstance(reasoning, dict):
        return None
    effort, summary = text_or_none(reasoning.get("effort")), text_or_none(reasoning.get("summary"))
    if effort == "none":
        return Reasoning(enabled=False, summary=summary)
    return Reasoning(effort=effort, summary=summary) if effort or summary else None


def _write_options(request: Request) -> dict[str, Any]:
    options = request.options
    fields = {
        "model": request.model,
        "max_output_tokens": options.max_output_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "tool_choice": _write_choice(request),
        "parallel_tool_calls": options.parallel_tool_calls,
        "service_tier": supported_tier(options.service_tier),
        "user": options.user,
        "stream": options.stream,
        "include": [_LOGPROBS] if options.logprobs else None,
        "top_logprobs": options.top_logprobs,
        "store": options.store,
        "metadata": options.metadata,
        "safety_identifier": options.safety_identifier,
        "prompt_cache_key": options.prompt_cache_key,
    }
    wire = {key: value for key, value in fields.items() if value is not None}
    text: dict[str, Any] = {"verbosity": options.verbosity} if options.verbosity is not None else {}
    if options.response_format is not None:
        text["format"] = _write_format(options.response_format)
    if text:
        wire["text"] = text
    if options.reasoning is not None and (reasoning := _write_reasoning(options.reasoning)):
        wire["reasoning"] = reasoning
    return wire


def _write_reasoning(reasoning: Reasoning) -> dict[str, Any]:
    effort = "none" if reasoning.enabled is False else reasoning.effort
    wire = {"effort": effort} if effort in _EFFORTS else {}
    return {**wire, "summary": reasoning.summary} if reasoning.summary in _SUMMARIES else wire


def _write_choice(request: Request) -> Any:
    choice = request.options.tool_choice
    if choice is not None and choice.allowed:
        tools = [_write_tool_name(name, request) for name in choice.allowed]
        return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}
    if choice is None or choice.mode != "tool":
        return choice.mode if choice is not None else None
    return _write_tool_name(choice.name, request)


def _write_tool_name(name: str | None, request: Request) -> dict[str, Any]:
    is_custom = any(isinstance(tool, ToolDefinition) and tool.free_form and tool.name == name for tool in request.tools)
    return {"type": "custom" if is_custom else "function", "name": name}


def _write_format(response_format: ResponseFormat) -> dict[str, Any]:
    if response_format.kind != "json_schema":
        return {"type": "json_object" if response_format.kind == "json" else "text"}
    wire = {
        "type": "json_schema",
        "name": response_format.name or "response",
        "schema": response_format.json_schema or {},
    }
    if response_format.description is not None:
        wire["description"] = response_format.description
    return wire if response_format.strict is None else {**wire, "strict": response_format.strict}


def _option_losses(options: Options, wire: dict[str, Any]) -> Iterator[Loss]:
    """Return the losses of options that this API does not have, except those in the residue."""
    budget = options.reasoning.budget_tokens if options.reasoning is not None else None
    switch = options.reasoning.enabled if options.reasoning is not None else None
    for name, value in (
        ("top_k", options.top_k),
        ("stop_sequences", options.stop_sequences or None),
        ("seed", options.seed),
        ("presence_penalty", options.presence_penalty),  # OpenAI sends both and accepts neither (September 2026)
        ("frequency_penalty", options.frequency_penalty),
        ("reasoning.budget_tokens", budget),
        ("service_tier", options.service_tier),
    ):
        if value is not None and name not in wire:
            yield Loss("", "", name, NAME, "this API has no such option")
    written = wire.get("reasoning")
    written = written if isinstance(written, dict) else {}
    value = (options.reasoning.effort or switch or budget) if options.reasoning is not None else None
    if value is not None and "effort" not in written:
        yield Loss("", "", "reasoning", NAME, "this API has no such option")
    summary = options.reasoning.summary if options.reasoning is not None else None
    if summary not in (None, "none") and "summary" not in written:
        yield Loss("", "", "reasoning.summary", NAME, f"this API has no summary {summary!r}")
