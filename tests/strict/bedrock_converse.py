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

from tests.strict.rules import rule_problems
from tests.strict.script import Call, Issued, Part, Say, Think, json_text, made_id, pieces_of
from tests.strict.shape import TOOL_NAME, decoded, looks_like, unknown_keys

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
_IN_RESULT: Final = frozenset(["text", "json", "image", "document", "video", "searchResult"])
_TOOL_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_DOCUMENT_NAME: Final = re.compile(r"(?!.*\s\s)[a-zA-Z0-9\s\-()\[\]_.]{1,200}")
_DOCUMENTS: Final = ("pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md")
_PICTURES: Final = ("png", "jpeg", "gif", "webp")
_MAY_BEGIN: Final = re.compile(r"claude-[a-z]+-(?:4-[5-9]|5)")  # models that were seen to take an answer first
Block = dict[str, Any]


def refusals(body: Any, issued: Issued | None = None, model: str = "") -> list[str]:
    """Why the API would refuse the request. Without ``issued`` any signature is taken for its own."""
    wrong = list(_of_shape(body))
    if wrong:
        return wrong
    messages = body.get("messages") or []
    return [
        *_of_order(messages, model),
        *_of_results(messages),
        *_of_tools(body, messages),
        *_of_reasoning(messages, issued),
        *rule_problems(NAME, body, model),
    ]


def _of_shape(body: Any) -> Iterator[str]:
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
                yield from _of_block(block, _BLOCKS[role], f"messages.{index}.content.{place}", is_user=role == "user")
            yield from _of_documents(content, index)


def _of_block(block: Any, kinds: frozenset[str], where: str, *, is_user: bool) -> Iterator[str]:
    kind = next(iter(block), "") if isinstance(block, dict) and len(block) == 1 else ""
    if kind not in kinds:
        yield f"The model returned the following errors: Malformed input request: #/{where.replace('.', '/')}: extraneous key [{kind}] is not permitted, please reformat your input and try again."
        return
    value = block[kind]
    match kind:
        case "text" if not str(value).strip() and is_user:
            yield f"The text field in the ContentBlock object at {where} is blank. Add text to the text field, and try again."
        case "image" | "document" | "video" | "audio":
            yield from _of_media(value, kind, where)
        case "toolUse":
            if not _TOOL_ID.fullmatch(str(value.get("toolUseId", ""))):
                yield f"1 validation error detected: Value '{value.get('toolUseId')}' at '{where}.toolUse.toolUseId' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_.:-]+"
            if not TOOL_NAME.fullmatch(str(value.get("name", ""))):
                yield f"1 validation error detected: Value '{value.get('name')}' at '{where}.toolUse.name' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"
            if not isinstance(value.get("input"), dict):
                yield f"The format of the value at {where}.toolUse.input is invalid. Provide a json object for the field and try again."
        case "toolResult":
            yield from _of_result(value, where)
        case _:
            return


def _of_result(value: Block, where: str) -> Iterator[str]:
    content = value.get("content")
    if not isinstance(content, list):
        yield f"1 validation error detected: Value null at '{where}.toolResult.content' failed to satisfy constraint: Member must not be null"
        return
    if not content and value.get("status") == "error":
        yield f"The content field at {where}.toolResult cannot be empty when status value is error."
    for place, inner in enumerate(content):
        yield from _of_block(inner, _IN_RESULT, f"{where}.toolResult.content.{place}", is_user=True)


def _of_media(value: Block, kind: str, where: str) -> Iterator[str]:
    form, source = value.get("format"), value.get("source") or {}
    if kind == "image" and form not in _PICTURES:
        yield f"1 validation error detected: Value '{form}' at '{where}.image.format' failed to satisfy constraint: Member must satisfy enum value set: [png, jpeg, gif, webp]"
    if kind == "document":
        if form not in _DOCUMENTS:
            yield f"1 validation error detected: Value '{form}' at '{where}.document.format' failed to satisfy constraint: Member must satisfy enum value set"
        if not _DOCUMENT_NAME.fullmatch(str(value.get("name", ""))):
            yield "The document file name can only contain alphanumeric characters, whitespace characters, hyphens, parentheses, and square brackets. The name can't contain more than one consecutive whitespace character."
    if "bytes" not in source:
        if not set(source) & {"s3Location", "text", "content"}:
            yield f"The source at {where}.{kind} is empty"
        return
    found = decoded(source["bytes"])
    if found is None:
        yield f"The format of the value at {where}.{kind}.source.bytes is invalid: not base64"
    elif kind == "image" and looks_like(found) is None:
        yield "The model returned the following errors: Could not process image"
    elif kind == "image" and looks_like(found) != f"image/{form}":
        yield f"The model returned the following errors: {where}.image.source.base64: Image does not match the provided media type image/{form}"
    elif kind == "document" and form == "pdf" and looks_like(found) != "application/pdf":
        yield "The model returned the following errors: The PDF specified was not valid."


def _of_documents(content: list[Block], index: int) -> Iterator[str]:
    documents = [block["document"] for block in content if isinstance(block, dict) and "document" in block]
    names = [document.get("name") for document in documents]
    if documents and not any("text" in block for block in content if isinstance(block, dict)):
        yield f"A text block must be included when using documents in messages.{index}."
    if len(set(names)) != len(names):
        yield f"messages.{index} contains documents with the same name. Give each one a name of its own."


