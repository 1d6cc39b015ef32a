"""A tool by which a model asks the user something, and what an answer has to look like.

    answer_schema(call, registry)            the schema of an answer, if the call asks somebody
    problems_of_answer(schema, answer)       everything wrong with one

The call waits where turns wait for people, and its result is what the person said. Elsewhere it is run like any other,
and gives an error: nobody is there. The one rule: what a person is asked for is known before they are asked, and what
does not fit it never reaches the model.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.errors import ToolFailedError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import ToolUseBlock
from dragoman.tools.registry import ToolRegistry
from dragoman.tools.tool import Tool, ToolContext
from dragoman.toolschema import ToolSchemas

_ANSWER: Final = "answer"  # the only input of a question that names none
_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*$", "maxLength": 64},
        "prompt": {"type": "string", "minLength": 1, "maxLength": 1_000, "description": "What the user is to enter."},
        "type": {"type": "string", "enum": ["string", "number", "boolean", "choice"]},
        "choices": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 100},
        "required": {"type": "boolean", "description": "True unless said otherwise."},
    },
    "required": ["id", "prompt", "type"],
    "additionalProperties": False,
}
_DEFINITION: Final = ToolDefinition(
    name="ask_user",
    description=(
        "Ask the user a question that you cannot go on without. Name the inputs to get several values at once, or "
        "values of a type; without them the answer is a text."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1, "maxLength": 4_000},
            "inputs": {"type": "array", "items": _INPUT, "maxItems": 20},
        },
        "required": ["question"],
        "additionalProperties": False,
    },
    side_effects=SideEffects.NONE,
    requires_workspace=False,
)


def answer_schema(call: ToolUseBlock, registry: ToolRegistry) -> dict[str, Any] | None:
    """What the answer to a call has to fit; nothing, if the call asks nobody or cannot be asked like this."""
    tool = registry.get(call.name)
    if tool is None or tool.answer_schema is None:
        return None
    try:
        return tool.answer_schema(call.input)
    except ToolFailedError:  # which the model is told when the tool is run
        return None


def problems_of_answer(schema: dict[str, Any], answer: Any) -> tuple[str, ...]:
    """Everything wrong with what somebody answered."""
    return ToolSchemas([_DEFINITION.replace(input_schema=schema)]).problems(_DEFINITION.name, answer)


def _question_schema(input: dict[str, Any]) -> dict[str, Any]:  # noqa: A002
    """The schema of an answer to a question."""
    fields = input.get("inputs") or [{"id": _ANSWER, "prompt": input["question"], "type": "string"}]
    names = [field["id"] for field in fields]
    if len(set(names)) != len(names):
        raise ToolFailedError("Two inputs have the same id", error_class="validation_error")
    return {
        "type": "object",
        "properties": {field["id"]: _field_schema(field) for field in fields},
        "required": [field["id"] for field in fields if field.get("required", True)],
        "additionalProperties": False,
    }


def _field_schema(field: dict[str, Any]) -> dict[str, Any]:
    annotations = {"description": field["prompt"]}
    if field["type"] != "choice":
        return {"type": field["type"], **annotations}
    if not field.get("choices"):
        raise ToolFailedError(f"The input {field['id']} has no choices", error_class="validation_error")
    return {"type": "string", "enum": list(dict.fromkeys(field["choices"])), **annotations}


async def _reject_question(input: dict[str, Any], _context: ToolContext) -> Any:  # noqa: A002
    _question_schema(input)
    raise ToolFailedError("Nobody can be asked here. Go on without it, or ask in your answer")


ask_user: Final = Tool(definition=_DEFINITION, run=_reject_question, answer_schema=_question_schema)
