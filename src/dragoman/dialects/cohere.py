"""Cohere Chat, version 2: https://docs.cohere.com/reference/chat; the shapes are those of recorded exchanges.

An assistant's message has content, a plan for its calls, and the calls. The plan is text that was said before calling,
and is a text block that remembers where it stood. Citations belong to the message, not to a text. The input of a call
is a string of JSON. A tool may answer with documents: these are texts here, so that any other model can read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeGuard

import msgspec

from dragoman.dialects.parts.conversation import Conversation, a_list, an_object, with_ids_of_calls
from dragoman.dialects.parts.framing import FramingError, splitter, sse_frame
from dragoman.dialects.parts.headers import retry_after_s
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import integer_or_none, number_or_none, text_or_none, texts_of
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
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)

NAME: Final = "cohere"
ALSO_RECORDED_AS: Final = ("cohere-v2",)  # what records of its traffic call it
STOP_REASONS: Final = {
    "COMPLETE": StopReason.END_TURN,
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    "STOP_SEQUENCE": StopReason.STOP_SEQUENCE,
    "TOOL_CALL": StopReason.TOOL_USE,
    "ERROR_TOXIC": StopReason.REFUSAL,
    "USER_CANCEL": StopReason.CANCELLED,
    "ERROR": StopReason.ERROR,
    "ERROR_LIMIT": StopReason.ERROR,
    "TIMEOUT": StopReason.ERROR,
}
_STOP_WORDS: Final = {reason: word for word, reason in reversed(STOP_REASONS.items())}
_ENDS: Final = {  # what an answer that ended badly failed of, by its finish reason
    "ERROR": ("server_error", ErrorClass.SERVER_ERROR),
    "ERROR_LIMIT": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "TIMEOUT": ("timeout", ErrorClass.NETWORK),
}
_CHOICES: Final = {"REQUIRED": "required", "NONE": "none"}
_CHOICE_WORDS: Final = {"required": "REQUIRED", "tool": "REQUIRED", "none": "NONE"}
_APART: Final = ("messages", "tools")  # parts of a request that are read one by one
_NO_INPUT: Final = {"type": "object", "properties": {}}  # the schema of a tool that came without one
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
_Call = ToolUseBlock | InvalidToolUseBlock


# --- request ---------------------------------------------------------------------------------------------------------


def read_request(wire: Any) -> Request:
    """A request as ``/v2/chat`` takes it."""
    body = an_object(wire, "$")
    conversation = Conversation()
    for index, message in enumerate(a_list(body.get("messages"), "$.messages")):
        _read_message(an_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", conversation)
    tools = a_list(body.get("tools") or [], "$.tools")
    request = Request(
        model=text_or_none(body.get("model")),
        messages=tuple(conversation.messages),
        tools=tuple(_read_tool(an_object(tool, f"$.tools[{index}]")) for index, tool in enumerate(tools)),
        options=_read_options(body),
    )
    rest = {key: value for key, value in body.items() if key not in _APART}
    empty = {"tools": body["tools"]} if "tools" in body and not body["tools"] else None
    return request.replace(provider_raw=noted(NAME, _written_options(request), rest, empty=empty))


def write_request(request: Request) -> Written:
    """The request as ``/v2/chat`` takes it, and what it cannot take."""
    request = with_ids_of_calls(request, NAME)
    losses = _lost_options(request.options)
    notes = notes_of(request.provider_raw, NAME)
    top = restored(_written_options(request), notes.get("residue"))
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = _written_messages(request.messages, losses)
    tools = [written for tool in request.tools if (written := _written_tool(tool, losses)) is not None]
    if tools:
        wire["tools"] = tools
    elif "empty" in notes:
        wire.update(notes["empty"])
    wire.update(top)
    return Written(wire, tuple(losses))


def _read_message(wire: dict[str, Any], where: str, conversation: Conversation) -> None:
    role = wire.get("role")
    if role == "tool":
        result = _read_result(wire, where, conversation)
        conversation.add(Role.TOOL, [result], answers=result.tool_use_id)
        return
    if role not in ("user", "assistant", "system"):
        raise FormatError(f"a role is user, assistant, system or tool, not {role!r}", where=f"{where}.role")
    blocks, form = _read_said(wire, where, conversation)
    raw = noted(NAME, _natural_message(role, blocks, form), wire, form=form)
    conversation.add(Role(role), blocks, raw)


def _read_said(wire: dict[str, Any], where: str, conversation: Conversation) -> tuple[list[ContentBlock], str | None]:
    """What a message says, its content, its plan and its calls; and whether its content is a plain string."""
    content, plan, calls = wire.get("content"), wire.get("tool_plan"), wire.get("tool_calls")
    blocks: list[ContentBlock] = []
    if isinstance(content, str):
        if content or not calls:
            blocks.append(TextBlock(content))
    elif content is not None and not (calls and _is_blank(content)):
        for index, part in enumerate(a_list(content, f"{where}.content")):
            blocks.append(_read_part(an_object(part, f"{where}.content[{index}]")))
    if isinstance(plan, str) and plan:
        blocks.append(TextBlock(plan, {"dialect": NAME, "form": "tool_plan"}))
    for index, call in enumerate(a_list(calls or [], f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{index}]"
        blocks.append(_read_call(an_object(call, place), place, conversation))
    return blocks, _form(wire)


def _form(wire: dict[str, Any]) -> str | None:
    if "content" not in wire:
        return "absent"
    return "string" if isinstance(wire["content"], str) else None


def _is_blank(content: Any) -> bool:
    """Whether content stands there only because a client thought that it had to, beside calls."""
    return isinstance(content, list) and all(part == {"type": "text", "text": ""} for part in content)


def _natural_message(role: str, blocks: Iterable[ContentBlock], form: str | None = None) -> dict[str, Any]:
    """What we would write for a message if nobody had noted anything about it."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    wire: dict[str, Any] = {"role": role}
    for block in blocks:
        if isinstance(block, _Call):
            calls.append(_written_call(block))
        elif role == "assistant" and "tool_plan" not in wire and _is_plan(block):
            wire["tool_plan"] = block.text
        else:
            parts.append(_written_part(block))
    if form == "string" and (not parts or (len(parts) == 1 and set(parts[0]) == {"type", "text"})):
        wire["content"] = parts[0]["text"] if parts else ""
    elif parts or not (calls or "tool_plan" in wire or form == "absent"):
        wire["content"] = parts
    if calls:
        wire["tool_calls"] = calls
    return wire


