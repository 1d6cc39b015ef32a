"""Models by name, and which of them can be called.

Invariant: a name identifies one model. A conflicting alias is rejected when the registry is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dragoman.errors import FormatError, UnknownModelError

if TYPE_CHECKING:
    from dragoman.catalog import Catalog, Model

TIERS: Final = ("fast", "balanced", "deep")


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
        for alias, name in (aliases or {}).items():
            model = self.find(name)
            if model is None:
                raise FormatError(f"no model {name!r} for the alias {alias!r}", code="invalid_catalog")
            taken = self.find(alias)
            if taken is not None and taken.id != model.id:
                raise FormatError(f"the alias {alias!r} is taken by {taken.id!r}", code="invalid_catalog")
            self._aliases[alias] = model.id

    def find(self, name: str) -> Model | None:
        """Return the model with that id or alias, or ``None``."""
        try:
            return self.catalog.model(self._aliases.get(name, name))
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
