"""Dragoman: one canonical message format for agents, with dialects, a store, routing and turns.

    import dragoman

    print(dragoman.ask("What is a ULID?", model="local").text)

This package exports the names that most programs need; ``dir(dragoman)`` lists them. Others are in their modules.
``dragoman.message`` is the first module to read. ``import dragoman`` loads only the format. What opens a store or calls
a model is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from dragoman.codec import content_hash, decode, encode, message_hash
from dragoman.errors import AnswerError, DragomanError
from dragoman.event import StreamEvent, TextDelta, ThinkingDelta, fold, unfold
from dragoman.exchange import Fault, Options, Reply, Request, SideEffects, StopReason, ToolDefinition
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
    from dragoman import catalog, dialects, mail, pricing, server, settings
    from dragoman.adapter import Adapter
    from dragoman.handoff import plan_swap
    from dragoman.store import Session, Store, open_store
    from dragoman.tools.mcp import McpServer
    from dragoman.tools.tool import Tool, ToolContext, tool
    from dragoman.turn import (
        Agent,
        AgentConfig,
        Answer,
        AnswerEnd,
        AnswerStart,
        AnswerStream,
        Approval,
        ToolResultEvent,
        TurnEnd,
        TurnStart,
        ask,
        ask_async,
        stream,
        stream_async,
    )
    from dragoman.turn.conversation import conversation_loop
    from dragoman.turn.image_policy import image_from_file

__version__ = "0.1.0"

# Names that are imported on first use, because their modules load asyncio, SQLite or an HTTP client.
_LAZY: Final = {
    **dict.fromkeys(("Session", "Store", "open_store"), "dragoman.store"),
    **dict.fromkeys(("Tool", "ToolContext", "tool"), "dragoman.tools"),
    **dict.fromkeys(
        (
            "Agent",
            "AgentConfig",
            "Answer",
            "AnswerEnd",
            "AnswerStart",
            "AnswerStream",
            "Approval",
            "ToolResultEvent",
            "TurnEnd",
            "TurnStart",
            "ask",
            "ask_async",
            "stream",
            "stream_async",
        ),
        "dragoman.turn",
    ),
    "Adapter": "dragoman.adapter",
    "McpServer": "dragoman.tools.mcp",
    "conversation_loop": "dragoman.turn.conversation",  # the default loop of ``envelope.run_conversation``
    "image_from_file": "dragoman.turn.image_policy",
    "plan_swap": "dragoman.handoff",
}
_MODULES: Final = ("catalog", "dialects", "mail", "pricing", "server", "settings")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dragoman.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Adapter",
    "Agent",
    "AgentConfig",
    "Answer",
    "AnswerEnd",
    "AnswerError",
    "AnswerStart",
    "AnswerStream",
    "Approval",
    "AudioBlock",
    "ContentBlock",
    "DocumentBlock",
    "DragomanError",
    "Fault",
    "ImageBlock",
    "ImageSource",
    "InvalidToolUseBlock",
    "McpServer",
    "Message",
    "MessageMetadata",
    "MessageStatus",
    "OpaqueBlock",
    "Options",
    "RedactedThinkingBlock",
    "Reply",
    "Request",
    "Role",
    "RoutingDecisionRecord",
    "RoutingMode",
    "Session",
    "SideEffects",
    "StopReason",
    "Store",
    "StreamEvent",
    "TextBlock",
    "TextDelta",
    "ThinkingBlock",
    "ThinkingDelta",
    "TokenUsage",
    "Tool",
    "ToolContext",
    "ToolDefinition",
    "ToolResultBlock",
    "ToolResultEvent",
    "ToolUseBlock",
    "TurnEnd",
    "TurnStart",
    "Usage",
    "VideoBlock",
    "ask",
    "ask_async",
    "catalog",
    "check",
    "content_hash",
    "conversation_loop",
    "decode",
    "dialects",
    "encode",
    "fold",
    "image_from_file",
    "mail",
    "message_hash",
    "open_store",
    "plan_swap",
    "pricing",
    "read_json",
    "repair",
    "server",
    "settings",
    "stream",
    "stream_async",
    "tool",
    "unfold",
]
