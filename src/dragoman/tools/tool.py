"""A tool: the definition that a model receives, and the code that runs.

    @tool(side_effects=SideEffects.READ)
    async def weather(city: str, days: int = 1) -> str:
        "The weather in a city."

returns a ``FunctionTool`` whose schema comes from the type hints and whose descriptions come from the docstring. It can
still be called as the function. Parameters may be dataclasses, structs and pydantic models. A function that is not
async runs in a thread of its own. The return value becomes the content of the result: a text, one or more blocks, a
``ToolOutput``, or any JSON value. A tool that fails raises: the model receives the text of a ``ToolFailedError``, and
of any other exception only that the tool failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import msgspec

from dragoman.errors import InputError, ToolFailedError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import Block, ContentBlock, TextBlock
from dragoman.rules import RESULT_BLOCKS
from dragoman.tools.docstring import parse_docstring
from dragoman.tools.schema_compat import to_portable_schema
from dragoman.tools.workspace import Workspace
from dragoman.type_schema import convert_value, schema_of

P = ParamSpec("P")
R = TypeVar("R")

_MAX_TEXT: Final = 400_000  # characters of a result; tools are expected to limit themselves


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The session, the turn and the workspace of a call."""

    session_id: str
    tool_use_id: str = ""
    turn_id: str | None = None
    user_id: str | None = None
    workspace: Workspace | None = None
    stop_event: threading.Event = msgspec.field(default_factory=threading.Event)  # set when the call is cancelled

    @property
    def files(self) -> Workspace:
        """The workspace; raises ``ToolFailedError`` if there is none."""
        if self.workspace is None:
            raise ToolFailedError("There is no workspace in this session", error_class="permission_denied")
        return self.workspace


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The return value of a tool that reports more than its content."""

    content: Any  # a text, a block, several blocks, or a JSON value
    is_error: bool = False  # the tool ran, and did not succeed
    files_modified: tuple[str, ...] = ()  # paths in the workspace
    command_executed: str | None = None


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A description of the effect of a call, for the person who approves it."""

    projected_modifications: tuple[str, ...] = ()  # paths that would change
    command_summary: str | None = None


