"""The routing chain with its seven slots."""

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
from tests.routing.models import CATALOG, NOW, PICTURE, REGISTRY, policy, turn

RULES = [{"name": "bugs", "when": {"message_matches": "(?i)bug"}, "use": "deep"}]
DEFAULTS = {"global_default": "big", "workspaces": {"/shop": {"default": "quick"}}}


def down(model: str) -> Availability:
    """As things are after that model has refused a key."""
    provider = model.partition(":")[0]
    return Availability().with_call_result(provider, model, NOW, "auth")[0]


def samples(model: str, success: float = 1.0, size: int = 5) -> list[PatternSample]:
    return [
        PatternSample(fingerprint=turn("hello").fingerprint(), primary_model=model, success=success, sample_size=size)
    ]


# --- the order -------------------------------------------------------------------------------------------------------


def test_there_are_seven_slots_in_a_fixed_order() -> None:
    assert SLOTS == (
        "per_message_override",
        "manual_sticky",
        "rule",
        "pattern",
        "delegate_request",
        "workspace_default",
        "global_default",
    )


def everything() -> dict[str, Any]:
    """A turn for which every slot has a candidate of its own, as far as there are models."""
    return {
        "facts": turn("@big a bug", sticky="text", delegate_tier="fast", workspace_path="/shop"),
        "policy": policy(DEFAULTS, rules=RULES, tiers={"fast": "mute", "balanced": "big", "deep": "deep"}),
        "samples": samples("bolt:quick"),
    }


TAKEN_AWAY: list[tuple[str, dict[str, Any], str, RoutingMode, str]] = [
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


@pytest.mark.parametrize("count", range(len(TAKEN_AWAY)), ids=[slot for slot, *_ in TAKEN_AWAY])
def test_a_slot_decides_when_those_before_it_have_nothing_to_say(count: int) -> None:
    given_facts, rules, known = (everything()[name] for name in ("facts", "policy", "samples"))
    for _, changes, *_ in TAKEN_AWAY[: count + 1]:
        known = changes.get("samples", known)
        given_facts = msgspec.structs.replace(given_facts, **{k: v for k, v in changes.items() if k != "samples"})
    decision = decide(given_facts, rules, REGISTRY, samples=known)
    slot, _, model, mode, reason = TAKEN_AWAY[count]
    assert decision.chosen_model == model
    assert decision.winner_index == count
    assert [entry.policy for entry in decision.chain] == list(SLOTS[: count + 1])
    assert decision.chain[-1].policy == slot
    assert decision.record is not None
    assert (decision.record.mode, decision.record.chosen_model, decision.record.reason) == (mode, model, reason)


def test_a_slot_without_a_candidate_says_why() -> None:
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


def test_a_rejected_candidate_hands_on_to_the_next_slot_and_is_remembered() -> None:
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


def test_the_record_of_a_rule_names_it() -> None:
    decision = decide(turn("a bug"), policy(rules=RULES), REGISTRY)
    assert decision.record == RoutingDecisionRecord(
        mode=RoutingMode.RULE, chosen_model="bolt:deep", reason="matched rule 'bugs'", rule_name="bugs"
    )


def test_the_record_of_a_pattern_has_its_confidence_and_those_it_was_weighed_against() -> None:
    both = [*samples("bolt:quick"), *samples("acme:big", success=0.5)]
    decision = decide(turn("hello"), Policy(), REGISTRY, samples=both)
    assert decision.record is not None
    assert decision.record.mode is RoutingMode.PATTERN
    assert decision.record.confidence == pytest.approx(0.5)
    assert decision.record.alternatives_considered == ("acme:big",)
    told = decision.chain[-1].pattern_alternatives
    assert told is not None
    assert [(row.model, row.sample_size) for row in told] == [("bolt:quick", 5), ("acme:big", 5)]


@pytest.mark.parametrize(
    ("known", "settings", "reason"),
    [
        (samples("bolt:quick", size=4), {}, "4 samples, fewer than the 5 required"),
        ([*samples("bolt:quick"), *samples("acme:big", 0.98)], {}, "confidence 0.02 is below 0.05"),
        (samples("bolt:quick"), {"enabled": False}, "pattern is switched off"),
    ],
)
def test_a_pattern_that_is_not_sure_enough_is_not_applicable(
    known: list[PatternSample], settings: dict[str, Any], reason: str
) -> None:
    decision = decide(turn("hello"), policy(DEFAULTS, pattern=settings), REGISTRY, samples=known)
    assert (decision.chain[3].verdict, decision.chain[3].reason) == ("not_applicable", reason)
    assert decision.chosen_model == "acme:big"


def test_a_sticky_model_opts_the_session_out_of_rules() -> None:
    decision = decide(turn("a bug", sticky="big"), policy(rules=RULES), REGISTRY)
    assert decision.chosen_model == "acme:big"
    assert len(decision.chain) == 2


# --- what a person chose ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "sticky", "source"),
    [(("@text look", PICTURE), None, "per_message_override"), (("look", PICTURE), "text", "manual_sticky")],
)
def test_a_choice_that_may_not_answer_is_refused_and_names_what_would(
    said: tuple[Any, ...], sticky: str | None, source: str
) -> None:
    decision = decide(turn(*said, sticky=sticky), policy(DEFAULTS), REGISTRY)
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


