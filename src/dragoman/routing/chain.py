"""The routing chain: seven slots in a fixed order. The first candidate that passes every gate answers the turn.

    decide(facts, policy, registry, availability=…, samples=…) -> Decision

    per_message_override    @model in the message, or an explicit model
    manual_sticky           /model, until it is cleared
    rule                    the first matching rule of the policy
    pattern                 the best model on similar turns
    delegate_request        the tier of a delegation
    workspace_default
    global_default

A slot without a candidate is not applicable. A candidate that fails a gate is rejected, and the next slot is evaluated.
The chain ends with the winner. Invariant: an explicit choice of the user is used or rejected; a rejection names the
model that the chain would have chosen.

``validation_failure`` checks the gates in a fixed order, each only if the turn requires the capability. Thinking is
never a gate.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from dragoman.errors import RoutingConstraintError, RoutingFailedError
from dragoman.message import ContentBlock, RoutingDecisionRecord, RoutingMode
from dragoman.routing.facts import Override, TurnFacts, read_override
from dragoman.routing.model_registry import Availability, Registry
from dragoman.routing.pattern import PatternAlternative, PatternSample, recommend
from dragoman.routing.policy import Policy, WorkspaceRules
from dragoman.routing.predicates import holds

if TYPE_CHECKING:
    from dragoman.catalog import AdapterCapabilities, Model

Slot = Literal[
    "per_message_override",
    "manual_sticky",
    "rule",
    "pattern",
    "delegate_request",
    "workspace_default",
    "global_default",
]
Verdict = Literal["not_applicable", "deferred", "rejected", "chose"]  # deferred is reserved
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

_MODES: Final[dict[Slot, RoutingMode]] = {
    "per_message_override": RoutingMode.OVERRIDE,
    "manual_sticky": RoutingMode.MANUAL,
    "rule": RoutingMode.RULE,
    "pattern": RoutingMode.PATTERN,
    "delegate_request": RoutingMode.DELEGATE,
    "workspace_default": RoutingMode.DEFAULT,
    "global_default": RoutingMode.DEFAULT,
}
SLOTS: Final = tuple(_MODES)
EXPLICIT: Final = ("per_message_override", "manual_sticky")  # choices of the user


class ChainEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One slot of the routing chain and its verdict."""

    policy: Slot  # name of the slot
    verdict: Verdict  # result of the slot
    reason: str  # reason for the verdict
    candidate_model: str | None = None  # model that the slot proposed
    rule_name: str | None = None  # rule that matched
    confidence: Share | None = None  # confidence of the pattern
    pattern_alternatives: tuple[PatternAlternative, ...] | None = None  # models of the pattern, the best first
    validation_failure: str | None = None  # reason why the candidate was rejected


