"""A tool: what a model is told about it, and the code that runs.

    @tool(side_effects=SideEffects.READ)
    async def weather(city: str, days: int = 1) -> str:
        "The weather in a city."

makes a ``Tool`` whose schema comes from the hints and whose description is the docstring. A function that is not async
runs in a thread of its own. Whatever it returns becomes the content of a result: a text, a block or several, a
``ToolOutput``, or any JSON value. The one rule: a tool that fails raises. With ``ToolFailedError`` the model may read
why; of any other error it learns only that there was one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, overload

import msgspec

from dragoman.errors import ToolFailedError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import Block, ContentBlock, TextBlock
from dragoman.rules import RESULT_BLOCKS
from dragoman.tools.schema_compat import to_portable_schema
from dragoman.tools.workspace import Workspace


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call is made: what a tool may know beside its input."""

    session_id: str
    tool_use_id: str = ""
    turn_id: str | None = None
    user_id: str | None = None
    workspace: Workspace | None = None
    stop_event: threading.Event = msgspec.field(default_factory=threading.Event)  # set once nobody waits any more

    @property
    def files(self) -> Workspace:
        """The workspace, for a tool that cannot do without."""
        if self.workspace is None:
            raise ToolFailedError("There is no workspace in this session", error_class="permission_denied")
        return self.workspace


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool gives back, where there is more to say than its content."""

    content: Any  # a text, a block, several blocks, or a JSON value
    is_error: bool = False  # it ran, and did not do what was asked
    files_modified: tuple[str, ...] = ()  # paths in the workspace
    command_executed: str | None = None


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is about to do, for whoever is asked whether it may."""

    projected_modifications: tuple[str, ...] = ()  # paths that would change
    command_summary: str | None = None


Run = Callable[[dict[str, Any], ToolContext], Awaitable[Any]]
PreviewOf = Callable[[dict[str, Any], ToolContext], Preview]
AnswerSchema = Callable[[dict[str, Any]], dict[str, Any]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A definition, and what runs when a model calls it."""

    definition: ToolDefinition
    run: Run
    timeout_s: float | None = None  # none: as its side effects say
    preview: PreviewOf | None = None
    answer_schema: AnswerSchema | None = None  # of one that a person answers: the schema of the answer to a call

    @property
    def name(self) -> str:
        return self.definition.name

    @classmethod
    def from_factory(cls, definition: ToolDefinition, factory: Callable[[], Run], **fields: Any) -> Tool:
        """A tool that is made anew for every call, because it keeps something while it works."""

        async def run(input: dict[str, Any], context: ToolContext) -> Any:  # noqa: A002
            return await factory()(input, context)

        return cls(definition=definition, run=run, **fields)


# --- from a function -------------------------------------------------------------------------------------------------


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    side_effects: SideEffects = ...,
    name: str | None = ...,
    description: str | None = ...,
    requires_workspace: bool = ...,
    timeout_s: float | None = ...,
    preview: PreviewOf | None = ...,
) -> Callable[[Callable[..., Any]], Tool]: ...
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
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """A tool of a function. A parameter of type ``ToolContext`` is filled in; the others are the tool's input."""

    def made(function: Callable[..., Any]) -> Tool:
        own_name = name or function.__name__
        taken, arguments = _parameters(function, own_name)
        definition = ToolDefinition(
            name=own_name,
            description=description or inspect.getdoc(function) or own_name,
            input_schema=_schema(arguments),
            side_effects=side_effects,
            requires_workspace=requires_workspace,
        )
        run = _make_runner(function, arguments, taken)
        return Tool(definition=definition, run=run, timeout_s=timeout_s, preview=preview)

    return made if function is None else made(function)


def _parameters(function: Callable[..., Any], name: str) -> tuple[str | None, type[msgspec.Struct]]:
    """The name of the parameter that takes the context, and the others as fields of a struct."""
    hints = typing.get_type_hints(function, include_extras=True)
    context_name = None
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: a model gives its arguments by name, so {parameter} cannot be filled")
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context_name = parameter.name
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, _with_description(hint)))
        else:
            fields.append((parameter.name, _with_description(hint), _field(parameter.default)))
    return context_name, msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _field(default: Any) -> Any:
    return msgspec.field(default_factory=default.copy) if isinstance(default, list | dict | set) else default


def _with_description(hint: Any) -> Any:
    """``Annotated[str, "what it is"]`` is short for a ``msgspec.Meta`` with a description."""
    base, *annotations = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    for note in annotations:
        base = typing.Annotated[base, msgspec.Meta(description=note) if isinstance(note, str) else note]
    return base


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    schema = to_portable_schema(msgspec.json.schema(arguments)).schema
    schema.pop("title", None)
    schema.pop("description", None)  # that of the struct is msgspec's own
    return schema


def _make_runner(function: Callable[..., Any], arguments: type[msgspec.Struct], context_name: str | None) -> Run:
    async def run(input: dict[str, Any], context: ToolContext) -> Any:  # noqa: A002
        try:
            values = msgspec.convert(input, arguments)
        except msgspec.ValidationError as error:
            raise ToolFailedError(str(error), error_class="validation_error") from None
        call = functools.partial(function, **{name: getattr(values, name) for name in arguments.__struct_fields__})
        if context_name is not None:
            call = functools.partial(call, **{context_name: context})
        if inspect.iscoroutinefunction(function):
            return await call()
        return await run_in_thread(call)

    return run


async def run_in_thread(call: Callable[[], Any]) -> Any:
    """Run it in a thread of its own, to the end: nobody can stop a thread, so being cancelled does not end the wait.

    Whoever cancels does not have to wait with it: what comes is a late result.
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
    except BaseException as error:  # noqa: BLE001  it belongs to whoever waits
        failure = error

    def resolve() -> None:
        if not done.done():
            done.set_result(outcome) if failure is None else done.set_exception(failure)

    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody is left to tell
        done.get_loop().call_soon_threadsafe(resolve)


# --- what comes back -------------------------------------------------------------------------------------------------

_MAX_TEXT: Final = 400_000  # characters; a tool that gives more has not bounded itself


def content_from(output: Any) -> tuple[ContentBlock, ...]:
    """The content of a result from whatever a tool returned."""
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
            raise TypeError(f"a result cannot hold a {block.type} block")
    return tuple(b.replace(text=_sanitize_text(b.text)) if isinstance(b, TextBlock) else b for b in checked)


def _sanitize_text(text: str) -> str:
    """Without lone surrogates, which no wire can carry, and of a length that a request can."""
    return truncate_middle(text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8"), _MAX_TEXT)


def truncate_middle(text: str, limit: int) -> str:
    """The beginning and the end of a long text, and between them how much is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
