"""``dragoman ask``: ask a model, and print the answer as it arrives.

Standard output contains only the answer. Notes and errors go to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from dragoman import settings as keys
from dragoman.cli.local import prepare_weights
from dragoman.cli.options import (
    DelegateOption,
    JsonOption,
    McpOption,
    PolicyOption,
    Positive,
    StoreOption,
    SummarizeOption,
    ToolOption,
    find_session,
    flag,
    make_agent_config,
    open_store_at,
    open_tools,
)
from dragoman.cli.terminal import escape_controls, escape_line, format_usd, print_json
from dragoman.errors import DragomanError, InputError
from dragoman.event import TextDelta
from dragoman.exchange import Options, ResponseFormat, StopReason
from dragoman.jsontext import DECODE_ERRORS
from dragoman.message import ContentBlock, Message, TextBlock
from dragoman.output_format import Output
from dragoman.store import Session, Store
from dragoman.tools import Confirmation, ConfirmationRequest
from dragoman.toolschema import value_problems
from dragoman.turn import Agent, AnswerEnd, ToolResultEvent, TurnEnd
from dragoman.turn.image_policy import image_from_file

EXIT_FAILURE, EXIT_CANCEL = 1, 130
_TITLE = 60


async def ask(
    question: str | None = None,
    /,
    *,
    session: str | None = None,
    go_on: Annotated[bool, flag("--continue", "-c")] = False,
    model: str | None = None,
    image: Annotated[tuple[Path, ...], Parameter(show_default=False)] = (),
    system: str | None = None,
    tool: ToolOption = (),
    mcp: McpOption = (),
    workspace: Path | None = None,
    yes: Annotated[bool, flag("--yes", "-y")] = False,
    delegate: DelegateOption = False,
    summarize: SummarizeOption = False,
    policy: PolicyOption = None,
    schema: Path | None = None,
    max_tokens: Positive | None = None,
    verbose: Annotated[bool, flag("--verbose", "-v")] = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Ask a model, and print its answer as it arrives.

    Parameters
    ----------
    question
        The question. An @model prefix selects the model. Piped input is appended.
    session
        Continue this session: its id, a unique prefix or suffix of the id, or last. Default: a new session.
    go_on
        Continue the session that was changed last.
    model
        The model that answers: an id or an alias. Default: the routing policy chooses.
    image
        An image for the question; repeatable.
    system
        The system prompt. Default: none.
    workspace
        The working folder of the tools. Default: the current folder.
    yes
        Approve all tool calls. Without it, the command prompts on a terminal, and otherwise declines.
    schema
        A file with a JSON Schema for the answer. The model may correct itself once; then the exit code is 1.
    max_tokens
        The maximum number of tokens of the answer. Default: the limit of the model.
    verbose
        Print the session, the model, the cost and log messages on standard error.
    """
    if not verbose:
        logging.getLogger("dragoman").addHandler(logging.NullHandler())  # errors of the turn are printed anyway
    content = _content(question, image)
    options = Options(max_output_tokens=max_tokens)
    output = _output(schema)
    settings = keys.load()
    prepare_weights(settings, model)
    async with open_store_at(store_url, create=True) as store, open_tools(tool, mcp, settings) as tools:
        current = await _session(store, "last" if go_on else session, question, workspace)
        question_run = _QuestionRun(verbose=verbose, json=json, yes=yes, output=output)
        config = make_agent_config(
            settings, delegate=delegate, summarize=summarize, policy=policy, confirm=question_run.confirm
        )
        async with Agent(
            store,
            settings=settings,
            tools=tools,
            workspace=workspace or (Path.cwd() if tool else None),
            system_prompt=system,
            options=options,
            config=config,
        ) as agent:
            try:
                return await question_run.answer(agent, current, content, model)
            except DragomanError:
                if not (await store.get_session(current.id)).last_seq:
                    await store.delete_session(current.id)  # it has no messages
                raise


def _content(question: str | None, images: Sequence[Path]) -> tuple[ContentBlock, ...]:
    input_text = "" if sys.stdin.isatty() else _read_stdin()
    question_text = "\n\n".join(text for text in (question or "", input_text.strip()) if text.strip())
    if not question_text and not images:
        raise InputError("no question", remedy="Pass it as an argument, or pipe it to standard input")
    return (*([TextBlock(question_text)] if question_text else []), *(image_from_file(path) for path in images))


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start} is not UTF-8",
            where="standard input",
            remedy="Convert it, for example with iconv -f latin1 -t utf-8",
        ) from None