def _is_plan(block: ContentBlock) -> TypeGuard[TextBlock]:
    return isinstance(block, TextBlock) and notes_of(block.provider_raw, NAME).get("form") == "tool_plan"


def _read_result(wire: dict[str, Any], where: str, conversation: Conversation) -> ToolResultBlock:
    provider_id, content = wire.get("tool_call_id"), wire.get("content")
    if not isinstance(provider_id, str):
        raise FormatError("a result has the id of its call", where=f"{where}.tool_call_id")
    blocks: list[ContentBlock] = []
    if isinstance(content, str):
        blocks.append(TextBlock(content))
    elif content is not None:
        for index, part in enumerate(a_list(content, f"{where}.content")):
            blocks.append(_read_part(an_object(part, f"{where}.content[{index}]")))
    call_id = conversation.answered_id(provider_id)
    result = ToolResultBlock(call_id, tuple(blocks))
    note = provider_id if provider_id != call_id else None
    form = "list" if isinstance(content, list) else "absent" if "content" not in wire else None
    return result.replace(provider_raw=noted(NAME, _natural_result(result, note, form), wire, id=note, form=form))


def _natural_result(result: ToolResultBlock, provider_id: str | None, form: str | None) -> dict[str, Any]:
    parts = [_written_part(block) for block in result.content if _cannot_answer(block) is None]
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
        blocks = _sayable(others, message, losses)
        if blocks or not message.content:  # else nothing of it can be said here; the losses name it
            notes = notes_of(message.metadata.provider_raw, NAME)
            natural = _natural_message(message.role.value, blocks, notes.get("form"))
            wire.append(restored(natural, notes.get("residue")))
    return wire


