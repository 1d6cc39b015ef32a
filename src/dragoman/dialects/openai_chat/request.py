"""Requests of Chat Completions: messages, tools and options.

Invariant: a request that was read here is written as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects.openai_chat import fast_path
from dragoman.dialects.openai_chat.blocks import (
    ABSENT,
    AUDIO,
    LEGACY_ID,
    NAME,
    TIERS,
    TRANSCRIPT,
    default_content,
    default_message,
    is_written_as_text,
    make_message_notes,
    place_of,
    read_blocks,
    read_parts,
    unsupported_reason,
    write_part,
)
from dragoman.dialects.openai_chat.custom_tools import default_custom_tool, read_custom_tool
from dragoman.dialects.openai_chat.quirks import apply_quirks, apply_wire_quirks
from dragoman.dialects.openai_chat.support import LIMITS, SUPPORT
from dragoman.errors import FormatError
from dragoman.exchange import (
    Loss,
    OpaqueTool,
    Options,
    Reasoning,
    Request,
    ResponseFormat,
    ToolChoice,
    ToolDefinition,
    Written,
)
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import (
    accepts_json_text,
    expect_list,
    expect_object,
    flag_or_none,
    integer_or_none,
    text_or_none,
    text_tuple,
    validate_item,
)
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    Message,
    ProviderRaw,
    Role,
    TextBlock,
    ToolResultBlock,
)
from dragoman.wire.losses import error_flag_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.preparation import Quirks, prepare_request
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import OptionFields, request_losses
from dragoman.wire.tool_definitions import default_tool, read_tool, write_tool

if TYPE_CHECKING:
    from dragoman.catalog import Model

_CHOICES: Final = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_ROLES: Final = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_FIELDS: Final = OptionFields(
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "parallel_tool_calls",
    "user",
    "stream",
    "n",
    "logprobs",
    "top_logprobs",
    "verbosity",
    "store",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
)
_MODALITIES: Final = frozenset({"text", "audio"})
_FORMATS: Final = {"text": "text", "json_object": "json"}
_SEPARATE_KEYS: Final = ("messages", "tools", "functions")  # read by their own functions


@accepts_json_text(separate=("messages", "tools"))
def read_request(body: dict[str, Any]) -> Request:
    """Read a request of Chat Completions."""
    builder = MessageBuilder()
    fast_path.read_messages(expect_list(body.get("messages"), "$.messages"), builder, _read_message)
    messages, tools = tuple(builder.messages), _read_tools(body)
    plain = fast_path.read_options(body)
    if plain is not None:
        raw: ProviderRaw | None = {"dialect": NAME, "spelled": plain[1]} if plain[1] else {"dialect": NAME}
        return Request(model=body.get("model"), messages=messages, tools=tools, options=plain[0], provider_raw=raw)
    option_keys = _find_option_keys(body)
    model = body.get("model")
    request = Request(
        model=model if isinstance(model, str) else None,
        messages=messages,
        tools=tools,
        options=_read_options(body, option_keys),
    )
    rest = {key: value for key, value in body.items() if key not in _SEPARATE_KEYS}
    empty = {key: body[key] for key in ("tools", "functions") if key in body and not body[key]}
    default = _write_options(request, option_keys)
    raw = make_notes(NAME, default, rest, spelled=option_keys or None, empty=empty or None)
    return request.replace(provider_raw=raw or {"dialect": NAME})


def write_request(request: Request, quirks: Quirks = (), model: Model | None = None, *, fit: bool = True) -> Written:
    """Write a request for a provider with these quirks, with losses."""
    request, losses, adjustments, is_plain = prepare_request(request, LIMITS, _carries, model, quirks, fit=fit)
    notes = get_notes(request.provider_raw, NAME)
    option_keys = notes.get("spelled", {})
    provider_fields: dict[str, Any] = {}
    if quirks:
        options, option_keys, provider_fields = apply_quirks(request.options, option_keys, quirks, losses)
        request = request.replace(options=options)
    losses.extend(_option_losses(request.options, option_keys))
    options_wire = apply_diff({**_write_options(request, option_keys), **provider_fields}, notes.get("residue"))
    wire = {key: options_wire[key] for key in ("model",) if key in options_wire}
    if is_plain:
        wire["messages"] = fast_path.write_messages(request.messages)
        losses.extend(_error_losses(request.messages))
    else:
        wire["messages"] = [
            wire_message for message in request.messages for wire_message in _write_messages(message, losses)
        ]
    for tool in request.tools:
        definition = write_tool(tool, NAME, losses, _default_tool)
        is_legacy = isinstance(tool, ToolDefinition) and get_notes(tool.provider_raw, NAME).get("form") == "function"
        if definition is not None:
            wire.setdefault("functions" if is_legacy else "tools", []).append(definition)
    whole = {**notes.get("empty", {}), **wire, **options_wire}
    if quirks:
        apply_wire_quirks(whole, quirks, losses)
    losses.extend(request_losses(request, NAME, SUPPORT, is_plain=is_plain))
    return Written(whole, tuple(losses), tuple(adjustments))


def _carries(block: ContentBlock, role: Role) -> bool:
    return isinstance(block, ToolResultBlock) or unsupported_reason(block, role, is_native=False) is None


def _read_message(message: Any, where: str, builder: MessageBuilder) -> None:
    validate_item(message, "$")
    wire = expect_object(message, where)
    word = wire.get("role")
    if word in ("tool", "function"):
        result = _read_result(wire, where, builder)
        builder.add(Role.TOOL, [result], parent_id=result.tool_use_id)
        return
    role = _ROLES.get(word) if type(word) is str else None
    if role is None:
        if type(word) is not str or not word or "\0" in word or not wire.get("content"):
            what = f"a role is system, developer, user, assistant or tool, not {word!r}"
            raise FormatError(what, where=f"{where}.role")
        role = Role.unknown(word)  # servers of open models pass further roles to the chat template
    blocks = [block for _, block in read_blocks(wire, where, builder, is_answer=role is Role.ASSISTANT)]
    if not blocks and wire.get("content") == "":
        blocks = [TextBlock("")]
    builder.add(role, blocks, make_message_notes(role, blocks, wire))


def _write_messages(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    """Write a message; several for several results, none if the wire can carry nothing of it."""
    if message.role is Role.TOOL:
        return [wire_message for block in message.content for wire_message in _write_results(block, message, losses)]
    notes = get_notes(message.metadata.provider_raw, NAME)
    find_reason = partial(unsupported_reason, role=message.role, is_native=notes.get("form") == "list")
    content = message.content if notes else [_to_content(block) for block in message.content]
    blocks = supported_blocks(content, find_reason, NAME, losses, message)
    losses.extend(_name_losses(blocks, message))
    if message.content and not blocks:
        return []
    return [apply_diff(default_message(message.role, blocks, notes), notes.get("residue"))]


def _error_losses(messages: Iterable[Message]) -> Iterator[Loss]:
    for message in messages:
        if message.role is Role.TOOL:
            for block in message.content:
                yield from error_flag_losses(block, message, NAME)  # type: ignore[arg-type]


def _to_content(block: ContentBlock) -> ContentBlock:
    """Return a block of a spoken answer as content: a request refers to such an answer by an id, which expires."""
    if isinstance(block, TextBlock | AudioBlock) and place_of(block) in (TRANSCRIPT, AUDIO):
        return block.replace(provider_raw=None)
    return block


def _write_results(block: ContentBlock, message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    if not isinstance(block, ToolResultBlock):
        losses.append(Loss(message.session_id, message.id, block.type, NAME, "a tool message holds results only"))
        return []
    notes = get_notes(block.provider_raw, NAME)
    find_reason = partial(unsupported_reason, role=Role.TOOL, is_native=notes.get("form") == "list")
    parts = supported_blocks(block.content, find_reason, NAME, losses, message)
    losses.extend(error_flag_losses(block, message, NAME))
    losses.extend(_name_losses(parts, message))
    result = block if len(parts) == len(block.content) else block.replace(content=tuple(parts))
    return [apply_diff(_default_result(result, notes), notes.get("residue"))]


def _name_losses(blocks: Iterable[ContentBlock], message: Message) -> Iterator[Loss]:
    for block in blocks:
        if isinstance(block, DocumentBlock) and block.name is not None and is_written_as_text(block):
            reason = "a document that is written as text has no name"
            yield Loss(message.session_id, message.id, "document.name", NAME, reason)


def _read_result(wire: dict[str, Any], where: str, builder: MessageBuilder) -> ToolResultBlock:
    provider_id = wire.get("tool_call_id")
    if wire["role"] == "function":
        provider_id = f"{LEGACY_ID}{wire.get('name')}"
    if not isinstance(provider_id, str | None):
        raise FormatError("a result names the call that it answers", where=f"{where}.tool_call_id")
    blocks = [block for _, block in read_parts(wire, where)]
    result_id = builder.result_id(provider_id) if provider_id else builder.next_result_id()
    result = ToolResultBlock(result_id, tuple(blocks))
    content = wire.get("content", ABSENT)
    notes: dict[str, Any] = {} if provider_id in (None, result_id) else {"id": provider_id}
    if provider_id is None and "tool_call_id" not in wire:
        notes["unnamed"] = True
    if not isinstance(content, str):
        forms = {list: "list", dict: "object", type(None): "null"}
        notes["form"] = forms.get(type(content), "absent")
    return result.replace(provider_raw=make_notes(NAME, _default_result(result, notes), wire, **notes))


def _default_result(result: ToolResultBlock, notes: Mapping[str, Any]) -> dict[str, Any]:
    provider_id: str = notes.get("id", format_id(result.tool_use_id, DEFAULT_ID_FORMAT))
    wire: dict[str, Any] = {"role": "tool", **({} if notes.get("unnamed") else {"tool_call_id": provider_id})}
    if provider_id.startswith(LEGACY_ID):
        wire = {"role": "function", "name": provider_id.removeprefix(LEGACY_ID)}
    parts = [write_part(block) for block in result.content]
    content = default_content(parts, notes.get("form"), Role.TOOL)
    return wire if content is ABSENT else {**wire, "content": content}


def _read_tools(body: dict[str, Any]) -> tuple[ToolDefinition | OpaqueTool, ...]:
    tools = [fast_path.read_tool(tool) or _read_tool(tool) for tool in expect_list(body.get("tools") or [], "$.tools")]
    functions = expect_list(body.get("functions") or [], "$.functions")
    return (*tools, *(_read_function(expect_object(tool, "$.functions")) for tool in functions))


def _read_tool(tool: Any) -> ToolDefinition | OpaqueTool:
    validate_item(tool, "$")
    wire = expect_object(tool, "$.tools")
    custom = read_custom_tool(wire)
    if custom is None:
        return read_tool(wire, NAME, _default_tool)
    return custom.replace(provider_raw=make_notes(NAME, default_custom_tool(custom), wire))


def _read_function(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    """Read a tool in the legacy format ``functions``."""
    tool = read_tool({"type": "function", "function": wire}, NAME)
    if isinstance(tool, OpaqueTool):
        raise FormatError("a function has a name", where="$.functions")
    return tool.replace(provider_raw=make_notes(NAME, default_tool(tool)["function"], wire, form="function"))


def _default_tool(tool: ToolDefinition) -> dict[str, Any]:
    if tool.free_form:
        return default_custom_tool(tool)
    wire: dict[str, Any] = default_tool(tool)
    if get_notes(tool.provider_raw, NAME).get("form") == "function":
        function: dict[str, Any] = wire["function"]
        return function
    return wire if tool.strict is None else {**wire, "function": {**wire["function"], "strict": tool.strict}}


def _find_option_keys(body: dict[str, Any]) -> dict[str, str]:
    """Return the key of each option that has another key than the default; providers and versions differ."""
    option_keys = {}
    for option, keys in (
        ("max_output_tokens", ("max_completion_tokens", "max_tokens")),
        ("seed", ("seed", "random_seed")),
        ("reasoning", ("reasoning_effort", "reasoning", "thinking", "enable_thinking")),
        ("tool_choice", ("tool_choice", "function_call")),
        ("top_k", ("", "top_k")),
    ):
        used_key = next((key for key in keys if body.get(key) is not None), keys[0])
        if used_key != keys[0]:
            option_keys[option] = used_key
    if isinstance(body.get("stop"), str):
        option_keys["stop_sequences"] = "string"
    if isinstance(body.get("service_tier"), str) and body["service_tier"] not in TIERS:
        option_keys["service_tier"] = "service_tier"
    return option_keys


def _read_options(body: dict[str, Any], option_keys: Mapping[str, str]) -> Options:
    stop, modalities = body.get("stop"), text_tuple(body.get("modalities"))
    return Options(
        max_output_tokens=integer_or_none(body.get(option_keys.get("max_output_tokens", "max_completion_tokens"))),
        **_FIELDS.read(body),
        top_k=integer_or_none(body.get("top_k")),
        stop_sequences=(stop,) if isinstance(stop, str) else text_tuple(stop),
        seed=integer_or_none(body.get(option_keys.get("seed", "seed"))),
        tool_choice=_read_choice(body.get(option_keys.get("tool_choice", "tool_choice"))),
        response_format=_read_format(body.get("response_format")),
        reasoning=_read_reasoning(body.get(option_keys.get("reasoning", "reasoning_effort"))),
        service_tier=text_or_none(body.get("service_tier")),
        modalities=modalities if set(modalities) <= _MODALITIES else (),
    )


def _read_choice(choice: Any) -> ToolChoice | None:
    match choice:
        case str() if choice in _CHOICES:
            return ToolChoice(_CHOICES[choice])  # type: ignore[arg-type]
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}} | {"name": str(name)}:
            return ToolChoice("tool", name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            names = [_tool_name(tool) for tool in tools]
            return ToolChoice(mode, allowed=tuple(str(name) for name in names)) if None not in names else None
        case _:
            return None


def _tool_name(wire: Any) -> str | None:
    match wire:
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}}:
            return name
        case _:
            return None


def _read_format(value: Any) -> ResponseFormat | None:
    match value:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)} as schema_wire}:
            name, description = text_or_none(schema_wire.get("name")), text_or_none(schema_wire.get("description"))
            strict = flag_or_none(schema_wire.get("strict"))
            return ResponseFormat("json_schema", schema, name, strict, description)
        case {"type": str(kind)} if kind in _FORMATS:
            return ResponseFormat(_FORMATS[kind])  # type: ignore[arg-type]
        case _:
            return None


def _read_reasoning(value: Any) -> Reasoning | None:
    match value:
        case str():
            return Reasoning(effort=value) if value else None
        case bool():
            return Reasoning(enabled=value)
        case {"type": "enabled" | "disabled" as kind}:
            return Reasoning(enabled=kind == "enabled", budget_tokens=integer_or_none(value.get("budget_tokens")))
        case dict():
            effort, budget = text_or_none(value.get("effort")), integer_or_none(value.get("max_tokens"))
            return Reasoning(enabled=flag_or_none(value.get("enabled")), effort=effort, budget_tokens=budget)
        case _:
            return None


def _write_options(request: Request, option_keys: Mapping[str, str]) -> dict[str, Any]:
    options = request.options
    stop = list(options.stop_sequences)
    wire = {
        "model": request.model,
        option_keys.get("max_output_tokens", "max_completion_tokens"): options.max_output_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        option_keys.get("top_k", ""): options.top_k,
        "stop": (stop[0] if len(stop) == 1 and "stop_sequences" in option_keys else stop) or None,
        option_keys.get("seed", "seed"): options.seed,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        option_keys.get("tool_choice", "tool_choice"): _write_choice(request, option_keys),
        "parallel_tool_calls": options.parallel_tool_calls,
        "response_format": _write_format(options.response_format),
        option_keys.get("reasoning", "reasoning_effort"): _write_reasoning(options.reasoning, option_keys),
        option_keys.get("service_tier", "service_tier" if options.service_tier in TIERS else ""): options.service_tier,
        "user": options.user,
        "stream": options.stream,
        "n": options.n,
        "logprobs": options.logprobs,
        "top_logprobs": options.top_logprobs,
        "verbosity": options.verbosity,
        "store": options.store,
        "metadata": options.metadata,
        "safety_identifier": options.safety_identifier,
        "prompt_cache_key": options.prompt_cache_key,
        "modalities": [word for word in options.modalities if word in _MODALITIES] or None,
    }
    return {key: value for key, value in wire.items() if key and value is not None}


def _write_choice(request: Request, option_keys: Mapping[str, str]) -> Any:
    choice = request.options.tool_choice
    if choice is not None and choice.allowed:
        tools = [_write_tool_name(name, request) for name in choice.allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}
    if choice is None or choice.mode != "tool":
        return choice and choice.mode
    if "tool_choice" not in option_keys:
        return _write_tool_name(choice.name, request)
    function = {"name": choice.name}
    return function


def _write_tool_name(name: str | None, request: Request) -> dict[str, Any]:
    is_custom = any(isinstance(tool, ToolDefinition) and tool.free_form and tool.name == name for tool in request.tools)
    kind = "custom" if is_custom else "function"
    return {"type": kind, kind: {"name": name}}


def _write_format(response_format: ResponseFormat | None) -> Any:
    if response_format is None or response_format.kind != "json_schema":
        return response_format and {"type": "json_object" if response_format.kind == "json" else response_format.kind}
    strict = {"strict": response_format.strict} if response_format.strict is not None else {}
    schema_wire = {"name": response_format.name or "answer", "schema": response_format.json_schema, **strict}
    if response_format.description is not None:
        schema_wire["description"] = response_format.description
    return {"type": "json_schema", "json_schema": schema_wire}


def _write_reasoning(reasoning: Reasoning | None, option_keys: Mapping[str, str]) -> Any:
    if reasoning is None:
        return None
    match option_keys.get("reasoning"):
        case "reasoning":
            pairs = (("enabled", reasoning.enabled), ("effort", reasoning.effort))
            fields = {key: value for key, value in pairs if value is not None}
            return {**fields, "max_tokens": reasoning.budget_tokens} if reasoning.budget_tokens is not None else fields
        case "thinking":
            switch = {"type": "disabled" if reasoning.enabled is False else "enabled"}
            budget = reasoning.budget_tokens
            return {**switch, "budget_tokens": budget} if budget is not None else switch
        case "enable_thinking":
            return reasoning.enabled
        case _:
            return None if reasoning.enabled is False else reasoning.effort


def _option_losses(options: Options, option_keys: Mapping[str, str]) -> list[Loss]:
    losses = []
    if options.top_k is not None and "top_k" not in option_keys:
        losses.append(Loss("", "", "top_k", NAME, "this API has no such option"))
    if options.service_tier not in (None, *TIERS) and "service_tier" not in option_keys:
        losses.append(Loss("", "", "service_tier", NAME, "this API has no such tier"))
    if not set(options.modalities) <= _MODALITIES:
        losses.append(Loss("", "", "modalities", NAME, "this API generates text and audio"))
    reasoning = options.reasoning
    if reasoning is not None and "reasoning" not in option_keys:
        if reasoning.budget_tokens is not None:
            losses.append(Loss("", "", "reasoning", NAME, "this API has an effort instead of a number of tokens"))
        elif reasoning.enabled is False or (reasoning.enabled is not None and reasoning.effort is None):
            losses.append(Loss("", "", "reasoning", NAME, "this API has an effort instead of a switch"))
    return losses