# --- order, results and tools ----------------------------------------------------------------------------------------


def _of_order(messages: list[Block], model: str) -> Iterator[str]:
    roles = [message["role"] for message in messages]
    if not messages:
        yield "The messages field is empty. Add a Message object to the messages field and try again."
        return
    if "user" not in roles or (roles[0] != "user" and not _MAY_BEGIN.search(model)):
        yield "A conversation must start with a user message. Try again with a conversation that starts with a user message."
    if any(before == after for before, after in itertools.pairwise(roles)):
        yield "A conversation must alternate between user and assistant roles. Make sure the conversation alternates between user and assistant roles and try again."
    if roles[-1] != "user" and "anthropic" in model:
        yield "The model returned the following errors: This model does not support assistant message prefill. The conversation must end with a user message."


def _of_results(messages: list[Block]) -> Iterator[str]:
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


def _of_tools(body: Block, messages: list[Block]) -> Iterator[str]:
    uses = any("toolUse" in block or "toolResult" in block for message in messages for block in message["content"])
    tools = (body.get("toolConfig") or {}).get("tools")
    if uses and not tools:
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    if body.get("toolConfig") is not None and not tools:
        yield "1 validation error detected: Value at 'toolConfig.tools' failed to satisfy constraint: Member must have length greater than or equal to 1"
    for index, tool in enumerate(tools or ()):
        spec = tool.get("toolSpec")
        if spec is None:
            continue  # a cache point, or a tool of its own
        schema = (spec.get("inputSchema") or {}).get("json")
        if not TOOL_NAME.fullmatch(str(spec.get("name", ""))):
            yield f"1 validation error detected: Value '{spec.get('name')}' at 'toolConfig.tools.{index}.member.toolSpec.name' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"
        if "description" in spec and not spec["description"]:
            yield f"Parameter validation failed: Invalid length for parameter toolConfig.tools[{index}].toolSpec.description, value: 0, valid min length: 1"
        if not isinstance(schema, dict) or schema.get("type") != "object":
            yield f"The value at toolConfig.tools.{index}.toolSpec.inputSchema.json.type must be one of the following: object."


def _of_reasoning(messages: list[Block], issued: Issued | None) -> Iterator[str]:
    for index, message in enumerate(messages):
        for place, block in enumerate(message["content"]):
            said = (block.get("reasoningContent") or {}).get("reasoningText")
            where = f"messages.{index}.content.{place}"
            if said is None or issued is None:
                continue
            if not issued.knows(said.get("signature")):
                yield f"The model returned the following errors: {where}: Invalid `signature` in `thinking` block"
            elif not issued.fits(said["signature"], said.get("text", "")):
                yield f"The model returned the following errors: {where}: `thinking` blocks in the latest assistant message cannot be modified."


# --- what it answers -------------------------------------------------------------------------------------------------


def refusal(status: int, message: str) -> dict[str, Any]:
    """An error as this API says it."""
    return {"message": message}


def is_streamed(path: str, body: dict[str, Any]) -> bool:
    """Whether the answer is to be streamed."""
    return path.endswith("/converse-stream")


def model_of(path: str, body: dict[str, Any]) -> str:
    """The model that is asked."""
    found = PATH.search(path)
    return found["model"] if found else ""


_USAGE: Final = {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}


def whole(parts: list[Part], model: str, issued: Issued) -> dict[str, Any]:
    """The answer at once."""
    seed = issued.next_answer()
    content = [_block(part, seed, str(index), issued) for index, part in enumerate(parts)]
    stop = "tool_use" if any("toolUse" in block for block in content) else "end_turn"
    message = {"role": "assistant", "content": content}
    return {"output": {"message": message}, "stopReason": stop, "usage": _USAGE, "metrics": {"latencyMs": 1}}


def _block(part: Part, seed: str, index: str, issued: Issued) -> Block:
    match part:
        case Say(text):
            return {"text": text}
        case Call(name, value):
            return {"toolUse": {"toolUseId": made_id("tooluse_", 22, seed, index), "name": name, "input": value}}
        case Think(text):
            return {"reasoningContent": {"reasoningText": {"text": text, "signature": issued.sign(text, seed, index)}}}


def streamed(parts: list[Part], model: str, issued: Issued) -> list[bytes]:
    """The same answer in binary frames."""
    answer = whole(parts, model, issued)
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
            yield from ({"text": piece} for piece in pieces_of(text))
        case {"toolUse": {"input": value}}:
            yield from ({"toolUse": {"input": piece}} for piece in pieces_of(json_text(value)))
        case {"reasoningContent": {"reasoningText": said}}:
            yield from ({"reasoningContent": {"text": piece}} for piece in pieces_of(said["text"]))
            yield {"reasoningContent": {"signature": said["signature"]}}


def _frame(kind: str, value: Block) -> bytes:
    """One frame of AWS's event stream: lengths, headers, payload, and a checksum of each part."""
    named = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + b"\x07" + struct.pack("!H", len(word)) + word.encode()
        for name, word in named.items()
    )
    payload = json_text(value).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    begun = prelude + struct.pack("!I", binascii.crc32(prelude)) + headers + payload
    return begun + struct.pack("!I", binascii.crc32(begun))
