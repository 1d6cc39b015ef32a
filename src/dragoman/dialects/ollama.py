"""Ollama chat, ``/api/chat``: https://docs.ollama.com/api/chat; the shapes are those of recorded exchanges.

A message is one text, one reasoning, a list of pictures and a list of calls; the order between them is not said. Most
calls have no id: their ids here are made from their name and position, and a result finds its call by the tool's name,
else as the oldest that has no answer yet. A stream is the same object a line, and ``done`` ends it, often without a
reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.conversation import Conversation, a_list, an_object
from dragoman.dialects.parts.framing import FramingError, json_line, splitter, sse_frame
from dragoman.dialects.parts.headers import retry_after_s
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import count_of, integer_or_none, number_or_none, text_or_none, texts_of
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
    ProviderRaw,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)

NAME: Final = "ollama"
STOP_REASONS: Final = {"stop": StopReason.END_TURN, "length": StopReason.MAX_TOKENS}
_APART: Final = ("messages", "tools")  # parts of a request that are read one by one
_LEVELS: Final = ("low", "medium", "high")  # how much to think, for the models that take more than yes and no
_NO_TIME: Final = "1970-01-01T00:00:00Z"  # the wire wants to know when; a reply does not
_NO_INPUT: Final = {"type": "object", "properties": {}}  # the schema of a tool that came without one
_OWN: Final[ProviderRaw] = {"dialect": NAME, "own": True}  # reasoning of ours: there is no signature to tell it by
_PICTURES: Final = {  # how the bytes of a picture begin, in base64: the wire does not say what kind it is
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "Qk": "image/bmp",
}


# --- request ---------------------------------------------------------------------------------------------------------


def read_request(wire: Any) -> Request:
    """A request as ``/api/chat`` takes it."""
    body = an_object(wire, "$")
    if "messages" not in body:
        raise FormatError("a request has messages", where="$.messages")
    conversation, calls = Conversation(), _Calls()
    for index, message in enumerate(a_list(body["messages"] or [], "$.messages")):
        _read_message(an_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", conversation, calls)
    tools = a_list(body.get("tools") or [], "$.tools")
    model = body.get("model")
    request = Request(
        model=model if isinstance(model, str) else None,
        messages=tuple(conversation.messages),
        tools=tuple(_read_tool(an_object(tool, f"$.tools[{index}]")) for index, tool in enumerate(tools)),
        options=_read_options(body),
    )
    rest = {key: value for key, value in body.items() if key not in _APART}
    empty = {key: body[key] for key in _APART if key in body and not body[key]}
    form = None if "stream" in body else "implicit"
    natural = _written_options(request, form)
    return request.replace(provider_raw=noted(NAME, natural, rest, empty=empty or None, form=form))


def write_request(request: Request) -> Written:
    """The request as ``/api/chat`` takes it, and what it cannot take."""
    losses = _lost_options(request.options)
    notes = notes_of(request.provider_raw, NAME)
    top = restored(_written_options(request, notes.get("form")), notes.get("residue"))
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = _written_messages(request.messages, losses)
    tools = [written for tool in request.tools if (written := _written_tool(tool, losses)) is not None]
    if tools:
        wire["tools"] = tools
    wire.update((key, value) for key, value in notes.get("empty", {}).items() if not wire.get(key))
    wire.update(top)
    if wire.get("think") is True and request.options.reasoning is not None and request.options.reasoning.effort:
        losses.append(Loss("", "", "reasoning.effort", NAME, "this API knows no such level; it is told to think"))
    return Written(wire, tuple(losses))


class _Calls:
    """The calls so far: what they are named on the wire, and which of them still wait for their results."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str | None]] = {}
        self._open: dict[str, str] = {}

    def add(self, blocks: Iterable[ContentBlock]) -> None:
        """The calls among these blocks."""
        for block in blocks:
            if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
                self._known[block.id] = (block.name, _written_call(block).get("id"))
                self._open[block.id] = block.name

    def find(self, call_id: str) -> tuple[str, str | None] | None:
        """The name and, if it has one, the id that a call has on the wire."""
        return self._known.get(call_id)

    def waiting(self, name: str | None) -> str | None:
        """The oldest call of that name without a result; else the oldest of any name."""
        return next((call_id for call_id, named in self._open.items() if named == name), next(iter(self._open), None))

    def answered(self, call_id: str) -> None:
        """A call that has its result."""
        self._open.pop(call_id, None)


