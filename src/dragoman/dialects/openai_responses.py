"""OpenAI Responses, as OpenAI, Azure, xAI, OpenRouter and local servers speak it.

The wire is a flat list of items. What the model said, thought and called, one item after the other, is one assistant
message here, each block with the residue of its own item; the result of a call is a message of its own, as it is
there. ``instructions`` is a system message that stands beside the list. What the provider runs on its own servers is
an opaque block.

What a block remembers beside its residue, in ``provider_raw``:

    item       it begins a message item, and this is the residue of that item (its id, its status, …)
    content    "string": the content of that item is a text instead of a list of parts
    form       "refusal", "bare", "part", "content", "list": which of several shapes the wire has for it
    cuts       the lengths of the summaries that a reasoning text was joined from
    id         what the wire calls the call, where that is not our id
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.conversation import Conversation, a_list, an_object, with_ids_of_calls
from dragoman.dialects.parts.framing import FramingError, splitter, sse_frame
from dragoman.dialects.parts.headers import retry_after_s
from dragoman.dialects.parts.residue import difference, noted, notes_of, restored
from dragoman.dialects.parts.scalars import count_of, flag_or_none, integer_or_none, number_or_none, text_or_none
from dragoman.errors import FormatError, JsonError
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
from dragoman.jsontext import OWN, read_json
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

NAME: Final = "openai_responses"
_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
}
_ROLE_WORDS: Final = {Role.ASSISTANT: "assistant", Role.SYSTEM: "system"}
_INCOMPLETE: Final = {"max_output_tokens": StopReason.MAX_TOKENS, "content_filter": StopReason.REFUSAL}
_INCOMPLETE_WORDS: Final = {reason: word for word, reason in _INCOMPLETE.items()}
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_TIERS: Final = frozenset({"auto", "default", "flex", "scale", "priority", "fast", "ultrafast"})
_APART: Final = ("input", "instructions", "tools")  # parts of a request that are read one by one
_BETWEEN: Final = "\n\n"  # what stands between the summaries of one reasoning item when they are shown as one text
# Calls that the client has to run, other than calls of functions: the model waits for these, too.
_CLIENT_CALLS: Final = frozenset(
    {"custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call"}
)

Lose = Callable[[str, str], None]  # (what, why): takes note of a loss


# --- request ---------------------------------------------------------------------------------------------------------


def read_request(wire: Any) -> Request:
    """A request as the Responses API takes it."""
    body = an_object(wire, "$")
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


def write_request(request: Request) -> Written:
    """The request as the Responses API takes it, and what it cannot take."""
    request = with_ids_of_calls(request, NAME)
    losses: list[Loss] = []
    notes = notes_of(request.provider_raw, NAME)
    top = restored(_written_options(request), notes.get("residue"))
    wire: dict[str, Any] = {"model": top["model"]} if "model" in top else {}
    instructions, messages = _hoisted(request.messages)
    if instructions is not None:
        wire["instructions"] = _joined_text(instructions)
    items = _written_input(messages, losses)
    if items or not notes.get("absent"):
        wire["input"] = items
    tools = [written for tool in request.tools if (written := _written_tool(tool, losses)) is not None]
    if tools:
        wire["tools"] = tools
    wire.update((key, value) for key, value in notes.get("empty", {}).items() if not wire.get(key))
    losses.extend(_lost_options(request.options, top))
    return Written({**wire, **top}, tuple(losses))


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
            turn.extend(_read_item(wire, where, conversation, after=turn))
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
        result = _read_result(wire, where, conversation)
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
    blocks = [_read_part(an_object(part, f"{where}.content"), role) for part in parts]
    envelope = {key: value for key, value in wire.items() if key != "content"}
    item = difference({"role": _ROLE_WORDS.get(role, "user")}, envelope)
    conversation.add(role, blocks, _raw(item=item, content=shape, form=form))


def _raw(**notes: Any) -> ProviderRaw | None:
    kept = {name: note for name, note in notes.items() if note is not None}
    return {"dialect": NAME, **kept} if kept else None


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
    return _BETWEEN.join(block.text for block in message.content if isinstance(block, TextBlock))


def _written_input(messages: list[Message], losses: list[Loss]) -> Any:
    items: list[dict[str, Any]] = []
    for message in messages:

        def lose(what: str, why: str, message: Message = message) -> None:
            losses.append(Loss(message.session_id, message.id, what, NAME, why))

        items.extend(_written_items(message.content, message.role, message.metadata.provider_raw, lose))
    if len(messages) == 1 and notes_of(messages[0].metadata.provider_raw, NAME).get("form") == "input":
        content = items[0].get("content") if len(items) == 1 else None
        if isinstance(content, list) and len(content) == 1 and set(content[0]) == {"type", "text"}:
            return content[0]["text"]
    return items


_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    name, schema = wire.get("name"), wire.get("parameters")
    if wire.get("type") != "function" or not isinstance(name, str) or not isinstance(schema, dict | None):
        return OpaqueTool(NAME, wire)
    description = text_or_none(wire.get("description")) or ""
    tool = ToolDefinition(name, description, _NO_PARAMETERS if schema is None else schema, SideEffects.EXECUTE)
    return tool.replace(provider_raw=noted(NAME, _natural_tool(tool), wire))


def _natural_tool(tool: ToolDefinition) -> dict[str, Any]:
    wire: dict[str, Any] = {"type": "function", "name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    # Not strict, and said so: without a word this API makes every parameter a required one.
    return {**wire, "parameters": tool.input_schema, "strict": False}


def _written_tool(tool: ToolDefinition | OpaqueTool, losses: list[Loss]) -> dict[str, Any] | None:
    if isinstance(tool, OpaqueTool):
        if tool.dialect == NAME:
            return tool.wire
        losses.append(Loss("", "", "tool", NAME, f"a tool that only {tool.dialect} understands"))
        return None
    made: dict[str, Any] = restored(_natural_tool(tool), notes_of(tool.provider_raw, NAME).get("residue"))
    return made


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
        "service_tier": _known_tier(options.service_tier),
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


def _known_tier(tier: str | None) -> str | None:
    return tier if tier in _TIERS else None


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
    for name, value in (
        ("top_k", options.top_k),
        ("stop_sequences", options.stop_sequences or None),
        ("seed", options.seed),
        ("presence_penalty", options.presence_penalty),  # OpenAI answers with both and takes neither (September 2026)
        ("frequency_penalty", options.frequency_penalty),
        ("reasoning.budget_tokens", budget),
        ("service_tier", options.service_tier),
        ("reasoning", options.reasoning.effort if options.reasoning is not None else None),
    ):
        if value is not None and name not in wire:
            yield Loss("", "", name, NAME, "this API takes no such option")


# --- items and parts -------------------------------------------------------------------------------------------------


def _read_item(
    wire: dict[str, Any], where: str, conversation: Conversation, after: list[ContentBlock]
) -> list[ContentBlock]:
    """The blocks of one item of the model's; one that only this API understands is opaque."""
    match wire:
        case {"type": "function_call", "call_id": str(call_id), "name": str(), "arguments": str()}:
            return [_read_call(wire, conversation.call_id(call_id))]
        case {"type": "reasoning"}:
            return [_read_reasoning(wire) or OpaqueBlock(NAME, wire)]
        case {"role": "assistant", "content": str() | [_, *_]} if wire.get("type", "message") == "message":
            return _read_said(wire, where, joins=bool(after) and _is_part(after[-1]))
        case _:
            return [OpaqueBlock(NAME, wire)]


