"""Convert canonical messages to entries.

    entries_from_messages(messages, agent_key="orchestrator") -> Written(entries, losses)

A message that was converted from an entry becomes that entry again, with changed text if the message was edited. Of any
other message, a user message becomes a task, a call an action, a result an observation, and an answer without calls a
final entry. Entries have no fields for pictures, reasoning and prices; each is a loss. Invariant: texts, calls and
results are never lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dragoman.entries import types
from dragoman.entries.reader import UNKNOWN_TIME
from dragoman.entries.text import describe_entry, entry_text, to_text
from dragoman.entries.types import Entry, find_problems
from dragoman.exchange import Loss, Written
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    MessageStatus,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)

_SEPARATOR: Final = "\n\n"  # between blocks of text


def entries_from_messages(
    messages: Iterable[Message], *, agent_key: str | None = None, delegate_tool: str | None = None
) -> Written:
    """Return the entries of messages, in order. ``agent_key`` is added to entries that are not part of the
    conversation.

    A call of ``delegate_tool`` becomes a ``delegation``, any other call an ``action``.
    """
    losses: list[Loss] = []
    entries: list[Entry] = []
    for message in messages:
        original = _restore_entry(message)
        if original is not None:
            entries.append(original)
            continue
        for entry in _entries_from_message(message, losses):
            is_delegation = delegate_tool is not None and entry.get("tool") == delegate_tool
            result = _delegation_from(entry) if is_delegation else entry
            entries.append(_with_origin(result, message, agent_key))
    return Written(entries, tuple(losses))


def _delegation_from(action: Entry) -> Entry:
    """Convert a call of the delegation tool. ``args`` keeps the whole input."""
    args = action.get("args", {})
    worker, task = args.get("worker") or args.get("tier"), args.get("task")
    if not isinstance(worker, str) or not isinstance(task, str):
        return action
    fields = {"tool_use_id": action["tool_use_id"], "args": args}
    return {"type": types.DELEGATION, "worker": worker, "task": task, **fields}


# --- messages that were entries --------------------------------------------------------------------------------------


def _restore_entry(message: Message) -> Entry | None:
    """Return the original entry of a message with its current content, or ``None``."""
    stored = (message.metadata.extra or {}).get("entry")
    if not isinstance(stored, dict) or stored.get("type") not in types.TYPES:
        return None
    try:
        changes = _changed_fields(message, stored)
    except KeyError:  # another program has written this field
        return None
    entry = {
        "type": stored["type"],
        **changes,
        **{name: value for name, value in stored.items() if name not in changes},
    }
    return None if find_problems(entry) else entry


def _changed_fields(message: Message, stored: Entry) -> Entry:
    """Return the fields of the message that differ from the entry."""
    match message.content:
        case (ToolUseBlock() as call,):
            if stored["type"] != types.DELEGATION:
                return {"tool": call.name, "args": call.input}
            return {"args": call.input} if "args" in stored else dict(call.input)
        case (ToolResultBlock() as result,):
            text = _text(result.content)
        case blocks:
            text = _text(blocks)
    if "content" not in types.SHAPES[stored["type"]].required:  # an action of another agent, converted to text
        return {}
    return {} if "content" in stored and text in _renderings(stored) else {"content": text}


def _renderings(stored: Entry) -> tuple[str, ...]:
    """The possible texts of an entry."""
    return entry_text(stored)[0], describe_entry(stored)[0], describe_entry(stored, speaker=stored.get("agent_key"))[0]


# --- messages of ours ------------------------------------------------------------------------------------------------


def _entries_from_message(message: Message, losses: list[Loss]) -> Iterator[Entry]:
    match message.role:
        case Role.SYSTEM:
            yield {"type": types.INJECTED_CONTEXT, "content": _text_with_losses(message, message.content, losses)}
        case Role.USER:
            text = _text_with_losses(message, message.content, losses)
            yield {"type": types.USER_MESSAGE, "content": text}
            yield {"type": types.TASK, "content": text}
        case Role.TOOL:
            yield from _observations(message, losses)
        case _:
            yield from _answer_entries(message, losses)


def _observations(message: Message, losses: list[Loss]) -> Iterator[Entry]:
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            entry = {
                "type": types.OBSERVATION,
                "content": _text_with_losses(message, block.content, losses),
                "tool_use_id": block.tool_use_id,
            }
            yield entry | {"is_error": True} if block.is_error else entry
        else:
            losses.append(_loss(message, block.type))


def _answer_entries(message: Message, losses: list[Loss]) -> Iterator[Entry]:
    calls = [block for block in message.content if isinstance(block, ToolUseBlock | InvalidToolUseBlock)]
    words = [block for block in message.content if not isinstance(block, ToolUseBlock | InvalidToolUseBlock)]
    text = _text_with_losses(message, words, losses)
    if message.metadata.usage is not None:
        losses.append(_loss(message, "usage", "an entry has no field for the cost"))
    if text and not calls and message.metadata.status is MessageStatus.COMPLETE:
        yield {"type": types.FINAL, "content": text}
    if text:
        yield {"type": types.ASSISTANT_MESSAGE, "content": text}
    for call in calls:
        yield _action(call)
    if message.metadata.status in (MessageStatus.ERROR, MessageStatus.CANCELLED):
        yield {"type": types.ERROR, "content": "the answer did not end", "error_type": message.metadata.status.value}


def _action(call: ToolUseBlock | InvalidToolUseBlock) -> Entry:
    """Convert a call to an action, or to an error if it cannot be executed."""
    if isinstance(call, ToolUseBlock) and call.name:
        return {"type": types.ACTION, "tool": call.name, "args": call.input, "tool_use_id": call.id}
    if isinstance(call, ToolUseBlock):
        reason, input_text = "it names no tool", to_text(call.input)
    else:
        reason, input_text = call.reason, call.input_text
    fields = {"error_type": "tool_input_invalid", "tool": call.name, "input_text": input_text, "tool_use_id": call.id}
    return {"type": types.ERROR, "content": reason, **fields}


def _text_with_losses(message: Message, blocks: Iterable[ContentBlock], losses: list[Loss]) -> str:
    """Return the text of blocks; other blocks are losses."""
    blocks = tuple(blocks)
    losses.extend(_loss(message, block.type) for block in blocks if not isinstance(block, TextBlock))
    return _text(blocks)


def _text(blocks: Iterable[ContentBlock]) -> str:
    return _SEPARATOR.join(block.text for block in blocks if isinstance(block, TextBlock))


def _loss(
    message: Message, block_type: str, reason: str = "an entry has fields for texts, calls and results only"
) -> Loss:
    return Loss(message.session_id, message.id, block_type, "entries", reason)


def _with_origin(entry: Entry, message: Message, agent_key: str | None) -> Entry:
    """Add time, turn, message id, model and agent to an entry."""
    metadata = message.metadata
    if message.created_at != UNKNOWN_TIME:
        entry["timestamp"] = message.created_at.timestamp()
    if metadata.run_id is not None:
        entry["turn_id"] = metadata.run_id
    if message.id:
        entry["message_id"] = message.id
    if metadata.model is not None:
        entry["model"] = metadata.model
    if agent_key is not None and entry["type"] not in types.CONVERSATION_TYPES:
        entry["agent_key"] = agent_key
    return entry
