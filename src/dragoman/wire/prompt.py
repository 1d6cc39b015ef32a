"""Requests as one prompt, for wire formats with a text instead of a conversation.

    to_prompt(request, dialect, losses, keeps_images=…)    the request with one user message, after the system prompts
    drop_calls(reply, dialect, losses)                     the reply without calls and media

A conversation of several messages becomes a text with the name of a role before each message. Calls, results, tools and
other blocks are losses.
"""

from __future__ import annotations

from typing import Final

from dragoman.exchange import Loss, Reply, Request, StopReason
from dragoman.message import CallBlock, ContentBlock, ImageBlock, MediaBlock, Message, Role, TextBlock
from dragoman.wire.losses import supported_blocks
from dragoman.wire.residue import foreign_options

_LABELS: Final = {Role.USER: "User", Role.ASSISTANT: "Assistant", Role.SYSTEM: "System", Role.TOOL: "Tool"}


def to_prompt(
    request: Request, dialect: str, losses: list[Loss], *, keeps_system: bool = True, keeps_images: bool = False
) -> Request:
    """Return the request with one user message, and a system message in front of it if the wire has one."""
    losses.extend(Loss("", "", "tool", dialect, "this API has no tools") for _ in request.tools)
    of_tools = foreign_options(request.replace(provider_raw=None), dialect)
    losses.extend(Loss("", "", name, dialect, "this API has no tools") for name in of_tools)
    messages = [_keep_texts(message, dialect, losses, keeps_images=keeps_images) for message in request.messages]
    messages = [message for message, before in zip(messages, request.messages, strict=True) if _stays(message, before)]
    first = [message for message in messages[:1] if message.role is Role.SYSTEM and keeps_system]
    rest = messages[len(first) :]
    request = request.replace(tools=(), options=_drop_options(request, dialect, losses).options)
    if len(rest) == 1 and rest[0].role is Role.USER and _is_one_text(rest[0]):
        return request.replace(messages=tuple(messages))
    losses.extend(
        Loss(message.session_id, message.id, "text", dialect, "part of a prompt, with the name of its role")
        for message in rest
        for block in message.content
        if isinstance(block, TextBlock)
    )
    losses.extend(
        Loss(message.session_id, message.id, "image", dialect, "beside the prompt, without its role", "adjusted")
        for message in rest
        for block in message.content
        if isinstance(block, ImageBlock) and message.role is not Role.USER
    )
    return request.replace(messages=(*first, *([_join(rest)] if rest else ())))


def drop_calls(reply: Reply, dialect: str, losses: list[Loss]) -> Reply:
    """Return the reply without calls and media, for a wire without tools whose answers are texts."""

    def find_reason(block: ContentBlock) -> str | None:
        if isinstance(block, CallBlock):
            return "this API has no tools"
        return "this API answers with a text" if isinstance(block, MediaBlock) else None

    content = supported_blocks(reply.content, find_reason, dialect, losses)
    if len(content) == len(reply.content):
        return reply
    stop_reason = reply.stop_reason
    if stop_reason is StopReason.TOOL_USE:
        losses.append(Loss("", "", "stop_reason", dialect, "this API has no tools"))
        stop_reason = StopReason.END_TURN
    return reply.replace(content=tuple(content), stop_reason=stop_reason)


def _stays(message: Message, before: Message) -> bool:
    return bool(message.content) or not before.content


def _is_one_text(message: Message) -> bool:
    return sum(isinstance(block, TextBlock) for block in message.content) <= 1


def _keep_texts(message: Message, dialect: str, losses: list[Loss], *, keeps_images: bool) -> Message:
    def find_reason(block: ContentBlock) -> str | None:
        is_image = keeps_images and isinstance(block, ImageBlock) and block.source.kind == "base64"
        return None if isinstance(block, TextBlock) or is_image else "this API accepts a prompt of text"

    blocks = supported_blocks(message.content, find_reason, dialect, losses, message)
    return message if len(blocks) == len(message.content) else message.replace(content=tuple(blocks))


def _join(messages: list[Message]) -> Message:
    """Return one user message with the texts of all messages, each behind the name of its role."""
    only_user = all(message.role is Role.USER for message in messages)
    texts = []
    for message in messages:
        text = "\n\n".join(block.text for block in message.content if isinstance(block, TextBlock))
        texts.append(text if only_user else f"{_LABELS.get(message.role, message.role)}: {text}")
    if not only_user and messages[-1].role is not Role.ASSISTANT:
        texts.append("Assistant:")
    images = [block for message in messages for block in message.content if isinstance(block, ImageBlock)]
    return messages[-1].replace(role=Role.USER, content=(TextBlock("\n\n".join(texts)), *images))


def _drop_options(request: Request, dialect: str, losses: list[Loss]) -> Request:
    """Return the request without options about tools."""
    options = request.options
    for name in ("tool_choice", "parallel_tool_calls"):
        if getattr(options, name) is not None:
            losses.append(Loss("", "", name, dialect, "this API has no tools"))
    return request.replace(options=options.replace(tool_choice=None, parallel_tool_calls=None))