def _read_said(wire: dict[str, Any], where: str, joins: bool) -> list[ContentBlock]:
    """A message of the model's. Its first block remembers the item; the others join it by themselves."""
    content = wire["content"]
    shape = "string" if isinstance(content, str) else None
    parts = [{"type": "output_text", "text": content}] if shape else content
    blocks = [_read_part(an_object(part, f"{where}.content"), Role.ASSISTANT) for part in parts]
    envelope = {key: value for key, value in wire.items() if key != "content"}
    item = difference({"role": "assistant"}, envelope)
    notes = _raw(item=item or ({} if joins else None), content=shape)
    if notes is not None:
        blocks[0] = blocks[0].replace(provider_raw={**notes, **(getattr(blocks[0], "provider_raw", None) or {})})
    return blocks


def _read_call(wire: dict[str, Any], call_id: str) -> ToolUseBlock | InvalidToolUseBlock:
    name, text = wire["name"], wire["arguments"]
    block: ToolUseBlock | InvalidToolUseBlock
    try:
        value = read_json(text, OWN) if text.strip() else {}
        if not isinstance(value, dict):
            raise JsonError(f"a tool's input is a JSON object, not {type(value).__name__}")
        block = ToolUseBlock(call_id, name, value)
    except (JsonError, ValueError) as error:
        block = InvalidToolUseBlock(call_id, name, text, str(error))
    note = wire["call_id"] if wire["call_id"] != call_id else None
    return block.replace(provider_raw=noted(NAME, _natural_call(block, note), wire, id=note))


def _natural_call(block: ToolUseBlock | InvalidToolUseBlock, provider_id: str | None) -> dict[str, Any]:
    text = block.input_text if isinstance(block, InvalidToolUseBlock) else _json_text(block.input)
    call_id = provider_id or spell(block.id, AS_IT_IS)
    return {"type": "function_call", "call_id": call_id, "name": block.name, "arguments": text}


def _json_text(value: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except OverflowError:  # an integer of more than 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_reasoning(wire: dict[str, Any], source: str | None = None) -> ThinkingBlock | RedactedThinkingBlock | None:
    """Reasoning: its summaries, else its own text, joined; or only what is encrypted. ``None`` if it is neither.

    A stream says by what it sends first which of the two is shown; that is the ``source``.
    """
    summary, content = wire.get("summary"), wire.get("content")
    if source is None:
        source = "content" if content and not summary else "summary"
    texts = _texts(content if source == "content" else summary)
    if texts is None:
        return None
    text, secret = _BETWEEN.join(texts), text_or_none(wire.get("encrypted_content"))
    form = "content" if source == "content" else None
    cuts = None if len(texts) == bool(text) else [len(part) for part in texts]
    raw = noted(NAME, _natural_reasoning(text, secret, form, cuts), wire, form=form, cuts=cuts)
    raw = raw or {"dialect": NAME}  # where it comes from is what allows to write it again
    if secret is not None and not texts:
        return RedactedThinkingBlock(secret, raw)
    return ThinkingBlock(text, secret, raw)


def _texts(parts: Any) -> list[str] | None:
    if not isinstance(parts, list | None):
        return None
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts or []]
    return texts if all(isinstance(text, str) for text in texts) else None  # type: ignore[return-value]


def _natural_reasoning(text: str, secret: str | None, form: str | None, cuts: list[int] | None) -> dict[str, Any]:
    texts = _cut(text, cuts)
    wire: dict[str, Any] = {"type": "reasoning", "summary": []}
    if form == "content":
        wire["content"] = [{"type": "reasoning_text", "text": part} for part in texts]
    else:
        wire["summary"] = [{"type": "summary_text", "text": part} for part in texts]
    return wire if secret is None else {**wire, "encrypted_content": secret}


def _cut(text: str, cuts: list[int] | None) -> list[str]:
    """The parts that a text was joined from, as long as it is still that text."""
    parts, at = [], 0
    for length in cuts or ():
        parts.append(text[at : at + length])
        at += length + len(_BETWEEN)
    if cuts is not None and _BETWEEN.join(parts) == text:
        return parts
    return [text] if text else []


def _read_result(wire: dict[str, Any], where: str, conversation: Conversation) -> ToolResultBlock:
    output, provider_id = wire["output"], wire["call_id"]
    form = None if isinstance(output, str) else "list"
    parts = output if form else [{"type": "input_text", "text": output}]
    blocks = [_read_part(an_object(part, f"{where}.output"), Role.TOOL) for part in parts]
    tool_use_id = conversation.answered_id(provider_id)
    result = ToolResultBlock(tool_use_id, tuple(blocks))
    note = provider_id if provider_id != tool_use_id else None
    natural = _natural_result(result, note, form, _nobody_minds)
    return result.replace(provider_raw=noted(NAME, natural, wire, id=note, form=form))


def _natural_result(result: ToolResultBlock, provider_id: str | None, form: str | None, lose: Lose) -> dict[str, Any]:
    output: Any = []
    for block in result.content:
        reason = _cannot_say(block, Role.TOOL)
        if reason is None and not _is_part(block):
            reason = "a result holds only texts, images and files"
        if reason is None:
            output.append(_written_part(block, Role.TOOL))
        else:
            lose(block.type, reason)
    if form is None and (not output or (len(output) == 1 and set(output[0]) == {"type", "text"})):
        output = output[0]["text"] if output else ""
    call_id = provider_id or spell(result.tool_use_id, AS_IT_IS)
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _nobody_minds(_what: str, _why: str) -> None:
    """What was just read here can be written here."""


