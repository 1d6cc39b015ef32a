"""Prompt caching: marks in a prompt up to which a provider caches it. Pure.

    messages, tools = place_cache_hints(messages, tools, model, provider)

Anthropic and Bedrock cache a prompt only up to marks, at most four. Marked are the last tool, the system prompt, the
last message, and the last message before the latest answer, which ends the prompt of the call before.

Invariants: a prompt in which anything is marked stays as it is. A prompt that is too short to be cached gets no mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dragoman.catalog import Model, Provider
from dragoman.exchange import OpaqueTool, ToolDefinition
from dragoman.message import CacheHint, ContentBlock, Message, Role, TextBlock, ToolResultBlock

_DIALECTS: Final = ("anthropic", "bedrock_converse")  # which cache by marks
_MIN_CHARACTERS: Final = 4096  # about 1,024 tokens, the shortest prompt that any of their models caches
_HINT: Final = CacheHint()

Tool = ToolDefinition | OpaqueTool


def place_cache_hints(
    messages: Sequence[Message], tools: Sequence[Tool], model: Model, provider: Provider
) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    """Return a prompt with marks, if the provider caches by marks and nothing is marked yet."""
    marked_messages, marked_tools = list(messages), list(tools)
    is_cached = provider.dialect in _DIALECTS and model.capabilities.supports_prompt_caching
    if is_cached and not _has_hint(messages, tools) and _is_long(messages, tools):
        _mark_last_tool(marked_tools)
        for at in _find_ends(messages):
            marked_messages[at] = _mark_message(messages[at])
    return tuple(marked_messages), tuple(marked_tools)


def _has_hint(messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
    return any(getattr(tool, "cache_hint", None) is not None for tool in tools) or any(
        getattr(block, "cache_hint", None) is not None for message in messages for block in message.content
    )


def _is_long(messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
    left = _MIN_CHARACTERS
    for tool in tools:
        left -= len(msgspec.json.encode(tool))
    for message in messages:
        for block in message.content:
            left -= _count_characters(block)
            if left <= 0:
                return True
    return left <= 0


def _count_characters(block: ContentBlock) -> int:
    match block:
        case TextBlock(text=text):
            return len(text)
        case ToolResultBlock(content=inner):
            return sum(_count_characters(part) for part in inner)
        case _:
            return 100


def _find_ends(messages: Sequence[Message]) -> set[int]:
    """Return where the stable parts of a prompt end: the system prompt, the call before, and this call."""
    system = [at for at, message in enumerate(messages) if message.role is Role.SYSTEM]
    answers = [at for at, message in enumerate(messages) if message.role is Role.ASSISTANT]
    ends = {len(messages) - 1} if messages else set()
    if answers and answers[-1] > 0:
        ends.add(answers[-1] - 1)
    if system:
        ends.add(system[-1])
    return ends


def _mark_last_tool(tools: list[Tool]) -> None:
    for at in reversed(range(len(tools))):
        tool = tools[at]
        if isinstance(tool, ToolDefinition) and not tool.defer_loading:
            tools[at] = tool.replace(cache_hint=_HINT)
            return


def _mark_message(message: Message) -> Message:
    """Return a message whose last block that can be marked is marked."""
    if message.role is Role.ASSISTANT:
        return message
    content = list(message.content)
    for at in reversed(range(len(content))):
        block = content[at]
        if hasattr(block, "cache_hint") and not (isinstance(block, TextBlock) and not block.text.strip()):
            content[at] = msgspec.structs.replace(block, cache_hint=_HINT)
            return message.replace(content=tuple(content))
    return message
