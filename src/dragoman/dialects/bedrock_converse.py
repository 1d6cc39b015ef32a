"""Amazon Bedrock Converse: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html.

Read in November 2026, together with the service model of botocore 1.43. The model stands in the URL. A block is an
object with one key, its kind. Results stand inside user messages there and are messages of their own here; the two
sides take turns, so what stands next to each other on one side is written as one message, unless it came apart. Words
that only some models understand travel in ``additionalModelRequestFields``, and each family of models has its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.conversation import Conversation, a_list, an_object, with_ids_of_calls
from dragoman.dialects.parts.framing import Frame, FramingError, aws_frame, decoded_aws_frame, json_line, splitter
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
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)

NAME: Final = "bedrock_converse"
STOP_REASONS: Final = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "content_filtered": StopReason.REFUSAL,
    "guardrail_intervened": StopReason.REFUSAL,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
}
_STOP_WORDS: Final = {reason: word for word, reason in reversed(STOP_REASONS.items())}
_MALFORMED: Final = {"malformed_model_output": "malformed_output", "malformed_tool_use": "tool_input_invalid"}
_CHOICES: Final = {"auto": "auto", "any": "required", "tool": "tool"}
_CHOICE_WORDS: Final = {ours: theirs for theirs, ours in _CHOICES.items()}
_TIERS: Final = ("priority", "default", "flex", "reserved")

# The first format of a media type is the one that we write.
_FORMATS: Final[dict[str, dict[str, str]]] = {
    "image": {"png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"},
    "document": {
        "pdf": "application/pdf",
        "csv": "text/csv",
        "doc": "application/msword",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "html": "text/html",
        "txt": "text/plain",
        "md": "text/markdown",
    },
    "video": {
        "mkv": "video/x-matroska",
        "mov": "video/quicktime",
        "mp4": "video/mp4",
        "webm": "video/webm",
        "flv": "video/x-flv",
        "mpeg": "video/mpeg",
        "mpg": "video/mpeg",
        "wmv": "video/x-ms-wmv",
        "three_gp": "video/3gpp",
    },
    "audio": {
        "mp3": "audio/mpeg",
        "opus": "audio/opus",
        "wav": "audio/wav",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "mp4": "audio/mp4",
        "ogg": "audio/ogg",
        "mka": "audio/x-matroska",
        "mkv": "audio/x-matroska",
        "x-aac": "audio/x-aac",
        "m4a": "audio/x-m4a",
        "mpeg": "audio/mpeg",
        "mpga": "audio/mpeg",
        "pcm": "audio/pcm",
        "webm": "audio/webm",
    },
}
_FORMAT_WORDS: Final = {
    kind: {media_type: word for word, media_type in reversed(formats.items())} for kind, formats in _FORMATS.items()
}
_ALSO_KNOWN_AS: Final = {"image/jpg": "jpeg", "audio/mp3": "mp3", "audio/x-wav": "wav", "audio/wave": "wav"}
_MediaBlock = ImageBlock | DocumentBlock | VideoBlock | AudioBlock

Lose = Callable[[str, str], None]  # told what cannot be written (a block's type or an option), and why


def _losing(losses: list[Loss], message: Message | None = None) -> Lose:
    session_id, message_id = (message.session_id, message.id) if message is not None else ("", "")
    return lambda what, reason: losses.append(Loss(session_id, message_id, what, NAME, reason))


def _lose_nothing(_what: str, _reason: str) -> None:
    """For what was read from this wire, and so can be written to it."""


# --- request ---------------------------------------------------------------------------------------------------------


def read_request(wire: Any) -> Request:
    """A request as Converse takes it; the model is there only if the caller put ``modelId`` into it."""
    body = an_object(wire, "$")
    conversation = Conversation()
    system = a_list(body.get("system", []), "$.system")
    if system:
        items = (an_object(item, f"$.system[{index}]") for index, item in enumerate(system))
        conversation.add(Role.SYSTEM, [_read_block(item, conversation, "system") for item in items])
    for index, message in enumerate(a_list(body.get("messages", []), "$.messages")):
        _read_message(an_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", conversation)
    config = an_object(body.get("toolConfig", {}), "$.toolConfig")
    tools = a_list(config.get("tools", []), "$.toolConfig.tools")
    request = Request(
        model=text_or_none(body.get("modelId")),
        messages=tuple(conversation.messages),
        tools=tuple(_read_tool(an_object(tool, f"$.toolConfig.tools[{index}]")) for index, tool in enumerate(tools)),
        options=_read_options(body),
    )
    notes = {
        "family": _family_of_fields(_fields(body)),
        "named": True if request.model is not None else None,
        "empty": [key for key in ("messages", "system") if body.get(key) == []] or None,
        "no_tools": True if config.get("tools") == [] else None,
    }
    rest = {key: value for key, value in body.items() if key not in ("messages", "system")}
    if "toolConfig" in rest:
        rest["toolConfig"] = {key: value for key, value in config.items() if key != "tools"}
    return request.replace(provider_raw=noted(NAME, _natural_top(request, notes), rest, **notes))


def write_request(request: Request) -> Written:
    """The request as Converse takes it, and what it cannot take. The model belongs into the URL."""
    request = with_ids_of_calls(request, NAME)
    losses: list[Loss] = []
    notes = notes_of(request.provider_raw, NAME)
    top = restored(_natural_top(request, notes), notes.get("residue"))
    system = [block for message in request.messages for block in _written_system(message, losses)]
    messages = _written_messages(request.messages, losses)
    tools = [written for tool in request.tools if (written := _written_tool(tool, losses)) is not None]
    empty = notes.get("empty", ())
    wire: dict[str, Any] = {}
    if messages or "messages" in empty:
        wire["messages"] = messages
    if system or "system" in empty:
        wire["system"] = system
    wire.update(top)
    if tools or (notes.get("no_tools") and "toolConfig" in top):
        wire["toolConfig"] = {"tools": tools, **top.get("toolConfig", {})}
    _lose_options(request, wire, _losing(losses))
    return Written(wire, tuple(losses))


def _written_system(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    """System prompts stand beside the list, wherever they stood."""
    if message.role is not Role.SYSTEM:
        return []
    return _written_blocks(message.content, "system", _losing(losses, message))


def _read_message(wire: dict[str, Any], where: str, conversation: Conversation) -> None:
    role = wire.get("role")
    if role not in ("user", "assistant"):
        raise FormatError(f"a role is user or assistant, not {role!r}", where=f"{where}.role")
    items = [
        an_object(item, f"{where}.content[{index}]")
        for index, item in enumerate(a_list(wire.get("content"), f"{where}.content"))
    ]
    extra = {key: value for key, value in wire.items() if key not in ("role", "content")}
    notes: dict[str, Any] = {"set": extra} if extra else {}
    if not items:
        notes["form"] = "empty"
    if conversation.messages and _side(conversation.messages[-1]) == role:
        notes["joined"] = False
    for kind, group in _groups(items, role):
        raw = {"dialect": NAME, **notes} if notes else None
        notes = {}
        if kind == "tool":
            result = _read_result(group[0]["toolResult"], group[0], conversation)
            conversation.add(Role.TOOL, [result], raw, answers=result.tool_use_id)
        else:
            conversation.add(Role(role), [_read_block(item, conversation) for item in group], raw)


def _groups(items: list[dict[str, Any]], role: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """A user message is cut where results begin and end; each result is a group of its own."""
    groups: list[tuple[str, list[dict[str, Any]]]] = []
    for item in items:
        match item:
            case {"toolResult": {"toolUseId": str(), "content": list()}} if role == "user":
                groups.append(("tool", [item]))
            case _ if groups and groups[-1][0] != "tool":
                groups[-1][1].append(item)
            case _:
                groups.append((role, [item]))
    return groups or [(role, [])]


def _side(message: Message) -> str:
    """Who speaks, for a wire that knows two sides only."""
    if message.role is Role.SYSTEM:
        return "system"
    return "assistant" if message.role is Role.ASSISTANT else "user"


def _written_messages(messages: Iterable[Message], losses: list[Loss]) -> list[dict[str, Any]]:
    """The two sides take turns, but for messages that came apart from the one before."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        side, notes = _side(message), notes_of(message.metadata.provider_raw, NAME)
        if side == "system":
            continue
        blocks = _written_blocks(message.content, "message", _losing(losses, message))
        if not blocks and (message.content or notes.get("form") != "empty"):
            continue  # nothing of it can be said here; the losses name it
        if wire and wire[-1]["role"] == side and notes.get("joined") is not False:
            wire[-1]["content"].extend(blocks)
        else:
            wire.append({"role": side, "content": blocks, **notes.get("set", {})})
    return wire


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    match wire:
        case {"toolSpec": {"name": str(name), "inputSchema": {"json": dict(schema)}} as spec}:
            tool = ToolDefinition(name, text_or_none(spec.get("description")) or "", schema, SideEffects.EXECUTE)
            return tool.replace(provider_raw=noted(NAME, _natural_tool(tool), wire))
        case _:
            return OpaqueTool(NAME, wire)


