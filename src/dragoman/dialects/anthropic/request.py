"""Requests of the Messages API: messages, tools and options.

Invariant: a request that was read here is written as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects.anthropic import fast_path
from dragoman.dialects.anthropic.blocks import (
    NAME,
    read_block,
    read_cache_hint,
    read_result,
    unsupported_reason,
    write_blocks,
    write_cache_hint,
)
from dragoman.dialects.anthropic.support import LIMITS, SUPPORT, read_server_tool, write_server_tool
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
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, flag_or_none, integer_or_none, text_or_none
from dragoman.message import ContentBlock, ImageBlock, Message, ProviderRaw, Role, TextBlock
from dragoman.wire.losses import summary_changes
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.preparation import Quirks, prepare_request
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import OptionFields, request_losses
from dragoman.wire.tool_definitions import allowed_tools, write_tools

if TYPE_CHECKING:
    from dragoman.catalog import Model

_CHOICES: Final = {"auto": "auto", "any": "required", "tool": "tool", "none": "none"}
_CHOICE_TYPES: Final = {ours: theirs for theirs, ours in _CHOICES.items()}
_TOOL, _SYSTEM = Role.TOOL, Role.SYSTEM
_FIELDS: Final = OptionFields("temperature", "top_p", "top_k", "stream", "stop_sequences")
_NO_NOTES: Final[Mapping[str, Any]] = {}
_TIERS: Final = ("auto", "standard_only")
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_SUMMARIES: Final = {"summarized": "auto", "omitted": "none"}
_DISPLAYS: Final = {"none": "omitted", "auto": "summarized", "concise": "summarized", "detailed": "summarized"}
_BETA_FORMAT_KEY: Final = "output_format"  # the key of the response format during its beta
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_LISTED_FORMS: Final = ("listed", "listed string", "listed bare")  # of a system message in the list of messages
_SEPARATE_KEYS: Final = ("messages", "system", "tools")  # read by their own functions
_DEFAULT_MAX_TOKENS: Final = 4096  # the API requires a limit


@accepts_json_text()
def read_request(body: dict[str, Any]) -> Request:
    """Read a request of the Messages API."""
    builder = MessageBuilder()
    if "system" in body:
        _read_system(body["system"], builder)
    for index, message in enumerate(expect_list(body.get("messages"), "$.messages")):
        _read_message(message, f"$.messages[{index}]", builder)
    wire_tools = [expect_object(tool, "$.tools") for tool in expect_list(body.get("tools") or [], "$.tools")]
    tools = tuple([fast_path.read_tool(tool) or _read_tool(tool) for tool in wire_tools])
    options = _read_options(body)
    model = body.get("model")
    rest = {key: value for key, value in body.items() if key not in _SEPARATE_KEYS}
    request = Request(
        model=model if isinstance(model, str) else None,
        messages=tuple(builder.messages),
        tools=tools,
        options=options,
    )
    empty = {key: body[key] for key in ("system", "tools") if key in body and not body[key]}
    form = _find_format_key(body)
    raw = make_notes(NAME, _write_options(request, form), rest, empty=empty or None, form=form)
    return request.replace(provider_raw=raw or {"dialect": NAME})


def write_request(request: Request, quirks: Quirks = (), model: Model | None = None, *, fit: bool = True) -> Written:
    """Write a request of the Messages API, with losses."""
    request, losses, adjustments, is_plain = prepare_request(request, LIMITS, _carries, model, quirks, fit=fit)
    notes = get_notes(request.provider_raw, NAME)
    if not notes:
        losses.extend(_option_losses(request.options))  # fields of a native request are in the residue
    options = _write_options(request, notes.get("form"))
    if "residue" in notes:
        options = apply_diff(options, notes["residue"])
    system, messages = _split_system(request.messages)
    wire = {key: options[key] for key in ("model",) if key in options}
    wire["messages"] = fast_path.write_messages(messages) if is_plain else _write_messages(messages, losses)
    thinks = not notes and options.get("thinking", {}).get("type") == "enabled"
    if thinks and _needs_missing_thinking(wire["messages"]):
        del options["thinking"]
        losses.append(Loss("", "", "reasoning", NAME, "an answer of another model cannot be continued with reasoning"))
    if system:
        wire["system"] = _write_system(system, losses)
    if request.tools and (tools := _write_tools(request, losses)):
        wire["tools"] = tools
    losses.extend(_changed_options(request.options, options, is_native=bool(notes)))
    losses.extend(request_losses(request, NAME, SUPPORT, is_plain=is_plain))
    return Written({**notes.get("empty", {}), **wire, **options}, tuple(losses), tuple(adjustments))


def _carries(block: ContentBlock, _role: Role) -> bool:
    return unsupported_reason(block) is None


def _option_losses(options: Options) -> list[Loss]:
    """Return the losses of options that this API does not have."""
    is_unsupported = {
        "seed": options.seed is not None,
        "presence_penalty": options.presence_penalty is not None,
        "frequency_penalty": options.frequency_penalty is not None,
        "response_format": options.response_format is not None and options.response_format.kind == "json",
        "service_tier": options.service_tier not in (None, *_TIERS),
        "reasoning": options.reasoning is not None and options.reasoning.effort not in (None, "none", *_EFFORTS),
    }
    losses = [
        Loss("", "", name, NAME, "this API has no such option") for name, is_lost in is_unsupported.items() if is_lost
    ]
    if options.response_format is not None and options.response_format.name is not None:
        losses.append(Loss("", "", "response_format.name", NAME, "this API accepts no schema name"))
    return losses


def _read_system(system: Any, builder: MessageBuilder) -> None:
    if isinstance(system, str):
        if system:
            builder.add(Role.SYSTEM, [TextBlock(system)], {"dialect": NAME, "form": "string"})
        return
    items = expect_list([] if system is None else system, "$.system")
    blocks = [read_block(expect_object(block, "$.system"), builder) for block in items]
    if blocks:
        builder.add(Role.SYSTEM, blocks, {"dialect": NAME, "form": "hoisted"})


def _split_system(messages: tuple[Message, ...]) -> tuple[list[Message], Sequence[Message]]:
    """Separate the system prompts, which are beside the list, from the messages in the list."""
    system = [message for message in messages if message.role is _SYSTEM and not _is_in_list(message)]
    if len(system) == 1 and messages[0] is system[0]:  # the usual position
        return [message for message in system if message.content], messages[1:]
    rest = [message for message in messages if message.role is not _SYSTEM or _is_in_list(message)]
    return [message for message in system if message.content], rest


def _is_in_list(message: Message) -> bool:
    return get_notes(message.metadata.provider_raw, NAME).get("form") in _LISTED_FORMS


def _write_system(messages: list[Message], losses: list[Loss]) -> Any:
    blocks = [block for message in messages for block in _write_blocks(message, losses)]
    if len(messages) == 1 and len(blocks) == 1:
        notes = get_notes(messages[0].metadata.provider_raw, NAME)
        if notes.get("form") != "hoisted" and set(blocks[0]) == {"type", "text"}:
            return blocks[0]["text"]
    return blocks


def _read_message(message: Any, where: str, builder: MessageBuilder) -> None:
    wire = expect_object(message, where)
    role, content = wire.get("role"), wire.get("content")
    if type(role) is not str or role not in _ROLES:
        raise FormatError(f"a role is user, assistant or system, not {role!r}", where=f"{where}.role")
    form = "string" if isinstance(content, str) else None
    if role == "system":
        form = "listed string" if form else "listed" if "content" in wire else "listed bare"
    if form == "listed bare":
        content = []  # it only changes options, such as the effort
    items: Any = [{"type": "text", "text": content}] if isinstance(content, str) else content
    extra = {key: value for key, value in wire.items() if key not in ("role", "content")} or None
    groups = _split_results(expect_list(items, f"{where}.content"), role)
    for index, (kind, group) in enumerate(groups):
        previous_kind = groups[index - 1][0] if index else None
        raw = _make_message_notes(kind, previous_kind, builder, form=form, set=extra)
        if kind == "tool":
            result = fast_path.read_result(group[0], builder) or read_result(group[0], builder)
            builder.add(Role.TOOL, [result], raw, parent_id=result.tool_use_id)
        else:
            blocks = [
                fast_path.read_block(item, builder) or read_block(expect_object(item, f"{where}.content"), builder)
                for item in group
            ]
            builder.add(_ROLES[role], [*map(_mark_image, blocks)] if role == "assistant" else blocks, raw)


def _mark_image(block: ContentBlock) -> ContentBlock:
    """Mark an image in a message of the model as native: the API rejects images of other providers there."""
    if type(block) is not ImageBlock or block.provider_raw is not None:
        return block
    return block.replace(provider_raw={"dialect": NAME})


def _make_message_notes(
    kind: str, previous_kind: str | None, builder: MessageBuilder, **notes: Any
) -> ProviderRaw | None:
    """Return the notes of a message, or of the part of one after ``previous_kind``."""
    message_notes: dict[str, Any] = {}
    if previous_kind is None:
        message_notes = {name: note for name, note in notes.items() if note is not None}
        if kind == "tool" and builder.messages and builder.messages[-1].role is Role.TOOL:
            message_notes["joined"] = False  # adjacent results of two messages
    elif "user" in (kind, previous_kind):
        message_notes["joined"] = True  # text and results of one message
    return {"dialect": NAME, **message_notes} if message_notes else None


def _split_results(items: list[Any], role: str) -> list[tuple[str, list[Any]]]:
    """Split a user message at its results; each result is a group of its own."""
    groups: list[tuple[str, list[Any]]] = []
    for item in items:
        is_result = role == "user" and isinstance(item, dict) and item.get("type") == "tool_result"
        is_result = is_result and isinstance(item.get("tool_use_id"), str)
        if is_result:
            groups.append(("tool", [item]))
        elif groups and groups[-1][0] != "tool":
            groups[-1][1].append(item)
        else:
            groups.append((role, [item]))
    return groups or [(role, [])]


def _write_messages(messages: Sequence[Message], losses: list[Loss]) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    previous: Message | None = None
    for message in messages:
        role, raw = message.role, message.metadata.provider_raw
        notes = _NO_NOTES if raw is None else get_notes(raw, NAME)
        blocks = _write_blocks(message, losses)
        if blocks or not message.content:  # otherwise no block can be written; the losses name them
            may_join = notes or (role is _TOOL and previous is not None and previous.role is _TOOL)
            if may_join and wire and wire[-1]["role"] == "user" and _is_joined(previous, message, notes):
                wire[-1]["content"] = [*_to_block_list(wire[-1]["content"]), *blocks]
            else:
                wire_message: dict[str, Any] = {"role": "user" if role is _TOOL else role._value_, "content": blocks}
                wire.append(_apply_message_notes(wire_message, notes) if notes else wire_message)
        previous = message
    return wire


def _write_blocks(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    blocks = fast_path.write_blocks(message)
    return write_blocks(message, losses) if blocks is None else blocks


def _needs_missing_thinking(wire: list[dict[str, Any]]) -> bool:
    """Whether the last turn has results of calls without thinking.

    The API rejects such a request with thinking enabled.
    """
    messages = list(wire)  # consecutive messages of one role are one turn
    results = [block for block in _pop_turn(messages, "user") if block.get("type") == "tool_result"]
    turn_blocks = _pop_turn(messages, "assistant") if results else []
    return bool(turn_blocks) and turn_blocks[0].get("type") not in ("thinking", "redacted_thinking")


def _pop_turn(messages: list[dict[str, Any]], role: str) -> list[Any]:
    """Remove the messages of a role from the end of a list, and return their blocks."""
    blocks: list[Any] = []
    while messages and messages[-1]["role"] == role:
        blocks[:0] = _to_block_list(messages.pop()["content"])
    return blocks


def _apply_message_notes(wire: dict[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Restore the form of a message and its other keys."""
    blocks = wire["content"]
    if notes.get("form") in ("string", "listed string") and len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        wire["content"] = blocks[0]["text"]
    if notes.get("form") == "listed bare" and not blocks:
        del wire["content"]
    return {**wire, **notes.get("set", {})}


