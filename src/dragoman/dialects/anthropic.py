"""Anthropic Messages: https://platform.claude.com/docs/en/api/messages (read November 2026).

Results stand inside user messages there and are messages of their own here; consecutive ones are written as one user
message. System prompts stand beside the list. What the provider runs on its own servers is an opaque block.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.conversation import (
    Conversation,
    a_list,
    an_object,
    lost_fault,
    tool_id_for,
    with_ids_of_calls,
)
from dragoman.dialects.parts.framing import FramingError, splitter, sse_frame
from dragoman.dialects.parts.headers import retry_after_s
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import count_of, integer_or_none, number_or_none, text_or_none, texts_of
from dragoman.errors import FormatError
from dragoman.event import (
    BlockComplete,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    fold,
)
from dragoman.exchange import (
    ErrorClass,
    Fault,
    Loss,
    OpaqueTool,
    Options,
    Reasoning,
    Reply,
    Request,
    ResponseFormat,
    SideEffects,
    StopReason,
    ToolChoice,
    ToolDefinition,
    Written,
)
from dragoman.ids import AS_IT_IS, spell
from dragoman.message import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)

NAME: Final = "anthropic"
STOP_REASONS: Final = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "refusal": StopReason.REFUSAL,
    "pause_turn": StopReason.PAUSED,
}
_STOP_WORDS: Final = {reason: word for word, reason in STOP_REASONS.items()}
_CHOICES: Final = {"auto": "auto", "any": "required", "tool": "tool", "none": "none"}
_CHOICE_WORDS: Final = {ours: theirs for theirs, ours in _CHOICES.items()}
_TIERS: Final = ("auto", "standard_only")
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_DOCUMENTS: Final = ("application/pdf", "text/plain")
_APART: Final = ("messages", "system", "tools")  # parts of a request that are read one by one
_DEFAULT_MAX_TOKENS: Final = 4096  # the wire demands one; nobody asked for any


# --- request ---------------------------------------------------------------------------------------------------------


def read_request(wire: Any) -> Request:
    """A request as the Messages API takes it."""
    body = an_object(wire, "$")
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
    return request.replace(provider_raw=noted(NAME, _written_options(request), rest, empty=empty or None))


def write_request(request: Request) -> Written:
    """The request as the Messages API takes it, and what it cannot take."""
    request = with_ids_of_calls(request, NAME)
    notes = notes_of(request.provider_raw, NAME)
    losses = [] if notes else _lost_options(request.options)  # what this API itself said comes back as residue
    top = restored(_written_options(request), notes.get("residue"))
    system, messages = _hoisted(request.messages)
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = _written_messages(messages, losses)
    if system:
        wire["system"] = _written_system(system, losses)
    tools = [written for tool in request.tools if (written := _written_tool(tool, losses)) is not None]
    if tools:
        wire["tools"] = tools
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
    return [Loss("", "", name, NAME, "this API has no such option") for name, is_lost in lost.items() if is_lost]


def _read_system(system: Any, conversation: Conversation) -> None:
    if isinstance(system, str):
        if system:
            conversation.add(Role.SYSTEM, [TextBlock(system)], {"dialect": NAME, "form": "string"})
        return
    blocks = [_read_block(an_object(block, "$.system"), conversation) for block in a_list(system, "$.system")]
    if blocks:
        conversation.add(Role.SYSTEM, blocks, {"dialect": NAME, "form": "hoisted"})


def _hoisted(messages: tuple[Message, ...]) -> tuple[list[Message], list[Message]]:
    """System prompts stand beside the list, but for those that came inside it."""
    inside = [notes_of(message.metadata.provider_raw, NAME).get("form") == "listed" for message in messages]
    system = [
        m for m, listed in zip(messages, inside, strict=True) if m.role is Role.SYSTEM and not listed and m.content
    ]
    rest = [m for m, listed in zip(messages, inside, strict=True) if m.role is not Role.SYSTEM or listed]
    return system, rest


def _written_system(messages: list[Message], losses: list[Loss]) -> Any:
    blocks = [block for message in messages for block in _written_blocks(message, losses)]
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
            result = _read_result(group[0], conversation)
            conversation.add(Role.TOOL, [result], raw, answers=result.tool_use_id)
        else:
            blocks = [_read_block(an_object(item, f"{where}.content"), conversation) for item in group]
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


def _written_messages(messages: list[Message], losses: list[Loss]) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    previous: Message | None = None
    for message in messages:
        notes = notes_of(message.metadata.provider_raw, NAME)
        blocks = _written_blocks(message, losses)
        joins = previous is not None and _joins(previous, message, notes)
        previous = message
        if not blocks and message.content:
            continue  # nothing of it can be said here; the losses name it
        if joins and wire and wire[-1]["role"] == "user":
            wire[-1]["content"] = [*_as_list(wire[-1]["content"]), *blocks]
            continue
        role = "user" if message.role is Role.TOOL else message.role.value
        content: Any = blocks
        if notes.get("form") == "string" and len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
            content = blocks[0]["text"]
        wire.append({"role": role, "content": content, **notes.get("set", {})})
    return wire


def _joins(previous: Message, message: Message, notes: Mapping[str, Any]) -> bool:
    """Whether two messages are one on the wire: results next to each other are, unless they came apart."""
    if "joined" in notes:
        return bool(notes["joined"]) and previous.role in (Role.TOOL, Role.USER)
    return previous.role is Role.TOOL and message.role is Role.TOOL


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


def _written_tool(tool: ToolDefinition | OpaqueTool, losses: list[Loss]) -> dict[str, Any] | None:
    if isinstance(tool, OpaqueTool):
        if tool.dialect == NAME:
            return tool.wire
        losses.append(Loss("", "", "tool", NAME, f"a tool that only {tool.dialect} understands"))
        return None
    made: dict[str, Any] = restored(_natural_tool(tool), notes_of(tool.provider_raw, NAME).get("residue"))
    return made


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
    if isinstance(asked, dict) and asked.get("type") == "json_schema" and isinstance(asked.get("schema"), dict):
        return ResponseFormat("json_schema", asked["schema"])
    return None


def _read_reasoning(body: dict[str, Any]) -> Reasoning | None:
    thinking, config = body.get("thinking"), body.get("output_config")
    effort = text_or_none(config.get("effort")) if isinstance(config, dict) else None
    if isinstance(thinking, dict):
        kind = thinking.get("type")
        enabled = {"enabled": True, "adaptive": True, "disabled": False}.get(str(kind))
        return Reasoning(enabled=enabled, effort=effort, budget_tokens=integer_or_none(thinking.get("budget_tokens")))
    return Reasoning(effort=effort) if effort else None


def _written_options(request: Request) -> dict[str, Any]:
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
        config["format"] = {"type": "json_schema", "schema": options.response_format.json_schema}
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


# --- blocks ----------------------------------------------------------------------------------------------------------


def _read_block(wire: dict[str, Any], conversation: Conversation) -> ContentBlock:
    """A block as we know it, with what is left over; else the whole of it, opaque."""
    block = _known_block(wire, conversation)
    if block is None:
        return OpaqueBlock(NAME, wire)
    provider_id = wire["id"] if isinstance(block, ToolUseBlock) and wire["id"] != block.id else None
    own = True if isinstance(block, ThinkingBlock | RedactedThinkingBlock) else None  # so that it may go back
    return block.replace(provider_raw=noted(NAME, _natural_block(block, provider_id), wire, id=provider_id, own=own))


def _known_block(wire: dict[str, Any], conversation: Conversation) -> ContentBlock | None:
    match wire:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "tool_use", "id": str(provider_id), "name": str(name), "input": dict(value)}:
            return ToolUseBlock(conversation.call_id(provider_id), name, value)
        case {"type": "thinking", "thinking": str(text)}:
            return ThinkingBlock(text, text_or_none(wire.get("signature")))
        case {"type": "redacted_thinking", "data": str(data)}:
            return RedactedThinkingBlock(data)
        case {"type": "image" | "document" as kind, "source": dict(source)}:
            return _read_media(kind, source, wire)
        case _:
            return None


def _read_media(kind: str, source: dict[str, Any], wire: dict[str, Any]) -> ContentBlock | None:
    match source:
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            made = ImageSource("base64", data)
        case {"type": "url", "url": str(data)}:
            media_type = "image/*" if kind == "image" else "application/pdf"
            made = ImageSource("url", data)
        case {"type": "text", "media_type": "text/plain" as media_type, "data": str(text)} if kind == "document":
            made = ImageSource("base64", base64.b64encode(text.encode("utf-8", "surrogatepass")).decode())
        case _:
            return None
    if kind == "image":
        return ImageBlock(made, media_type)
    return DocumentBlock(made, media_type, text_or_none(wire.get("title")))


def _read_result(wire: dict[str, Any], conversation: Conversation) -> ToolResultBlock:
    content = wire.get("content")
    form = "string" if isinstance(content, str) else "absent" if content is None else None
    items: list[Any] = [{"type": "text", "text": content}] if form == "string" else content or []
    blocks = [_read_block(an_object(item, "$.content"), conversation) for item in a_list(items, "$.content")]
    provider_id = wire["tool_use_id"]
    tool_use_id = conversation.answered_id(provider_id)
    result = ToolResultBlock(tool_use_id, tuple(blocks), wire.get("is_error") is True)
    note = provider_id if provider_id != tool_use_id else None
    natural = _natural_result(result, note, form)
    return result.replace(provider_raw=noted(NAME, natural, wire, id=note, form=form))


def _natural_result(result: ToolResultBlock, provider_id: str | None, form: str | None) -> dict[str, Any]:
    content: Any = [_written_block(block) for block in result.content if _cannot_say(block) is None]
    if form == "string" and len(content) == 1 and set(content[0]) == {"type", "text"}:
        content = content[0]["text"]
    wire: dict[str, Any] = {"type": "tool_result", "tool_use_id": provider_id or spell(result.tool_use_id, AS_IT_IS)}
    if form != "absent" or content:
        wire["content"] = content
    if result.is_error:
        wire["is_error"] = True
    return wire


def _written_blocks(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    wire = []
    for block in message.content:
        inside = block.content if isinstance(block, ToolResultBlock) else ()
        for part in (block, *inside):
            reason = _cannot_say(part)
            if reason is not None:
                losses.append(Loss(message.session_id, message.id, part.type, NAME, reason))
        if _cannot_say(block) is None:
            wire.append(_written_block(block))
    return wire


def _cannot_say(block: ContentBlock) -> str | None:
    """Why this wire cannot carry a block; ``None`` if it can."""
    match block:
        case OpaqueBlock(dialect=dialect) if dialect != NAME:
            return f"a block that only {dialect} understands"
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            return None if notes_of(raw, NAME) else "reasoning of another origin"
        case DocumentBlock(media_type=media_type, provider_raw=raw) if media_type not in _DOCUMENTS:
            return None if notes_of(raw, NAME) else "this API takes PDF and plain text"
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock() | ToolResultBlock() | ImageBlock() | DocumentBlock():
            return None
        case OpaqueBlock():
            return None
        case _:
            return "this API takes no such block"


def _written_block(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: dict[str, Any] = restored(_natural_block(block, notes.get("id"), notes.get("form")), notes.get("residue"))
    return made


def _natural_block(block: ContentBlock, provider_id: str | None = None, form: str | None = None) -> dict[str, Any]:
    """What we would write for a block if nobody had noted anything about it."""
    match block:
        case TextBlock(text):
            return {"type": "text", "text": text}
        case ToolUseBlock(call_id, name, value):
            return {"type": "tool_use", "id": provider_id or spell(call_id, AS_IT_IS), "name": name, "input": value}
        case InvalidToolUseBlock(call_id, name, input_text):
            value = {"invalid_input": input_text}
            return {"type": "tool_use", "id": provider_id or spell(call_id, AS_IT_IS), "name": name, "input": value}
        case ThinkingBlock(text, signature):
            return {"type": "thinking", "thinking": text, **({"signature": signature} if signature is not None else {})}
        case RedactedThinkingBlock(data):
            return {"type": "redacted_thinking", "data": data}
        case ImageBlock(source, media_type):
            return {"type": "image", "source": _written_source(source, media_type)}
        case DocumentBlock(source, media_type, name):
            wire = {"type": "document", "source": _written_source(source, media_type)}
            return {**wire, "title": name} if name is not None else wire
        case ToolResultBlock():
            return _natural_result(block, provider_id, form)
        case OpaqueBlock(wire=wire):
            return wire
        case _:
            return {"type": "text", "text": f"[{block.type}]"}


def _written_source(source: ImageSource, media_type: str) -> dict[str, Any]:
    if source.kind == "url":
        return {"type": "url", "url": source.data}
    if media_type == "text/plain":
        try:
            text = base64.b64decode(source.data, validate=True).decode("utf-8", "surrogatepass")
            return {"type": "text", "media_type": media_type, "data": text}
        except (binascii.Error, UnicodeDecodeError):
            pass
    return {"type": "base64", "media_type": media_type, "data": source.data}


# --- reply -----------------------------------------------------------------------------------------------------------


def read_reply(wire: Any) -> Reply:
    """A message as the Messages API answers it."""
    body = an_object(wire, "$")
    conversation = Conversation()
    items = enumerate(a_list(body.get("content"), "$.content"))
    content = tuple(_read_block(an_object(item, f"$.content[{index}]"), conversation) for index, item in items)
    usage = body.get("usage")
    reply = Reply(
        content=content,
        stop_reason=STOP_REASONS.get(str(body.get("stop_reason")), StopReason.UNKNOWN),
        stop_sequence=text_or_none(body.get("stop_sequence")),
        usage=_read_usage(usage) if isinstance(usage, dict) else None,
        model=text_or_none(body.get("model")),
    )
    rest = {key: value for key, value in body.items() if key != "content"}
    return reply.replace(provider_raw=noted(NAME, _natural_reply(reply), rest))


def write_reply(reply: Reply) -> Written:
    """A message as the Messages API answers it, and what it cannot say."""
    losses: list[Loss] = []
    content = []
    for block in reply.content:
        reason = _cannot_say(block)
        if reason is None:
            content.append(_written_block(block))
        else:
            losses.append(Loss("", "", block.type, NAME, reason))
    losses.extend(lost_fault(reply, NAME))
    rest = restored(_natural_reply(reply), notes_of(reply.provider_raw, NAME).get("residue"))
    return Written({**rest, "content": content}, tuple(losses))


def _natural_reply(reply: Reply) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": "msg_dragoman", "type": "message", "role": "assistant"}
    if reply.model is not None:
        wire["model"] = reply.model
    wire["stop_reason"] = None if reply.fault else _STOP_WORDS.get(reply.stop_reason, "end_turn")
    wire["stop_sequence"] = reply.stop_sequence
    wire["usage"] = _written_usage(reply.usage or TokenUsage(input_tokens=0, output_tokens=0))
    return wire


_SERVER_TOOLS: Final = {"web_search_requests": "web_search", "web_fetch_requests": "web_fetch"}


def _read_usage(wire: dict[str, Any]) -> TokenUsage:
    creation = wire.get("cache_creation")
    details = wire.get("output_tokens_details")
    server = wire.get("server_tool_use")
    calls = {
        ours: server[theirs]
        for theirs, ours in _SERVER_TOOLS.items()
        if isinstance(server, dict) and count_of(server.get(theirs))
    }
    return TokenUsage(
        input_tokens=count_of(wire.get("input_tokens")),
        output_tokens=count_of(wire.get("output_tokens")),
        cached_input_tokens=count_of(wire.get("cache_read_input_tokens")),
        cache_creation_input_tokens=count_of(wire.get("cache_creation_input_tokens")),
        cache_creation_1h_input_tokens=count_of(creation.get("ephemeral_1h_input_tokens"))
        if isinstance(creation, dict)
        else 0,
        reasoning_tokens=count_of(details.get("thinking_tokens")) if isinstance(details, dict) else 0,
        server_tool_calls=calls or None,
        service_tier=text_or_none(wire.get("service_tier")),
    )


def _written_usage(usage: TokenUsage) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
    }
    if usage.service_tier is not None:
        wire["service_tier"] = usage.service_tier
    return wire


# --- stream ----------------------------------------------------------------------------------------------------------


class StreamReader:
    """Bytes in, events out. Each block is put together as it stood on the wire, and read as a whole one at its end."""

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._closed: set[int] = set()
        self._conversation = Conversation()
        self._ended = False
        self._failed = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if self._failed:
            return events
        try:
            for frame in self._splitter.feed(data):
                if not self._take(frame.data, events):
                    break
        except FramingError as error:
            self._fail("bad_event", str(error), events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        if not self._failed:
            for frame in self._splitter.close():
                self._take(frame.data, events)
        if not self._failed and not self._ended:
            if self._message.get("stop_reason") is not None:  # message_delta came, message_stop did not
                self._complete(events)
            else:
                tail = self._splitter.tail[:4096].decode("utf-8", "replace")
                self._fail("stream_incomplete", "the stream ended before the message did", events, tail=tail or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> bool:
        """Take one event; whether the next one is to be trusted."""
        if self._ended:
            return True
        try:
            wire = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fail("bad_event", "an event that is not JSON", events)
            return False
        kind = wire.get("type") if isinstance(wire, dict) else None
        handler = _HANDLERS.get(str(kind))
        if handler is not None:
            try:
                problem = handler(self, wire, events)
            except FormatError as error:
                problem = str(error)
            if problem is not None:
                self._fail("protocol_violation", problem, events)
        return not self._failed

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        retryable = code in ("stream_incomplete", "protocol_violation", "bad_event")
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=retryable, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._failed = True

    def _message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message:
            return "message_start came a second time"
        self._message = dict(an_object(wire.get("message"), "message_start"))
        events.append(MessageStart(text_or_none(self._message.get("model"))))
        self._usage(events)
        return None

    def _block_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        index = _index(wire)
        if not self._message or index < 0 or index in self._blocks:
            return f"content_block_start for block {index}, which cannot begin here"
        block = self._blocks[index] = dict(an_object(wire.get("content_block"), "content_block_start"))
        match block.get("type"):
            case "tool_use":
                self._inputs[index] = []
                call_id = self._conversation.call_id(str(block.get("id")))
                events.append(ToolUseStart(index, call_id, str(block.get("name"))))
            case "text" if block.get("text"):
                events.append(TextDelta(index, block["text"]))
            case "thinking" if block.get("thinking"):
                events.append(ThinkingDelta(index, block["thinking"]))
        return None

    def _block_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        index, delta = _index(wire), wire.get("delta")
        block = self._blocks.get(index)
        if block is None or index in self._closed or not isinstance(delta, dict):
            return f"content_block_delta for block {index}, which is not open"
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                block["text"] = block.get("text", "") + text
                events.append(TextDelta(index, text))
            case {"type": "input_json_delta", "partial_json": str(text)}:
                self._inputs.setdefault(index, []).append(text)
                if block.get("type") == "tool_use":
                    events.append(ToolUseInputDelta(index, text))
            case {"type": "thinking_delta", "thinking": str(text)}:
                block["thinking"] = block.get("thinking", "") + text
                events.append(ThinkingDelta(index, text))
            case {"type": "signature_delta", "signature": str(signature)}:
                block["signature"] = signature
            case {"type": "citations_delta", "citation": citation}:
                block["citations"] = [*(block.get("citations") or []), citation]
            case {"type": "compaction_delta", "content": content}:
                block["content"] = content if block.get("content") is None else block["content"] + content
        return None

    def _block_stop(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        index = _index(wire)
        block = self._blocks.get(index)
        if block is None or index in self._closed:
            return f"content_block_stop for block {index}, which is not open"
        self._closed.add(index)
        text = "".join(self._inputs.get(index, ()))
        if block.get("type") == "tool_use":
            if not text and block.get("input"):  # it came whole with the beginning
                events.append(ToolUseInputDelta(index, msgspec.json.encode(block["input"]).decode()))
            events.append(ToolUseEnd(index, self._call_residue(block, text)))
            return None
        if text:
            try:
                block["input"] = msgspec.json.decode(text)
            except msgspec.DecodeError:
                return f"the input of block {index} is not JSON"
        whole = _read_block(block, Conversation())
        raw = getattr(whole, "provider_raw", None)
        match whole:
            case TextBlock(text):
                events.append(TextDelta(index, "", raw))
            case ThinkingBlock(text, signature):
                events.append(ThinkingDelta(index, "", signature, raw))
            case _:
                events.append(BlockComplete(index, whole))
        return None

    def _call_residue(self, block: dict[str, Any], text: str) -> dict[str, Any] | None:
        try:
            value = msgspec.json.decode(text) if text.strip() else block.get("input") or {}
        except msgspec.DecodeError:
            value = {}
        read = _read_block({**block, "input": value}, Conversation())
        raw: dict[str, Any] | None = getattr(read, "provider_raw", None)
        return raw

    def _message_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        delta = wire.get("delta")
        self._message.update(delta if isinstance(delta, dict) else {})
        usage = wire.get("usage")
        if isinstance(usage, dict):
            known = self._message.get("usage")
            self._message["usage"] = {**(known if isinstance(known, dict) else {}), **_without_nulls(usage)}
            self._usage(events)
        if wire.get("context_management") is not None:
            self._message["context_management"] = wire["context_management"]
        return None

    def _usage(self, events: list[StreamEvent]) -> None:
        usage = self._message.get("usage")
        if isinstance(usage, dict):
            events.append(UsageUpdate(_read_usage(usage)))

    def _message_stop(self, _wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if not self._message:
            return "message_stop before message_start"
        if self._closed != set(self._blocks):
            return "message_stop while a block is open"
        if self._message.get("stop_reason") is None:
            self._fail("stream_incomplete", "the message ended without a reason", events)
            return None
        self._complete(events)
        return None

    def _complete(self, events: list[StreamEvent]) -> None:
        whole = read_reply({**self._message, "content": []})
        events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))
        self._ended = True

    def _error(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        fault = read_error(None, {}, wire)
        events.append(StreamError(fault))
        self._failed = True
        return None


_HANDLERS: Final = {
    "message_start": StreamReader._message_start,
    "content_block_start": StreamReader._block_start,
    "content_block_delta": StreamReader._block_delta,
    "content_block_stop": StreamReader._block_stop,
    "message_delta": StreamReader._message_delta,
    "message_stop": StreamReader._message_stop,
    "error": StreamReader._error,
}


def _index(wire: dict[str, Any]) -> int:
    index = wire.get("index")
    return index if type(index) is int else -1


def _without_nulls(usage: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in usage.items() if value is not None}


def stream_reader(framing: str | None = None) -> StreamReader:
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out, in the order that the official SDKs expect: one block after the other."""

    def __init__(self, framing: str | None = None) -> None:
        self._events: list[StreamEvent] = []
        self._done = framing not in (None, "sse")
        if self._done:
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")

    def feed(self, event: StreamEvent) -> bytes:
        """Take one event. Nothing is written before ``close``."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        return _written_stream(fold(self._events))


def _written_stream(reply: Reply) -> bytes:
    wire = write_reply(reply).wire
    start = {**wire, "content": [], "stop_reason": None, "stop_sequence": None}
    out = [sse_frame({"type": "message_start", "message": start}, "message_start")]
    for index, block in enumerate(wire["content"]):
        out.extend(_written_stream_block(index, block))
    if reply.fault is not None:
        out.append(sse_frame(write_error(reply.fault).wire, "error"))
        return b"".join(out)
    delta = {key: wire[key] for key in ("stop_reason", "stop_sequence") if key in wire}
    out.append(sse_frame({"type": "message_delta", "delta": delta, "usage": wire["usage"]}, "message_delta"))
    out.append(sse_frame({"type": "message_stop"}, "message_stop"))
    return b"".join(out)


def _written_stream_block(index: int, block: dict[str, Any]) -> Iterable[bytes]:
    begin, deltas = dict(block), []
    if block["type"] == "text":
        begin["text"] = ""
        deltas = [{"type": "text_delta", "text": block["text"]}]
        citations = block.get("citations") or []
        if citations:
            begin["citations"] = []
        deltas.extend({"type": "citations_delta", "citation": citation} for citation in citations)
    elif block["type"] == "thinking":
        begin["thinking"] = begin["signature"] = ""
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        if block.get("signature"):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif block["type"] in ("tool_use", "server_tool_use", "mcp_tool_use"):
        begin["input"] = {}
        deltas = [{"type": "input_json_delta", "partial_json": msgspec.json.encode(block["input"]).decode()}]
    yield sse_frame({"type": "content_block_start", "index": index, "content_block": begin}, "content_block_start")
    for delta in deltas:
        yield sse_frame({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
    yield sse_frame({"type": "content_block_stop", "index": index}, "content_block_stop")


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)


# --- error -----------------------------------------------------------------------------------------------------------

_ERROR_TYPES: Final = {
    "overloaded_error": ("overloaded", ErrorClass.RATE_LIMIT),
    "rate_limit_error": ("rate_limited", ErrorClass.RATE_LIMIT),
    "authentication_error": ("unauthorized", ErrorClass.AUTH),
    "permission_error": ("forbidden", ErrorClass.AUTH),
    "billing_error": ("forbidden", ErrorClass.AUTH),
    "not_found_error": ("not_found", ErrorClass.INVALID_REQUEST),
    "request_too_large": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "invalid_request_error": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "timeout_error": ("timeout", ErrorClass.NETWORK),
    "api_error": ("server_error", ErrorClass.SERVER_ERROR),
}
_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = None
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    kind, message = str(error.get("type", "")), str(error.get("message", "no message"))
    code, error_class = _ERROR_TYPES.get(kind, _by_status(status))
    if error_class is ErrorClass.INVALID_REQUEST and any(
        sign in message.lower() for sign in ("context", "tokens exceed", "too long", "too large")
    ):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return Fault(
        code=code,
        message=message,
        error_class=error_class,
        retryable=error_class in _RETRYABLE,
        retry_after_s=retry_after_s(headers),
        status=status,
        provider=NAME,
        provider_code=kind or None,
        request_id=headers.get("request-id")
        or (text_or_none(body.get("request_id")) if isinstance(body, dict) else None),
    )


def _by_status(status: int | None) -> tuple[str, ErrorClass]:
    match status:
        case 401 | 403:
            return "unauthorized", ErrorClass.AUTH
        case 408:
            return "timeout", ErrorClass.NETWORK
        case 413:
            return "context_overflow", ErrorClass.CONTEXT_OVERFLOW
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT
        case int() if status >= 500:
            return "server_error", ErrorClass.SERVER_ERROR
        case int() if status >= 400:
            return "invalid_request", ErrorClass.INVALID_REQUEST
        case _:
            return "server_error", ErrorClass.OTHER


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    kinds = {code: kind for kind, (code, _) in reversed(_ERROR_TYPES.items())}
    error = {"type": fault.provider_code or kinds.get(fault.code, "api_error"), "message": fault.message}
    wire = {"type": "error", "error": error}
    return Written({**wire, "request_id": fault.request_id} if fault.request_id else wire)


__all__ = [
    "NAME",
    "read_error",
    "read_reply",
    "read_request",
    "stream_reader",
    "stream_writer",
    "tool_id_for",
    "write_error",
    "write_reply",
    "write_request",
]
