"""Choose the model for a turn: seven slots in a fixed order, the first valid candidate wins.

    collect_facts(history, content, …)   facts about the turn
    read_policy(document, registry)      validate a policy
    decide(facts, policy, registry)      the decision, with every evaluated slot and its reason

All functions are pure: message, history, policy, models, availability, evaluations and time are arguments. Invariant:
an explicit choice of the user is used or rejected, never replaced.
"""

from __future__ import annotations

from dragoman.routing.chain import FAILURES, SLOTS, ChainEntry, Decision, RoutingRejection, decide, validation_failure
from dragoman.routing.facts import Override, Requirements, TurnFacts, collect_facts, read_override
from dragoman.routing.model_registry import TIERS, Availability, Change, Registry
from dragoman.routing.pattern import Fingerprint, PatternSample, PatternSettings, make_fingerprint, recommend
from dragoman.routing.policy import Policy, Rule, WorkspacePolicy, read_policy
from dragoman.routing.predicates import PREDICATES

__all__ = [
    "FAILURES",
    "PREDICATES",
    "SLOTS",
    "TIERS",
    "Availability",
    "ChainEntry",
    "Change",
    "Decision",
    "Fingerprint",
    "Override",
    "PatternSample",
    "PatternSettings",
    "Policy",
    "Registry",
    "Requirements",
    "RoutingRejection",
    "Rule",
    "TurnFacts",
    "WorkspacePolicy",
    "collect_facts",
    "decide",
    "make_fingerprint",
    "read_override",
    "read_policy",
    "recommend",
    "validation_failure",
]
