"""The default loop of a conversation: call the model, run its tool calls, repeat.

``ToolLoop`` receives two callables, plain or async: ``ask`` calls a model, ``execute`` runs a tool. The loop collects
envelopes, counts turns, and does not repeat equal calls. Invariant: every executed call is followed by its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from dragoman.envelope.builders import text, tool_call, tool_result
from dragoman.envelope.normalization import Envelope, normalize_many, to_provider_messages
from dragoman.envelope.runner import ConversationCall, Result, await_result

Ask = Callable[[list[dict[str, Any]], ConversationCall], Any]
"""Receives the provider's messages; returns content, tool_calls (name, parameters), usage, and error if it failed."""

Execute = Callable[[str, dict[str, Any]], Any]
"""Receives a tool's name and parameters; returns success, and data, media, message or error."""

_MAX_VALUE_LENGTH: Final = 50  # maximum length of a parameter in a caption
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


class ToolLoop:
    """A runner that calls a model until it calls no tools, or until the turn limit."""

    def __init__(self, ask: Ask, execute: Execute) -> None:
        self._ask = ask
        self._execute = execute

    async def __call__(self, call: ConversationCall) -> Result:
        run = _Run(normalize_many(call.messages))
        limit = 1 if call.single_turn else call.max_turns
        while run.turn < limit and not run.completed and run.fault is None:
            run.turn += 1
            run.add_answer(await await_result(self._ask(to_provider_messages(run.messages), call)))
            for name, parameters in run.calls:
                await self._run_call(run, name, parameters)
        return run.result(call)

    async def _run_call(self, run: _Run, name: str, parameters: dict[str, Any]) -> None:
        """Run one call, unless an equal one was run before."""
        if not run.is_new(name, parameters):
            reason = "an equal call was made before; use its result or change the parameters"
            answer: dict[str, Any] = {"success": False, "error": reason}
            run.messages.append(result_envelope(name, answer, run.turn))
            return
        run.messages.append(tool_call(tool_call_text(name, parameters, run.turn), name, parameters, run.turn))
        answer = dict(await await_result(self._execute(name, parameters)))
        run.messages.append(result_envelope(name, answer, run.turn))
        run.executed.append({"tool_name": name, "result": answer, "parameters": parameters, "turn_count": run.turn})


class _Run:
    """The state of one conversation."""

    def __init__(self, messages: list[Envelope]) -> None:
        self.messages = messages
        self.turn = 0
        self.completed = False
        self.fault: str | None = None
        self.final_content = ""
        self.calls: list[tuple[str, dict[str, Any]]] = []  # of the last answer
        self.executed: list[dict[str, Any]] = []
        self.usage: dict[str, int] = {}
        self._known_calls = {
            _call_key(message["payload"].get("tool_name"), message["payload"].get("parameters"))
            for message in messages
            if message["type"] == "tool_call"
        }

    def add_answer(self, answer: Mapping[str, Any]) -> None:
        """Add the answer of the model."""
        self.fault = answer.get("error")
        for name in _COUNTS:
            if name in (usage := answer.get("usage") or {}):
                self.usage[name] = self.usage.get(name, 0) + usage[name]
        content = answer.get("content") or ""
        if content:
            self.final_content = content
            self.messages.append(text("assistant", content))
        tool_calls = answer.get("tool_calls") or ()
        self.calls = [(call["name"], dict(call.get("parameters") or {})) for call in tool_calls if call.get("name")]
        self.completed = self.fault is None and not self.calls

    def is_new(self, name: str, parameters: dict[str, Any]) -> bool:
        """Whether this is the first call with these parameters. Later ones return false."""
        key = _call_key(name, parameters)
        if key in self._known_calls:
            return False
        self._known_calls.add(key)
        return True

    def result(self, call: ConversationCall) -> Result:
        pending = bool(self.calls) and not self.completed
        result: Result = {
            "messages": self.messages,
            "final_content": self.final_content,
            "turn_count": self.turn,
            "completed": self.completed,
            "last_tool_calls": [{"name": name, "parameters": parameters} for name, parameters in self.calls],
            "tool_execution_results": self.executed,
            "has_pending_tools": pending,
            "usage": self.usage,
        }
        if self.fault is not None:
            result["error"] = self.fault
        elif pending and not call.single_turn:
            result["max_turns_reached"] = True
        return result


def _call_key(name: Any, parameters: Any) -> bytes:
    return msgspec.json.encode([name, parameters or {}], order="sorted")


def result_envelope(name: str, answer: Mapping[str, Any], turn: int) -> Envelope:
    """Return the result of a tool as an envelope."""
    payload: dict[str, Any] = {"success": bool(answer.get("success", False)), "turn": turn}
    for key, source in (("tool_data", "data"), ("media", "media")):
        if answer.get(source):
            payload[key] = answer[source]
    if answer.get("error") is not None:
        payload["error"] = answer["error"]
    return tool_result(tool_result_text(name, answer, turn), name, payload)


# --- what people see -------------------------------------------------------------------------------------------------


def tool_call_text(name: str, parameters: Mapping[str, Any], turn: int) -> str:
    """``AI ACTION (Turn 1): Executing Wiki Upsert with parameters: title: Example``"""
    values = ", ".join(f"{key}: {_shorten(value)}" for key, value in parameters.items())
    return f"AI ACTION (Turn {turn}): Executing {to_title(name)}" + (f" with parameters: {values}" if values else "")


def tool_result_text(name: str, answer: Mapping[str, Any], turn: int, *, is_handler_tool: bool = False) -> str:
    """``TOOL RESPONSE (Turn 1): `` with the outcome and the data."""
    if answer.get("success"):
        sentence = answer.get("message") or f"SUCCESS: {to_title(name)} completed."
    else:
        sentence = f"FAILED: {to_title(name)}: {answer.get('error') or 'no reason'}"
    text = f"TOOL RESPONSE (Turn {turn}): {sentence}" if turn > 0 else str(sentence)
    if answer.get("data") and not is_handler_tool:
        text += "\n\n" + msgspec.json.encode(answer["data"]).decode()
    return text


def to_title(name: str) -> str:
    """``wiki_upsert`` as ``Wiki Upsert``."""
    return " ".join(word[:1].upper() + word[1:] for word in name.replace("_", " ").split(" "))


def _shorten(value: Any) -> str:
    if not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    return value if len(value) <= _MAX_VALUE_LENGTH else value[:_MAX_VALUE_LENGTH] + "..."
