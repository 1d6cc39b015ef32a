"""What a tool gave after its call had been answered for it, because its time was over or somebody stopped the turn.

A call has one result, so this is no second one: it becomes a note, a message of the user in tags, which is stored with
the next question and which every model is told from then on. The one rule: a turn is never told of what comes while it
runs; the next one is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dragoman.message import ContentBlock, Message, Role, TextBlock
from dragoman.rules import allowed_blocks
from dragoman.tools import LateResult
from dragoman.tools.tool import truncate_middle

LATE_KEY: Final = "late_result"  # the key in a message's metadata.extra
_MAX_TEXT: Final = 20_000


def make_late_note(late: LateResult) -> tuple[ContentBlock, ...]:
    """What is told of a late result; nothing, if it has nothing to tell."""
    if late.result.is_error:
        return ()
    texts = [block.text for block in late.result.content if isinstance(block, TextBlock)]
    seconds = late.latency_ms / 1000
    text = (
        f"<late_result tool={msgspec.json.encode(late.tool_name).decode()} call={late.tool_use_id}>\n"
        f"This call had been answered as not done in time. It ended after {seconds:.1f} s, and gave:\n"
        f"{truncate_middle(chr(10).join(texts), _MAX_TEXT)}\n</late_result>"
    )
    allowed = allowed_blocks(Role.USER) or frozenset()
    media = [block for block in late.result.content if not isinstance(block, TextBlock) and type(block) in allowed]
    return (TextBlock(text), *media)


def is_late_note(message: Message) -> bool:
    """Whether it is such a note."""
    return message.role is Role.USER and LATE_KEY in (message.metadata.extra or {})
