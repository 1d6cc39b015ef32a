"""Short texts about a conversation and its messages for renderers. Unrecorded facts are omitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import msgspec

from dragoman import message as msg
from dragoman.humanize import escape_controls, format_count, format_size, format_time, format_usd

_UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT: Final = 80  # characters


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Title and facts of a conversation."""

    title: str
    facts: tuple[str, ...]

    @classmethod
    def from_messages(cls, messages: Sequence[msg.Message], title: str | None = None) -> About:
        """Collect the facts of messages."""
        session = messages[0].session_id if messages else ""
        heading = escape_controls(" ".join((title or "").split()))
        count = format_count(len(messages), "message")
        models = dict.fromkeys(message.metadata.model for message in messages if message.metadata.model)
        amounts = [message.metadata.usage.amount_usd for message in messages if message.metadata.usage is not None]
        days = [format_time(message.created_at)[:10] for message in messages if message.created_at != _UNKNOWN_TIME]
        facts = [session if heading else "", count, ", ".join(models)]
        facts += [days[0] if len(set(days)) == 1 else f"{days[0]} to {days[-1]}"] if days else []
        facts += [_format_sum(amounts)] if amounts else []
        return cls(
            title=heading or session or "Conversation", facts=tuple(escape_controls(fact) for fact in facts if fact)
        )


def _format_sum(amounts: Sequence[Decimal | None]) -> str:
    """The sum of known costs, and the number of answers without a price."""
    priced = [amount for amount in amounts if amount is not None]
    unpriced = f"{len(amounts) - len(priced):,} unpriced" if len(priced) < len(amounts) else ""
    return " + ".join(text for text in (format_usd(sum(priced, Decimal(0))) if priced else "", unpriced) if text)


def message_facts(message: msg.Message) -> list[str]:
    """Return model, time, tokens, cost and status of a message."""
    metadata, usage = message.metadata, message.metadata.usage
    facts = [metadata.model or ""]
    facts += [format_time(message.created_at)] if message.created_at != _UNKNOWN_TIME else []
    if usage is not None:
        prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        facts += [f"{prompt:,} → {usage.output_tokens:,} tokens", format_usd(usage.amount_usd)]
    if metadata.status is not msg.MessageStatus.COMPLETE:
        facts.append(metadata.status.value)
    return [escape_controls(fact) for fact in facts if fact]


def results_by_call(messages: Iterable[msg.Message]) -> dict[str, msg.ToolResultBlock]:
    """Return the first result of each call."""
    results: dict[str, msg.ToolResultBlock] = {}
    for message in messages:
        for block in message.content:
            if isinstance(block, msg.ToolResultBlock):
                results.setdefault(block.tool_use_id, block)
    return results


def placeholder(block: msg.ContentBlock) -> str:
    """Return a text in place of a block that is not text."""
    match block:
        case msg.ImageBlock() | msg.AudioBlock() | msg.VideoBlock() | msg.DocumentBlock():
            name = f"{block.name}, " if isinstance(block, msg.DocumentBlock) and block.name else ""
            return escape_controls(f"{block.type}: {name}{block.media_type}, {_where(block.source)}")
        case msg.RedactedThinkingBlock():
            return "thinking, encrypted by the provider"
        case msg.OpaqueBlock():
            return escape_controls(f"{block.dialect}: {block.wire.get('type', 'native block')}")
        case msg.UnknownBlock():
            return escape_controls(f"{block.type}: from a newer version")
        case _:
            return block.type


def _where(source: msg.ImageSource) -> str:
    return format_size(len(source.data) * 3 // 4) if source.kind == "base64" else source.data


def format_json(value: object) -> str:
    """Format JSON for people: on one line if it is short."""
    data = msgspec.json.encode(value)
    short = msgspec.json.format(data, indent=0)
    return escape_controls((short if len(short) <= _SHORT else msgspec.json.format(data, indent=2)).decode())
