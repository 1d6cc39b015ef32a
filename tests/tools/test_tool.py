"""Tests of tools from functions: schema, description, and conversion of return values."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from dragoman import ImageBlock, ImageSource, SideEffects, TextBlock, ToolUseBlock
from dragoman.errors import InputError, ToolFailedError, ToolSchemaError, UnknownToolError
from dragoman.tools import Tool, ToolContext, ToolOutput, ToolRegistry, tool
from dragoman.tools.docstring import Docstring, parse_docstring
from dragoman.tools.tool import content_from
from tests.tools.tool_fixtures import result_of, text_of


class Place(msgspec.Struct):
    city: str
    country: str | None = None


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@tool(side_effects=SideEffects.READ)
async def weather(
    place: Place,
    days: Annotated[int, msgspec.Meta(ge=1, le=14, description="How many.")] = 1,
    unit: Unit = Unit.CELSIUS,
    mode: Literal["short", "long"] = "short",
    names: list[str] = [],  # noqa: B006
) -> str:
    """The weather somewhere.

    In some days.
    """
    return f"{place.city}, {days}, {unit.name}, {mode}, {len(names)}"


def test_schema_is_from_hints_and_description_from_docstring() -> None:
    definition = weather.definition
    assert (definition.name, definition.side_effects, definition.requires_workspace) == (
        "weather",
        SideEffects.READ,
        False,
    )
    assert definition.description == "The weather somewhere.\n\nIn some days."
    schema = definition.input_schema
    assert schema["required"] == ["place"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["days"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 14,
        "description": "How many.",
        "default": 1,
    }
    assert schema["properties"]["place"]["properties"]["country"]["type"] == ["string", "null"]
    assert schema["properties"]["unit"]["enum"] == ["celsius", "kelvin"]
    ToolRegistry([weather])


async def test_arguments_are_converted_to_the_types_of_the_function() -> None:
    result = await result_of(weather, place={"city": "Rome"}, unit="kelvin", names=["a"])
    assert text_of(result) == "Rome, 1, KELVIN, short, 1"


async def test_mutable_default_is_copied_for_every_call() -> None:
    @tool
    async def collect(items: list[str] = []) -> list[str]:  # noqa: B006
        items.append("x")
        return items

    assert text_of(await result_of(collect)) == text_of(await result_of(collect)) == '["x"]'


async def test_sync_function_is_a_tool_and_receives_the_context() -> None:
    @tool(name="who", description="Who.")
    def describe_call(context: ToolContext) -> dict[str, Any]:
        return {"session": context.session_id, "call": bool(context.tool_use_id)}

    assert describe_call.definition.input_schema["properties"] == {}
    assert text_of(await result_of(describe_call)) == '{"session":"sess_1","call":true}'


def test_plain_function_is_a_tool() -> None:
    def add(a: int, b: int = 2) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b (int): The second number,
                which may be left out.

        Returns:
            The sum.
        """
        return a + b

    (definition,) = ToolRegistry([add]).definitions
    assert (definition.name, definition.description) == ("add", "Add two numbers.")
    assert definition.input_schema["properties"] == {
        "a": {"type": "integer", "description": "The first number."},
        "b": {"type": "integer", "description": "The second number, which may be left out.", "default": 2},
    }
    assert definition.input_schema["required"] == ["a"]


def test_value_that_is_not_a_tool_or_function_is_rejected() -> None:
    with pytest.raises(InputError, match="neither a tool nor a function") as raised:
        ToolRegistry(["add"])  # type: ignore[list-item]
    assert raised.value.code == "not_a_tool"


def test_tool_can_be_called_like_its_function() -> None:
    @tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert (add(1), add(1, b=5), add.name) == (3, 6, "add")


