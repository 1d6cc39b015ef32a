"""The routing policy: rules, defaults and tiers of a file.

    read_policy(mapping, registry, home) -> Policy, or PolicyError with all problems

    schema_version: 1
    global_default: sonnet
    tiers: {fast: haiku, balanced: sonnet, deep: opus}
    pattern: {cost_weight: 0.05, min_confidence: 0.05, min_sample_size: 5}
    rules:
      - name: pictures
        when: {has_images: true}
        use: gemini:gemini-2.5-pro
    side_effects: {execute: [opus, sonnet]}
    workspaces:
      ~/shop:
        default: haiku
        rules: []

A workspace is an exact path. Its rules are evaluated before the global ones; its default, pattern and tiers replace the
global ones. Invariant: a file is accepted or rejected as a whole, and all problems are reported together.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.errors import PolicyError
from dragoman.exchange import SideEffects
from dragoman.routing.model_registry import TIERS, Registry
from dragoman.routing.pattern import PatternSettings
from dragoman.routing.predicates import Predicate, Problems, has_predicate, read_predicate

SCHEMA_VERSION: Final = 1

Tiers = dict[str, str]
Allowed = dict[str, tuple[str, ...]]  # the only models for tools with a side effect; without an entry, every model


class Rule(msgspec.Struct, frozen=True):
    """If ``when`` matches, use a model."""

    name: str
    when: Predicate
    use: str  # canonical model id


class WorkspacePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of one folder."""

    default: str | None = None
    pattern: PatternSettings | None = None
    tiers: Tiers | None = None
    rules: tuple[Rule, ...] = ()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy. It is empty without a file."""

    global_default: str | None = None
    pattern: PatternSettings = PatternSettings()
    tiers: Tiers | None = None
    rules: tuple[Rule, ...] = ()
    side_effects: Allowed = {}
    workspaces: dict[str, WorkspacePolicy] = {}
    warnings: tuple[str, ...] = ()

    def for_workspace(self, workspace_path: str) -> WorkspaceRules:
        """Return the policy for a workspace."""
        own = (
            self.workspaces.get(_normalize_path(workspace_path), _NO_WORKSPACE_POLICY)
            if workspace_path
            else _NO_WORKSPACE_POLICY
        )
        return WorkspaceRules(
            rules=(*own.rules, *self.rules),
            pattern=own.pattern or self.pattern,
            tiers=own.tiers if own.tiers is not None else self.tiers or {},
            workspace_default=own.default,
            global_default=self.global_default,
            side_effects=self.side_effects,
        )

    def with_default(self, model: str | None) -> Policy:
        """Return this policy with a global default if it has none."""
        return self if self.global_default is not None else msgspec.structs.replace(self, global_default=model)


class WorkspaceRules(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in effect in one workspace."""

    rules: tuple[Rule, ...]
    pattern: PatternSettings
    tiers: Tiers
    workspace_default: str | None
    global_default: str | None
    side_effects: Allowed = {}

    def uses_predicate(self, key: str) -> bool:
        """Whether a rule uses a predicate. Expensive facts are computed only then."""
        return any(has_predicate(rule.when, key) for rule in self.rules)


_NO_WORKSPACE_POLICY: Final = WorkspacePolicy()


def read_policy(document: Any, registry: Registry, *, home: str = "", origin: str = "routing policy") -> Policy:
    """Validate a document and return its policy; ``home`` replaces ~. ``PolicyError`` lists all problems."""
    reader = _PolicyReader(registry, home)
    policy = reader.read(document)
    if reader.problems.errors:
        raise PolicyError(tuple(reader.problems.errors), where=origin)
    return policy


def _normalize_path(path: str) -> str:
    return posixpath.normpath(path.replace("\\", "/"))