def _read_message(wire: dict[str, Any], where: str, conversation: Conversation, calls: _Calls) -> None:
    role = wire.get("role")
    if role == "tool":
        result = _read_result(wire, where, conversation, calls)
        conversation.add(Role.TOOL, [result], answers=result.tool_use_id)
        return
    if role not in ("user", "assistant", "system"):
        raise FormatError(f"a role is user, assistant, system or tool, not {role!r}", where=f"{where}.role")
    blocks = _read_blocks(wire, where, conversation, f"{len(conversation.messages)}#")
    if not blocks and role != "assistant":
        blocks = [TextBlock("")]
    calls.add(blocks)
    form = _form(wire)
    conversation.add(Role(role), blocks, noted(NAME, _natural_message(role, blocks, form), wire, form=form))


def _read_result(wire: dict[str, Any], where: str, conversation: Conversation, calls: _Calls) -> ToolResultBlock:
    provider_id, name = (
        text_or_none(wire.get("tool_call_id")),
        text_or_none(wire.get("tool_name")) or text_or_none(wire.get("name")),
    )
    call_id = conversation.answered_id(provider_id) if provider_id else calls.waiting(name)
    call_id = call_id or conversation.call_id(f"{len(conversation.messages)}#{name}")  # it answers nothing that we know
    calls.answered(call_id)
    blocks = _read_blocks({key: wire[key] for key in ("content", "images") if key in wire}, where, conversation, "")
    result = ToolResultBlock(call_id, tuple(blocks))
    note, form = provider_id if provider_id != call_id else None, _form(wire)
    natural = _natural_result(result, calls, note, form)
    return result.replace(provider_raw=noted(NAME, natural, wire, id=note, form=form))


def _natural_result(
    result: ToolResultBlock, calls: _Calls, provider_id: str | None, form: str | None
) -> dict[str, Any]:
    wire = _natural_message("tool", _sayable(result.content), form)
    known = calls.find(result.tool_use_id)
    if known is None:
        return {**wire, "tool_call_id": provider_id or spell(result.tool_use_id, AS_IT_IS)}
    name, known_id = known
    return {**wire, "tool_name": name, **({"tool_call_id": known_id} if known_id is not None else {})}


def _written_messages(messages: tuple[Message, ...], losses: list[Loss]) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    calls = _Calls()
    for message in messages:
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        wire.extend(_written_result(result, calls, message, losses) for result in results)
        others = [block for block in message.content if not isinstance(block, ToolResultBlock)]
        blocks = _sayable(others, message, losses)
        calls.add(blocks)
        if blocks or not message.content:  # else nothing of it can be said here; the losses name it
            notes = notes_of(message.metadata.provider_raw, NAME)
            natural = _natural_message(message.role.value, blocks, notes.get("form"))
            wire.append(restored(natural, notes.get("residue")))
    return wire


def _written_result(result: ToolResultBlock, calls: _Calls, message: Message, losses: list[Loss]) -> dict[str, Any]:
    _sayable(result.content, message, losses)
    if result.is_error:
        reason = "that a tool failed; what it said about it is kept"
        losses.append(Loss(message.session_id, message.id, "is_error", NAME, reason))
    notes = notes_of(result.provider_raw, NAME)
    natural = _natural_result(result, calls, notes.get("id"), notes.get("form"))
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
    options = body.get("options")
    options = options if isinstance(options, dict) else {}
    limit, stop = integer_or_none(options.get("num_predict")), options.get("stop")
    return Options(
        max_output_tokens=limit if limit is not None and limit > 0 else None,  # -1: no limit, -2: fill the context
        temperature=number_or_none(options.get("temperature")),
        top_p=number_or_none(options.get("top_p")),
        top_k=integer_or_none(options.get("top_k")),
        stop_sequences=texts_of([stop] if isinstance(stop, str) else stop),
        seed=integer_or_none(options.get("seed")),
        presence_penalty=number_or_none(options.get("presence_penalty")),
        frequency_penalty=number_or_none(options.get("frequency_penalty")),
        response_format=_read_format(body.get("format")),
        reasoning=_read_reasoning(body.get("think")),
        stream=body.get("stream") is not False,  # it answers in pieces unless told otherwise
    )