class RoutingRejection(msgspec.Struct, frozen=True, kw_only=True):
    """Why no model answers."""

    code: Literal["routing_failed", "routing_constraint_failure"]
    source: Slot | None = None  # slot of the rejected choice
    model: str | None = None
    validation_failure: str | None = None
    detail: str | None = None  # the missing requirement and what to do
    would_fall_back_to: str | None = None  # the choice of the later slots
    alternative_providers_configured: tuple[str, ...] = ()  # if every slot was evaluated

    def payload(self) -> dict[str, Any]:
        """The payload of ``routing_constraint_failure``."""
        return {
            "source": self.source,
            "model": self.model,
            "validation_failure": self.validation_failure,
            "would_fall_back_to": self.would_fall_back_to,
        }


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen model and every evaluated slot."""

    chosen_model: str  # canonical id; empty if no model can answer
    winner_index: int  # in the chain; -1 if no model can answer
    chain: tuple[ChainEntry, ...]
    facts: TurnFacts  # the facts of the decision; the message without its @model
    record: RoutingDecisionRecord | None = None  # for the metadata of the answer
    alternative: ChainEntry | None = None  # the choice of the later slots, if the user chose explicitly
    rejection: RoutingRejection | None = None

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The message without the @model."""
        return self.facts.content

    @property
    def text(self) -> str:
        """The text of the message without the @model."""
        return self.facts.text

    @property
    def gate_failures(self) -> tuple[dict[str, Any], ...]:
        """The rejected candidates with slot and reason."""
        return tuple(
            {
                "model": entry.candidate_model,
                "policy": entry.policy,
                "rule_name": entry.rule_name,
                "reason": entry.validation_failure,
            }
            for entry in self.chain
            if entry.verdict == "rejected"
        )

    def is_rejected_for(self, failure: str) -> bool:
        """Whether no model can answer, and a candidate failed this gate."""
        return self.rejection is not None and any(entry.validation_failure == failure for entry in self.chain)

    def payload(self, elapsed_ms: float) -> dict[str, Any]:
        """The payload of ``route.decided``, which is emitted once per turn, also for a rejection."""
        return {
            "chosen_model": self.chosen_model,
            "winner_index": self.winner_index,
            "elapsed_ms": elapsed_ms,
            "chain": msgspec.json.decode(msgspec.json.encode(self.chain)),
        }

    def raise_if_rejected(self) -> None:
        """Raise ``RoutingConstraintError`` for a rejected choice, ``RoutingFailedError`` if no model can answer."""
        rejection = self.rejection
        if rejection is None:
            return
        if rejection.code == "routing_failed":
            raise RoutingFailedError(self.gate_failures, rejection.alternative_providers_configured, rejection.detail)
        raise RoutingConstraintError(
            f"Cannot use {rejection.model}: {rejection.detail or FAILURES[str(rejection.validation_failure)]}",
            source=str(rejection.source),
            model=str(rejection.model),
            validation_failure=str(rejection.validation_failure),
            would_fall_back_to=rejection.would_fall_back_to,
        )


def decide(
    facts: TurnFacts,
    policy: Policy,
    registry: Registry,
    *,
    availability: Availability | None = None,
    samples: Sequence[PatternSample] = (),
) -> Decision:
    """Choose the model for all calls of a turn.

    A message with an unknown model, or with a model and nothing else, raises before any slot is evaluated. Otherwise a
    decision is returned, also for a rejection, so that it can be emitted before ``raise_if_rejected`` is called.

    A model whose context window holds the whole history is preferred. If the choice is rejected because of the window,
    the slots are evaluated again for the newest turn alone: older turns are left out of the request.
    """
    if facts.may_name_model:
        override = read_override(facts.content, registry, facts.override)
    else:
        override = Override(read_override((), registry, facts.override).model, facts.content)
    facts = msgspec.structs.replace(facts, content=override.content, override=override.model)
    decision = _evaluate(facts, policy, registry, availability or Availability(), samples)
    if facts.least_input_tokens is None or not decision.is_rejected_for("exceeds_context_window"):
        return decision
    facts = msgspec.structs.replace(facts, may_omit_turns=True)
    return _evaluate(facts, policy, registry, availability or Availability(), samples)


def _evaluate(
    facts: TurnFacts,
    policy: Policy,
    registry: Registry,
    reachable: Availability,
    samples: Sequence[PatternSample],
) -> Decision:
    """Evaluate the slots in order."""
    rules = policy.for_workspace(facts.workspace_path)
    proposals = _propose(facts, rules, registry, samples)
    entries = (_validate_candidate(entry, facts, rules, registry, reachable) for entry in proposals)
    chain: list[ChainEntry] = []
    for entry in entries:
        chain.append(entry)
        if entry.verdict == "chose":
            remaining = entries if entry.policy in EXPLICIT else ()
            return _make_decision(chain, facts, next((later for later in remaining if later.verdict == "chose"), None))
        if entry.verdict == "rejected" and entry.policy in EXPLICIT:
            alternative = next((later.candidate_model for later in entries if later.verdict == "chose"), None)
            return _make_rejection(chain, alternative, facts, registry)
    missing = (entry.candidate_model for entry in chain if entry.validation_failure == "not_configured")
    rejection = RoutingRejection(
        code="routing_failed",
        detail=next((reason for name in missing if (reason := registry.unreachable_reason(name or ""))), None),
        alternative_providers_configured=tuple(sorted(registry.configured)),
    )
    return Decision(chosen_model="", winner_index=-1, chain=tuple(chain), facts=facts, rejection=rejection)


