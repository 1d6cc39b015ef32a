"""Fit the messages of a request to the limits of a target: empty texts, media, and the order of roles.

    fit_history(messages, limits, carries, report) -> messages

``carries(block, role)`` returns whether the dialect can write a block. Blocks that it cannot write stay: the dialect
leaves them out and reports them. Invariant: of a text, only white space is left out.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    MediaBlock,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.wire.limits.calls import Messages, pair_calls, replace_invalid_calls
from dragoman.wire.limits.table import Limits, Report
from dragoman.wire.message_builder import make_message

Carries = Callable[[ContentBlock, Role], bool]
_ASSISTANT, _SYSTEM, _USER, _TOOL = Role.ASSISTANT, Role.SYSTEM, Role.USER, Role.TOOL
_ROLES: Final = frozenset(Role)
EMPTY: Final = "(no text)"
START: Final = "(The conversation starts with the assistant.)"
CONTINUE: Final = "Continue."
_SIGNATURES: Final = (  # first bytes of a file, and its type
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_MEDIA: Final = MediaBlock.__args__


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
        start = base64.b64decode(data[:32])
    except (binascii.Error, ValueError):
        return None
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((name for signature, name in _SIGNATURES if start.startswith(signature)), None)


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
    return msgspec.structs.replace(message, content=(*message.content[:-1], TextBlock(block.text.rstrip())))


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
