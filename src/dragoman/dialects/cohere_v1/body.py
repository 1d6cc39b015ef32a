"""Requests and replies of version 1, arranged as those of version 2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from dragoman.dialects import cohere
from dragoman.dialects.cohere.reply import DETAILS
from dragoman.dialects.cohere_v1.tools import (
    CallIds,
    call_from_base,
    call_to_base,
    definitions_from,
    schema_from,
)
from dragoman.errors import FormatError
from dragoman.exchange import Loss, OpaqueTool, Reply, Request, ToolDefinition
from dragoman.jsontext import expect_list, expect_object
from dragoman.message import (
    CallBlock,
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.wire.derivation import Arrangement, DerivedDialect, Wire
from dragoman.wire.losses import detail_losses, supported_blocks
from dragoman.wire.residue import get_notes
from dragoman.wire.support import Support

NAME: Final = "cohere_v1"
SUPPORT: Final = Support(documentation="https://docs.cohere.com/v1/reference/chat")
_ROLES: Final = {"USER": "user", "CHATBOT": "assistant", "SYSTEM": "system"}
_ROLE_WORDS: Final = {role: word for word, role in _ROLES.items()}
_SCHEMA_KEYS: Final = {"schema": "json_schema", "json_schema": "schema"}
_DETAILS: Final = msgspec.structs.replace(DETAILS, has_tool_use=False)
_SEPARATE: Final = ("message", "chat_history", "preamble", "tools", "tool_results", "response_format")


# --- requests --------------------------------------------------------------------------------------------------------


def _request_to_base(wire: Wire) -> Wire:
    if not isinstance(wire.get("message"), str):
        raise FormatError("a request needs a message", where="$.message")
    base = {key: value for key, value in wire.items() if key not in _SEPARATE}
    if isinstance(wire.get("response_format"), dict):
        base["response_format"] = _swap_schema_keys(wire["response_format"])
    if wire.get("tools"):
        base["tools"] = [_tool_to_base(tool) for tool in expect_list(wire["tools"], "$.tools")]
    return {**base, "messages": list(_messages_to_base(wire))}


def _messages_to_base(wire: Wire) -> Iterator[Wire]:
    ids = CallIds()
    if wire.get("preamble"):
        yield {"role": "system", "content": wire["preamble"]}
    for index, item in enumerate(expect_list(wire.get("chat_history") or [], "$.chat_history")):
        yield from _entry_to_base(expect_object(item, f"$.chat_history[{index}]"), f"$.chat_history[{index}]", ids)
    results = expect_list(wire.get("tool_results") or [], "$.tool_results")
    if wire["message"] or not results:
        yield {"role": "user", "content": wire["message"]}
    if results:
        yield from _results_to_base(results, "$.tool_results", ids)


def _entry_to_base(entry: Wire, where: str, ids: CallIds) -> Iterator[Wire]:
    word = str(entry.get("role")).upper()
    if word == "TOOL":
        yield from _results_to_base(expect_list(entry.get("tool_results") or [], where), where, ids)
        return
    if word not in _ROLES:
        raise FormatError(f"a role is USER, CHATBOT, SYSTEM or TOOL, not {entry.get('role')!r}", where=f"{where}.role")
    text = entry.get("message")
    message: Wire = {"role": _ROLES[word], "content": text if isinstance(text, str) else ""}
    calls = [expect_object(call, where) for call in expect_list(entry.get("tool_calls") or [], where)]
    if calls:
        message["tool_calls"] = [call_to_base(call, ids.add(call)) for call in calls]
        message.update({} if message["content"] else {"content": []})
    yield message


def _results_to_base(results: list[Any], where: str, ids: CallIds) -> Iterator[Wire]:
    """Return the results, after the calls that only they contain."""
    objects = [expect_object(result, where) for result in results]
    calls = [expect_object(result.get("call") or {}, where) for result in objects]
    found = [ids.find(call) for call in calls]
    missing = [call for call, call_id in zip(calls, found, strict=True) if call_id is None]
    added = iter([ids.add(call) for call in missing])
    call_ids = [call_id or next(added) for call_id in found]
    if missing:
        new_ids = [call_id for call_id, known in zip(call_ids, found, strict=True) if known is None]
        new_calls = [call_to_base(call, call_id) for call, call_id in zip(missing, new_ids, strict=True)]
        for call in missing:
            ids.find(call)
        yield {"role": "assistant", "tool_calls": new_calls}
    for result, call_id in zip(objects, call_ids, strict=True):
        outputs = [expect_object(output, where) for output in expect_list(result.get("outputs") or [], where)]
        parts = [_output_to_base(output) for output in outputs]
        yield {"role": "tool", "tool_call_id": call_id, "content": parts}


def _output_to_base(output: Wire) -> Wire:
    """Return an output as a text if it is nothing else, else as a document."""
    if output.keys() == {"text"} and isinstance(output["text"], str):
        return {"type": "text", "text": output["text"]}
    return {"type": "document", "document": {"data": output}}


def _tool_to_base(tool: Any) -> Wire:
    wire = expect_object(tool, "$.tools")
    function = {key: wire[key] for key in ("name", "description") if key in wire}
    definitions = wire.get("parameter_definitions")
    schema = schema_from(definitions if isinstance(definitions, dict) else {})
    return {"type": "function", "function": {**function, "parameters": schema}}


def _request_from_base(base: Wire) -> Wire:
    messages = list(base["messages"])
    calls = {call["id"]: call_from_base(call) for message in messages for call in message.get("tool_calls") or ()}
    wire = {key: value for key, value in base.items() if key not in ("messages", "tools", "response_format", "model")}
    wire = {**({"model": base["model"]} if "model" in base else {}), "message": "", **wire}
    if messages and messages[0]["role"] == "system":
        wire["preamble"] = _lines_of(messages.pop(0))
    last_results: list[Wire] = []
    while messages and messages[-1]["role"] == "tool":
        last_results.insert(0, _result_from_base(messages.pop(), calls))
    if messages and messages[-1]["role"] == "user" and not last_results:
        wire["message"] = _lines_of(messages.pop())
    history = list(_history_from_base(messages, calls))
    wire.update({"chat_history": history} if history else {})
    wire.update({"tool_results": last_results} if last_results else {})
    if base.get("tools"):
        wire["tools"] = [_tool_from_base(tool) for tool in base["tools"]]
    if isinstance(base.get("response_format"), dict):
        wire["response_format"] = _swap_schema_keys(base["response_format"])
    return wire


def _swap_schema_keys(response_format: Wire) -> Wire:
    """Return a format with the key of the other version: each version also reads the key of the other one."""
    return {_SCHEMA_KEYS.get(key, key): value for key, value in response_format.items()}


def _history_from_base(messages: Iterable[Wire], calls: dict[str, Wire]) -> Iterator[Wire]:
    results: list[Wire] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(_result_from_base(message, calls))
            continue
        if results:
            yield {"role": "TOOL", "tool_results": results}
            results = []
        role = message["role"]
        entry: Wire = {"role": _ROLE_WORDS.get(role, role), "message": _lines_of(message)}
        if message.get("tool_calls"):
            entry["tool_calls"] = [call_from_base(call) for call in message["tool_calls"]]
        yield entry
    if results:
        yield {"role": "TOOL", "tool_results": results}


def _text_of(message: Wire) -> str:
    return "".join(_texts_of(message))


def _texts_of(message: Wire) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    texts = [part.get("text") for part in content or () if isinstance(part, dict)]
    return [text for text in (message.get("tool_plan"), *texts) if isinstance(text, str) and text]


def _lines_of(message: Wire) -> str:
    """Return the texts of a message of a request, each on a line of its own."""
    return "\n".join(_texts_of(message))


def _result_from_base(message: Wire, calls: dict[str, Wire]) -> Wire:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    outputs = [_output_from_base(part) for part in parts]
    call = calls.get(message["tool_call_id"], {"name": message["tool_call_id"], "parameters": {}})
    return {"call": call, "outputs": outputs}


def _output_from_base(part: Wire) -> Wire:
    data = part.get("text")
    if part.get("type") == "document":
        document = part.get("document")
        data = document.get("data") if isinstance(document, dict) else document
    return data if isinstance(data, dict) else {"text": data}


def _tool_from_base(tool: Wire) -> Wire:
    function = tool.get("function", tool)
    description = function.get("description", "")
    parameters = function.get("parameters")
    definitions = definitions_from(parameters if isinstance(parameters, dict) else {})
    return {"name": function.get("name"), "description": description, "parameter_definitions": definitions}


def _prepare(request: Request, losses: list[Loss]) -> Request:
    """Remove what version 2 has and this version has not."""
    is_own = bool(get_notes(request.provider_raw, NAME))  # its residue restores what it contained
    if not is_own:
        request = _drop_opaque_tools(request, losses)
    if "form" in (notes := get_notes(request.provider_raw, cohere.NAME)):  # the key of the schema is another one here
        request = request.replace(provider_raw={key: note for key, note in notes.items() if key != "form"})
    tools = tuple(_reduce_schema(tool, losses) for tool in request.tools)
    options = request.options
    for name in ("tool_choice", "reasoning"):
        if getattr(options, name) is not None:
            losses.append(Loss("", "", name, NAME, "this API has no such option"))
    call_ids = {block.id for message in request.messages for block in message.content if isinstance(block, CallBlock)}
    for message in request.messages:
        for block in message.content:
            if isinstance(block, ToolResultBlock) and block.tool_use_id not in call_ids:
                reason = "a result repeats its call here, which the request does not have"
                losses.append(Loss(message.session_id, message.id, "tool_result", NAME, reason))
            if isinstance(block, InvalidToolUseBlock) and not is_own and get_notes(block.provider_raw, cohere.NAME):
                reason = "the text of its input becomes the parameter invalid_input"
                losses.append(Loss(message.session_id, message.id, block.type, NAME, reason, "adjusted"))
    messages = tuple(_keep_supported(message, losses) for message in request.messages)
    kept = tuple(
        message
        for message, before in zip(messages, request.messages, strict=True)
        if message.content or not before.content
    )
    return request.replace(messages=kept, tools=tools, options=options.replace(tool_choice=None, reasoning=None))


def _reduce_schema(tool: ToolDefinition | OpaqueTool, losses: list[Loss]) -> ToolDefinition | OpaqueTool:
    """Return the tool with the part of its schema that this API can describe."""
    if isinstance(tool, OpaqueTool):
        return tool
    schema = schema_from(definitions_from(tool.input_schema))
    if schema == tool.input_schema:
        return tool
    reason = f"this API cannot describe all parameters of {tool.name}"
    losses.append(Loss("", "", "tool.input_schema", NAME, reason))
    return tool.replace(input_schema=schema)


def _drop_opaque_tools(request: Request, losses: list[Loss]) -> Request:
    """Remove tools of version 2 that are no functions."""
    tools = tuple(tool for tool in request.tools if not isinstance(tool, OpaqueTool) or tool.dialect != cohere.NAME)
    lost_count = len(request.tools) - len(tools)
    losses.extend(Loss("", "", "tool", NAME, "this API has only functions") for _ in range(lost_count))
    return request.replace(tools=tools) if lost_count else request


def _keep_supported(message: Message, losses: list[Loss]) -> Message:
    blocks = supported_blocks(message.content, _unsupported_reason, NAME, losses, message)
    return message if len(blocks) == len(message.content) else message.replace(content=tuple(blocks))


def _prepare_reply(reply: Reply, losses: list[Loss]) -> Reply:
    losses.extend(detail_losses(reply, NAME, _DETAILS))
    content = supported_blocks(reply.content, _unsupported_reason, NAME, losses)
    return reply if len(content) == len(reply.content) else reply.replace(content=tuple(content))


def _unsupported_reason(block: ContentBlock) -> str | None:
    supported = (TextBlock, ToolUseBlock, InvalidToolUseBlock, ToolResultBlock)
    return None if isinstance(block, supported) else "this API accepts only texts, calls and results"


# --- replies ---------------------------------------------------------------------------------------------------------

_MOVED: Final = ("text", "tool_calls", "meta", "finish_reason")


def _reply_to_base(wire: Wire) -> Wire:
    if "text" not in wire and "tool_calls" not in wire:
        return wire  # an error
    base = {key: value for key, value in wire.items() if key not in _MOVED}
    calls = [expect_object(call, "$.tool_calls") for call in expect_list(wire.get("tool_calls") or [], "$.tool_calls")]
    message: Wire = {"role": "assistant"}
    if wire.get("text") or not calls:
        message["content"] = [{"type": "text", "text": wire.get("text") or ""}]
    if calls:
        ids = CallIds()
        message["tool_calls"] = [call_to_base(call, ids.add(call)) for call in calls]
    reason = wire.get("finish_reason")
    base["message"] = message
    if reason is not None:
        base["finish_reason"] = "TOOL_CALL" if calls and reason == "COMPLETE" else reason
    if isinstance(wire.get("meta"), dict):
        base["usage"] = _usage_to_base(wire)
    return base


def _usage_to_base(wire: Wire) -> Wire:
    """Return the usage; early replies count the tokens of the prompt apart from those that are billed."""
    counts = wire.get("token_count")
    if "tokens" in wire["meta"] or not isinstance(counts, dict):
        return dict(wire["meta"])
    tokens = {"input_tokens": counts.get("prompt_tokens"), "output_tokens": counts.get("response_tokens")}
    return {**wire["meta"], "tokens": tokens}


def _reply_from_base(base: Wire) -> Wire:
    message = base.get("message")
    if not isinstance(message, dict):
        return base
    wire = {key: value for key, value in base.items() if key not in ("id", "message", "usage")}
    wire["text"] = _text_of(message)
    if message.get("tool_calls"):
        wire["tool_calls"] = [call_from_base(call) for call in message["tool_calls"]]
    if wire.get("finish_reason") == "TOOL_CALL":
        wire["finish_reason"] = "COMPLETE"
    if "usage" in base:
        wire["meta"] = base["usage"]
    return wire


DIALECT: Final = DerivedDialect(
    NAME,
    cohere,
    Arrangement(_request_to_base, _request_from_base),
    Arrangement(_reply_to_base, _reply_from_base),
    prepare=_prepare,
    support=SUPPORT,
    prepare_reply=_prepare_reply,
)
read_request = DIALECT.read_request
read_reply = DIALECT.read_reply
write_request = DIALECT.write_request
write_reply = DIALECT.write_reply
