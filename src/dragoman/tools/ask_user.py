"""The tool ``ask_user``, with which a model asks the user a question, and the schema of the answer.

    answer_schema(call, registry)          the schema of the answer, if the call asks a question
    answer_problems(schema, answer)        all problems of an answer

Where turns pause for people, the call is pending and its result is the user's answer. Elsewhere the tool returns an
error. Invariant: an answer that does not fit its schema never reaches the model.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.errors import ToolFailedError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import ToolUseBlock
from dragoman.tools.registry import ToolRegistry
from dragoman.tools.tool import Tool, ToolContext
from dragoman.toolschema import ToolSchemas

_ANSWER: Final = "answer"  # the only field of a question without inputs
_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*$", "maxLength": 64},
        "prompt": {"type": "string", "minLength": 1, "maxLength": 1_000, "description": "What the user is to enter."},
        "type": {"type": "string", "enum": ["string", "number", "boolean", "choice"]},
        "choices": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 100},
        "required": {"type": "boolean", "description": "Default true."},
    },
    "required": ["id", "prompt", "type"],
    "additionalProperties": False,
}
_DEFINITION: Final = ToolDefinition(
    name="ask_user",
    description=(
        "Ask the user a question that you cannot continue without. Define inputs to get several values, or values of a"
        " type; without inputs the answer is a text."
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
    """The schema of the answer to a call; none if the call is no valid question."""
    tool = registry.get(call.name)
    if tool is None or tool.answer_schema is None:
        return None
    try:
        return tool.answer_schema(call.input)
    except ToolFailedError:  # the model receives it when the tool runs
        return None


def answer_problems(schema: dict[str, Any], answer: Any) -> tuple[str, ...]:
    """All problems of an answer."""
    return ToolSchemas([_DEFINITION.replace(input_schema=schema)]).problems(_DEFINITION.name, answer)


def _question_schema(input: dict[str, Any]) -> dict[str, Any]:  # noqa: A002
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
    raise ToolFailedError("No user can be asked here. Continue without the answer, or ask in your reply")


ask_user: Final = Tool(definition=_DEFINITION, run=_reject_question, answer_schema=_question_schema)
