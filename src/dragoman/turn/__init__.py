"""Turns of an agent: from a question to its answer. Start reading in ``turn.turn``."""

from __future__ import annotations

from dragoman.tools import Approval
from dragoman.turn.agent import Agent
from dragoman.turn.answer import Answer, AnswerStream
from dragoman.turn.config import AgentConfig
from dragoman.turn.portal import BlockingAgent, BlockingStream
from dragoman.turn.question import ask, ask_async, stream, stream_async
from dragoman.turn.services import AgentServices, default_model, make_registry
from dragoman.turn.task import TurnTask
from dragoman.turn.turn import run
from dragoman.turn.types import (
    AnswerEnd,
    AnswerStart,
    PendingCall,
    ToolResultEvent,
    TurnEnd,
    TurnEvent,
    TurnRequest,
    TurnStart,
)

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentServices",
    "Answer",
    "AnswerEnd",
    "AnswerStart",
    "AnswerStream",
    "Approval",
    "BlockingAgent",
    "BlockingStream",
    "PendingCall",
    "ToolResultEvent",
    "TurnEnd",
    "TurnEvent",
    "TurnRequest",
    "TurnStart",
    "TurnTask",
    "ask",
    "ask_async",
    "default_model",
    "make_registry",
    "run",
    "stream",
    "stream_async",
]