def _make_decision(chain: list[ChainEntry], facts: TurnFacts, fallback: ChainEntry | None) -> Decision:
    winner = chain[-1]
    model = winner.candidate_model or ""
    considered = [entry.candidate_model for entry in chain[:-1] if entry.candidate_model]
    considered += [alternative.model for entry in chain for alternative in entry.pattern_alternatives or ()]
    record = RoutingDecisionRecord(
        mode=_MODES[winner.policy],
        chosen_model=model,
        reason=winner.reason,
        rule_name=winner.rule_name,
        confidence=winner.confidence,
        alternatives_considered=tuple(dict.fromkeys(name for name in considered if name != model)),
    )
    return Decision(
        chosen_model=model,
        winner_index=len(chain) - 1,
        chain=tuple(chain),
        facts=facts,
        record=record,
        alternative=fallback,
    )


def _make_rejection(chain: list[ChainEntry], alternative: str | None, facts: TurnFacts, registry: Registry) -> Decision:
    entry = chain[-1]
    is_missing = entry.validation_failure == "not_configured"
    rejection = RoutingRejection(
        code="routing_constraint_failure",
        source=entry.policy,
        model=entry.candidate_model,
        validation_failure=entry.validation_failure,
        detail=registry.unreachable_reason(entry.candidate_model or "") if is_missing else None,
        would_fall_back_to=alternative,
    )
    return Decision(chosen_model="", winner_index=-1, chain=tuple(chain), facts=facts, rejection=rejection)


def _validate_candidate(
    entry: ChainEntry, facts: TurnFacts, rules: WorkspaceRules, registry: Registry, availability: Availability
) -> ChainEntry:
    """Check the candidate of a slot against the gates."""
    if entry.candidate_model is None:
        return entry
    failure = validation_failure(entry.candidate_model, facts, registry, availability, rules.side_effects)
    if failure is None:
        return entry
    return msgspec.structs.replace(entry, verdict="rejected", validation_failure=failure)


# --- the slots -------------------------------------------------------------------------------------------------------


def _propose(
    facts: TurnFacts, rules: WorkspaceRules, registry: Registry, samples: Sequence[PatternSample]
) -> Iterator[ChainEntry]:
    """Yield the candidate of each slot, lazily."""
    yield _slot("per_message_override", facts.override, "per-message @model override", "no @model in message")
    sticky = _canonical(facts.sticky, registry)
    yield _slot("manual_sticky", sticky, "session sticky model (/model)", "no sticky model set")
    yield _propose_rule(facts, rules)
    yield _propose_pattern(facts, rules, samples)
    tier = _tier_model(facts.delegate_tier, rules, registry)
    absent = "not a delegation re-entry"
    if facts.delegate_tier is not None:
        absent = f"no model for tier {facts.delegate_tier!r}"
    yield _slot("delegate_request", tier, "delegate() tier resolution", absent)
    yield _slot("workspace_default", rules.workspace_default, "workspace default", "no workspace default configured")
    default = _canonical(rules.global_default, registry)
    yield _slot("global_default", default, "global default fallback", "no global default configured")


@functools.lru_cache(maxsize=256)  # most turns have equal slots
def _slot(policy: Slot, candidate: str | None, reason: str, absent: str) -> ChainEntry:
    if candidate is None:
        return ChainEntry(policy=policy, verdict="not_applicable", reason=absent)
    return ChainEntry(policy=policy, verdict="chose", reason=reason, candidate_model=candidate)


def _canonical(name: str | None, registry: Registry) -> str | None:
    """Return the id of a model. An unknown name stays and fails at the first gate."""
    model = registry.find(name) if name else None
    return model.id if model is not None else name


def _propose_rule(facts: TurnFacts, rules: WorkspaceRules) -> ChainEntry:
    if not rules.rules:
        return _slot("rule", None, "", "no rules configured")
    match = next((rule for rule in rules.rules if holds(rule.when, facts)), None)
    if match is None:
        return _slot("rule", None, "", "no rule matched this turn")
    entry = _slot("rule", match.use, f"matched rule '{match.name}'", "")
    return msgspec.structs.replace(entry, rule_name=match.name)


