"""A strict Converse API: it rejects what AWS Bedrock rejects, with the same error texts.

Sources: the API reference of Converse (2026), errors in recorded traffic, and error texts in public issues. It also
applies rules of Anthropic's models, which receive most of this traffic.
"""

from __future__ import annotations

import binascii
import itertools
import re
import struct
from collections.abc import Iterator
from typing import Any, Final

from tests.fake_providers.rules import rule_problems
from tests.fake_providers.script import (
    CallPart,
    IssuedSignatures,
    Part,
    TextPart,
    ThinkingPart,
    derive_id,
    json_text,
    split_text,
)
from tests.fake_providers.shape import TOOL_NAME, decode_base64, detect_media_type, unknown_keys

NAME: Final = "bedrock_converse"
MODEL: Final = "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0"
BASE_PATH: Final = ""
PATH: Final = re.compile(r"/model/(?P<model>.+)/(?P<verb>converse|converse-stream)")
KEY_HEADERS: Final = ("authorization",)
STREAM_TYPE: Final = "application/vnd.amazon.eventstream"
ERROR_HEADERS: Final = {"x-amzn-errortype": "ValidationException"}

_TOP: Final = frozenset(
    [
        "messages",
        "system",
        "inferenceConfig",
        "toolConfig",
        "guardrailConfig",
        "additionalModelRequestFields",
        "outputConfig",
        "additionalModelResponseFieldPaths",
        "performanceConfig",
        "promptVariables",
        "requestMetadata",
        "serviceTier",
    ]
)
_BLOCKS: Final = {
    "user": frozenset(
        ["text", "image", "document", "video", "audio", "toolResult", "guardContent", "cachePoint", "searchResult"]
    ),
    "assistant": frozenset(["text", "toolUse", "reasoningContent", "citationsContent", "cachePoint", "image"]),
}
_RESULT_BLOCKS: Final = frozenset(["text", "json", "image", "document", "video", "searchResult"])
_TOOL_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_DOCUMENT_NAME: Final = re.compile(r"(?!.*\s\s)[a-zA-Z0-9\s\-()\[\]_.]{1,200}")
_DOCUMENTS: Final = ("pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md")
_IMAGE_TYPES: Final = ("png", "jpeg", "gif", "webp")
# Models that accept an assistant message first.
_MAY_START_WITH_ASSISTANT: Final = re.compile(r"claude-[a-z]+-(?:4-[5-9]|5)")
Block = dict[str, Any]


def refusals(body: Any, issued: IssuedSignatures | None = None, model: str = "") -> list[str]:
    """Return the reasons why the API rejects a request. Without ``issued``, any signature is accepted."""
    problems = list(_check_shape(body))
    if problems:
        return problems
    messages = body.get("messages") or []
    return [
        *_check_order(messages, model),
        *_check_results(messages),
        *_check_tools(body, messages),
        *_check_reasoning(messages, issued),
        *rule_problems(NAME, body, model),
    ]


