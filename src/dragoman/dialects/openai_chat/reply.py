"""Whole completions and their usage. Invariant: a reply that was read here is written as it was."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from dragoman.dialects.openai_chat import fast_path
from dragoman.dialects.openai_chat.blocks import (
    DEFAULT_ID,
    NAME,
    TIERS,
    call_notes,
    default_message,
    make_message_notes,
    place_of,
    read_annotations,
    read_blocks,
    read_call,
    unsupported_reason,
    write_call,
)
from dragoman.dialects.openai_chat.chunks import Place
from dragoman.dialects.openai_chat.error import CLOUDFLARE, is_cloudflare, is_error, read_error, write_error
from dragoman.dialects.openai_chat.support import SUPPORT
from dragoman.dialects.openai_chat.usage import read_usage, write_usage
from dragoman.errors import FormatError
from dragoman.event import mark_unusable
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, text_or_none
from dragoman.message import Alternative, ContentBlock, InvalidToolUseBlock, Role, TextBlock, ToolUseBlock
from dragoman.wire.logprobs import read_logprobs, write_logprobs
from dragoman.wire.losses import SupportedDetails, detail_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, diff, get_notes, make_notes, wrap_residue
from dragoman.wire.support import reply_losses

STOP_REASONS: Final = {
    "stop": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "content_filter": StopReason.REFUSAL,
    "function_call": StopReason.TOOL_USE,
    "model_length": StopReason.MAX_TOKENS,  # Mistral
    "eos": StopReason.END_TURN,  # Together
    "sensitive": StopReason.REFUSAL,  # Z.ai
    "model_context_window_exceeded": StopReason.MAX_TOKENS,  # Z.ai
    # stop reasons of other APIs, which gateways forward
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "tool_use": StopReason.TOOL_USE,
    "safety": StopReason.REFUSAL,
    "refusal": StopReason.REFUSAL,
}
_FINISH_REASONS: Final = {
    StopReason.MAX_TOKENS: "length",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.REFUSAL: "content_filter",
    StopReason.ERROR: "error",
}
UNUSABLE: Final = {  # finish reasons of complete but unusable answers
    "tool_input_truncated": "length",
    "tool_input_invalid": "tool_calls",
    "empty_response": "stop",
}
_NATIVE_LIMITS: Final = (
    "max_output_tokens",
    "max_tokens",
    "MAX_TOKENS",
    "length",
)  # OpenRouter sends these as the native finish reason
_FAILURES: Final = (
    "error",  # OpenRouter and Mistral
    "insufficient_system_resource",  # DeepSeek
    "network_error",  # Z.ai
)


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a completion; an error with HTTP 200 is a reply with a fault."""
    if not body.get("choices") and is_error(body):
        fault = read_error(None, {}, body)
        raw = make_notes(NAME, write_error(fault).wire, body, form="error")
        return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)
    plain = fast_path.read_reply(body)
    if plain is not None:
        return plain
    if is_cloudflare(body):
        raise FormatError(CLOUDFLARE, where="$")
    reply, _ = make_reply(body, MessageBuilder(), is_marked=True)
    return reply


def _mark_unusable(reply: Reply) -> Reply:
    """Mark a reply with an unusable call or without content as failed, as ``fold`` does."""
    if reply.stop_reason is StopReason.MAX_TOKENS:
        reply = reply.replace(content=tuple(_mark_cut_call(block) for block in reply.content))
    return mark_unusable(reply)


def _mark_cut_call(block: ContentBlock) -> ContentBlock:
    """Mark a call as invalid if the output limit cut it before its arguments."""
    if not isinstance(block, ToolUseBlock) or block.input:
        return block
    wire = write_call(block)
    arguments = wire.get("function", wire).get("arguments")
    if isinstance(arguments, dict) or (arguments or "").strip():
        return block
    reason = "the output limit was reached before its input"
    call = InvalidToolUseBlock(block.id, block.name, "", reason, block.provider_raw)
    return call if write_call(call) == wire else call.replace(provider_raw=call_notes(call, wire))


DETAILS: Final = SupportedDetails(
    stop_reasons=("end_turn", "max_tokens", "tool_use", "refusal"),
    usage_fields=(
        "cached_input_tokens",
        "cache_creation_input_tokens",
        "reasoning_tokens",
        "input_audio_tokens",
        "output_audio_tokens",
        "service_tier",
    ),
    service_tiers=TIERS,
)


