"""Requests of Chat Completions: the conversation, the tools and the options, both ways.

The one rule: a request that was read here is written here as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from dragoman.dialects.openai_chat.blocks import (
    ABSENT,
    LEGACY_ID,
    NAME,
    TIERS,
    cannot_say,
    is_said_as_text,
    natural_content,
    natural_message,
    notes_of_message,
    read_blocks,
    read_parts,
    written_part,
)
from dragoman.dialects.openai_chat.plain import plain_options, plain_tool, read_messages
from dragoman.dialects.openai_chat.quirks import finish, fitted
from dragoman.dialects.parts.asides import lost_asides
from dragoman.dialects.parts.body import a_list, an_object, from_body
from dragoman.dialects.parts.conversation import Conversation, with_ids_of_calls, worth_sending
from dragoman.dialects.parts.functions import natural_tool, read_tool, written_tool
from dragoman.dialects.parts.losses import lost_failure, sayable
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import flag_or_none, integer_or_none, number_or_none, text_or_none, texts_of
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
from dragoman.ids import AS_IT_IS, spell
from dragoman.message import ContentBlock, DocumentBlock, Message, Role, TextBlock, ToolResultBlock

_CHOICES: Final = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_ROLES: Final = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_FORMATS: Final = {"text": "text", "json_object": "json"}
_APART: Final = ("messages", "tools", "functions")  # parts of a request that are read one by one


@from_body
def read_request(body: dict[str, Any]) -> Request:
    """A request as Chat Completions takes it."""
    conversation = Conversation()
    read_messages(a_list(body.get("messages"), "$.messages"), conversation, _read_message)
    messages, tools = tuple(conversation.messages), _read_tools(body)
    plain = plain_options(body)
    if plain is not None:
        raw = {"dialect": NAME, "spelled": plain[1]} if plain[1] else None
        return Request(model=body.get("model"), messages=messages, tools=tools, options=plain[0], provider_raw=raw)
    spelled = _spelled(body)
    model = body.get("model")
    request = Request(
        model=model if isinstance(model, str) else None,
        messages=messages,
        tools=tools,
        options=_read_options(body, spelled),
    )
    rest = {key: value for key, value in body.items() if key not in _APART}
    empty = {key: body[key] for key in ("tools", "functions") if key in body and not body[key]}
    natural = _written_options(request, spelled)
    return request.replace(provider_raw=noted(NAME, natural, rest, spelled=spelled or None, empty=empty or None))


def write_request(request: Request, quirks: Collection[str] = ()) -> Written:
    """The request as Chat Completions takes it, or one who speaks it with these quirks, and what they cannot take."""
    losses: list[Loss] = []
    request = worth_sending(with_ids_of_calls(request, NAME), NAME, losses)
    notes = notes_of(request.provider_raw, NAME)
    spelled = notes.get("spelled", {})
    theirs: dict[str, Any] = {}
    if quirks:
        options, spelled, theirs = fitted(request.options, spelled, quirks, losses)
        request = request.replace(options=options)
    losses.extend(_lost_options(request.options, spelled))
    top = restored({**_written_options(request, spelled), **theirs}, notes.get("residue"))
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = [made for message in request.messages for made in _written_messages(message, losses)]
    for tool in request.tools:
        made = written_tool(tool, NAME, losses, _natural_tool)
        legacy = isinstance(tool, ToolDefinition) and notes_of(tool.provider_raw, NAME).get("form") == "function"
        if made is not None:
            wire.setdefault("functions" if legacy else "tools", []).append(made)
    whole = {**notes.get("empty", {}), **wire, **top}
    if quirks:
        finish(whole, quirks, losses)
    losses.extend(lost_asides(request, NAME))
    return Written(whole, tuple(losses))


def _read_message(message: Any, where: str, conversation: Conversation) -> None:
    wire = an_object(message, where)
    word = wire.get("role")
    if word in ("tool", "function"):
        result = _read_result(wire, where, conversation)
        conversation.add(Role.TOOL, [result], answers=result.tool_use_id)
        return
    role = _ROLES.get(str(word))
    if role is None:
        raise FormatError(f"a role is system, developer, user, assistant or tool, not {word!r}", where=f"{where}.role")
    blocks = [block for _, block in read_blocks(wire, where, conversation, is_answer=role is Role.ASSISTANT)]
    if not blocks and wire.get("content") == "":
        blocks = [TextBlock("")]
    conversation.add(role, blocks, notes_of_message(role, blocks, wire))


def _written_messages(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    """A message as it stands on the wire; several for several results, none if nothing of it can be said here."""
    if message.role is Role.TOOL:
        return [made for block in message.content for made in _written_results(block, message, losses)]
    notes = notes_of(message.metadata.provider_raw, NAME)
    unsayable = partial(cannot_say, role=message.role, is_own=notes.get("form") == "list")
    blocks = sayable(message.content, unsayable, NAME, losses, message)
    losses.extend(_lost_names(blocks, message))
    if message.content and not blocks:
        return []
    return [restored(natural_message(message.role, blocks, notes), notes.get("residue"))]


def _written_results(block: ContentBlock, message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    if not isinstance(block, ToolResultBlock):
        losses.append(Loss(message.session_id, message.id, block.type, NAME, "a tool message holds results only"))
        return []
    notes = notes_of(block.provider_raw, NAME)
    unsayable = partial(cannot_say, role=Role.TOOL, is_own=notes.get("form") == "list")
    parts = sayable(block.content, unsayable, NAME, losses, message)
    losses.extend(lost_failure(block, message, NAME))
    losses.extend(_lost_names(parts, message))
    kept = block if len(parts) == len(block.content) else block.replace(content=tuple(parts))
    return [restored(_natural_result(kept, notes), notes.get("residue"))]


def _lost_names(blocks: Iterable[ContentBlock], message: Message) -> Iterator[Loss]:
    for block in blocks:
        if isinstance(block, DocumentBlock) and block.name is not None and is_said_as_text(block):
            reason = "a document that is said as text has no name"
            yield Loss(message.session_id, message.id, "document.name", NAME, reason)


def _read_result(wire: dict[str, Any], where: str, conversation: Conversation) -> ToolResultBlock:
    provider_id = wire.get("tool_call_id")
    if wire["role"] == "function":
        provider_id = f"{LEGACY_ID}{wire.get('name')}"
    if not isinstance(provider_id, str):
        raise FormatError("a result names the call that it answers", where=f"{where}.tool_call_id")
    blocks = [block for _, block in read_parts(wire, where)]
    result = ToolResultBlock(conversation.answered_id(provider_id), tuple(blocks))
    content = wire.get("content", ABSENT)
    notes: dict[str, Any] = {} if provider_id == result.tool_use_id else {"id": provider_id}
    if not isinstance(content, str):
        notes["form"] = "list" if isinstance(content, list) else "null" if content is None else "absent"
    return result.replace(provider_raw=noted(NAME, _natural_result(result, notes), wire, **notes))


def _natural_result(result: ToolResultBlock, notes: Mapping[str, Any]) -> dict[str, Any]:
    provider_id: str = notes.get("id", spell(result.tool_use_id, AS_IT_IS))
    wire: dict[str, Any] = {"role": "tool", "tool_call_id": provider_id}
    if provider_id.startswith(LEGACY_ID):
        wire = {"role": "function", "name": provider_id.removeprefix(LEGACY_ID)}
    parts = [written_part(block) for block in result.content]
    content = natural_content(parts, notes.get("form"), Role.TOOL)
    return wire if content is ABSENT else {**wire, "content": content}


def _read_tools(body: dict[str, Any]) -> tuple[ToolDefinition | OpaqueTool, ...]:
    tools = [
        plain_tool(tool) or read_tool(an_object(tool, "$.tools"), NAME)
        for tool in a_list(body.get("tools") or [], "$.tools")
    ]
    functions = a_list(body.get("functions") or [], "$.functions")
    return (*tools, *(_read_function(an_object(tool, "$.functions")) for tool in functions))


def _read_function(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    """A tool as it was written before there were any others."""
    tool = read_tool({"type": "function", "function": wire}, NAME)
    if isinstance(tool, OpaqueTool):
        raise FormatError("a function has a name", where="$.functions")
    return tool.replace(provider_raw=noted(NAME, natural_tool(tool)["function"], wire, form="function"))


def _natural_tool(tool: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = natural_tool(tool)
    return function["function"] if notes_of(tool.provider_raw, NAME).get("form") == "function" else function


def _spelled(body: dict[str, Any]) -> dict[str, str]:
    """Under which key an option came, where vendors and years differ and it is not the one that we would write."""
    spelled = {}
    for option, keys in (
        ("max_output_tokens", ("max_completion_tokens", "max_tokens")),
        ("seed", ("seed", "random_seed")),
        ("reasoning", ("reasoning_effort", "reasoning", "thinking", "enable_thinking")),
        ("tool_choice", ("tool_choice", "function_call")),
        ("top_k", ("", "top_k")),
    ):
        found = next((key for key in keys if body.get(key) is not None), keys[0])
        if found != keys[0]:
            spelled[option] = found
    if isinstance(body.get("stop"), str):
        spelled["stop_sequences"] = "string"
    if isinstance(body.get("service_tier"), str) and body["service_tier"] not in TIERS:
        spelled["service_tier"] = "service_tier"
    return spelled


def _read_options(body: dict[str, Any], spelled: Mapping[str, str]) -> Options:
    stop = body.get("stop")
    return Options(
        max_output_tokens=integer_or_none(body.get(spelled.get("max_output_tokens", "max_completion_tokens"))),
        temperature=number_or_none(body.get("temperature")),
        top_p=number_or_none(body.get("top_p")),
        top_k=integer_or_none(body.get("top_k")),
        stop_sequences=(stop,) if isinstance(stop, str) else texts_of(stop),
        seed=integer_or_none(body.get(spelled.get("seed", "seed"))),
        presence_penalty=number_or_none(body.get("presence_penalty")),
        frequency_penalty=number_or_none(body.get("frequency_penalty")),
        tool_choice=_read_choice(body.get(spelled.get("tool_choice", "tool_choice"))),
        parallel_tool_calls=flag_or_none(body.get("parallel_tool_calls")),
        response_format=_read_format(body.get("response_format")),
        reasoning=_read_reasoning(body.get(spelled.get("reasoning", "reasoning_effort"))),
        service_tier=text_or_none(body.get("service_tier")),
        user=text_or_none(body.get("user")),
        stream=flag_or_none(body.get("stream")),
    )


def _read_choice(choice: Any) -> ToolChoice | None:
    match choice:
        case str() if choice in _CHOICES:
            return ToolChoice(_CHOICES[choice])  # type: ignore[arg-type]
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return ToolChoice("tool", name)
        case _:
            return None


def _read_format(asked: Any) -> ResponseFormat | None:
    match asked:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)} as named}:
            return ResponseFormat(
                "json_schema", schema, text_or_none(named.get("name")), flag_or_none(named.get("strict"))
            )
        case {"type": str(kind)} if kind in _FORMATS:
            return ResponseFormat(_FORMATS[kind])  # type: ignore[arg-type]
        case _:
            return None


def _read_reasoning(asked: Any) -> Reasoning | None:
    match asked:
        case str():
            return Reasoning(effort=asked)
        case bool():
            return Reasoning(enabled=asked)
        case {"type": "enabled" | "disabled" as kind}:
            return Reasoning(enabled=kind == "enabled", budget_tokens=integer_or_none(asked.get("budget_tokens")))
        case dict():
            effort, budget = text_or_none(asked.get("effort")), integer_or_none(asked.get("max_tokens"))
            return Reasoning(enabled=flag_or_none(asked.get("enabled")), effort=effort, budget_tokens=budget)
        case _:
            return None


def _written_options(request: Request, spelled: Mapping[str, str]) -> dict[str, Any]:
    options = request.options
    stop = list(options.stop_sequences)
    wire = {
        "model": request.model,
        spelled.get("max_output_tokens", "max_completion_tokens"): options.max_output_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        spelled.get("top_k", ""): options.top_k,
        "stop": (stop[0] if len(stop) == 1 and "stop_sequences" in spelled else stop) or None,
        spelled.get("seed", "seed"): options.seed,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        spelled.get("tool_choice", "tool_choice"): _written_choice(options.tool_choice, spelled),
        "parallel_tool_calls": options.parallel_tool_calls,
        "response_format": _written_format(options.response_format),
        spelled.get("reasoning", "reasoning_effort"): _written_reasoning(options.reasoning, spelled),
        spelled.get("service_tier", "service_tier" if options.service_tier in TIERS else ""): options.service_tier,
        "user": options.user,
        "stream": options.stream,
    }
    return {key: value for key, value in wire.items() if key and value is not None}


def _written_choice(choice: ToolChoice | None, spelled: Mapping[str, str]) -> Any:
    if choice is None or choice.mode != "tool":
        return choice and choice.mode
    named = {"name": choice.name}
    return named if "tool_choice" in spelled else {"type": "function", "function": named}


def _written_format(asked: ResponseFormat | None) -> Any:
    if asked is None or asked.kind != "json_schema":
        return asked and {"type": "json_object" if asked.kind == "json" else asked.kind}
    strict = {"strict": asked.strict} if asked.strict is not None else {}
    named = {"name": asked.name or "answer", "schema": asked.json_schema, **strict}
    return {"type": "json_schema", "json_schema": named}


def _written_reasoning(reasoning: Reasoning | None, spelled: Mapping[str, str]) -> Any:
    if reasoning is None:
        return None
    match spelled.get("reasoning"):
        case "reasoning":
            pairs = (("enabled", reasoning.enabled), ("effort", reasoning.effort))
            asked = {key: value for key, value in pairs if value is not None}
            return {**asked, "max_tokens": reasoning.budget_tokens} if reasoning.budget_tokens is not None else asked
        case "thinking":
            switch = {"type": "disabled" if reasoning.enabled is False else "enabled"}
            budget = reasoning.budget_tokens
            return {**switch, "budget_tokens": budget} if budget is not None else switch
        case "enable_thinking":
            return reasoning.enabled
        case _:
            return reasoning.effort


def _lost_options(options: Options, spelled: Mapping[str, str]) -> list[Loss]:
    losses = []
    if options.top_k is not None and "top_k" not in spelled:
        losses.append(Loss("", "", "top_k", NAME, "this API has no such option"))
    if options.service_tier not in (None, *TIERS) and "service_tier" not in spelled:
        losses.append(Loss("", "", "service_tier", NAME, "this API has no such tier"))
    reasoning = options.reasoning
    if reasoning is not None and "reasoning" not in spelled:
        if reasoning.budget_tokens is not None:
            losses.append(Loss("", "", "reasoning", NAME, "this API takes an effort, not a number of tokens"))
        elif reasoning.enabled is not None and reasoning.effort is None:
            losses.append(Loss("", "", "reasoning", NAME, "this API takes an effort, not a switch"))
    return losses
