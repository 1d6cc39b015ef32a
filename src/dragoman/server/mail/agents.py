"""Agents that answer letters: a letter in the mailbox of an agent starts a run, and its answer is sent as a letter.

    async with run_mail_agents(state):                  for every agent of ``ServerConfig.mail_agent``

The run is one like any other: it has a thread, events, cost and trace, and it can be followed and cancelled. All
letters of a task share a thread. If the run is interrupted, because a call needs approval or the model asks a question,
a ``needs_input`` letter asks for the inputs, and its answer resumes the run. A letter that answers a letter of
``send_letter`` continues the thread that sent it, and is not answered.

Invariants: a letter is acknowledged in the transaction that stores its answer, so it is answered once. A letter that is
delivered again finds its run, and starts another one only if a server stopped during it. A chain of letters between
agents ends after ``MAX_HOPS``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import DragomanError, SettingsError
from dragoman.ids import name_from_id
from dragoman.jsontext import DECODE_ERRORS
from dragoman.letters import (
    HUMAN,
    ErrorLetter,
    Letter,
    NeedsInputLetter,
    TaskResultLetter,
    answer_letter,
    answer_problems,
    error_letter,
    is_agent_name,
    needs_input_letter,
    read_stored_letter,
    task_result_letter,
)
from dragoman.letters.records import StoredLetter
from dragoman.mail import Delivery, Mail
from dragoman.mail.notices import POSTMASTER
from dragoman.message import Role, TextBlock
from dragoman.server.auth.principal import LOCAL, Principal, find_thread
from dragoman.server.auth.scopes import TOOLS
from dragoman.server.http.http_errors import ApiError, to_api_error
from dragoman.server.mail.input_requests import needs_approval, requested_inputs, resume_from
from dragoman.server.runs.registry import RunRequest
from dragoman.server.runs.run_input import InputMessage, InputResume, RunInput, TextPart
from dragoman.store.runs import Run
from dragoman.tools import Tool
from dragoman.tools.tool import ToolContext
from dragoman.turn.letter_tool import LetterSender, make_letter_tool

if TYPE_CHECKING:
    from dragoman.server.state import AppState

CONCURRENCY: Final = 4  # letters that an agent handles at the same time
MAX_HOPS: Final = 16
DEFAULT_SENDER: Final = "ASSISTANT"  # of letters that a chat sends with the tool
_STOPPED: Final = ("interrupted", "server_stopping")  # codes of runs that a server did not finish
_PERSONAL: Final = "user:"  # team of a user without a team
_RETRY_STATUSES: Final = (409, 429)
_RETRY_S: Final = 2.0
_log: Final = logging.getLogger("dragoman.server")


class MailAgent(msgspec.Struct, frozen=True):
    """An agent that answers the letters of a mailbox."""

    name: str
    team_id: str = ""
    model: str | None = None


def parse_mail_agent(text: str) -> MailAgent:
    """An agent of the configuration: ``NAME``, ``TEAM/NAME``, each with an optional ``=MODEL``."""
    address, _, model = text.partition("=")
    team_id, _, name = address.rpartition("/")
    if not is_agent_name(name):
        raise SettingsError(
            f"{name!r} is not the name of an agent",
            where=f"mail_agent {text!r}",
            remedy="Use capital letters, digits, '_' and '-': NAME, TEAM/NAME or NAME=MODEL",
        )
    return MailAgent(name, team_id, model or None)


@contextlib.asynccontextmanager
async def run_mail_agents(state: AppState) -> AsyncIterator[None]:
    """Answer letters while the block lasts."""
    agents = [parse_mail_agent(text) for text in state.config.mail_agent]
    workers = [AgentWorker(state, agent) for agent in agents]
    tasks = [
        asyncio.create_task(worker.work(), name=f"dragoman-mail-agent-{worker.agent.name}")
        for worker in workers
        for _ in range(CONCURRENCY)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class LetterRuns:
    """The agents of active runs by session, for the tool ``send_letter``."""

    def __init__(self) -> None:
        self.state: AppState | None = None  # set when it exists
        self._senders: dict[str, LetterSender] = {}

    @contextlib.contextmanager
    def note(self, session_id: str, sender: LetterSender) -> Iterator[None]:
        """Note the agent of a run while a block lasts."""
        self._senders[session_id] = sender
        try:
            yield
        finally:
            self._senders.pop(session_id, None)

    async def find(self, context: ToolContext) -> LetterSender:
        """The sender of a call: the agent of the run, or that of all chats."""
        if (sender := self._senders.get(context.session_id)) is not None:
            return sender
        assert self.state is not None
        session = await self.state.store.get_session(context.session_id)
        is_local = session.user_id in (None, LOCAL.user_id)
        team_id = session.team_id or ("" if is_local else f"{_PERSONAL}{session.user_id}")
        return LetterSender(self.state.mail.for_team(team_id=team_id, user_id=session.user_id), DEFAULT_SENDER)

    def make_tool(self) -> Tool:
        """The tool ``send_letter`` of the server."""
        return make_letter_tool(self.find)


class StoppedError(Exception):
    """A server stopped during the run of a letter. The letter is delivered again."""


class AgentWorker:
    """Handles the letters of one agent."""

    def __init__(self, state: AppState, agent: MailAgent) -> None:
        self.agent = agent
        self._state = state
        self._store = state.store
        self._mail: Mail = state.mail.for_team(team_id=agent.team_id)

    async def work(self) -> None:
        """Handle letters until the task is cancelled."""
        while True:
            try:
                async with self._mail.mailbox(self.agent.name) as mailbox:
                    await mailbox.work(self.handle)
            except DragomanError as error:  # the store fails; the letters stay
                _log.warning("agent %s cannot receive letters: %s", self.agent.name, error)
                await asyncio.sleep(_RETRY_S)

    async def handle(self, delivery: Delivery) -> None:
        """Handle one letter: start or resume a run, and answer."""
        letter = await delivery.decrypt()
        if letter.sender_id == POSTMASTER or _hops(letter) > MAX_HOPS:
            _log.warning("agent %s does not answer letter %s", self.agent.name, delivery.letter_id)
            return
        request = await self._find_request(letter)
        principal = await self._find_principal(delivery.leased.letter, request)
        await Exchange(self._state, self.agent, delivery, letter, request=request, principal=principal).run()

    async def _find_principal(self, stored: StoredLetter, request: StoredLetter | None) -> Principal:
        """The owner of the thread: that of the thread which the letter continues, else the user of the letter."""
        may_use_tools = self._state.config.mail_agent_tools
        session_id = None if request is None else request.session_id
        session = None if session_id is None else await self._store.find_session(session_id)
        if session is None or session.user_id in (None, LOCAL.user_id):
            return make_principal(stored, may_use_tools=may_use_tools)
        return Principal(session.user_id, session.team_id, None, _scopes(may_use_tools), False)

    async def _find_request(self, letter: Letter) -> StoredLetter | None:
        """The letter of this agent that a letter answers."""
        if letter.in_reply_to is None:
            return None
        found = await self._store.mail.get(letter.sender_id, letter.in_reply_to, self.agent.team_id)
        return found if found is not None and found.sender_id == self.agent.name else None


class Exchange:
    """One letter, its run and its answer."""

    def __init__(
        self,
        state: AppState,
        agent: MailAgent,
        delivery: Delivery,
        letter: Letter,
        *,
        request: StoredLetter | None,
        principal: Principal,
    ) -> None:
        self.agent = agent
        self._state = state
        self._store = state.store
        self._delivery = delivery
        self._letter = letter
        self._request = request  # that the letter answers
        stored = delivery.leased.letter
        self._mail = self._state.mail.for_team(team_id=stored.team_id, user_id=stored.user_id)
        self._principal = principal
        self._digest = hashlib.sha256(delivery.letter_id.encode()).hexdigest()[:32]

    async def run(self) -> None:
        """Run the letter, and answer it in the transaction of its acknowledgement."""
        try:
            session_id, run = await self._find_or_start()
        except (ApiError, DragomanError) as error:
            refusal = error if isinstance(error, ApiError) else to_api_error(error)
            if refusal.status in _RETRY_STATUSES or refusal.status >= 500:
                raise
            await self._send(self._make_error(refusal.code, refusal.message))
            return
        answer = await self._make_answer(session_id, run)
        await self._send(answer, session_id=session_id, turn_id=run.run_id)

    async def _send(self, answer: Letter | None, **links: str | None) -> None:
        if answer is None:
            await self._delivery.ack()
            return
        await self._delivery.ack(await self._mail.send_operation(answer, **links))
        self._mail.notify_all(answer.recipient_id)

    # --- the run -----------------------------------------------------------------------------------------------------

    async def _find_or_start(self) -> tuple[str, Run]:
        """The run of this letter, ended; a new one if a server stopped during the last one."""
        thread_id = self._thread_id
        for number in range(1, 1_000):
            run_id = f"letter-{self._digest}-{number}"
            session = await find_thread(self._store, self._principal, thread_id)
            run = None if session is None else await self._store.runs.get(session.id, run_id)
            if run is None or run.is_running:
                run = await self._run_to_end(thread_id, run_id)
            if await self._error_code(run) not in _STOPPED:
                return run.session_id, run
            if self._state.runs.is_stopping:
                break
        raise StoppedError(f"the server stopped during letter {self._delivery.letter_id}")

    @property
    def _thread_id(self) -> str:
        """The thread: that of the letter that this one answers, else that of its task."""
        if self._request is not None and self._request.session_id is not None:
            return name_from_id(self._request.session_id)
        return f"mail-{self.agent.name}-{self._letter.task_id}"

    async def _run_to_end(self, thread_id: str, run_id: str) -> Run:
        resume = await self._make_resume()
        text = "" if resume else describe(self._letter)
        question = InputMessage(id=run_id, role="user", parts=(TextPart(text),), wire={"id": run_id, "role": "user"})
        run_input = RunInput(
            thread_id=thread_id,
            run_id=run_id,
            messages=() if resume else (question,),
            version="1.0",
            context=make_context(self.agent, self._letter),
            model=self.agent.model,
            resume=resume,
        )
        request = RunRequest(self._principal, run_input, hashlib.sha256(run_id.encode()).digest())
        started = await self._start(request)
        sender = LetterSender(self._mail, self.agent.name, _hops(self._letter))
        with self._state.letter_runs.note(started.session_id, sender):
            await self._follow(started.session_id, started)
        run = await self._store.runs.get(started.session_id, run_id)
        if run is None or run.is_running:
            raise StoppedError(f"run {run_id} has not ended")
        return run

    async def _start(self, request: RunRequest) -> Run:
        """Start a run; wait for the end of another run of the thread."""
        while True:
            try:
                return (await self._state.runs.start_run(request)).run
            except ApiError as error:
                if error.code != "run_in_progress":
                    raise
            session = await find_thread(self._store, self._principal, request.run_input.thread_id)
            if session is not None:
                await self._follow(session.id)

    async def _follow(self, session_id: str, run: Run | None = None) -> None:
        """Wait until a run has ended."""
        after = run.first_number - 1 if run is not None else 0
        async for _ in self._state.runs.follow(session_id, after, run_id=run.run_id if run is not None else None):
            pass

    async def _make_resume(self) -> tuple[InputResume, ...]:
        """The decisions, if the letter answers a request for input of a run."""
        request = self._request
        if request is None or request.type != "needs_input" or request.session_id is None or request.turn_id is None:
            return ()
        run = await self._store.runs.get(request.session_id, request.turn_id)
        if run is None or not isinstance(self._letter, TaskResultLetter) or not run.interrupts:
            return ()
        return resume_from(run.interrupts, self._letter)

    async def _last_event(self, run: Run) -> dict[str, Any]:
        page = await self._store.runs.events(run.session_id, run.last_number - 1)
        event: dict[str, Any] = msgspec.json.decode(page.events[-1].json) if page.events else {}
        return event

    async def _error_code(self, run: Run) -> str | None:
        return (await self._last_event(run)).get("code") if run.status == "error" else None

    # --- the answer --------------------------------------------------------------------------------------------------

    async def _make_answer(self, session_id: str, run: Run) -> Letter | None:
        """The letter that answers; none if the letter was an answer itself."""
        if run.status == "interrupted":
            return self._make_request(session_id, run)
        if self._receiver is None:
            return None
        if run.status == "error":
            event = await self._last_event(run)
            return self._make_error(event.get("code", "error"), event.get("message", "The run failed."))
        if run.status == "cancelled":
            return self._make_error("cancelled", "The run was cancelled.")
        return self._make_result(session_id, run, await self._read_answer(session_id, run))

    @property
    def _receiver(self) -> tuple[str, str] | None:
        """Return the recipient of the answer and the letter that it answers; none if there is no recipient."""
        if self._letter.in_reply_to is None or self._request is None:
            return self._letter.sender_id, self._delivery.letter_id
        if self._request.type != "needs_input":
            return None
        letter = read_stored_letter(self._request.text.encode())
        context = letter.context or {}
        return (context["reply_to"], context["reply_for"]) if "reply_to" in context else None

    def _fields(self) -> dict[str, Any]:
        receiver, answered_id = self._receiver or (self._letter.sender_id, self._delivery.letter_id)
        return {
            "sender_id": self.agent.name,
            "recipient_id": receiver,
            "task_id": self._letter.task_id,
            "timestamp": self._store.clock(),
            "trace_id": self._letter.trace_id or None,
            "message_id": f"reply:{self._digest}",
            "context": {"in_reply_to": answered_id, "hops": _hops(self._letter) + 1},
        }

    def _make_error(self, code: str, text: str) -> Letter:
        return error_letter(
            code=code.upper(), message=self._mail.redactor.text(text), retryable=False, **self._fields()
        )

    def _make_result(self, session_id: str, run: Run, text: str) -> Letter:
        letter = self._letter
        if not isinstance(letter, NeedsInputLetter):
            return task_result_letter(output=text, session_id=session_id, turn_id=run.run_id, **self._fields())
        inputs = parse_inputs(letter, text)
        if inputs is None:
            return self._make_error("invalid_answer", "The agent did not send the requested inputs.")
        fields = self._fields()
        own = {name: fields[name] for name in ("timestamp", "message_id", "context")}
        answered = letter.replace(context={**(letter.context or {}), "message_id": self._delivery.letter_id})
        return answer_letter(answered, inputs=inputs, output=text, session_id=session_id, turn_id=run.run_id, **own)

    def _make_request(self, session_id: str, run: Run) -> Letter:
        """The request for the inputs that the run waits for: of a person if a call needs approval."""
        fields = self._fields()
        receiver, answered_id = self._receiver or (HUMAN, self._delivery.letter_id)
        if needs_approval(run.interrupts):
            fields["recipient_id"] = HUMAN
        fields["context"] = {"hops": fields["context"]["hops"], "reply_to": receiver, "reply_for": answered_id}
        questions = "\n".join(str(interrupt["message"]) for interrupt in run.interrupts)
        return needs_input_letter(
            requested_inputs=requested_inputs(run.interrupts),
            about=questions,
            session_id=session_id,
            turn_id=run.run_id,
            **fields,
        )

    async def _read_answer(self, session_id: str, run: Run) -> str:
        """The text of the last answer of a run."""
        rows = await self._store.tail(session_id, 50)
        answers = [
            row.message
            for row in rows
            if row.message.role is Role.ASSISTANT and row.message.metadata.run_id == run.run_id
        ]
        blocks = answers[-1].content if answers else ()
        return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def make_principal(stored: StoredLetter, *, may_use_tools: bool) -> Principal:
    """The owner of the thread of a letter: its user and team."""
    scopes = _scopes(may_use_tools)
    if stored.team_id == "":
        return msgspec.structs.replace(LOCAL, scopes=scopes)
    if stored.team_id.startswith(_PERSONAL):
        return Principal(stored.team_id.removeprefix(_PERSONAL), None, None, scopes, False)
    return Principal(stored.user_id or f"mail:{stored.sender_id}", stored.team_id, None, scopes, False)


def _scopes(may_use_tools: bool) -> frozenset[str]:
    return frozenset(("chat", TOOLS) if may_use_tools else ("chat",))


def describe(letter: Letter) -> str:
    """A letter as the question of a turn."""
    match letter:
        case TaskResultLetter(payload=payload):
            lines = [payload.result.output]
            lines += [f"Status: {payload.status}"] if payload.status != "success" else []
            lines += [f"Notes: {payload.notes}"] if payload.notes else []
            lines += [
                f"Artifact: {item.path} ({item.description or item.type})" for item in payload.result.artifacts or ()
            ]
        case ErrorLetter(payload=payload):
            lines = [f"The task failed: {payload.message} ({payload.code})"]
        case NeedsInputLetter(payload=payload):
            lines = [payload.context or "Input is needed."]
            lines += [
                f"- {item.id} ({item.type}{', one of ' + ', '.join(map(str, item.options)) if item.options else ''}):"
                f" {item.description}"
                for item in payload.requested_inputs
            ]
            if not _is_single_text(letter):
                lines.append("Answer with one JSON object that has these ids as keys, and nothing else.")
        case _:
            lines = [letter.task_id]
    return "\n".join(line for line in lines if line) or letter.task_id


def make_context(agent: MailAgent, letter: Letter) -> str:
    """Return the text about a letter that the model receives."""
    return (
        f"You are the agent {agent.name}. The last message is a letter of the agent {letter.sender_id} about the task"
        f" {letter.task_id}. Your answer is sent back as a letter."
    )


def parse_inputs(request: NeedsInputLetter, text: str) -> dict[str, Any] | None:
    """The inputs in the answer of a model; none if they are not what was asked for."""
    if _is_single_text(request):
        return {request.payload.requested_inputs[0].id: text}
    try:
        inputs = msgspec.json.decode(text[text.find("{") : text.rfind("}") + 1])
    except DECODE_ERRORS:
        return None
    return inputs if isinstance(inputs, dict) and not answer_problems(request.payload, inputs) else None


def _is_single_text(request: NeedsInputLetter) -> bool:
    inputs = request.payload.requested_inputs
    return len(inputs) == 1 and inputs[0].type == "string" and not inputs[0].options


def _hops(letter: Letter) -> int:
    """Return the number of agents that answered before."""
    hops = (letter.context or {}).get("hops", 0)
    return hops if isinstance(hops, int) and not isinstance(hops, bool) and hops >= 0 else 0
