"""``dragoman ask``: one question, its answer on the standard output as it arrives, and nothing else there.

What a person wants to know besides (the session, tools that run, what it cost) goes to the standard error. Ctrl-C stops
the turn, and what had arrived stays in the store. The one rule: the standard output holds the answer's words, or with
``--json`` one document, so that it can be piped.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from dragoman import settings as keys
from dragoman.cli.offering import offered
from dragoman.cli.store_option import JsonOption, Positive, StoreOption, opened, session_named
from dragoman.cli.terminal import dollars, print_json, safe, safe_line
from dragoman.errors import DragomanError, InputError
from dragoman.event import TextDelta
from dragoman.exchange import Options, ResponseFormat, StopReason
from dragoman.message import ContentBlock, Message, TextBlock
from dragoman.store import Session, Store
from dragoman.tools import Confirmation, ConfirmationRequest
from dragoman.toolschema import problems_of_value
from dragoman.turn import Agent, AnswerEnded, ResultStored, TurnEnded
from dragoman.turn.pictures import picture_from

FAILED, CANCELLED = 1, 130
_TITLE = 60


async def ask(
    question: str | None = None,
    *,
    session: str | None = None,
    go_on: Annotated[bool, Parameter(name=("--continue", "-c"), negative=(), show_default=False)] = False,
    model: str | None = None,
    image: tuple[Path, ...] = (),
    system: str | None = None,
    tool: tuple[str, ...] = (),
    mcp: tuple[str, ...] = (),
    workspace: Path | None = None,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"), negative=(), show_default=False)] = False,
    schema: Path | None = None,
    max_tokens: Positive | None = None,
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), negative=(), show_default=False)] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Ask a model, and print its answer as it arrives.

    Parameters
    ----------
    question
        What to ask. An @model at its beginning chooses who answers. What is piped in comes behind it.
    session
        As the next message of this session. Without it, a new one is begun.
    go_on
        Go on with the session that changed last.
    model
        Who answers this question: an id or an alias. See dragoman models.
    image
        A picture that comes with the question; say it again for more.
    system
        What the model is told before everything else.
    tool
        A built-in tool that it may use: read_file, list_files, search_files, write_file, run_command or ask_user; say
        it again for more. Those that change something ask first.
    mcp
        An MCP server of the configuration file whose tools it may use; say it again for more. They ask first.
    workspace
        The folder in which tools work. Without it, this one.
    yes
        Let tools do what they would ask for.
    schema
        A file with a JSON Schema that the answer has to fit.
    max_tokens
        At most so many tokens in the answer.
    verbose
        Say on the standard error which session it is, who answers, and what it cost.
    """
    if not verbose:
        logging.getLogger("dragoman").addHandler(logging.NullHandler())  # what the answer lacks is told anyway
    content = _content(question, image)
    options = Options(max_output_tokens=max_tokens, response_format=_format(schema))
    settings = keys.load()
    async with opened(store, may_begin=True) as kept, offered(tool, mcp, settings) as tools:
        found = await _session(kept, "last" if go_on else session, question, workspace)
        asking = _Asking(verbose=verbose, json=json, yes=yes)
        async with Agent(
            kept,
            settings=settings,
            tools=tools,
            workspace=workspace or (Path.cwd() if tool else None),
            system_prompt=system,
            options=options,
            confirm=asking.confirm,
        ) as agent:
            try:
                return await asking.answered(agent, found, content, model)
            except DragomanError:
                if not (await kept.get_session(found.id)).last_seq:
                    await kept.delete_session(found.id)  # nothing was ever said in it
                raise


def _content(question: str | None, images: Sequence[Path]) -> tuple[ContentBlock, ...]:
    piped = "" if sys.stdin.isatty() else _piped_text()
    said = "\n\n".join(text for text in (question or "", piped.strip()) if text.strip())
    if not said and not images:
        raise InputError("there is no question", remedy="Write one behind 'ask', or pipe one in")
    return (*([TextBlock(said)] if said else []), *(picture_from(path) for path in images))


def _piped_text() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start} is not UTF-8",
            where="standard input",
            remedy="Convert it first, for example with iconv -f latin1 -t utf-8",
        ) from None


