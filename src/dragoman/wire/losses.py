"""What a wire cannot say, named: the losses that every dialect has in common.

    sayable(blocks, cannot_say, dialect, losses, message) -> blocks    those that the wire can carry
    lost_options(lost, dialect) -> losses                              options that the API does not have
    lost_failure(result, message, dialect) -> losses                   that a tool failed, where only words can say it

The one rule: what is left out is named, once, with the message that it stood in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from dragoman.exchange import Loss
from dragoman.message import ContentBlock, Message, ToolResultBlock


def supported_blocks(
    blocks: Iterable[ContentBlock],
    unsupported_reason: Callable[[ContentBlock], str | None],
    dialect: str,
    losses: list[Loss],
    message: Message | None = None,
) -> list[ContentBlock]:
    """The blocks that this wire can carry. ``cannot_say`` gives the reason for which it cannot, and that is a loss."""
    session_id, message_id = (message.session_id, message.id) if message is not None else ("", "")
    supported: list[ContentBlock] = []
    for block in blocks:
        reason = unsupported_reason(block)
        if reason is None:
            supported.append(block)
        else:
            losses.append(Loss(session_id, message_id, block.type, dialect, reason))
    return supported


def option_losses(lost: Mapping[str, bool], dialect: str) -> list[Loss]:
    """A loss for each option that was asked for and that the API does not have."""
    return [Loss("", "", name, dialect, "this API has no such option") for name, is_lost in lost.items() if is_lost]


def error_flag_losses(result: ToolResultBlock, message: Message, dialect: str) -> Iterator[Loss]:
    """Where a result has no mark for it, that the tool failed is only in what it says."""
    if result.is_error:
        reason = "that a tool failed; what it said about it is kept"
        yield Loss(message.session_id, message.id, "is_error", dialect, reason)