def _read_format(asked: Any) -> ResponseFormat | None:
    if isinstance(asked, dict):
        return ResponseFormat("json_schema", asked)
    return ResponseFormat("json") if asked == "json" else None


def _read_reasoning(think: Any) -> Reasoning | None:
    if isinstance(think, bool):
        return Reasoning(enabled=think)
    return Reasoning(effort=think) if isinstance(think, str) and think else None


def _written_options(request: Request, form: str | None) -> dict[str, Any]:
    options = request.options
    wire: dict[str, Any] = {"model": request.model} if request.model is not None else {}
    inner: dict[str, Any] = {
        key: value
        for key, value in (
            ("num_predict", options.max_output_tokens),
            ("temperature", options.temperature),
            ("top_p", options.top_p),
            ("top_k", options.top_k),
            ("stop", list(options.stop_sequences) or None),
            ("seed", options.seed),
            ("presence_penalty", options.presence_penalty),
            ("frequency_penalty", options.frequency_penalty),
        )
        if value is not None
    }
    if inner:
        wire["options"] = inner
    if options.response_format is not None and options.response_format.kind != "text":
        wire["format"] = options.response_format.json_schema or "json"
    think = _written_think(options.reasoning)
    if think is not None:
        wire["think"] = think
    if form != "implicit" or options.stream is not True:
        wire["stream"] = options.stream is True
    return wire


def _written_think(reasoning: Reasoning | None) -> bool | str | None:
    if reasoning is None:
        return None
    if reasoning.enabled is False or reasoning.effort == "none":
        return False
    if reasoning.effort in _LEVELS:
        return reasoning.effort
    return True if reasoning.enabled or reasoning.effort or reasoning.budget_tokens is not None else None


def _lost_options(options: Options) -> list[Loss]:
    reasoning = options.reasoning or Reasoning()
    lost = {
        "tool_choice": options.tool_choice is not None and options.tool_choice.mode != "auto",
        "parallel_tool_calls": options.parallel_tool_calls is False,
        "reasoning.budget_tokens": reasoning.budget_tokens is not None,
        "service_tier": options.service_tier is not None,
        "user": options.user is not None,
    }
    return [Loss("", "", name, NAME, "this API has no such option") for name, is_lost in lost.items() if is_lost]


# --- blocks ----------------------------------------------------------------------------------------------------------


