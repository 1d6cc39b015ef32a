"""The builders of entries, which set the current time if the caller sets none.

    create_action_entry(tool_name="list_tables", tool_args={"schema": "public"}, turn_id="turn_1")
    get_message_type_info("action")    the description of a type and the arguments of its builder
    prepare_history_from_job_data      rows of a job store as a history

The builders of ``dragoman.entries`` read no clock. Invariant: a timestamp that the caller sets is kept, also 0.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec

from dragoman import entries
from dragoman.entries import Entry

Arguments = ParamSpec("Arguments")


def _with_timestamp(build: Callable[Arguments, Entry]) -> Callable[Arguments, Entry]:
    signature = inspect.signature(build)

    @functools.wraps(build)
    def build_now(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Entry:
        bound = signature.bind(*arguments, **keywords)
        if bound.arguments.get("timestamp") is None:
            bound.arguments["timestamp"] = time.time()
        return build(*bound.args, **bound.kwargs)

    return build_now


create_user_message = _with_timestamp(entries.create_user_message)
create_assistant_message = _with_timestamp(entries.create_assistant_message)
create_task_entry = _with_timestamp(entries.create_task_entry)
create_action_entry = _with_timestamp(entries.create_action_entry)
create_observation_entry = _with_timestamp(entries.create_observation_entry)
create_error_entry = _with_timestamp(entries.create_error_entry)
create_final_entry = _with_timestamp(entries.create_final_entry)
create_synthesis_entry = _with_timestamp(entries.create_synthesis_entry)
create_strategic_plan_entry = _with_timestamp(entries.create_strategic_plan_entry)
create_suggested_plan_entry = _with_timestamp(entries.create_suggested_plan_entry)
create_script_plan_entry = _with_timestamp(entries.create_script_plan_entry)
create_script_instruction_entry = _with_timestamp(entries.create_script_instruction_entry)
create_delegation_entry = _with_timestamp(entries.create_delegation_entry)
create_global_observation_entry = _with_timestamp(entries.create_global_observation_entry)
create_director_context_entry = _with_timestamp(entries.create_director_context_entry)
create_injected_context_entry = _with_timestamp(entries.create_injected_context_entry)


def _describe(kind: str, builder: Callable[..., Entry]) -> dict[str, Any]:
    """The arguments of a builder. Their names can differ from the keys of the entry."""
    parameters = [
        parameter
        for parameter in inspect.signature(builder).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    return {
        "constant": kind,
        "builder": builder,
        "description": entries.SHAPES[kind].meaning,
        "required_fields": [item.name for item in parameters if item.default is item.empty],
        "optional_fields": [item.name for item in parameters if item.default is not item.empty],
    }


AVAILABLE_MESSAGE_TYPES: Final = {
    kind: _describe(kind, globals()[builder.__name__]) for kind, builder in entries.BUILDERS.items()
}


def get_message_type_info(name: str) -> dict[str, Any] | None:
    """The description of a type and the arguments of its builder; none for an unknown type."""
    return AVAILABLE_MESSAGE_TYPES.get(name)


_ROLE_TYPES: Final = {"user": entries.USER_MESSAGE, "assistant": entries.ASSISTANT_MESSAGE}


def prepare_history_from_job_data(job_data: Mapping[str, Any], message_format: str = "framework") -> list[Entry]:
    """The ``conversation`` and then the ``execution_traces`` of a job as entries, with all their fields.

    Rows with another role than user and assistant, and traces of an unknown type, are skipped. A trace without the
    required fields of its type raises ``FormatError``.
    """
    if message_format != "framework":
        raise ValueError(f"message_format must be 'framework', not {message_format!r}")
    messages = [
        entries.validate_entry(
            {"type": _ROLE_TYPES[row["role"]], **{name: row[name] for name in row if name != "role"}}
        )
        for row in job_data.get("conversation") or ()
        if row.get("role") in tuple(_ROLE_TYPES)
    ]
    traces = job_data.get("execution_traces") or ()
    return messages + [entries.validate_entry(trace) for trace in traces if trace.get("type") in entries.TYPES]


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