def _read_part(wire: dict[str, Any], role: Role) -> ContentBlock:
    block, form = _known_part(wire, role)
    if block is None:
        return OpaqueBlock(NAME, wire, {"dialect": NAME, "form": "part"})
    return block.replace(provider_raw=noted(NAME, _natural_part(block, role, form), wire, form=form))


def _known_part(wire: dict[str, Any], role: Role) -> tuple[ContentBlock | None, str | None]:
    match wire:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return TextBlock(text), None
        case {"type": "refusal", "refusal": str(text)}:
            return TextBlock(text), "refusal"
        case {"type": "input_image", "image_url": str(url)} if role is not Role.ASSISTANT:
            media_type, source = _read_url(url, "image/*")
            return ImageBlock(source, media_type), None
        case {"type": "input_file", "file_url": str(url)} if role is not Role.ASSISTANT:
            source = ImageSource("url", url)
            return DocumentBlock(source, "application/pdf", text_or_none(wire.get("filename"))), None
        case {"type": "input_file", "file_data": str(data)} if role is not Role.ASSISTANT:
            media_type, source = _read_url(data, "application/pdf")
            form = "bare" if source.kind == "url" else None  # base64 without saying of what
            return DocumentBlock(
                ImageSource("base64", source.data), media_type, text_or_none(wire.get("filename"))
            ), form
        case _:
            return None, None


def _read_url(url: str, otherwise: str) -> tuple[str, ImageSource]:
    head, comma, data = url.partition(",")
    media_type = head.removeprefix("data:").removesuffix(";base64")
    if comma and head == f"data:{media_type};base64" and media_type:
        return media_type, ImageSource("base64", data)
    return otherwise, ImageSource("url", url)


def _natural_part(block: ContentBlock, role: Role, form: str | None) -> dict[str, Any]:
    match block:
        case TextBlock(text) if form == "refusal":
            return {"type": "refusal", "refusal": text}
        case TextBlock(text):
            return {"type": "output_text" if role is Role.ASSISTANT else "input_text", "text": text}
        case ImageBlock(source, media_type):
            return {"type": "input_image", "image_url": _written_url(source, media_type)}
        case DocumentBlock(ImageSource("url", data), _, name):
            wire = {"type": "input_file", "file_url": data}
            return wire if name is None else {**wire, "filename": name}
        case DocumentBlock(source, media_type, name):
            data = source.data if form == "bare" else _written_url(source, media_type)
            default = "document.pdf" if media_type == "application/pdf" else "document"
            return {"type": "input_file", "filename": default if name is None else name, "file_data": data}
        case _:
            return {"type": "input_text", "text": f"[{block.type}]"}


def _written_url(source: ImageSource, media_type: str) -> str:
    return source.data if source.kind == "url" else f"data:{media_type};base64,{source.data}"


def _written_part(block: ContentBlock, role: Role) -> dict[str, Any]:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: dict[str, Any] = restored(_natural_part(block, role, notes.get("form")), notes.get("residue"))
    return made


def _is_part(block: ContentBlock) -> bool:
    """Whether a block stands inside a message item; else it is an item."""
    if isinstance(block, OpaqueBlock):
        return notes_of(block.provider_raw, NAME).get("form") == "part"
    return isinstance(block, TextBlock | ImageBlock | DocumentBlock)


def _cannot_say(block: ContentBlock, role: Role) -> str | None:
    """Why this wire cannot carry a block; ``None`` if it can."""
    match block:
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else f"a block that only {dialect} understands"
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            return None if notes_of(raw, NAME) else "reasoning of another origin"
        case ImageBlock(source=source) | DocumentBlock(source=source):
            if role is Role.ASSISTANT:
                return "here a model says nothing but words"
            return "the file is not at hand" if source.kind == "file_ref" else None
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock() | ToolResultBlock():
            return None
        case _:
            return "this API takes no such block"


def _written_items(
    content: Iterable[ContentBlock], role: Role, raw: ProviderRaw | None, lose: Lose
) -> list[dict[str, Any]]:
    """The items for the blocks of one message: neighbouring parts are one item, unless they came as several."""
    items: list[dict[str, Any]] = []
    run: list[ContentBlock] = []
    for block in content:
        reason = _cannot_say(block, role)
        if reason is not None:
            lose(block.type, reason)
            continue
        begins = notes_of(getattr(block, "provider_raw", None), NAME).get("item") is not None
        if run and (begins or not _is_part(block)):
            items.append(_message_item(run, role, raw))
            run = []
        if _is_part(block):
            run.append(block)
        else:
            items.append(_written_item(block, lose))
    return [*items, _message_item(run, role, raw)] if run else items


def _message_item(blocks: list[ContentBlock], role: Role, raw: ProviderRaw | None) -> dict[str, Any]:
    """What was said, as one item; a model's is remembered by its first block, anybody else's by the message."""
    notes = notes_of(getattr(blocks[0], "provider_raw", None) if role is Role.ASSISTANT else raw, NAME)
    parts = [_written_part(block, role) for block in blocks]
    content: Any = parts
    if notes.get("content") == "string" and len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        content = parts[0]["text"]
    envelope = restored({"role": _ROLE_WORDS.get(role, "user")}, notes.get("item"))
    return {**envelope, "content": content}


def _written_item(block: ContentBlock, lose: Lose) -> dict[str, Any]:
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    form, provider_id = notes.get("form"), notes.get("id")
    natural: dict[str, Any]
    match block:
        case ToolUseBlock() | InvalidToolUseBlock():
            natural = _natural_call(block, provider_id)
        case ThinkingBlock(text, signature):
            natural = _natural_reasoning(text, signature, form, notes.get("cuts"))
        case RedactedThinkingBlock(data):
            natural = _natural_reasoning("", data, form, notes.get("cuts"))
        case ToolResultBlock():
            natural = _natural_result(block, provider_id, form, lose)
            if block.is_error:
                lose(block.type, "that the tool failed cannot be said here, but for what its text says")
        case OpaqueBlock(wire=wire):
            return wire
        case _:
            raise AssertionError(block.type)
    made: dict[str, Any] = restored(natural, notes.get("residue"))
    return made


# --- reply -----------------------------------------------------------------------------------------------------------