def write_reply(reply: Reply) -> Written:
    """Write a completion, with losses."""
    losses: list[Loss] = []
    notes = get_notes(reply.provider_raw, NAME)
    if notes.get("form") == "error" and reply.fault is not None and not reply.content:
        return Written(apply_diff(write_error(reply.fault).wire, notes.get("residue")))
    message_notes = notes.get("message", {})
    find_reason = partial(unsupported_reason, role=Role.ASSISTANT, is_native=message_notes.get("form") == "list")
    blocks = supported_blocks(reply.content, find_reason, NAME, losses)
    others = [_restore_calls(other, blocks, at) for at, other in enumerate(notes.get("others", ()))]
    others.extend(write_alternative(alternative, at, losses) for at, alternative in enumerate(reply.alternatives, 1))
    default = default_message(Role.ASSISTANT, _blocks_of_first(blocks, len(others)), message_notes, reply=True)
    message = apply_diff(default, message_notes.get("residue"))
    form = notes.get("form")
    choice = apply_diff(default_choice(reply), notes.get("choice"))
    if form != "no message" or blocks:
        choice["message"] = message
    choices = [] if form == "no choice" and not blocks else [choice, *others]
    wire = apply_diff(default_reply(reply), notes.get("residue"))
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    return Written({**wire, "choices": choices}, tuple(losses))


def write_alternative(alternative: Alternative, index: int, losses: list[Loss]) -> dict[str, Any]:
    """Write a further answer as a choice, and add a loss for each block that the wire cannot carry."""
    notes = get_notes(alternative.provider_raw, NAME)
    message_notes = notes.get("message", {})
    find_reason = partial(unsupported_reason, role=Role.ASSISTANT, is_native=message_notes.get("form") == "list")
    blocks = supported_blocks(alternative.content, find_reason, NAME, losses)
    default = default_message(Role.ASSISTANT, blocks, message_notes, reply=True)
    choice: dict[str, Any] = apply_diff(_default_alternative(alternative, index), notes.get("choice"))
    return {**choice, "message": apply_diff(default, message_notes.get("residue"))}


def _default_alternative(alternative: Alternative, index: int) -> dict[str, Any]:
    stop_reason = alternative.stop_reason
    reply = Reply(
        content=alternative.content,
        stop_reason=StopReason.UNKNOWN if stop_reason is StopReason.ERROR else stop_reason,
        stop_sequence=alternative.stop_sequence,
    )
    return {**default_choice(reply), "index": index}


