"""Tests of the routing chain with its seven slots."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import catalog
from dragoman.errors import PolicyError, RoutingConstraintError, RoutingFailedError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import (
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.routing import (
    FAILURES,
    SLOTS,
    Availability,
    Decision,
    PatternSample,
    Policy,
    Registry,
    Requirements,
    collect_facts,
    decide,
    validation_failure,
)
from tests.routing.models import CATALOG, IMAGE, NOW, REGISTRY, policy, turn

RULES = [{"name": "bugs", "when": {"message_matches": "(?i)bug"}, "use": "deep"}]
DEFAULTS = {"global_default": "big", "workspaces": {"/shop": {"default": "quick"}}}


def make_unavailable(model: str) -> Availability:
    """Return the availability after that model rejected a key."""
    provider = model.partition(":")[0]
    return Availability().with_call_result(provider, model, NOW, "auth")[0]


def samples(model: str, success: float = 1.0, size: int = 5) -> list[PatternSample]:
    return [
        PatternSample(fingerprint=turn("hello").fingerprint(), primary_model=model, success=success, sample_size=size)
    ]


# --- order -----------------------------------------------------------------------------------------------------------


def test_seven_slots_have_a_fixed_order() -> None:
    assert SLOTS == (
        "per_message_override",
        "manual_sticky",
        "rule",
        "pattern",
        "delegate_request",
        "workspace_default",
        "global_default",
    )


def make_full_turn() -> dict[str, Any]:
    """Return a turn for which every slot has its own candidate, as far as there are models."""
    return {
        "facts": turn("@big a bug", sticky="text", delegate_tier="fast", workspace_path="/shop"),
        "policy": policy(DEFAULTS, rules=RULES, tiers={"fast": "mute", "balanced": "big", "deep": "deep"}),
        "samples": samples("bolt:quick"),
    }


REMOVALS: list[tuple[str, dict[str, Any], str, RoutingMode, str]] = [
    ("per_message_override", {}, "acme:big", RoutingMode.OVERRIDE, "per-message @model override"),
    (
        "manual_sticky",
        {"content": (TextBlock("a bug"),)},
        "acme:text",
        RoutingMode.MANUAL,
        "session sticky model (/model)",
    ),
    ("rule", {"sticky": None}, "bolt:deep", RoutingMode.RULE, "matched rule 'bugs'"),
    (
        "pattern",
        {"content": (TextBlock("hello"),)},
        "bolt:quick",
        RoutingMode.PATTERN,
        "did best on similar turns (5 samples, confidence 1.00)",
    ),
    ("delegate_request", {"samples": []}, "acme:mute", RoutingMode.DELEGATE, "delegate() tier resolution"),
    ("workspace_default", {"delegate_tier": None}, "bolt:quick", RoutingMode.DEFAULT, "workspace default"),
    ("global_default", {"workspace_path": "/other"}, "acme:big", RoutingMode.DEFAULT, "global default fallback"),
]


@pytest.mark.parametrize("count", range(len(REMOVALS)), ids=[slot for slot, *_ in REMOVALS])
def test_slot_decides_if_earlier_slots_do_not_apply(count: int) -> None:
    facts, rules, known = (make_full_turn()[name] for name in ("facts", "policy", "samples"))
    for _, changes, *_ in REMOVALS[: count + 1]:
        known = changes.get("samples", known)
        facts = msgspec.structs.replace(facts, **{k: v for k, v in changes.items() if k != "samples"})
    decision = decide(facts, rules, REGISTRY, samples=known)
    slot, _, model, mode, reason = REMOVALS[count]
    assert decision.chosen_model == model
    assert decision.winner_index == count
    assert [entry.policy for entry in decision.chain] == list(SLOTS[: count + 1])
    assert decision.chain[-1].policy == slot
    assert decision.record is not None
    assert (decision.record.mode, decision.record.chosen_model, decision.record.reason) == (mode, model, reason)


def test_slot_without_a_candidate_has_a_reason() -> None:
    decision = decide(turn("hello"), Policy(), REGISTRY)
    assert [(entry.verdict, entry.reason) for entry in decision.chain] == [
        ("not_applicable", "no @model in message"),
        ("not_applicable", "no sticky model set"),
        ("not_applicable", "no rules configured"),
        ("not_applicable", "no evaluations recorded"),
        ("not_applicable", "not a delegation re-entry"),
        ("not_applicable", "no workspace default configured"),
        ("not_applicable", "no global default configured"),
    ]
    assert all(entry.candidate_model is None for entry in decision.chain)
    assert decide(turn("hello"), policy(rules=RULES), REGISTRY).chain[2].reason == "no rule matched this turn"


def test_rejected_candidate_continues_with_the_next_slot_and_is_recorded() -> None:
    rules = [{"name": "lost", "when": {"has_images": False}, "use": "gone"}]
    decision = decide(turn("hello", workspace_path="/shop"), policy(DEFAULTS, rules=rules), REGISTRY)
    rejected = decision.chain[2]
    assert (rejected.verdict, rejected.candidate_model) == ("rejected", "ghost:gone")
    assert (rejected.rule_name, rejected.validation_failure) == ("lost", "not_configured")
    assert decision.chosen_model == "bolt:quick"
    assert decision.record == RoutingDecisionRecord(
        mode=RoutingMode.DEFAULT,
        chosen_model="bolt:quick",
        reason="workspace default",
        alternatives_considered=("ghost:gone",),
    )


def test_record_of_a_rule_has_its_name() -> None:
    decision = decide(turn("a bug"), policy(rules=RULES), REGISTRY)
    assert decision.record == RoutingDecisionRecord(
        mode=RoutingMode.RULE, chosen_model="bolt:deep", reason="matched rule 'bugs'", rule_name="bugs"
    )


def test_record_of_a_pattern_has_confidence_and_alternatives() -> None:
    both = [*samples("bolt:quick"), *samples("acme:big", success=0.5)]
    decision = decide(turn("hello"), Policy(), REGISTRY, samples=both)
    assert decision.record is not None
    assert decision.record.mode is RoutingMode.PATTERN
    assert decision.record.confidence == pytest.approx(0.5)
    assert decision.record.alternatives_considered == ("acme:big",)
    alternatives = decision.chain[-1].pattern_alternatives
    assert alternatives is not None
    assert [(row.model, row.sample_size) for row in alternatives] == [("bolt:quick", 5), ("acme:big", 5)]


@pytest.mark.parametrize(
    ("known", "settings", "reason"),
    [
        (samples("bolt:quick", size=4), {}, "4 samples, fewer than the 5 required"),
        ([*samples("bolt:quick"), *samples("acme:big", 0.98)], {}, "confidence 0.02 is below 0.05"),
        (samples("bolt:quick"), {"enabled": False}, "pattern is switched off"),
    ],
)
def test_uncertain_pattern_is_not_applicable(known: list[PatternSample], settings: dict[str, Any], reason: str) -> None:
    decision = decide(turn("hello"), policy(DEFAULTS, pattern=settings), REGISTRY, samples=known)
    assert (decision.chain[3].verdict, decision.chain[3].reason) == ("not_applicable", reason)
    assert decision.chosen_model == "acme:big"


def test_sticky_model_disables_rules() -> None:
    decision = decide(turn("a bug", sticky="big"), policy(rules=RULES), REGISTRY)
    assert decision.chosen_model == "acme:big"
    assert len(decision.chain) == 2


# --- explicit choices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "sticky", "source"),
    [(("@text look", IMAGE), None, "per_message_override"), (("look", IMAGE), "text", "manual_sticky")],
)
def test_unusable_choice_is_rejected_with_its_fallback(parts: tuple[Any, ...], sticky: str | None, source: str) -> None:
    decision = decide(turn(*parts, sticky=sticky), policy(DEFAULTS), REGISTRY)
    assert (decision.chosen_model, decision.winner_index, decision.record) == ("", -1, None)
    assert decision.chain[-1].verdict == "rejected"
    assert decision.chain[-1].validation_failure == "no_vision_support"
    with pytest.raises(RoutingConstraintError) as caught:
        decision.raise_if_rejected()
    assert caught.value.code == "routing_constraint_failure"
    assert caught.value.details == {
        "source": source,
        "model": "acme:text",
        "validation_failure": "no_vision_support",
        "would_fall_back_to": "acme:big",
    }
    assert decision.rejection is not None
    assert decision.rejection.payload() == caught.value.details
    assert str(caught.value).startswith(
        "Cannot use acme:text: session contains images that this model can't process. Active model unchanged."
    )


def test_fallback_of_a_rejected_override_is_the_sticky_model() -> None:
    decision = decide(turn("@gone hello", sticky="quick"), policy(DEFAULTS), REGISTRY)
    assert decision.rejection is not None
    assert decision.rejection.would_fall_back_to == "bolt:quick"
    assert [entry.policy for entry in decision.chain] == ["per_message_override"]


def test_rejected_choice_without_a_fallback_has_no_suggestion() -> None:
    decision = decide(turn("hello", sticky="gone"), Policy(), REGISTRY)
    with pytest.raises(RoutingConstraintError, match=r"Choose another model$") as caught:
        decision.raise_if_rejected()
    assert caught.value.would_fall_back_to is None


def test_unknown_sticky_model_is_rejected_as_not_configured() -> None:
    decision = decide(turn("hello", sticky="vanished:model"), policy(DEFAULTS), REGISTRY)
    assert decision.rejection is not None
    assert (decision.rejection.model, decision.rejection.validation_failure) == ("vanished:model", "not_configured")


# --- no model --------------------------------------------------------------------------------------------------------


def test_decision_without_a_model_reports_the_whole_chain_and_raises() -> None:
    rules = [{"when": {"has_images": True}, "use": "text"}]
    document = {"global_default": "gone", "workspaces": {"/shop": {"default": "text"}}}
    decision = decide(turn("look", IMAGE, workspace_path="/shop"), policy(document, rules=rules), REGISTRY)
    payload = decision.payload(0.25)
    assert (payload["chosen_model"], payload["winner_index"], payload["elapsed_ms"]) == ("", -1, 0.25)
    assert [entry["policy"] for entry in payload["chain"]] == list(SLOTS)
    with pytest.raises(RoutingFailedError) as caught:
        decision.raise_if_rejected()
    assert caught.value.code == "routing_failed"
    assert caught.value.details == {
        "tried": [
            {"model": "acme:text", "policy": "rule", "rule_name": "rule_0", "reason": "no_vision_support"},
            {"model": "acme:text", "policy": "workspace_default", "rule_name": None, "reason": "no_vision_support"},
            {"model": "ghost:gone", "policy": "global_default", "rule_name": None, "reason": "not_configured"},
        ],
        "alternative_providers_configured": ["acme", "bolt"],
    }


def test_accepted_decision_raises_nothing_and_its_payload_is_json() -> None:
    decision = decide(turn("a bug"), policy(rules=RULES), REGISTRY, samples=samples("bolt:quick"))
    decision.raise_if_rejected()
    payload = decision.payload(1.5)
    assert json.loads(json.dumps(payload)) == payload
    assert payload["chain"][2] == {
        "policy": "rule",
        "verdict": "chose",
        "reason": "matched rule 'bugs'",
        "candidate_model": "bolt:deep",
        "rule_name": "bugs",
    }


# --- gates -----------------------------------------------------------------------------------------------------------

TOOL = ToolDefinition("read_file", "Reads.", {"type": "object"}, SideEffects.READ)
ALL_NEEDS = Requirements(images=True, audio=True, tools=True, system_prompt=True, structured_output=True)
HARMLESS = """
[providers.acme]
title = "Acme"
dialect = "openai_chat"
[models."acme:m"]
"""


def test_gates_are_checked_in_order() -> None:
    """The obstacles of an incapable model are removed one by one."""
    rows: dict[str, Any] = {"supports_tools": False, "supports_system_prompt": False, "max_context_tokens": 10}
    facts = turn("hello", estimated_input_tokens=11)
    facts = msgspec.structs.replace(facts, needs=ALL_NEEDS, offered_side_effects=("write",))
    allowed: dict[str, tuple[str, ...]] = {"write": ("acme:other",)}
    configured: list[str] = []
    reachable = make_unavailable("acme:m")
    failures = []
    steps: list[tuple[str, Any]] = [
        ("supports_images", True),
        ("max_context_tokens", 11),
        ("supports_tools", True),
        ("supports_system_prompt", True),
        ("supports_audio", True),
    ]

    def find_failure() -> str | None:
        overlay = {"models": {"acme:m": rows}}
        registry = Registry(catalog.Catalog(catalog.rows_from_toml(HARMLESS), "t").overlay(overlay), configured)
        return validation_failure("acme:m", facts, registry, reachable, allowed)

    failures.append(find_failure())
    configured.append("acme")
    failures.append(find_failure())
    reachable = Availability()
    for name, value in steps:
        failures.append(find_failure())
        rows[name] = value
    failures.append(find_failure())
    allowed.clear()
    assert failures == [
        name for name in FAILURES if name != "no_structured_output_support"
    ]  # tools can replace structured output
    assert find_failure() is None


@pytest.mark.parametrize(
    ("needs", "model", "failure"),
    [
        (Requirements(images=True), "text", "no_vision_support"),
        (Requirements(tools=True), "mute", "no_tool_support"),
        (Requirements(system_prompt=True), "mute", "no_system_prompt_support"),
        (Requirements(structured_output=True), "mute", "no_structured_output_support"),
        (Requirements(audio=True), "text", "no_audio_support"),
    ],
)
def test_gate_is_checked_only_if_the_turn_needs_it(needs: Requirements, model: str, failure: str) -> None:
    facts = turn("hello")
    assert validation_failure(model, facts, REGISTRY, Availability()) is None
    facts_with_needs = msgspec.structs.replace(facts, needs=needs)
    assert validation_failure(model, facts_with_needs, REGISTRY, Availability()) == failure


def test_unsupported_image_type_counts_as_no_vision() -> None:
    row = {"supports_images": True, "accepted_image_media_types": ["image/png"]}
    overlay = {"models": {"acme:m": row}}
    registry = Registry(catalog.Catalog(catalog.rows_from_toml(HARMLESS), "t").overlay(overlay), ["acme"])

    def find_failure(*types: str) -> str | None:
        facts = msgspec.structs.replace(turn("hello"), needs=Requirements(images=True, image_types=types))
        return validation_failure("acme:m", facts, registry, Availability())

    assert find_failure("image/png", "image/*") is None
    assert find_failure("image/png", "image/heic") == "no_vision_support"


def test_prompt_that_exactly_fits_is_accepted() -> None:
    exact, above = (turn("hello", estimated_input_tokens=count) for count in (1000, 1001))
    assert validation_failure("text", exact, REGISTRY, Availability()) is None
    assert validation_failure("text", above, REGISTRY, Availability()) == "exceeds_context_window"


def test_model_that_fits_the_whole_history_is_preferred() -> None:
    rules = policy(rules=[{"name": "short", "when": {"message_matches": "hello"}, "use": "text"}], global_default="big")
    long = turn("hello", estimated_input_tokens=1001, least_input_tokens=10)
    preferred = decide(long, rules, REGISTRY)
    assert (preferred.chosen_model, preferred.facts.may_omit_turns) == ("acme:big", False)
    for facts in (long, msgspec.structs.replace(long, override="text"), msgspec.structs.replace(long, sticky="text")):
        decision = decide(facts, policy(global_default="text"), REGISTRY)
        assert (decision.chosen_model, decision.facts.may_omit_turns) == ("acme:text", True)
        assert decision.chain[decision.winner_index].verdict == "chose"
    alone = msgspec.structs.replace(long, override="text", least_input_tokens=1001)
    assert decide(alone, rules, REGISTRY).is_rejected_for("exceeds_context_window")


def test_default_capabilities_are_tools_and_system_prompt() -> None:
    plain = CATALOG.model("ghost:gone").capabilities
    assert (plain.supports_tools, plain.supports_system_prompt, plain.supports_structured_output) == (True, True, False)


def test_unavailable_provider_is_skipped() -> None:
    decision = decide(
        turn("a bug"), policy(DEFAULTS, rules=RULES), REGISTRY, availability=make_unavailable("bolt:deep")
    )
    assert decision.chain[2].validation_failure == "provider_unavailable"
    assert decision.chosen_model == "acme:big"


# --- facts -----------------------------------------------------------------------------------------------------------


def message(role: Role, *content: Any) -> Message:
    return Message("01J00000000000000000000000", "sess_1", role, content, MessageMetadata(), NOW)


def test_images_count_in_messages_and_results() -> None:
    inside = message(Role.TOOL, ToolResultBlock("tu_1", (IMAGE,)))
    for history, content in [((), (IMAGE,)), ((message(Role.USER, IMAGE),), ()), ((inside,), ())]:
        facts = collect_facts(history, content, now=NOW)
        assert facts.has_images
        assert facts.needs.images
    assert not collect_facts((message(Role.USER, TextBlock("hi")),), (), now=NOW).has_images


def test_images_replaced_by_text_are_not_required() -> None:
    facts = collect_facts((), (IMAGE,), now=NOW, shows_images=False)
    assert facts.has_images
    assert not facts.needs.images


def test_tools_are_required_if_offered_or_called_before() -> None:
    call = message(Role.ASSISTANT, ToolUseBlock("tu_1", "read_file", {}))
    called = collect_facts((call,), (), now=NOW, tools=[TOOL])
    assert (called.has_tool_calls_in_history, called.needs.tools) == (True, True)
    assert (called.tool_names, called.side_effects) == (("read_file",), ("read",))
    make_tools = collect_facts((), (), now=NOW, tools=[TOOL])
    assert (make_tools.has_tool_calls_in_history, make_tools.needs.tools) == (False, True)
    assert not collect_facts((), (), now=NOW).needs.tools


def test_system_prompt_and_schema_are_required() -> None:
    facts = collect_facts((message(Role.SYSTEM, TextBlock("Be brief.")),), (), now=NOW, output_schema=True)
    assert facts.needs == Requirements(system_prompt=True, structured_output=True)
    assert collect_facts((message(Role.SYSTEM),), (), now=NOW).needs == Requirements()


# --- delegation ------------------------------------------------------------------------------------------------------


def test_tier_is_from_the_policy_or_the_first_callable_registered_model() -> None:
    tiers = {"fast": "quick", "balanced": "big", "deep": "deep"}
    facts = turn("hello", delegate_tier="fast")
    assert decide(facts, policy(tiers=tiers), REGISTRY).chosen_model == "bolt:quick"
    registry = Registry(CATALOG, ["acme"], tiers={"fast": ["quick", "mute", "big"]})
    decision = decide(facts, Policy(), registry)
    assert (decision.chosen_model, decision.chain[-1].policy) == ("acme:mute", "delegate_request")


def test_tier_without_a_model_is_not_applicable() -> None:
    decision = decide(turn("hello", delegate_tier="deep"), policy(DEFAULTS), REGISTRY)
    assert decision.chain[4].reason == "no model for tier 'deep'"
    assert decision.chosen_model == "acme:big"


# --- invariants ------------------------------------------------------------------------------------------------------

names = st.sampled_from(["big", "text", "mute", "quick", "deep", "gone"])
facts_of_turns = st.fixed_dictionaries(
    {
        "override": st.none() | names,
        "sticky": st.none() | names,
        "delegate_tier": st.sampled_from([None, "fast", "deep"]),
        "workspace_path": st.sampled_from(["", "/shop", "/other"]),
        "estimated_input_tokens": st.sampled_from([1, 1_000, 60_000, 500_000]),
        "needs": st.builds(
            Requirements,
            images=st.booleans(),
            tools=st.booleans(),
            system_prompt=st.booleans(),
            structured_output=st.booleans(),
        ),
    }
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "global_default": names,
        "tiers": st.fixed_dictionaries(dict.fromkeys(("fast", "balanced", "deep"), names)),
        "rules": st.lists(
            st.fixed_dictionaries(
                {"when": st.sampled_from([{"has_images": True}, {"has_images": False}]), "use": names}
            ),
            max_size=2,
        ),
        "workspaces": st.fixed_dictionaries({"/shop": st.fixed_dictionaries({}, optional={"default": names})}),
    },
)
down_models = st.lists(st.sampled_from(["acme:big", "bolt:deep"]), max_size=2)
known_samples = st.lists(
    st.tuples(st.sampled_from(["acme:big", "bolt:quick", "ghost:gone"]), st.floats(0, 1), st.integers(1, 9)), max_size=4
)


@given(facts_of_turns, documents, down_models, known_samples)
def test_first_valid_candidate_wins_and_ends_the_chain(
    known: dict[str, Any], document: dict[str, Any], unreachable: list[str], evaluations: list[tuple[str, float, int]]
) -> None:
    availability = Availability()
    for model in unreachable:
        availability, _ = availability.with_call_result(model.partition(":")[0], model, NOW, "auth")
    samples_of_turns = [item for model, success, size in evaluations for item in samples(model, success, size)]
    facts = turn("hello", **known)
    decision = decide(facts, policy(document), REGISTRY, availability=availability, samples=samples_of_turns)
    assert_valid(decision)
    for entry in decision.chain:
        if entry.candidate_model is not None:
            failure = validation_failure(entry.candidate_model, facts, REGISTRY, availability)
            assert entry.validation_failure == failure
            assert entry.verdict == ("chose" if failure is None else "rejected")
    assert decide(facts, policy(document), REGISTRY, availability=availability, samples=samples_of_turns) == decision


def assert_valid(decision: Decision) -> None:
    assert [entry.policy for entry in decision.chain] == list(SLOTS[: len(decision.chain)])
    chose = [at for at, entry in enumerate(decision.chain) if entry.verdict == "chose"]
    assert all(entry.verdict != "deferred" for entry in decision.chain)
    for entry in decision.chain[:2]:  # an explicit choice is used or rejected
        if entry.candidate_model is not None:
            assert decision.chosen_model in (entry.candidate_model, "")
    if decision.rejection is None:
        assert chose == [decision.winner_index] == [len(decision.chain) - 1]
        assert decision.record is not None
        assert decision.record.chosen_model == decision.chosen_model == decision.chain[-1].candidate_model
        assert decision.chosen_model not in decision.record.alternatives_considered
        return
    assert (chose, decision.winner_index, decision.chosen_model, decision.record) == ([], -1, "", None)
    explicit = decision.chain[-1].policy in SLOTS[:2] and decision.chain[-1].verdict == "rejected"
    assert decision.rejection.code == ("routing_constraint_failure" if explicit else "routing_failed")
    assert explicit or len(decision.chain) == len(SLOTS)


# --- side effects ----------------------------------------------------------------------------------------------------


def make_tools(*effects: SideEffects) -> list[ToolDefinition]:
    return [
        ToolDefinition(f"tool_{effect}", "Do it.", {"type": "object", "properties": {}}, effect) for effect in effects
    ]


def test_tools_of_a_side_effect_are_offered_only_to_models_of_the_policy() -> None:
    limited = policy({**DEFAULTS, "side_effects": {"execute": ["deep"], "network": []}})
    harmless = collect_facts([], [TextBlock("@big do it")], now=NOW, tools=make_tools(SideEffects.READ))
    assert decide(harmless, limited, REGISTRY).chosen_model == "acme:big"
    harmful = collect_facts(
        [], [TextBlock("@big do it")], now=NOW, tools=make_tools(SideEffects.READ, SideEffects.EXECUTE)
    )
    decision = decide(harmful, limited, REGISTRY)
    assert decision.rejection is not None
    assert decision.rejection.validation_failure == "side_effects_not_allowed"
    with pytest.raises(RoutingConstraintError, match="side effects"):
        decision.raise_if_rejected()
    deep = collect_facts([], [TextBlock("@deep do it")], now=NOW, tools=make_tools(SideEffects.EXECUTE))
    assert decide(deep, limited, REGISTRY).rejection is None
    without_model = collect_facts([], [TextBlock("@deep do it")], now=NOW, tools=make_tools(SideEffects.NETWORK))
    assert decide(without_model, limited, REGISTRY).rejection is not None


def test_rule_can_depend_on_the_side_effects_of_tools() -> None:
    rules = [{"name": "careful", "when": {"side_effects_include": ["write", "execute"]}, "use": "deep"}]
    limited = policy({"global_default": "big", "rules": rules})
    for effect, rule in ((SideEffects.READ, None), (SideEffects.WRITE, "careful")):
        decision = decide(collect_facts([], [TextBlock("do")], now=NOW, tools=make_tools(effect)), limited, REGISTRY)
        assert decision.record is not None
        assert decision.record.rule_name == rule


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"side_effects": {"explode": ["big"]}}, "$.side_effects.explode: no such key"),
        ({"side_effects": {"write": "big"}}, "$.side_effects.write: a list of models is expected"),
        ({"side_effects": {"write": ["nobody"]}}, "$.side_effects.write[0]: no model"),
        ({"rules": [{"when": {"side_effects_include": ["explode"]}, "use": "big"}]}, "there are the side effects none"),
    ],
)
def test_unknown_side_effect_is_rejected_with_its_location(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(document)
    assert problem in str(caught.value)
