"""Convert requests: messages, tools and options.

Most calls have no id, so a result is matched by the name of the tool, else by order. Invariant: a result is never
matched to another call while its own is unanswered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects.ollama.blocks import (
    NAME,
    content_form,
    default_message,
    read_blocks,
    unsupported_reason,
    write_call,
)
from dragoman.dialects.ollama.support import LIMITS, SUPPORT
from dragoman.errors import FormatError
from dragoman.exchange import Loss, Options, Reasoning, Request, ResponseFormat, Written
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, text_or_none
from dragoman.message import ContentBlock, InvalidToolUseBlock, Message, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.wire.losses import error_flag_losses, option_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.preparation import Quirks, prepare_request
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import OptionFields, request_losses
from dragoman.wire.tool_definitions import allowed_tools, default_tool, read_tool, write_tools

if TYPE_CHECKING:
    from dragoman.catalog import Model

_SEPARATE_FIELDS: Final = ("messages", "tools")  # fields that are read separately
_INNER_FIELDS: Final = OptionFields(
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    max_output_tokens="num_predict",
    stop_sequences="stop",
)
_FIELDS: Final = OptionFields("logprobs", "top_logprobs")
_LEVELS: Final = ("low", "medium", "high")  # for models with more than on and off


@accepts_json_text()
def read_request(body: dict[str, Any]) -> Request:
    """Read a request of ``/api/chat``."""
    if "messages" not in body:
        raise FormatError("a request needs messages", where="$.messages")
    builder, calls = MessageBuilder(), _CallIndex()
    for index, message in enumerate(expect_list(body["messages"] or [], "$.messages")):
        _read_message(expect_object(message, f"$.messages[{index}]"), f"$.messages[{index}]", builder, calls)
    tools = expect_list(body.get("tools") or [], "$.tools")
    model = body.get("model")
    request = Request(
        model=model if isinstance(model, str) else None,
        messages=tuple(builder.messages),
        tools=tuple(read_tool(expect_object(tool, f"$.tools[{index}]"), NAME) for index, tool in enumerate(tools)),
        options=_read_options(body),
    )
    rest = {key: value for key, value in body.items() if key not in _SEPARATE_FIELDS}
    empty = {key: body[key] for key in _SEPARATE_FIELDS if key in body and not body[key]}
    form = None if "stream" in body else "implicit"
    default = _write_options(request, form)
    raw = make_notes(NAME, default, rest, empty=empty or None, form=form)
    return request.replace(provider_raw=raw or {"dialect": NAME})


def write_request(request: Request, quirks: Quirks = (), model: Model | None = None, *, fit: bool = True) -> Written:
    """Write a request of ``/api/chat`` and report losses."""
    request, losses, adjustments, is_plain = prepare_request(request, LIMITS, _carries, model, quirks, fit=fit)
    losses.extend(_option_losses(request.options))
    notes = get_notes(request.provider_raw, NAME)
    top = apply_diff(_write_options(request, notes.get("form")), notes.get("residue"))
    wire = {key: top[key] for key in ("model",) if key in top}
    wire["messages"] = _write_messages(request.messages, losses)
    tools = write_tools(allowed_tools(request, NAME, losses), default_tool, NAME, losses)
    if tools:
        wire["tools"] = tools
    wire.update((key, value) for key, value in notes.get("empty", {}).items() if not wire.get(key))
    wire.update(top)
    if wire.get("think") is True and request.options.reasoning is not None and request.options.reasoning.effort:
        losses.append(Loss("", "", "reasoning.effort", NAME, "this API has no such level; thinking is enabled"))
    losses.extend(request_losses(request, NAME, SUPPORT, is_plain=is_plain))
    return Written(wire, tuple(losses), tuple(adjustments))


def _carries(block: ContentBlock, _role: Role) -> bool:
    return isinstance(block, ToolResultBlock) or unsupported_reason(block) is None


class _CallIndex:
    """The calls so far, with their wire names and ids, and which of them have no result yet."""

    def __init__(self) -> None:
        self._by_id: dict[str, tuple[str, str | None]] = {}
        self._unanswered: dict[str, str] = {}

    def add(self, blocks: Iterable[ContentBlock]) -> None:
        """Add the calls among these blocks."""
        for block in blocks:
            if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
                self._by_id[block.id] = (block.name, write_call(block).get("id"))
                self._unanswered[block.id] = block.name

    def find(self, call_id: str) -> tuple[str, str | None] | None:
        """Return the name and, if any, the wire id of a call."""
        return self._by_id.get(call_id)

    def find_unanswered(self, name: str | None) -> str | None:
        """Return the oldest call of that name without a result, else the oldest of any name."""
        return next(
            (call_id for call_id, call_name in self._unanswered.items() if call_name == name),
            next(iter(self._unanswered), None),
        )

    def mark_answered(self, call_id: str) -> None:
        """Mark a call as answered."""
        self._unanswered.pop(call_id, None)


def _read_message(wire: dict[str, Any], where: str, builder: MessageBuilder, calls: _CallIndex) -> None:
    role = wire.get("role")
    if role == "tool":
        result = _read_result(wire, where, builder, calls)
        builder.add(Role.TOOL, [result], parent_id=result.tool_use_id)
        return
    is_known = role in ("user", "assistant", "system")
    if type(role) is not str or not role or "\0" in role or not (is_known or wire.get("content")):
        raise FormatError(f"expected the role user, assistant, system or tool, not {role!r}", where=f"{where}.role")
    blocks = read_blocks(wire, where, builder, f"{len(builder.messages)}#")
    if not blocks and role != "assistant":
        blocks = [TextBlock("")]
    calls.add(blocks)
    form = content_form(wire)
    canonical_role = Role(role) if is_known else Role.unknown(role)  # passed to the template of the model
    builder.add(canonical_role, blocks, make_notes(NAME, default_message(role, blocks, form), wire, form=form))


def _read_result(wire: dict[str, Any], where: str, builder: MessageBuilder, calls: _CallIndex) -> ToolResultBlock:
    provider_id, name = (
        text_or_none(wire.get("tool_call_id")),
        text_or_none(wire.get("tool_name")) or text_or_none(wire.get("name")),
    )
    call_id = builder.result_id(provider_id) if provider_id else calls.find_unanswered(name)
    call_id = call_id or builder.call_id(f"{len(builder.messages)}#{name}")  # an unknown call
    calls.mark_answered(call_id)
    blocks = read_blocks({key: wire[key] for key in ("content", "images") if key in wire}, where, builder, "")
    result = ToolResultBlock(call_id, tuple(blocks))
    note, form = provider_id if provider_id != call_id else None, content_form(wire)
    default = _default_result(result, calls, note, form)
    return result.replace(provider_raw=make_notes(NAME, default, wire, id=note, form=form))


def _default_result(
    result: ToolResultBlock, calls: _CallIndex, provider_id: str | None, form: str | None
) -> dict[str, Any]:
    wire = default_message("tool", [block for block in result.content if unsupported_reason(block) is None], form)
    call = calls.find(result.tool_use_id)
    if call is None:
        return {**wire, "tool_call_id": provider_id or format_id(result.tool_use_id, DEFAULT_ID_FORMAT)}
    name, call_wire_id = call
    return {**wire, "tool_name": name, **({"tool_call_id": call_wire_id} if call_wire_id is not None else {})}


def _write_messages(messages: tuple[Message, ...], losses: list[Loss]) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    calls = _CallIndex()
    for message in messages:
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        wire.extend(_write_result(result, calls, message, losses) for result in results)
        others = [block for block in message.content if not isinstance(block, ToolResultBlock)]
        blocks = supported_blocks(others, unsupported_reason, NAME, losses, message)
        calls.add(blocks)
        if blocks or not message.content:  # otherwise nothing is supported; the losses are recorded
            notes = get_notes(message.metadata.provider_raw, NAME)
            default = default_message(message.role.value, blocks, notes.get("form"))
            wire.append(apply_diff(default, notes.get("residue")))
    return wire


def _write_result(result: ToolResultBlock, calls: _CallIndex, message: Message, losses: list[Loss]) -> dict[str, Any]:
    supported_blocks(result.content, unsupported_reason, NAME, losses, message)
    losses.extend(error_flag_losses(result, message, NAME))
    notes = get_notes(result.provider_raw, NAME)
    default = _default_result(result, calls, notes.get("id"), notes.get("form"))
    wire: dict[str, Any] = apply_diff(default, notes.get("residue"))
    return wire


def _read_options(body: dict[str, Any]) -> Options:
    options = body.get("options")
    options = options if isinstance(options, dict) else {}
    fields = {**_INNER_FIELDS.read(options), **_FIELDS.read(body)}
    if (fields.get("max_output_tokens") or 0) <= 0:
        fields["max_output_tokens"] = None  # -1: no limit, -2: fill the context
    if isinstance(stop := options.get("stop"), str):
        fields["stop_sequences"] = (stop,)
    return Options(
        **fields,
        response_format=_read_format(body.get("format")),
        reasoning=_read_reasoning(body.get("think")),
        stream=body.get("stream") is not False,  # the API streams by default
    )


def _read_format(value: Any) -> ResponseFormat | None:
    if isinstance(value, dict):
        return ResponseFormat("json_schema", value)
    return ResponseFormat("json") if value == "json" else None


def _read_reasoning(think: Any) -> Reasoning | None:
    if isinstance(think, bool):
        return Reasoning(enabled=think)
    return Reasoning(effort=think) if isinstance(think, str) and think else None


def _write_options(request: Request, form: str | None) -> dict[str, Any]:
    options = request.options
    wire: dict[str, Any] = {"model": request.model} if request.model is not None else {}
    inner = _INNER_FIELDS.write(options)
    if inner:
        wire["options"] = inner
    if options.response_format is not None and options.response_format.kind != "text":
        wire["format"] = options.response_format.json_schema or "json"
    think = _write_think(options.reasoning)
    if think is not None:
        wire["think"] = think
    wire.update(_FIELDS.write(options))
    if form != "implicit" or options.stream is not True:
        wire["stream"] = options.stream is True
    return wire


def _write_think(reasoning: Reasoning | None) -> bool | str | None:
    if reasoning is None:
        return None
    if reasoning.is_off:
        return False
    if reasoning.effort in _LEVELS:
        return reasoning.effort
    return True if reasoning.enabled or reasoning.effort or reasoning.budget_tokens is not None else None


def _option_losses(options: Options) -> list[Loss]:
    reasoning = options.reasoning or Reasoning()
    conditions = {
        "tool_choice": options.tool_choice is not None and options.tool_choice.mode != "auto",
        "parallel_tool_calls": options.parallel_tool_calls is False,
        "response_format.name": options.response_format is not None and options.response_format.name is not None,
        "reasoning.budget_tokens": reasoning.budget_tokens is not None,
        "service_tier": options.service_tier is not None,
        "user": options.user is not None,
    }
    losses = option_losses(conditions, NAME)
    if options.response_format is not None and options.response_format.json_schema == {}:
        losses.append(Loss("", "", "response_format.json_schema", NAME, "an empty schema becomes any JSON", "adjusted"))
    return losses