def _written_result(result: ToolResultBlock, message: Message, losses: list[Loss]) -> dict[str, Any]:
    if result.is_error:
        reason = "that a tool failed; what it said about it is kept"
        losses.append(Loss(message.session_id, message.id, "is_error", NAME, reason))
    for block in result.content:
        reason_of_block = _cannot_answer(block)
        if reason_of_block is not None:
            losses.append(Loss(message.session_id, message.id, block.type, NAME, reason_of_block))
    notes = notes_of(result.provider_raw, NAME)
    natural = _natural_result(result, notes.get("id"), notes.get("form"))
    made: dict[str, Any] = restored(natural, notes.get("residue"))
    return made


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    match wire:
        case {"type": "function", "function": {"name": str(name), **function}}:
            description, schema = function.get("description"), function.get("parameters")
            tool = ToolDefinition(
                name,
                description if isinstance(description, str) else "",
                schema if isinstance(schema, dict) else dict(_NO_INPUT),
                SideEffects.EXECUTE,
            )
            form = "bare" if "parameters" not in function else None
            return tool.replace(provider_raw=noted(NAME, _natural_tool(tool, form), wire, form=form))
        case _:
            return OpaqueTool(NAME, wire)


def _natural_tool(tool: ToolDefinition, form: str | None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if form != "bare" or tool.input_schema != _NO_INPUT:
        function["parameters"] = tool.input_schema
    return {"type": "function", "function": function}


def _written_tool(tool: ToolDefinition | OpaqueTool, losses: list[Loss]) -> dict[str, Any] | None:
    if isinstance(tool, OpaqueTool):
        if tool.dialect == NAME:
            return tool.wire
        losses.append(Loss("", "", "tool", NAME, f"a tool that only {tool.dialect} understands"))
        return None
    notes = notes_of(tool.provider_raw, NAME)
    made: dict[str, Any] = restored(_natural_tool(tool, notes.get("form")), notes.get("residue"))
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
        "reasoning.effort": reasoning.effort not in (None, "none"),
        "service_tier": options.service_tier is not None,
        "user": options.user is not None,
    }
    return [Loss("", "", name, NAME, "this API has no such option") for name, is_lost in lost.items() if is_lost]


# --- blocks ----------------------------------------------------------------------------------------------------------


def _read_part(wire: dict[str, Any]) -> ContentBlock:
    """A part of some content as we know it, with what is left over; else the whole of it, opaque."""
    block, form = _known_part(wire)
    if block is None:
        return OpaqueBlock(NAME, wire)
    return block.replace(provider_raw=noted(NAME, _natural_part(block, form), wire, form=form))


def _known_part(wire: dict[str, Any]) -> tuple[TextBlock | ThinkingBlock | ImageBlock | None, str | None]:
    match wire:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text), None
        case {"type": "thinking", "thinking": str(text)}:
            return ThinkingBlock(text), "thinking"  # a note for every one of them: it is how we know our own
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            match = _DATA_URL.fullmatch(url)
            if match is not None:
                return ImageBlock(ImageSource("base64", match[2]), match[1]), None
            return ImageBlock(ImageSource("url", url), "image/*"), None
        case {"type": "document", "document": {"data": str(text)}}:
            return TextBlock(text), "document"
        case {"type": "document", "document": {"data": dict(data)}}:
            return TextBlock(msgspec.json.encode(data).decode()), "document_object"
        case _:
            return None, None