def _output(schema: Path | None) -> Output[Any] | None:
    if schema is None:
        return None
    try:
        document: Any = msgspec.json.decode(schema.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the file ({error.strerror})", where=str(schema)) from None
    except DECODE_ERRORS as error:
        raise InputError(f"not a JSON Schema ({error})", where=str(schema)) from None
    if not isinstance(document, dict):
        raise InputError("not a JSON Schema: the document is not an object", where=str(schema))
    try:
        value_problems(document, None)
    except InputError as error:
        raise InputError(f"the JSON Schema is not supported ({error.what})", where=str(schema)) from None
    response_format = ResponseFormat("json_schema", document, "answer", strict=True)
    return Output(response_format=response_format, checked_format=response_format)


async def _session(store: Store, name: str | None, question: str | None, workspace: Path | None) -> Session:
    if name is not None:
        return await find_session(store, name)
    title = " ".join((question or "").split())[:_TITLE] or None
    return await store.create_session(title=title, workspace_path=str((workspace or Path.cwd()).resolve()))


class _QuestionRun:
    """One question, from the request to the printed answer."""

    def __init__(self, *, verbose: bool, json: bool, yes: bool, output: Output[Any] | None) -> None:
        self._output = output
        self._is_printed = not json and output is None  # while it arrives; a corrected answer is printed at its end
        self._is_verbose = verbose
        self._is_json = json
        self._is_allowed = yes
        self._messages: list[Message] = []

    async def answer(self, agent: Agent, session: Session, content: Sequence[ContentBlock], model: str | None) -> int:
        """Run the turn, print the answer, and return the exit code."""
        turn = agent.begin(session.id, content, model=model, output=self._output)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, turn.cancel)
        end: TurnEnd | None = None
        async for event in turn:
            match event:
                case TextDelta(text=text) if self._is_printed:
                    sys.stdout.write(escape_controls(text) if sys.stdout.isatty() else text)
                    sys.stdout.flush()
                case AnswerEnd(row=row):
                    self._messages.append(row.message)
                    self._end_line(row.message)
                case ToolResultEvent(row=row):
                    self._messages.append(row.message)
                case TurnEnd():
                    end = event
        assert end is not None  # a turn that raises no error emits TurnEnd
        return self._finish(session, end)

    def _end_line(self, message: Message) -> None:
        if _text_of(message) and self._is_printed:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _finish(self, session: Session, end: TurnEnd) -> int:
        if self._is_json:
            print_json(
                {
                    "session_id": session.id,
                    "turn_id": end.turn_id,
                    "model": end.model,
                    "stop_reason": end.stop_reason,
                    "text": _text_of(self._messages[-1]) if self._messages else "",
                    "messages": [msgspec.to_builtins(message) for message in self._messages],
                    "input_tokens": end.input_tokens,
                    "output_tokens": end.output_tokens,
                    "cost_usd": None if end.cost_usd is None else str(end.cost_usd),
                    "state": end.state,
                    "unpriced_calls": end.unpriced_calls,
                    "fault": None if end.fault is None else msgspec.to_builtins(end.fault),
                }
            )
        elif not self._is_printed and self._messages:
            text = _text_of(self._messages[-1])
            sys.stdout.write(f"{escape_controls(text) if sys.stdout.isatty() else text}\n")
        if self._is_verbose:
            spent = f"{end.input_tokens} + {end.output_tokens} tokens, {format_usd(end.cost_usd)}"
            self._print_note(f"session {session.id}, {end.model}, {spent}, {end.wall_time_s:.1f} s")
        if end.stop_reason is StopReason.CANCELLED:
            self._print_note("cancelled; the partial answer is stored")
            return EXIT_CANCEL
        if end.fault is not None:
            self._print_note(f"{end.model}: {end.fault.message} [{end.fault.code}]")
            if (advice := _advise(end.model, end.fault.code)) is not None:
                self._print_note(advice)
            return EXIT_FAILURE
        return 0

    async def confirm(self, request: ConfirmationRequest) -> Confirmation:
        """Prompt for the approval of a tool call; decline if standard input is not a terminal."""
        about = request.command_summary or ", ".join(request.projected_modifications) or request.input_summary
        if self._is_allowed:
            self._print_note(f"{request.tool_name}: {about}")
            return Confirmation(allow=True)
        if not sys.stdin.isatty():
            self._print_note(
                f"{request.tool_name} was declined ({about}): standard input is not a terminal. Use --yes to approve"
            )
            return Confirmation(allow=False, reason="no terminal for approval")
        sys.stderr.write(
            f"\n{escape_line(request.tool_name)}: {escape_line(about)}\nApprove? [y/N/a: always in this session] "
        )
        sys.stderr.flush()
        answer = (await asyncio.to_thread(sys.stdin.readline)).strip().lower()
        return Confirmation(allow=answer in ("y", "yes", "a"), scope="session" if answer == "a" else "once")

    def _print_note(self, line: str) -> None:
        sys.stderr.write(escape_line(line) + "\n")
        sys.stderr.flush()


def _text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


_ADVICE: Final = {
    "unauthorized": "Run dragoman login {provider}, or set the variable that dragoman models --providers names.",
    "forbidden": "Check the account and the permissions of the key at {provider}, or use another key.",
    "not_found": "Run dragoman models --provider {provider} for its models, and choose one with --model.",
    "invalid_request": "Run dragoman models {model} for the limits of the model, or choose another model with --model.",
    "context_overflow": "Choose a model with a larger context with --model, or start a new session.",
    "rate_limited": "Wait a moment, or choose another provider with --model.",
}


def _advise(model: str, code: str) -> str | None:
    """Return advice about a fault of a provider."""
    advice = _ADVICE.get(code)
    return None if advice is None else advice.format(model=model, provider=model.partition(":")[0])