Run = Callable[[dict[str, Any], ToolContext], Awaitable[Any]]
PreviewOf = Callable[[dict[str, Any], ToolContext], Preview]
AnswerSchema = Callable[[dict[str, Any]], dict[str, Any]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A definition, and the code that runs when a model calls it."""

    definition: ToolDefinition
    run: Run
    timeout_s: float | None = None  # none: by its side effects
    preview: PreviewOf | None = None
    answer_schema: AnswerSchema | None = None  # of a tool that a person answers: input of a call → schema of the answer

    @property
    def name(self) -> str:
        return self.definition.name


# --- from a function -------------------------------------------------------------------------------------------------


class FunctionTool(Tool, Generic[P, R], frozen=True, kw_only=True):
    """A tool that is made of a function, and that can be called as the function."""

    function: Callable[P, R]

    def __call__(self, *args: P.args, **keywords: P.kwargs) -> R:
        return self.function(*args, **keywords)


def to_tool(item: Tool | Callable[..., Any]) -> Tool:
    """A tool, or a function as one. Raises ``InputError`` for anything else."""
    if isinstance(item, Tool):
        return item
    if not inspect.isroutine(item):
        raise InputError(
            f"{item!r} is neither a tool nor a function",
            where="tools",
            remedy="Pass a function, or make a tool with @tool",
            code="not_a_tool",
        )
    return tool(item)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    side_effects: SideEffects = ...,
    name: str | None = ...,
    description: str | None = ...,
    requires_workspace: bool = ...,
    timeout_s: float | None = ...,
    preview: PreviewOf | None = ...,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    side_effects: SideEffects = SideEffects.NONE,
    name: str | None = None,
    description: str | None = None,
    requires_workspace: bool = False,
    timeout_s: float | None = None,
    preview: PreviewOf | None = None,
) -> Any:
    """Make a tool from a function. A ``ToolContext`` parameter receives the context; the others are the input."""

    def make_tool(function: Callable[P, R]) -> FunctionTool[P, R]:
        tool_name = name or function.__name__
        docstring = parse_docstring(inspect.getdoc(function) or "")
        context_name, arguments = _parameters(function, tool_name, docstring.parameters)
        definition = ToolDefinition(
            name=tool_name,
            description=description or docstring.description or tool_name,
            input_schema=_schema(arguments),
            side_effects=side_effects,
            requires_workspace=requires_workspace,
        )
        run = _make_runner(function, arguments, context_name)
        return FunctionTool(definition=definition, run=run, timeout_s=timeout_s, preview=preview, function=function)

    return make_tool if function is None else make_tool(function)


def _parameters(
    function: Callable[..., Any], name: str, descriptions: Mapping[str, str]
) -> tuple[str | None, type[msgspec.Struct]]:
    """The name of the context parameter, and a struct of the other parameters."""
    hints = typing.get_type_hints(function, include_extras=True)
    context_name = None
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: a model passes arguments by name, so the parameter {parameter} is not supported")
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context_name = parameter.name
            continue
        described = _with_description(hint, descriptions.get(parameter.name))
        default = () if parameter.default is parameter.empty else (_field(parameter.default),)
        fields.append((parameter.name, described, *default))
    return context_name, msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _field(default: Any) -> Any:
    return msgspec.field(default_factory=default.copy) if isinstance(default, list | dict | set) else default


def _with_description(hint: Any, description: str | None) -> Any:
    """Expand ``Annotated[str, "text"]`` to a ``msgspec.Meta`` with a description, else add that of the docstring."""
    base, *annotations = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    if description and not any(isinstance(note, str) or _describes(note) for note in annotations):
        annotations.append(description)
    for note in annotations:
        base = typing.Annotated[base, msgspec.Meta(description=note) if isinstance(note, str) else note]
    return base


def _describes(note: Any) -> bool:
    return isinstance(note, msgspec.Meta) and note.description is not None


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    schema = to_portable_schema(schema_of(arguments)).schema
    schema.pop("title", None)
    schema.pop("description", None)  # msgspec's own, of the struct
    return schema


def _make_runner(function: Callable[..., Any], arguments: type[msgspec.Struct], context_name: str | None) -> Run:
    async def run(input: dict[str, Any], context: ToolContext) -> Any:  # noqa: A002
        try:
            values = convert_value(input, arguments)
        except ValueError as error:  # of msgspec or pydantic
            raise ToolFailedError(str(error), error_class="validation_error") from None
        call = functools.partial(function, **{name: getattr(values, name) for name in arguments.__struct_fields__})
        if context_name is not None:
            call = functools.partial(call, **{context_name: context})
        if inspect.iscoroutinefunction(function):
            return await call()
        return await run_in_thread(call)

    return run


async def run_in_thread(call: Callable[[], Any]) -> Any:
    """Run a function in a thread of its own. A thread cannot be stopped, so a cancellation does not end the wait.

    ``dispatch`` does not wait for a cancelled tool; the return value is a late result.
    """
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    threading.Thread(target=contextvars.copy_context().run, args=(_run_and_resolve, done, call), daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if done.cancelled():
            raise
    return await done


def _run_and_resolve(done: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    outcome: Any = None
    failure: BaseException | None = None
    try:
        outcome = call()
    except BaseException as error:  # noqa: BLE001  raised in the task that awaits
        failure = error

    def resolve() -> None:
        if not done.done():
            done.set_result(outcome) if failure is None else done.set_exception(failure)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        done.get_loop().call_soon_threadsafe(resolve)


# --- results ---------------------------------------------------------------------------------------------------------


def content_from(output: Any) -> tuple[ContentBlock, ...]:
    """The content of a result from the return value of a tool."""
    match output:
        case None:
            return ()
        case str():
            return (TextBlock(_sanitize_text(output)),)
        case Block():
            return _check_blocks((output,))
        case list() | tuple() if output and all(isinstance(item, Block) for item in output):
            return _check_blocks(output)
        case _:
            return (TextBlock(_sanitize_text(msgspec.json.encode(output).decode())),)


def _check_blocks(blocks: Iterable[Any]) -> tuple[ContentBlock, ...]:
    checked = tuple(blocks)
    for block in checked:
        if type(block) not in RESULT_BLOCKS:
            raise TypeError(f"a tool result cannot have a {block.type} block")
    return tuple(b.replace(text=_sanitize_text(b.text)) if isinstance(b, TextBlock) else b for b in checked)


def _sanitize_text(text: str) -> str:
    """Without lone surrogates, which UTF-8 cannot encode, and of bounded length."""
    return truncate_middle(text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8"), _MAX_TEXT)


def truncate_middle(text: str, limit: int) -> str:
    """The start and the end of a long text, with the number of characters left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
