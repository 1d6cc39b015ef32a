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
from dragoman.bus.catalogue import ProviderDegraded
from dragoman.bus.trace import TraceWriter
from dragoman.catalog import Model
from dragoman.client import Client, Retries, Timeouts
from dragoman.errors import DragomanError, FormatError, UnknownModelError, UnknownPriceError
from dragoman.exchange import Fault, Options
from dragoman.handoff import Describe
from dragoman.handoff import Policy as CapabilityPolicy
from dragoman.ids import ToolIds
from dragoman.local import LocalModel
from dragoman.message import UNPRICED, ContentBlock, Message, TextBlock, TokenUsage, Usage
from dragoman.policyfile import PolicyFile
from dragoman.pricing import PriceTable, library_prices, priced
from dragoman.routing import Availability, PatternSample, Policy, Registry, read_policy
from dragoman.settings import Endpoint, Settings
from dragoman.store import Session, Store
from dragoman.tools import Confirm, ConfirmationPolicy, Tool, ToolRegistry, Workbench, Workspace
from dragoman.tools.dispatching import CONFIRM_TIMEOUT_S
from dragoman.turn import delegation
from dragoman.turn.beginning import recovered
from dragoman.turn.delegation import delegate_tool
from dragoman.turn.running import RunningTurn
from dragoman.turn.tally import Tally
from dragoman.turn.telling import tell
from dragoman.turn.turn import run
from dragoman.turn.values import Asked, Pending, TurnEnded, TurnEvent
from dragoman.turn.waiting import Waiting, left_open, offered_tools
from dragoman.window import SUMMARY_ABOVE_TOKENS

