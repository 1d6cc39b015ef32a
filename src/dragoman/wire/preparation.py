"""Prepare a request for writing: the steps that every dialect takes before it writes.

    prepare_request(request, table, carries, …) -> Preparation   drops failed turns, fits limits, fills ids
    fit_request(request, table, losses, carries, …)              the request that the target accepts, and adjustments
    is_plain_history(messages, dialect)                          whether messages need none of these steps
    fit_history(messages, limits, carries, report)               the messages that the target accepts

``carries(block, role)`` returns whether the dialect can write a block. Blocks that it cannot write stay: the dialect
leaves them out and reports them. Invariant: of a text, only white space is left out.

The limits are data: the table of the dialect, with the families of its models, and the row of the model if the caller
has one. What changes is an adjustment; what is left out is a loss. Invariant: a request that was read in the target's
own dialect is not changed, except by the row of a model.

One pass over the messages decides whether any step on messages is necessary. Most histories are plain: texts, and
calls with their results. Invariant: preparing the messages of a plain history one step at a time changes and reports
nothing, apart from their order and roles, which depend on the limits of the target.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from dragoman.exchange import Loss, Request
from dragoman.media_types import detect_media_type
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    MediaBlock,
    Message,
    ProviderRaw,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.wire.calls import Messages, pair_calls, replace_invalid_calls
from dragoman.wire.limits import Limits, LimitTable, Report, find_limits
from dragoman.wire.message_builder import drop_failed_turns, fill_result_ids, make_message
from dragoman.wire.options import fit_options, fit_tools
from dragoman.wire.residue import foreign_field_losses

if TYPE_CHECKING:
    from dragoman.catalog import Model

Quirks = Collection[str]  # deviations of a provider from its API, by name
OpenCalls = dict[str, ProviderRaw | None]  # notes of the calls without their result so far, by id
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER
Carries = Callable[[ContentBlock, Role], bool]
_ROLES: Final = frozenset(Role)
EMPTY: Final = "(no text)"
START: Final = "(The conversation starts with the assistant.)"
CONTINUE: Final = "Continue."
_MEDIA: Final = MediaBlock.__args__


class Preparation(NamedTuple):
    """A request that can be written."""

    request: Request
    losses: list[Loss]  # the dialect appends its own
    adjustments: list[Loss]
    is_plain: bool  # whether its messages are a plain history


def prepare_request(
    request: Request,
    table: LimitTable,
    carries: Carries,
    model: Model | None,
    quirks: Quirks,
    *,
    fit: bool,
) -> Preparation:
    """Return the request that a dialect writes, with the losses so far."""
    dialect = table.dialect
    losses: list[Loss] = []
    is_plain = is_plain_history(request.messages, dialect)
    if not is_plain:
        losses.extend(foreign_field_losses(request.messages, dialect))  # of what the next steps remove, too
        request = drop_failed_turns(request, dialect, losses, may_end_in_reasoning=table.may_end_in_reasoning)
    adjustments: list[Loss] = []
    if fit:
        request, adjustments = fit_request(
            request, table, losses, carries, model=model, quirks=quirks, is_plain=is_plain
        )
    if table.has_result_ids and not is_plain:
        request = fill_result_ids(request, dialect)
    return Preparation(request, losses, adjustments, is_plain)


def fit_request(
    request: Request,
    table: LimitTable,
    losses: list[Loss],
    carries: Carries,
    *,
    model: Model | None = None,
    quirks: Quirks = (),
    is_plain: bool = False,
) -> tuple[Request, list[Loss]]:
    """Return a request that the target accepts. Losses are added to ``losses``.

    ``is_plain`` is whether the messages are a plain history, whose blocks need no change.
    """
    dialect, raw = table.dialect, request.provider_raw
    is_native = raw is not None and raw.get("dialect") == dialect
    if is_native and model is None:
        return request, []
    report = Report(dialect)
    limits = find_limits(table, request.model, model, quirks)
    options = fit_options(request, limits, report)
    messages = request.messages
    if not is_native:
        messages = fit_history(messages, limits, carries, report, is_plain=is_plain)
    if not messages and raw is not None and not is_native:
        report.adjust("messages", "a user message is added: the request has none")
        messages = (make_message(Role.USER, EMPTY),)
    tools = request.tools
    if tools and not is_native:
        tools = fit_tools(tools, limits, report)
    if options is request.options and messages is request.messages and tools is request.tools:
        return request, []
    losses.extend(report.losses)
    return msgspec.structs.replace(request, options=options, messages=messages, tools=tools), report.adjustments


def is_plain_history(messages: Iterable[Message], dialect: str) -> bool:
    """Whether messages hold only texts that are not blank, and calls, each followed by its result as texts.

    No optional field is set, this dialect has no notes but equal ids of a call and its result, and other dialects have
    none but forms and ids.
    """
    open_calls: OpenCalls = {}
    for message in messages:
        content, role, raw = message.content, message.role, message.metadata.provider_raw
        if not content or (raw is not None and _is_noted(raw, dialect)):
            return False
        if role is _TOOL:
            if not _are_plain_results(content, open_calls, dialect):
                return False
            continue
        if open_calls or not (role is _USER or role is _ASSISTANT or role is _SYSTEM):
            return False
        for block in content:
            if type(block) is TextBlock:
                text, raw = block.text, block.provider_raw
                if not text or text.isspace() or block.citations or block.cache_hint is not None:
                    return False
                if raw is not None and _is_noted(raw, dialect):
                    return False
            elif role is _ASSISTANT and type(block) is ToolUseBlock:
                if block.cache_hint is not None or block.free_form or block.id in open_calls:
                    return False
                open_calls[block.id] = raw = block.provider_raw
                if _find_id(raw, dialect) is None:
                    return False
            else:
                return False
    return not open_calls


def _are_plain_results(content: Iterable[ContentBlock], open_calls: OpenCalls, dialect: str) -> bool:
    """Whether blocks are plain results of these calls; removes the calls from ``open_calls``."""
    for block in content:
        if type(block) is not ToolResultBlock or block.cache_hint is not None or block.tool_use_id not in open_calls:
            return False
        raw, call_raw = block.provider_raw, open_calls.pop(block.tool_use_id)
        if raw != call_raw and _find_id(raw, dialect) != _find_id(call_raw, dialect):
            return False
        for part in block.content:
            if type(part) is not TextBlock or not _is_plain_text(part, dialect):
                return False
    return True


def _is_plain_text(block: TextBlock, dialect: str) -> bool:
    text = block.text
    if not text or text.isspace() or block.citations or block.cache_hint is not None:
        return False
    raw = block.provider_raw
    return raw is None or not _is_noted(raw, dialect)


def _find_id(raw: ProviderRaw | None, dialect: str) -> str | None:
    """Return the id that this dialect has noted, empty if it has no notes; ``None`` if there are other notes."""
    if raw is None:
        return ""
    origin, own_id = raw.get("dialect"), raw.get("id")
    has_only_id = len(raw) == 2 and origin is not None and type(own_id) is str
    if origin == dialect:
        return own_id if has_only_id and own_id else None
    return "" if has_only_id or not _has_fields(raw) else None


def _is_noted(raw: ProviderRaw, dialect: str) -> bool:
    """Whether this dialect has notes, or another one has notes about fields that only it has."""
    return raw.get("dialect") == dialect or _has_fields(raw)


def _has_fields(raw: ProviderRaw) -> bool:
    for note in raw.values():  # noqa: SIM110  a generator takes twice as long
        if type(note) is dict:
            return True
    return False


# --- the limits of messages ------------------------------------------------------------------------------------------


def fit_history(
    messages: Messages, limits: Limits, carries: Carries, report: Report, *, is_plain: bool = False
) -> Messages:
    """Return the messages that the target accepts. The blocks of a plain history need no change."""
    session_id = messages[-1].session_id if messages else None
    if not is_plain:
        messages = _replace_roles(messages, report)
        messages = pair_calls(replace_invalid_calls(_drop_empty(messages, report), report), report)
        if any(_needs_changes(message.content, limits) for message in messages):
            messages = tuple(fitted for m in messages if (fitted := _fit_message(m, limits, report)) is not None)
    if limits.system_place != "any":
        messages = _move_system(messages, limits, report)
    first = _find_visible(messages, None if is_plain else carries)
    if session_id is not None and first is None:
        report.adjust("messages", "a user message is added: the request has no text")
        return (*messages, make_message(_USER, EMPTY, session_id))
    if first is not None:
        last = _find_visible(reversed(messages), None if is_plain else carries)
        messages = _fit_order(messages, first, last or first, limits, report)
    return _join_neighbours(messages, report) if limits.alternates else messages


def _replace_roles(messages: Messages, report: Report) -> Messages:
    """Return the messages with roles that every API has: one of another role becomes a message of the user."""
    if all(message.role in _ROLES for message in messages):
        return messages
    replaced: list[Message] = []
    for message in messages:
        if message.role not in _ROLES:
            report.adjust("messages", f"a message of the role {message.role.value} becomes one of the user", message)
            message = msgspec.structs.replace(message, role=_USER)  # noqa: PLW2901
        replaced.append(message)
    return tuple(replaced)


def _drop_empty(messages: Messages, report: Report) -> Messages:
    """Return the messages that have a block; most APIs reject the others."""
    empty = [message for message in messages if not message.content]
    for message in empty:
        report.adjust("messages", "an empty message is left out", message)
    return tuple(message for message in messages if message.content) if empty else messages


# --- blocks ----------------------------------------------------------------------------------------------------------


def _needs_changes(content: tuple[ContentBlock, ...], limits: Limits) -> bool:
    """Fast check for media and empty texts, which few messages have."""
    for block in content:
        kind = type(block)
        if kind is TextBlock:
            if not limits.allows_empty_text and (not block.text or block.text.isspace()):  # type: ignore[union-attr]
                return True
        elif kind is ToolResultBlock:
            if _needs_changes(block.content, limits):  # type: ignore[union-attr]
                return True
        elif kind in _MEDIA:
            return True
    return False


def _fit_message(message: Message, limits: Limits, report: Report) -> Message | None:
    """Return the message; ``None`` if it was empty and nothing depends on it."""
    if not _needs_changes(message.content, limits):
        return message
    content = _fit_blocks(message.content, limits, message, report)
    if content is message.content:
        return message
    return msgspec.structs.replace(message, content=content) if content else None


def _fit_blocks(
    blocks: tuple[ContentBlock, ...], limits: Limits, message: Message, report: Report
) -> tuple[ContentBlock, ...]:
    fitted: list[ContentBlock] = []
    is_same = True
    for block in blocks:
        if type(block) is ToolUseBlock or (type(block) is TextBlock and block.text and not block.text.isspace()):
            fitted.append(block)  # most blocks fit
            continue
        new = tuple(_fit_block(block, limits, message, report))
        is_same = is_same and len(new) == 1 and new[0] is block
        if not new and fitted:
            fitted[-1] = _move_hint(block, fitted[-1])
        fitted.extend(new)
    return blocks if is_same else tuple(fitted)


def _move_hint(block: ContentBlock, previous: ContentBlock) -> ContentBlock:
    """Return the block before one that is left out, with its cache hint."""
    hint = getattr(block, "cache_hint", None)
    if hint is None or getattr(previous, "cache_hint", hint) is not None:
        return previous
    return msgspec.structs.replace(previous, cache_hint=hint)


def _fit_block(block: ContentBlock, limits: Limits, message: Message, report: Report) -> Iterable[ContentBlock]:
    match block:
        case TextBlock(text) if _is_rejected_text(text, limits):
            report.adjust("text", "an empty text is left out", message)
            return ()
        case ToolResultBlock(content=inner):
            content = _fit_blocks(inner, limits, message, report)
            return (block if content is inner else msgspec.structs.replace(block, content=content),)
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
            return (_fit_medium(block, limits, message, report),)
        case _:
            return (block,)


def _is_rejected_text(text: str, limits: Limits) -> bool:
    return not limits.allows_empty_text and not (text if limits.allows_blank_text else text.strip())


def _fit_medium(block: MediaBlock, limits: Limits, message: Message, report: Report) -> ContentBlock:
    """Return the medium with the type of its bytes; a text in its place if the target rejects it."""
    media_type = block.media_type
    if block.source.kind == "base64" and isinstance(block, ImageBlock):
        media_type = _find_image_type(block.source.data) or media_type
    reason = _rejection_of(block, media_type, limits)
    if reason is not None:
        report.lose(block.type, reason, message)
        return TextBlock(f"[{block.type} ({media_type})]")
    if media_type == block.media_type:
        return block
    report.adjust(block.type, f"{block.media_type} becomes {media_type}, the type of its bytes", message)
    return msgspec.structs.replace(block, media_type=media_type, provider_raw=None)


def _rejection_of(block: MediaBlock, media_type: str, limits: Limits) -> str | None:
    accepted, source = limits.media_types.get(block.type), block.source
    if accepted == ():
        return f"this model accepts no {block.type}"
    if accepted is not None and source.kind == "base64" and media_type not in accepted:
        return f"this model accepts no {media_type}"
    if source.kind == "url" and limits.url_schemes and not source.data.startswith(limits.url_schemes):
        return f"this API accepts only URLs with {' or '.join(limits.url_schemes)}"
    return None


def _find_image_type(data: str) -> str | None:
    """Return the type of an image by its first bytes; ``None`` if they are not known."""
    try:
        media_type = detect_media_type(base64.b64decode(data[:32]))
    except (binascii.Error, ValueError):
        return None
    return media_type if media_type is not None and media_type.startswith("image/") else None


# --- order -----------------------------------------------------------------------------------------------------------


def _fit_order(messages: Messages, first: Message, last: Message, limits: Limits, report: Report) -> Messages:
    """Return the messages with a first and a last visible message that the target accepts."""
    if first.role is _ASSISTANT and _needs_user_first(first, limits):
        report.adjust("messages", "a user message is added at the beginning: the API requires one")
        messages = (make_message(_USER, START, first.session_id), *messages)
    if last.role is _ASSISTANT and limits.ends_with_user:
        report.adjust("messages", "a user message is added at the end: the API does not continue an answer")
        messages = (*messages, make_message(_USER, CONTINUE, last.session_id))
    elif last.role is _ASSISTANT and not limits.allows_trailing_space and last is messages[-1]:
        messages = (*messages[:-1], _strip_end(last, report))
    return messages


def _strip_end(message: Message, report: Report) -> Message:
    block = message.content[-1]
    if not isinstance(block, TextBlock) or block.text == block.text.rstrip():
        return message
    report.adjust("text", "white space at the end is left out: the API rejects it", message)
    trimmed = msgspec.structs.replace(block, text=block.text.rstrip())
    return msgspec.structs.replace(message, content=(*message.content[:-1], trimmed))


def _move_system(messages: Messages, limits: Limits, report: Report) -> Messages:
    """Return the messages with system messages at the beginning, or not at the end."""
    system = [message for message in messages if message.role is _SYSTEM]
    others = [message for message in messages if message.role is not _SYSTEM]
    if limits.system_place == "first":
        moved: Messages = (*system, *others)
        if len(system) > 1:
            content = tuple(block for message in system for block in message.content)
            moved = (msgspec.structs.replace(system[0], content=content), *others)
    else:
        trailing = len(list(itertools.takewhile(lambda message: message.role is _SYSTEM, reversed(messages))))
        if not trailing or trailing == len(messages):
            return messages
        cut = len(messages) - trailing - 1
        moved = (*messages[:cut], *messages[cut + 1 :], messages[cut])
    if moved != messages:
        report.adjust("messages", f"a system message is moved: the API accepts it {limits.system_place}")
    return moved


def _find_visible(messages: Iterable[Message], carries: Carries | None) -> Message | None:
    """Return the first message that is not a system message and has a block that the target carries.

    Without ``carries`` the target carries every block.
    """
    for message in messages:
        role = message.role
        if role is not _SYSTEM and (carries is None or any(carries(block, role) for block in message.content)):
            return message
    return None


def _needs_user_first(message: Message, limits: Limits) -> bool:
    if limits.starts_with_user == "before calls":
        return any(isinstance(block, ToolUseBlock) for block in message.content)
    return limits.starts_with_user == "always"


def _join_neighbours(messages: Messages, report: Report) -> Messages:
    """Return the messages with consecutive messages of users, and of assistants without calls, joined."""
    joined: list[Message] = []
    for message in messages:
        if joined and _can_join(joined[-1], message):
            report.adjust("messages", "two messages of one role become one", message)
            content = (*joined[-1].content, *message.content)
            joined[-1] = msgspec.structs.replace(joined[-1], content=content)
        else:
            joined.append(message)
    return tuple(joined)


def _can_join(before: Message, after: Message) -> bool:
    return before.role is after.role and after.role in (_USER, _ASSISTANT)
