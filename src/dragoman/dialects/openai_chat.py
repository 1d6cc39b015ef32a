"""OpenAI Chat Completions, and what other vendors made of it: https://platform.openai.com/docs/api-reference/chat.

System prompts stand inside the list, wherever they are; results are messages of their own. The arguments of a call are
a string there: what is no JSON object stays that string. Reasoning has many names: ``reasoning_content`` (DeepSeek),
``reasoning`` and ``reasoning_details`` (OpenRouter), ``thinking`` parts (Mistral); a block remembers where it stood.
Of several choices the first one is the reply.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.conversation import Conversation, a_list, an_object, with_ids_of_calls
from dragoman.dialects.parts.framing import FramingError, splitter, sse_frame
from dragoman.dialects.parts.headers import retry_after_s
from dragoman.dialects.parts.openai_chat_stream import (
    THINKING_FIELDS,
    Completion,
    Piece,
    Place,
    chunk_from,
    chunks_from,
    detail_text,
    origin_of_thinking,
    thinking_texts,
)
from dragoman.dialects.parts.residue import difference, noted, notes_of, restored
from dragoman.dialects.parts.scalars import (
    count_of,
    flag_or_none,
    integer_or_none,
    number_or_none,
    text_or_none,
    texts_of,
)
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
    AudioBlock,
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
    VideoBlock,
)

NAME: Final = "openai_chat"
STOP_REASONS: Final = {
    "stop": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "content_filter": StopReason.REFUSAL,
    "function_call": StopReason.TOOL_USE,
    "model_length": StopReason.MAX_TOKENS,  # Mistral
    "eos": StopReason.END_TURN,  # Together
}
_STOP_WORDS: Final = {
    StopReason.MAX_TOKENS: "length",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.REFUSAL: "content_filter",
    StopReason.ERROR: "error",
}
_UNUSABLE: Final = {"tool_input_truncated": "length", "tool_input_invalid": "tool_calls"}  # they end like any call
_NATIVE_LIMITS: Final = (
    "max_output_tokens",
    "max_tokens",
    "MAX_TOKENS",
    "length",
)  # where OpenRouter says another word
_FAILURES: Final = ("error", "insufficient_system_resource")  # OpenRouter and Mistral; DeepSeek
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_ROLES: Final = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_FORMATS: Final = {"text": "text", "json_object": "json"}
_TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast")  # what the official SDK takes
_APART: Final = ("messages", "tools", "functions")  # parts of a request that are read one by one
_LEGACY_ID: Final = "function_call:"  # calls had no ids once: a result named the function
_ABSENT: Final = object()
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
_DATA_URI: Final = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_AUDIO_TYPES: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_AUDIO_WORDS: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


# --- request ---------------------------------------------------------------------------------------------------------


def read_request(wire: Any) -> Request:
    """A request as Chat Completions takes it."""
    body = an_object(wire, "$")
    conversation = Conversation()
    for index, message in enumerate(a_list(body.get("messages"), "$.messages")):
        _read_message(an_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", conversation)
    tools = [_read_tool(an_object(tool, "$.tools")) for tool in a_list(body.get("tools") or [], "$.tools")]
    functions = a_list(body.get("functions") or [], "$.functions")
    tools.extend(_read_function(an_object(tool, "$.functions")) for tool in functions)
    spelled = _spelled(body)
    model = body.get("model")
    request = Request(
        model=model if isinstance(model, str) else None,
        messages=tuple(conversation.messages),
        tools=tuple(tools),
        options=_read_options(body, spelled),
    )
    rest = {key: value for key, value in body.items() if key not in _APART}
    empty = {key: body[key] for key in ("tools", "functions") if key in body and not body[key]}
    natural = _written_options(request, spelled)
    return request.replace(provider_raw=noted(NAME, natural, rest, spelled=spelled or None, empty=empty or None))


def write_request(request: Request) -> Written:
    """The request as Chat Completions takes it, and what it cannot take."""
    request = with_ids_of_calls(request, NAME)
    notes = notes_of(request.provider_raw, NAME)
    spelled = notes.get("spelled", {})
    losses = _lost_options(request.options, spelled)
    top = restored(_written_options(request, spelled), notes.get("residue"))
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = [made for message in request.messages for made in _written_messages(message, losses)]
    for tool in request.tools:
        made = _written_tool(tool, losses)
        legacy = isinstance(tool, ToolDefinition) and notes_of(tool.provider_raw, NAME).get("form") == "function"
        if made is not None:
            wire.setdefault("functions" if legacy else "tools", []).append(made)
    return Written({**notes.get("empty", {}), **wire, **top}, tuple(losses))


def _read_message(wire: dict[str, Any], where: str, conversation: Conversation) -> None:
    word = wire.get("role")
    if word in ("tool", "function"):
        result = _read_result(wire, where, conversation)
        conversation.add(Role.TOOL, [result], answers=result.tool_use_id)
        return
    role = _ROLES.get(str(word))
    if role is None:
        raise FormatError(f"a role is system, developer, user, assistant or tool, not {word!r}", where=f"{where}.role")
    blocks = [block for _, block in _read_blocks(wire, where, conversation, is_answer=role is Role.ASSISTANT)]
    if not blocks and wire.get("content") == "":
        blocks = [TextBlock("")]
    conversation.add(role, blocks, _message_notes(role, blocks, wire))


def _message_notes(role: Role, blocks: list[ContentBlock], wire: dict[str, Any], *, reply: bool = False) -> Any:
    """What to remember about a message: the form of its content, and what else stood in it."""
    notes: dict[str, Any] = {"role": "developer"} if wire.get("role") == "developer" else {}
    shown = _shown_again(blocks, wire)
    if shown:
        notes["shown"] = shown
    content = wire.get("content", _ABSENT)
    if isinstance(content, list) and (role is not Role.USER or len(content) < 2):
        notes["form"] = "list"
    elif content != _natural_message(role, blocks, notes, reply=reply)["content"]:
        forms = {_ABSENT: "absent", None: "null", "": "empty"}
        notes["form"] = forms.get(content) if not isinstance(content, list) else "list"
    return noted(NAME, _natural_message(role, blocks, notes, reply=reply), wire, **notes)


def _shown_again(blocks: list[ContentBlock], wire: dict[str, Any]) -> list[str]:
    """The fields that repeat the text of the reasoning details."""
    text = _detailed_text(blocks)
    return [key for key in THINKING_FIELDS if text and wire.get(key) == text]


def _detailed_text(blocks: Iterable[ContentBlock]) -> str:
    detailed = (b for b in blocks if isinstance(b, ThinkingBlock) and _place(b) == "reasoning_details")
    return "".join(block.text for block in detailed)


def _written_messages(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    """A message as it stands on the wire; several for several results, none if nothing of it can be said here."""
    if message.role is Role.TOOL:
        return [made for block in message.content for made in _written_results(block, message, losses)]
    notes = notes_of(message.metadata.provider_raw, NAME)
    blocks = []
    for block in message.content:
        reason = _cannot_say(block, message.role, is_own=notes.get("form") == "list")
        if reason is None:
            blocks.append(block)
        else:
            losses.append(Loss(message.session_id, message.id, block.type, NAME, reason))
    if message.content and not blocks:
        return []
    return [restored(_natural_message(message.role, blocks, notes), notes.get("residue"))]


def _written_results(block: ContentBlock, message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    if not isinstance(block, ToolResultBlock):
        losses.append(Loss(message.session_id, message.id, block.type, NAME, "a tool message holds results only"))
        return []
    notes = notes_of(block.provider_raw, NAME)
    sayable = []
    for part in block.content:
        reason = _cannot_say(part, Role.TOOL, is_own=notes.get("form") == "list")
        if reason is None:
            sayable.append(part)
        else:
            losses.append(Loss(message.session_id, message.id, part.type, NAME, reason))
    if block.is_error:
        reason = "this API cannot mark a result as failed; its text is kept"
        losses.append(Loss(message.session_id, message.id, block.type, NAME, reason))
    kept = block if len(sayable) == len(block.content) else block.replace(content=tuple(sayable))
    return [restored(_natural_result(kept, notes), notes.get("residue"))]


def _read_result(wire: dict[str, Any], where: str, conversation: Conversation) -> ToolResultBlock:
    provider_id = wire.get("tool_call_id")
    if wire["role"] == "function":
        provider_id = f"{_LEGACY_ID}{wire.get('name')}"
    if not isinstance(provider_id, str):
        raise FormatError("a result names the call that it answers", where=f"{where}.tool_call_id")
    blocks = [block for _, block in _read_parts(wire, where)]
    result = ToolResultBlock(conversation.answered_id(provider_id), tuple(blocks))
    content = wire.get("content", _ABSENT)
    notes: dict[str, Any] = {} if provider_id == result.tool_use_id else {"id": provider_id}
    if not isinstance(content, str):
        notes["form"] = "list" if isinstance(content, list) else "null" if content is None else "absent"
    return result.replace(provider_raw=noted(NAME, _natural_result(result, notes), wire, **notes))


def _natural_result(result: ToolResultBlock, notes: Mapping[str, Any]) -> dict[str, Any]:
    provider_id: str = notes.get("id", spell(result.tool_use_id, AS_IT_IS))
    wire: dict[str, Any] = {"role": "tool", "tool_call_id": provider_id}
    if provider_id.startswith(_LEGACY_ID):
        wire = {"role": "function", "name": provider_id.removeprefix(_LEGACY_ID)}
    parts = [_written_part(block) for block in result.content]
    content = _natural_content(parts, notes.get("form"), Role.TOOL)
    return wire if content is _ABSENT else {**wire, "content": content}


# --- tools -----------------------------------------------------------------------------------------------------------


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    function = wire.get("function")
    if wire.get("type", "function") != "function" or not isinstance(function, dict):
        return OpaqueTool(NAME, wire)
    tool = _definition(function)
    return tool.replace(provider_raw=noted(NAME, _natural_tool(tool), wire)) if tool else OpaqueTool(NAME, wire)


def _read_function(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    """A tool as it was written before there were any others."""
    tool = _definition(wire)
    if tool is None:
        raise FormatError("a function has a name and an object of parameters", where="$.functions")
    return tool.replace(provider_raw=noted(NAME, _natural_tool(tool)["function"], wire, form="function"))


def _definition(function: dict[str, Any]) -> ToolDefinition | None:
    name, description = function.get("name"), function.get("description")
    schema = function.get("parameters", _NO_PARAMETERS)
    if not isinstance(name, str) or not isinstance(schema, dict):
        return None
    return ToolDefinition(name, description if isinstance(description, str) else "", schema, SideEffects.EXECUTE)


def _natural_tool(tool: ToolDefinition) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": tool.input_schema}}


def _written_tool(tool: ToolDefinition | OpaqueTool, losses: list[Loss]) -> dict[str, Any] | None:
    if isinstance(tool, OpaqueTool):
        if tool.dialect == NAME:
            return tool.wire
        losses.append(Loss("", "", "tool", NAME, f"a tool that only {tool.dialect} understands"))
        return None
    notes = notes_of(tool.provider_raw, NAME)
    natural = _natural_tool(tool)
    made: dict[str, Any] = natural["function"] if notes.get("form") == "function" else natural
    made = restored(made, notes.get("residue"))
    return made


# --- options ---------------------------------------------------------------------------------------------------------


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
    if isinstance(body.get("service_tier"), str) and body["service_tier"] not in _TIERS:
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
        spelled.get("service_tier", "service_tier" if options.service_tier in _TIERS else ""): options.service_tier,
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
    if options.service_tier not in (None, *_TIERS) and "service_tier" not in spelled:
        losses.append(Loss("", "", "service_tier", NAME, "this API has no such tier"))
    reasoning = options.reasoning
    if reasoning is not None and "reasoning" not in spelled:
        if reasoning.budget_tokens is not None:
            losses.append(Loss("", "", "reasoning", NAME, "this API takes an effort, not a number of tokens"))
        elif reasoning.enabled is not None and reasoning.effort is None:
            losses.append(Loss("", "", "reasoning", NAME, "this API takes an effort, not a switch"))
    return losses


# --- blocks: reading -------------------------------------------------------------------------------------------------


def _read_blocks(
    message: dict[str, Any], where: str, conversation: Conversation, *, is_answer: bool, origin: str | None = None
) -> list[tuple[Place, ContentBlock]]:
    """Everything that a message says, each with its place: reasoning first, calls last."""
    if not is_answer:
        return _read_parts(message, where)
    placed = _read_thinking(message, origin or origin_of_thinking(message))
    placed.extend(_read_parts(message, where))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        placed.append((("refusal", 0), TextBlock(refusal, {"dialect": NAME, "at": "refusal"})))
    calls = message.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        placed.append((("tool_calls", index), _read_call(an_object(call, f"{where}.tool_calls"), conversation)))
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and isinstance(legacy.get("name"), str) and legacy["name"]:
        placed.append((("function_call", 0), _read_legacy_call(legacy, conversation)))
    return placed


def _read_thinking(message: dict[str, Any], origin: str | None) -> list[tuple[Place, ContentBlock]]:
    placed: list[tuple[Place, ContentBlock]] = []
    if origin in THINKING_FIELDS:
        text = message[origin]
        also = [key for key in THINKING_FIELDS if key != origin and message.get(key) == text]
        raw = {"dialect": NAME, "at": origin, **({"also": also} if also else {})}
        placed.append(((origin, 0), ThinkingBlock(text, None, raw)))
    details = message.get("reasoning_details")
    if isinstance(details, list) and all(isinstance(detail, dict) for detail in details):
        for index, detail in enumerate(details):
            block = _read_detail(detail, is_repeated=origin in THINKING_FIELDS)
            placed.append((("reasoning_details", index), block))
    opaque = message.get("reasoning_opaque")
    if isinstance(opaque, str) and opaque:
        raw = {"dialect": NAME, "at": "reasoning_opaque"}
        placed.append((("reasoning_opaque", 0), RedactedThinkingBlock(opaque, raw)))
    return placed


def _read_detail(wire: dict[str, Any], *, is_repeated: bool) -> ContentBlock:
    """One of OpenRouter's reasoning details. Words that another field has said already stay in their wire form."""
    block: ContentBlock
    form = None
    match wire:
        case {"type": "reasoning.text"} if not is_repeated:
            block = ThinkingBlock(detail_text(wire), text_or_none(wire.get("signature")))
        case {"type": "reasoning.summary"} if not is_repeated:
            block, form = ThinkingBlock(detail_text(wire)), "summary"
        case {"type": "reasoning.encrypted", "data": str(data)}:
            block = RedactedThinkingBlock(data)
        case _:
            return OpaqueBlock(NAME, wire, {"dialect": NAME, "at": "reasoning_details"})
    natural = _natural_detail(block, form)
    return block.replace(provider_raw=noted(NAME, natural, wire, at="reasoning_details", form=form))


