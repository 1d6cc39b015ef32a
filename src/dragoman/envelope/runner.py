"""Run a conversation with a pluggable runner, and validate its result.

    ConversationResult.normalize(result)        convert messages to envelopes and check tool results
    run_conversation(call, runner, loop=loop)   the result of the runner, or of the loop if the runner declines

A runner is a callable, plain or async, that receives a ``ConversationCall``. It returns a result whose messages are in
either shape, or any other value to decline. The caller always receives a valid result: if the returned one is invalid,
the result contains the error and the caller's messages.

This module calls no model. The caller passes a loop, or ``dragoman.conversation_loop`` of the turn layer is used.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from dragoman.envelope.normalization import is_array, normalize
from dragoman.errors import EnvelopeError, InputError

Result = dict[str, Any]

DEFAULT_TURNS: Final = 25
MAX_TURNS: Final = 50


class ConversationCall(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a runner."""

    messages: list[dict[str, Any]]  # in either shape
    tools: Any = ()  # as the host defines them
    provider: str = ""
    model: str = ""
    mode: str = "chat"  # the kind of conversation
    payload: dict[str, Any] = {}  # other data for the runner
    max_turns: int = DEFAULT_TURNS  # from 1 to 50
    single_turn: bool = False  # stop after one answer, also if it calls tools

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "max_turns", min(max(self.max_turns, 1), MAX_TURNS))


Runner = Callable[[ConversationCall], Any]
"""Returns a result, an awaitable of one, or anything else to let the loop run."""


async def run_conversation(
    call: ConversationCall, runner: Runner | None = None, *, loop: Runner | None = None
) -> Result:
    """Return the result of the runner, else of the loop. An invalid result becomes an error result.

    Without a ``loop``, the built-in loop calls the model that the call names, or the configured default.
    """
    messages: Any = call.messages
    if not isinstance(messages, list | tuple):
        what = f"messages is {type(messages).__name__}, not a list"
        raise InputError(
            what, where="ConversationCall", remedy="Pass the messages so far, or [] for a new conversation"
        )
    returned: Any = None if runner is None else await await_result(runner(call))
    if not is_array(returned):
        returned = await await_result((loop or _get_default_loop())(call))
    try:
        return ConversationResult.normalize(returned)
    except EnvelopeError as error:
        return failure_result(call, str(error))


def _get_default_loop() -> Runner:
    """Return the loop of the turn layer. The root package resolves the name lazily."""
    loop: Runner = sys.modules["dragoman"].conversation_loop
    return loop


def failure_result(call: ConversationCall, reason: str) -> Result:
    """Return a result with an error and the messages of the caller."""
    return {
        "messages": call.messages,
        "final_content": "",
        "turn_count": 0,
        "completed": False,
        "last_tool_calls": [],
        "tool_execution_results": [],
        "usage": [],
        "error": reason,
    }


async def await_result(value: Any | Awaitable[Any]) -> Any:
    """Return the result of a plain or async callable."""
    return await value if inspect.isawaitable(value) else value


class ConversationResult:
    """Validation of the result of a runner."""

    @staticmethod
    def normalize(result: Mapping[str, Any]) -> Result:
        """Convert messages to envelopes. ``EnvelopeError`` names the path of the problem."""
        if not isinstance(result, Mapping):
            raise _invalid("result", "must be an array")
        messages = _list(result.get("messages"), "messages")
        normalized = dict(result)
        normalized["messages"] = [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]
        executed = _list(result.get("tool_execution_results", []), "tool_execution_results")
        for number, entry in enumerate(executed):
            _check_execution(entry, f"tool_execution_results[{number}]")
        normalized["tool_execution_results"] = executed
        return normalized


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(where, "must be an array")
    try:
        return normalize(message)
    except EnvelopeError as error:
        raise _invalid(where, str(error)) from None


def _check_execution(entry: Any, where: str) -> None:
    if not isinstance(entry, Mapping):
        raise _invalid(where, "must be an array")
    name, turn = entry.get("tool_name"), entry.get("turn_count")
    if not isinstance(name, str) or not name:
        raise _invalid(f"{where}.tool_name", "must be a non-empty string")
    for key in ("result", "parameters"):
        if not is_array(entry.get(key)):
            raise _invalid(f"{where}.{key}", "must be an array")
    if "is_handler_tool" in entry and not isinstance(entry["is_handler_tool"], bool):
        raise _invalid(f"{where}.is_handler_tool", "must be a boolean")
    if not isinstance(turn, int) or isinstance(turn, bool):
        raise _invalid(f"{where}.turn_count", "must be an integer")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _invalid(where, "must be an array")
    return list(value)


def _invalid(where: str, what: str) -> EnvelopeError:
    return EnvelopeError(what, where=where, code="invalid_agent_conversation_result")