def _read_blocks(wire: dict[str, Any], where: str, conversation: Conversation, seed: str) -> list[ContentBlock]:
    """What a message says: its reasoning, its text, its pictures and its calls."""
    blocks: list[ContentBlock] = []
    thinking, content = _said(wire, "thinking", where), _said(wire, "content", where)
    if thinking:
        blocks.append(ThinkingBlock(thinking, provider_raw=dict(_OWN)))
    if content:
        blocks.append(TextBlock(content))
    for index, image in enumerate(a_list(wire.get("images") or [], f"{where}.images")):
        if not isinstance(image, str):
            raise FormatError("a picture is base64 text", where=f"{where}.images[{index}]")
        blocks.append(ImageBlock(ImageSource("base64", image), _picture_type(image)))
    for index, call in enumerate(a_list(wire.get("tool_calls") or [], f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{index}]"
        blocks.append(_read_call(an_object(call, place), place, conversation, f"{seed}{index}"))
    return blocks


def _said(wire: dict[str, Any], key: str, where: str) -> str:
    value = wire.get(key)
    if value is not None and not isinstance(value, str):
        raise FormatError(f"text belongs here, not {type(value).__name__}", where=f"{where}.{key}")
    return value or ""


def _picture_type(data: str) -> str:
    return next((kind for beginning, kind in _PICTURES.items() if data.startswith(beginning)), "image/*")


def _read_call(
    wire: dict[str, Any], where: str, conversation: Conversation, seed: str
) -> ToolUseBlock | InvalidToolUseBlock:
    function = an_object(wire.get("function"), f"{where}.function")
    name, provider_id = function.get("name"), wire.get("id")
    if not isinstance(name, str):
        raise FormatError("a call has the name of its tool", where=f"{where}.function.name")
    is_named = isinstance(provider_id, str) and provider_id != ""
    call_id = conversation.call_id(str(provider_id) if is_named else f"{seed}#{name}")
    value, reason = _read_arguments(function.get("arguments"))
    block: ToolUseBlock | InvalidToolUseBlock
    if reason is None:
        block = ToolUseBlock(call_id, name, value)
    else:
        block = InvalidToolUseBlock(call_id, name, _arguments_text(function.get("arguments")), reason)
    note = str(provider_id) if is_named and provider_id != call_id else None
    form = None if is_named else "anonymous"
    return block.replace(provider_raw=noted(NAME, _natural_call(block, note, form), wire, id=note, form=form))


def _read_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """The input of a call, or why there is none. Some servers write it as a text, and none at all as an empty one."""
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = read_json(arguments, OWN)
        except JsonError as error:
            return {}, str(error)
    if isinstance(arguments, dict):
        return arguments, None
    if arguments is None or isinstance(arguments, str):
        return {}, None
    return {}, f"a tool's input is a JSON object, not {type(arguments).__name__}"


def _arguments_text(arguments: Any) -> str:
    """The input as raw text, as it travels in events."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _form(wire: dict[str, Any]) -> str | None:
    return None if "content" in wire else "absent"


def _natural_message(role: str, blocks: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    """What we would write for a message if nobody had noted anything about it."""
    texts: list[str] = []
    thoughts: list[str] = []
    images: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case TextBlock(text):
                texts.append(text)
            case ThinkingBlock(text):
                thoughts.append(text)
            case ImageBlock(source):
                images.append(source.data)
            case ToolUseBlock() | InvalidToolUseBlock():
                calls.append(_written_call(block))
    wire: dict[str, Any] = {"role": role}
    if texts or form != "absent":
        wire["content"] = "\n".join(texts)
    if thoughts:
        wire["thinking"] = "\n".join(thoughts)
    if images:
        wire["images"] = images
    if calls:
        wire["tool_calls"] = calls
    return wire


def _written_call(block: ToolUseBlock | InvalidToolUseBlock) -> dict[str, Any]:
    notes = notes_of(block.provider_raw, NAME)
    made: dict[str, Any] = restored(_natural_call(block, notes.get("id"), notes.get("form")), notes.get("residue"))
    return made


def _natural_call(
    block: ToolUseBlock | InvalidToolUseBlock, provider_id: str | None, form: str | None
) -> dict[str, Any]:
    wire: dict[str, Any] = {} if form == "anonymous" else {"id": provider_id or spell(block.id, AS_IT_IS)}
    value = block.input if isinstance(block, ToolUseBlock) else {"invalid_input": block.input_text}
    return {**wire, "function": {"name": block.name, "arguments": value}}


def _sayable(
    blocks: Iterable[ContentBlock], message: Message | None = None, losses: list[Loss] | None = None
) -> list[ContentBlock]:
    """The blocks that this wire can carry; the others become losses."""
    kept: list[ContentBlock] = []
    for block in blocks:
        reason = _cannot_say(block)
        if reason is None:
            kept.append(block)
        elif losses is not None:
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
            return None if source.kind == "base64" else "this API takes the bytes of a picture, not where they are"
        case _:
            return "this API takes no such block"


# --- reply -----------------------------------------------------------------------------------------------------------


def read_reply(wire: Any) -> Reply:
    """An answer of ``/api/chat``, whole."""
    body = an_object(wire, "$")
    message = an_object(body.get("message"), "$.message")
    content = _read_blocks(message, "$.message", Conversation(), f"{body.get('created_at')}#")
    is_cut = body.get("done") is False
    reply = Reply(
        content=tuple(content),
        stop_reason=StopReason.ERROR if is_cut else _read_stop(body.get("done_reason"), content),
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=_fault("stream_incomplete", "the answer says that it is not done") if is_cut else None,
    )
    form = _form(message)
    return reply.replace(provider_raw=noted(NAME, _natural_reply(reply, content, form), body, form=form))


def _read_stop(reason: Any, content: Iterable[ContentBlock]) -> StopReason:
    """Calls end with "stop" like everything else, and an answer may be done without a reason."""
    read = STOP_REASONS.get(str(reason), StopReason.UNKNOWN)
    calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content)
    return StopReason.TOOL_USE if calls and read is not StopReason.MAX_TOKENS else read


def write_reply(reply: Reply) -> Written:
    """An answer of ``/api/chat``, whole, and what it cannot say."""
    losses: list[Loss] = []
    content = _sayable(reply.content, None, losses)
    notes = notes_of(reply.provider_raw, NAME)
    return Written(restored(_natural_reply(reply, content, notes.get("form")), notes.get("residue")), tuple(losses))


def _natural_reply(reply: Reply, content: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    wire: dict[str, Any] = {"model": reply.model} if reply.model is not None else {}
    wire["created_at"] = _NO_TIME
    wire["message"] = _natural_message("assistant", content, form)
    wire["done"] = reply.fault is None
    if reply.stop_reason is StopReason.MAX_TOKENS:
        wire["done_reason"] = "length"
    elif reply.stop_reason not in (StopReason.UNKNOWN, StopReason.ERROR):
        wire["done_reason"] = "stop"
    if reply.usage is not None:
        usage = reply.usage
        cached = usage.cached_input_tokens + usage.cache_creation_input_tokens
        wire["prompt_eval_count"] = usage.input_tokens + cached
        wire["eval_count"] = usage.output_tokens
    return wire


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    prompt, output = body.get("prompt_eval_count"), body.get("eval_count")
    if prompt is None and output is None:
        return None
    return TokenUsage(input_tokens=count_of(prompt), output_tokens=count_of(output))


# --- stream ----------------------------------------------------------------------------------------------------------


class StreamReader:
    """Bytes in, events out. The lines are put together to the answer that would have come whole."""

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "ndjson")
        self._message: dict[str, Any] = {}
        self._pieces: dict[str, list[str]] = {}
        self._seed: str | None = None  # what the ids of nameless calls are made of: when the answer began
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
            self._fail("stream_incomplete", "the stream ended before the answer was done", events, tail or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._ended or self._failed:
            return
        if data.strip() == b"[DONE]":
            self._fail("stream_incomplete", "the stream ended before the answer was done", events)
            return
        try:
            # Only the input of a call needs the careful reader: two equal keys there must not go unnoticed.
            wire = read_json(data, OWN) if b'"tool_calls"' in data else msgspec.json.decode(data)
        except (JsonError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._fail("bad_event", f"a line that is not JSON: {error}", events)
            return
        try:
            self._take_line(an_object(wire, "line"), events)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)

    def _take_line(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if wire.get("error") is not None:
            events.append(StreamError(read_error(None, {}, wire)))
            self._failed = True
            return
        if self._seed is None:
            self._seed = f"{wire.get('created_at')}#"
            events.append(MessageStart(text_or_none(wire.get("model"))))
        if wire.get("message") is not None:
            self._take_message(an_object(wire["message"], "message"), events)
        if wire.get("done") is True:
            texts = {key: "".join(pieces) for key, pieces in self._pieces.items()}
            whole = read_reply({**wire, "message": {**self._message, **texts}})
            if whole.usage is not None:
                events.append(UsageUpdate(whole.usage))
            events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))
            self._ended = True

    def _take_message(self, message: dict[str, Any], events: list[StreamEvent]) -> None:
        for key, value in message.items():
            match key:
                case "thinking" | "content":
                    text = _said(message, key, "message")
                    self._message.setdefault(key, None)
                    if value is not None:
                        self._pieces.setdefault(key, []).append(text)
                    if text and key == "thinking":
                        events.append(ThinkingDelta(self._index(key), text, None, dict(_OWN)))
                    elif text:
                        events.append(TextDelta(self._index(key), text))
                case "tool_calls" if value is not None:
                    self._take_calls(a_list(value, "message.tool_calls"), events)
                case "images" if value:
                    blocks = _read_blocks({"images": value}, "message", self._conversation, "")
                    self._message["images"] = [*(self._message.get("images") or []), *value]
                    events.extend(BlockComplete(self._index(f"picture {len(self._indexes)}"), b) for b in blocks)
                case "tool_calls" | "images":
                    self._message.setdefault(key, value)
                case _:
                    self._message[key] = value

    def _take_calls(self, calls: list[Any], events: list[StreamEvent]) -> None:
        """Calls come whole."""
        known = self._message["tool_calls"] = self._message.get("tool_calls") or []
        for call in calls:
            where = f"message.tool_calls[{len(known)}]"
            block = _read_call(an_object(call, where), where, self._conversation, f"{self._seed}{len(known)}")
            index = self._index(where)
            events.append(ToolUseStart(index, block.id, block.name))
            events.append(ToolUseInputDelta(index, _arguments_text(call["function"].get("arguments"))))
            events.append(ToolUseEnd(index, block.provider_raw))
            known.append(call)

    def _index(self, what: str) -> int:
        return self._indexes.setdefault(what, len(self._indexes))

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        raw = {"dialect": NAME, "tail": tail} if tail else None
        events.append(StreamError(_fault(code, message), raw))
        self._failed = True


def _fault(code: str, message: str) -> Fault:
    error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
    return Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)


def stream_reader(framing: str | None = None) -> StreamReader:
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out: one object a line, never an empty line, and a message in each of them."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "ndjson", "sse"):
            raise LookupError(f"{NAME} streams are lines of JSON, not {framing!r}")
        self._frame = sse_frame if framing == "sse" else _line
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the answer has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        return b"".join(self._frame(wire) for wire in _written_lines(fold(self._events)))


def _line(wire: Any) -> bytes:
    return json_line(wire) + b"\n"


def _written_lines(reply: Reply) -> Iterator[dict[str, Any]]:
    """The reasoning, the text and the calls on lines of their own; everything else on the last one."""
    wire = write_reply(reply).wire
    message: dict[str, Any] = wire["message"]
    texts = {key: "" for key in ("content", "thinking") if isinstance(message.get(key), str)}
    rest = {key: value for key, value in message.items() if key != "tool_calls" or not value}
    head = {key: wire[key] for key in ("model", "created_at") if key in wire}
    for key in ("thinking", "content", "tool_calls"):
        if message.get(key):
            begun = {name: message[name] for name in ("role",) if name in message}
            empty = {"content": ""} if "content" in texts else {}
            yield {**head, "message": {**begun, **empty, key: message[key]}, "done": False}
    if reply.fault is not None:
        yield write_error(reply.fault).wire
    else:
        kept = {key: value for key, value in rest.items() if key != "thinking" or not value}
        yield {**wire, "message": {**kept, **({"content": ""} if "content" in texts else {})}}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)


# --- error -----------------------------------------------------------------------------------------------------------

_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})
_OVERFLOW: Final = ("context length", "context size", "context window", "input length exceeds", "prompt too long")


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side: a sentence, and hardly ever more."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = None
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    message = error if isinstance(error, str) and error else "no message"
    code, error_class = _by_status(status)
    if any(sign in message.lower() for sign in _OVERFLOW):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return Fault(
        code=code,
        message=message,
        error_class=error_class,
        retryable=error_class in _RETRYABLE,
        retry_after_s=retry_after_s(headers),
        status=status,
        provider=NAME,
    )


def _by_status(status: int | None) -> tuple[str, ErrorClass]:
    match status:
        case 401 | 403:
            return "unauthorized", ErrorClass.AUTH
        case 404:
            return "not_found", ErrorClass.INVALID_REQUEST
        case 408:
            return "timeout", ErrorClass.NETWORK
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT
        case 503:  # the queue of requests is full
            return "overloaded", ErrorClass.RATE_LIMIT
        case int() if 400 <= status < 500:
            return "invalid_request", ErrorClass.INVALID_REQUEST
        case _:  # in a stream there is no status, and the model was already running
            return "server_error", ErrorClass.SERVER_ERROR


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    return Written({"error": fault.message})


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