def test_a_refused_override_would_fall_back_to_the_sticky_model_first() -> None:
    decision = decide(turn("@gone hello", sticky="quick"), policy(DEFAULTS), REGISTRY)
    assert decision.rejection is not None
    assert decision.rejection.would_fall_back_to == "bolt:quick"
    assert [entry.policy for entry in decision.chain] == ["per_message_override"]


def test_a_refused_choice_with_nothing_behind_it_says_so() -> None:
    decision = decide(turn("hello", sticky="gone"), Policy(), REGISTRY)
    with pytest.raises(RoutingConstraintError, match=r"Choose another model$") as caught:
        decision.raise_if_rejected()
    assert caught.value.would_fall_back_to is None


def test_a_sticky_model_that_nobody_knows_any_more_is_refused_as_not_configured() -> None:
    decision = decide(turn("hello", sticky="vanished:model"), policy(DEFAULTS), REGISTRY)
    assert decision.rejection is not None
    assert (decision.rejection.model, decision.rejection.validation_failure) == ("vanished:model", "not_configured")


# --- nobody ----------------------------------------------------------------------------------------------------------


def test_when_nobody_may_answer_the_whole_chain_is_told_and_then_raised() -> None:
    rules = [{"when": {"has_images": True}, "use": "text"}]
    document = {"global_default": "gone", "workspaces": {"/shop": {"default": "text"}}}
    decision = decide(turn("look", PICTURE, workspace_path="/shop"), policy(document, rules=rules), REGISTRY)
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


def test_a_decision_that_stands_raises_nothing_and_its_payload_is_json() -> None:
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


def test_gates_are_asked_in_their_order() -> None:
    """A model that can nothing is freed of one obstacle after the other."""
    rows: dict[str, Any] = {"supports_tools": False, "supports_system_prompt": False, "max_context_tokens": 10}
    facts = turn("hello", estimated_input_tokens=11)
    facts = msgspec.structs.replace(facts, needs=ALL_NEEDS, offered_side_effects=("write",))
    allowed: dict[str, tuple[str, ...]] = {"write": ("acme:other",)}
    configured: list[str] = []
    reachable = down("acme:m")
    seen = []
    steps: list[tuple[str, Any]] = [
        ("supports_images", True),
        ("max_context_tokens", 11),
        ("supports_tools", True),
        ("supports_system_prompt", True),
        ("supports_audio", True),
    ]

    def failure() -> str | None:
        overlay = {"models": {"acme:m": rows}}
        registry = Registry(catalog.Catalog(catalog.rows_from_toml(HARMLESS), "t").overlay(overlay), configured)
        return validation_failure("acme:m", facts, registry, reachable, allowed)

    seen.append(failure())
    configured.append("acme")
    seen.append(failure())
    reachable = Availability()
    for name, value in steps:
        seen.append(failure())
        rows[name] = value
    seen.append(failure())
    allowed.clear()
    assert seen == [name for name in FAILURES if name != "no_structured_output_support"]  # tools give it, too
    assert failure() is None


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
def test_a_gate_is_only_asked_where_the_turn_needs_it(needs: Requirements, model: str, failure: str) -> None:
    facts = turn("hello")
    assert validation_failure(model, facts, REGISTRY, Availability()) is None
    needing = msgspec.structs.replace(facts, needs=needs)
    assert validation_failure(model, needing, REGISTRY, Availability()) == failure


def test_images_of_a_type_that_a_model_does_not_take_are_like_no_vision() -> None:
    row = {"supports_images": True, "accepted_image_media_types": ["image/png"]}
    overlay = {"models": {"acme:m": row}}
    registry = Registry(catalog.Catalog(catalog.rows_from_toml(HARMLESS), "t").overlay(overlay), ["acme"])

    def failure(*types: str) -> str | None:
        facts = msgspec.structs.replace(turn("hello"), needs=Requirements(images=True, image_types=types))
        return validation_failure("acme:m", facts, registry, Availability())

    assert failure("image/png", "image/*") is None
    assert failure("image/png", "image/heic") == "no_vision_support"