def _read_parts(message: dict[str, Any], where: str) -> list[tuple[Place, ContentBlock]]:
    content = message.get("content")
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [(("content", 0), TextBlock(content))]
    parts = enumerate(a_list(content, f"{where}.content"))
    return [(("content", at), _read_part(an_object(part, f"{where}.content[{at}]"))) for at, part in parts]


def _read_part(wire: dict[str, Any]) -> ContentBlock:
    """A part as we know it, with what is left over; else the whole of it, opaque."""
    block, notes = _known_part(wire)
    if block is None:
        return OpaqueBlock(NAME, wire)
    return block.replace(provider_raw=noted(NAME, _natural_part(block, notes), wire, **notes))


def _known_part(wire: dict[str, Any]) -> tuple[ContentBlock | None, dict[str, Any]]:
    match wire:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text), {}
        case {"type": "refusal", "refusal": str(text)}:
            return TextBlock(text), {"form": "refusal"}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return ImageBlock(*_source(url, "image/*")), {}
        case {"type": "image_url", "image_url": str(url)}:
            return ImageBlock(*_source(url, "image/*")), {"form": "string"}
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(word)}}:
            return AudioBlock(ImageSource("base64", data), _AUDIO_TYPES.get(word, f"audio/{word}")), {}
        case {"type": "video_url", "video_url": {"url": str(url)}}:
            return VideoBlock(*_source(url, "video/*")), {}
        case {"type": "file", "file": {"file_data": str(url)} as file}:
            source, media_type = _source(url, "application/pdf")
            is_other = source.kind == "url" or media_type != "application/pdf"
            return DocumentBlock(source, media_type, text_or_none(file.get("filename"))), {
                "form": "file"
            } if is_other else {}
        case {"type": "document_url", "document_url": str(url)}:
            name = text_or_none(wire.get("document_name"))
            return DocumentBlock(*_source(url, "application/pdf"), name), {"form": "document_url"}
        case {"type": "file_url", "file_url": {"url": str(url)}}:
            return DocumentBlock(*_source(url, "application/pdf")), {"form": "file_url"}
        case {"type": "thinking", "thinking": list()}:
            texts = thinking_texts(wire)
            if texts is None:
                return None, {}
            pieces = {"pieces": [len(text) for text in texts]} if len(texts) != 1 else {}
            return ThinkingBlock("".join(texts), text_or_none(wire.get("signature"))), {"at": "content", **pieces}
        case _:
            return None, {}


