"""Services shared by the turns of an agent and of its workers: store, client, bus, models and prices.

A turn module receives ``AgentServices`` and an ``AgentConfig``, never the ``Agent``. The services resolve
models, endpoints and prices, and record which providers failed recently.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from dragoman import settings as settings_module
from dragoman import tokens
from dragoman.adapter import Adapter
from dragoman.bus import Bus
from dragoman.bus.event_types.routing_events import ProviderDegraded
from dragoman.catalog import Model, Provider
from dragoman.client import Client
from dragoman.context_window import with_summary
from dragoman.errors import DragomanError, FormatError, SettingsError, UnknownPriceError
from dragoman.exchange import Fault, ToolDefinition
from dragoman.ids import ToolIds
from dragoman.local import LocalModel, find_weights
from dragoman.message import UNPRICED, Message, TokenUsage, Usage
from dragoman.pricing import PriceTable, add_cost, library_prices, price_usage
from dragoman.routing import Availability, PatternSample, Policy, Registry, read_policy
from dragoman.settings import Endpoint, Settings
from dragoman.settings.policy_file import PolicyFile
from dragoman.store import Session, Store
from dragoman.tools import ToolSession, Workspace
from dragoman.turn.config import AgentConfig

LOCAL: Final = "local"  # the provider that is a process on this machine
MAX_TOOL_SESSIONS: Final = 256  # before idle ones are dropped
MAX_KNOWN_SESSIONS: Final = 10_000
DEGRADED_FAILURES: Final = 3  # consecutive failures before ``provider.degraded``; routing skips a model later
SAMPLES_TTL_S: Final = 10.0
MAX_SAMPLE_USERS: Final = 1_000
# The default model if none is configured: a mid-range model of the first provider that can be called.
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
LOWEST_RATIO: Final = 0.7
HIGHEST_RATIO: Final = 1.5
_RATIO_MESSAGES: Final = 50  # of the session that a ratio is read from
_log: Final = logging.getLogger("dragoman.turn")


class AgentServices:
    """Shared by all turns of an agent and of its workers."""

    def __init__(
        self,
        store: Store,
        config: AgentConfig,
        *,
        settings: Settings,
        workspace: Workspace | Path | str | None,
        bus: Bus,
        client: Client,
    ) -> None:
        self.store = store
        self.settings = settings
        self.workspace = self._open_workspace(workspace)
        self.bus = bus
        self.client = client
        self.clock = config.clock or store.clock
        self.local_model = config.local_model or LocalModel()
        self.registry = make_registry(settings)
        self.default_model = default_model(settings, self.registry)
        self._own_prices = config.price_table
        self.price_table = self._make_price_table()
        self.availability = Availability()
        self.token_ratios = TokenRatios(store)
        self.tool_sessions: dict[str, ToolSession] = {}
        self.late_notes: list[tuple[str, Message]] = []  # output of tools after their time-out, until it is stored
        self._policy = config.policy
        self._policy_files: dict[str, PolicyFile] = {}  # by workspace
        self._workspace_path = str(workspace.root if isinstance(workspace, Workspace) else workspace or Path.cwd())
        self._endpoints: dict[str, Endpoint] = {}
        self._models: dict[str, Model] = {}  # rows of the catalog
        self._providers: dict[str, Provider] = {}
        self._samples: dict[str | None, tuple[Sequence[PatternSample], float]] = {}  # with their expiry, by user
        self._known_sessions: set[str] = set()
        self._unpriced_models: set[str] = set()  # already logged

    def _open_workspace(self, workspace: Workspace | Path | str | None) -> Workspace | None:
        """The folder in which tools work, without the files of the store and of the settings."""
        if workspace is None or isinstance(workspace, Workspace):
            return workspace
        return Workspace(workspace, private=(*self.store.local_paths, *settings_module.private_paths(self.settings)))

    def _make_price_table(self) -> PriceTable:
        catalog = self.settings.catalog
        return self._own_prices or library_prices(catalog.price_names, catalog.is_free)

    def change_settings(self, settings: Settings) -> None:
        """Use other settings from the next call on: their providers, keys, models and default model."""
        self.settings = settings
        self.registry = make_registry(settings)
        self.default_model = default_model(settings, self.registry)
        self.price_table = self._make_price_table()
        self.availability = Availability()
        for cache in (self._policy_files, self._endpoints, self._models, self._providers):
            cache.clear()

    async def close(self) -> None:
        """Stop the tools that still run, and store late notes."""
        for tool_session in self.tool_sessions.values():
            await tool_session.aclose()
        while self.late_notes:
            session_id, note = self.late_notes.pop(0)
            try:
                await self.store.append(session_id, note)
            except DragomanError as error:
                _log.warning("cannot store a late result: %s", error, extra={"session_id": session_id})

    # --- routing and models ------------------------------------------------------------------------------------------

    def policy(self, session: Session | None = None) -> Policy:
        """The routing policy: of the session, of the agent, or of the session's workspace, in this order.

        If a policy file has errors, the last valid version applies, and the errors are emitted once.
        """
        if session is not None and session.routing_policy is not None:
            origin = f"session {session.id}"
            policy = read_policy(session.routing_policy, self.registry, home=str(Path.home()), origin=origin)
        elif self._policy is not None:
            policy = self._policy
        else:
            workspace = session.workspace_path if session is not None else ""
            status = self._policy_file(workspace or self._workspace_path).read()
            if status.errors and status.is_new:
                self.bus.try_emit("routing.policy_invalid", status.invalid_payload())
            policy = status.policy
        return policy.with_default(self.default_model)

    def _policy_file(self, workspace: str) -> PolicyFile:
        if workspace not in self._policy_files:
            self._policy_files[workspace] = PolicyFile.for_workspace(workspace, self.registry)
        return self._policy_files[workspace]

    async def samples(self, user_id: str | None = None) -> Sequence[PatternSample]:
        """The evaluated turns of a user, or of all users; cached for ``SAMPLES_TTL_S``.

        Invariant: evaluations of one user do not affect the models of another.
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
        """The model with that id, name or alias, or ``UnknownModelError`` with similar names."""
        return self.registry.get(name)

    def adapter(self, model: Model, ids: ToolIds) -> Adapter:
        """The adapter of a model, with the tool ids of a session."""
        if model.provider not in self._providers:
            self._providers[model.provider] = self.settings.catalog.provider(model.provider)
        return Adapter(self._providers[model.provider], model, ids)

    def get_catalog_model(self, model_id: str) -> Model:
        """The model with that id in the catalog."""
        if model_id not in self._models:
            self._models[model_id] = self.registry.catalog.model(model_id)
        return self._models[model_id]

    def record_call(self, model: Model, fault: Fault | None, *, session_id: str) -> None:
        """Update the availability of a model after a call, and emit the changes."""
        if fault is None and not self.availability.providers:
            return  # nothing has failed yet
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
        """The usage of a call with its cost; without a cost if the price is unknown or the counts are inconsistent."""
        if model.id not in self._unpriced_models or self.price_table.has_price(model.id):
            try:
                return price_usage(self.price_table, model.id, usage, at, latency_ms)
            except (UnknownPriceError, FormatError) as error:
                if model.id not in self._unpriced_models:
                    self._unpriced_models.add(model.id)
                    _log.warning("a call of %s is unpriced: %s", model.id, error, extra={"model": model.id})
        return add_cost(usage, None, UNPRICED, latency_ms)

    # --- endpoints ---------------------------------------------------------------------------------------------------

    async def endpoint(self, provider: str) -> Endpoint:
        """The endpoint of a provider. The first call for the embedded model starts it."""
        if self._is_embedded(provider):
            return self.settings.endpoint(provider, base_url=await self.local_model.base_url())
        return self._get_endpoint(provider)

    async def load_embedded_model(self) -> None:
        """Start the embedded model if it is the default model and its weights are installed. A failure is logged."""
        model = self.registry.find(self.default_model) if self.default_model else None
        if model is None or not self._is_embedded(model.provider):
            return
        try:
            if find_weights() is not None:
                await self.local_model.base_url()
        except SettingsError as error:
            _log.warning("the embedded model is not loaded: %s", error)

    def check_endpoint(self, provider: str) -> None:
        """Raise ``SettingsError`` if a provider has no address or no key."""
        if not self._is_embedded(provider):
            self._get_endpoint(provider)

    def _is_embedded(self, provider: str) -> bool:
        return provider == LOCAL and not self.settings.environment.get("DRAGOMAN_LOCAL_BASE_URL")

    def _get_endpoint(self, provider: str) -> Endpoint:
        endpoint = self._endpoints.get(provider)
        if endpoint is None:  # the keyring is slow, and may prompt the user
            endpoint = self._endpoints[provider] = self.settings.endpoint(provider)
        return endpoint

    # --- sessions ----------------------------------------------------------------------------------------------------

    def tool_session(self, config: AgentConfig, session_id: str, user_id: str | None) -> ToolSession:
        """The state that the tool calls of a session share."""
        tool_session = self.tool_sessions.get(session_id)
        if tool_session is None:
            self._drop_idle_tool_sessions()
            tool_session = self.tool_sessions[session_id] = ToolSession(
                session_id,
                workspace=self.workspace,
                policy=config.confirmation_policy,
                confirm=config.confirm,
                confirm_timeout_s=config.confirm_timeout_s,
            )
        tool_session.user_id = user_id  # of the one turn that runs in the session
        return tool_session

    def _drop_idle_tool_sessions(self) -> None:
        if len(self.tool_sessions) >= MAX_TOOL_SESSIONS:
            for key in [key for key, tool_session in self.tool_sessions.items() if tool_session.is_idle]:
                del self.tool_sessions[key]

    def remember_session(self, session_id: str) -> bool:
        """Return whether a turn ran in a session before, and remember that one does."""
        if session_id in self._known_sessions:
            return True
        if len(self._known_sessions) >= MAX_KNOWN_SESSIONS:
            self._known_sessions.clear()
        self._known_sessions.add(session_id)
        return False

    def add_late_note(self, session_id: str, note: Message) -> None:
        """Keep the note about a late result for the next question of its session."""
        self.late_notes.append((session_id, note))

    def get_late_notes(self, session_id: str) -> list[Message]:
        """The notes of a session that are not stored."""
        return [note for key, note in self.late_notes if key == session_id]

    def remove_late_notes(self, notes: Sequence[Message]) -> None:
        """Remove notes that are stored."""
        if self.late_notes:
            self.late_notes[:] = [item for item in self.late_notes if item[1] not in notes]


