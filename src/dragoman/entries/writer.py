"""From canonical messages to entries: what was said and done, for the agent that said and did it.

    entries_from_messages(messages, agent_key="orchestrator") -> Written(entries, losses)

A message that was an entry becomes that entry again; where its words were changed since, the entry says the new ones.
Any other message becomes what an agent would have written: a user's words begin a task, a call is an action, a result
an observation, an answer that calls nothing is final. Pictures, reasoning and prices have no place in an entry, and
each is named as a loss. The one rule: words, calls and results are never among the losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dragoman.entries import types
from dragoman.entries.reader import UNKNOWN_TIME
from dragoman.entries.text import describe_entry, entry_text, to_text
from dragoman.entries.types import Entry
from dragoman.entries.validation import find_problems
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

_SEPARATOR: Final = "\n\n"  # blocks of text


def entries_from_messages(
    messages: Iterable[Message], *, agent_key: str | None = None, delegate_tool: str | None = None
) -> Written:
    """The entries of messages, in order. ``agent_key`` is put into those that are of an agent and not of everybody.

    A call of ``delegate_tool`` is a ``delegation``; of any other tool, an ``action``.
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
    """A call of the tool that delegates, as a ``delegation``. The call's whole input stays in ``args``."""
    args = action.get("args", {})
    worker, task = args.get("worker") or args.get("tier"), args.get("task")
    if not isinstance(worker, str) or not isinstance(task, str):
        return action
    fields = {"tool_use_id": action["tool_use_id"], "args": args}
    return {"type": types.DELEGATION, "worker": worker, "task": task, **fields}


# --- messages that were entries --------------------------------------------------------------------------------------


def _restore_entry(message: Message) -> Entry | None:
    """The entry that a message was, with what it says today; nothing, if it was none."""
    stored = (message.metadata.extra or {}).get("entry")
    if not isinstance(stored, dict) or stored.get("type") not in types.TYPES:
        return None
    try:
        changes = _changed_fields(message, stored)
    except KeyError:  # an application keeps something of its own there
        return None
    entry = {
        "type": stored["type"],
        **changes,
        **{name: value for name, value in stored.items() if name not in changes},
    }
    return None if find_problems(entry) else entry


def _changed_fields(message: Message, stored: Entry) -> Entry:
    """What the message says today, where that is not what the entry said."""
    match message.content:
        case (ToolUseBlock() as call,):
            if stored["type"] != types.DELEGATION:
                return {"tool": call.name, "args": call.input}
            return {"args": call.input} if "args" in stored else dict(call.input)
        case (ToolResultBlock() as result,):
            text = _text(result.content)
        case blocks:
            text = _text(blocks)
    if "content" not in types.SHAPES[stored["type"]].required:  # what another agent did, told in words
        return {}
    return {} if "content" in stored and text in _renderings(stored) else {"content": text}


def _renderings(stored: Entry) -> tuple[str, ...]:
    """The ways in which an entry may have been put into words."""
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
        losses.append(_loss(message, "usage", "an entry has no place for what a message has cost"))
    if text and not calls and message.metadata.status is MessageStatus.COMPLETE:
        yield {"type": types.FINAL, "content": text}
    if text:
        yield {"type": types.ASSISTANT_MESSAGE, "content": text}
    for call in calls:
        yield _action(call)
    if message.metadata.status in (MessageStatus.ERROR, MessageStatus.CANCELLED):
        yield {"type": types.ERROR, "content": "the answer did not end", "error_type": message.metadata.status.value}


def _action(call: ToolUseBlock | InvalidToolUseBlock) -> Entry:
    """A call as an action; as an error, if nobody could ever have made it."""
    if isinstance(call, ToolUseBlock) and call.name:
        return {"type": types.ACTION, "tool": call.name, "args": call.input, "tool_use_id": call.id}
    if isinstance(call, ToolUseBlock):
        reason, input_text = "it names no tool", to_text(call.input)
    else:
        reason, input_text = call.reason, call.input_text
    fields = {"error_type": "tool_input_invalid", "tool": call.name, "input_text": input_text, "tool_use_id": call.id}
    return {"type": types.ERROR, "content": reason, **fields}


def _text_with_losses(message: Message, blocks: Iterable[ContentBlock], losses: list[Loss]) -> str:
    """The words of blocks; what is none is a loss."""
    blocks = tuple(blocks)
    losses.extend(_loss(message, block.type) for block in blocks if not isinstance(block, TextBlock))
    return _text(blocks)


def _text(blocks: Iterable[ContentBlock]) -> str:
    return _SEPARATOR.join(block.text for block in blocks if isinstance(block, TextBlock))


def _loss(message: Message, block_type: str, reason: str = "an entry holds words, calls and results only") -> Loss:
    return Loss(message.session_id, message.id, block_type, "entries", reason)


def _with_origin(entry: Entry, message: Message, agent_key: str | None) -> Entry:
    """The entry with its time, its turn, the message that it comes from, and whose it is."""
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