def _natural_part(block: ContentBlock, form: str | None = None) -> dict[str, Any]:
    """What we would write for a part of some content if nobody had noted anything about it."""
    match block:
        case TextBlock(text) if form == "document":
            return {"type": "document", "document": {"data": text}}
        case TextBlock(text) if form == "document_object":
            value, problem = _read_arguments(text)
            return {"type": "document", "document": {"data": value if problem is None else {"text": text}}}
        case TextBlock(text):
            return {"type": "text", "text": text}
        case ThinkingBlock(text):
            return {"type": "thinking", "thinking": text}
        case ImageBlock(source, media_type):
            url = source.data if source.kind == "url" else f"data:{media_type};base64,{source.data}"
            return {"type": "image_url", "image_url": {"url": url}}
        case OpaqueBlock(wire=wire):
            return wire
        case _:
            return {"type": "text", "text": f"[{block.type}]"}


def _written_part(block: ContentBlock) -> dict[str, Any]:
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: dict[str, Any] = restored(_natural_part(block, notes.get("form")), notes.get("residue"))
    return made


def _read_call(wire: dict[str, Any], where: str, conversation: Conversation) -> _Call:
    function = an_object(wire.get("function"), f"{where}.function")
    name, arguments = function.get("name"), function.get("arguments")
    provider_id = wire.get("id")
    if not isinstance(name, str) or not isinstance(provider_id, str):
        raise FormatError("a call has an id, and the name of its tool", where=where)
    if arguments is not None and not isinstance(arguments, str):
        raise FormatError("the input of a call is a text", where=f"{where}.function.arguments")
    call_id = conversation.call_id(provider_id)
    value, problem = _read_arguments(arguments or "")
    block: _Call
    if problem is None:
        block = ToolUseBlock(call_id, name, value)
    else:
        block = InvalidToolUseBlock(call_id, name, arguments or "", problem)
    note = provider_id if provider_id != call_id else None
    form = None if problem is None else "text"
    return block.replace(provider_raw=noted(NAME, _natural_call(block, note, form), wire, id=note, form=form))


def _read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """The input of a call, or why there is none. No text at all is how providers send the input of no arguments."""
    try:
        value = read_json(text, OWN) if text.strip() else {}
    except JsonError as error:
        return {}, str(error)
    if isinstance(value, dict):
        return value, None
    return {}, f"a tool's input is a JSON object, not {type(value).__name__}"


def _written_call(block: _Call) -> dict[str, Any]:
    notes = notes_of(block.provider_raw, NAME)
    made: dict[str, Any] = restored(_natural_call(block, notes.get("id"), notes.get("form")), notes.get("residue"))
    return made


def _natural_call(block: _Call, provider_id: str | None, form: str | None) -> dict[str, Any]:
    if isinstance(block, ToolUseBlock):
        text = msgspec.json.encode(block.input).decode()
    elif form == "text":
        text = block.input_text
    else:
        text = msgspec.json.encode({"invalid_input": block.input_text}).decode()
    function = {"name": block.name, "arguments": text}
    return {"id": provider_id or spell(block.id, AS_IT_IS), "type": "function", "function": function}


def _sayable(blocks: Iterable[ContentBlock], message: Message | None, losses: list[Loss]) -> list[ContentBlock]:
    """The blocks that this wire can carry; the others become losses."""
    kept: list[ContentBlock] = []
    for block in blocks:
        reason = _cannot_say(block)
        if reason is None:
            kept.append(block)
        else:
            session_id, message_id = (message.session_id, message.id) if message is not None else ("", "")
            losses.append(Loss(session_id, message_id, block.type, NAME, reason))
    return kept


def _cannot_say(block: ContentBlock) -> str | None:
    """Why this wire cannot carry a block; ``None`` if it can."""
    match block:
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock():
            return None
        case ThinkingBlock(provider_raw=raw):
            return None if notes_of(raw, NAME) else "reasoning of another origin"
        case ImageBlock(source):
            return None if source.kind != "file_ref" else "this API cannot read our files"
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else f"a block that only {dialect} understands"
        case _:
            return "this API takes no such block"


