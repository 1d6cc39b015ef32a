"""A conversation run by whoever is plugged in, and what may come back from it.

    ConversationResult.normalize(result)        every message an envelope, every tool's result of the right shape
    run_conversation(call, runner, loop=loop)   the runner's result, or the loop's where the runner leaves it to that

A runner is any callable, plain or async, that takes a ``ConversationCall``. It returns a result whose messages are in
either shape, or anything else to say that it is not its turn. The caller always receives a result of the right shape:
if what was returned has another one, the result says so and holds the caller's own messages.

Nothing here asks a model. The loop that does comes from the caller, or from the package as a whole
(``dragoman.conversation_loop``), which looks it up in the turn layer.
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
    """What a runner is asked to do."""

    messages: list[dict[str, Any]]  # in either shape
    tools: Any = ()  # as the host describes them
    provider: str = ""
    model: str = ""
    mode: str = "chat"  # what kind of conversation it is
    payload: dict[str, Any] = {}  # what the host wants its runner to know
    max_turns: int = DEFAULT_TURNS  # at least 1, at most 50
    single_turn: bool = False  # stop after one answer, whatever it asks for

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "max_turns", min(max(self.max_turns, 1), MAX_TURNS))


Runner = Callable[[ConversationCall], Any]
"""Gives a result, an awaitable of one, or anything else if it is not its turn."""


async def run_conversation(
    call: ConversationCall, runner: Runner | None = None, *, loop: Runner | None = None
) -> Result:
    """What the runner made of it, or else the loop. A result that breaks the contract is an error result.

    Without a ``loop``, the built-in one asks the model that the call names, or the configured default.
    """
    messages: Any = call.messages
    if not isinstance(messages, list | tuple):
        what = f"messages is {type(messages).__name__}, and has to be a list of messages"
        raise InputError(what, where="ConversationCall", remedy="Give the conversation so far, or [] for a new one")
    returned: Any = None if runner is None else await await_result(runner(call))
    if not is_array(returned):
        returned = await await_result((loop or _built_in_loop())(call))
    try:
        return ConversationResult.normalize(returned)
    except EnvelopeError as error:
        return failure_result(call, str(error))


def _built_in_loop() -> Runner:
    """The loop of the package. The root package is loaded before any module of it, and resolves the name lazily."""
    loop: Runner = sys.modules["dragoman"].conversation_loop
    return loop


def failure_result(call: ConversationCall, reason: str) -> Result:
    """A result that says what went wrong, and keeps what the caller had."""
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
    """What a callable gave, whether it was plain or async."""
    return await value if inspect.isawaitable(value) else value


class ConversationResult:
    """The contract of what a runner returns."""

    @staticmethod
    def normalize(result: Mapping[str, Any]) -> Result:
        """The result with every message as an envelope; ``EnvelopeError`` names the place of what is wrong."""
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
