"""Models by name, which of them can be called, and which are available.

    Registry(catalog, configured, …)      lookup by id, alias and tier
    Availability                          results of calls, as a value that each call changes

    availability.with_call_result(provider, model, now, error_class=None) -> (availability, changes)
    availability.with_time(now) -> (availability, changes)
    availability.is_available(provider, model, now)

Invariant: a name identifies one model. A conflicting alias is rejected when the registry is created.

A model becomes unavailable after five consecutive failures within two minutes; a provider after three unavailable
models within two minutes, after two network errors within thirty seconds, and immediately after a rejected key. A
success resets the provider and the model; five minutes without a call reset everything. Errors of the caller do not
count: requests that are invalid, too long or cancelled. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from dragoman.errors import FormatError, UnknownModelError

if TYPE_CHECKING:
    from dragoman.catalog import Catalog, Model

TIERS: Final = ("fast", "balanced", "deep")
_MAX_FOUND: Final = 1_000


class Registry:
    """Models by name, and which of them can be called."""

    def __init__(
        self,
        catalog: Catalog,
        configured: Iterable[str],
        *,
        aliases: Mapping[str, str] | None = None,
        tiers: Mapping[str, Sequence[str]] | None = None,
        unreachable_reason: Callable[[str], str | None] | None = None,
    ) -> None:
        """``configured`` are the keys of providers that can be called; ``aliases`` are additional names; ``tiers`` are
        the models for delegations without a policy, in order of preference; ``unreachable_reason`` returns why a
        provider cannot be called, for error messages.
        """
        self.catalog = catalog
        self._unreachable_reason = unreachable_reason
        self.configured = frozenset(configured)
        self.tiers = dict(tiers or {})
        self._aliases: dict[str, str] = {}
        self._found: dict[str, Model] = {}  # by the names that were asked for
        for alias, name in (aliases or {}).items():
            model = self.find(name)
            if model is None:
                raise FormatError(f"no model {name!r} for the alias {alias!r}", code="invalid_catalog")
            other = self.find(alias)
            if other is not None and other.id != model.id:
                raise FormatError(f"the alias {alias!r} belongs to {other.id!r}", code="invalid_catalog")
            self._aliases[alias] = model.id

    def get(self, name: str) -> Model:
        """Return the model with that id, name or alias, or raise ``UnknownModelError`` with similar names."""
        model = self._found.get(name)
        if model is None:
            model = self.catalog.model(self._aliases.get(name, name))
            if len(self._found) < _MAX_FOUND:
                self._found[name] = model
        return model

    def find(self, name: str) -> Model | None:
        """Return the model with that id, name or alias, or ``None``."""
        try:
            return self.get(name)
        except UnknownModelError:
            return None

    def aliases_of(self, model_id: str) -> tuple[str, ...]:
        """Return the aliases of a model."""
        model = self.find(model_id)
        own = tuple(alias for alias, target in self._aliases.items() if target == model_id)
        return (*(model.aliases if model is not None else ()), *own)

    def is_configured(self, model: Model) -> bool:
        """Whether the model's provider can be called."""
        return model.provider in self.configured

    def unreachable_reason(self, name: str) -> str | None:
        """Return why the provider of a model cannot be called and what to do, if known."""
        model = self.find(name)
        if model is None or self.is_configured(model) or self._unreachable_reason is None:
            return None
        return self._unreachable_reason(model.provider)

    def find_by_tier(self, tier: str) -> Model | None:
        """Return the first model of a tier that can be called, else the first one."""
        models = [model for name in self.tiers.get(tier, ()) if (model := self.find(name)) is not None]
        return next((model for model in models if self.is_configured(model)), models[0] if models else None)


# --- availability --------------------------------------------------------------------------------------------------

Scope = Literal["model_specific", "provider_wide"]