def test_a_prompt_that_just_fits_is_let_through() -> None:
    exact, above = (turn("hello", estimated_input_tokens=count) for count in (1000, 1001))
    assert validation_failure("text", exact, REGISTRY, Availability()) is None
    assert validation_failure("text", above, REGISTRY, Availability()) == "exceeds_context_window"


def test_a_model_that_takes_the_whole_history_is_preferred_and_older_turns_are_left_out_only_without_one() -> None:
    rules = policy(rules=[{"name": "short", "when": {"message_matches": "hello"}, "use": "text"}], global_default="big")
    long = turn("hello", estimated_input_tokens=1001, least_input_tokens=10)
    roomy = decide(long, rules, REGISTRY)
    assert (roomy.chosen_model, roomy.facts.may_omit_turns) == ("acme:big", False)
    for facts in (long, msgspec.structs.replace(long, override="text"), msgspec.structs.replace(long, sticky="text")):
        decision = decide(facts, policy(global_default="text"), REGISTRY)
        assert (decision.chosen_model, decision.facts.may_omit_turns) == ("acme:text", True)
        assert decision.chain[decision.winner_index].verdict == "chose"
    alone = msgspec.structs.replace(long, override="text", least_input_tokens=1001)
    assert decide(alone, rules, REGISTRY).is_rejected_for("exceeds_context_window")


def test_what_a_row_does_not_declare_is_tools_and_a_system_prompt_and_no_schema() -> None:
    plain = CATALOG.model("ghost:gone").capabilities
    assert (plain.supports_tools, plain.supports_system_prompt, plain.supports_structured_output) == (True, True, False)


def test_an_unreachable_provider_is_passed_over() -> None:
    decision = decide(turn("a bug"), policy(DEFAULTS, rules=RULES), REGISTRY, availability=down("bolt:deep"))
    assert decision.chain[2].validation_failure == "provider_unavailable"
    assert decision.chosen_model == "acme:big"


# --- facts -----------------------------------------------------------------------------------------------------------


def message(role: Role, *content: Any) -> Message:
    return Message("01J00000000000000000000000", "sess_1", role, content, MessageMetadata(), NOW)


def test_images_count_wherever_the_model_would_be_shown_them() -> None:
    inside = message(Role.TOOL, ToolResultBlock("tu_1", (PICTURE,)))
    for history, content in [((), (PICTURE,)), ((message(Role.USER, PICTURE),), ()), ((inside,), ())]:
        facts = collect_facts(history, content, now=NOW)
        assert facts.has_images
        assert facts.needs.images
    assert not collect_facts((message(Role.USER, TextBlock("hi")),), (), now=NOW).has_images


def test_images_that_become_words_are_no_need() -> None:
    facts = collect_facts((), (PICTURE,), now=NOW, shows_images=False)
    assert facts.has_images
    assert not facts.needs.images


def test_tools_are_needed_when_they_are_offered_or_were_called() -> None:
    call = message(Role.ASSISTANT, ToolUseBlock("tu_1", "read_file", {}))
    called = collect_facts((call,), (), now=NOW, tools=[TOOL])
    assert (called.has_tool_calls_in_history, called.needs.tools) == (True, True)
    assert (called.tool_names, called.side_effects) == (("read_file",), ("read",))
    offered = collect_facts((), (), now=NOW, tools=[TOOL])
    assert (offered.has_tool_calls_in_history, offered.needs.tools) == (False, True)
    assert not collect_facts((), (), now=NOW).needs.tools


def test_a_system_prompt_and_a_schema_are_needs() -> None:
    facts = collect_facts((message(Role.SYSTEM, TextBlock("Be brief.")),), (), now=NOW, output_schema=True)
    assert facts.needs == Requirements(system_prompt=True, structured_output=True)
    assert collect_facts((message(Role.SYSTEM),), (), now=NOW).needs == Requirements()


# --- delegation ------------------------------------------------------------------------------------------------------


def test_a_tier_is_the_policy_s_or_else_the_first_registered_model_that_can_be_called() -> None:
    tiers = {"fast": "quick", "balanced": "big", "deep": "deep"}
    asked = turn("hello", delegate_tier="fast")
    assert decide(asked, policy(tiers=tiers), REGISTRY).chosen_model == "bolt:quick"
    registry = Registry(CATALOG, ["acme"], tiers={"fast": ["quick", "mute", "big"]})
    decision = decide(asked, Policy(), registry)
    assert (decision.chosen_model, decision.chain[-1].policy) == ("acme:mute", "delegate_request")


