"""Every event type of the catalogue has a module that emits it, or a reason why nothing here can cause it."""

from __future__ import annotations

import re

import pytest

from dragoman.bus import EVENT_TYPES
from tests.conftest import ROOT

SOURCE = ROOT / "src" / "dragoman"
EMITTERS = {
    "bus.gap_detected": "bus/bus.py",
    "bus.subscriber_registered": "bus/bus.py",
    "bus.subscriber_unregistered": "bus/bus.py",
    "delegate.completed": "turn/delegation.py",
    "delegate.failed": "turn/delegation.py",
    "delegate.started": "turn/delegation.py",
    "eval.completed": "turn/events.py",
    "eval.failed": "server/mail/evaluations.py",
    "eval.started": "turn/events.py",
    "feedback.explicit": "cli/trace.py",
    "feedback.implicit": "server/chat/swap.py",
    "gateway.auth_failed": "server/app.py",
    "gateway.key_issued": "cli/keys.py",
    "gateway.key_revoked": "cli/keys.py",
    "gateway.quota_exceeded": "server/runs/registry.py",
    "llm.call_completed": "turn/calling.py",
    "llm.call_failed": "turn/calling.py",
    "llm.call_started": "turn/calling.py",
    "pattern.matched": "turn/events.py",
    "pattern.override_dismissed": "turn/events.py",
    "pattern.recorded": "turn/events.py",
    "provider.degraded": "turn/agent.py",
    "route.decided": "turn/start.py",
    "route.overridden": "turn/events.py",
    "routing.policy_invalid": "turn/agent.py",
    "routing.provider_recovered": "routing/availability.py",
    "routing.provider_unavailable": "routing/availability.py",
    "routing_constraint_failure": "turn/swap.py",
    "session.created": "turn/events.py",
    "session.ended": "turn/events.py",
    "session.resumed": "turn/events.py",
    "tool.called": "tools/dispatch.py",
    "tool.completed": "tools/dispatch.py",
    "tool.completed_late": "turn/tool_calls.py",
    "tool.confirmation_requested": "tools/dispatch.py",
    "tool.confirmation_resolved": "tools/dispatch.py",
    "tool.failed": "tools/dispatch.py",
    "tool_input_invalid": "tools/dispatch.py",
    "trace.swept": "bus/trace_writer.py",
    "turn.cancelled": "turn/finish.py",
    "turn.completed": "turn/finish.py",
    "turn.failed": "turn/finish.py",
    "turn.started": "turn/start.py",
    "usage.repaired": "store/usage_repair.py",
}
NOT_CAUSED = {  # docs/events.md says why
    *("skill.loaded", "skill.created", "memory.updated", "memory.eviction"),
    *("pattern.evicted", "gateway.key_rotated", "quota.alert"),
}


def test_every_type_has_an_emitter_or_is_caused_by_nothing_here() -> None:
    assert set(EVENT_TYPES) - set(EMITTERS) == NOT_CAUSED
    assert set(EMITTERS) <= set(EVENT_TYPES)


@pytest.mark.parametrize("name", sorted(EMITTERS))
def test_the_module_that_emits_a_type_makes_its_payload_or_names_it(name: str) -> None:
    text = (SOURCE / EMITTERS[name]).read_text("utf-8")
    assert re.search(rf"\b{EVENT_TYPES[name].__name__}\(|[\"']{re.escape(name)}[\"']", text)


def test_the_types_that_nothing_causes_are_named_in_the_documentation() -> None:
    told = (ROOT / "docs" / "events.md").read_text("utf-8").partition("## Who emits what")[2]
    assert all(f"`{name}`" in told for name in NOT_CAUSED)