MAX_FAILURES: Final = 5  # consecutive failures make a model unavailable,
WINDOW: Final = timedelta(minutes=2)  # within this time
MAX_MODELS_DOWN: Final = 3  # unavailable models make their provider unavailable, within the same time
MAX_NETWORK_ERRORS: Final = 2  # make a provider unavailable,
NETWORK_WINDOW: Final = timedelta(seconds=30)  # within this time
RECOVERY_TIME: Final = timedelta(minutes=5)  # without a call, then everything is tried again
CALLER_ERRORS: Final = frozenset({"cancelled", "context_overflow", "invalid_request"})


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A model or a provider became unavailable or recovered."""

    provider: str
    scope: Scope
    models_affected: tuple[str, ...]  # of the provider, as far as they were called
    is_available: bool
    trigger_reason: str
    downtime_seconds: float | None = None  # after a recovery

    @property
    def event_type(self) -> str:
        """The type of its event."""
        return "routing.provider_recovered" if self.is_available else "routing.provider_unavailable"

    def payload(self) -> dict[str, Any]:
        """The payload of its event."""
        payload: dict[str, Any] = {
            "provider": self.provider,
            "scope": self.scope,
            "models_affected": list(self.models_affected),
            "trigger_reason": self.trigger_reason,
        }
        if self.downtime_seconds is not None:
            payload["downtime_seconds"] = self.downtime_seconds
        return payload


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Call results of one model."""

    last_call: datetime
    failures: tuple[datetime, ...] = ()  # consecutive, newest last, at most five
    since: datetime | None = None  # the start of its unavailability


class ProviderHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Call results of all models of one provider."""

    last_call: datetime
    models: dict[str, ModelHealth] = {}
    network_errors: tuple[datetime, ...] = ()  # newest last
    since: datetime | None = None  # the start of the unavailability of the whole provider


class Availability(msgspec.Struct, frozen=True):
    """Call results of all providers. A provider without calls is available."""

    providers: dict[str, ProviderHealth] = {}

    def is_available(self, provider: str, model: str, now: datetime) -> bool:
        """Whether the model may be called."""
        health = self.providers.get(provider)
        if health is None:
            return True
        if health.since is not None and not _is_recovered(health.last_call, now):
            return False
        model_health = health.models.get(model)
        return model_health is None or model_health.since is None or _is_recovered(model_health.last_call, now)

    def with_call_result(
        self, provider: str, model: str, now: datetime, error_class: str | None = None
    ) -> tuple[Availability, tuple[Change, ...]]:
        """Return the availability after a call that succeeded or failed with a class of error, retries included."""
        fresh, changes = self.with_time(now)
        if error_class in CALLER_ERRORS:
            return fresh, changes
        health = fresh.providers.get(provider) or ProviderHealth(last_call=now)
        if error_class is None:
            after, more = _after_success(provider, health, model, now)
        else:
            after, more = _after_failure(provider, health, model, now, error_class)
        return Availability({**fresh.providers, provider: after}), (*changes, *more)

    def with_time(self, now: datetime) -> tuple[Availability, tuple[Change, ...]]:
        """Return the availability after providers and models without recent calls are reset."""
        changes: list[Change] = []
        providers: dict[str, ProviderHealth] = {}
        for provider, health in self.providers.items():
            providers[provider] = _recover(provider, health, now, changes)
        return (Availability(providers) if changes else self), tuple(changes)

    def consecutive_failures(self, provider: str, model: str) -> int:
        """Return the number of consecutive failures of a model, at most five."""
        health = self.providers.get(provider)
        model_health = health.models.get(model) if health is not None else None
        return len(model_health.failures) if model_health is not None else 0


def _is_recovered(last_call: datetime, now: datetime) -> bool:
    return now - last_call >= RECOVERY_TIME


def _after_success(
    provider: str, health: ProviderHealth, model: str, now: datetime
) -> tuple[ProviderHealth, tuple[Change, ...]]:
    changes = []
    model_health = health.models.get(model)
    if health.since is not None:
        changes.append(_make_recovered(provider, "provider_wide", tuple(sorted(health.models)), health.since, now))
    if model_health is not None and model_health.since is not None:
        changes.append(_make_recovered(provider, "model_specific", (model,), model_health.since, now))
    models = {**health.models, model: ModelHealth(last_call=now)}
    return ProviderHealth(last_call=now, models=models), tuple(changes)


def _after_failure(
    provider: str, health: ProviderHealth, model: str, now: datetime, error_class: str
) -> tuple[ProviderHealth, tuple[Change, ...]]:
    changes = []
    models = {**health.models, model: _add_failure(health.models.get(model), now)}
    before = health.models.get(model)
    if models[model].since is not None and (before is None or before.since is None):
        reason = f"{MAX_FAILURES} consecutive failures within {WINDOW.seconds} s, the last one {error_class}"
        changes.append(_make_unavailable(provider, "model_specific", (model,), reason))
    network = health.network_errors
    if error_class == "network":
        network = (*(at for at in network if now - at <= NETWORK_WINDOW), now)[-MAX_NETWORK_ERRORS:]
    provider_reason = _provider_failure_reason(models, network, now, error_class)
    since = health.since
    if provider_reason is not None and since is None:
        since = now
        changes.append(_make_unavailable(provider, "provider_wide", tuple(sorted(models)), provider_reason))
    return ProviderHealth(last_call=now, models=models, network_errors=network, since=since), tuple(changes)


def _add_failure(health: ModelHealth | None, now: datetime) -> ModelHealth:
    """Return a model after one more failure. A gap restarts the count."""
    before = health.failures if health is not None else ()
    if before and now - before[-1] > WINDOW:
        before = ()
    failures = (*before, now)[-MAX_FAILURES:]
    since = health.since if health is not None else None
    if since is None and len(failures) == MAX_FAILURES and now - failures[0] <= WINDOW:
        since = now
    return ModelHealth(last_call=now, failures=failures, since=since)


def _provider_failure_reason(
    models: dict[str, ModelHealth], network: tuple[datetime, ...], now: datetime, error_class: str
) -> str | None:
    """Return why a failure affects the whole provider, or ``None``."""
    if error_class == "auth":
        return "auth error"
    if error_class == "network" and len(network) == MAX_NETWORK_ERRORS:
        return f"{MAX_NETWORK_ERRORS} network errors within {NETWORK_WINDOW.seconds} s"
    down = [health for health in models.values() if health.since is not None and now - health.since <= WINDOW]
    return f"{len(down)} models unavailable within {WINDOW.seconds} s" if len(down) >= MAX_MODELS_DOWN else None


def _recover(provider: str, health: ProviderHealth, now: datetime, changes: list[Change]) -> ProviderHealth:
    if health.since is not None and _is_recovered(health.last_call, now):
        affected = tuple(sorted(health.models))
        changes.append(_make_recovered(provider, "provider_wide", affected, health.since, now, reason=_NO_CALLS))
        health = msgspec.structs.replace(health, since=None, network_errors=())
    for model, model_health in health.models.items():
        if model_health.since is not None and _is_recovered(model_health.last_call, now):
            changes.append(
                _make_recovered(provider, "model_specific", (model,), model_health.since, now, reason=_NO_CALLS)
            )
            health = msgspec.structs.replace(health, models={**health.models, model: ModelHealth(last_call=now)})
    return health


_NO_CALLS: Final = f"{RECOVERY_TIME.seconds} s without calls"


def _make_unavailable(provider: str, scope: Scope, models: tuple[str, ...], reason: str) -> Change:
    return Change(provider=provider, scope=scope, models_affected=models, is_available=False, trigger_reason=reason)


def _make_recovered(
    provider: str, scope: Scope, models: tuple[str, ...], since: datetime, now: datetime, *, reason: str = "success"
) -> Change:
    return Change(
        provider=provider,
        scope=scope,
        models_affected=models,
        is_available=True,
        trigger_reason=reason,
        downtime_seconds=(now - since).total_seconds(),
    )