def _read_alternative(choice: dict[str, Any], index: int, builder: MessageBuilder) -> Alternative | None:
    """Return a further choice; ``None`` if it has no message."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return None
    blocks = [block for _, block in read_blocks(message, f"$.choices[{index}].message", builder, is_answer=True)]
    blocks = _add_details(blocks, choice)
    stop_reason, stop_sequence = _read_stop(choice, blocks)
    alternative = Alternative(content=tuple(blocks), stop_reason=stop_reason, stop_sequence=stop_sequence)
    fields = {key: value for key, value in choice.items() if key != "message"}
    raw = wrap_residue(
        NAME,
        None,
        choice=diff(_default_alternative(alternative, index), fields),
        message=make_message_notes(Role.ASSISTANT, blocks, message, reply=True),
    )
    return alternative.replace(provider_raw=raw)


def _add_details(blocks: list[ContentBlock], choice: dict[str, Any]) -> list[ContentBlock]:
    """Return the blocks with citations and token probabilities, which belong to the text of the content."""
    logprobs, message = choice.get("logprobs"), choice.get("message")
    citations = read_annotations(message.get("annotations")) if isinstance(message, dict) else ()
    token_logprobs = read_logprobs(logprobs.get("content")) if isinstance(logprobs, dict) else ()
    if not citations and not token_logprobs:
        return blocks
    for at, block in enumerate(blocks):
        if isinstance(block, TextBlock) and place_of(block) == "content":
            text = block.replace(citations=citations, token_logprobs=token_logprobs)
            return [*blocks[:at], text, *blocks[at + 1 :]]
    return blocks


def make_reply(
    body: dict[str, Any],
    builder: MessageBuilder,
    origin: str | None = None,
    *,
    is_marked: bool = False,
    **fields: Any,
) -> tuple[Reply, list[tuple[Place, ContentBlock]]]:
    """Return the reply, and the place of each block on the wire."""
    choices = [expect_object(choice, "$.choices") for choice in expect_list(body.get("choices"), "$.choices")]
    choice = choices[0] if choices else {}
    message = choice.get("message")
    form = None if isinstance(message, dict) else "no message" if choices else "no choice"
    message = message if isinstance(message, dict) else {}
    placed_blocks = read_blocks(message, "$.choices[0].message", builder, is_answer=True, origin=origin)
    first = _add_details([block for _, block in placed_blocks], choice)
    placed_blocks = [(place, block) for (place, _), block in zip(placed_blocks, first, strict=True)]
    others = choices[1:]
    alternatives: list[Alternative] = []
    if others and all("index" not in choice for choice in choices):
        others = [_extract_calls(other, at, builder, placed_blocks) for at, other in enumerate(others)]
    elif others:
        found = [_read_alternative(other, at, builder) for at, other in enumerate(others, 1)]
        alternatives = [alternative for alternative in found if alternative is not None]
        others = [] if len(alternatives) == len(others) else others
        alternatives = alternatives if not others else []
    blocks = [block for _, block in placed_blocks]
    stop_reason, stop_sequence = _read_stop(choice, blocks)
    fault = _read_failure(choice, body) if stop_reason is StopReason.ERROR else None
    reply = Reply(
        content=tuple(blocks),
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        usage=fields["usage"] if "usage" in fields else read_usage(body),
        model=fields["model"] if "model" in fields else text_or_none(body.get("model")),
        fault=fault,
        alternatives=tuple(alternatives),
    )
    marked = _mark_unusable(reply)  # as the writer writes it
    rest = {key: value for key, value in body.items() if key != "choices"}
    other_fields = {key: value for key, value in choice.items() if key != "message" or form == "no message"}
    raw = wrap_residue(  # never empty: every answer has another id
        NAME,
        diff(default_reply(reply), rest),
        form=form,
        choice=diff(default_choice(marked), other_fields) if choices else None,
        message=make_message_notes(Role.ASSISTANT, first, message, reply=True) if form is None else None,
        others=others or None,
    )
    return (marked if is_marked else reply).replace(provider_raw=raw), placed_blocks


def _extract_calls(
    choice: dict[str, Any], at: int, builder: MessageBuilder, placed_blocks: list[tuple[Place, ContentBlock]]
) -> dict[str, Any]:
    """Copilot splits one answer into choices without an index. Move their calls to the answer."""
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not calls or not isinstance(message, dict):
        return choice
    for index, call in enumerate(expect_list(calls, f"$.choices[{at + 1}].message.tool_calls")):
        block = read_call(expect_object(call, f"$.choices[{at + 1}].message.tool_calls"), builder)
        raw = {"dialect": NAME, **(getattr(block, "provider_raw", None) or {}), "choice": at}
        placed_blocks.append(((f"choices[{at + 1}]", index), block.replace(provider_raw=raw)))
    return {**choice, "message": {key: value for key, value in message.items() if key != "tool_calls"}}


def _restore_calls(choice: dict[str, Any], blocks: Iterable[ContentBlock], at: int) -> dict[str, Any]:
    calls = [write_call(block) for block in blocks if _choice_index(block) == at]
    return {**choice, "message": {**choice["message"], "tool_calls": calls}} if calls else choice


def _blocks_of_first(blocks: Iterable[ContentBlock], others: int) -> list[ContentBlock]:
    return [block for block in blocks if not 0 <= _choice_index(block) < others]


def _choice_index(block: ContentBlock) -> int:
    return int(get_notes(getattr(block, "provider_raw", None), NAME).get("choice", -1))


def _read_stop(choice: dict[str, Any], blocks: list[ContentBlock]) -> tuple[StopReason, str | None]:
    """Return the stop reason and the stop sequence. Providers also send ``stop`` with calls and refusals."""
    finish_reason, stop_sequence = choice.get("finish_reason"), choice.get("stop_reason")  # the latter is vLLM's
    if finish_reason in _FAILURES:
        return StopReason.ERROR, None
    if choice.get("native_finish_reason") in _NATIVE_LIMITS:
        return StopReason.MAX_TOKENS, None
    reason = STOP_REASONS.get(str(finish_reason).lower(), StopReason.UNKNOWN)
    details = choice.get("finish_details")
    if isinstance(details, dict) and details.get("type") == "max_tokens":  # only the first vision models send it
        reason = StopReason.MAX_TOKENS
    if reason not in (StopReason.END_TURN, StopReason.UNKNOWN):
        return reason, None
    if any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in blocks):
        return StopReason.TOOL_USE, None
    if any(place_of(block) == "refusal" for block in blocks):
        return StopReason.REFUSAL, None
    if isinstance(stop_sequence, str) and stop_sequence and finish_reason == "stop":
        return StopReason.STOP_SEQUENCE, stop_sequence
    return reason, None


def _read_failure(choice: dict[str, Any], body: dict[str, Any]) -> Fault:
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


def default_head(model: str | None) -> dict[str, Any]:
    """Return the fields that every reply has; the model is required by the API, but some providers send none."""
    return {"id": DEFAULT_ID, "object": "chat.completion", "created": 0, "model": model or ""}


def default_reply(reply: Reply) -> dict[str, Any]:
    """Return the wire around the choices, without notes."""
    wire = default_head(reply.model)
    if reply.usage is not None:
        wire["usage"] = write_usage(reply.usage)
        if reply.usage.service_tier in TIERS:
            wire["service_tier"] = reply.usage.service_tier
    return wire


def default_choice(reply: Reply) -> dict[str, Any]:
    """Return the wire of a choice without its message and without notes."""
    code = reply.fault.code if reply.fault else ""
    finish_reason = UNUSABLE.get(code) or _FINISH_REASONS.get(reply.stop_reason, "stop")
    if finish_reason == "tool_calls" and any(place_of(block) == "function_call" for block in reply.content):
        finish_reason = "function_call"
    logprobs = _write_logprobs(reply.content)
    choice: dict[str, Any] = {"index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
    if reply.fault is None or code in UNUSABLE:
        return choice
    return {**choice, "error": write_error(reply.fault).wire["error"]}


def _write_logprobs(content: Iterable[ContentBlock]) -> dict[str, Any] | None:
    items = [item for block in content if type(block) is TextBlock for item in block.token_logprobs]
    return {"content": write_logprobs(items), "refusal": None} if items else None