def _cannot_answer(block: ContentBlock) -> str | None:
    """Why a tool cannot answer with a block on this wire; ``None`` if it can."""
    if isinstance(block, TextBlock | OpaqueBlock):
        return _cannot_say(block)
    return "tools answer with texts and documents here"


# --- reply -----------------------------------------------------------------------------------------------------------


def read_reply(wire: Any) -> Reply:
    """An answer of ``/v2/chat``, whole."""
    body = an_object(wire, "$")
    content, form = _read_said(an_object(body.get("message"), "$.message"), "$.message", Conversation())
    reason = STOP_REASONS.get(str(body.get("finish_reason")), StopReason.UNKNOWN)
    reply = Reply(
        content=tuple(content),
        stop_reason=reason,
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=_read_end(body) if reason is StopReason.ERROR else None,
    )
    return reply.replace(provider_raw=noted(NAME, _natural_reply(reply, content, form), body, form=form))


def _read_end(body: dict[str, Any]) -> Fault:
    """What an answer failed of that ended badly."""
    word = str(body.get("finish_reason"))
    code, error_class = _ENDS[word]
    message = text_or_none(body.get("error")) or f"the answer ended with {word}"
    retryable = error_class in _RETRYABLE
    return Fault(
        code=code, message=message, error_class=error_class, retryable=retryable, provider=NAME, provider_code=word
    )


def write_reply(reply: Reply) -> Written:
    """An answer of ``/v2/chat``, whole, and what it cannot say."""
    losses: list[Loss] = []
    content = _sayable(reply.content, None, losses)
    notes = notes_of(reply.provider_raw, NAME)
    return Written(restored(_natural_reply(reply, content, notes.get("form")), notes.get("residue")), tuple(losses))


