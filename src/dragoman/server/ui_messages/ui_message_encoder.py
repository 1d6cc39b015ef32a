"""Encode stored events as chunks of the AI SDK's UI message stream.

    encoder = UiMessageEncoder(message_id, first_chunks)       of a message that the client has already, if any
    encoder.encode(events) -> bytes
    encoder.close() -> bytes

Pure: no store, no clock. One run is one UI message, or the rest of one: an answer is a step, a call and its result are
one part. The id of the message is the id of its first answer. The format is that of ``ai`` 5 to 7 (npm); approvals
need version 6.

Invariants: a call is complete, for a client that runs it, only after its answer is complete; a message of a failed or
cancelled run has neither ``text-end`` for its last text nor ``finish``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dragoman.errors import JsonError
from dragoman.jsontext import read_json
from dragoman.server.runs.agui_encoder import INPUT_REQUIRED
from dragoman.server.runs.stream_encoder import KEEP_ALIVE, SSE, STREAM_HEADERS, BrokenStreamError, encode_event
from dragoman.store.runs import RunEvent
from dragoman.transcripts.base import KEY, MEDIA_BLOCKS

Chunk = dict[str, Any]
_DONE: Final = b"data: [DONE]\n\n"
_INCOMPLETE: Final = ("cancelled", "error")  # stop reasons of answers
_FINISH_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool-calls",
    "refusal": "content-filter",
}
_TOKEN_COUNTS: Final = ("inputTokens", "outputTokens", "totalTokens", "reasoningTokens", "cachedInputTokens")


class _Call(msgspec.Struct):
    """A call whose input arrives."""

    name: str
    text: str = ""


class UiMessageEncoder:
    """Encodes the events of one run."""

    media_type = SSE
    headers: Mapping[str, str] = {**STREAM_HEADERS, "x-vercel-ai-ui-message-stream": "v1"}

    def __init__(
        self,
        message_id: str | None = None,
        first_chunks: Iterable[Chunk] = (),
        *,
        declined: Iterable[str] = (),
        answered: Iterable[str] = (),
    ) -> None:
        self._message_id = message_id
        self._first_chunks = list(first_chunks)  # parts of the message from earlier runs
        self._declined = frozenset(declined)  # calls that the user does not allow
        self._answered = frozenset(answered)  # calls whose output the client has
        self._metadata: dict[str, Any] = {}
        self._has_started = False
        self._is_step_open = False
        self.has_ended = False
        self._held_end: Chunk | None = None  # of a text, until the answer continues or is complete
        self._signatures: dict[str, str] = {}  # by reasoning
        self._reasoning_with_text: set[str] = set()
        self._calls: dict[str, _Call] = {}  # of the current answer

    def encode(self, events: Sequence[RunEvent]) -> bytes:
        """A frame for each chunk."""
        if not events:
            return KEEP_ALIVE
        chunks = [chunk for event in events for chunk in self.encode_event(msgspec.json.decode(event.json))]
        frames = b"".join(f"data: {encode_event(chunk)}\n\n".encode() for chunk in chunks)
        return frames + _DONE if self.has_ended else frames

    def close(self) -> None:
        """End the stream after the last event of a run."""
        if not self.has_ended:
            raise BrokenStreamError

    def encode_event(self, event: Mapping[str, Any]) -> list[Chunk]:
        """The chunks of one event."""
        match event:
            case {"type": "RUN_STARTED", "runId": run_id}:
                self._metadata["runId"] = run_id
                return []
            case {"type": "RUN_FINISHED"}:
                return [*self._start(), *self._end(event)]
            case {"type": "RUN_ERROR", "message": message}:
                return [*self._start(), *self._fail(event, str(message))]
            case {"type": "STEP_STARTED"}:
                return self._start_step(_own(event))
            case {"type": "STEP_FINISHED"}:
                return self._finish_answer(_own(event))
            case {"type": "TOOL_CALL_RESULT"}:
                return [] if event["toolCallId"] in self._answered else [*self._start(), self._encode_result(event)]
            case {"type": str(kind)} if kind.startswith(("TEXT_", "REASONING_", "TOOL_CALL_", "CUSTOM")):
                return self._encode_content(event)
            case _:
                return []  # snapshots: the client has the messages

    # --- start and steps ---------------------------------------------------------------------------------------------

    def _start(self, message_id: str | None = None, model: str | None = None) -> list[Chunk]:
        """The first chunks, once."""
        if self._has_started:
            return []
        self._has_started = True
        if model is not None:
            self._metadata["model"] = model
        message_id = self._message_id or message_id
        head = {"type": "start", **({} if message_id is None else {"messageId": message_id})}
        return [{**head, "messageMetadata": dict(self._metadata)}, *self._first_chunks]

    def _start_step(self, details: Mapping[str, Any]) -> list[Chunk]:
        start = self._start(details.get("message_id"), details.get("model"))
        chunks = [*start, *self._finish_step(), {"type": "start-step"}]
        self._is_step_open = True
        self._calls = {}
        return chunks

    def _finish_step(self) -> list[Chunk]:
        if not self._is_step_open:
            return []
        self._is_step_open = False
        return [{"type": "finish-step"}]

    def _finish_answer(self, details: Mapping[str, Any]) -> list[Chunk]:
        """The end of an answer: its calls are complete. Results follow in the same step."""
        if details.get("stop_reason", "error") in _INCOMPLETE:
            return []
        chunks = [*self._release_end(), *(_complete_call(call_id, call) for call_id, call in self._calls.items())]
        self._calls = {}
        return [*chunks, *(_encode_source(source) for source in details.get("sources", ()))]

    # --- content -----------------------------------------------------------------------------------------------------

    def _encode_content(self, event: Mapping[str, Any]) -> list[Chunk]:
        match event:
            case {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": delta}:
                return [{"type": "text-delta", "id": name, "delta": delta}]
            case {"type": "TEXT_MESSAGE_END", "messageId": name}:
                self._held_end = {"type": "text-end", "id": name}
                return []
            case {"type": "TEXT_MESSAGE_START", "messageId": name}:
                return [*self._release_end(), {"type": "text-start", "id": name}]
            case {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name}:
                self._calls[call_id] = _Call(name)
                return [*self._release_end(), {"type": "tool-input-start", "toolCallId": call_id, "toolName": name}]
            case {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta} if call_id in self._calls:
                self._calls[call_id].text += delta
                return [{"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": delta}]
            case {"type": "CUSTOM", "name": "dragoman.block", "value": {"block": dict(block)}}:
                return [*self._release_end(), _encode_block(block)]
            case _:
                return self._encode_reasoning(event)

    def _encode_reasoning(self, event: Mapping[str, Any]) -> list[Chunk]:
        match event:
            case {"type": "REASONING_START", "messageId": name}:
                return [*self._release_end(), {"type": "reasoning-start", "id": name}]
            case {"type": "REASONING_MESSAGE_CONTENT", "messageId": name, "delta": delta}:
                self._reasoning_with_text.add(name)
                return [{"type": "reasoning-delta", "id": name, "delta": delta}]
            case {"type": "REASONING_ENCRYPTED_VALUE", "entityId": name, "encryptedValue": value}:
                self._signatures[name] = value
                return []
            case {"type": "REASONING_END", "messageId": name}:
                return [{"type": "reasoning-end", "id": name, **self._signature(name)}]
            case _:
                return []

    def _signature(self, name: str) -> dict[str, Any]:
        """The signature of thinking, or its encrypted text."""
        if name not in self._signatures:
            return {}
        field = "signature" if name in self._reasoning_with_text else "redactedData"
        return {"providerMetadata": {KEY: {field: self._signatures[name]}}}

    def _release_end(self) -> list[Chunk]:
        held, self._held_end = self._held_end, None
        return [] if held is None else [held]

    def _encode_result(self, event: Mapping[str, Any]) -> Chunk:
        call_id, content = event["toolCallId"], event["content"]
        if call_id in self._declined:
            return {"type": "tool-output-denied", "toolCallId": call_id}
        output = content if isinstance(content, str) else [_encode_part(part) for part in content]
        if _own(event).get("is_error"):
            text = output if isinstance(output, str) else "\n".join(part.get("text", "") for part in output)
            return {"type": "tool-output-error", "toolCallId": call_id, "errorText": text}
        return {"type": "tool-output-available", "toolCallId": call_id, "output": output}

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self, event: Mapping[str, Any]) -> list[Chunk]:
        self.has_ended = True
        details, outcome = _own(event), event.get("outcome") or {}
        self._metadata |= _usage_metadata(event, details)
        if outcome.get("type") == "cancelled":
            return self._abort()
        requests = [_approval_request(item) for item in outcome.get("interrupts", ())]
        is_waiting = bool(requests or outcome.get("pendingToolCallIds"))
        reason = "tool-calls" if is_waiting else _FINISH_REASONS.get(details.get("stop_reason", ""), "other")
        finish = {"type": "finish", "finishReason": reason, "messageMetadata": {**self._metadata, "status": "complete"}}
        return [*self._release_end(), *filter(None, requests), *self._finish_step(), finish]

    def _fail(self, event: Mapping[str, Any], message: str) -> list[Chunk]:
        self.has_ended = True
        self._metadata |= _usage_metadata(event, {})
        if event.get("code") == "cancelled":  # of a run that an older client started
            return self._abort()
        metadata = {**self._metadata, "status": "error", "errorCode": event.get("code")}
        return [{"type": "message-metadata", "messageMetadata": metadata}, {"type": "error", "errorText": message}]

    def _abort(self) -> list[Chunk]:
        metadata = {**self._metadata, "status": "cancelled"}
        return [{"type": "message-metadata", "messageMetadata": metadata}, {"type": "abort"}]


def _own(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields that the server adds to an event of the protocol."""
    details: Mapping[str, Any] = event.get("metadata", {}).get(KEY, {})
    return details


