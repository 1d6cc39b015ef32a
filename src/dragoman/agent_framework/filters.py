"""Filters that select the entries of a history for the prompt of a planner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from dragoman import entries
from dragoman.entries import Entry

Context = Mapping[str, Any]


class HistoryFilter(ABC):
    """Selects entries for a prompt."""

    @abstractmethod
    def filter_for_prompt(self, history: list[Entry], context: Context | None = None) -> list[Entry]:
        """The entries for the prompt, in order."""


class DefaultHistoryFilter(HistoryFilter):
    """All entries."""

    def filter_for_prompt(self, history: list[Entry], context: Context | None = None) -> list[Entry]:  # noqa: ARG002
        return list(history)


class OrchestratorHistoryFilter(HistoryFilter):
    """The newest entries of the conversation. ``max_conversation_turns`` counts entries, not pairs of them."""

    def __init__(self, max_conversation_turns: int = entries.CONVERSATION_LIMIT) -> None:
        self.max_conversation_turns = max_conversation_turns

    def filter_for_prompt(self, history: list[Entry], context: Context | None = None) -> list[Entry]:
        limit = (context or {}).get("max_conversation_turns")
        return entries.for_orchestrator(history, self.max_conversation_turns if limit is None else limit)


class ManagerHistoryFilter(HistoryFilter):
    """The syntheses of the previous phase: ``previous_phase_id``, or else the phase before ``phase_id``."""

    def filter_for_prompt(self, history: list[Entry], context: Context | None = None) -> list[Entry]:
        fields = context or {}
        return entries.for_manager(history, fields.get("phase_id"), fields.get("previous_phase_id"))


class WorkerHistoryFilter(HistoryFilter):
    """Actions and observations since the last task."""

    def filter_for_prompt(self, history: list[Entry], context: Context | None = None) -> list[Entry]:  # noqa: ARG002
        return entries.for_worker(history)
