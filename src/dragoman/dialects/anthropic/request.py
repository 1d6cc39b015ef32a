"""Requests of the Messages API: the conversation, the tools and the options, both ways.

The one rule: a request that was read here is written here as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from dragoman.dialects.anthropic.blocks import NAME, read_block, read_result, written_blocks
from dragoman.dialects.parts.asides import lost_asides
from dragoman.dialects.parts.body import a_list, an_object, from_body
from dragoman.dialects.parts.conversation import Conversation, with_ids_of_calls, worth_sending
from dragoman.dialects.parts.functions import written_tools
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import integer_or_none, number_or_none, text_or_none, texts_of
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
from dragoman.message import Message, ProviderRaw, Role, TextBlock

_CHOICES: Final = {"auto": "auto", "any": "required", "tool": "tool", "none": "none"}
_CHOICE_WORDS: Final = {ours: theirs for theirs, ours in _CHOICES.items()}
_TOOL, _SYSTEM = Role.TOOL, Role.SYSTEM
_NOTHING: Final[Mapping[str, Any]] = {}
_TIERS: Final = ("auto", "standard_only")
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_FORMAT_BEFORE: Final = "output_format"  # where the format of the answer stood while it was in beta
_APART: Final = ("messages", "system", "tools")  # parts of a request that are read one by one
_DEFAULT_MAX_TOKENS: Final = 4096  # the wire demands one; nobody asked for any


@from_body
def read_request(body: dict[str, Any]) -> Request:
    """A request as the Messages API takes it."""
    conversation = Conversation()
    if "system" in body:
        _read_system(body["system"], conversation)
    for index, message in enumerate(a_list(body.get("messages"), "$.messages")):
        _read_message(an_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", conversation)
    tools = tuple(_read_tool(an_object(tool, "$.tools")) for tool in a_list(body.get("tools") or [], "$.tools"))
    options = _read_options(body)
    model = body.get("model")
    rest = {key: value for key, value in body.items() if key not in _APART}
    request = Request(
        model=model if isinstance(model, str) else None,
        messages=tuple(conversation.messages),
        tools=tools,
        options=options,
    )
    empty = {key: body[key] for key in ("system", "tools") if key in body and not body[key]}
    form = _format_key(body)
    return request.replace(
        provider_raw=noted(NAME, _written_options(request, form), rest, empty=empty or None, form=form)
    )


def write_request(request: Request, quirks: Collection[str] = ()) -> Written:  # noqa: ARG001  it has none
    """The request as the Messages API takes it, and what it cannot take."""
    request = with_ids_of_calls(request, NAME)
    notes = notes_of(request.provider_raw, NAME)
    losses = [] if notes else _lost_options(request.options)  # what this API itself said comes back as residue
    request = worth_sending(request, NAME, losses)
    top = restored(_written_options(request, notes.get("form")), notes.get("residue"))
    system, messages = _hoisted(request.messages)
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = _written_messages(messages, losses)
    if (
        not notes
        and _continues_without_reasoning(wire["messages"])
        and top.get("thinking", {}).get("type") == "enabled"
    ):
        del top["thinking"]
        losses.append(Loss("", "", "reasoning", NAME, "what another model began cannot be continued with reasoning"))
    if system:
        wire["system"] = _written_system(system, losses)
    tools = written_tools(request.tools, _natural_tool, NAME, losses)
    if tools:
        wire["tools"] = tools
    losses.extend(lost_asides(request, NAME))
    return Written({**notes.get("empty", {}), **wire, **top}, tuple(losses))


def _lost_options(options: Options) -> list[Loss]:
    """What was asked for and this API has no word for."""
    lost = {
        "seed": options.seed is not None,
        "presence_penalty": options.presence_penalty is not None,
        "frequency_penalty": options.frequency_penalty is not None,
        "response_format": options.response_format is not None and options.response_format.kind == "json",
        "service_tier": options.service_tier not in (None, *_TIERS),
        "reasoning": options.reasoning is not None and options.reasoning.effort not in (None, "none", *_EFFORTS),
    }
    losses = [Loss("", "", name, NAME, "this API has no such option") for name, is_lost in lost.items() if is_lost]
    if options.response_format is not None and options.response_format.name is not None:
        losses.append(Loss("", "", "response_format.name", NAME, "this API takes a schema without a name"))
    return losses


def _read_system(system: Any, conversation: Conversation) -> None:
    if isinstance(system, str):
        if system:
            conversation.add(Role.SYSTEM, [TextBlock(system)], {"dialect": NAME, "form": "string"})
        return
    blocks = [read_block(an_object(block, "$.system"), conversation) for block in a_list(system, "$.system")]
    if blocks:
        conversation.add(Role.SYSTEM, blocks, {"dialect": NAME, "form": "hoisted"})


def _hoisted(messages: tuple[Message, ...]) -> tuple[list[Message], Sequence[Message]]:
    """System prompts stand beside the list, but for those that came inside it."""
    system = [message for message in messages if message.role is _SYSTEM and not _is_listed(message)]
    if len(system) == 1 and messages[0] is system[0]:  # where it stands most often
        return [message for message in system if message.content], messages[1:]
    rest = [message for message in messages if message.role is not _SYSTEM or _is_listed(message)]
    return [message for message in system if message.content], rest


def _is_listed(message: Message) -> bool:
    return notes_of(message.metadata.provider_raw, NAME).get("form") == "listed"


def _written_system(messages: list[Message], losses: list[Loss]) -> Any:
    blocks = [block for message in messages for block in written_blocks(message, losses)]
    if len(messages) == 1 and len(blocks) == 1:
        notes = notes_of(messages[0].metadata.provider_raw, NAME)
        if notes.get("form") != "hoisted" and set(blocks[0]) == {"type", "text"}:
            return blocks[0]["text"]
    return blocks


def _read_message(wire: dict[str, Any], where: str, conversation: Conversation) -> None:
    role, content = wire.get("role"), wire.get("content")
    if role not in ("user", "assistant", "system"):
        raise FormatError(f"a role is user, assistant or system, not {role!r}", where=f"{where}.role")
    form = "listed" if role == "system" else "string" if isinstance(content, str) else None
    items: Any = [{"type": "text", "text": content}] if isinstance(content, str) else content
    extra = {key: value for key, value in wire.items() if key not in ("role", "content")} or None
    groups = _groups(a_list(items, f"{where}.content"), role)
    for index, (kind, group) in enumerate(groups):
        before = groups[index - 1][0] if index else None
        raw = _message_notes(kind, before, conversation, form=form, set=extra)
        if kind == "tool":
            result = read_result(group[0], conversation)
            conversation.add(Role.TOOL, [result], raw, answers=result.tool_use_id)
        else:
            blocks = [read_block(an_object(item, f"{where}.content"), conversation) for item in group]
            conversation.add(Role(role), blocks, raw)


def _message_notes(kind: str, before: str | None, conversation: Conversation, **notes: Any) -> ProviderRaw | None:
    """What to remember of a message, or of the part of one behind ``before``, beyond how we would write it."""
    kept: dict[str, Any] = {}
    if before is None:
        kept = {name: note for name, note in notes.items() if note is not None}
        if kind == "tool" and conversation.messages and conversation.messages[-1].role is Role.TOOL:
            kept["joined"] = False  # results next to each other that came in two messages
    elif "user" in (kind, before):
        kept["joined"] = True  # words and results that came in one message
    return {"dialect": NAME, **kept} if kept else None


def _groups(items: list[Any], role: str) -> list[tuple[str, list[Any]]]:
    """A user message is cut where results begin and end; each result is a group of its own."""
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


def _written_messages(messages: Sequence[Message], losses: list[Loss]) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    before: Message | None = None
    for message in messages:
        role, raw = message.role, message.metadata.provider_raw
        notes = _NOTHING if raw is None else notes_of(raw, NAME)
        blocks = written_blocks(message, losses)
        if blocks or not message.content:  # else nothing of it can be said here; the losses name it
            may_join = notes or (role is _TOOL and before is not None and before.role is _TOOL)
            if may_join and wire and wire[-1]["role"] == "user" and _joins(before, message, notes):
                wire[-1]["content"] = [*_as_list(wire[-1]["content"]), *blocks]
            else:
                made: dict[str, Any] = {"role": "user" if role is _TOOL else role._value_, "content": blocks}
                wire.append(_as_noted(made, notes) if notes else made)
        before = message
    return wire


def _continues_without_reasoning(wire: list[dict[str, Any]]) -> bool:
    """Whether results are to be thought about that were called for without a thought: no such request is taken."""
    if not wire or wire[-1]["role"] != "user" or not _has(wire[-1], "tool_result"):
        return False
    spoken: list[Any] = []
    for message in reversed(wire[:-1]):  # what stands next to each other on one side is one turn there
        if message["role"] != "assistant":
            break
        spoken[:0] = _as_list(message["content"])
    return bool(spoken) and spoken[0].get("type") not in ("thinking", "redacted_thinking")


def _has(message: dict[str, Any], kind: str) -> bool:
    return any(block.get("type") == kind for block in _as_list(message["content"]))


def _as_noted(wire: dict[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """A message in the form in which it came, and with what else stood in it."""
    blocks = wire["content"]
    if notes.get("form") == "string" and len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        wire["content"] = blocks[0]["text"]
    return {**wire, **notes.get("set", {})}


def _joins(before: Message | None, message: Message, notes: Mapping[str, Any]) -> bool:
    """Whether two messages are one on the wire: results next to each other are, unless they came apart."""
    if before is None:
        return False
    if "joined" in notes:
        return bool(notes["joined"]) and before.role in (Role.TOOL, Role.USER)
    return before.role is Role.TOOL and message.role is Role.TOOL


def _as_list(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    schema = wire.get("input_schema")
    if wire.get("type", "custom") != "custom" or not isinstance(schema, dict) or not isinstance(wire.get("name"), str):
        return OpaqueTool(NAME, wire)
    description = wire.get("description")
    tool = ToolDefinition(
        wire["name"], description if isinstance(description, str) else "", schema, SideEffects.EXECUTE
    )
    return tool.replace(provider_raw=noted(NAME, _natural_tool(tool), wire))


def _natural_tool(tool: ToolDefinition) -> dict[str, Any]:
    wire: dict[str, Any] = {"name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    return {**wire, "input_schema": tool.input_schema}


def _read_options(body: dict[str, Any]) -> Options:
    choice = body.get("tool_choice")
    choice = choice if isinstance(choice, dict) else {}
    mode = _CHOICES.get(str(choice.get("type")))
    disabled = choice.get("disable_parallel_tool_use")
    metadata = body.get("metadata")
    return Options(
        max_output_tokens=integer_or_none(body.get("max_tokens")),
        temperature=number_or_none(body.get("temperature")),
        top_p=number_or_none(body.get("top_p")),
        top_k=integer_or_none(body.get("top_k")),
        stop_sequences=texts_of(body.get("stop_sequences")),
        tool_choice=ToolChoice(mode, text_or_none(choice.get("name"))) if mode else None,  # type: ignore[arg-type]
        parallel_tool_calls=not disabled if isinstance(disabled, bool) else None,
        response_format=_read_format(body),
        reasoning=_read_reasoning(body),
        service_tier=text_or_none(body.get("service_tier")),
        user=text_or_none(metadata.get("user_id")) if isinstance(metadata, dict) else None,
        stream=body["stream"] if isinstance(body.get("stream"), bool) else None,
    )


def _read_format(body: dict[str, Any]) -> ResponseFormat | None:
    config = body.get("output_config")
    asked = config.get("format") if isinstance(config, dict) else None
    asked = asked or body.get(_FORMAT_BEFORE)
    if isinstance(asked, dict) and asked.get("type") == "json_schema" and isinstance(asked.get("schema"), dict):
        return ResponseFormat("json_schema", asked["schema"])
    return None


def _format_key(body: dict[str, Any]) -> str | None:
    """Where the format of the answer stood, if not where it stands now."""
    config = body.get("output_config")
    now = isinstance(config, dict) and config.get("format")
    return _FORMAT_BEFORE if not now and _read_format(body) is not None else None


def _read_reasoning(body: dict[str, Any]) -> Reasoning | None:
    thinking, config = body.get("thinking"), body.get("output_config")
    effort = text_or_none(config.get("effort")) if isinstance(config, dict) else None
    if isinstance(thinking, dict):
        kind = thinking.get("type")
        enabled = {"enabled": True, "adaptive": True, "disabled": False}.get(str(kind))
        return Reasoning(enabled=enabled, effort=effort, budget_tokens=integer_or_none(thinking.get("budget_tokens")))
    return Reasoning(effort=effort) if effort else None


def _written_options(request: Request, form: str | None = None) -> dict[str, Any]:
    options = request.options
    wire: dict[str, Any] = {"model": request.model} if request.model is not None else {}
    wire["max_tokens"] = options.max_output_tokens or _DEFAULT_MAX_TOKENS
    for key, value in (
        ("temperature", options.temperature),
        ("top_p", options.top_p),
        ("top_k", options.top_k),
        ("service_tier", options.service_tier if options.service_tier in _TIERS else None),
        ("stream", options.stream),
    ):
        if value is not None:
            wire[key] = value
    if options.stop_sequences:
        wire["stop_sequences"] = list(options.stop_sequences)
    if options.user is not None:
        wire["metadata"] = {"user_id": options.user}
    wire.update(_written_choice(options))
    config: dict[str, Any] = {}
    if options.response_format is not None and options.response_format.kind == "json_schema":
        made = {"type": "json_schema", "schema": options.response_format.json_schema}
        (wire if form == _FORMAT_BEFORE else config)[form or "format"] = made
    if options.reasoning is not None:
        if options.reasoning.effort in _EFFORTS:
            config["effort"] = options.reasoning.effort
        thinking = _written_thinking(options.reasoning)
        if thinking is not None:
            wire["thinking"] = thinking
    return {**wire, "output_config": config} if config else wire


def _written_thinking(reasoning: Reasoning) -> dict[str, Any] | None:
    if reasoning.enabled is False or (reasoning.enabled is None and reasoning.effort == "none"):
        return {"type": "disabled"}
    if reasoning.budget_tokens is not None:
        return {"type": "enabled", "budget_tokens": reasoning.budget_tokens}
    return {"type": "adaptive"} if reasoning.enabled else None


def _written_choice(options: Options) -> dict[str, Any]:
    if options.tool_choice is None and options.parallel_tool_calls is None:
        return {}
    choice = options.tool_choice or ToolChoice("auto")
    wire: dict[str, Any] = {"type": _CHOICE_WORDS[choice.mode]}
    if choice.name is not None:
        wire["name"] = choice.name
    if options.parallel_tool_calls is not None:
        wire["disable_parallel_tool_use"] = not options.parallel_tool_calls
    return {"tool_choice": wire}
