"""Types of trace entries, groups of types, and the fields of each type.

An entry is a plain dict: ``type``, the fields of the type, and any other fields. The names and strings of this module
belong to the framework's format: they are never changed, only extended.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

Entry = dict[str, Any]

# conversation
USER_MESSAGE: Final = "user_message"
ASSISTANT_MESSAGE: Final = "assistant_message"
# execution trace
TASK: Final = "task"
ACTION: Final = "action"
OBSERVATION: Final = "observation"
ERROR: Final = "error"
# completion
FINAL: Final = "final"
SYNTHESIS: Final = "synthesis"
# planning
STRATEGIC_PLAN: Final = "strategic_plan"
SUGGESTED_PLAN: Final = "suggested_plan"
SCRIPT_PLAN: Final = "script_plan"
SCRIPT_INSTRUCTION: Final = "script_instruction"
# delegation
DELEGATION: Final = "delegation"
# global
GLOBAL_OBSERVATION: Final = "global_observation"
# context
DIRECTOR_CONTEXT: Final = "director_context"
INJECTED_CONTEXT: Final = "injected_context"

CONVERSATION_TYPES: Final = (USER_MESSAGE, ASSISTANT_MESSAGE)
EXECUTION_TRACE_TYPES: Final = (TASK, ACTION, OBSERVATION, ERROR)
COMPLETION_TYPES: Final = (FINAL, SYNTHESIS)
TURN_MARKERS: Final = (TASK,)
PLANNING_TYPES: Final = (STRATEGIC_PLAN, SUGGESTED_PLAN, SCRIPT_PLAN, SCRIPT_INSTRUCTION)
CONTEXT_TYPES: Final = (DIRECTOR_CONTEXT, INJECTED_CONTEXT)
GLOBAL_TYPES: Final = (GLOBAL_OBSERVATION, SYNTHESIS)
DELEGATION_TYPES: Final = (DELEGATION,)
AGENT_TYPES: Final = (*EXECUTION_TRACE_TYPES, FINAL, DELEGATION)  # types in the view of one agent

ANY: Final = "any JSON value"
TEXT: Final = "a text"
OBJECT: Final = "an object"
WHOLE: Final = "a whole number"


class Shape(msgspec.Struct, frozen=True):
    """Fields of one entry type, with a description of each. Other fields are allowed."""

    meaning: str
    required: dict[str, str]
    optional: dict[str, str] = {}


_CONTENT: Final = {"content": ANY}

SHAPES: Final = {
    USER_MESSAGE: Shape("a message of the user", _CONTENT),
    ASSISTANT_MESSAGE: Shape("an answer to the user", _CONTENT),
    TASK: Shape("the start of a turn of execution", _CONTENT),
    ACTION: Shape("a tool call", {"tool": TEXT, "args": OBJECT}),
    OBSERVATION: Shape("the result of a tool", _CONTENT),
    ERROR: Shape("a failure", _CONTENT, {"error_type": TEXT}),
    FINAL: Shape("the answer of a finished task", _CONTENT),
    SYNTHESIS: Shape(
        "the combined results of a manager's workers", {**_CONTENT, "from_manager": TEXT}, {"phase_id": WHOLE}
    ),
    STRATEGIC_PLAN: Shape("the plan of an orchestrator or a manager", {"content": OBJECT}),
    SUGGESTED_PLAN: Shape("a plan that an agent may follow", _CONTENT),
    SCRIPT_PLAN: Shape("a plan of steps", {"content": OBJECT}),
    SCRIPT_INSTRUCTION: Shape("the steps that an agent must follow", _CONTENT),
    DELEGATION: Shape("a task that a manager delegates to a worker", {"worker": TEXT, "task": TEXT}),
    GLOBAL_OBSERVATION: Shape("an observation for every agent", _CONTENT, {"from_worker": TEXT, "summary": TEXT}),
    DIRECTOR_CONTEXT: Shape("context from a context builder", _CONTENT),
    INJECTED_CONTEXT: Shape("context of the execution", _CONTENT),
}
TYPES: Final = tuple(SHAPES)