@pytest.mark.parametrize(
    "text",
    [
        "Look.\n\nArgs:\n    city: Its name.\n    days: How many\n        days.",
        "Look.\n\nParameters\n----------\ncity : str\n    Its name.\ndays : int, optional\n    How many\n    days.\n\nReturns\n-------\nstr\n    x",
        "Look.\n\n:param city: Its name.\n:param int days: How many\n    days.\n:returns: x",
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_parameters_are_described_by_the_docstring(text: str) -> None:
    parsed = parse_docstring(text)
    assert (parsed.description, parsed.parameters) == ("Look.", {"city": "Its name.", "days": "How many days."})


def test_docstring_without_sections_is_the_description() -> None:
    assert parse_docstring("Look: it rains.\n\nOr not.") == Docstring("Look: it rains.\n\nOr not.", {})


class _Place(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2)
    country: str = "CH"


@dataclasses.dataclass
class _Route:
    start: _Place
    stops: list[_Place]


async def test_parameters_may_be_dataclasses_and_pydantic_models() -> None:
    arguments: list[object] = []

    @tool
    def drive(route: _Route, back: _Place | None = None) -> str:
        """Drive."""
        arguments.extend((route, back))
        return "done"

    route = drive.definition.input_schema["properties"]["route"]
    assert route["properties"]["start"]["properties"]["name"] == {"type": "string", "minLength": 2, "title": "Name"}
    context = ToolContext(session_id="s")
    bern = {"name": "Bern"}
    assert await drive.run({"route": {"start": bern, "stops": [bern]}, "back": bern}, context) == "done"
    assert arguments == [_Route(_Place(name="Bern"), [_Place(name="Bern")]), _Place(name="Bern")]
    with pytest.raises(ToolFailedError, match="name"):
        await drive.run({"route": {"start": {"name": "B"}, "stops": []}}, context)


def test_function_with_positional_parameters_is_rejected() -> None:
    with pytest.raises(TypeError, match="by name"):
        tool(lambda *args: args)


@pytest.mark.parametrize(
    ("output", "content"),
    [
        (None, ()),
        ("text", (TextBlock("text"),)),
        ("", (TextBlock(""),)),
        (7, (TextBlock("7"),)),
        ({"a": [1]}, (TextBlock('{"a":[1]}'),)),
        ([], (TextBlock("[]"),)),
        (TextBlock("x"), (TextBlock("x"),)),
        (
            [TextBlock("x"), ImageBlock(ImageSource("url", "u"), "image/png")],
            (TextBlock("x"), ImageBlock(ImageSource("url", "u"), "image/png")),
        ),
        ("half \ud83d of a pair", (TextBlock("half ? of a pair"),)),
    ],
)
def test_every_return_value_becomes_content(output: Any, content: tuple[Any, ...]) -> None:
    assert content_from(output) == content


def test_result_cannot_contain_a_call() -> None:
    with pytest.raises(TypeError, match="tool_use"):
        content_from(ToolUseBlock("tu_1", "x", {}))


def test_very_long_text_loses_its_middle_with_a_note() -> None:
    (block,) = content_from("a" * 300_000 + "b" * 300_000)
    assert isinstance(block, TextBlock)
    assert len(block.text) < 401_000
    assert "200000 characters left out" in block.text
    assert (block.text[0], block.text[-1]) == ("a", "b")


# --- registry --------------------------------------------------------------------------------------------------------


def make_tool(name: str, schema: dict[str, Any] | None = None) -> Tool:
    async def run(_input: dict[str, Any], _context: ToolContext) -> ToolOutput:
        return ToolOutput(content=name)

    definition = weather.definition.replace(name=name, input_schema=schema or {"type": "object"})
    return Tool(definition=definition, run=run)


def test_definitions_are_sorted_by_name() -> None:
    first, second = ToolRegistry([make_tool("b"), make_tool("a")]), ToolRegistry([make_tool("a"), make_tool("b")])
    assert first.definitions == second.definitions
    assert [definition.name for definition in first.definitions] == ["a", "b"]


def test_invalid_or_duplicate_tool_is_rejected_with_every_problem() -> None:
    registry = ToolRegistry([make_tool("a")])
    with pytest.raises(ToolSchemaError, match="already registered"):
        registry.register(make_tool("a"))
    with pytest.raises(ToolSchemaError) as caught:
        registry.register(make_tool("B", {"type": "object", "anyOf": [], "properties": {"x": {"$ref": "#"}}}))
    assert len(caught.value.problems) == 3
    assert [registered.name for registered in registry] == ["a"]


def test_subset_is_limited_and_an_unknown_tool_raises() -> None:
    registry = ToolRegistry([make_tool("a"), make_tool("b"), make_tool("c")])
    assert [allowed.name for allowed in registry.subset(["c", "a", "c"])] == ["a", "c"]
    assert len(registry) == 3
    assert "d" not in registry
    with pytest.raises(UnknownToolError, match="Use one of: a, b, c"):
        registry.subset(["d"])


def test_tool_of_a_server_has_the_name_of_both() -> None:
    assert ToolRegistry([make_tool("files__read_file")])["files__read_file"].name == "files__read_file"
