"""The builders of entries, with the time of now in what is given none.

    create_action_entry(tool_name="list_tables", tool_args={"schema": "public"}, turn_id="turn_1")
    get_message_type_info("action")    what a type is for, and what its builder takes
    prepare_history_from_job_data      rows of a job store as a history

They are those of ``dragoman.entries``, which reads no clock. The one rule: a timestamp that was given is kept, 0 too.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec

from dragoman import entries
from dragoman.entries import Entry

Given = ParamSpec("Given")


def _stamped(build: Callable[Given, Entry]) -> Callable[Given, Entry]:
    signature = inspect.signature(build)

    @functools.wraps(build)
    def made(*arguments: Given.args, **named: Given.kwargs) -> Entry:
        bound = signature.bind(*arguments, **named)
        if bound.arguments.get("timestamp") is None:
            bound.arguments["timestamp"] = time.time()
        return build(*bound.args, **bound.kwargs)

    return made


create_user_message = _stamped(entries.create_user_message)
create_assistant_message = _stamped(entries.create_assistant_message)
create_task_entry = _stamped(entries.create_task_entry)
create_action_entry = _stamped(entries.create_action_entry)
create_observation_entry = _stamped(entries.create_observation_entry)
create_error_entry = _stamped(entries.create_error_entry)
create_final_entry = _stamped(entries.create_final_entry)
create_synthesis_entry = _stamped(entries.create_synthesis_entry)
create_strategic_plan_entry = _stamped(entries.create_strategic_plan_entry)
create_suggested_plan_entry = _stamped(entries.create_suggested_plan_entry)
create_script_plan_entry = _stamped(entries.create_script_plan_entry)
create_script_instruction_entry = _stamped(entries.create_script_instruction_entry)
create_delegation_entry = _stamped(entries.create_delegation_entry)
create_global_observation_entry = _stamped(entries.create_global_observation_entry)
create_director_context_entry = _stamped(entries.create_director_context_entry)
create_injected_context_entry = _stamped(entries.create_injected_context_entry)


def _described(kind: str, builder: Callable[..., Entry]) -> dict[str, Any]:
    """What a builder takes, by the names of its arguments, which are not always the keys of the entry."""
    named = [
        parameter
        for parameter in inspect.signature(builder).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    return {
        "constant": kind,
        "builder": builder,
        "description": entries.SHAPES[kind].meaning,
        "required_fields": [one.name for one in named if one.default is one.empty],
        "optional_fields": [one.name for one in named if one.default is not one.empty],
    }


AVAILABLE_MESSAGE_TYPES: Final = {
    kind: _described(kind, globals()[builder.__name__]) for kind, builder in entries.BUILDERS.items()
}


def get_message_type_info(name: str) -> dict[str, Any] | None:
    """What a type is for, and what its builder takes; nothing for a type that there is not."""
    return AVAILABLE_MESSAGE_TYPES.get(name)


_SPOKEN: Final = {"user": entries.USER_MESSAGE, "assistant": entries.ASSISTANT_MESSAGE}


def prepare_history_from_job_data(job_data: Mapping[str, Any], message_format: str = "framework") -> list[Entry]:
    """The ``conversation`` and then the ``execution_traces`` of a job as entries, with every field that they have.

    A row of the conversation has a ``role``; one of another role than user and assistant is skipped, and so is a trace
    of a type that there is not. A trace that lacks what its type needs is a ``FormatError``.
    """
    if message_format != "framework":
        raise ValueError(f"there is one format, 'framework', and not {message_format!r}")
    said = [
        entries.validate_entry({"type": _SPOKEN[row["role"]], **{name: row[name] for name in row if name != "role"}})
        for row in job_data.get("conversation") or ()
        if row.get("role") in tuple(_SPOKEN)
    ]
    traces = job_data.get("execution_traces") or ()
    return said + [entries.validate_entry(trace) for trace in traces if trace.get("type") in entries.TYPES]


__all__ = [
    "AVAILABLE_MESSAGE_TYPES",
    "create_action_entry",
    "create_assistant_message",
    "create_delegation_entry",
    "create_director_context_entry",
    "create_error_entry",
    "create_final_entry",
    "create_global_observation_entry",
    "create_injected_context_entry",
    "create_observation_entry",
    "create_script_instruction_entry",
    "create_script_plan_entry",
    "create_strategic_plan_entry",
    "create_suggested_plan_entry",
    "create_synthesis_entry",
    "create_task_entry",
    "create_user_message",
    "get_message_type_info",
    "prepare_history_from_job_data",
]