def _complete_call(call_id: str, call: _Call) -> Chunk:
    """A call with its input, or what is wrong with it."""
    head = {"toolCallId": call_id, "toolName": call.name}
    try:
        value = read_json(call.text)
    except JsonError as error:
        return {"type": "tool-input-error", **head, "input": call.text, "errorText": error.what}
    if not isinstance(value, dict):
        text = "The input is not a JSON object."
        return {"type": "tool-input-error", **head, "input": call.text, "errorText": text}
    return {"type": "tool-input-available", **head, "input": value}


def _approval_request(interrupt: Mapping[str, Any]) -> Chunk | None:
    """The request to approve a call. A question is a call that the client answers with an output."""
    if interrupt["reason"] == INPUT_REQUIRED:
        return None
    return {"type": "tool-approval-request", "approvalId": interrupt["id"], "toolCallId": interrupt["toolCallId"]}


def _usage_metadata(event: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens, cost and model of a run."""
    usage = event.get("usage") or []
    metadata: dict[str, Any] = {}
    if usage:
        metadata["usage"] = {name: sum(item.get(name, 0) for item in usage) for name in _TOKEN_COUNTS}
    names = {"model": "model", "cost_usd": "costUsd", "stop_reason": "stopReason", "latency_ms": "latencyMs"}
    return metadata | {name: details[field] for field, name in names.items() if details.get(field) is not None}


def _encode_source(source: Mapping[str, Any]) -> Chunk:
    """A source that an answer cites."""
    title = {} if source.get("title") is None else {"title": source["title"]}
    return {"type": "source-url", "sourceId": source["id"], "url": source["url"], **title}


def _encode_block(block: Mapping[str, Any]) -> Chunk:
    """A block without its own event: a file, or data for the application."""
    match block:
        case {"type": kind, "source": {"kind": "base64" | "url" as form, "data": data}, "media_type": media_type}:
            if kind in MEDIA_BLOCKS:
                url = data if form == "url" else f"data:{media_type};base64,{data}"
                return {"type": "file", "mediaType": media_type, "url": url}
    return {"type": "data-dragoman-block", "data": dict(block)}


def _encode_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a tool result."""
    match part:
        case {"type": "text", "text": text}:
            return {"type": "text", "text": text}
        case {"source": {"type": form, "value": value, **rest}}:
            media_type = rest.get("mimeType", "application/octet-stream")
            urls = {"data": f"data:{media_type};base64,{value}", "url": value, "file": f"dragoman:{value}"}
            return {"type": "file", "mediaType": media_type, "url": urls[form]}
        case _:
            return dict(part)


def chunks_from_parts(parts: Iterable[Mapping[str, Any]]) -> list[Chunk]:
    """The chunks from which a client builds parts of a UI message again."""
    chunks: list[Chunk] = []
    is_step_open = False
    for number, part in enumerate(parts):
        if part["type"] == "step-start":
            chunks += [{"type": "finish-step"}] * is_step_open + [{"type": "start-step"}]
            is_step_open = True
        else:
            chunks += _chunks_from_part(part, f"part-{number}")
    return chunks + [{"type": "finish-step"}] * is_step_open


def _chunks_from_part(part: Mapping[str, Any], name: str) -> list[Chunk]:
    match part:
        case {"type": "text" | "reasoning" as kind, "text": text}:
            provider = {"providerMetadata": part["providerMetadata"]} if "providerMetadata" in part else {}
            return [
                {"type": f"{kind}-start", "id": name},
                {"type": f"{kind}-delta", "id": name, "delta": text},
                {"type": f"{kind}-end", "id": name, **provider},
            ]
        case {"type": str(kind), "toolCallId": call_id, "state": state}:
            head = {"toolCallId": call_id, "toolName": kind.removeprefix("tool-")}
            call = {"type": "tool-input-available", **head, "input": part.get("input", part.get("rawInput"))}
            if state == "output-available":
                return [call, {"type": "tool-output-available", "toolCallId": call_id, "output": part["output"]}]
            if state == "output-error":
                error = {"type": "tool-output-error", "toolCallId": call_id, "errorText": part["errorText"]}
                return [call, error]
            return [call]
        case _:
            return [dict(part)]