def _natural_reply(reply: Reply, content: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": "dragoman", "message": _natural_message("assistant", content, form)}
    wire["finish_reason"] = _STOP_WORDS.get(reply.stop_reason, "COMPLETE")
    if reply.fault is not None:
        code = reply.fault.provider_code
        wire["finish_reason"] = code if code in _ENDS else "ERROR"
        wire["error"] = reply.fault.message
    if reply.usage is not None:
        wire["usage"] = _written_usage(reply.usage)
    return wire


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """The tokens that were used; those that were billed are fewer, and residue. Early answers call it ``meta``."""
    usage = body.get("usage") or body.get("meta")
    tokens = (usage.get("tokens") or usage.get("billed_units")) if isinstance(usage, dict) else None
    if not isinstance(usage, dict) or not isinstance(tokens, dict):
        return None
    prompt, cached = _count(tokens.get("input_tokens")), _count(usage.get("cached_tokens"))
    return TokenUsage(
        input_tokens=max(prompt - cached, 0),
        output_tokens=_count(tokens.get("output_tokens")),
        cached_input_tokens=cached,
        reasoning_tokens=_count(tokens.get("reasoning_tokens")),
    )


def _count(value: Any) -> int:
    """Some of the counts are written as floats."""
    return int(value) if type(value) in (int, float) and value >= 0 else 0


def _written_usage(usage: TokenUsage) -> dict[str, Any]:
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    tokens = {"input_tokens": prompt, "output_tokens": usage.output_tokens}
    if usage.reasoning_tokens:
        tokens["reasoning_tokens"] = usage.reasoning_tokens
    wire: dict[str, Any] = {"tokens": tokens}
    return {**wire, "cached_tokens": usage.cached_input_tokens} if usage.cached_input_tokens else wire


# --- stream ----------------------------------------------------------------------------------------------------------


class StreamReader:
    """Bytes in, events out. The events are put together to the answer that would have come whole.

    Content and calls are counted apart on this wire; here a block's index is its place among all of them, as they came.
    """

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._reply: dict[str, Any] = {}
        self._message: dict[str, Any] | None = None
        self._parts: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._pieces: dict[str, list[str]] = {}
        self._open: set[str] = set()
        self._indexes: dict[str, int] = {}
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
                self._take(frame.data, frame.event, events)
        except FramingError as error:
            self._fail("bad_event", str(error), events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        if not self._failed:
            for frame in self._splitter.close():
                self._take(frame.data, frame.event, events)
        if not self._failed and not self._ended:
            tail = self._splitter.tail[:4096].decode("utf-8", "replace")
            self._fail("stream_incomplete", "the stream ended before the message did", events, tail or None)
        return events

    def _take(self, data: bytes, event: str | None, events: list[StreamEvent]) -> None:
        if self._ended or self._failed:
            return
        if data.strip() in (b"[DONE]", b'"[DONE]"'):
            self._fail("stream_incomplete", "the stream ended before the message did", events)
            return
        try:
            wire = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fail("bad_event", "an event that is not JSON", events)
            return
        try:
            self._take_event(an_object(wire, "event"), event, events)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)

    def _take_event(self, wire: dict[str, Any], event: str | None, events: list[StreamEvent]) -> None:
        kind = wire.get("type") or event
        if kind == "error" or (kind is None and isinstance(wire.get("message"), str)):
            events.append(StreamError(read_error(None, {}, wire)))
            self._failed = True
            return
        handler = _HANDLERS.get(str(kind))
        if handler is None:
            return  # of a newer version
        if self._message is None and kind != "message-start":
            raise FormatError(f"{kind} before message-start", where="event")
        handler(self, wire, events)

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._failed = True

    def _message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._message is not None:
            raise FormatError("message-start came a second time", where="event")
        self._reply = {"id": wire["id"]} if "id" in wire else {}
        self._message = dict(an_object(_delta(wire).get("message"), "message-start"))
        if self._message.get("content") or self._message.get("tool_calls") or self._message.get("tool_plan"):
            raise FormatError("a message begins empty", where="message-start")
        a_list(self._message.get("citations") or [], "message-start")
        events.append(MessageStart(None))

    def _content_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._parts)
        self._parts[index] = dict(an_object(_delta_part(wire, "content"), "content-start"))
        self._open.add(f"content {index}")
        place = self._index(f"content {index}")
        self._say(place, self._parts[index], events)

    def _content_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = self._open_index("content", wire)
        delta = an_object(_delta_part(wire, "content"), "content-delta")
        for key in ("text", "thinking"):
            if isinstance(delta.get(key), str):
                self._pieces.setdefault(f"content {index} {key}", []).append(delta[key])
        self._say(self._index(f"content {index}"), {**delta, "type": self._parts[index].get("type")}, events)

    def _say(self, place: int, part: dict[str, Any], events: list[StreamEvent]) -> None:
        match part:
            case {"type": "text", "text": str(text)} if text:
                events.append(TextDelta(place, text))
            case {"type": "thinking", "thinking": str(text)} if text:
                events.append(ThinkingDelta(place, text, None, {"dialect": NAME, "form": "thinking"}))

    def _content_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = self._open_index("content", wire)
        self._open.remove(f"content {index}")
        part = self._parts[index]
        for key in ("text", "thinking"):
            self._join(part, key, f"content {index} {key}")
        place, block = self._index(f"content {index}"), _read_part(part)
        match block:
            case TextBlock(provider_raw=raw) if part.get("type") == "text":
                events.append(TextDelta(place, "", raw))
            case ThinkingBlock(provider_raw=raw):
                events.append(ThinkingDelta(place, "", None, raw))
            case _:
                events.append(BlockComplete(place, block))

    def _plan_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        text = _delta_part(wire, "tool_plan")
        if isinstance(text, str) and text:
            self._pieces.setdefault("plan", []).append(text)
            events.append(TextDelta(self._index("plan"), text, {"dialect": NAME, "form": "tool_plan"}))

    def _call_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._calls)
        call = dict(an_object(_delta_part(wire, "tool_calls"), "tool-call-start"))
        function = call["function"] = dict(an_object(call.get("function"), "tool-call-start"))
        self._calls[index] = call
        self._open.add(f"call {index}")
        place, block = self._index(f"call {index}"), _read_call(call, "tool-call-start", self._conversation)
        events.append(ToolUseStart(place, block.id, block.name))
        if function.get("arguments"):
            events.append(ToolUseInputDelta(place, function["arguments"]))

    def _call_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = self._open_index("call", wire)
        delta = an_object(_delta_part(wire, "tool_calls"), "tool-call-delta")
        text = an_object(delta.get("function"), "tool-call-delta").get("arguments")
        if isinstance(text, str) and text:
            self._pieces.setdefault(f"call {index}", []).append(text)
            events.append(ToolUseInputDelta(self._index(f"call {index}"), text))

    def _call_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = self._open_index("call", wire)
        self._open.remove(f"call {index}")
        self._join(self._calls[index]["function"], "arguments", f"call {index}")
        block = _read_call(self._calls[index], "tool-call-end", Conversation())
        events.append(ToolUseEnd(self._index(f"call {index}"), block.provider_raw))

    def _citation(self, wire: dict[str, Any], _events: list[StreamEvent]) -> None:
        if self._message is not None:
            self._message["citations"] = [*(self._message.get("citations") or []), _delta_part(wire, "citations")]

    def _message_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        delta = _delta(wire)
        still_open = sorted(what for what in self._open if what.startswith("content"))
        if still_open:
            raise FormatError(f"message-end while {still_open[0]} is open", where="event")
        if delta.get("finish_reason") is None:
            self._fail("stream_incomplete", "the message ended without a reason", events)
            return
        message = dict(self._message or {})
        self._join(message, "tool_plan", "plan")
        if self._parts:
            message["content"] = list(self._parts.values())
        if self._calls:
            message["tool_calls"] = list(self._calls.values())
        whole = read_reply({**self._reply, "message": message, **delta})
        if whole.usage is not None:
            events.append(UsageUpdate(whole.usage))
        if whole.fault is not None:
            events.append(StreamError(whole.fault, whole.provider_raw))
        else:
            events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))
        self._ended = True

    def _join(self, whole: dict[str, Any], key: str, what: str) -> None:
        """Put the pieces of a text behind what it began with."""
        if what in self._pieces:
            begun = whole.get(key)
            whole[key] = "".join([begun if isinstance(begun, str) else "", *self._pieces.pop(what)])

    def _index(self, what: str) -> int:
        return self._indexes.setdefault(what, len(self._indexes))

    def _open_index(self, what: str, wire: dict[str, Any]) -> int:
        index = wire.get("index")
        if type(index) is not int or f"{what} {index}" not in self._open:
            raise FormatError(f"{wire.get('type')} for {what} {index}, which is not open", where="event")
        return index


