"""Dragoman: one canonical message format for agents, with dialects, a store, routing and turns.

Read ``dragoman.message`` first. This package exports the names that most programs need. Others are in their modules
(``dragoman.ids``, ``dragoman.toolschema``, ``dragoman.catalog``, ``dragoman.pricing``, ``dragoman.store``,
``dragoman.errors``).
"""

from typing import TYPE_CHECKING, Any

from dragoman.codec import content_hash, decode, encode, message_hash
from dragoman.errors import DragomanError
from dragoman.event import StreamEvent, fold, unfold
from dragoman.exchange import Fault, Reply, SideEffects, StopReason, ToolDefinition
from dragoman.jsontext import read_json
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    VideoBlock,
)
from dragoman.repair import repair
from dragoman.rules import check

if TYPE_CHECKING:
    from dragoman.store import open_store
    from dragoman.turn import Agent

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the store and the agent on first use: they load asyncio, SQLite and an HTTP client."""
    if name == "open_store":
        from dragoman.store import open_store  # noqa: PLC0415

        return open_store
    if name == "Agent":
        from dragoman.turn import Agent  # noqa: PLC0415

        return Agent
    if name == "conversation_loop":  # the default loop of ``envelope.run_conversation``
        from dragoman.turn.conversation import conversation_loop  # noqa: PLC0415

        return conversation_loop
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Agent",
    "AudioBlock",
    "ContentBlock",
    "DocumentBlock",
    "DragomanError",
    "Fault",
    "ImageBlock",
    "ImageSource",
    "InvalidToolUseBlock",
    "Message",
    "MessageMetadata",
    "MessageStatus",
    "OpaqueBlock",
    "RedactedThinkingBlock",
    "Reply",
    "Role",
    "RoutingDecisionRecord",
    "RoutingMode",
    "SideEffects",
    "StopReason",
    "StreamEvent",
    "TextBlock",
    "ThinkingBlock",
    "TokenUsage",
    "ToolDefinition",
    "ToolResultBlock",
    "ToolUseBlock",
    "Usage",
    "VideoBlock",
    "check",
    "content_hash",
    "decode",
    "encode",
    "fold",
    "message_hash",
    "open_store",
    "read_json",
    "repair",
    "unfold",
]