def _propose_pattern(facts: TurnFacts, rules: WorkspaceRules, samples: Sequence[PatternSample]) -> ChainEntry:
    settings = rules.pattern
    if not settings.enabled:
        return _slot("pattern", None, "", "pattern is switched off")
    recommendation = recommend(facts.fingerprint(), samples, settings) if samples else None
    if recommendation is None:
        return _slot("pattern", None, "", "no evaluations recorded")
    best, confidence = recommendation.best, recommendation.confidence
    size = f"{best.sample_size} sample{'' if best.sample_size == 1 else 's'}"
    reason = f"did best on similar turns ({size}, confidence {confidence:.2f})"
    fields = {"confidence": confidence, "pattern_alternatives": recommendation.ranked}
    if best.sample_size < settings.min_sample_size:
        entry = _slot("pattern", None, "", f"{size}, fewer than the {settings.min_sample_size} required")
    elif confidence < settings.min_confidence:
        entry = _slot("pattern", None, "", f"confidence {confidence:.2f} is below {settings.min_confidence}")
    else:
        entry = _slot("pattern", best.model, reason, "")
    return msgspec.structs.replace(entry, **fields)


def _tier_model(tier: str | None, rules: WorkspaceRules, registry: Registry) -> str | None:
    if tier is None:
        return None
    if tier in rules.tiers:
        return rules.tiers[tier]
    model = registry.find_by_tier(tier)
    return model.id if model is not None else None


# --- gates ---------------------------------------------------------------------------------------------------------

# In the order of the checks; the text follows "Cannot use <model>: ".
FAILURES: Final = {
    "not_configured": "no such model is set up here, or its provider has no key",
    "provider_unavailable": "its provider is failing at the moment",
    "no_vision_support": "session contains images that this model can't process",
    "exceeds_context_window": "the question is longer than this model accepts",
    "no_tool_support": "session uses tools, and this model does not support tools",
    "no_system_prompt_support": "session has a system prompt, which this model does not support",
    "no_structured_output_support": "the answer has to fit a schema, and this model promises none",
    "no_audio_support": "session contains audio that this model can't process",
    "side_effects_not_allowed": "the policy lets only other models use tools with these side effects",
}


def validation_failure(
    name: str,
    facts: TurnFacts,
    registry: Registry,
    availability: Availability,
    allowed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str | None:
    """Return the first gate that the model fails, or ``None``.

    ``allowed`` are the only models that may use tools with a side effect, by side effect.
    """
    model = registry.find(name)
    if model is None or not registry.is_configured(model):
        return "not_configured"
    if not availability.is_available(model.provider, model.id, facts.now):
        return "provider_unavailable"
    return _missing_capability(model, facts) or _forbidden_effect(model, facts, allowed)


def _forbidden_effect(model: Model, facts: TurnFacts, allowed: Mapping[str, Sequence[str]]) -> str | None:
    is_forbidden = any(model.id not in allowed.get(effect, (model.id,)) for effect in facts.offered_side_effects)
    return "side_effects_not_allowed" if is_forbidden else None


def _missing_capability(model: Model, facts: TurnFacts) -> str | None:
    can, needs = model.capabilities, facts.needs
    gates = (
        (needs.images and not _takes_images(can, needs.image_types), "no_vision_support"),
        (facts.minimum_input_tokens > can.max_context_tokens, "exceeds_context_window"),
        (needs.tools and not can.supports_tools, "no_tool_support"),
        (needs.system_prompt and not can.supports_system_prompt, "no_system_prompt_support"),
        (needs.structured_output and not _gives_structured_output(can), "no_structured_output_support"),
        (needs.audio and not can.supports_audio, "no_audio_support"),
    )
    return next((name for fails, name in gates if fails), None)


def _gives_structured_output(can: AdapterCapabilities) -> bool:
    """Whether the answer can have a schema: by the model's own format, or as the input of a tool."""
    return can.supports_structured_output or can.supports_tools


def _takes_images(can: AdapterCapabilities, types: tuple[str, ...]) -> bool:
    accepted = can.accepted_image_media_types
    return can.supports_images and (not accepted or set(types) <= {*accepted, "image/*"})
