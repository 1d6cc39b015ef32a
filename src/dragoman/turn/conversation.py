"""The default loop of ``run_conversation`` (``dragoman.envelope``): an agent calls the model and runs the tools.

The model is ``provider`` and ``model`` of the call, or the configured default. ``tools`` of the call are functions,
``Tool`` values, definitions, or dicts with ``name``, ``description``, ``parameters`` and optionally ``callable``. A
call of a tool without code fails. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.envelope import ConversationCall, ToolLoop, messages_from_envelopes
from dragoman.envelope.runner import Result, await_result, failure_result
from dragoman.errors import DragomanError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.ids import derive_ulid
from dragoman.message import TextBlock, ToolUseBlock
from dragoman.store import open_store
from dragoman.tools import Tool, ToolContext, ToolRegistry, ToolSession, dispatch, tool
from dragoman.turn.agent import Agent
from dragoman.turn.config import AgentConfig
from dragoman.turn.delegation import collect_answer


async def conversation_loop(call: ConversationCall) -> Result:
    """Call the model and run the tools until the model answers, or the turns are used up."""
    config = AgentConfig(max_steps=1)
    try:
        async with open_store("memory:") as store, Agent(store, config=config) as agent:
            caller = _AgentCaller(agent, call)
            return await ToolLoop(caller.ask, caller.execute)(call)
    except DragomanError as error:
        return failure_result(call, str(error))


class _AgentCaller:
    """The two functions of a tool loop: call the model, run a tool."""

    def __init__(self, agent: Agent, call: ConversationCall) -> None:
        self._agent = agent
        parts = [part for part in (call.provider, call.model) if part]
        self._model = ":".join(parts) if call.model else None
        self._definitions, self._tools = _tools_from(call.tools)
        self._tool_session = ToolSession("conversation")
        self._call_count = 0

    async def ask(self, rows: list[dict[str, Any]], _: ConversationCall) -> dict[str, Any]:
        """Call the model with the whole conversation."""
        store = self._agent.store
        session = await store.create_session()
        messages = messages_from_envelopes(rows)
        await store.append(session.id, [message.replace(session_id="") for message in messages])
        end, text = await collect_answer(self._agent.turn(session.id, tools=self._definitions, model=self._model))
        answer: dict[str, Any] = {
            "content": text,
            "tool_calls": [{"name": call.name, "parameters": call.input} for call in end.pending],
            "usage": {
                "prompt_tokens": end.input_tokens,
                "completion_tokens": end.output_tokens,
                "total_tokens": end.input_tokens + end.output_tokens,
            },
        }
        if end.fault is not None:
            answer["error"] = end.fault.message
        return answer

    async def execute(self, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Run a tool."""
        if name not in self._tools:
            return {"success": False, "error": f"the tool {name!r} has no callable"}
        self._call_count += 1
        call = ToolUseBlock(f"tu_{derive_ulid(self._call_count, 'conversation')}", name, parameters)
        (result,) = await dispatch([call], self._tools, self._tool_session)
        text = "\n".join(block.text for block in result.content if isinstance(block, TextBlock))
        return {"success": False, "error": text} if result.is_error else {"success": True, "data": text}


def _tools_from(tools: Any) -> tuple[tuple[ToolDefinition, ...], ToolRegistry]:
    """The definitions that the model is offered, and the tools that can be run."""
    items = tools or ()
    if isinstance(tools, Mapping):
        items = [{"name": name, **item} if isinstance(item, Mapping) else item for name, item in tools.items()]
    parsed = [_tool_from(item) for item in items]
    runnable = ToolRegistry(item for item in parsed if isinstance(item, Tool))
    return tuple(item.definition if isinstance(item, Tool) else item for item in parsed), runnable


def _tool_from(item: Any) -> Tool | ToolDefinition:
    match item:
        case Tool() | ToolDefinition():
            return item
        case Mapping():
            return _tool_from_dict(item)
        case _:
            return tool(item)


def _tool_from_dict(fields: Mapping[str, Any]) -> Tool | ToolDefinition:
    name = str(fields.get("name") or "")
    definition = ToolDefinition(
        name=name,
        description=str(fields.get("description") or name),
        input_schema=dict(fields.get("parameters") or {"type": "object", "properties": {}}),
        side_effects=SideEffects(fields.get("side_effects", "none")),
        requires_workspace=False,
    )
    function = fields.get("callable")
    if function is None:
        return definition

    async def run(input: dict[str, Any], _: ToolContext) -> Any:  # noqa: A002
        return await await_result(function(**input))

    return Tool(definition=definition, run=run)