def _natural_tool(tool: ToolDefinition) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": tool.name}
    if tool.description:
        spec["description"] = tool.description
    return {"toolSpec": {**spec, "inputSchema": {"json": tool.input_schema}}}


def _written_tool(tool: ToolDefinition | OpaqueTool, losses: list[Loss]) -> dict[str, Any] | None:
    if isinstance(tool, OpaqueTool):
        if tool.dialect == NAME:
            return tool.wire
        losses.append(Loss("", "", "tool", NAME, f"a tool that only {tool.dialect} understands"))
        return None
    made: dict[str, Any] = restored(_natural_tool(tool), notes_of(tool.provider_raw, NAME).get("residue"))
    return made


# --- options ---------------------------------------------------------------------------------------------------------


def _fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """What is passed on to the model as it is, in the words of its family."""
    fields = body.get("additionalModelRequestFields")
    return fields if isinstance(fields, dict) else {}


def _read_options(body: dict[str, Any]) -> Options:
    inference, tier = body.get("inferenceConfig"), body.get("serviceTier")
    inference = inference if isinstance(inference, dict) else {}
    fields = _fields(body)
    nova = fields.get("inferenceConfig")
    return Options(
        max_output_tokens=integer_or_none(inference.get("maxTokens")),
        temperature=number_or_none(inference.get("temperature")),
        top_p=number_or_none(inference.get("topP")),
        top_k=integer_or_none(nova.get("topK") if isinstance(nova, dict) else fields.get("top_k")),
        stop_sequences=texts_of(inference.get("stopSequences")),
        tool_choice=_read_choice(body.get("toolConfig")),
        response_format=_read_format(body.get("outputConfig")),
        reasoning=_read_reasoning(fields),
        service_tier=text_or_none(tier.get("type")) if isinstance(tier, dict) else None,
    )


def _read_choice(config: Any) -> ToolChoice | None:
    match config:
        case {"toolChoice": {"tool": {"name": str(name)}}}:
            return ToolChoice("tool", name)
        case {"toolChoice": {"any": dict()}}:
            return ToolChoice("required")
        case {"toolChoice": {"auto": dict()}}:
            return ToolChoice("auto")
        case _:
            return None


