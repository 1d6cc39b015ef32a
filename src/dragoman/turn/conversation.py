"""The loop that runs a conversation of envelopes where the caller brings none: an agent asks the model.

    await run_conversation(call)      of ``dragoman.envelope``, which takes this loop if ``loop`` is left out

The model is the call's ``provider`` and ``model``, or the configured default. ``tools`` of the call may be functions,
tools of ours, definitions, or dicts with ``name``, ``description``, ``parameters`` and, to be run, ``callable``. A tool
that nobody can run here is offered to the model, and a call of it fails with a text that says so. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.envelope import ConversationCall, ToolLoop, messages_from_envelopes
from dragoman.envelope.conversation import Result, awaited, failed
from dragoman.errors import DragomanError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.ids import derived_ulid
from dragoman.message import TextBlock, ToolUseBlock
from dragoman.store import open_store
from dragoman.tools import Tool, ToolContext, ToolRegistry, Workbench, dispatch, tool
from dragoman.turn.agent import Agent
from dragoman.turn.delegation import answer_task


async def conversation_loop(call: ConversationCall) -> Result:
    """Ask the model and run the tools of the call until the model answers, or the turns are used up."""
    try:
        async with open_store("memory:") as store, Agent(store, max_steps=1) as agent:
            asking = _Asking(agent, call)
            return await ToolLoop(asking.ask, asking.execute)(call)
    except DragomanError as error:
        return failed(call, str(error))


class _Asking:
    """What a loop needs for one call: a model to ask, and the tools that it may use."""

    def __init__(self, agent: Agent, call: ConversationCall) -> None:
        self._agent = agent
        named = [name for name in (call.provider, call.model) if name]
        self._model = ":".join(named) if call.model else None
        self._offered, self._tools = _tools_from(call.tools)
        self._bench = Workbench("conversation", workspace=agent.workspace)
        self._calls = 0

    async def ask(self, rows: list[dict[str, Any]], _: ConversationCall) -> dict[str, Any]:
        """One answer to the whole conversation."""
        store = self._agent.store
        session = await store.create_session()
        said = messages_from_envelopes(rows)
        await store.append(session.id, [message.replace(session_id="") for message in said])
        ended, text = await answer_task(self._agent, session.id, tools=self._offered, model=self._model)
        answer: dict[str, Any] = {
            "content": text,
            "tool_calls": [{"name": one.name, "parameters": one.input} for one in ended.pending],
            "usage": {
                "prompt_tokens": ended.input_tokens,
                "completion_tokens": ended.output_tokens,
                "total_tokens": ended.input_tokens + ended.output_tokens,
            },
        }
        if ended.fault is not None:
            answer["error"] = ended.fault.message
        return answer

    async def execute(self, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool."""
        if name not in self._tools:
            return {"success": False, "error": f"nobody runs the tool {name!r} here"}
        self._calls += 1
        call = ToolUseBlock(f"tu_{derived_ulid(self._calls, 'conversation')}", name, parameters)
        (result,) = await dispatch([call], self._tools, self._bench)
        text = "\n".join(block.text for block in result.content if isinstance(block, TextBlock))
        return {"success": False, "error": text} if result.is_error else {"success": True, "data": text}


def _tools_from(given: Any) -> tuple[tuple[ToolDefinition, ...], ToolRegistry]:
    """What the model is offered, and those of the tools that can be run."""
    listed = given or ()
    if isinstance(given, Mapping):
        listed = [{"name": name, **one} if isinstance(one, Mapping) else one for name, one in given.items()]
    made = [_tool_from(one) for one in listed]
    runnable = ToolRegistry(one for one in made if isinstance(one, Tool))
    return tuple(one.definition if isinstance(one, Tool) else one for one in made), runnable


def _tool_from(given: Any) -> Tool | ToolDefinition:
    match given:
        case Tool() | ToolDefinition():
            return given
        case Mapping():
            return _described(given)
        case _:
            return tool(given)


def _described(given: Mapping[str, Any]) -> Tool | ToolDefinition:
    """A tool that a host describes."""
    name = str(given.get("name") or "")
    definition = ToolDefinition(
        name=name,
        description=str(given.get("description") or name),
        input_schema=dict(given.get("parameters") or {"type": "object", "properties": {}}),
        side_effects=SideEffects(given.get("side_effects", "none")),
        requires_workspace=False,
    )
    function = given.get("callable")
    if function is None:
        return definition

    async def run(input: dict[str, Any], _: ToolContext) -> Any:  # noqa: A002
        return await awaited(function(**input))

    return Tool(definition=definition, run=run)
