"""An agent: what its turns share. A store, a client, models, tools, a bus, and what is known of who is reachable.

    async with Agent(store) as agent:
        async for event in agent.turn(session.id, "Hello"): ...      as it happens
        ended = await agent.ask(session.id, "Hello")                 when it is over
        turn = agent.begin(session.id, "Hello"); turn.cancel()       to be followed, and stopped, by others

The one rule: everything that a turn needs from outside comes from here, so that a test or an application can give its
own.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from dragoman import settings as keys
from dragoman.adapter import Adapter
from dragoman.bus import Bus
from dragoman.bus.event_types.routing_events import ProviderDegraded
from dragoman.bus.trace_writer import TraceWriter
from dragoman.catalog import Model
from dragoman.client import Client, Retries, Timeouts
from dragoman.context_window import SUMMARY_ABOVE_TOKENS
from dragoman.errors import DragomanError, FormatError, UnknownModelError, UnknownPriceError
from dragoman.exchange import Fault, Options
from dragoman.handoff import Describe
from dragoman.handoff import Policy as CapabilityPolicy
from dragoman.ids import ToolIds
from dragoman.local import LocalModel
from dragoman.message import UNPRICED, ContentBlock, Message, TextBlock, TokenUsage, Usage
from dragoman.pricing import PriceTable, library_prices, price_usage
from dragoman.routing import Availability, PatternSample, Policy, Registry, read_policy
from dragoman.settings import Endpoint, Settings
from dragoman.settings.policy_file import PolicyFile
from dragoman.store import Session, Store
from dragoman.tools import Confirm, ConfirmationPolicy, Tool, ToolRegistry, ToolSession, Workspace
from dragoman.tools.dispatch import CONFIRM_TIMEOUT_S
from dragoman.turn import delegation
from dragoman.turn.delegation import delegate_tool
from dragoman.turn.pending_calls import PendingCalls, find_open_calls, make_turn_tools
from dragoman.turn.start import recover_session
from dragoman.turn.tally import TurnUsage
from dragoman.turn.task import TurnTask
from dragoman.turn.turn import run
from dragoman.turn.types import PendingCall, TurnEnd, TurnEvent, TurnRequest

LOCAL: Final = "local"  # the provider that is a process on this machine
MAX_STEPS: Final = 25
MAX_TOOL_SESSIONS: Final = 256  # before those are let go that nobody would miss
MAX_KNOWN_SESSIONS: Final = 10_000  # that are remembered as known
DEGRADED_FAILURES: Final = 3  # failures in a row: fewer than those after which a model is left out
SAMPLES_TTL_S: Final = 10.0
MAX_SAMPLE_USERS: Final = 1_000  # whose samples are remembered
# Who answers when nobody chose: of the first provider that can be called, a model of its middle, in ability and price.
FIRST_CHOICES: Final = (
    "anthropic:claude-sonnet-5-5",
    "openai:gpt-6.1-sol",
    "gemini:gemini-3.8-flash",
    "mistral:mistral-large-2512",
    "deepseek:deepseek-chat",
    "groq:openai/gpt-oss-120b",
    "openrouter:deepseek/deepseek-v3",
    "local:smollm2-135m",
)
_PENDING_WINDOW: Final = 200  # messages: one answer asks for fewer things
_log: Final = logging.getLogger("dragoman.turn")


class Agent:
    """Takes turns in the sessions of a store."""

    def __init__(
        self,
        store: Store,
        *,
        settings: Settings | None = None,
        tools: Iterable[Tool] | ToolRegistry = (),
        workspace: Workspace | Path | str | None = None,
        system_prompt: str | None = None,
        agent_key: str = "assistant",
        options: Options = Options(),  # noqa: B008  a value
        bus: Bus | None = None,
        client: Client | None = None,
        local_model: LocalModel | None = None,
        policy: Policy | None = None,
        price_table: PriceTable | None = None,
        confirm: Confirm | None = None,
        confirmation_policy: ConfirmationPolicy | None = None,
        confirm_timeout_s: float = CONFIRM_TIMEOUT_S,
        pause_for_approval: bool = False,
        capability_policy: CapabilityPolicy = "strict",
        describe_image: Describe | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        max_steps: int = MAX_STEPS,
        allow_delegation: bool = False,
        summarize: bool = False,
        summarize_above_tokens: int = SUMMARY_ABOVE_TOKENS,
        stream: bool = True,
        record_trace: bool | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.store = store
        self.settings = settings or keys.load()
        self.tools = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        if allow_delegation:
            self.tools = ToolRegistry((*self.tools, delegate_tool(self)))
        self.workspace = self._open_workspace(workspace)
        self.system_prompt = system_prompt
        self.agent_key = agent_key
        self.options = options
        self.bus = bus or Bus()
        self.client = client or Client()
        self.local_model = local_model or LocalModel()
        self.registry = make_registry(self.settings)
        self.price_table = price_table or library_prices(
            self.settings.catalog.price_names, self.settings.catalog.is_free
        )
        self.confirm = confirm
        self.confirmation_policy = confirmation_policy
        self.confirm_timeout_s = confirm_timeout_s
        self.pause_for_approval = (
            pause_for_approval  # a call that a person decides about ends the turn, in place of waiting for ``confirm``
        )
        self.capability_policy: CapabilityPolicy = capability_policy
        self.describe_image = describe_image
        self.timeouts = timeouts or Timeouts()
        self.retries = retries or Retries()
        self.max_steps = max_steps
        self.summarize = summarize
        self.summarize_above_tokens = summarize_above_tokens
        self.stream = stream
        self.clock = clock or store.clock
        self._reached = {"availability": Availability()}  # what an agent knows, its workers know
        self._endpoints: dict[str, Endpoint] = {}
        self._unpriced_models: set[str] = set()  # what was warned of already
        self._policy = policy
        self._workspace_path = str(workspace.root if isinstance(workspace, Workspace) else workspace or Path.cwd())
        self._policy_files: dict[str, PolicyFile] = {}  # by workspace
        self.default_model = default_model(self.settings, self.registry)
        self._samples: dict[str | None, tuple[Sequence[PatternSample], float]] = {}  # of a user, and until when
        self._tool_sessions: dict[str, ToolSession] = {}
        self._known_sessions: set[str] = set()  # in which a turn has run, as far as is remembered
        self._late_notes: list[tuple[str, Message]] = []  # what tools gave too late, by session, until it is stored
        self._turn_tasks: list[TurnTask] = []
        self._own_resources = [
            resource
            for resource, argument in ((self.client, client), (self.local_model, local_model))
            if argument is None
        ]
        self._owns_bus = bus is None
        records_trace = self._owns_bus if record_trace is None else record_trace
        self._trace = TraceWriter(store) if records_trace else None

    def _open_workspace(self, workspace: Workspace | Path | str | None) -> Workspace | None:
        """The folder in which tools work, without the files of the store and of the settings."""
        if workspace is None or isinstance(workspace, Workspace):
            return workspace
        return Workspace(workspace, private=(*self.store.local_paths, *keys.private_paths(self.settings)))

    async def __aenter__(self) -> Self:
        if self._owns_bus:
            self.bus.start()
        if self._trace is not None:
            self._trace.listen(self.bus)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop what runs, and let go of what was opened here. The store is whoever's it was."""
        for turn in list(self._turn_tasks):
            await turn.cancel_and_wait()
        for tool_session in self._tool_sessions.values():
            await tool_session.aclose()
        await self._store_late_notes()
        for resource in self._own_resources:
            await resource.close()
        if self._trace is not None:
            await self._trace.close()
        if self._owns_bus:
            await self.bus.close()

    async def _store_late_notes(self) -> None:
        """What was to be told in a next turn is told whoever runs that."""
        while self._late_notes:
            session_id, note = self._late_notes.pop(0)
            try:
                await self.store.append(session_id, note)
            except DragomanError as error:
                _log.warning("a late result could not be stored: %s", error, extra={"session_id": session_id})

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(
        self, session_id: str, content: str | Iterable[ContentBlock] = (), **fields: Any
    ) -> AsyncGenerator[TurnEvent, None]:
        """One turn, as it happens. ``terms`` are further fields of ``Asked``. To close it is to cancel the turn."""
        return run(self, TurnRequest(session_id=session_id, content=_to_blocks(content), **fields))

    async def ask(self, session_id: str, content: str | Iterable[ContentBlock] = (), **fields: Any) -> TurnEnd:
        """One turn, when it is over. Its answer is the newest message of the session."""
        end: TurnEnd | None = None
        async for event in self.turn(session_id, content, **fields):
            if isinstance(event, TurnEnd):
                end = event
        assert end is not None  # a turn that raises nothing ends so
        return end

    def begin(self, session_id: str, content: str | Iterable[ContentBlock] = (), **fields: Any) -> TurnTask:
        """One turn in a task of its own, which goes on whoever follows it, until it is over or cancelled."""
        request = TurnRequest(session_id=session_id, content=_to_blocks(content), **fields)
        usage = TurnUsage(request.run_id or self.store.new_id())
        turn = TurnTask(request, run(self, request, usage), usage)
        self._turn_tasks.append(turn)
        turn.task.add_done_callback(lambda _: self._turn_tasks.remove(turn))
        return turn

    def active_turn(self, session_id: str) -> TurnTask | None:
        """The turn that was begun in a session and is not over."""
        return next((turn for turn in self._turn_tasks if turn.request.session_id == session_id), None)

    async def pending_calls(self, session_id: str) -> tuple[PendingCall, ...]:
        """What the last answer of a session waits for, as the store has it, whoever ran the turn."""
        history = [row.message for row in await self.store.tail(session_id, _PENDING_WINDOW)]
        open_calls = await find_open_calls(self.store, session_id, history)
        request = TurnRequest(session_id=session_id)
        return PendingCalls(self, request, open_calls, await make_turn_tools(self, request)).filter_pending(open_calls)

    async def recover(self, session_id: str) -> None:
        """End what a crash has left half done in a session, without a new turn.

        ``ConflictError`` (``turn_in_flight``) as long as a turn may be running there.
        """
        await recover_session(self, session_id)

    def worker(self, tools: Iterable[str], system_prompt: str) -> Agent:
        """An agent for a task that this one gives away: the same in everything but its tools and its prompt."""
        worker = copy.copy(self)
        names = [name for name in tools if name != delegation.NAME and name in self.tools]
        worker.tools = self.tools.subset(names)
        worker.system_prompt = system_prompt
        worker.agent_key = f"{self.agent_key}.worker"
        worker.pause_for_approval = False  # nobody would come back to its session
        return worker

    # --- what a turn asks for ----------------------------------------------------------------------------------------

    def policy(self, session: Session | None = None) -> Policy:
        """The routing policy that holds now: the session's own, the agent's, or that of the session's workspace.

        A file that has errors is told of once, and the last good one holds.
        """
        if session is not None and session.routing_policy is not None:
            origin = f"session {session.id}"
            policy = read_policy(session.routing_policy, self.registry, home=str(Path.home()), origin=origin)
            return policy.with_default(self.default_model)
        if self._policy is not None:
            return self._policy.with_default(self.default_model)
        workspace = session.workspace_path if session is not None else ""
        result = self._policy_file(workspace or self._workspace_path).read()
        if result.errors and result.is_new:
            self.bus.try_emit("routing.policy_invalid", result.invalid_payload())
        return result.policy.with_default(self.default_model)

    def _policy_file(self, workspace: str) -> PolicyFile:
        if workspace not in self._policy_files:
            self._policy_files[workspace] = PolicyFile.for_workspace(workspace, self.registry)
        return self._policy_files[workspace]

    async def samples(self, user_id: str | None = None) -> Sequence[PatternSample]:
        """How turns of a user went that were judged, or of everybody without one; asked for again after a while.

        Nobody's judgements choose the models of somebody else.
        """
        now = time.monotonic()
        samples, expires_at = self._samples.get(user_id, ((), 0.0))
        if now >= expires_at:
            if len(self._samples) >= MAX_SAMPLE_USERS:
                self._samples.clear()
            samples = await self.store.evaluations.samples(user_id=user_id)
            self._samples[user_id] = samples, now + SAMPLES_TTL_S
        return samples

    def get_model(self, name: str) -> Model:
        """The model of that id or alias, or ``UnknownModelError``."""
        model = self.registry.find(name)
        if model is None:
            raise UnknownModelError(f"no model is called {name!r}", remedy="See the names with dragoman models")
        return model

    def adapter(self, model: Model, ids: ToolIds) -> Adapter:
        """How a model is spoken to in a session."""
        return Adapter(self.settings.catalog.provider(model.provider), model, ids)

    @property
    def availability(self) -> Availability:
        """Who is reachable, as far as calls have shown."""
        return self._reached["availability"]

    @availability.setter
    def availability(self, known: Availability) -> None:
        self._reached["availability"] = known

    async def endpoint(self, provider: str) -> Endpoint:
        """Where a provider is called. The embedded model is started when it is asked for the first time."""
        if self._is_embedded(provider):
            return self.settings.endpoint(provider, base_url=await self.local_model.base_url())
        return self._get_endpoint(provider)

    def check_endpoint(self, provider: str) -> None:
        """``SettingsError`` if nobody has said where a provider is, or its key is gone."""
        if not self._is_embedded(provider):
            self._get_endpoint(provider)

    def _is_embedded(self, provider: str) -> bool:
        return provider == LOCAL and not self.settings.environment.get("DRAGOMAN_LOCAL_BASE_URL")

    def _get_endpoint(self, provider: str) -> Endpoint:
        endpoint = self._endpoints.get(provider)
        if endpoint is None:  # to ask the keyring takes time, and perhaps a person's
            endpoint = self._endpoints[provider] = self.settings.endpoint(provider)
        return endpoint

    def tool_session(self, session_id: str, user_id: str | None) -> ToolSession:
        """What the tool calls of a session share."""
        tool_session = self._tool_sessions.get(session_id)
        if tool_session is None:
            self._drop_idle_tool_sessions()
            tool_session = self._tool_sessions[session_id] = ToolSession(
                session_id,
                workspace=self.workspace,
                policy=self.confirmation_policy,
                confirm=self.confirm,
                confirm_timeout_s=self.confirm_timeout_s,
            )
        tool_session.user_id = user_id  # of the one turn that runs
        return tool_session

    def _drop_idle_tool_sessions(self) -> None:
        """Forget those that are idle, once there are many: a server sees more sessions than it can remember."""
        if len(self._tool_sessions) >= MAX_TOOL_SESSIONS:
            for session_id in [key for key, tool_session in self._tool_sessions.items() if tool_session.is_idle]:
                del self._tool_sessions[session_id]

    def remember_session(self, session_id: str) -> bool:
        """Whether a turn of this agent has run in a session before; from now on one has."""
        if session_id in self._known_sessions:
            return True
        if len(self._known_sessions) >= MAX_KNOWN_SESSIONS:
            self._known_sessions.clear()
        self._known_sessions.add(session_id)
        return False

    def add_late_note(self, session_id: str, note: Message) -> None:
        """Keep what a tool gave too late for the session's next question."""
        self._late_notes.append((session_id, note))

    def late_notes(self, session_id: str) -> list[Message]:
        """What tools of a session gave too late, and is not stored yet."""
        return [note for owner, note in self._late_notes if owner == session_id]

    def remove_late_notes(self, notes: Sequence[Message]) -> None:
        """These are stored."""
        if self._late_notes:
            self._late_notes[:] = [(session_id, note) for session_id, note in self._late_notes if note not in notes]

    def record_call(self, model: Model, fault: Fault | None, *, session_id: str) -> None:
        """Remember whether a model could be reached."""
        error_class = None if fault is None else fault.error_class.value
        self.availability, changes = self.availability.with_call_result(
            model.provider, model.id, self.clock(), error_class
        )
        for change in changes:
            self.bus.try_emit(change.event_type, change.payload(), session_id=session_id)
        if fault is not None and self.availability.consecutive_failures(model.provider, model.id) == DEGRADED_FAILURES:
            reason = f"{DEGRADED_FAILURES} consecutive failures, the last one {error_class}"
            event = ProviderDegraded(provider=model.provider, models_affected=(model.id,), reason=reason)
            self.bus.try_emit(event, session_id=session_id)

    def price_usage(self, model: Model, usage: TokenUsage, at: datetime, latency_ms: int) -> Usage:
        """What a call consumed, with its price; without one, if none is known or the counts contradict each other."""
        try:
            return price_usage(self.price_table, model.id, usage, at, latency_ms)
        except (UnknownPriceError, FormatError) as error:
            if model.id not in self._unpriced_models:
                self._unpriced_models.add(model.id)
                _log.warning("a call of %s is unpriced: %s", model.id, error, extra={"model": model.id})
        counts = {name: getattr(usage, name) for name in TokenUsage.__struct_fields__}
        return Usage(**counts, cost_usd=None, pricing_version=UNPRICED, latency_ms=latency_ms)


def make_registry(settings: Settings) -> Registry:
    """The models that may be named, and those providers that can be called from here."""
    return Registry(
        settings.catalog,
        [row.key for row in settings.catalog.providers.values() if settings.access_source(row)],
        unreachable_reason=settings.unreachable_reason,
    )


def default_model(settings: Settings, registry: Registry) -> str | None:
    """The model that answers when nobody chose one: the settings', or the first choice that can be called."""
    if settings.default_model.value:
        return settings.default_model.value
    models = [model for name in FIRST_CHOICES if (model := registry.find(name)) is not None]
    return next((model.id for model in models if registry.is_configured(model)), None)


def _to_blocks(content: str | Iterable[ContentBlock]) -> tuple[ContentBlock, ...]:
    return (TextBlock(content),) if isinstance(content, str) else tuple(content)
