"""The shared fields of each API, and the losses that a conversion reports for the others.

    Support(documentation=…, request=…, reply=…, reasons=…)   the fields of one dialect, in its module ``support``
    request_losses(request, dialect, support)                 reports for a request, residue of other dialects included
    reply_losses(reply, dialect, support)                     the same for a reply
    field_reason(name, support)                               why a field is lost, for stream writers
    OptionFields(names, …)                                    reads and writes options that a wire holds as plain values

A field is named like in a loss: ``n`` and ``tool_choice.allowed`` for options, ``tool.strict`` for tools,
``text.citations`` for blocks. Invariant: a field that is set and not in the table of the dialect is reported, as a hint
if leaving it out does not change the answer and as a loss otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec

from dragoman.exchange import Loss, OpaqueTool, Options, Reply, Request, ToolDefinition
from dragoman.jsontext import flag_or_none, integer_or_none, number_or_none, text_map_or_none, text_or_none, text_tuple
from dragoman.message import (
    Alternative,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.wire.residue import foreign_fields, foreign_option_losses

# Why a field is lost, for every API without it; a dialect may have a more exact reason.
_REASONS: Final = {
    "n": "this API returns one answer",
    "alternatives": "this API returns one answer",
    "logprobs": "this API returns no token probabilities",
    "top_logprobs": "this API returns no token probabilities",
    "text.token_logprobs": "this API returns no token probabilities",
    "text.citations": "this API has no citations",
    "tool.strict": "this API has no strict tools",
    "tool.grammar": "this API has no grammars; the tool accepts any text",
    "image.detail": "this API has no detail of an image",
    "document.context": "this API has no context of a document",
    "document.cite": "this API has no citations of documents",
    "stop_details": "this API does not explain why a model stopped",
    "modalities": "this API returns text only",
}
_NO_OPTION: Final = "this API has no such option"
# Fields that change speed, price or display, and never the content of an answer.
HINTS: Final = frozenset(
    {
        "cache_hint",
        "prompt_cache_key",
        "tool.cache_hint",
        "tool.defer_loading",
        "block.cache_hint",
        "image.detail",
    }
)
_NO_HINT: Final = "this API has no such hint"


class Support(msgspec.Struct, frozen=True, kw_only=True):
    """The shared fields that an API has."""

    documentation: str  # address of the API reference
    request: frozenset[str] = frozenset()  # fields of a request
    reply: frozenset[str] = frozenset()  # fields of a reply
    reasons: Mapping[str, str] = {}  # why a field is lost, where the usual reason is not exact


def field_reason(name: str, support: Support) -> str:
    """Return why an API without a field loses it."""
    if name in support.reasons:
        return support.reasons[name]
    return _NO_HINT if name in HINTS else _REASONS.get(name, _NO_OPTION)


def request_losses(request: Request, dialect: str, support: Support, *, is_plain: bool = False) -> Iterator[Loss]:
    """Return a report for each field of a request that the API does not have, and for options of other dialects.

    ``is_plain`` is whether the messages are a plain history, whose blocks have no such fields. ``prepare_request``
    reports the fields of messages that only another dialect has.
    """
    yield from report_shared_fields(request, dialect, support, is_plain=is_plain)
    yield from foreign_option_losses(request, dialect)


def report_shared_fields(request: Request, dialect: str, support: Support, *, is_plain: bool = False) -> Iterator[Loss]:
    """Return a report for each shared field of a request that the API does not have."""
    for name in collect_shared_options(request.options):
        if name not in support.request:
            yield _report(name, dialect, support)
    for tool in request.tools:
        if isinstance(tool, ToolDefinition) and (
            tool.strict is not None
            or tool.cache_hint is not None
            or tool.defer_loading is not None
            or tool.grammar is not None
        ):
            yield from _tool_losses(tool, dialect, support)
    for message in request.messages if not is_plain else ():
        for block in message.content:
            kind = type(block)
            if kind is TextBlock:  # most texts and calls have none of the fields
                if block.cache_hint is None and not block.citations:  # type: ignore[union-attr]
                    continue
            elif kind is ToolUseBlock and block.cache_hint is None:  # type: ignore[union-attr]
                continue
            yield from block_losses(block, message, dialect, support)


def drop_unsupported(request: Request, support: Support) -> Request:
    """Return a request without the shared options and fields of tools that the API does not have."""
    options = request.options
    names = [name for name in collect_shared_options(options) if name not in support.request]
    changes: dict[str, Any] = {name: () if name == "modalities" else None for name in names if "." not in name}
    if "tool_choice.allowed" in names and options.tool_choice is not None:
        changes["tool_choice"] = options.tool_choice.replace(allowed=())
    if "reasoning.summary" in names and options.reasoning is not None:
        changes["reasoning"] = options.reasoning.replace(summary=None)
    tools = tuple(_drop_tool_fields(tool, support) for tool in request.tools)
    return request.replace(options=options.replace(**changes) if changes else options, tools=tools)


def _drop_tool_fields(tool: ToolDefinition | OpaqueTool, support: Support) -> ToolDefinition | OpaqueTool:
    if not isinstance(tool, ToolDefinition):
        return tool
    names = ("strict", "cache_hint", "defer_loading", "grammar")
    changes = {name: None for name in names if getattr(tool, name) and f"tool.{name}" not in support.request}
    return tool.replace(**changes) if changes else tool


_get_shared: Final = attrgetter(
    "n",
    "logprobs",
    "top_logprobs",
    "verbosity",
    "store",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "cache_hint",
    "modalities",
    "tool_choice",
    "reasoning",
    "response_format",
)
_NOT_SET: Final = _get_shared(Options())


def collect_shared_options(options: Options) -> dict[str, Any]:
    """Return the options that only some APIs have, by name, where they ask for more than every API does anyway."""
    if _get_shared(options) == _NOT_SET:  # most requests
        return {}
    choice, reasoning, response_format = options.tool_choice, options.reasoning, options.response_format
    values = {
        "n": options.n if options.n != 1 else None,
        "logprobs": options.logprobs or None,
        "top_logprobs": options.top_logprobs or None,
        "verbosity": options.verbosity,
        "store": options.store or None,  # ``false`` is the behaviour of an API that stores no answers
        "metadata": options.metadata or None,
        "safety_identifier": options.safety_identifier,
        "prompt_cache_key": options.prompt_cache_key,
        "cache_hint": options.cache_hint,
        "modalities": options.modalities if options.modalities != ("text",) else None,
        "tool_choice.allowed": choice.allowed if choice is not None else None,
        "reasoning.summary": reasoning.summary if reasoning is not None and reasoning.summary != "none" else None,
        "response_format.description": response_format.description if response_format is not None else None,
    }
    return {name: value for name, value in values.items() if value is not None and value != ()}


def _tool_losses(tool: ToolDefinition, dialect: str, support: Support) -> Iterator[Loss]:
    for name, is_set in (
        ("tool.strict", tool.strict),
        ("tool.cache_hint", tool.cache_hint is not None),
        ("tool.defer_loading", tool.defer_loading),
        ("tool.grammar", tool.grammar is not None),
    ):
        if is_set and name not in support.request:
            yield _report(name, dialect, support)


def _missing_fields(block: ContentBlock, supported: frozenset[str]) -> list[str]:
    """Return the fields of a block that are set and not supported, by name."""
    names: list[str] = []
    if type(block) is TextBlock:
        if block.citations and "text.citations" not in supported:
            names.append("text.citations")
    elif type(block) is ImageBlock:
        if block.detail is not None and "image.detail" not in supported:
            names.append("image.detail")
    elif type(block) is DocumentBlock:
        names.extend(
            name
            for name, is_set in (("document.context", block.context is not None), ("document.cite", block.cite))
            if is_set and name not in supported
        )
    elif type(block) is ToolResultBlock:
        names.extend(name for part in block.content for name in _missing_fields(part, supported))
    elif type(block) is not ToolUseBlock:
        return names
    if block.cache_hint is not None and "block.cache_hint" not in supported:
        names.append("block.cache_hint")
    return names


def block_losses(block: ContentBlock, message: Message, dialect: str, support: Support) -> list[Loss]:
    """Return a report for each field of a block that the API does not have."""
    return [
        _report(name, dialect, support, message.session_id, message.id)
        for name in _missing_fields(block, support.request)
    ]


def _report(name: str, dialect: str, support: Support, session_id: str = "", message_id: str = "") -> Loss:
    kind: Literal["hint", "loss"] = "hint" if name in HINTS else "loss"
    return Loss(session_id, message_id, name, dialect, field_reason(name, support), kind)


def reply_losses(reply: Reply, dialect: str, support: Support) -> Iterator[Loss]:
    """Return a report for each field of a reply that the API does not have."""
    if reply.alternatives and "alternatives" not in support.reply:
        yield _report("alternatives", dialect, support)
    if reply.stop_details is not None and "stop_details" not in support.reply:
        yield _report("stop_details", dialect, support)
    for block in reply.content:
        for name, kind, reason in foreign_fields(getattr(block, "provider_raw", None), dialect, block.type):
            yield Loss("", "", name, dialect, reason, kind)
    for name in dict.fromkeys(_reply_fields(reply.content, reply.alternatives)):
        if name not in support.reply:
            yield _report(name, dialect, support)


def _reply_fields(content: Iterable[ContentBlock], alternatives: Iterable[Alternative]) -> Iterator[str]:
    for block in content:
        if type(block) is TextBlock:
            if block.citations:
                yield "text.citations"
            if block.token_logprobs:
                yield "text.token_logprobs"
    for alternative in alternatives:
        yield from _reply_fields(alternative.content, ())


# --- options that a wire holds as plain values -----------------------------------------------------------------------

_READERS: Final = {
    "max_output_tokens": integer_or_none,
    "temperature": number_or_none,
    "top_p": number_or_none,
    "top_k": integer_or_none,
    "stop_sequences": text_tuple,
    "seed": integer_or_none,
    "presence_penalty": number_or_none,
    "frequency_penalty": number_or_none,
    "parallel_tool_calls": flag_or_none,
    "service_tier": text_or_none,
    "user": text_or_none,
    "stream": flag_or_none,
    "n": integer_or_none,
    "logprobs": flag_or_none,
    "top_logprobs": integer_or_none,
    "verbosity": text_or_none,
    "store": flag_or_none,
    "metadata": text_map_or_none,
    "safety_identifier": text_or_none,
    "prompt_cache_key": text_or_none,
}


class OptionFields:
    """The keys of at least two options on the wire: one table of a dialect serves reading and writing.

        fields = OptionFields("temperature", "top_p", top_p="p")   options in order, and the keys that differ
        Options(**fields.read(body), reasoning=…)
        wire = fields.write(options)

    Invariant: options are written in the order of the table.
    """

    __slots__ = ("_get_values", "_keys", "_readers")

    def __init__(self, *names: str, **other_keys: str) -> None:
        keys = {name: other_keys.get(name, name) for name in names}
        self._readers = tuple((name, key, _READERS[name]) for name, key in keys.items())
        self._keys = tuple(keys.values())
        self._get_values = attrgetter(*keys)

    def read(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that an object holds. A value of a wrong type reads as unset."""
        return {name: read(wire[key]) for name, key, read in self._readers if key in wire}

    def write(self, options: Options) -> dict[str, Any]:
        """Return the options that are set, under their keys on the wire."""
        wire = {}
        for key, value in zip(self._keys, self._get_values(options), strict=True):
            if type(value) is tuple:
                if value:
                    wire[key] = list(value)
            elif value is not None:
                wire[key] = value
        return wire