def make_registry(settings: Settings) -> Registry:
    """The models of the catalog, and the providers that can be called with these settings."""
    return Registry(
        settings.catalog,
        [row.key for row in settings.catalog.providers.values() if settings.access_source(row)],
        unreachable_reason=settings.unreachable_reason,
    )


def default_model(settings: Settings, registry: Registry) -> str | None:
    """The configured default model, or the first of ``FIRST_CHOICES`` that can be called."""
    if settings.default_model.value:
        return settings.default_model.value
    models = [model for name in FIRST_CHOICES if (model := registry.find(name)) is not None]
    return next((model.id for model in models if registry.is_configured(model)), None)


class TokenRatios:
    """The newest ratio of each model: tokens that its provider counted, by tokens that were estimated.

    A family of models has one set of figures, but providers add prompts of their own and change them. Invariant: a
    ratio is between ``LOWEST_RATIO`` and ``HIGHEST_RATIO``, because its prompt may be unlike the next one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_model: dict[str, float] = {}

    def get(self, model_id: str) -> float:
        """Return the ratio of a model; 1 if it is not known."""
        return self._by_model.get(model_id, 1.0)

    def learn(self, model_id: str, ratio: float) -> None:
        """Keep the ratio of a prompt of any session."""
        self._by_model[model_id] = min(HIGHEST_RATIO, max(LOWEST_RATIO, ratio))

    async def load(self, model_id: str, tools: Iterable[ToolDefinition]) -> None:
        """Learn from the newest short session in which the model answered, unless the model is known."""
        if model_id in self._by_model:
            return
        self._by_model[model_id] = 1.0
        try:
            session_id = await self._store.costs.find_session(model_id, max_seq=_RATIO_MESSAGES)
            rows = await self._store.read(session_id, limit=_RATIO_MESSAGES) if session_id is not None else []
        except DragomanError:  # a session that was deleted meanwhile; an estimate is no reason to fail
            return
        ratio = tokens.find_ratio(model_id, [row.message for row in rows], tools, view=with_summary)
        if ratio is not None:
            self.learn(model_id, ratio)