def _source(url: str, media_type: str) -> tuple[ImageSource, str]:
    inline = _DATA_URI.fullmatch(url)
    return (ImageSource("base64", inline[2]), inline[1]) if inline else (ImageSource("url", url), media_type)


def _read_call(wire: dict[str, Any], conversation: Conversation) -> ContentBlock:
    function, provider_id = wire.get("function"), text_or_none(wire.get("id"))
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return OpaqueBlock(NAME, wire, {"dialect": NAME, "at": "tool_calls"})
    call_id = conversation.call_id(provider_id or "")
    block, form = _call_from(call_id, function["name"], function.get("arguments"))
    notes = {"id": provider_id if provider_id != call_id else None, "form": form}
    return block.replace(provider_raw=noted(NAME, _natural_call(block, notes), wire, **notes))


def _read_legacy_call(wire: dict[str, Any], conversation: Conversation) -> ContentBlock:
    call_id = conversation.call_id(_LEGACY_ID + wire["name"])
    block, form = _call_from(call_id, wire["name"], wire.get("arguments"))
    natural = _natural_call(block, {"form": form})["function"]
    return block.replace(provider_raw=noted(NAME, natural, wire, at="function_call", form=form))


def _call_from(call_id: str, name: str, arguments: Any) -> tuple[ToolUseBlock | InvalidToolUseBlock, str | None]:
    """The call, if its arguments are a JSON object. No text at all is how vendors send no arguments."""
    if isinstance(arguments, dict):
        return ToolUseBlock(call_id, name, arguments), "object"
    if not isinstance(arguments, str | None):
        text = msgspec.json.encode(arguments).decode()
        return InvalidToolUseBlock(call_id, name, text, "the arguments are no string"), None
    try:
        value = read_json(arguments, OWN) if arguments and arguments.strip() else {}
        if not isinstance(value, dict):
            raise JsonError(f"a tool's input is a JSON object, not {type(value).__name__}")
        return ToolUseBlock(call_id, name, value), None
    except (JsonError, ValueError) as error:
        return InvalidToolUseBlock(call_id, name, arguments or "", str(error)), None


