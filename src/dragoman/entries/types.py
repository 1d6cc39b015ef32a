"""The types of a trace entry, the collections that they form, and which fields each type has.

An entry is a plain dict: ``type``, what that type needs, and anything else that whoever wrote it wants to keep. The one
rule: the strings and the names of this file are other people's; they are never changed, only added to.
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
AGENT_TYPES: Final = (*EXECUTION_TRACE_TYPES, FINAL, DELEGATION)  # what the view of one agent shows

ANY: Final = "any JSON value"
TEXT: Final = "a text"
OBJECT: Final = "an object"
WHOLE: Final = "a whole number"


class Shape(msgspec.Struct, frozen=True):
    """What an entry of one type is made of: fields, and what each holds. Any other field may stand beside them."""

    meaning: str
    required: dict[str, str]
    optional: dict[str, str] = {}


_CONTENT: Final = {"content": ANY}

SHAPES: Final = {
    USER_MESSAGE: Shape("what a user said in a turn of the conversation", _CONTENT),
    ASSISTANT_MESSAGE: Shape("what was answered to the user", _CONTENT),
    TASK: Shape("a turn of execution begins", _CONTENT),
    ACTION: Shape("a tool is called", {"tool": TEXT, "args": OBJECT}),
    OBSERVATION: Shape("what a tool answered", _CONTENT),
    ERROR: Shape("something failed", _CONTENT, {"error_type": TEXT}),
    FINAL: Shape("the task is done, and this is the answer", _CONTENT),
    SYNTHESIS: Shape(
        "a manager puts the results of its workers together", {**_CONTENT, "from_manager": TEXT}, {"phase_id": WHOLE}
    ),
    STRATEGIC_PLAN: Shape("the plan of an orchestrator or a manager", {"content": OBJECT}),
    SUGGESTED_PLAN: Shape("a plan that an agent was given and may follow", _CONTENT),
    SCRIPT_PLAN: Shape("a plan of steps", {"content": OBJECT}),
    SCRIPT_INSTRUCTION: Shape("the steps that an agent was told to take", _CONTENT),
    DELEGATION: Shape("a manager gives a task to a worker", {"worker": TEXT, "task": TEXT}),
    GLOBAL_OBSERVATION: Shape("an observation for every agent", _CONTENT, {"from_worker": TEXT, "summary": TEXT}),
    DIRECTOR_CONTEXT: Shape("context that a context builder put in", _CONTENT),
    INJECTED_CONTEXT: Shape("context of the execution that was put in", _CONTENT),
}
TYPES: Final = tuple(SHAPES)