def _is_joined(previous: Message | None, message: Message, notes: Mapping[str, Any]) -> bool:
    """Whether two messages are one on the wire: consecutive results are, unless they were separate."""
    if previous is None:
        return False
    if "joined" in notes:
        return bool(notes["joined"]) and previous.role in (Role.TOOL, Role.USER)
    return previous.role is Role.TOOL and message.role is Role.TOOL


def _to_block_list(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _write_tools(request: Request, losses: list[Loss]) -> list[dict[str, Any]]:
    return write_tools(allowed_tools(request, NAME, losses), _default_tool, NAME, losses, write_server_tool)


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    schema = wire.get("input_schema")
    if wire.get("type", "custom") != "custom" or not isinstance(schema, dict) or not isinstance(wire.get("name"), str):
        return read_server_tool(wire, NAME)
    description = wire.get("description")
    tool = ToolDefinition(
        wire["name"],
        description if isinstance(description, str) else "",
        schema,
        SideEffects.EXECUTE,
        strict=flag_or_none(wire.get("strict")),
        cache_hint=read_cache_hint(wire.get("cache_control")),
        defer_loading=flag_or_none(wire.get("defer_loading")),
    )
    return tool.replace(provider_raw=make_notes(NAME, _default_tool(tool), wire))


def _default_tool(tool: ToolDefinition) -> dict[str, Any]:
    wire: dict[str, Any] = {"name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    wire["input_schema"] = tool.input_schema
    if tool.strict is not None:
        wire["strict"] = tool.strict
    if tool.defer_loading is not None:
        wire["defer_loading"] = tool.defer_loading
    if tool.cache_hint is not None:
        wire.update(write_cache_hint(tool.cache_hint))
    return wire


def _read_options(body: dict[str, Any]) -> Options:
    choice = body.get("tool_choice")
    choice = choice if isinstance(choice, dict) else {}
    mode = _CHOICES.get(str(choice.get("type")))
    no_parallel = choice.get("disable_parallel_tool_use")
    metadata = body.get("metadata")
    return Options(
        max_output_tokens=integer_or_none(body.get("max_tokens")),
        **_FIELDS.read(body),
        tool_choice=ToolChoice(mode, text_or_none(choice.get("name"))) if mode else None,  # type: ignore[arg-type]
        parallel_tool_calls=not no_parallel if isinstance(no_parallel, bool) else None,
        response_format=_read_format(body),
        reasoning=_read_reasoning(body),
        service_tier=text_or_none(body.get("service_tier")),
        user=text_or_none(metadata.get("user_id")) if isinstance(metadata, dict) else None,
        cache_hint=read_cache_hint(body.get("cache_control")),
    )


def _read_format(body: dict[str, Any]) -> ResponseFormat | None:
    config = body.get("output_config")
    response_format = config.get("format") if isinstance(config, dict) else None
    response_format = response_format or body.get(_BETA_FORMAT_KEY)
    if (
        isinstance(response_format, dict)
        and response_format.get("type") == "json_schema"
        and isinstance(response_format.get("schema"), dict)
    ):
        return ResponseFormat("json_schema", response_format["schema"])
    return None


def _find_format_key(body: dict[str, Any]) -> str | None:
    """Return the key of the response format, if it is not the current one."""
    config = body.get("output_config")
    is_current = isinstance(config, dict) and config.get("format")
    return _BETA_FORMAT_KEY if not is_current and _read_format(body) is not None else None


def _read_reasoning(body: dict[str, Any]) -> Reasoning | None:
    thinking, config = body.get("thinking"), body.get("output_config")
    effort = text_or_none(config.get("effort")) if isinstance(config, dict) else None
    if isinstance(thinking, dict):
        kind = thinking.get("type")
        is_enabled = {"enabled": True, "adaptive": True, "disabled": False}.get(str(kind))
        return Reasoning(
            enabled=is_enabled,
            effort=effort,
            budget_tokens=integer_or_none(thinking.get("budget_tokens")),
            summary=_SUMMARIES.get(str(thinking.get("display"))),
        )
    return Reasoning(effort=effort) if effort else None


def _changed_options(options: Options, wire: dict[str, Any], *, is_native: bool) -> Iterator[Loss]:
    """Yield a loss for each option that is written in another form, or left out because of another option."""
    if options.safety_identifier is not None:
        if options.user is None:
            yield Loss("", "", "safety_identifier", NAME, "as the id of the user", "adjusted")
        elif options.safety_identifier != options.user:
            yield Loss("", "", "safety_identifier", NAME, "this API has a single user id")
    reasoning, thinking = options.reasoning, wire.get("thinking")
    if isinstance(thinking, dict) and "display" in thinking:
        yield from summary_changes(reasoning, NAME)
    elif reasoning is not None and reasoning.summary not in (None, "none") and not is_native:
        yield Loss("", "", "reasoning.summary", NAME, "without thinking there is nothing to show")


def _write_options(request: Request, form: str | None = None) -> dict[str, Any]:
    options = request.options
    wire: dict[str, Any] = {"model": request.model} if request.model is not None else {}
    limit = options.max_output_tokens
    wire["max_tokens"] = _DEFAULT_MAX_TOKENS if limit is None else limit
    wire.update(_FIELDS.write(options))
    if options.service_tier in _TIERS:
        wire["service_tier"] = options.service_tier
    user = options.user if options.user is not None else options.safety_identifier
    if user is not None:
        wire["metadata"] = {"user_id": user}
    if options.cache_hint is not None:
        wire.update(write_cache_hint(options.cache_hint))
    wire.update(_write_choice(options))
    config: dict[str, Any] = {}
    if options.response_format is not None and options.response_format.kind == "json_schema":
        response_format = {"type": "json_schema", "schema": options.response_format.json_schema}
        (wire if form == _BETA_FORMAT_KEY else config)[form or "format"] = response_format
    if options.reasoning is not None:
        if options.reasoning.effort in _EFFORTS:
            config["effort"] = options.reasoning.effort
        thinking = _write_thinking(options.reasoning)
        if thinking is not None:
            wire["thinking"] = thinking
    return {**wire, "output_config": config} if config else wire


def _write_thinking(reasoning: Reasoning) -> dict[str, Any] | None:
    if reasoning.is_off:
        return {"type": "disabled"}
    display = {"display": _DISPLAYS[reasoning.summary]} if reasoning.summary in _DISPLAYS else {}
    if reasoning.budget_tokens is not None:
        return {"type": "enabled", "budget_tokens": reasoning.budget_tokens, **display}
    return {"type": "adaptive", **display} if reasoning.enabled else None


def _write_choice(options: Options) -> dict[str, Any]:
    if options.tool_choice is None and options.parallel_tool_calls is None:
        return {}
    choice = options.tool_choice or ToolChoice("auto")
    wire: dict[str, Any] = {"type": _CHOICE_TYPES[choice.mode]}
    if choice.name is not None:
        wire["name"] = choice.name
    if options.parallel_tool_calls is not None:
        wire["disable_parallel_tool_use"] = not options.parallel_tool_calls
    return {"tool_choice": wire}