def _format(schema: Path | None) -> ResponseFormat | None:
    if schema is None:
        return None
    try:
        document: Any = msgspec.json.decode(schema.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"it is no JSON Schema ({error})", where=str(schema)) from None
    if not isinstance(document, dict):
        raise InputError("it is no JSON Schema: it has to be an object", where=str(schema))
    try:
        problems_of_value(document, None)
    except InputError as error:
        raise InputError(f"it cannot be used as a JSON Schema ({error.what})", where=str(schema)) from None
    return ResponseFormat("json_schema", document, "answer", strict=True)


async def _session(store: Store, name: str | None, question: str | None, workspace: Path | None) -> Session:
    if name is not None:
        return await session_named(store, name)
    title = " ".join((question or "").split())[:_TITLE] or None
    return await store.create_session(title=title, workspace_path=str((workspace or Path.cwd()).resolve()))


class _Asking:
    """One question on its way to its answer."""

    def __init__(self, *, verbose: bool, json: bool, yes: bool) -> None:
        self._is_verbose = verbose
        self._is_json = json
        self._is_allowed = yes
        self._said: list[Message] = []

    async def answered(self, agent: Agent, session: Session, content: Sequence[ContentBlock], model: str | None) -> int:
        """Print the answer; the exit code."""
        turn = agent.begin(session.id, content, model=model)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, turn.cancel)
        ended: TurnEnded | None = None
        async for event in turn:
            match event:
                case TextDelta(text=text) if not self._is_json:
                    sys.stdout.write(safe(text) if sys.stdout.isatty() else text)
                    sys.stdout.flush()
                case AnswerEnded(row=row):
                    self._said.append(row.message)
                    self._end_line(row.message)
                case ResultStored(row=row):
                    self._said.append(row.message)
                case TurnEnded():
                    ended = event
        assert ended is not None  # a turn that raises nothing ends so
        return self._over(session, ended)

    def _end_line(self, message: Message) -> None:
        if _words(message) and not self._is_json:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _over(self, session: Session, ended: TurnEnded) -> int:
        if self._is_json:
            print_json(
                {
                    "session_id": session.id,
                    "turn_id": ended.turn_id,
                    "model": ended.model,
                    "stop_reason": ended.stop_reason,
                    "text": _words(self._said[-1]) if self._said else "",
                    "messages": [msgspec.to_builtins(message) for message in self._said],
                    "input_tokens": ended.input_tokens,
                    "output_tokens": ended.output_tokens,
                    "cost_usd": None if ended.cost_usd is None else str(ended.cost_usd),
                    "state": ended.state,
                    "unpriced_calls": ended.unpriced_calls,
                    "fault": None if ended.fault is None else msgspec.to_builtins(ended.fault),
                }
            )
        if self._is_verbose:
            spent = f"{ended.input_tokens} + {ended.output_tokens} tokens, {dollars(ended.cost_usd)}"
            self._tell(f"session {session.id}, {ended.model}, {spent}, {ended.wall_time_s:.1f} s")
        if ended.stop_reason is StopReason.CANCELLED:
            self._tell("stopped; what had arrived is kept")
            return CANCELLED
        if ended.fault is not None:
            self._tell(f"{ended.model}: {ended.fault.message} [{ended.fault.code}]")
            return FAILED
        return 0

    async def confirm(self, request: ConfirmationRequest) -> Confirmation:
        """Ask the person at the terminal whether a tool may do it; without one, it may not."""
        about = request.command_summary or ", ".join(request.projected_modifications) or request.input_summary
        if self._is_allowed:
            self._tell(f"{request.tool_name}: {about}")
            return Confirmation(allow=True)
        if not sys.stdin.isatty():
            self._tell(f"{request.tool_name} was not allowed ({about}): nobody is here to ask; --yes allows it")
            return Confirmation(allow=False, reason="nobody is there to ask")
        sys.stderr.write(f"\n{safe_line(request.tool_name)}: {safe_line(about)}\nAllow it? [y/N/a: always here] ")
        sys.stderr.flush()
        answer = (await asyncio.to_thread(sys.stdin.readline)).strip().lower()
        return Confirmation(allow=answer in ("y", "yes", "a"), scope="session" if answer == "a" else "once")

    def _tell(self, line: str) -> None:
        sys.stderr.write(safe_line(line) + "\n")
        sys.stderr.flush()


def _words(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))