# --- blocks: writing -------------------------------------------------------------------------------------------------


def _cannot_say(block: ContentBlock, role: Role, *, is_own: bool) -> str | None:
    """Why this wire cannot carry a block in a message of that role; ``None`` if it can.

    Only users may send media. Some vendors allow more: what came so, goes so.
    """
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    match block:
        case TextBlock():
            return None
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else f"a block that only {dialect} understands"
        case ThinkingBlock() | RedactedThinkingBlock():
            return None if "at" in notes and role is Role.ASSISTANT else "reasoning of another origin"
        case ToolUseBlock() | InvalidToolUseBlock():
            return None if role is Role.ASSISTANT else "only an assistant calls tools here"
        case ImageBlock() | AudioBlock() | VideoBlock() | DocumentBlock():
            if role is not Role.USER and not is_own:
                return f"only users send such blocks here, not a message of role {role.value}"
            return _cannot_send(block, notes.get("form"))
        case _:
            return "this API takes no such block"


def _cannot_send(block: ImageBlock | AudioBlock | VideoBlock | DocumentBlock, form: str | None) -> str | None:
    if block.source.kind == "file_ref":
        return "a file of the workspace, which this API cannot read"
    if block.source.kind == "url" and isinstance(block, AudioBlock | DocumentBlock) and form is None:
        return "this API takes no such block by its address"
    return None


def _place(block: ContentBlock) -> str:
    """The key of the message under which a block stands."""
    default = "tool_calls" if isinstance(block, ToolUseBlock | InvalidToolUseBlock) else "content"
    return str(notes_of(getattr(block, "provider_raw", None), NAME).get("at", default))


def _natural_message(
    role: Role, blocks: Iterable[ContentBlock], notes: Mapping[str, Any], *, reply: bool = False
) -> dict[str, Any]:
    """What we would write for a message, its blocks with what was noted about them."""
    blocks = tuple(blocks)
    parts, details, calls, fields = [], [], [], dict[str, Any]()
    for block in blocks:
        match _place(block):
            case "content":
                parts.append(_written_part(block))
            case "reasoning_details":
                details.append(_written_detail(block))
            case "tool_calls":
                calls.append(_written_call(block))
            case "function_call":
                fields["function_call"] = _written_call(block)
            case field:
                words = block.data if isinstance(block, RedactedThinkingBlock) else getattr(block, "text", "")
                for key in (field, *notes_of(getattr(block, "provider_raw", None), NAME).get("also", ())):
                    fields[key] = fields.get(key, "") + words
    fields.update((key, _detailed_text(blocks)) for key in notes.get("shown", ()) if details)
    content = _natural_content(parts, notes.get("form"), role, reply=reply)
    wire: dict[str, Any] = {"role": notes.get("role", role.value)}
    if content is not _ABSENT:
        wire["content"] = content
    wire.update(fields)
    if details:
        wire["reasoning_details"] = details
    return {**wire, "tool_calls": calls} if calls else wire


def _natural_content(parts: list[dict[str, Any]], form: str | None, role: Role, *, reply: bool = False) -> Any:
    """One text is a string, several parts are a list; a reply is always a string, unless it came as a list."""
    if not parts:
        empty: Any = {"absent": _ABSENT, "null": None, "empty": "", "list": []}
        return empty.get(form, None if role is Role.ASSISTANT else "")
    is_plain = all(set(part) == {"type", "text"} and part["type"] == "text" for part in parts)
    if form == "list" or not is_plain or (len(parts) > 1 and not reply):
        return parts
    return "".join(part["text"] for part in parts)