class _PolicyReader:
    """Validates one document."""

    def __init__(self, registry: Registry, home: str) -> None:
        self._registry = registry
        self._home = home
        self.problems = Problems()

    def read(self, document: Any) -> Policy:
        keys = ("schema_version", "global_default", "tiers", "pattern", "rules", "side_effects", "workspaces")
        root = self._mapping(document, "$", keys)
        if root is None:
            return Policy()
        version = root.get("schema_version")
        if type(version) is not int or version != SCHEMA_VERSION:
            self.problems.add("$.schema_version", f"{SCHEMA_VERSION} is expected, not {version!r}"[:120])
        return Policy(
            global_default=self._model(root.get("global_default"), "$.global_default", optional=True),
            pattern=self._pattern(root.get("pattern"), "$.pattern") or PatternSettings(),
            tiers=self._tiers(root.get("tiers"), "$.tiers"),
            rules=self._rules(root.get("rules"), "$.rules"),
            side_effects=self._side_effects(root.get("side_effects"), "$.side_effects"),
            workspaces=self._workspaces(root.get("workspaces")),
            warnings=tuple(self.problems.warnings),
        )

    def _side_effects(self, value: Any, where: str) -> Allowed:
        if value is None:
            return {}
        allowed: Allowed = {}
        for effect, models in (self._mapping(value, where, tuple(SideEffects)) or {}).items():
            if not isinstance(models, list):
                self.problems.add(f"{where}.{effect}", "a list of models is expected")
                continue
            found_models = [self._model(model, f"{where}.{effect}[{at}]") for at, model in enumerate(models)]
            allowed[effect] = tuple(model for model in found_models if model is not None)
        return allowed

    def _workspaces(self, value: Any) -> dict[str, WorkspacePolicy]:
        workspaces: dict[str, WorkspacePolicy] = {}
        for path, own in (self._mapping(value, "$.workspaces", None) or {}).items():
            where = f"$.workspaces.{path}"
            full = self._path(path, where)
            mapping = self._mapping(own, where, ("default", "pattern", "tiers", "rules")) or {}
            if full in workspaces:
                self.problems.add(where, "this workspace is there twice")
            workspaces[full] = WorkspacePolicy(
                default=self._model(mapping.get("default"), f"{where}.default", optional=True),
                pattern=self._pattern(mapping.get("pattern"), f"{where}.pattern"),
                tiers=self._tiers(mapping.get("tiers"), f"{where}.tiers"),
                rules=self._rules(mapping.get("rules"), f"{where}.rules"),
            )
        return workspaces

    def _path(self, path: str, where: str) -> str:
        full = self._home + path[1:] if path == "~" or path.startswith("~/") else path
        if not posixpath.isabs(full.replace("\\", "/")) and full[1:2] != ":":
            self.problems.add(where, "a workspace is an absolute path, or one that begins with ~/")
        return _normalize_path(full)

    def _rules(self, value: Any, where: str) -> tuple[Rule, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            self.problems.add(where, "a list of rules is expected")
            return ()
        rules = [self._rule(item, at, f"{where}[{at}]") for at, item in enumerate(value)]
        names: dict[str, int] = {}
        for at, rule in enumerate(rules):
            if rule is not None and names.setdefault(rule.name, at) != at:
                self.problems.add(f"{where}[{at}].name", f"{rule.name!r} is the name of {where}[{names[rule.name]}]")
        return tuple(rule for rule in rules if rule is not None)

    def _rule(self, value: Any, at: int, where: str) -> Rule | None:
        mapping = self._mapping(value, where, ("name", "when", "use"))
        if mapping is None:
            return None
        name = mapping.get("name")
        if name is None:
            name = f"rule_{at}"
        elif not isinstance(name, str) or not name.strip():
            self.problems.add(f"{where}.name", "a text is expected")
            name = f"rule_{at}"
        use = self._model(mapping.get("use"), f"{where}.use")
        when = read_predicate(mapping.get("when"), f"{where}.when", self.problems)
        return Rule(name, when, use) if when is not None and use is not None else None

    def _model(self, value: Any, where: str, *, optional: bool = False) -> str | None:
        if value is None and optional:
            return None
        if not isinstance(value, str) or not value:
            self.problems.add(where, "the id or the alias of a model is expected")
            return None
        model = self._registry.find(value)
        if model is None:
            self.problems.add(where, f"no model {value!r}")
            return None
        if not self._registry.is_configured(model):
            self.problems.warn(where, f"{model.id} cannot be called here: {model.provider} has no key")
        elif not model.is_declared:
            self.problems.warn(where, f"{model.id} is not in the catalog; the defaults of its provider apply")
        return model.id

    def _tiers(self, value: Any, where: str) -> Tiers | None:
        if value is None:
            return None
        mapping = self._mapping(value, where, TIERS)
        if mapping is None:
            return None
        missing = [tier for tier in TIERS if tier not in mapping]
        if missing:
            self.problems.add(where, f"all of {', '.join(TIERS)} are needed; {', '.join(missing)} is missing")
        models = {tier: self._model(mapping[tier], f"{where}.{tier}") for tier in TIERS if tier in mapping}
        return {tier: model for tier, model in models.items() if model is not None}

    def _pattern(self, value: Any, where: str) -> PatternSettings | None:
        if value is None:
            return None
        mapping = self._mapping(value, where, ("enabled", "cost_weight", "min_confidence", "min_sample_size"))
        settings: dict[str, Any] = {}
        for name, setting in (mapping or {}).items():
            if name == "enabled":
                fits, what = type(setting) is bool, "true or false is expected"
            elif name == "min_sample_size":
                fits, what = type(setting) is int and setting >= 1, "a whole number from 1 is expected"
            else:
                fits, what = type(setting) in (int, float) and 0 <= setting <= 1, "a number from 0 to 1 is expected"
            if fits:
                settings[name] = setting
            else:
                self.problems.add(f"{where}.{name}", what)
        return PatternSettings(**settings)

    def _mapping(self, value: Any, where: str, keys: tuple[str, ...] | None) -> Mapping[str, Any] | None:
        """Return a mapping with text keys; with ``keys``, only these are allowed."""
        if value is None and where != "$" and keys is None:
            return None
        if not isinstance(value, Mapping):
            self.problems.add(where, "a mapping is expected")
            return None
        for key in value:
            if not isinstance(key, str):
                self.problems.add(where, f"the key {key!r} is not a text")
            elif keys is not None and key not in keys:
                self.problems.add(f"{where}.{key}", f"no such key; there are {', '.join(keys)}")
        return {key: item for key, item in value.items() if isinstance(key, str) and (keys is None or key in keys)}