LOCAL: Final = "local"  # the provider that is a process on this machine
MAX_STEPS: Final = 25
MOST_BENCHES: Final = 256  # before those are let go that nobody would miss
MOST_SESSIONS: Final = 10_000  # that are remembered as known
DEGRADED_AFTER: Final = 3  # failures in a row: fewer than those after which a model is left out
SAMPLES_FOR_S: Final = 10.0
MOST_USERS: Final = 1_000  # whose samples are remembered
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
_PENDING_WITHIN: Final = 200  # messages: one answer asks for fewer things
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
        local: LocalModel | None = None,
        policy: Policy | None = None,
        prices: PriceTable | None = None,
        confirm: Confirm | None = None,
        confirmation: ConfirmationPolicy | None = None,
        confirm_timeout_s: float = CONFIRM_TIMEOUT_S,
        parks: bool = False,
        capability_policy: CapabilityPolicy = "strict",
        describe: Describe | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        max_steps: int = MAX_STEPS,
        delegates: bool = False,
        summarises: bool = False,
        summary_above_tokens: int = SUMMARY_ABOVE_TOKENS,
        streamed: bool = True,
        trace: bool | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.store = store
        self.settings = settings or keys.load()
        self.tools = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        if delegates:
            self.tools = ToolRegistry((*self.tools, delegate_tool(self)))
        self.workspace = self._opened(workspace)
        self.system_prompt = system_prompt
        self.agent_key = agent_key
        self.options = options
        self.bus = bus or Bus()
        self.client = client or Client()
        self.local = local or LocalModel()
        self.registry = registry_of(self.settings)
        self.prices = prices or library_prices(self.settings.catalog.price_names, self.settings.catalog.is_free)
        self.confirm = confirm
        self.confirmation = confirmation
        self.confirm_timeout_s = confirm_timeout_s
        self.parks = parks  # a call that a person decides about ends the turn, in place of waiting for ``confirm``
        self.capability_policy: CapabilityPolicy = capability_policy
        self.describe = describe
        self.timeouts = timeouts or Timeouts()
        self.retries = retries or Retries()
        self.max_steps = max_steps
        self.summarises = summarises
        self.summary_above_tokens = summary_above_tokens
        self.streamed = streamed
        self.clock = clock or store.clock
        self._reached = {"availability": Availability()}  # what an agent knows, its workers know
        self._endpoints: dict[str, Endpoint] = {}
        self._unpriced: set[str] = set()  # what was warned of already
        self._policy = policy
        self._workspace_path = str(workspace.root if isinstance(workspace, Workspace) else workspace or Path.cwd())
        self._policy_files: dict[str, PolicyFile] = {}  # by workspace
        self.default_model = default_model(self.settings, self.registry)
        self._samples: dict[str | None, tuple[Sequence[PatternSample], float]] = {}  # of a user, and until when
        self._benches: dict[str, Workbench] = {}
        self._known_sessions: set[str] = set()  # in which a turn has run, as far as is remembered
        self._late: list[tuple[str, Message]] = []  # what tools gave too late, by session, until it is stored
        self._running: list[RunningTurn] = []
        self._owned = [one for one, given in ((self.client, client), (self.local, local)) if given is None]
        self._owns_bus = bus is None
        is_traced = self._owns_bus if trace is None else trace
        self._trace = TraceWriter(store) if is_traced else None

    def _opened(self, workspace: Workspace | Path | str | None) -> Workspace | None:
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
        for turn in list(self._running):
            await turn.cancelled()
        for bench in self._benches.values():
            await bench.aclose()
        await self._store_late()
        for one in self._owned:
            await one.close()
        if self._trace is not None:
            await self._trace.close()
        if self._owns_bus:
            await self.bus.close()

    async def _store_late(self) -> None:
        """What was to be told in a next turn is told whoever runs that."""
        while self._late:
            session_id, note = self._late.pop(0)
            try:
                await self.store.append(session_id, note)
            except DragomanError as error:
                _log.warning("a late result could not be stored: %s", error, extra={"session_id": session_id})

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(
        self, session_id: str, content: str | Iterable[ContentBlock] = (), **terms: Any
    ) -> AsyncGenerator[TurnEvent, None]:
        """One turn, as it happens. ``terms`` are further fields of ``Asked``. To close it is to cancel the turn."""
        return run(self, Asked(session_id=session_id, content=_blocks(content), **terms))

    async def ask(self, session_id: str, content: str | Iterable[ContentBlock] = (), **terms: Any) -> TurnEnded:
        """One turn, when it is over. Its answer is the newest message of the session."""
        ended: TurnEnded | None = None
        async for event in self.turn(session_id, content, **terms):
            if isinstance(event, TurnEnded):
                ended = event
        assert ended is not None  # a turn that raises nothing ends so
        return ended

    def begin(self, session_id: str, content: str | Iterable[ContentBlock] = (), **terms: Any) -> RunningTurn:
        """One turn in a task of its own, which goes on whoever follows it, until it is over or cancelled."""
        asked = Asked(session_id=session_id, content=_blocks(content), **terms)
        tally = Tally(asked.run_id or self.store.new_id())
        turn = RunningTurn(asked, run(self, asked, tally), tally)
        self._running.append(turn)
        turn.task.add_done_callback(lambda _: self._running.remove(turn))
        return turn

    def running(self, session_id: str) -> RunningTurn | None:
        """The turn that was begun in a session and is not over."""
        return next((turn for turn in self._running if turn.asked.session_id == session_id), None)

    async def pending(self, session_id: str) -> tuple[Pending, ...]:
        """What the last answer of a session waits for, as the store has it, whoever ran the turn."""
        history = [row.message for row in await self.store.tail(session_id, _PENDING_WITHIN)]
        left = await left_open(self.store, session_id, history)
        asked = Asked(session_id=session_id)
        return Waiting(self, asked, left, await offered_tools(self, asked)).pending(left)

    async def recover(self, session_id: str) -> None:
        """End what a crash has left half done in a session, without a new turn.

        ``ConflictError`` (``turn_in_flight``) as long as a turn may be running there.
        """
        await recovered(self, session_id)

    def worker(self, tools: Iterable[str], system_prompt: str) -> Agent:
        """An agent for a task that this one gives away: the same in everything but its tools and its prompt."""
        made = copy.copy(self)
        names = [name for name in tools if name != delegation.NAME and name in self.tools]
        made.tools = self.tools.allowed(names)
        made.system_prompt = system_prompt
        made.agent_key = f"{self.agent_key}.worker"
        made.parks = False  # nobody would come back to its session
        return made

    # --- what a turn asks for ----------------------------------------------------------------------------------------

    def policy(self, session: Session | None = None) -> Policy:
        """The routing policy that holds now: the session's own, the agent's, or that of the session's workspace.

        A file that has errors is told of once, and the last good one holds.
        """
        if session is not None and session.routing_policy is not None:
            origin = f"session {session.id}"
            own = read_policy(session.routing_policy, self.registry, home=str(Path.home()), origin=origin)
            return own.with_default(self.default_model)
        if self._policy is not None:
            return self._policy.with_default(self.default_model)
        workspace = session.workspace_path if session is not None else ""
        read = self._policy_file(workspace or self._workspace_path).read()
        if read.errors and read.is_news:
            tell(self.bus, "routing.policy_invalid", read.invalid_payload())
        return read.policy.with_default(self.default_model)

    def _policy_file(self, workspace: str) -> PolicyFile:
        if workspace not in self._policy_files:
            self._policy_files[workspace] = PolicyFile.of_workspace(workspace, self.registry)
        return self._policy_files[workspace]

    async def samples(self, user_id: str | None = None) -> Sequence[PatternSample]:
        """How turns of a user went that were judged, or of everybody without one; asked for again after a while.

        Nobody's judgements choose the models of somebody else.
        """
        now = time.monotonic()
        found, until = self._samples.get(user_id, ((), 0.0))
        if now >= until:
            if len(self._samples) >= MOST_USERS:
                self._samples.clear()
            found = await self.store.pattern_samples(user_id=user_id)
            self._samples[user_id] = found, now + SAMPLES_FOR_S
        return found

    def model_named(self, name: str) -> Model:
        """The model of that id or alias, or ``UnknownModelError``."""
        found = self.registry.find(name)
        if found is None:
            raise UnknownModelError(f"no model is called {name!r}", remedy="See the names with dragoman models")
        return found

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
            return self.settings.endpoint(provider, base_url=await self.local.base_url())
        return self._endpoint(provider)

    def check_endpoint(self, provider: str) -> None:
        """``SettingsError`` if nobody has said where a provider is, or its key is gone."""
        if not self._is_embedded(provider):
            self._endpoint(provider)

    def _is_embedded(self, provider: str) -> bool:
        return provider == LOCAL and not self.settings.environment.get("DRAGOMAN_LOCAL_BASE_URL")

    def _endpoint(self, provider: str) -> Endpoint:
        found = self._endpoints.get(provider)
        if found is None:  # to ask the keyring takes time, and perhaps a person's
            found = self._endpoints[provider] = self.settings.endpoint(provider)
        return found

    def bench(self, session_id: str, user_id: str | None) -> Workbench:
        """What the tool calls of a session share."""
        found = self._benches.get(session_id)
        if found is None:
            self._let_go_of_benches()
            found = self._benches[session_id] = Workbench(
                session_id,
                workspace=self.workspace,
                policy=self.confirmation,
                confirm=self.confirm,
                confirm_timeout_s=self.confirm_timeout_s,
            )
        found.user_id = user_id  # of the one turn that runs
        return found

    def _let_go_of_benches(self) -> None:
        """Forget those that are idle, once there are many: a server sees more sessions than it can remember."""
        if len(self._benches) >= MOST_BENCHES:
            for session_id in [own for own, bench in self._benches.items() if bench.is_idle]:
                del self._benches[session_id]

    def knows_session(self, session_id: str) -> bool:
        """Whether a turn of this agent has run in a session before; from now on one has."""
        if session_id in self._known_sessions:
            return True
        if len(self._known_sessions) >= MOST_SESSIONS:
            self._known_sessions.clear()
        self._known_sessions.add(session_id)
        return False

    def came_late(self, session_id: str, note: Message) -> None:
        """Keep what a tool gave too late for the session's next question."""
        self._late.append((session_id, note))

    def late(self, session_id: str) -> list[Message]:
        """What tools of a session gave too late, and is not stored yet."""
        return [note for own, note in self._late if own == session_id]

    def forget_late(self, stored: Sequence[Message]) -> None:
        """These are stored."""
        if self._late:
            self._late[:] = [(session_id, note) for session_id, note in self._late if note not in stored]

    def note_call(self, model: Model, fault: Fault | None, *, session_id: str) -> None:
        """Remember whether a model could be reached."""
        error_class = None if fault is None else fault.error_class.value
        self.availability, changes = self.availability.noted(model.provider, model.id, self.clock(), error_class)
        for change in changes:
            tell(self.bus, change.event_type, change.payload(), session_id=session_id)
        if fault is not None and self.availability.failures_in_a_row(model.provider, model.id) == DEGRADED_AFTER:
            reason = f"{DEGRADED_AFTER} consecutive failures, the last one {error_class}"
            degraded = ProviderDegraded(provider=model.provider, models_affected=(model.id,), reason=reason)
            tell(self.bus, degraded, session_id=session_id)

    def priced(self, model: Model, usage: TokenUsage, at: datetime, latency_ms: int) -> Usage:
        """What a call consumed, with its price; without one, if none is known or the counts contradict each other."""
        try:
            return priced(self.prices, model.id, usage, at, latency_ms)
        except (UnknownPriceError, FormatError) as error:
            if model.id not in self._unpriced:
                self._unpriced.add(model.id)
                _log.warning("a call of %s is unpriced: %s", model.id, error, extra={"model": model.id})
        counts = {name: getattr(usage, name) for name in TokenUsage.__struct_fields__}
        return Usage(**counts, cost_usd=None, pricing_version=UNPRICED, latency_ms=latency_ms)


def registry_of(settings: Settings) -> Registry:
    """The models that may be named, and those providers that can be called from here."""
    return Registry(
        settings.catalog,
        [row.key for row in settings.catalog.providers.values() if settings.reached_by(row)],
        unreachable_reason=settings.unreachable_reason,
    )


def default_model(settings: Settings, registry: Registry) -> str | None:
    """The model that answers when nobody chose one: the settings', or the first choice that can be called."""
    if settings.default_model.value:
        return settings.default_model.value
    found = [model for name in FIRST_CHOICES if (model := registry.find(name)) is not None]
    return next((model.id for model in found if registry.is_configured(model)), None)


def _blocks(content: str | Iterable[ContentBlock]) -> tuple[ContentBlock, ...]:
    return (TextBlock(content),) if isinstance(content, str) else tuple(content)