_HANDLERS: Final = {
    "message-start": StreamReader._message_start,
    "content-start": StreamReader._content_start,
    "content-delta": StreamReader._content_delta,
    "content-end": StreamReader._content_end,
    "tool-plan-delta": StreamReader._plan_delta,
    "tool-call-start": StreamReader._call_start,
    "tool-call-delta": StreamReader._call_delta,
    "tool-call-end": StreamReader._call_end,
    "citation-start": StreamReader._citation,
    "message-end": StreamReader._message_end,
}


def _delta(wire: dict[str, Any]) -> dict[str, Any]:
    return an_object(wire.get("delta"), str(wire.get("type")))


def _delta_part(wire: dict[str, Any], key: str) -> Any:
    return an_object(_delta(wire).get("message"), str(wire.get("type"))).get(key)


def _next_index(wire: dict[str, Any], begun: Mapping[int, Any]) -> int:
    index = wire.get("index")
    if type(index) is not int or index < 0 or (begun and index <= max(begun)):
        raise FormatError(f"{wire.get('type')} for {index}, which cannot begin here", where="event")
    return index


def stream_reader(framing: str | None = None) -> StreamReader:
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out, in the order in which this API sends them."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the message has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        written = _written_events(fold(self._events))
        return b"".join(sse_frame(wire, wire["type"]) for wire in written) + b"data: [DONE]\n\n"