def _read_format(config: Any) -> ResponseFormat | None:
    match config:
        case {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": str(text)} as asked}}}:
            schema = _object_of(text)
            return None if schema is None else ResponseFormat("json_schema", schema, text_or_none(asked.get("name")))
        case _:
            return None


def _object_of(text: str) -> dict[str, Any] | None:
    try:
        value = read_json(text, OWN)
    except JsonError:
        return None
    return value if isinstance(value, dict) else None


def _family_of_fields(fields: dict[str, Any]) -> str | None:
    """Whose words these are."""
    for key, family in (
        ("reasoning_config", "anthropic_early"),
        ("thinking", "anthropic"),
        ("output_config", "anthropic"),
        ("top_k", "anthropic"),
        ("reasoningConfig", "nova"),
        ("inferenceConfig", "nova"),
        ("reasoning_effort", "openai"),
    ):
        if key in fields:
            return family
    return None


def _family_of_model(model: str | None) -> str | None:
    """Whose words a model understands, by its id; an ARN of one's own does not tell."""
    for part, family in (("anthropic.", "anthropic"), ("amazon.nova", "nova"), ("openai.", "openai")):
        if model is not None and part in model:
            return family
    return None


def _read_reasoning(fields: dict[str, Any]) -> Reasoning | None:
    switches = {"enabled": True, "adaptive": True, "disabled": False}
    match fields:
        case {"thinking": dict(asked)} | {"reasoning_config": dict(asked)}:
            config = fields.get("output_config")
            return Reasoning(
                enabled=switches.get(str(asked.get("type"))),
                effort=text_or_none(config.get("effort")) if isinstance(config, dict) else None,
                budget_tokens=integer_or_none(asked.get("budget_tokens")),
            )
        case {"output_config": {"effort": str(effort)}} | {"reasoning_effort": str(effort)}:
            return Reasoning(effort=effort)
        case {"reasoningConfig": dict(asked)}:
            return Reasoning(
                enabled=switches.get(str(asked.get("type"))), effort=text_or_none(asked.get("maxReasoningEffort"))
            )
        case _:
            return None


def _natural_top(request: Request, notes: Mapping[str, Any]) -> dict[str, Any]:
    """What we would write beside the messages, the system prompt and the list of tools."""
    options = request.options
    wire: dict[str, Any] = {"modelId": request.model} if notes.get("named") and request.model is not None else {}
    inference = {
        "maxTokens": options.max_output_tokens,
        "temperature": options.temperature,
        "topP": options.top_p,
        "stopSequences": list(options.stop_sequences) or None,
    }
    if any(value is not None for value in inference.values()):
        wire["inferenceConfig"] = {key: value for key, value in inference.items() if value is not None}
    if any(not isinstance(tool, OpaqueTool) or tool.dialect == NAME for tool in request.tools):
        wire["toolConfig"] = _natural_choice(options.tool_choice)
    asked = options.response_format
    if asked is not None and asked.kind == "json_schema" and asked.json_schema is not None:
        schema = {"schema": _compact(asked.json_schema), **({"name": asked.name} if asked.name is not None else {})}
        wire["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}
    if options.service_tier in _TIERS:
        wire["serviceTier"] = {"type": options.service_tier}
    fields = _natural_fields(options, notes.get("family") or _family_of_model(request.model))
    return {**wire, "additionalModelRequestFields": fields} if fields else wire


def _natural_choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None or choice.mode not in _CHOICE_WORDS:
        return {}
    return {"toolChoice": {_CHOICE_WORDS[choice.mode]: {"name": choice.name} if choice.mode == "tool" else {}}}


def _natural_fields(options: Options, family: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    reasoning = options.reasoning or Reasoning()
    says_more = reasoning.enabled is not None or reasoning.budget_tokens is not None
    match family:
        case "anthropic" | "anthropic_early":
            if says_more:
                fields["thinking" if family == "anthropic" else "reasoning_config"] = _natural_thinking(reasoning)
            if reasoning.effort is not None:
                fields["output_config"] = {"effort": reasoning.effort}
            if options.top_k is not None:
                fields["top_k"] = options.top_k
        case "nova":
            if says_more or reasoning.effort is not None:
                kind = "disabled" if reasoning.enabled is False else "enabled"
                effort = {"maxReasoningEffort": reasoning.effort} if reasoning.effort is not None else {}
                fields["reasoningConfig"] = {"type": kind, **effort}
            if options.top_k is not None:
                fields["inferenceConfig"] = {"topK": options.top_k}
        case "openai" if reasoning.effort is not None:
            fields["reasoning_effort"] = reasoning.effort
    return fields


def _natural_thinking(reasoning: Reasoning) -> dict[str, Any]:
    if reasoning.enabled is False:
        return {"type": "disabled"}
    if reasoning.budget_tokens is not None:
        return {"type": "enabled", "budget_tokens": reasoning.budget_tokens}
    return {"type": "adaptive"}


def _lose_options(request: Request, wire: dict[str, Any], lose: Lose) -> None:
    """Name every option that did not find its way into the wire."""
    options, fields = request.options, _fields(wire)
    for name in ("seed", "presence_penalty", "frequency_penalty", "parallel_tool_calls", "user"):
        if getattr(options, name) is not None:
            lose(name, "this API has no such option")
    if options.tool_choice is not None and "toolChoice" not in wire.get("toolConfig", {}):
        if options.tool_choice.mode == "none":
            lose("tool_choice", "this API cannot forbid the use of tools")
        elif options.tool_choice.mode != "auto":
            lose("tool_choice", "there is no tool to choose")
    asked = options.response_format
    if asked is not None and asked.kind != "text" and "outputConfig" not in wire:
        lose("response_format", "this API only takes a JSON schema")
    if options.service_tier is not None and "serviceTier" not in wire:
        lose("service_tier", f"this API has no tier {options.service_tier!r}")
    said = {key for key in fields if key not in ("top_k", "inferenceConfig")}
    if options.reasoning is not None and options.reasoning != Reasoning() and not said:
        lose("reasoning", "how this model is told to reason is not known")
    if options.top_k is not None and not fields.keys() & {"top_k", "inferenceConfig"}:
        lose("top_k", "how this model is told is not known")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- blocks ----------------------------------------------------------------------------------------------------------


# The kinds of blocks that are ours to read, by where they stand; what belongs elsewhere stays what it is.
_PLACES: Final = {
    "system": ("text",),
    "message": ("text", "citationsContent", "toolUse", "reasoningContent", "image", "document", "video", "audio"),
    "result": ("text", "json", "image", "document", "video"),
}


def _read_block(wire: dict[str, Any], conversation: Conversation, place: str = "message") -> ContentBlock:
    """A block as we know it, with what is left over; else the whole of it, opaque."""
    known = _known_block({key: wire[key] for key in _PLACES[place] if key in wire}, conversation)
    if known is None:
        return OpaqueBlock(NAME, wire)
    block, notes = known
    natural = _natural_block(block, notes)
    return block.replace(provider_raw=noted(NAME, natural, wire, **notes))


def _known_block(wire: dict[str, Any], conversation: Conversation) -> tuple[ContentBlock, dict[str, Any]] | None:
    """The block, and what we have to note about its form. Reasoning is noted as our own: only then it is replayed."""
    match wire:
        case {"text": str(text)}:
            return TextBlock(text), {} if text else {"form": "empty"}
        case {"citationsContent": {"content": [{"text": str(text)}]}}:
            return TextBlock(text), {"form": "citations"}
        case {"json": value}:
            return TextBlock(_compact(value)), {"form": "json"}
        case {"toolUse": {"toolUseId": str(provider_id), "name": str(name), "input": dict(value)} as call}:
            if call.get("type") == "server_tool_use":
                return None  # it ran there: nobody may run it here
            call_id = conversation.call_id(provider_id)
            return ToolUseBlock(call_id, name, value), _id_note(provider_id, call_id)
        case {"reasoningContent": {"reasoningText": {"text": str(text)} as said}}:
            return ThinkingBlock(text, text_or_none(said.get("signature"))), {"own": True}
        case {"reasoningContent": {"redactedContent": str(data)}}:
            return RedactedThinkingBlock(data), {"own": True}
        case _:
            return _read_media(wire)


def _id_note(provider_id: str, call_id: str) -> dict[str, Any]:
    return {"id": provider_id} if provider_id != call_id else {}


def _read_media(wire: dict[str, Any]) -> tuple[ContentBlock, dict[str, Any]] | None:
    kind = next((kind for kind in _FORMATS if isinstance(wire.get(kind), dict)), None)
    if kind is None:
        return None
    media: dict[str, Any] = wire[kind]
    default = "txt" if kind == "document" else ""
    media_type = _FORMATS[kind].get(str(media.get("format", default)))
    source, notes = _read_source(kind, media.get("source"))
    if media_type is None or source is None:
        return None
    match kind:
        case "image":
            return ImageBlock(source, media_type), notes
        case "video":
            return VideoBlock(source, media_type), notes
        case "audio":
            return AudioBlock(source, media_type), notes
        case _:
            return DocumentBlock(source, media_type, text_or_none(media.get("name"))), notes


def _read_source(kind: str, source: Any) -> tuple[ImageSource | None, dict[str, Any]]:
    """Where the bytes are. A document may also be text, whole or in chunks; we keep where the chunks were cut."""
    match source:
        case {"bytes": str(data)}:
            return ImageSource("base64", data), {}
        case {"s3Location": {"uri": str(uri)}} if uri.startswith("s3://"):
            return ImageSource("url", uri), {}
        case {"text": str(text)} if kind == "document":
            return ImageSource("base64", _base64(text)), {"form": "text"}
        case {"content": [*chunks]} if kind == "document" and chunks and all(_is_text(chunk) for chunk in chunks):
            texts = [chunk["text"] for chunk in chunks]
            return ImageSource("base64", _base64("\n".join(texts))), {"form": "chunks", "cuts": [*map(len, texts)]}
        case _:
            return None, {}


def _is_text(chunk: Any) -> bool:
    return isinstance(chunk, dict) and set(chunk) == {"text"} and isinstance(chunk["text"], str)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _read_result(wire: dict[str, Any], item: dict[str, Any], conversation: Conversation) -> ToolResultBlock:
    blocks = [_read_block(an_object(block, "toolResult.content"), conversation, "result") for block in wire["content"]]
    tool_use_id = conversation.answered_id(wire["toolUseId"])
    notes = _id_note(wire["toolUseId"], tool_use_id)
    result = ToolResultBlock(tool_use_id, tuple(blocks), wire.get("status") == "error")
    return result.replace(provider_raw=noted(NAME, _natural_block(result, notes), item, **notes))


def _written_blocks(blocks: Iterable[ContentBlock], place: str, lose: Lose) -> list[dict[str, Any]]:
    wire = []
    for block in blocks:
        reason = _cannot_say(block, place)
        if reason is not None:
            lose(block.type, reason)
        elif not _is_blank(block):
            wire.append(_written_block(block, lose))
    return wire


def _is_blank(block: ContentBlock) -> bool:
    """Whether it is a text that says nothing: this API refuses it, unless it said so itself."""
    return isinstance(block, TextBlock) and not block.text and "form" not in notes_of(block.provider_raw, NAME)


def _cannot_say(block: ContentBlock, place: str) -> str | None:
    """Why this wire cannot carry a block at a place; ``None`` if it can."""
    match block:
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else f"a block that only {dialect} understands"
        case TextBlock():
            return None
        case _ if place == "system":
            return "a system prompt is text here"
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            return None if notes_of(raw, NAME) else "reasoning of another origin"
        case ImageBlock() | DocumentBlock() | VideoBlock() | AudioBlock():
            if isinstance(block, AudioBlock) and place == "result":
                return "a result has no sound here"
            return _cannot_say_media(block)
        case ToolUseBlock() | InvalidToolUseBlock() | ToolResultBlock() if place == "message":
            return None
        case _:
            return "this API takes no such block"


def _cannot_say_media(block: _MediaBlock) -> str | None:
    source = block.source
    if source.kind == "file_ref" or (source.kind == "url" and not source.data.startswith("s3://")):
        return "this API takes bytes and S3 objects only"
    return None if _format_word(block) is not None else f"this API takes no {block.media_type}"


def _format_word(block: _MediaBlock) -> str | None:
    media_type = block.media_type.partition(";")[0].strip().lower()
    word = _FORMAT_WORDS[block.type].get(media_type) or _ALSO_KNOWN_AS.get(media_type)
    if word is None and block.type == "document" and media_type.startswith("text/"):
        return "txt"
    return word if word in _FORMATS[block.type] else None


def _written_block(block: ContentBlock, lose: Lose = _lose_nothing) -> dict[str, Any]:
    notes = notes_of(getattr(block, "provider_raw", None), NAME)
    made: dict[str, Any] = restored(_natural_block(block, notes, lose), notes.get("residue"))
    return made


def _natural_block(block: ContentBlock, notes: Mapping[str, Any], lose: Lose = _lose_nothing) -> dict[str, Any]:
    """What we would write for a block, in the form that was noted about it, if any."""
    match block:
        case TextBlock(text):
            return _natural_text(text, notes.get("form"))
        case ToolUseBlock(call_id, name, value):
            return {"toolUse": {"toolUseId": notes.get("id") or spell(call_id, AS_IT_IS), "name": name, "input": value}}
        case InvalidToolUseBlock(call_id, name, input_text):
            value = {"invalid_input": input_text}
            return {"toolUse": {"toolUseId": notes.get("id") or spell(call_id, AS_IT_IS), "name": name, "input": value}}
        case ToolResultBlock(call_id, content, is_error):
            result: dict[str, Any] = {"toolUseId": notes.get("id") or spell(call_id, AS_IT_IS)}
            result["content"] = _written_blocks(content, "result", lose)
            return {"toolResult": {**result, "status": "error"} if is_error else result}
        case ThinkingBlock(text, signature):
            signed = {"signature": signature} if signature is not None else {}
            return {"reasoningContent": {"reasoningText": {"text": text, **signed}}}
        case RedactedThinkingBlock(data):
            return {"reasoningContent": {"redactedContent": data}}
        case ImageBlock() | VideoBlock() | AudioBlock() | DocumentBlock():
            media: dict[str, Any] = {"format": _format_word(block), "source": _natural_source(block.source, notes)}
            if isinstance(block, DocumentBlock):
                media["name"] = _document_name(block)
            return {block.type: media}
        case OpaqueBlock(wire=wire):
            return wire
        case _:
            return {"text": f"[{block.type}]"}


def _natural_text(text: str, form: str | None) -> dict[str, Any]:
    if form == "citations":
        return {"citationsContent": {"content": [{"text": text}]}}
    if form == "json":
        try:
            return {"json": read_json(text, OWN)}
        except JsonError:
            pass  # somebody wrote something else into it
    return {"text": text}


def _natural_source(source: ImageSource, notes: Mapping[str, Any]) -> dict[str, Any]:
    if source.kind == "url":
        return {"s3Location": {"uri": source.data}}
    form = notes.get("form")
    if form in ("text", "chunks"):
        try:
            text = base64.b64decode(source.data, validate=True).decode("utf-8", "surrogatepass")
        except (binascii.Error, UnicodeDecodeError):
            return {"bytes": source.data}
        if form == "text":
            return {"text": text}
        return {"content": [{"text": chunk} for chunk in _chunks(text, notes.get("cuts", ()))]}
    return {"bytes": source.data}


def _chunks(text: str, cuts: Iterable[int]) -> list[str]:
    """The text as it was cut; in one piece, if it has become another text."""
    chunks, at = [], 0
    for length in cuts:
        chunks.append(text[at : at + length])
        at += length + 1
    return chunks if "\n".join(chunks) == text else [text]


def _document_name(block: DocumentBlock) -> str:
    """This API demands a name, takes few signs for it, and refuses two equal ones."""
    name = re.sub(r"[^A-Za-z0-9 \-()\[\]]+", "-", block.name or "")
    name = re.sub(r" +", " ", name).strip()[:200]
    return name or "document-" + hashlib.sha256(block.source.data.encode("utf-8", "surrogatepass")).hexdigest()[:8]


# --- reply -----------------------------------------------------------------------------------------------------------


def read_reply(wire: Any) -> Reply:
    """An answer as Converse gives it."""
    body = an_object(wire, "$")
    output = an_object(body.get("output"), "$.output")
    message = an_object(output.get("message"), "$.output.message")
    conversation = Conversation()
    items = enumerate(a_list(message.get("content"), "$.output.message.content"))
    content = [_read_block(an_object(item, f"$.output.message.content[{at}]"), conversation) for at, item in items]
    word, fields = str(body.get("stopReason")), body.get("additionalModelResponseFields")
    fault = _fault_of_word(word)
    reply = Reply(
        content=tuple(content),
        stop_reason=STOP_REASONS.get(word, StopReason.UNKNOWN) if fault is None else StopReason.ERROR,
        stop_sequence=text_or_none(fields.get("stop_sequence")) if isinstance(fields, dict) and fault is None else None,
        usage=_read_usage(body),
        fault=fault,
    )
    said = {key: value for key, value in message.items() if key != "content"}
    rest = {**body, "output": {**output, "message": said}}
    return reply.replace(provider_raw=noted(NAME, _natural_reply(reply), rest))


def write_reply(reply: Reply) -> Written:
    """An answer as Converse gives it, and what it cannot say."""
    losses: list[Loss] = []
    content = _written_blocks(reply.content, "message", _losing(losses))
    wire = restored(_natural_reply(reply), notes_of(reply.provider_raw, NAME).get("residue"))
    wire["output"]["message"]["content"] = content
    return Written(wire, tuple(losses))


def _fault_of_word(word: str) -> Fault | None:
    """Some words for why a model stopped say that it failed."""
    if word not in _MALFORMED:
        return None
    return Fault(
        code=_MALFORMED[word],
        message=f"the model ended with {word}",
        error_class=ErrorClass.SERVER_ERROR,
        retryable=True,
        provider=NAME,
        provider_code=word,
    )


def _natural_reply(reply: Reply) -> dict[str, Any]:
    word = _STOP_WORDS.get(reply.stop_reason, "end_turn")
    if reply.fault is not None:
        word = reply.fault.provider_code if reply.fault.provider_code in _MALFORMED else "malformed_model_output"
    usage = reply.usage or TokenUsage(input_tokens=0, output_tokens=0)
    wire: dict[str, Any] = {"output": {"message": {"role": "assistant"}}, "stopReason": word}
    if reply.stop_sequence is not None:
        wire["additionalModelResponseFields"] = {"stop_sequence": reply.stop_sequence}
    wire["usage"] = _natural_usage(usage)
    wire["metrics"] = {"latencyMs": 0}  # demanded; nobody measured it
    if usage.service_tier in _TIERS:
        wire["serviceTier"] = {"type": usage.service_tier}
    return wire


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """What it consumed. The input of this wire leaves out what was read from, or written to, a cache."""
    usage, tier = body.get("usage"), body.get("serviceTier")
    if not isinstance(usage, dict):
        return None
    details = usage.get("cacheDetails")
    hour = [item for item in details if _is_for_an_hour(item)] if isinstance(details, list) else []
    return TokenUsage(
        input_tokens=count_of(usage.get("inputTokens")),
        output_tokens=count_of(usage.get("outputTokens")),
        cached_input_tokens=count_of(usage.get("cacheReadInputTokens")),
        cache_creation_input_tokens=count_of(usage.get("cacheWriteInputTokens")),
        cache_creation_1h_input_tokens=sum(count_of(item.get("inputTokens")) for item in hour),
        service_tier=text_or_none(tier.get("type")) if isinstance(tier, dict) else None,
    )


def _is_for_an_hour(item: Any) -> bool:
    return isinstance(item, dict) and item.get("ttl") == "1h"


def _natural_usage(usage: TokenUsage) -> dict[str, Any]:
    read, written = usage.cached_input_tokens, usage.cache_creation_input_tokens
    wire: dict[str, Any] = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens + read + written,
    }
    if read or written:
        wire.update(cacheReadInputTokens=read, cacheWriteInputTokens=written)
    hour = usage.cache_creation_1h_input_tokens
    if hour:
        rest = [{"ttl": "5m", "inputTokens": written - hour}] if written > hour else []
        wire["cacheDetails"] = [{"ttl": "1h", "inputTokens": hour}, *rest]
    return wire


# --- stream ----------------------------------------------------------------------------------------------------------

_PADDING: Final = "p"  # of random length, against those who count the bytes on the line
_BEGUN: Final = ("toolUse", "toolResult", "image")  # blocks with a contentBlockStart; others begin with a delta


class _Arriving:
    """A block as far as it has arrived."""

    def __init__(self, kind: str | None, start: dict[str, Any]) -> None:
        self.kind = kind  # None as long as nothing has told
        self.start = start
        self.parts: list[str] = []  # of its text or its input
        self.items: list[Any] = []  # of its citations or its content
        self.signature: str | None = None
        self.is_open = True

    def wire(self) -> dict[str, Any]:
        """The block as it would have stood in a whole answer."""
        text = "".join(self.parts)
        match self.kind:
            case "text" if self.items:
                content = {"content": [{"text": text}]} if self.parts else {}
                return {"citationsContent": {**content, "citations": self.items}}
            case "text" | None:
                return {"text": text}
            case "reasoning":
                signed = {"signature": self.signature} if self.signature is not None else {}
                return {"reasoningContent": {"reasoningText": {"text": text, **signed}}}
            case "redacted":
                return {"reasoningContent": {"redactedContent": _joined_base64(self.parts)}}
            case "toolUse":
                return {"toolUse": {**self.start, "input": _object_of(text) if text.strip() else {}}}
            case "toolResult":
                return {"toolResult": {**self.start, "content": self.items}}
            case "image":
                return {"image": {**self.start, **{key: part for item in self.items for key, part in item.items()}}}
            case kind:  # one that a newer version added
                return {kind: self.items[0] if len(self.items) == 1 else self.items}


def _joined_base64(parts: list[str]) -> str:
    """One blob out of several, each encoded by itself."""
    if len(parts) == 1:
        return parts[0]
    try:
        return base64.b64encode(b"".join(base64.b64decode(part, validate=True) for part in parts)).decode()
    except (binascii.Error, ValueError):
        return "".join(parts)


class StreamReader:
    """Bytes in, events out. Each block is put together as it would have stood in a whole answer, and read as one."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, *_FRAMES):
            raise LookupError(f"{NAME} streams are AWS event streams, not {framing!r}")
        self._framing = framing or "aws-eventstream"
        self._splitter = splitter(self._framing)
        self._message: dict[str, Any] | None = None  # what messageStart said
        self._blocks: dict[int, _Arriving] = {}
        self._stop: dict[str, Any] | None = None  # what messageStop said
        self._metadata: dict[str, Any] | None = None  # comes last
        self._conversation = Conversation()
        self._call_ids: dict[int, str] = {}
        self._ended = False  # properly or not: nothing more is read

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        pieces = _lines(data) if self._framing.endswith("decoded") else _aws_pieces(self._splitter.tail, data)
        for piece in pieces:
            if self._ended:
                break
            self._take_all(partial(self._splitter.feed, piece), events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        if not self._ended:
            self._take_all(self._splitter.close, events)
        if not self._ended and self._stop is not None:
            self._complete(events)  # what it cost did not come
        elif not self._ended:
            tail = self._splitter.tail[:4096].decode("utf-8", "replace")
            self._fail("stream_incomplete", "the stream ended before the message did", events, tail=tail or None)
        return events

    def _take_all(self, frames: Callable[[], list[Frame]], events: list[StreamEvent]) -> None:
        try:
            for frame in frames():
                if not self._ended:
                    self._take(frame, events)
        except (FramingError, IndexError, struct.error):
            self._fail("bad_event", "a damaged frame", events)

    def _take(self, frame: Frame, events: list[StreamEvent]) -> None:
        handler = _HANDLERS.get(frame.event or "")
        if handler is None and not _is_exception(frame.event):
            return  # an event that a newer version added
        try:
            wire = msgspec.json.decode(frame.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            wire = None
        if handler is None:
            fault = read_error(None, {"x-amzn-errortype": _upper_first(frame.event or "")}, wire)
            events.append(StreamError(fault))
            self._ended = True
        elif not isinstance(wire, dict):
            self._fail("bad_event", f"a {frame.event} that is not a JSON object", events)
        else:
            wire.pop(_PADDING, None)
            problem = handler(self, wire, events)
            if problem is not None:
                self._fail("protocol_violation", problem, events)

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._ended = True

    def _message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message is not None:
            return "messageStart came a second time"
        self._message = wire
        events.append(MessageStart())
        return None

    def _block_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._stop is not None:
            return None  # late
        index, start = _index(wire), wire.get("start")
        if not self._may_begin(index) or not isinstance(start, dict):
            return f"contentBlockStart for block {index}, which cannot begin here"
        kind = next((kind for kind in _BEGUN if isinstance(start.get(kind), dict)), None)
        block = self._blocks[index] = _Arriving(kind, start[kind] if kind else {})
        if kind == "toolUse":
            return self._call_start(index, block, events)
        return None

    def _call_start(self, index: int, block: _Arriving, events: list[StreamEvent]) -> str | None:
        match block.start:
            case {"toolUseId": str(provider_id), "name": str(name)}:
                if block.start.get("type") != "server_tool_use":
                    call_id = self._call_ids[index] = self._conversation.call_id(provider_id)
                    events.append(ToolUseStart(index, call_id, name))
                return None
            case _:
                return f"block {index} is a call without an id or a name"

    def _may_begin(self, index: int) -> bool:
        return self._message is not None and index >= 0 and all(index > other for other in self._blocks)

    def _block_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._stop is not None:
            return None  # late
        index, delta = _index(wire), wire.get("delta")
        if index not in self._blocks and self._may_begin(index):
            self._blocks[index] = _Arriving(None, {})  # texts and reasoning begin with their first delta
        block = self._blocks.get(index)
        if block is None or not block.is_open or not isinstance(delta, dict):
            return f"contentBlockDelta for block {index}, which is not open"
        kind = _kind_of(delta)
        if block.kind is None and kind not in _BEGUN:
            block.kind = kind
        if kind is None or block.kind != kind:
            return f"contentBlockDelta of kind {kind} for block {index}, which is another block"
        self._grow(index, block, delta, events)
        return None

    def _grow(self, index: int, block: _Arriving, delta: dict[str, Any], events: list[StreamEvent]) -> None:
        match delta:
            case {"text": str(text)}:
                block.parts.append(text)
                events.append(TextDelta(index, text))
            case {"citation": citation}:
                block.items.append(citation)
            case {"toolUse": {"input": str(text)}}:
                block.parts.append(text)
                if index in self._call_ids:
                    events.append(ToolUseInputDelta(index, text))
            case {"reasoningContent": {"text": str(text)}}:
                block.parts.append(text)
                events.append(ThinkingDelta(index, text))
            case {"reasoningContent": {"signature": str(signature)}}:
                block.signature = (block.signature or "") + signature
            case {"reasoningContent": {"redactedContent": str(data)}}:
                block.parts.append(data)
            case {"toolResult": [*items]}:
                block.items.extend(items)
            case {"image": dict(part)}:
                block.items.append(part)
            case _:
                block.items.append(delta.get(block.kind or ""))

    def _block_stop(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._stop is not None:
            return None  # late
        index = _index(wire)
        block = self._blocks.get(index)
        if block is None or not block.is_open:
            return f"contentBlockStop for block {index}, which is not open"
        block.is_open = False
        if index in self._call_ids:
            events.append(ToolUseEnd(index, self._call_residue(index, block)))
            return None
        whole = block.wire()
        if block.kind == "toolUse" and whole["toolUse"]["input"] is None:
            return f"the input of block {index} is not a JSON object"
        read = _read_block(whole, Conversation())
        match read:
            case TextBlock(provider_raw=raw):
                events.append(TextDelta(index, "", raw))
            case ThinkingBlock(signature=signature, provider_raw=raw):
                events.append(ThinkingDelta(index, "", signature, raw))
            case _:
                events.append(BlockComplete(index, read))
        return None

    def _call_residue(self, index: int, block: _Arriving) -> dict[str, Any] | None:
        """What else the call said; its input is not looked at, that is for whoever folds the events."""
        call_id, wire = self._call_ids[index], {**block.start, "input": {}}
        notes = _id_note(wire["toolUseId"], call_id)
        natural = _natural_block(ToolUseBlock(call_id, wire["name"], {}), notes)
        return noted(NAME, natural, {"toolUse": wire}, **notes)

    def _message_stop(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message is None:
            return "messageStop before messageStart"
        if self._stop is not None:
            return "messageStop came a second time"
        if any(block.is_open for block in self._blocks.values()):
            return "messageStop while a block is open"
        if not isinstance(wire.get("stopReason"), str):
            self._fail("stream_incomplete", "the message ended without a reason", events)
            return None
        self._stop = wire
        if self._metadata is not None:
            self._complete(events)
        return None

    def _take_metadata(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message is None:
            return "metadata before messageStart"
        self._metadata = wire
        usage = _read_usage(wire)
        if usage is not None:
            events.append(UsageUpdate(usage))
        if self._stop is not None:
            self._complete(events)
        return None

    def _complete(self, events: list[StreamEvent]) -> None:
        """What a whole answer would have said beside its blocks."""
        message = {**(self._message or {}), "content": []}
        whole = read_reply({**(self._stop or {}), **(self._metadata or {}), "output": {"message": message}})
        if whole.fault is not None:
            events.append(StreamError(whole.fault, whole.provider_raw))
        else:
            events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))
        self._ended = True


_HANDLERS: Final = {
    "messageStart": StreamReader._message_start,
    "contentBlockStart": StreamReader._block_start,
    "contentBlockDelta": StreamReader._block_delta,
    "contentBlockStop": StreamReader._block_stop,
    "messageStop": StreamReader._message_stop,
    "metadata": StreamReader._take_metadata,
}


def _lines(data: bytes) -> Iterator[bytes]:
    """Line by line: what stands before a damaged one is still good."""
    yield from data.splitlines(keepends=True)


def _aws_pieces(rest: bytes, data: bytes) -> Iterator[bytes]:
    """The data, cut where frames end: what stands before a damaged one is still good."""
    buffer, start, given = rest + data, 0, len(rest)
    while given < len(buffer):
        known = len(buffer) - start >= 12
        end = start + max(16, struct.unpack_from(">I", buffer, start)[0]) if known else len(buffer)
        yield buffer[given:end]
        start = given = end


def _is_exception(event: str | None) -> bool:
    """Whether a frame tells of a failure; AWS names no event at all in those that no service modelled."""
    return event is None or event.lower().endswith(("exception", "error"))


def _upper_first(name: str) -> str:
    return name[:1].upper() + name[1:]


def _index(wire: dict[str, Any]) -> int:
    index = wire.get("contentBlockIndex")
    return index if type(index) is int else -1


def _kind_of(delta: dict[str, Any]) -> str | None:
    """Which kind of block a delta belongs to; ``None`` if it is malformed."""
    match delta:
        case {"text": str()} | {"citation": dict()}:
            return "text"
        case {"reasoningContent": {"redactedContent": str()}}:
            return "redacted"
        case {"reasoningContent": {"text": str()} | {"signature": str()}}:
            return "reasoning"
        case {"toolUse": {"input": str()}} | {"toolResult": list()} | {"image": dict()}:
            return next(kind for kind in _BEGUN if kind in delta)
        case _:  # one that a newer version added
            return next((key for key in delta if key not in (*_BEGUN, "text", "citation", "reasoningContent")), None)


def stream_reader(framing: str | None = None) -> StreamReader:
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out, in the order that the official SDKs expect: one block after the other."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, *_FRAMES):
            raise LookupError(f"{NAME} streams are AWS event streams, not {framing!r}")
        self._framing = framing or "aws-eventstream"
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the message has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        event_frame, exception_frame = _FRAMES[self._framing]
        reply = fold(self._events)
        out = [event_frame(wire, event) for event, wire in _written_stream(reply)]
        fault = _unsaid_fault(reply)
        if fault is not None:
            out.append(exception_frame({"message": fault.message}, _stream_exception(fault)))
        return b"".join(out)


def _unsaid_fault(reply: Reply) -> Fault | None:
    """How it failed, unless there is a stop reason that says so."""
    return None if reply.fault is None or reply.fault.provider_code in _MALFORMED else reply.fault


def _written_stream(reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    wire = write_reply(reply).wire
    output = wire.pop("output")["message"]
    content = output.pop("content")
    yield "messageStart", output
    parts = [_stream_parts(block) for block in content]
    for index, (start, deltas) in enumerate(part for part in parts if part[1]):
        if start is not None:
            yield "contentBlockStart", {"contentBlockIndex": index, "start": start}
        for delta in deltas:
            yield "contentBlockDelta", {"contentBlockIndex": index, "delta": delta}
        yield "contentBlockStop", {"contentBlockIndex": index}
    if _unsaid_fault(reply) is not None:
        return
    stop = {key: wire.pop(key) for key in ("stopReason", "additionalModelResponseFields") if key in wire}
    yield "messageStop", stop
    if wire:
        yield "metadata", wire


def _stream_parts(block: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """How a block begins, where that has to be said, and its deltas; nothing for a block that no stream can carry."""
    match block:
        case {"text": text}:
            return None, [{"text": text}]
        case {"citationsContent": dict(cited)}:
            deltas = [{"text": part["text"]} for part in cited.get("content") or []]
            return None, deltas + [{"citation": citation} for citation in cited.get("citations") or []]
        case {"reasoningContent": {"reasoningText": dict(said)}}:
            signature = said.get("signature")
            signed = [{"reasoningContent": {"signature": signature}}] if signature is not None else []
            return None, [{"reasoningContent": {"text": said["text"]}}, *signed]
        case {"reasoningContent": {"redactedContent": data}}:
            return None, [{"reasoningContent": {"redactedContent": data}}]
        case {"toolUse": dict(call)}:
            start = {key: value for key, value in call.items() if key != "input"}
            return {"toolUse": start}, [{"toolUse": {"input": _compact(call.get("input"))}}]
        case {"toolResult": dict(result)}:
            start = {key: value for key, value in result.items() if key != "content"}
            return {"toolResult": start}, [{"toolResult": result.get("content") or []}]
        case {"image": dict(image)}:
            rest = {key: value for key, value in image.items() if key != "format"}
            return {"image": {"format": image.get("format")}}, [{"image": rest}]
        case _:
            return None, []


_STREAM_EXCEPTIONS: Final = (
    "internalServerException",
    "modelStreamErrorException",
    "serviceUnavailableException",
    "throttlingException",
    "validationException",
)


def _stream_exception(fault: Fault) -> str:
    """One of the few failures that a stream can tell of."""
    own = (fault.provider_code or "")[:1].lower() + (fault.provider_code or "")[1:]
    if own in _STREAM_EXCEPTIONS:
        return own
    match fault.error_class:
        case ErrorClass.RATE_LIMIT:
            return "throttlingException"
        case ErrorClass.INVALID_REQUEST | ErrorClass.CONTEXT_OVERFLOW | ErrorClass.AUTH:
            return "validationException"
        case ErrorClass.SERVER_ERROR:
            return "internalServerException"
        case _:
            return "modelStreamErrorException"


def _aws_exception_frame(wire: Any, name: str) -> bytes:
    """A frame that tells of a failure: the SDKs know it by its headers."""
    headers = b"".join(
        bytes([len(key)]) + key + b"\x07" + struct.pack(">H", len(value)) + value
        for key, value in (
            (b":exception-type", name.encode()),
            (b":content-type", b"application/json"),
            (b":message-type", b"exception"),
        )
    )
    payload = msgspec.json.encode(wire)
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return body + struct.pack(">I", binascii.crc32(body))


def _decoded_exception_frame(wire: Any, name: str) -> bytes:
    """The same as recorders keep it."""
    return json_line({"headers": {":exception-type": name, ":message-type": "exception"}, "payload": wire}) + b"\n"


_FRAMES: Final = {
    "aws-eventstream": (aws_frame, _aws_exception_frame),
    "aws-eventstream-decoded": (decoded_aws_frame, _decoded_exception_frame),
}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)


# --- error -----------------------------------------------------------------------------------------------------------

# The first kind of a code is the one that we write.
_ERROR_TYPES: Final = {
    "ThrottlingException": ("rate_limited", ErrorClass.RATE_LIMIT),
    "TooManyRequestsException": ("rate_limited", ErrorClass.RATE_LIMIT),
    "ServiceQuotaExceededException": ("rate_limited", ErrorClass.RATE_LIMIT),
    "ModelNotReadyException": ("overloaded", ErrorClass.RATE_LIMIT),
    "UnrecognizedClientException": ("unauthorized", ErrorClass.AUTH),
    "ExpiredTokenException": ("unauthorized", ErrorClass.AUTH),
    "InvalidSignatureException": ("unauthorized", ErrorClass.AUTH),
    "IncompleteSignatureException": ("unauthorized", ErrorClass.AUTH),
    "MissingAuthenticationTokenException": ("unauthorized", ErrorClass.AUTH),
    "AccessDeniedException": ("forbidden", ErrorClass.AUTH),
    "ResourceNotFoundException": ("not_found", ErrorClass.INVALID_REQUEST),
    "ValidationException": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "ConflictException": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "ModelTimeoutException": ("timeout", ErrorClass.NETWORK),
    "InternalServerException": ("server_error", ErrorClass.SERVER_ERROR),
    "ServiceUnavailableException": ("server_error", ErrorClass.SERVER_ERROR),
    "ModelErrorException": ("server_error", ErrorClass.SERVER_ERROR),
    "ModelStreamErrorException": ("server_error", ErrorClass.SERVER_ERROR),
}
_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})
_TOO_LONG: Final = ("too long", "tokens exceed", "exceeds maximum length", "context length", "context window")


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side. Its name stands in a header, or in the body of older services."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = None
    said = body if isinstance(body, dict) else {}
    known = {name.lower(): value for name, value in headers.items()}
    kind = str(known.get("x-amzn-errortype") or said.get("__type") or said.get("code") or "")
    kind = kind.partition(":")[0].rpartition("#")[2]  # com.amazon.coral.service#Kind, Kind:http://…
    message = str(said.get("message") or said.get("Message") or "no message")
    code, error_class = _ERROR_TYPES.get(kind, _by_status(status))
    if error_class is ErrorClass.INVALID_REQUEST and any(sign in message.lower() for sign in _TOO_LONG):
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
        request_id=known.get("x-amzn-requestid"),
    )


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
        case 424:  # the model failed, not the request
            return "server_error", ErrorClass.SERVER_ERROR
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT
        case int() if 400 <= status < 500:
            return "invalid_request", ErrorClass.INVALID_REQUEST
        case _:
            return "server_error", ErrorClass.SERVER_ERROR


def write_error(fault: Fault) -> Written:
    """The fault as this API says it. ``__type`` belongs into ``x-amzn-errortype``; the SDKs read it here as well."""
    kinds = {code: kind for kind, (code, _) in reversed(_ERROR_TYPES.items())}
    kinds["context_overflow"] = "ValidationException"
    kind = fault.provider_code if fault.provider_code in _ERROR_TYPES else kinds.get(fault.code)
    return Written({"__type": kind or "InternalServerException", "message": fault.message})


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
