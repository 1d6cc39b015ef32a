"""Which model answers a turn, and why: seven slots are asked in a fixed order, and the first valid candidate wins.

    facts_of(history, content, …)     what is known of the turn
    read_policy(document, registry)   what somebody wrote down about it
    decide(facts, policy, registry)   the decision, with every slot that was asked and its reason

Everything comes in as values: the message, what is known of the history, the policy, the models with what they can do,
who is reachable, what worked before, the time. The one rule: what a person chose explicitly is taken or refused, and
never replaced by something else without a word.
"""

from __future__ import annotations

from dragoman.routing.availability import Availability, Change
from dragoman.routing.chain import SLOTS, ChainEntry, Decision, RoutingRejection, decide
from dragoman.routing.facts import Requirements, TurnFacts, collect_facts
from dragoman.routing.model_registry import TIERS, Registry
from dragoman.routing.override import Override, read_override
from dragoman.routing.pattern import Fingerprint, PatternSample, PatternSettings, make_fingerprint, recommend
from dragoman.routing.policy import Policy, Rule, WorkspacePolicy, read_policy
from dragoman.routing.predicates import PREDICATES
from dragoman.routing.sticky import Sticky
from dragoman.routing.validation import FAILURES, validation_failure

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
    "Sticky",
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