def _check_shape(body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        yield "Unexpected field type"
        return
    yield from (
        f"Malformed input request: #: extraneous key [{key}] is not permitted" for key in unknown_keys(body, _TOP)
    )
    for index, block in enumerate(body.get("system") or ()):
        if "text" in block and not str(block["text"]).strip():
            yield f"The text field in the SystemContentBlock object at system.{index} is blank. Add text to the text field, and try again."
    messages = body.get("messages") or []
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        yield "Unexpected field type"
        return
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in _BLOCKS:
            yield f"1 validation error detected: Value '{role}' at 'messages.{index + 1}.member.role' failed to satisfy constraint: Member must satisfy enum value set: [user, assistant]"
        elif not isinstance(content, list) or not content:
            yield f"The content field in the Message object at messages.{index} is empty. Add a ContentBlock object to the content field and try again."
        else:
            for place, block in enumerate(content):
                yield from _check_block(
                    block, _BLOCKS[role], f"messages.{index}.content.{place}", is_user=role == "user"
                )
            yield from _check_documents(content, index)


def _check_block(block: Any, kinds: frozenset[str], where: str, *, is_user: bool) -> Iterator[str]:
    kind = next(iter(block), "") if isinstance(block, dict) and len(block) == 1 else ""
    if kind not in kinds:
        yield f"The model returned the following errors: Malformed input request: #/{where.replace('.', '/')}: extraneous key [{kind}] is not permitted, please reformat your input and try again."
        return
    value = block[kind]
    match kind:
        case "text" if not str(value).strip() and is_user:
            yield f"The text field in the ContentBlock object at {where} is blank. Add text to the text field, and try again."
        case "image" | "document" | "video" | "audio":
            yield from _check_media(value, kind, where)
        case "toolUse":
            if not _TOOL_ID.fullmatch(str(value.get("toolUseId", ""))):
                yield f"1 validation error detected: Value '{value.get('toolUseId')}' at '{where}.toolUse.toolUseId' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_.:-]+"
            if not TOOL_NAME.fullmatch(str(value.get("name", ""))):
                yield f"1 validation error detected: Value '{value.get('name')}' at '{where}.toolUse.name' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"
            if not isinstance(value.get("input"), dict):
                yield f"The format of the value at {where}.toolUse.input is invalid. Provide a json object for the field and try again."
        case "toolResult":
            yield from _check_result(value, where)
        case _:
            return


def _check_result(value: Block, where: str) -> Iterator[str]:
    content = value.get("content")
    if not isinstance(content, list):
        yield f"1 validation error detected: Value null at '{where}.toolResult.content' failed to satisfy constraint: Member must not be null"
        return
    if not content and value.get("status") == "error":
        yield f"The content field at {where}.toolResult cannot be empty when status value is error."
    for place, inner in enumerate(content):
        yield from _check_block(inner, _RESULT_BLOCKS, f"{where}.toolResult.content.{place}", is_user=True)


def _check_media(value: Block, kind: str, where: str) -> Iterator[str]:
    format_name, source = value.get("format"), value.get("source") or {}
    if kind == "image" and format_name not in _IMAGE_TYPES:
        yield f"1 validation error detected: Value '{format_name}' at '{where}.image.format' failed to satisfy constraint: Member must satisfy enum value set: [png, jpeg, gif, webp]"
    if kind == "document":
        if format_name not in _DOCUMENTS:
            yield f"1 validation error detected: Value '{format_name}' at '{where}.document.format' failed to satisfy constraint: Member must satisfy enum value set"
        if not _DOCUMENT_NAME.fullmatch(str(value.get("name", ""))):
            yield "The document file name can only contain alphanumeric characters, whitespace characters, hyphens, parentheses, and square brackets. The name can't contain more than one consecutive whitespace character."
    if "bytes" not in source:
        if not set(source) & {"s3Location", "text", "content"}:
            yield f"The source at {where}.{kind} is empty"
        return
    found = decode_base64(source["bytes"])
    if found is None:
        yield f"The format of the value at {where}.{kind}.source.bytes is invalid: not base64"
    elif kind == "image" and detect_media_type(found) is None:
        yield "The model returned the following errors: Could not process image"
    elif kind == "image" and detect_media_type(found) != f"image/{format_name}":
        yield f"The model returned the following errors: {where}.image.source.base64: Image does not match the provided media type image/{format_name}"
    elif kind == "document" and format_name == "pdf" and detect_media_type(found) != "application/pdf":
        yield "The model returned the following errors: The PDF specified was not valid."


def _check_documents(content: list[Block], index: int) -> Iterator[str]:
    documents = [block["document"] for block in content if isinstance(block, dict) and "document" in block]
    names = [document.get("name") for document in documents]
    if documents and not any("text" in block for block in content if isinstance(block, dict)):
        yield f"A text block must be included when using documents in messages.{index}."
    if len(set(names)) != len(names):
        yield f"messages.{index} contains documents with the same name. Give each one a name of its own."


# --- order, results and tools ----------------------------------------------------------------------------------------


def _check_order(messages: list[Block], model: str) -> Iterator[str]:
    roles = [message["role"] for message in messages]
    if not messages:
        yield "The messages field is empty. Add a Message object to the messages field and try again."
        return
    if "user" not in roles or (roles[0] != "user" and not _MAY_START_WITH_ASSISTANT.search(model)):
        yield "A conversation must start with a user message. Try again with a conversation that starts with a user message."
    if any(before == after for before, after in itertools.pairwise(roles)):
        yield "A conversation must alternate between user and assistant roles. Make sure the conversation alternates between user and assistant roles and try again."
    if roles[-1] != "user" and "anthropic" in model:
        yield "The model returned the following errors: This model does not support assistant message prefill. The conversation must end with a user message."


def _check_results(messages: list[Block]) -> Iterator[str]:
    calls: list[str] = []
    for index, message in enumerate(messages):
        results = [block["toolResult"].get("toolUseId") for block in message["content"] if "toolResult" in block]
        missing = [name for name in calls if name not in results]
        if missing:
            yield f"Expected toolResult blocks at messages.{index}.content for the following Ids: {', '.join(missing)}"
        if len(set(results)) != len(results):
            yield f"The toolResult blocks at messages.{index}.content contain duplicate Ids: {', '.join(results)}"
        elif len(results) > len(calls):
            yield f"The number of toolResult blocks at messages.{index}.content exceeds the number of toolUse blocks of previous turn."
        elif any(name not in calls for name in results):
            yield f"The toolResult blocks at messages.{index}.content have Ids that no toolUse block of the previous turn has."
        calls = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        if len(set(calls)) != len(calls):
            yield f"The toolUse blocks at messages.{index}.content contain duplicate Ids: {', '.join(calls)}"
    if calls:
        yield f"Expected toolResult blocks for the following Ids: {', '.join(calls)}"


def _check_tools(body: Block, messages: list[Block]) -> Iterator[str]:
    uses = any("toolUse" in block or "toolResult" in block for message in messages for block in message["content"])
    tools = (body.get("toolConfig") or {}).get("tools")
    if uses and not tools:
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    if body.get("toolConfig") is not None and not tools:
        yield "1 validation error detected: Value at 'toolConfig.tools' failed to satisfy constraint: Member must have length greater than or equal to 1"
    for index, tool in enumerate(tools or ()):
        spec = tool.get("toolSpec")
        if spec is None:
            continue  # a cache point or a system tool
        schema = (spec.get("inputSchema") or {}).get("json")
        if not TOOL_NAME.fullmatch(str(spec.get("name", ""))):
            yield f"1 validation error detected: Value '{spec.get('name')}' at 'toolConfig.tools.{index}.member.toolSpec.name' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"
        if "description" in spec and not spec["description"]:
            yield f"Parameter validation failed: Invalid length for parameter toolConfig.tools[{index}].toolSpec.description, value: 0, valid min length: 1"
        if not isinstance(schema, dict) or schema.get("type") != "object":
            yield f"The value at toolConfig.tools.{index}.toolSpec.inputSchema.json.type must be one of the following: object."


def _check_reasoning(messages: list[Block], issued: IssuedSignatures | None) -> Iterator[str]:
    for index, message in enumerate(messages):
        for place, block in enumerate(message["content"]):
            reasoning = (block.get("reasoningContent") or {}).get("reasoningText")
            where = f"messages.{index}.content.{place}"
            if reasoning is None or issued is None:
                continue
            if not issued.has_issued(reasoning.get("signature")):
                yield f"The model returned the following errors: {where}: Invalid `signature` in `thinking` block"
            elif not issued.covers(reasoning["signature"], reasoning.get("text", "")):
                yield f"The model returned the following errors: {where}: `thinking` blocks in the latest assistant message cannot be modified."


# --- replies ---------------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error response."""
    return {"message": message}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Return whether the request asks for a stream."""
    return path.endswith("/converse-stream")


def model_of(path: str, body: dict[str, Any]) -> str:
    """Return the model of a request."""
    found = PATH.search(path)
    return found["model"] if found else ""


_USAGE: Final = {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}


def write_reply(parts: list[Part], model: str, issued: IssuedSignatures) -> dict[str, Any]:
    """Return a reply that is not streamed."""
    seed = issued.next_answer()
    content = [_block(part, seed, str(index), issued) for index, part in enumerate(parts)]
    stop = "tool_use" if any("toolUse" in block for block in content) else "end_turn"
    message = {"role": "assistant", "content": content}
    return {"output": {"message": message}, "stopReason": stop, "usage": _USAGE, "metrics": {"latencyMs": 1}}


def _block(part: Part, seed: str, index: str, issued: IssuedSignatures) -> Block:
    match part:
        case TextPart(text):
            return {"text": text}
        case CallPart(name, value):
            return {"toolUse": {"toolUseId": derive_id("tooluse_", 22, seed, index), "name": name, "input": value}}
        case ThinkingPart(text):
            return {"reasoningContent": {"reasoningText": {"text": text, "signature": issued.sign(text, seed, index)}}}


def write_stream(parts: list[Part], model: str, issued: IssuedSignatures) -> list[bytes]:
    """Return the binary frames of a streamed reply."""
    answer = write_reply(parts, model, issued)
    events: list[tuple[str, Block]] = [("messageStart", {"role": "assistant"})]
    for index, block in enumerate(answer["output"]["message"]["content"]):
        at = {"contentBlockIndex": index}
        if "toolUse" in block:
            call = block["toolUse"]
            start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
            events.append(("contentBlockStart", {**at, "start": start}))
        events.extend(("contentBlockDelta", {**at, "delta": delta}) for delta in _deltas(block))
        events.append(("contentBlockStop", at))
    events.append(("messageStop", {"stopReason": answer["stopReason"]}))
    events.append(("metadata", {"usage": _USAGE, "metrics": {"latencyMs": 1}}))
    return [_frame(kind, value) for kind, value in events]


def _deltas(block: Block) -> Iterator[Block]:
    match block:
        case {"text": text}:
            yield from ({"text": piece} for piece in split_text(text))
        case {"toolUse": {"input": value}}:
            yield from ({"toolUse": {"input": piece}} for piece in split_text(json_text(value)))
        case {"reasoningContent": {"reasoningText": reasoning}}:
            yield from ({"reasoningContent": {"text": piece}} for piece in split_text(reasoning["text"]))
            yield {"reasoningContent": {"signature": reasoning["signature"]}}


def _frame(kind: str, value: Block) -> bytes:
    """Return one frame of the AWS event stream: lengths, headers, payload and checksums."""
    header_values = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for name, value in header_values.items()
    )
    payload = json_text(value).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    unchecked = prelude + struct.pack("!I", binascii.crc32(prelude)) + headers + payload
    return unchecked + struct.pack("!I", binascii.crc32(unchecked))