# What a reply repeats of its request, where nobody said anything.
_ECHOED: Final[dict[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def read_reply(wire: Any) -> Reply:
    """A response as the Responses API answers it."""
    body = an_object(wire, "$")
    conversation = Conversation()
    content: list[ContentBlock] = []
    for index, item in enumerate(a_list(body.get("output"), "$.output")):
        where = f"$.output[{index}]"
        content.extend(_read_item(an_object(item, where), where, conversation, after=content))
    fault = _read_failure(body)
    reply = Reply(
        content=tuple(content),
        stop_reason=StopReason.ERROR if fault is not None else _read_stop(body, content),
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=fault,
    )
    rest = {key: value for key, value in body.items() if key != "output"}
    repeated = rest.get("output_text") == _said(content) or None
    if repeated:
        del rest["output_text"]
    return reply.replace(provider_raw=noted(NAME, _natural_reply(reply), rest, output_text=repeated))


def write_reply(reply: Reply) -> Written:
    """A response as the Responses API answers it, and what it cannot say."""
    losses: list[Loss] = []

    def lose(what: str, why: str) -> None:
        losses.append(Loss("", "", what, NAME, why))

    notes = notes_of(reply.provider_raw, NAME)
    items = _written_items(reply.content, Role.ASSISTANT, None, lose)
    if not notes:  # of another origin: this API gives every item a name and a status
        items = [_named_item(index, item, reply) for index, item in enumerate(items)]
    if reply.stop_sequence is not None:
        lose("stop_sequence", "this API does not say which word ended an answer")
    wire: dict[str, Any] = {**restored(_natural_reply(reply), notes.get("residue")), "output": items}
    if notes.get("output_text"):
        wire["output_text"] = _said(reply.content)
    return Written(wire, tuple(losses))


_ID_PREFIXES: Final = {"message": "msg", "function_call": "fc", "reasoning": "rs"}


def _named_item(index: int, item: dict[str, Any], reply: Reply) -> dict[str, Any]:
    kind = item.get("type", "message")
    named = {"id": f"{_ID_PREFIXES.get(kind, 'item')}_dragoman_{index}", "type": kind}
    if kind in ("message", "function_call"):
        named["status"] = "completed" if reply.fault is None else "incomplete"
    if kind == "message" and isinstance(item.get("content"), list):
        item = {**item, "content": [_whole_part(part) for part in item["content"]]}
    return {**named, **item}


def _whole_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"annotations": [], "logprobs": [], **part} if part.get("type") == "output_text" else part


def _said(content: Iterable[ContentBlock]) -> str:
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def _read_failure(body: dict[str, Any]) -> Fault | None:
    if body.get("status") != "failed":
        return None
    if isinstance(body.get("error"), dict):
        return read_error(None, {}, body)
    return Fault(
        code="unexplained_error",
        message="the provider ended the answer as failed and did not say why",
        error_class=ErrorClass.SERVER_ERROR,
        retryable=True,
        provider=NAME,
    )


def _read_stop(body: dict[str, Any], content: list[ContentBlock]) -> StopReason:
    details = body.get("incomplete_details")
    match body.get("status"):
        case "completed" | None:
            if any(_awaits_result(block) for block in content):
                return StopReason.TOOL_USE
            return StopReason.REFUSAL if any(_is_refusal(block) for block in content) else StopReason.END_TURN
        case "incomplete" if isinstance(details, dict):
            return _INCOMPLETE.get(str(details.get("reason")), StopReason.UNKNOWN)
        case "cancelled":
            return StopReason.CANCELLED
        case _:
            return StopReason.UNKNOWN


def _awaits_result(block: ContentBlock) -> bool:
    if isinstance(block, OpaqueBlock):
        return str(block.wire.get("type")) in _CLIENT_CALLS
    return isinstance(block, ToolUseBlock | InvalidToolUseBlock)


def _is_refusal(block: ContentBlock) -> bool:
    return isinstance(block, TextBlock) and notes_of(block.provider_raw, NAME).get("form") == "refusal"


def _natural_reply(reply: Reply) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": "resp_dragoman", "object": "response", "created_at": 0, **_ECHOED}
    if reply.model is not None:
        wire["model"] = reply.model
    usage = reply.usage
    wire["service_tier"] = _known_tier(usage.service_tier if usage is not None else None) or "default"
    wire["usage"] = _written_usage(usage) if usage is not None else None
    wire["status"], wire["error"], wire["incomplete_details"] = _written_stop(reply), None, None
    if reply.fault is not None:
        wire["error"] = {"code": _provider_code(reply.fault), "message": reply.fault.message}
    elif wire["status"] == "incomplete" and reply.stop_reason in _INCOMPLETE_WORDS:
        wire["incomplete_details"] = {"reason": _INCOMPLETE_WORDS[reply.stop_reason]}
    return wire


def _written_stop(reply: Reply) -> str:
    match reply.stop_reason:
        case StopReason.ERROR:
            return "failed"
        case StopReason.CANCELLED:
            return "cancelled"
        case StopReason.MAX_TOKENS | StopReason.PAUSED:
            return "incomplete"
        case StopReason.REFUSAL if not any(_is_refusal(block) for block in reply.content):
            return "incomplete"
        case _:
            return "completed"


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """What it consumed. The wire counts what was read from and written to a cache as input, too."""
    wire = body.get("usage")
    if not isinstance(wire, dict):
        return None
    inside, outside = _details(wire, "input_tokens_details"), _details(wire, "output_tokens_details")
    cached, created = count_of(inside.get("cached_tokens")), count_of(inside.get("cache_write_tokens"))
    return TokenUsage(
        input_tokens=max(0, count_of(wire.get("input_tokens")) - cached - created),
        output_tokens=count_of(wire.get("output_tokens")),
        cached_input_tokens=cached,
        cache_creation_input_tokens=created,
        reasoning_tokens=count_of(outside.get("reasoning_tokens")),
        server_tool_calls=_read_server_calls(body, wire) or None,
        service_tier=text_or_none(body.get("service_tier")),
        provider_cost_usd=_read_cost(wire),
    )


def _details(wire: dict[str, Any], key: str) -> dict[str, Any]:
    found = wire.get(key)
    return found if isinstance(found, dict) else {}


def _read_server_calls(body: dict[str, Any], usage: dict[str, Any]) -> dict[str, int]:
    """xAI counts them with the usage, OpenAI beside it."""
    counted = _details(usage, "server_side_tool_usage_details").items()
    calls = {name.removesuffix("_calls"): count for name, value in counted if (count := count_of(value))}
    searches = count_of(_details(_details(body, "tool_usage"), "web_search").get("num_requests"))
    return {**calls, "web_search": searches} if searches else calls


def _read_cost(usage: dict[str, Any]) -> Decimal | None:
    ticks, cost = usage.get("cost_in_usd_ticks"), usage.get("cost")
    if type(ticks) is int:  # xAI: ten thousand millionths of a dollar
        return Decimal(ticks) / 10_000_000_000
    return Decimal(repr(cost)) if type(cost) in (int, float) else None  # OpenRouter


def _written_usage(usage: TokenUsage) -> dict[str, Any]:
    cached, created = usage.cached_input_tokens, usage.cache_creation_input_tokens
    whole = usage.input_tokens + cached + created
    return {
        "input_tokens": whole,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": created},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": whole + usage.output_tokens,
    }


# --- stream ----------------------------------------------------------------------------------------------------------


class _Item:
    """An output item in the making: as it stands on the wire, and what of it has been passed on."""

    def __init__(self, place: int, wire: dict[str, Any], index: int) -> None:
        self.place = place
        self.wire = wire
        self.indexes = [index]  # of its blocks, by part
        self.numbers: dict[int, int] = {}  # what the wire calls each part of a message
        self.passed: dict[int, str] = {}  # the texts that were passed on, by part
        self.closed: set[int] = set()  # the parts that have ended
        self.call_id: str | None = None  # our id, for a call that has begun
        self.source: str | None = None  # what is shown of reasoning: "summary" or "content"
        self.raws: dict[int, ProviderRaw | None] = {}  # the residue that was passed on, by part
        self.is_done = False

    @property
    def kind(self) -> str:
        return str(self.wire.get("type", "message"))

    @property
    def parts(self) -> list[Any]:
        """The parts of a message."""
        content = self.wire.get("content") if self.kind == "message" else None
        return content if isinstance(content, list) else []

    def part(self, wire: dict[str, Any]) -> int:
        """The part that an event is about. Some servers count on from the item before, so the order counts."""
        return self.numbers.setdefault(_place_of(wire, "content_index"), len(self.numbers))


class _ViolationError(Exception):
    """An event that cannot come here."""


class StreamReader:
    """Bytes in, events out. Each item is put together as it stood on the wire, and read as a whole one at its end.

    The last event repeats the whole response, and its word counts: an item may come with another encryption there.
    So what arrives whole (an opaque block, encrypted reasoning) is passed on at the end only.
    """

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._conversation = Conversation()
        self._items: dict[int, _Item] = {}  # by their place
        self._blocks = 0  # how many there are so far
        self._begun = False
        self._ended = False
        self._failed = False
        self._number = -1  # the highest sequence number so far
        self._numbered: dict[int, int] = {}  # what came under each number

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if self._failed:
            return events
        try:
            for frame in self._splitter.feed(data):
                self._take(frame.data, events)
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
            tail = self._splitter.tail[:4096].decode("utf-8", "replace")
            self._fail("stream_incomplete", "the stream ended before the response did", events, tail=tail or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._ended or self._failed:
            return
        if data.strip() == b"[DONE]":
            self._fail("stream_incomplete", "the stream ended before the response did", events)
            return
        wire = _decoded(data)
        if not isinstance(wire, dict):
            self._fail("bad_event", "an event that is not a JSON object", events)
            return
        kind = wire.get("type")
        if kind is None and wire.get("error"):
            kind = "error"
        handler = _HANDLERS.get(str(kind))
        try:
            if not self._is_repeated(wire, data) and handler is not None:
                handler(self, wire, events)
        except (_ViolationError, FormatError) as problem:
            self._fail("protocol_violation", str(problem), events)

    def _is_repeated(self, wire: dict[str, Any], data: bytes) -> bool:
        """Whether this very event came before. Some servers number nothing, or everything alike."""
        number = wire.get("sequence_number")
        if type(number) is not int:
            return False
        if number > self._number:
            self._number = number
            self._numbered[number] = hash(data)
            return False
        if self._numbered.get(number) == hash(data):
            return True
        if self._number > 0:
            raise _ViolationError(f"event {number} came after event {self._number}")
        return False

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        self._save_whole_ones(events)
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._failed = True

    # The response

    def _created(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._begun:
            raise _ViolationError("response.created came a second time")
        response = an_object(wire.get("response"), "response.created")
        self._begun = True
        events.append(MessageStart(text_or_none(response.get("model"))))

    def _terminal(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        response = an_object(wire.get("response"), str(wire.get("type")))
        if not self._begun:
            raise _ViolationError("the response ends before it began")
        output = response.get("output")
        self._settle(output if isinstance(output, list) else [], events)
        for item in self._items.values():
            if not item.is_done and response.get("status") == "completed":
                raise _ViolationError(f"the response ends while item {item.place} is open")
            if not item.is_done and item.kind != "function_call":
                self._finish(item, _as_far_as_it_came(item), events)
        whole = read_reply({**response, "output": [item.wire for item in self._items.values()]})
        self._pass_on_whole_ones(events)
        if whole.usage is not None:
            events.append(UsageUpdate(whole.usage))
        if whole.fault is not None:
            events.append(StreamError(whole.fault, whole.provider_raw))
            self._failed = True
            return
        events.append(MessageComplete(whole.stop_reason, None, whole.provider_raw))
        self._ended = True

    def _error(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        self._save_whole_ones(events)
        events.append(StreamError(read_error(None, {}, wire)))
        self._failed = True

    # Items

    def _begin_item(self, place: int, wire: dict[str, Any], events: list[StreamEvent]) -> _Item:
        item = self._items[place] = _Item(place, wire, self._blocks)
        self._blocks += 1
        if item.kind == "function_call":
            self._begin_call(item, events)
        for part, said in enumerate(item.parts):
            item.numbers[part] = part
            self._fill(item, part, _part_text(said), events)
        return item

    def _index(self, item: _Item, part: int) -> int:
        """The index of a block. Blocks stand in the order in which they begin, so a part belongs to the last item."""
        if part == len(item.indexes) and item.place == max(self._items):
            item.indexes.append(self._blocks)
            self._blocks += 1
        if not 0 <= part < len(item.indexes):
            raise _ViolationError(f"part {part} of item {item.place} cannot begin here")
        return item.indexes[part]

    def _item_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        place, last = wire.get("output_index"), max(self._items, default=-1)
        if type(place) is not int:
            place = last + 1
        if not self._begun or place <= last:
            raise _ViolationError(f"item {place} cannot begin here")
        self._begin_item(place, an_object(wire.get("item"), "response.output_item.added"), events)

    def _item_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        self._finish(item, an_object(wire.get("item"), "response.output_item.done"), events)

    def _open_item(self, wire: dict[str, Any]) -> _Item:
        """The item that an event is about. Some servers leave out its place, and then its id has to do."""
        place, item_id = wire.get("output_index"), wire.get("item_id")
        if item_id is None and isinstance(wire.get("item"), dict):
            item_id = wire["item"].get("id") or wire["item"].get("call_id")
        if type(place) is int:
            found = self._items.get(place)
        else:
            unfinished = [item for item in self._items.values() if not item.is_done]
            named = [item for item in unfinished if str(item_id) in _names(item.wire)]
            found = next(reversed(named or unfinished), None)
        if found is None or found.is_done:
            raise _ViolationError(f"{wire.get('type')} for item {place}, which is not open")
        return found

    def _finish(self, item: _Item, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """The item is complete: pass on what is missing of it, and its residue."""
        if str(wire.get("type", "message")) != item.kind:
            raise _ViolationError(f"item {item.place} began as {item.kind} and ended as {wire.get('type')}")
        item.wire = wire
        if item.kind == "message" and len(item.parts) < len(item.passed):
            item.wire = _as_far_as_it_came(item)
        for part, said in enumerate(item.parts):
            self._index(item, part)
            self._fill(item, part, _part_text(said), events)
        if item.kind == "reasoning" and item.source is not None:
            texts = _texts(wire.get(item.source)) or []
            self._fill(item, 0, _BETWEEN.join(texts), events)
        elif item.kind == "function_call":
            self._end_call(item, events)
        self._pass_on_residue(item, events)
        item.is_done = True

    def _settle(self, output: list[Any], events: list[StreamEvent]) -> None:
        """Compare what came in pieces with what the last event repeats, and make up for what is missing or other."""
        unmatched = list(self._items.values())
        for place, wire in enumerate(output):
            an_object(wire, f"output[{place}]")
            known = [item for item in unmatched if _names(item.wire) & _names(wire)]
            alike = [item for item in unmatched if item.kind == str(wire.get("type", "message"))]
            item = next(iter(known or alike), None)
            if item is None:
                item = self._begin_item(max(self._items, default=-1) + 1, wire, events)
            else:
                unmatched.remove(item)
            if not item.is_done:
                self._finish(item, wire, events)
            elif item.kind != "function_call" and item.wire != wire:
                self._revise(item, wire, events)

    def _revise(self, item: _Item, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        before, item.wire = item.wire, wire
        if len(item.parts) < len(item.passed) and item.kind == "message":
            item.wire = before  # it repeats less than it said
        self._pass_on_residue(item, events)

    def _pass_on_residue(self, item: _Item, events: list[StreamEvent]) -> None:
        """What a block that grew has besides its text, as far as that is news."""
        if item.kind == "message" and item.wire.get("content"):
            said = _read_said(item.wire, f"output[{item.place}]", joins=True)
            for part, block in enumerate(said):
                raw = item.raws.get(part)
                news = getattr(block, "provider_raw", None)
                if not isinstance(block, TextBlock) and part not in item.passed:
                    continue
                if part not in item.raws or news != raw:
                    events.append(TextDelta(self._index(item, part), "", _replacing(raw, news)))
                    item.passed.setdefault(part, "")
                    item.raws[part] = news
        elif item.kind == "reasoning" and item.passed:
            thought = _read_reasoning(item.wire, item.source)
            if isinstance(thought, ThinkingBlock) and (0 not in item.raws or thought.provider_raw != item.raws[0]):
                raw = _replacing(item.raws.get(0), thought.provider_raw)
                events.append(ThinkingDelta(item.indexes[0], "", thought.signature, raw))
                item.raws[0] = thought.provider_raw
            elif isinstance(thought, ThinkingBlock) and thought.signature is not None:
                events.append(ThinkingDelta(item.indexes[0], "", thought.signature))

    def _pass_on_whole_ones(self, events: list[StreamEvent]) -> None:
        """The blocks that did not grow: they were kept back until nothing about them can change."""
        for item in self._items.values():
            if not item.is_done or item.kind == "function_call":
                continue
            blocks = _read_item(item.wire, f"output[{item.place}]", Conversation(), [])
            for part, block in enumerate(blocks):
                if part not in item.passed:
                    events.append(BlockComplete(self._index(item, part), block))
                    item.passed[part] = ""

    def _save_whole_ones(self, events: list[StreamEvent]) -> None:
        """The same in a stream that has failed, where the last of them may be what made it fail."""
        with contextlib.suppress(_ViolationError, FormatError):
            self._pass_on_whole_ones(events)

    # Texts

    def _fill(self, item: _Item, part: int, whole: str | None, events: list[StreamEvent]) -> None:
        """Pass on what is missing of a text that is known as a whole now."""
        if whole is None:
            return
        passed = item.passed.get(part, "")
        if not whole.startswith(passed):
            raise _ViolationError(f"the pieces of item {item.place} do not add up to its text")
        self._pass_on(item, part, whole[len(passed) :], events)

    def _pass_on(self, item: _Item, part: int, text: str, events: list[StreamEvent]) -> None:
        index = self._index(item, part)
        passed = item.passed.get(part, "")
        item.passed[part] = _whole(passed + text) if passed and "\ud800" <= passed[-1] <= "\udbff" else passed + text
        if not text:
            return
        if item.kind == "message":
            events.append(TextDelta(index, text))
        elif item.kind == "reasoning":
            events.append(ThinkingDelta(index, text))
        else:
            events.append(ToolUseInputDelta(index, text))

    def _part_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        if item.kind != "message":
            return
        part = item.part(wire)
        if part in item.passed:
            raise _ViolationError(f"part {part} of item {item.place} begins a second time")
        text = _part_text(wire.get("part"))
        if text is not None:
            self._pass_on(item, part, text, events)

    def _part_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        if item.kind == "message":
            part = item.part(wire)
            self._fill(item, part, _part_text(wire.get("part")), events)
            item.closed.add(part)

    def _text_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("delta")
        if item.kind != "message" or item.part(wire) in item.closed or not isinstance(text, str):
            raise _ViolationError(f"{wire.get('type')} for item {item.place}, which takes none there")
        self._pass_on(item, item.part(wire), text, events)

    def _text_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("text", wire.get("refusal"))
        if item.kind == "message" and isinstance(text, str):
            self._fill(item, item.part(wire), text, events)

    def _thought_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """More of a summary or of the reasoning itself, whichever came first; the parts of it are one text."""
        item, text = self._open_item(wire), wire.get("delta")
        source = "summary" if "summary" in str(wire.get("type")) else "content"
        if item.kind != "reasoning" or not isinstance(text, str):
            raise _ViolationError(f"{wire.get('type')} for item {item.place}, which takes none")
        if self._opens_thought(item, source, _place_of(wire, f"{source}_index"), events):
            self._pass_on(item, 0, text, events)

    def _thought_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        source = "summary" if "summary" in str(wire.get("type")) else "content"
        part = wire.get("part")
        text = _part_text(part) if isinstance(part, dict) else None
        is_shown = item.kind == "reasoning" and self._opens_thought(
            item, source, _place_of(wire, f"{source}_index"), events
        )
        if is_shown and text:
            self._pass_on(item, 0, text, events)

    def _opens_thought(self, item: _Item, source: str, part: int, events: list[StreamEvent]) -> bool:
        if item.source is None:
            item.source = source
        if item.source != source:
            return False
        if item.closed and part < max(item.closed):
            raise _ViolationError(f"part {part} of item {item.place} goes on after the next one began")
        for begun in range(max(item.closed, default=-1) + 1, part + 1):
            if begun > 0:
                self._pass_on(item, 0, _BETWEEN, events)
            item.closed.add(begun)
        return True

    # Calls

    def _begin_call(self, item: _Item, events: list[StreamEvent]) -> None:
        """A call begins when its name is known, which for some servers is at its end."""
        provider_id, name = item.wire.get("call_id"), item.wire.get("name")
        if item.call_id is not None or not isinstance(provider_id, str) or not isinstance(name, str):
            return
        item.call_id = self._conversation.call_id(provider_id)
        events.append(ToolUseStart(item.indexes[0], item.call_id, name))
        for early in (item.passed.pop(0, ""), text_or_none(item.wire.get("arguments")) if not item.is_done else None):
            if early:
                self._pass_on(item, 0, early, events)
                break

    def _input_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("delta")
        if item.kind != "function_call" or 0 in item.closed or not isinstance(text, str):
            raise _ViolationError(f"{wire.get('type')} for item {item.place}, which takes none")
        if item.call_id is None:
            item.passed[0] = item.passed.get(0, "") + text
        else:
            self._pass_on(item, 0, text, events)

    def _input_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("arguments")
        if item.kind != "function_call":
            return
        if isinstance(text, str) and item.call_id is not None:
            self._fill_input(item, text, events)
        item.closed.add(0)

    def _fill_input(self, item: _Item, whole: str, events: list[StreamEvent]) -> None:
        passed = item.passed.get(0, "")
        if whole.startswith(passed):
            self._pass_on(item, 0, whole[len(passed) :], events)
        elif not _is_same_json(whole, passed):
            raise _ViolationError(f"the pieces of item {item.place} do not add up to its arguments")

    def _end_call(self, item: _Item, events: list[StreamEvent]) -> None:
        self._begin_call(item, events)
        if item.call_id is None or not isinstance(item.wire.get("arguments"), str):
            raise _ViolationError(f"the call of item {item.place} has no name, no id or no arguments")
        self._fill_input(item, item.wire["arguments"], events)
        events.append(ToolUseEnd(item.indexes[0], _read_call(item.wire, item.call_id).provider_raw))


_HANDLERS: Final = {
    "response.created": StreamReader._created,
    "response.output_item.added": StreamReader._item_added,
    "response.output_item.done": StreamReader._item_done,
    "response.content_part.added": StreamReader._part_added,
    "response.content_part.done": StreamReader._part_done,
    "response.output_text.delta": StreamReader._text_delta,
    "response.output_text.done": StreamReader._text_done,
    "response.refusal.delta": StreamReader._text_delta,
    "response.refusal.done": StreamReader._text_done,
    "response.reasoning_summary_part.added": StreamReader._thought_added,
    "response.reasoning_summary_text.delta": StreamReader._thought_delta,
    "response.reasoning_part.added": StreamReader._thought_added,
    "response.reasoning_text.delta": StreamReader._thought_delta,
    "response.function_call_arguments.delta": StreamReader._input_delta,
    "response.function_call_arguments.done": StreamReader._input_done,
    "response.completed": StreamReader._terminal,
    "response.incomplete": StreamReader._terminal,
    "response.failed": StreamReader._terminal,
    "response.cancelled": StreamReader._terminal,
    "response.error": StreamReader._error,
    "error": StreamReader._error,
}


def _place_of(wire: dict[str, Any], key: str) -> int:
    place = wire.get(key, 0)
    return place if type(place) is int else -1


def _names(wire: dict[str, Any]) -> set[str]:
    return {name for key in ("id", "call_id") if isinstance(name := wire.get(key), str)}


def _decoded(data: bytes) -> Any:
    """The JSON of an event. A character may be cut in two between two of them, which only the slow reader takes."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if b"\\ud" not in data.lower():
            return None
    try:
        return json.loads(data, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):
        return None


def _whole(text: str) -> str:
    """A text whose halves of characters are put together again."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _part_text(part: Any) -> str | None:
    """The text of a part of a message, of a refusal, or of a piece of reasoning."""
    if not isinstance(part, dict):
        return None
    return text_or_none(part.get("refusal") if part.get("type") == "refusal" else part.get("text"))


def _as_far_as_it_came(item: _Item) -> dict[str, Any]:
    """An item that was cut off, as a whole one would stand on the wire."""
    if item.kind == "message" and item.passed:
        parts = [{"type": "output_text", "text": item.passed.get(part, "")} for part in range(len(item.indexes))]
        return {**item.wire, "content": parts}
    if item.kind == "reasoning" and item.source is not None:
        kind = "summary_text" if item.source == "summary" else "reasoning_text"
        return {**item.wire, item.source: [{"type": kind, "text": item.passed.get(0, "")}]}
    return item.wire


def _is_same_json(text: str, other: str) -> bool:
    try:
        return bool(read_json(text, OWN) == read_json(other, OWN))
    except JsonError:
        return False


def _replacing(old: ProviderRaw | None, new: ProviderRaw | None) -> ProviderRaw | None:
    """The new notes, so that nothing remains of the old ones when both are laid over each other."""
    return {**dict.fromkeys(old), **(new or {})} if old else new


def stream_reader(framing: str | None = None) -> StreamReader:
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out, in the order that the official SDKs expect: one item after the other."""

    def __init__(self, framing: str | None = None) -> None:
        self._events: list[StreamEvent] = []
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the response has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        events = _written_stream(fold(self._events))
        frames = [sse_frame({**wire, "sequence_number": number}, wire["type"]) for number, wire in enumerate(events)]
        return b"".join([*frames, b"data: [DONE]\n\n"])


def _written_stream(reply: Reply) -> Iterator[dict[str, Any]]:
    wire = write_reply(reply).wire
    begun = {**wire, "status": "in_progress", "output": [], "usage": None, "error": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for place, item in enumerate(wire["output"]):
        yield from _written_stream_item(place, item)
    status = wire.get("status")
    end = status if status in ("incomplete", "failed") else "completed"
    yield {"type": f"response.{end}", "response": wire}


def _written_stream_item(place: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    about = {"item_id": item.get("id") or item.get("call_id") or "", "output_index": place}
    begun = {**item, "status": "in_progress"} if "status" in item else dict(item)
    pieces: list[dict[str, Any]] = []
    match item:
        case {"type": "function_call", "arguments": str(text)}:
            begun["arguments"] = ""
            pieces = [
                {"type": "response.function_call_arguments.delta", **about, "delta": text},
                {"type": "response.function_call_arguments.done", **about, "arguments": text},
            ]
        case {"type": "reasoning"} if _read_reasoning(item) is not None:
            begun["summary"] = []
            for index, part in enumerate(item.get("summary") or []):
                pieces.extend(_written_summary({**about, "summary_index": index}, part))
            for index, part in enumerate(item.get("content") or []):
                where = {**about, "content_index": index}
                pieces.append({"type": "response.reasoning_text.delta", **where, "delta": part["text"]})
                pieces.append({"type": "response.reasoning_text.done", **where, "text": part["text"]})
            if "content" in begun:
                begun["content"] = []
        case {"role": "assistant", "content": list(parts)}:
            begun["content"] = []
            for index, part in enumerate(parts):
                pieces.extend(_written_stream_part({**about, "content_index": index}, part))
    yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    yield from pieces
    yield {"type": "response.output_item.done", "output_index": place, "item": item}


def _written_summary(about: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "response.reasoning_summary_part.added", **about, "part": {**part, "text": ""}}
    yield {"type": "response.reasoning_summary_text.delta", **about, "delta": part["text"]}
    yield {"type": "response.reasoning_summary_text.done", **about, "text": part["text"]}
    yield {"type": "response.reasoning_summary_part.done", **about, "part": part}


def _written_stream_part(about: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = _part_text(part)
    if text is None:
        return
    is_refusal = part.get("type") == "refusal"
    name, key = ("refusal", "refusal") if is_refusal else ("output_text", "text")
    extra: dict[str, Any] = {} if is_refusal else {"logprobs": []}
    empty = {**part, key: ""}
    yield {
        "type": "response.content_part.added",
        **about,
        "part": empty if is_refusal else {**empty, "annotations": []},
    }
    yield {"type": f"response.{name}.delta", **about, "delta": text, **extra}
    yield {"type": f"response.{name}.done", **about, key: text, **extra}
    yield {"type": "response.content_part.done", **about, "part": part}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)


# --- error -----------------------------------------------------------------------------------------------------------

_ERROR_CODES: Final = {
    "server_error": ("server_error", ErrorClass.SERVER_ERROR),
    "rate_limit_exceeded": ("rate_limited", ErrorClass.RATE_LIMIT),
    "invalid_api_key": ("unauthorized", ErrorClass.AUTH),
    "context_length_exceeded": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "model_not_found": ("not_found", ErrorClass.INVALID_REQUEST),
    "server_is_overloaded": ("overloaded", ErrorClass.RATE_LIMIT),
    "insufficient_quota": ("forbidden", ErrorClass.AUTH),
    "usage_limit_reached": ("rate_limited", ErrorClass.RATE_LIMIT),
    "slow_down": ("overloaded", ErrorClass.RATE_LIMIT),
    "previous_response_not_found": ("not_found", ErrorClass.INVALID_REQUEST),
    "invalid_prompt": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "vector_store_timeout": ("timeout", ErrorClass.NETWORK),
    "rate_limit_error": ("rate_limited", ErrorClass.RATE_LIMIT),
    "authentication_error": ("unauthorized", ErrorClass.AUTH),
    "permission_error": ("forbidden", ErrorClass.AUTH),
    "not_found_error": ("not_found", ErrorClass.INVALID_REQUEST),
    "service_unavailable_error": ("overloaded", ErrorClass.RATE_LIMIT),
    "overloaded_error": ("overloaded", ErrorClass.RATE_LIMIT),
    "api_error": ("server_error", ErrorClass.SERVER_ERROR),
    "invalid_request_error": ("invalid_request", ErrorClass.INVALID_REQUEST),
}
_CODE_WORDS: Final = {code: word for word, (code, _) in reversed(_ERROR_CODES.items())}
_KINDS: Final = {  # what the wire calls the type of an error, beside its code
    ErrorClass.RATE_LIMIT: "rate_limit_error",
    ErrorClass.AUTH: "authentication_error",
    ErrorClass.INVALID_REQUEST: "invalid_request_error",
    ErrorClass.CONTEXT_OVERFLOW: "invalid_request_error",
}
_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = None
    words, message = _said_of_error(body)
    known = [_ERROR_CODES[word] for word in words if word in _ERROR_CODES]
    code, error_class = known[0] if known else _by_status(status)
    if status in (401, 403) and error_class is ErrorClass.INVALID_REQUEST:
        code, error_class = _by_status(status)
    if error_class is ErrorClass.INVALID_REQUEST and any(
        sign in message.lower() for sign in ("context window", "context length", "maximum context")
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
        provider_code=words[0] if words else None,
        request_id=headers.get("x-request-id") or None,
    )


def _said_of_error(body: Any) -> tuple[list[str], str]:
    """What the body calls the error, the narrowest word first, and what it says to people.

    OpenAI: {"error": {code, type, message}}, and as an event also without the "error"; xAI: {code, "error": text};
    ChatGPT: {"detail": text}.
    """
    outer = body if isinstance(body, dict) else {}
    inner = outer.get("error")
    error = inner if isinstance(inner, dict) else outer
    words = [word for key in ("code", "type") if isinstance(word := error.get(key), str) and word and word != "error"]
    said = (error.get("message"), inner, outer.get("detail"))
    return words, next((text for text in said if isinstance(text, str) and text), "no message")


def _by_status(status: int | None) -> tuple[str, ErrorClass]:
    match status:
        case 401:
            return "unauthorized", ErrorClass.AUTH
        case 403:
            return "forbidden", ErrorClass.AUTH
        case 404:
            return "not_found", ErrorClass.INVALID_REQUEST
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


def _provider_code(fault: Fault) -> str:
    """What this API calls it; the word that it used itself, if it did."""
    if fault.provider == NAME and fault.provider_code is not None:
        return fault.provider_code
    return _CODE_WORDS.get(fault.code, "server_error")


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    kind = _KINDS.get(fault.error_class, "server_error")
    return Written({"error": {"message": fault.message, "type": kind, "param": None, "code": _provider_code(fault)}})


__all__ = [
    "NAME",
    "read_error",
    "read_reply",
    "read_request",
    "stream_reader",
    "stream_writer",
    "write_error",
    "write_reply",
    "write_request",
]