def _written_part(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: dict[str, Any] = restored(_natural_part(block, notes), notes.get("residue"))
    return made


def _natural_part(block: ContentBlock, notes: Mapping[str, Any]) -> dict[str, Any]:
    """What we would write for a part if nobody had noted more than its form."""
    form = notes.get("form")
    match block:
        case TextBlock(text):
            return {"type": "refusal", "refusal": text} if form == "refusal" else {"type": "text", "text": text}
        case ImageBlock(source, media_type):
            url = _url(source, media_type)
            return {"type": "image_url", "image_url": url if form == "string" else {"url": url}}
        case AudioBlock(source, media_type):
            word = _AUDIO_WORDS.get(media_type, media_type.removeprefix("audio/"))
            return {"type": "input_audio", "input_audio": {"data": source.data, "format": word}}
        case VideoBlock(source, media_type):
            return {"type": "video_url", "video_url": {"url": _url(source, media_type)}}
        case DocumentBlock():
            return _natural_document(block, form)
        case ThinkingBlock(text):
            texts = _cut(text, notes.get("pieces"))
            return {"type": "thinking", "thinking": [{"type": "text", "text": piece} for piece in texts]}
        case _:
            return {"type": "text", "text": f"[{block.type}]"}


def _natural_document(block: DocumentBlock, form: str | None) -> dict[str, Any]:
    url = _url(block.source, block.media_type)
    if form == "document_url":
        named = {"document_name": block.name} if block.name is not None else {}
        return {"type": "document_url", "document_url": url, **named}
    if form == "file_url":
        return {"type": "file_url", "file_url": {"url": url}}
    if form is None and block.media_type.startswith("text/"):  # files are PDFs here; a text can be said as one
        try:
            return {"type": "text", "text": base64.b64decode(block.source.data, validate=True).decode()}
        except (binascii.Error, ValueError):
            pass
    return {"type": "file", "file": {"filename": block.name or "document.pdf", "file_data": url}}


def _url(source: ImageSource, media_type: str) -> str:
    return source.data if source.kind == "url" else f"data:{media_type};base64,{source.data}"


def _cut(text: str, lengths: list[int] | None) -> list[str]:
    if lengths is None or sum(lengths) != len(text):
        return [text]
    ends = [sum(lengths[: count + 1]) for count in range(len(lengths))]
    return [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _written_detail(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: dict[str, Any] = restored(_natural_detail(block, notes.get("form")), notes.get("residue"))
    return made


def _natural_detail(block: ContentBlock, form: str | None) -> dict[str, Any]:
    match block:
        case ThinkingBlock(text, signature):
            if form == "summary":
                return {"type": "reasoning.summary", "summary": text}
            signed = {"signature": signature} if signature is not None else {}
            return {"type": "reasoning.text", "text": text, **signed}
        case RedactedThinkingBlock(data):
            return {"type": "reasoning.encrypted", "data": data}
        case _:
            return {"type": "reasoning.text", "text": ""}


def _written_call(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    natural = _natural_call(block, notes)
    made: dict[str, Any] = natural["function"] if notes.get("at") == "function_call" else natural
    made = restored(made, notes.get("residue"))
    return made


def _natural_call(block: ContentBlock, notes: Mapping[str, Any]) -> dict[str, Any]:
    arguments: Any = getattr(block, "input_text", "")
    if isinstance(block, ToolUseBlock):
        arguments = block.input if notes.get("form") == "object" else msgspec.json.encode(block.input).decode()
    call_id, name = getattr(block, "id", ""), getattr(block, "name", "")
    provider_id = notes.get("id")
    return {
        "id": provider_id if provider_id is not None else spell(call_id, AS_IT_IS),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


# --- reply -----------------------------------------------------------------------------------------------------------


def read_reply(wire: Any) -> Reply:
    """A completion as Chat Completions answers it; an error that came with HTTP 200 is a reply with a fault."""
    body = an_object(wire, "$")
    if not body.get("choices") and body.get("error"):
        fault = read_error(None, {}, body)
        raw = noted(NAME, write_error(fault).wire, body, form="error")
        return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)
    reply, _ = _reply_from(body, Conversation())
    return _judged(reply)


def _judged(reply: Reply) -> Reply:
    """A reply with a call that cannot be used has failed, the same way as ``fold`` finds it in a stream."""
    was_cut = reply.stop_reason is StopReason.MAX_TOKENS
    content = tuple(_without_silence(block) if was_cut else block for block in reply.content)
    unusable = next((block for block in content if isinstance(block, InvalidToolUseBlock)), None)
    if unusable is None or reply.fault is not None:
        return reply
    fault = Fault(
        code="tool_input_truncated" if was_cut else "tool_input_invalid",
        message=f"the input of a call of {unusable.name!r} cannot be used; it was not made",
        retryable=True,
    )
    return reply.replace(content=content, stop_reason=StopReason.ERROR, stop_sequence=None, fault=fault)


def _without_silence(block: ContentBlock) -> ContentBlock:
    """A call whose arguments had not begun when the limit was reached is not a call without arguments."""
    if not isinstance(block, ToolUseBlock) or block.input:
        return block
    written = _written_call(block)
    arguments = written.get("function", written).get("arguments")
    if isinstance(arguments, dict) or (arguments or "").strip():
        return block
    reason = "the output limit came before its input"
    return InvalidToolUseBlock(block.id, block.name, "", reason, block.provider_raw)


def write_reply(reply: Reply) -> Written:
    """A completion as Chat Completions answers it, and what it cannot say."""
    losses: list[Loss] = []
    notes = notes_of(reply.provider_raw, NAME)
    if notes.get("form") == "error" and reply.fault is not None and not reply.content:
        return Written(restored(write_error(reply.fault).wire, notes.get("residue")))
    message_notes = notes.get("message", {})
    blocks = []
    for block in reply.content:
        reason = _cannot_say(block, Role.ASSISTANT, is_own=message_notes.get("form") == "list")
        if reason is None:
            blocks.append(block)
        else:
            losses.append(Loss("", "", block.type, NAME, reason))
    others = [_with_calls(other, blocks, at) for at, other in enumerate(notes.get("others", ()))]
    natural = _natural_message(Role.ASSISTANT, _of_first(blocks, len(others)), message_notes, reply=True)
    message = restored(natural, message_notes.get("residue"))
    form = notes.get("form")
    choice = restored(_natural_choice(reply), notes.get("choice"))
    if form != "no message" or blocks:
        choice["message"] = message
    choices = [] if form == "no choice" and not blocks else [choice, *others]
    wire = restored(_natural_reply(reply), notes.get("residue"))
    return Written({**wire, "choices": choices}, tuple(losses))


def _reply_from(
    body: dict[str, Any], conversation: Conversation, origin: str | None = None, **known: Any
) -> tuple[Reply, list[tuple[Place, ContentBlock]]]:
    """The reply, and where on the wire each of its blocks stood."""
    choices = [an_object(choice, "$.choices") for choice in a_list(body.get("choices"), "$.choices")]
    choice = choices[0] if choices else {}
    message = choice.get("message")
    form = None if isinstance(message, dict) else "no message" if choices else "no choice"
    message = message if isinstance(message, dict) else {}
    placed = _read_blocks(message, "$.choices[0].message", conversation, is_answer=True, origin=origin)
    first = [block for _, block in placed]
    others = choices[1:]
    if all("index" not in choice for choice in choices):
        others = [_without_calls(other, at, conversation, placed) for at, other in enumerate(others)]
    blocks = [block for _, block in placed]
    stop_reason, stop_sequence = _stop(choice, blocks)
    fault = _failure(choice, body) if stop_reason is StopReason.ERROR else None
    reply = Reply(
        content=tuple(blocks),
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=fault,
    ).replace(**known)
    rest = {key: value for key, value in body.items() if key != "choices"}
    beside = {key: value for key, value in choice.items() if key != "message" or form == "no message"}
    raw = noted(
        NAME,
        _natural_reply(reply),
        rest,
        form=form,
        choice=difference(_natural_choice(reply), beside) if choices else None,
        message=_message_notes(Role.ASSISTANT, first, message, reply=True) if form is None else None,
        others=others or None,
    )
    return reply.replace(provider_raw=raw), placed


def _without_calls(
    choice: dict[str, Any], at: int, conversation: Conversation, placed: list[tuple[Place, ContentBlock]]
) -> dict[str, Any]:
    """Copilot cuts one answer into choices without an index, text and calls. The calls belong to the answer."""
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not calls or not isinstance(message, dict):
        return choice
    for index, call in enumerate(a_list(calls, f"$.choices[{at + 1}].message.tool_calls")):
        block = _read_call(an_object(call, f"$.choices[{at + 1}].message.tool_calls"), conversation)
        raw = {"dialect": NAME, **(getattr(block, "provider_raw", None) or {}), "choice": at}
        placed.append(((f"choices[{at + 1}]", index), block.replace(provider_raw=raw)))
    return {**choice, "message": {key: value for key, value in message.items() if key != "tool_calls"}}


def _with_calls(choice: dict[str, Any], blocks: Iterable[ContentBlock], at: int) -> dict[str, Any]:
    calls = [_written_call(block) for block in blocks if _choice_of(block) == at]
    return {**choice, "message": {**choice["message"], "tool_calls": calls}} if calls else choice


def _of_first(blocks: Iterable[ContentBlock], others: int) -> list[ContentBlock]:
    return [block for block in blocks if not 0 <= _choice_of(block) < others]


def _choice_of(block: ContentBlock) -> int:
    return int(notes_of(getattr(block, "provider_raw", None), NAME).get("choice", -1))


def _stop(choice: dict[str, Any], blocks: list[ContentBlock]) -> tuple[StopReason, str | None]:
    """Why it stopped. Vendors say ``stop`` beside calls and refusals, too."""
    word, matched = choice.get("finish_reason"), choice.get("stop_reason")  # the latter is vLLM's
    if word in _FAILURES:
        return StopReason.ERROR, None
    if choice.get("native_finish_reason") in _NATIVE_LIMITS:
        return StopReason.MAX_TOKENS, None
    reason = STOP_REASONS.get(str(word), StopReason.UNKNOWN)
    if _object(choice.get("finish_details")).get("type") == "max_tokens":  # the first models that could see
        reason = StopReason.MAX_TOKENS
    if reason not in (StopReason.END_TURN, StopReason.UNKNOWN):
        return reason, None
    if any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in blocks):
        return StopReason.TOOL_USE, None
    if any(_place(block) == "refusal" for block in blocks):
        return StopReason.REFUSAL, None
    if isinstance(matched, str) and matched and word == "stop":
        return StopReason.STOP_SEQUENCE, matched
    return reason, None


def _failure(choice: dict[str, Any], body: dict[str, Any]) -> Fault:
    error = choice.get("error") or body.get("error")
    if error:
        return read_error(None, {}, {"error": error})
    return Fault(
        code="overloaded" if choice.get("finish_reason") != "error" else "server_error",
        message=f"the model stopped with {choice.get('finish_reason')!r}",
        error_class=ErrorClass.SERVER_ERROR,
        retryable=True,
        provider=NAME,
    )


def _natural_reply(reply: Reply) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": "chatcmpl-dragoman", "object": "chat.completion", "created": 0}
    wire["model"] = reply.model or ""  # the wire demands one; not every provider says it
    if reply.usage is not None:
        wire["usage"] = _written_usage(reply.usage)
        if reply.usage.service_tier in _TIERS:
            wire["service_tier"] = reply.usage.service_tier
    return wire


def _natural_choice(reply: Reply) -> dict[str, Any]:
    code = reply.fault.code if reply.fault else ""
    word = _UNUSABLE.get(code) or _STOP_WORDS.get(reply.stop_reason, "stop")
    if word == "tool_calls" and any(_place(block) == "function_call" for block in reply.content):
        word = "function_call"
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": word}
    if reply.fault is None or code in _UNUSABLE:
        return choice
    return {**choice, "error": write_error(reply.fault).wire["error"]}


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """What it consumed. The prompt counts what was read from and written to a cache, so that is taken out of it."""
    usage, groq = body.get("usage"), body.get("x_groq")
    usage = usage if isinstance(usage, dict) or not isinstance(groq, dict) else groq.get("usage")
    if not isinstance(usage, dict):
        return None
    details, made = _object(usage.get("prompt_tokens_details")), _object(usage.get("completion_tokens_details"))
    prompt, completion = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    cached = _first_count(
        details.get("cached_tokens"),
        usage.get("prompt_cache_hit_tokens"),
        usage.get("cached_tokens"),
        usage.get("num_cached_tokens"),
        usage.get("cache_read_input_tokens"),
    )
    written = _first_count(details.get("cache_write_tokens"), usage.get("cache_creation_input_tokens"))
    reasoning = _first_count(made.get("reasoning_tokens"), usage.get("reasoning_tokens"))
    is_apart = reasoning and count_of(usage.get("total_tokens")) == prompt + completion + reasoning  # xAI
    searches = count_of(_object(usage.get("server_tool_use_details")).get("web_search_requests"))
    fresh = max(0, prompt - cached - written)
    return TokenUsage(
        input_tokens=fresh,
        output_tokens=completion + reasoning if is_apart else completion,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=min(
            written, count_of(_object(usage.get("cache_creation")).get("ephemeral_1h_input_tokens"))
        ),
        reasoning_tokens=reasoning,
        input_audio_tokens=min(fresh, _first_count(details.get("audio_tokens"), usage.get("audio_prompt_tokens"))),
        output_audio_tokens=count_of(made.get("audio_tokens")),
        server_tool_calls={"web_search": searches} if searches else None,
        service_tier=text_or_none(body.get("service_tier")) or text_or_none(usage.get("service_tier")) or None,
        provider_cost_usd=_cost(usage.get("cost")),
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first_count(*values: Any) -> int:
    return next((value for value in values if count_of(value)), 0)


def _cost(value: Any) -> Decimal | None:
    """What the vendor charged: a number (OpenRouter), or an object with a total (Perplexity)."""
    amount = value.get("total_cost") if isinstance(value, dict) else value
    if type(amount) not in (int, float, str):
        return None
    try:
        made = Decimal(str(amount))
    except InvalidOperation:
        return None
    return made if made.is_finite() else None


def _written_usage(usage: TokenUsage) -> dict[str, Any]:
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    details = {"cached_tokens": usage.cached_input_tokens}
    if usage.cache_creation_input_tokens:
        details["cache_write_tokens"] = usage.cache_creation_input_tokens
    if usage.input_audio_tokens:
        details["audio_tokens"] = usage.input_audio_tokens
    made = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.output_audio_tokens:
        made["audio_tokens"] = usage.output_audio_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": made,
    }


# --- stream ----------------------------------------------------------------------------------------------------------


class StreamReader:
    """Bytes in, events out. The completion is put together as it stood on the wire, and read as a whole at its end.

    ``terminal_reason_optional`` is for vendors that end complete answers without a reason (Ollama): then ``[DONE]`` is
    the end. Everybody else's stream without a reason was cut.
    """

    def __init__(self, framing: str | None = None, *, terminal_reason_optional: bool = False) -> None:
        self._splitter = splitter(framing or "sse")
        self._reason_optional = terminal_reason_optional
        self._completion = Completion()
        self._conversation = Conversation()
        self._indexes: dict[Place, int] = {}
        self._opened: set[Place] = set()
        self._pending: dict[Place, str] = {}  # input of calls that have no name yet
        self._start: MessageStart | None = None
        self._usage: TokenUsage | None = None
        self._over = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if not self._over:
            try:
                for frame in self._splitter.feed(data):
                    self._take(frame.data, events)
            except FramingError as error:
                self._fail("bad_event", str(error), events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        for frame in self._splitter.close() if not self._over else ():
            self._take(frame.data, events)
        if not self._over:
            if self._completion.first.finish_reason is not None:  # the reason came, [DONE] did not
                self._complete(events)
            else:
                tail = self._splitter.tail[:4096].decode("utf-8", "replace")
                self._fail("stream_incomplete", "the stream ended before the message did", events, tail=tail or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._over:
            return
        if data.strip() == b"[DONE]":
            self._done(events)
            return
        wire = chunk_from(data)
        if wire is None:
            self._fail("bad_event", "an event that is not a JSON object", events)
        elif wire.get("error"):
            self._completion.add({key: value for key, value in wire.items() if key != "choices"})
            self._update_usage(events)
            events.append(StreamError(read_error(None, {}, wire)))
            self._over = True
        else:
            self._chunk(wire, events)

    def _chunk(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        try:
            pieces = self._completion.add(wire)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)
            return
        if self._start is None and self._completion.choices:
            self._start = MessageStart(text_or_none(self._completion.top.get("model")))
            events.append(self._start)
        for piece in pieces:
            self._piece(piece, events)
        self._update_usage(events)

    def _piece(self, piece: Piece, events: list[StreamEvent]) -> None:
        index = self._indexes.setdefault(piece.place, len(self._indexes))
        match piece.kind:
            case "text" if piece.text:
                self._opened.add(piece.place)
                events.append(TextDelta(index, piece.text))
            case "thinking" if piece.text:
                self._opened.add(piece.place)
                events.append(ThinkingDelta(index, piece.text))
            case "call":
                self._call(piece, index, events)

    def _call(self, piece: Piece, index: int, events: list[StreamEvent]) -> None:
        """A call begins when its name is known; input that came earlier waits for it."""
        text = self._pending.pop(piece.place, "") + piece.text
        call = self._completion.first.call(piece.place)
        name = call["function"].get("name")
        if not isinstance(name, str) or not name:
            self._pending.update({piece.place: text} if text else {})
            return
        if piece.place not in self._opened:
            self._opened.add(piece.place)
            is_legacy = piece.place[0] == "function_call"
            provider_id = _LEGACY_ID + name if is_legacy else text_or_none(call.get("id")) or ""
            events.append(ToolUseStart(index, self._conversation.call_id(provider_id), name))
        if text:
            events.append(ToolUseInputDelta(index, text))

    def _update_usage(self, events: list[StreamEvent]) -> None:
        usage = _read_usage(self._completion.top)
        if usage is not None and usage != self._usage:
            self._usage = usage
            events.append(UsageUpdate(usage))

    def _done(self, events: list[StreamEvent]) -> None:
        is_enough = self._reason_optional and self._completion.choices
        if self._completion.first.finish_reason is not None or is_enough:
            self._complete(events)
        else:
            self._fail("stream_incomplete", "the message ended without a reason", events)

    def _complete(self, events: list[StreamEvent]) -> None:
        if self._pending:
            self._fail("protocol_violation", "a call that was never named", events)
            return
        first = self._completion.first
        model = self._start.model if self._start else None
        body = self._completion.wire()
        reply, placed = _reply_from(body, Conversation(), first.origin, model=model, usage=self._usage)
        for place, block in placed:
            index = self._indexes.setdefault(place, len(self._indexes))
            self._close_block(index, block, events, is_open=place in self._opened)
        raw = reply.provider_raw
        if first.late:
            raw = {"dialect": NAME, **(raw or {}), "late": "".join(first.late)[:4096]}
        if reply.fault is not None:
            events.append(StreamError(reply.fault, raw))
        else:
            events.append(MessageComplete(reply.stop_reason, reply.stop_sequence, raw))
        self._over = True

    def _close_block(self, index: int, block: ContentBlock, events: list[StreamEvent], *, is_open: bool) -> None:
        raw: ProviderRaw | None = getattr(block, "provider_raw", None)
        match block:
            case ToolUseBlock() | InvalidToolUseBlock() if is_open:
                events.append(ToolUseEnd(index, raw))
            case TextBlock() if is_open:
                if raw is not None:
                    events.append(TextDelta(index, "", raw))
            case ThinkingBlock() if is_open:
                events.append(ThinkingDelta(index, "", block.signature, raw))
            case _:
                events.append(BlockComplete(index, block))

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._over = True


def stream_reader(framing: str | None = None, *, terminal_reason_optional: bool = False) -> StreamReader:
    """A reader of this dialect's streams."""
    return StreamReader(framing, terminal_reason_optional=terminal_reason_optional)


class StreamWriter:
    """Events in, bytes out: chunks as the official SDKs expect them, and ``[DONE]``."""

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
        reply = fold(self._events)
        wire = write_reply(reply).wire
        if reply.fault is None or reply.fault.code in _UNUSABLE:
            return b"".join([*map(sse_frame, chunks_from(wire)), b"data: [DONE]\n\n"])
        chunks = chunks_from(wire, finished=False) if wire.get("choices") else ()
        return b"".join([*map(sse_frame, chunks), sse_frame(write_error(reply.fault).wire)])


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)


# --- error -----------------------------------------------------------------------------------------------------------

_ERROR_WORDS: Final = {
    "rate_limit_exceeded": ("rate_limited", ErrorClass.RATE_LIMIT),
    "rate_limit_error": ("rate_limited", ErrorClass.RATE_LIMIT),
    "tokens": ("rate_limited", ErrorClass.RATE_LIMIT),
    "requests": ("rate_limited", ErrorClass.RATE_LIMIT),
    "insufficient_quota": ("forbidden", ErrorClass.AUTH),
    "billing_hard_limit_reached": ("forbidden", ErrorClass.AUTH),
    "invalid_api_key": ("unauthorized", ErrorClass.AUTH),
    "authentication_error": ("unauthorized", ErrorClass.AUTH),
    "permission_error": ("forbidden", ErrorClass.AUTH),
    "context_length_exceeded": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "exceed_context_size_error": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "model_not_found": ("not_found", ErrorClass.INVALID_REQUEST),
    "not_found_error": ("not_found", ErrorClass.INVALID_REQUEST),
    "DeploymentNotFound": ("not_found", ErrorClass.INVALID_REQUEST),
    "content_filter": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "content_policy_violation": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "invalid_request_error": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "overloaded_error": ("overloaded", ErrorClass.RATE_LIMIT),
    "engine_overloaded": ("overloaded", ErrorClass.RATE_LIMIT),
    "service_unavailable": ("overloaded", ErrorClass.RATE_LIMIT),
    "timeout": ("timeout", ErrorClass.NETWORK),
    "server_error": ("server_error", ErrorClass.SERVER_ERROR),
    "api_error": ("server_error", ErrorClass.SERVER_ERROR),
}
_WRITTEN_WORDS: Final = {  # type and code, as OpenAI pairs them
    "rate_limited": ("requests", "rate_limit_exceeded"),
    "unauthorized": ("invalid_request_error", "invalid_api_key"),
    "context_overflow": ("invalid_request_error", "context_length_exceeded"),
    "not_found": ("invalid_request_error", "model_not_found"),
    "invalid_request": ("invalid_request_error", None),
    "forbidden": ("permission_error", None),
    "overloaded": ("server_error", "engine_overloaded"),
    "timeout": ("server_error", "timeout"),
}
_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})
_OVERFLOW: Final = (
    "context length",
    "context size",
    "context window",
    "maximum context",
    "too many tokens",
    "too long",
)


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side."""
    error = _error_object(body)
    kind, code, message = error.get("type"), error.get("code"), str(error.get("message") or "no message")
    said = next((value for value in (status, code, error.get("status")) if type(value) is int), None)
    words = [word for word in (code, kind) if isinstance(word, str) and word]
    found = next((_ERROR_WORDS[word] for word in words if word in _ERROR_WORDS), None)
    if found is None or (found[0] == "invalid_request" and said in (401, 402, 403, 404, 408, 413, 429)):
        found = _by_status(said)
    if found[1] is ErrorClass.INVALID_REQUEST and any(sign in message.lower() for sign in _OVERFLOW):
        found = ("context_overflow", ErrorClass.CONTEXT_OVERFLOW)
    return Fault(
        code=found[0],
        message=message,
        error_class=found[1],
        retryable=found[1] in _RETRYABLE,
        retry_after_s=retry_after_s(headers),
        status=status,
        provider=NAME,
        provider_code=words[0] if words else str(code) if code is not None else None,
        request_id=headers.get("x-request-id") or text_or_none(error.get("request_id")),
    )


def _error_object(body: Any) -> dict[str, Any]:
    """The error, wherever vendors put it: under ``error``, as a text, under ``detail``, in a list, or bare."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = body if isinstance(body, str) else body.decode("utf-8", "replace")
            return {"message": text[:1024]}
    if isinstance(body, list) and body:
        body = body[0]
    match body:
        case {"error": dict(error)}:
            return error
        case {"error": str(text)} | {"detail": str(text)}:
            return {**body, "message": text}
        case {"detail": list(details)}:
            return {**body, "message": msgspec.json.encode(details).decode()[:1024]}
        case dict():
            return body
        case _:
            return {}


def _by_status(status: int | None) -> tuple[str, ErrorClass]:
    match status:
        case 401:
            return "unauthorized", ErrorClass.AUTH
        case 402 | 403:
            return "forbidden", ErrorClass.AUTH
        case 404:
            return "not_found", ErrorClass.INVALID_REQUEST
        case 408:
            return "timeout", ErrorClass.NETWORK
        case 413:
            return "context_overflow", ErrorClass.CONTEXT_OVERFLOW
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT
        case 503 | 529:
            return "overloaded", ErrorClass.RATE_LIMIT
        case int() if status >= 500:
            return "server_error", ErrorClass.SERVER_ERROR
        case int() if status >= 400:
            return "invalid_request", ErrorClass.INVALID_REQUEST
        case _:
            return "server_error", ErrorClass.OTHER


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    kind, code = _WRITTEN_WORDS.get(fault.code, ("server_error", fault.code))
    known = fault.provider_code if fault.provider == NAME else None
    return Written({"error": {"message": fault.message, "type": kind, "param": None, "code": known or code}})


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
