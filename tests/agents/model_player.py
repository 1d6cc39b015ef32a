"""A model that plays a turn with any coding agent: it calls one of the agent's tools, and reports the result.

    fake.play = ModelPlayer("anthropic", choose).play

``choose`` receives the names of the declared tools and returns the call. Side tasks of agents are answered as well: a
request for JSON with a value of its schema, and a request without tools with a short text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dragoman import dialects
from dragoman.exchange import Request, ToolDefinition
from dragoman.message import Message, Role, TextBlock, ToolResultBlock
from tests.fake_providers import CallPart, Part, text_part, thinking_part

SIMPLE_VALUES = {"string": "short", "integer": 10, "number": 1.5, "boolean": True, "array": [], "null": None}


class ModelPlayer:
    """Answers requests of one dialect. ``results`` has the results of the agent's tools."""

    def __init__(self, dialect: str, choose: Callable[[Sequence[str]], CallPart | None]) -> None:
        self._dialect = dialect
        self._choose = choose
        self.results: list[str] = []

    def play(self, body: Any) -> list[Part]:
        """Return the parts of an answer."""
        request: Request = dialects.load(self._dialect).read_request(body)
        response_format = request.options.response_format
        if response_format is not None and response_format.kind == "json_schema":
            return [text_part(msgspec.json.encode(make_value(response_format.json_schema or {})).decode())]
        results = latest_results(request.messages)
        if results:
            self.results.append(results)
            return [text_part(f"The note says: {results}")]
        call = self._choose([tool.name for tool in request.tools if isinstance(tool, ToolDefinition)])
        return (
            [text_part("A few words")]
            if call is None
            else [thinking_part("I need a tool."), text_part("One moment."), call]
        )


def latest_results(messages: Sequence[Message]) -> str:
    """Return the text of the results after the last answer."""
    answers = [index for index, message in enumerate(messages) if message.role is Role.ASSISTANT]
    blocks = [block for message in messages[answers[-1] :] for block in message.content] if answers else []
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    return " ".join(part.text for block in results for part in block.content if isinstance(part, TextBlock))


def make_value(schema: dict[str, Any]) -> Any:
    """Return a value of a simple schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: make_value(part) for name, part in schema.get("properties", {}).items()}
    return SIMPLE_VALUES[schema.get("type", "string")]
