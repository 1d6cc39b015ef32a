"""The entry types and their collections, under the framework's names.

The collections are lists, as in the framework.
"""

from __future__ import annotations

from dragoman import entries
from dragoman.entries import (
    ACTION,
    ASSISTANT_MESSAGE,
    DELEGATION,
    DIRECTOR_CONTEXT,
    ERROR,
    FINAL,
    GLOBAL_OBSERVATION,
    INJECTED_CONTEXT,
    OBSERVATION,
    SCRIPT_INSTRUCTION,
    SCRIPT_PLAN,
    STRATEGIC_PLAN,
    SUGGESTED_PLAN,
    SYNTHESIS,
    TASK,
    USER_MESSAGE,
)

CONVERSATION_TYPES = list(entries.CONVERSATION_TYPES)
EXECUTION_TRACE_TYPES = list(entries.EXECUTION_TRACE_TYPES)
COMPLETION_TYPES = list(entries.COMPLETION_TYPES)
TURN_MARKERS = list(entries.TURN_MARKERS)
PLANNING_TYPES = list(entries.PLANNING_TYPES)
CONTEXT_TYPES = list(entries.CONTEXT_TYPES)
GLOBAL_TYPES = list(entries.GLOBAL_TYPES)
DELEGATION_TYPES = list(entries.DELEGATION_TYPES)

__all__ = [
    "ACTION",
    "ASSISTANT_MESSAGE",
    "COMPLETION_TYPES",
    "CONTEXT_TYPES",
    "CONVERSATION_TYPES",
    "DELEGATION",
    "DELEGATION_TYPES",
    "DIRECTOR_CONTEXT",
    "ERROR",
    "EXECUTION_TRACE_TYPES",
    "FINAL",
    "GLOBAL_OBSERVATION",
    "GLOBAL_TYPES",
    "INJECTED_CONTEXT",
    "OBSERVATION",
    "PLANNING_TYPES",
    "SCRIPT_INSTRUCTION",
    "SCRIPT_PLAN",
    "STRATEGIC_PLAN",
    "SUGGESTED_PLAN",
    "SYNTHESIS",
    "TASK",
    "TURN_MARKERS",
    "USER_MESSAGE",
]
