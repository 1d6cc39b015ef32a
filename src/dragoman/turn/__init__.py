"""Turns of an agent: from a question to its answer. Start reading in ``turn.turn``."""

from __future__ import annotations

from dragoman.tools import Approval
from dragoman.turn.agent import Agent
from dragoman.turn.config import AgentConfig
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
    "AnswerEnd",
    "AnswerStart",
    "Approval",
    "PendingCall",
    "ToolResultEvent",
    "TurnEnd",
    "TurnEvent",
    "TurnRequest",
    "TurnStart",
    "TurnTask",
    "default_model",
    "make_registry",
    "run",
]
