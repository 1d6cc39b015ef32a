"""Turns: an agent, and what happens from a question to its answer. ``turn.turn`` is the file to read first."""

from __future__ import annotations

from dragoman.tools import Approval
from dragoman.turn.agent import Agent, default_model, registry_of
from dragoman.turn.running import RunningTurn
from dragoman.turn.turn import run
from dragoman.turn.values import AnswerBegan, AnswerEnded, Asked, Pending, ResultStored, TurnBegan, TurnEnded, TurnEvent

__all__ = [
    "Agent",
    "AnswerBegan",
    "AnswerEnded",
    "Approval",
    "Asked",
    "Pending",
    "ResultStored",
    "RunningTurn",
    "TurnBegan",
    "TurnEnded",
    "TurnEvent",
    "default_model",
    "registry_of",
    "run",
]
