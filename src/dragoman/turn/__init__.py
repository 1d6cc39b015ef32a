"""Turns: an agent, and what happens from a question to its answer. ``turn.turn`` is the file to read first."""

from __future__ import annotations

from dragoman.tools import Approval
from dragoman.turn.agent import Agent, default_model, make_registry
from dragoman.turn.task import TurnTask
from dragoman.turn.turn import run
from dragoman.turn.types import (
    AnswerEnd,
    AnswerStart,
    PendingCall,
    ToolResultStored,
    TurnEnd,
    TurnEvent,
    TurnRequest,
    TurnStart,
)

__all__ = [
    "Agent",
    "AnswerEnd",
    "AnswerStart",
    "Approval",
    "PendingCall",
    "ToolResultStored",
    "TurnEnd",
    "TurnEvent",
    "TurnRequest",
    "TurnStart",
    "TurnTask",
    "default_model",
    "make_registry",
    "run",
]