def test_a_tier_without_a_model_is_not_applicable() -> None:
    decision = decide(turn("hello", delegate_tier="deep"), policy(DEFAULTS), REGISTRY)
    assert decision.chain[4].reason == "no model for tier 'deep'"
    assert decision.chosen_model == "acme:big"


# --- laws ------------------------------------------------------------------------------------------------------------

names = st.sampled_from(["big", "text", "mute", "quick", "deep", "gone"])
decisions_given = st.fixed_dictionaries(
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


@given(decisions_given, documents, down_models, known_samples)
def test_the_first_valid_candidate_wins_and_the_chain_ends_with_it(
    known: dict[str, Any], document: dict[str, Any], unreachable: list[str], judged: list[tuple[str, float, int]]
) -> None:
    availability = Availability()
    for model in unreachable:
        availability, _ = availability.with_call_result(model.partition(":")[0], model, NOW, "auth")
    seen = [made for model, success, size in judged for made in samples(model, success, size)]
    facts = turn("hello", **known)
    decision = decide(facts, policy(document), REGISTRY, availability=availability, samples=seen)
    assert_lawful(decision)
    for entry in decision.chain:
        if entry.candidate_model is not None:
            failure = validation_failure(entry.candidate_model, facts, REGISTRY, availability)
            assert entry.validation_failure == failure
            assert entry.verdict == ("chose" if failure is None else "rejected")
    assert decide(facts, policy(document), REGISTRY, availability=availability, samples=seen) == decision


def assert_lawful(decision: Decision) -> None:
    assert [entry.policy for entry in decision.chain] == list(SLOTS[: len(decision.chain)])
    chose = [at for at, entry in enumerate(decision.chain) if entry.verdict == "chose"]
    assert all(entry.verdict != "deferred" for entry in decision.chain)
    for entry in decision.chain[:2]:  # what a person chose is taken or refused
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


def offered(*effects: SideEffects) -> list[ToolDefinition]:
    return [
        ToolDefinition(f"tool_{effect}", "Do it.", {"type": "object", "properties": {}}, effect) for effect in effects
    ]


def test_only_the_models_that_the_policy_names_are_offered_tools_of_a_side_effect() -> None:
    held = policy({**DEFAULTS, "side_effects": {"execute": ["deep"], "network": []}})
    harmless = collect_facts([], [TextBlock("@big do it")], now=NOW, tools=offered(SideEffects.READ))
    assert decide(harmless, held, REGISTRY).chosen_model == "acme:big"
    harmful = collect_facts(
        [], [TextBlock("@big do it")], now=NOW, tools=offered(SideEffects.READ, SideEffects.EXECUTE)
    )
    decision = decide(harmful, held, REGISTRY)
    assert decision.rejection is not None
    assert decision.rejection.validation_failure == "side_effects_not_allowed"
    with pytest.raises(RoutingConstraintError, match="side effects"):
        decision.raise_if_rejected()
    deep = collect_facts([], [TextBlock("@deep do it")], now=NOW, tools=offered(SideEffects.EXECUTE))
    assert decide(deep, held, REGISTRY).rejection is None
    nobody = collect_facts([], [TextBlock("@deep do it")], now=NOW, tools=offered(SideEffects.NETWORK))
    assert decide(nobody, held, REGISTRY).rejection is not None


def test_a_rule_may_ask_what_the_tools_of_a_turn_can_do() -> None:
    rules = [{"name": "careful", "when": {"side_effects_include": ["write", "execute"]}, "use": "deep"}]
    held = policy({"global_default": "big", "rules": rules})
    for effect, rule in ((SideEffects.READ, None), (SideEffects.WRITE, "careful")):
        decision = decide(collect_facts([], [TextBlock("do")], now=NOW, tools=offered(effect)), held, REGISTRY)
        assert decision.record is not None
        assert decision.record.rule_name == rule


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"side_effects": {"explode": ["big"]}}, "$.side_effects.explode: no such key"),
        ({"side_effects": {"write": "big"}}, "$.side_effects.write: a list of models is expected"),
        ({"side_effects": {"write": ["nobody"]}}, "$.side_effects.write[0]: no model"),
        ({"rules": [{"when": {"side_effects_include": ["explode"]}, "use": "big"}]}, "there are the side effects none"),
    ],
)
def test_a_side_effect_that_there_is_not_is_an_error_with_its_place(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(given)
    assert problem in str(caught.value)