def _written_events(reply: Reply) -> Iterator[dict[str, Any]]:
    wire = write_reply(reply).wire
    message: dict[str, Any] = wire["message"]
    if isinstance(message.get("content"), str):
        message = {**message, "content": [{"type": "text", "text": message["content"]}]}
    begun = {**message, **{key: type(message[key])() for key in _GROWING if message.get(key)}}
    start = {"id": wire["id"]} if "id" in wire else {}
    yield {**start, "type": "message-start", "delta": {"message": begun}}
    for index, part in enumerate(message.get("content") or []):
        yield from _written_part_events(index, part)
    if message.get("tool_plan"):
        yield {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": message["tool_plan"]}}}
    for index, call in enumerate(message.get("tool_calls") or []):
        yield from _written_call_events(index, call)
    for index, citation in enumerate(message.get("citations") or []):
        yield {"type": "citation-start", "index": index, "delta": {"message": {"citations": citation}}}
        yield {"type": "citation-end", "index": index}
    end = {key: value for key, value in wire.items() if key not in ("id", "message")}
    yield {"type": "message-end", "delta": end}


_GROWING: Final = ("content", "tool_plan", "tool_calls", "citations")


def _written_part_events(index: int, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    key = part["type"] if part.get("type") in ("text", "thinking") else None
    begun = {**part, key: ""} if key is not None else part
    yield {"type": "content-start", "index": index, "delta": {"message": {"content": begun}}}
    if key is not None:
        yield {"type": "content-delta", "index": index, "delta": {"message": {"content": {key: part[key]}}}}
    yield {"type": "content-end", "index": index}


def _written_call_events(index: int, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    function = call["function"]
    begun = {**call, "function": {**function, "arguments": ""}} if function.get("arguments") else call
    yield {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": begun}}}
    if function.get("arguments"):
        delta = {"function": {"arguments": function["arguments"]}}
        yield {"type": "tool-call-delta", "index": index, "delta": {"message": {"tool_calls": delta}}}
    yield {"type": "tool-call-end", "index": index}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)


# --- error -----------------------------------------------------------------------------------------------------------

_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})
_OVERFLOW: Final = ("too many tokens", "context length", "context window", "token limit", "too long")


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side: a sentence, and the id of the request."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = None
    error = body if isinstance(body, dict) else {}
    message = text_or_none(error.get("message")) or text_or_none(error.get("error")) or "no message"
    code, error_class = _by_status(status)
    if status in (None, 400, 422) and any(sign in message.lower() for sign in _OVERFLOW):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return Fault(
        code=code,
        message=message,
        error_class=error_class,
        retryable=error_class in _RETRYABLE,
        retry_after_s=retry_after_s(headers),
        status=status,
        provider=NAME,
        request_id=text_or_none(error.get("id")),
    )


def _by_status(status: int | None) -> tuple[str, ErrorClass]:
    match status:
        case 401 | 402 | 403 | 498:  # 498: an invalid token
            return "unauthorized", ErrorClass.AUTH
        case 404:
            return "not_found", ErrorClass.INVALID_REQUEST
        case 408 | 504:
            return "timeout", ErrorClass.NETWORK
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT
        case 499:
            return "cancelled", ErrorClass.CANCELLED
        case 503:
            return "overloaded", ErrorClass.RATE_LIMIT
        case int() if 400 <= status < 500:
            return "invalid_request", ErrorClass.INVALID_REQUEST
        case _:  # in a stream there is no status, and the model was already running
            return "server_error", ErrorClass.SERVER_ERROR


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    wire = {"id": fault.request_id} if fault.request_id else {}
    return Written({**wire, "message": fault.message})


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
