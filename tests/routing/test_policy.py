"""Tests of routing policies: scope of rules, and collection of all errors."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import PolicyError
from dragoman.routing import PREDICATES, PatternSettings, Policy, Registry, decide, read_policy
from tests.routing.models import CATALOG, IMAGE, REGISTRY, policy, turn
from tests.strategies import plain


def read_problems(document: Any) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        read_policy(document, REGISTRY, home="/home/ada", origin="routing.yaml")
    assert caught.value.code == "invalid_policy"
    assert str(caught.value).startswith("routing.yaml: ")
    return caught.value.problems


def rule(when: Any, use: Any = "big", **more: Any) -> dict[str, Any]:
    return {"when": when, "use": use, **more}


def matches(when: dict[str, Any], *parts: Any, **facts: Any) -> bool:
    """Return whether a rule with these predicates decides a turn."""
    decision = decide(turn(*parts, **facts), policy(rules=[rule(when)]), REGISTRY)
    return decision.chain[2].verdict == "chose"


# --- predicates ------------------------------------------------------------------------------------------------------


def at(clock: str) -> datetime:
    hours, minutes = (int(part) for part in clock.split(":"))
    return datetime(2026, 11, 15, hours, minutes, tzinfo=timezone(timedelta(hours=2)))


CASES: dict[str, tuple[Any, list[dict[str, Any]], list[dict[str, Any]]]] = {
    "message_matches": (r"\bbug\w*\b", [{"said": "two bugs here"}], [{"said": "debug"}, {"said": "Bug"}]),
    "message_contains_any": (
        ["Refactor", "STRASSE"],
        [{"said": "please reFACTOR it"}, {"said": "die Straße"}],
        [{"said": "factor"}, {"said": ""}],
    ),
    "estimated_input_tokens_gt": (
        100,
        [{"estimated_input_tokens": 101}],
        [{"estimated_input_tokens": 100}, {"estimated_input_tokens": 1}],
    ),
    "estimated_input_tokens_lt": (100, [{"estimated_input_tokens": 99}], [{"estimated_input_tokens": 100}]),
    "has_images": (True, [{"said": IMAGE}], [{"said": "hello"}]),
    "side_effects_include": (
        ["write", "execute"],
        [{"offered_side_effects": ("read", "write")}],
        [{"offered_side_effects": ("read",)}, {}],
    ),
    "has_tool_calls_in_history": (
        False,
        [{"has_tool_calls_in_history": False}],
        [{"has_tool_calls_in_history": True}],
    ),
    "skills_matching_message_includes": (
        ["pdf", "sql"],
        [{"skills": ("sql", "x")}],
        [{"skills": ("x",)}, {"skills": ()}, {}],
    ),
    "file_extensions_in_context": (
        [".py"],
        [{"file_extensions": (".md", ".py")}],
        [{"file_extensions": (".pyc",)}, {}],
    ),
    "workspace_path_matches": ("^/srv/", [{"workspace_path": "/srv/shop"}], [{"workspace_path": "/home"}, {}]),
    "time_of_day_between": (
        ["09:00", "17:30"],
        [{"now": at("09:00")}, {"now": at("17:29")}],
        [{"now": at("08:59")}, {"now": at("17:30")}],
    ),
    "cost_today_exceeds_usd": (
        2.5,
        [{"cost_today_usd": Decimal("2.500001")}],
        [{"cost_today_usd": Decimal("2.5")}, {}],
    ),
    "team_budget_remaining_lt": (
        10,
        [{"team_budget_remaining_usd": Decimal("9.99")}],
        [{"team_budget_remaining_usd": Decimal(10)}, {}],
    ),
    "any_of": (
        [{"has_images": True}, {"message_matches": "x"}],
        [{"said": IMAGE}, {"said": "x"}],
        [{"said": "y"}],
    ),
    "all_of": (
        [{"estimated_input_tokens_gt": 5}, {"message_matches": "x"}],
        [{"said": "x", "estimated_input_tokens": 6}],
        [{"said": "x"}, {"said": "y", "estimated_input_tokens": 6}],
    ),
    "not": ({"has_images": True}, [{"said": "hello"}], [{"said": IMAGE}]),
}


@pytest.mark.parametrize("key", PREDICATES)
def test_predicate_matches_only_its_turns(key: str) -> None:
    value, yes, no = CASES[key]
    for expected, turns in ((True, yes), (False, no)):
        for known in turns:
            facts = dict(known)
            assert matches({key: value}, facts.pop("said", "hello"), **facts) is expected, known


def test_all_predicates_of_a_rule_must_match() -> None:
    when = {"message_matches": "bug", "estimated_input_tokens_gt": 10}
    assert matches(when, "bug", estimated_input_tokens=11)
    assert not matches(when, "bug", estimated_input_tokens=10)
    assert not matches(when, "x", estimated_input_tokens=11)


def test_time_span_may_cross_midnight_in_the_zone_of_the_user() -> None:
    night = {"time_of_day_between": ["22:00", "06:00"]}
    assert [matches(night, "x", now=at(clock)) for clock in ("22:00", "23:59", "00:00", "05:59")] == [True] * 4
    assert [matches(night, "x", now=at(clock)) for clock in ("06:00", "12:00", "21:59")] == [False] * 3


def test_time_without_quotes_is_read_as_yaml_integer() -> None:
    assert matches({"time_of_day_between": [22 * 60, "06:00"]}, "x", now=at("23:00"))


def test_empty_time_span_never_matches_and_is_a_warning() -> None:
    result = policy(rules=[rule({"time_of_day_between": ["09:00", "09:00"]})])
    assert result.warnings == ("$.rules[0].when.time_of_day_between: begins when it ends, so it never holds",)
    assert not matches({"time_of_day_between": ["09:00", "09:00"]}, "x", now=at("09:00"))


def test_rule_pattern_is_matched_in_linear_time() -> None:
    assert not matches({"message_matches": "^(a+)+$"}, "a" * 50_000 + "b")


def test_rule_pattern_matches_any_language() -> None:
    assert matches({"message_matches": "ошиб..$"}, "это ошибка")
    assert matches({"message_matches": "😀."}, "😀!")


# --- rules, defaults and workspaces ----------------------------------------------------------------------------------


def test_first_matching_rule_wins() -> None:
    rules = [
        rule({"has_images": True}, "deep"),
        rule({"has_images": False}, "big"),
        rule({"has_images": False}, "quick"),
    ]
    assert decide(turn("x"), policy(rules=rules), REGISTRY).chosen_model == "acme:big"


def test_rule_without_a_name_is_named_by_its_index() -> None:
    result = policy(rules=[rule({"has_images": True}, name="first"), rule({"has_images": False})])
    assert [parsed.name for parsed in result.rules] == ["first", "rule_1"]


def test_rejected_rule_continues_with_the_next_slot_and_not_the_next_rule() -> None:
    rules = [rule({"has_images": False}, "gone"), rule({"has_images": False}, "deep")]
    decision = decide(turn("x"), policy(rules=rules, global_default="quick"), REGISTRY)
    assert (decision.chosen_model, decision.chain[2].verdict) == ("bolt:quick", "rejected")


SHOP = {
    "rules": [rule({"has_images": False}, "deep", name="global")],
    "global_default": "big",
    "pattern": {"min_sample_size": 9},
    "tiers": {"fast": "quick", "balanced": "big", "deep": "deep"},
    "workspaces": {
        "~/shop/": {
            "rules": [rule({"message_matches": "shop"}, "quick", name="local")],
            "default": "text",
            "pattern": {"cost_weight": 0.5},
            "tiers": {"fast": "text", "balanced": "text", "deep": "text"},
        },
        "/bare": {},
    },
}


def test_rules_of_a_workspace_precede_global_rules() -> None:
    shop_policy = policy(SHOP)
    inside = turn("the shop", workspace_path="/home/ada/shop")
    assert decide(inside, shop_policy, REGISTRY).chosen_model == "bolt:quick"
    assert decide(turn("x", workspace_path="/home/ada/shop"), shop_policy, REGISTRY).chosen_model == "bolt:deep"
    assert decide(turn("the shop"), shop_policy, REGISTRY).chosen_model == "bolt:deep"


def test_default_pattern_and_tiers_of_a_workspace_replace_global_ones() -> None:
    in_shop = policy(SHOP).for_workspace("/home/ada/shop")
    assert (in_shop.workspace_default, in_shop.global_default) == ("acme:text", "acme:big")
    assert in_shop.pattern == PatternSettings(cost_weight=0.5)
    assert set(in_shop.tiers.values()) == {"acme:text"}
    bare = policy(SHOP).for_workspace("/bare")
    assert bare.workspace_default is None
    assert bare.pattern == PatternSettings(min_sample_size=9)
    assert bare.tiers["fast"] == "bolt:quick"


@pytest.mark.parametrize(
    ("path", "is_match"),
    [
        ("/home/ada/shop", True),
        ("/home/ada/shop/", True),
        ("/home/ada/shop/src", False),
        ("/home/ada", False),
        ("~/shop", False),
        ("", False),
    ],
)
def test_workspace_is_matched_by_its_exact_path(path: str, is_match: bool) -> None:
    assert (policy(SHOP).for_workspace(path).workspace_default is not None) is is_match


def test_external_default_applies_only_without_a_default_in_the_policy() -> None:
    assert Policy().with_default("acme:big").global_default == "acme:big"
    assert policy(global_default="quick").with_default("acme:big").global_default == "bolt:quick"


def test_external_default_may_be_an_alias() -> None:
    assert decide(turn("x"), Policy().with_default("big"), REGISTRY).chosen_model == "acme:big"


def test_pattern_settings_have_defaults() -> None:
    assert policy().pattern == PatternSettings(cost_weight=0.05, min_confidence=0.05, min_sample_size=5)


def test_model_without_a_key_or_row_is_a_warning() -> None:
    result = policy(global_default="gone", rules=[rule({"has_images": True}, "acme:unlisted")])
    assert result.warnings == (
        "$.global_default: ghost:gone cannot be called here: ghost has no key",
        "$.rules[0].use: acme:unlisted is not in the catalog; the defaults of its provider apply",
    )


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema_version": 2}, "$.schema_version: 1 is expected, not 2"),
        ({"schema_version": True}, "$.schema_version: 1 is expected, not True"),
        ({"schema_version": "1"}, "$.schema_version: 1 is expected, not '1'"),
        ({"global_defualt": "big"}, "$.global_defualt: no such key; there are schema_version, global_default, "),
        ({1: 2}, "$: the key 1 is not a text"),
        ({"global_default": "nobody"}, "$.global_default: no model 'nobody'"),
        ({"global_default": ["big"]}, "$.global_default: the id or the alias of a model is expected"),
        ({"tiers": {"fast": "big"}}, "$.tiers: all of fast, balanced, deep are needed; balanced, deep is missing"),
        (
            {"tiers": dict.fromkeys(("fast", "balanced", "deep", "huge"), "big")},
            "$.tiers.huge: no such key; there are ",
        ),
        ({"tiers": {"fast": "nobody", "balanced": "big", "deep": "big"}}, "$.tiers.fast: no model 'nobody'"),
        ({"tiers": ["big"]}, "$.tiers: a mapping is expected"),
        ({"pattern": {"cost_weight": 1.01}}, "$.pattern.cost_weight: a number from 0 to 1 is expected"),
        ({"pattern": {"cost_weight": True}}, "$.pattern.cost_weight: a number from 0 to 1 is expected"),
        ({"pattern": {"min_confidence": -0.1}}, "$.pattern.min_confidence: a number from 0 to 1 is expected"),
        ({"pattern": {"min_confidence": float("nan")}}, "$.pattern.min_confidence: a number from 0 to 1 is expected"),
        ({"pattern": {"min_sample_size": 0}}, "$.pattern.min_sample_size: a whole number from 1 is expected"),
        ({"pattern": {"min_sample_size": True}}, "$.pattern.min_sample_size: a whole number from 1 is expected"),
        ({"pattern": {"enabled": 1}}, "$.pattern.enabled: true or false is expected"),
        ({"pattern": {"k": 3}}, "$.pattern.k: no such key; there are "),
        ({"rules": {}}, "$.rules: a list of rules is expected"),
        ({"rules": ["x"]}, "$.rules[0]: a mapping is expected"),
        ({"rules": [{"when": {"has_images": True}}]}, "$.rules[0].use: the id or the alias of a model is expected"),
        ({"rules": [{"use": "big"}]}, "$.rules[0].when: a mapping of predicates is expected, not nothing"),
        ({"rules": [rule({})]}, "$.rules[0].when: a rule needs a predicate; for a rule that always matches use "),
        ({"rules": [rule({"has_images": True}, fallback="x")]}, "$.rules[0].fallback: no such key; there are name, "),
        ({"rules": [rule({"has_images": True}, name="")]}, "$.rules[0].name: a text is expected"),
        (
            {"workspaces": {"shop": {}}},
            "$.workspaces.shop: a workspace is an absolute path, or one that begins with ~/",
        ),
        ({"workspaces": {"/a": {}, "/a/": {}}}, "$.workspaces./a/: this workspace is there twice"),
        ({"workspaces": {"/a": {"default": "nobody"}}}, "$.workspaces./a.default: no model 'nobody'"),
        ({"workspaces": {"/a": {"global_default": "big"}}}, "$.workspaces./a.global_default: no such key; there are "),
        ({"workspaces": {"/a": None}}, "$.workspaces./a: a mapping is expected"),
        ({"workspaces": []}, "$.workspaces: a mapping is expected"),
    ],
)
def test_error_is_reported_with_its_location(changes: dict[Any, Any], problem: str) -> None:
    (reported,) = read_problems({"schema_version": 1, **changes})
    assert reported.startswith(problem)


@pytest.mark.parametrize("document", [None, [], "x", 3])
def test_policy_must_be_a_mapping(document: Any) -> None:
    assert read_problems(document) == ("$: a mapping is expected",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("message_matches", "("),
        ("message_matches", "(?=x)y"),
        ("message_matches", r"(x)\1"),
        ("message_matches", ""),
        ("message_matches", 3),
        ("message_contains_any", []),
        ("message_contains_any", "bug"),
        ("message_contains_any", ["bug", 3]),
        ("message_contains_any", [""]),
        ("estimated_input_tokens_gt", True),
        ("estimated_input_tokens_gt", "100"),
        ("estimated_input_tokens_gt", 1.5),
        ("estimated_input_tokens_lt", -1),
        ("has_images", 1),
        ("has_images", "true"),
        ("has_tool_calls_in_history", None),
        ("skills_matching_message_includes", []),
        ("file_extensions_in_context", {}),
        ("workspace_path_matches", "["),
        ("time_of_day_between", ["09:00"]),
        ("time_of_day_between", ["9:00", "10:00"]),
        ("time_of_day_between", ["24:00", "10:00"]),
        ("time_of_day_between", ["09:60", "10:00"]),
        ("time_of_day_between", [True, "10:00"]),
        ("time_of_day_between", "09:00-10:00"),
        ("cost_today_exceeds_usd", True),
        ("cost_today_exceeds_usd", "much"),
        ("cost_today_exceeds_usd", float("inf")),
        ("team_budget_remaining_lt", -1),
        ("any_of", []),
        ("any_of", {"has_images": True}),
        ("all_of", [3]),
        ("all_of", [{}]),
        ("not", []),
        ("not", {}),
        ("weather_is", "fine"),
    ],
)
def test_invalid_predicate_is_an_error_at_its_location(key: str, value: Any) -> None:
    (reported,) = read_problems({"schema_version": 1, "rules": [rule({key: value})]})
    assert reported.startswith(f"$.rules[0].when.{key}")


def test_all_errors_are_collected_and_the_policy_is_rejected() -> None:
    document = {
        "global_default": "nobody",
        "rules": [
            rule({"message_matches": "("}, "nobody", name="a"),
            rule({"any_of": [{"has_images": 1}, {"x": 1}]}, name="b"),
            rule({"has_images": True}, name="c"),
            rule({"has_images": False}, name="c"),
        ],
    }
    reported = read_problems(document)
    assert [problem.partition(": ")[0] for problem in reported] == [
        "$.schema_version",
        "$.global_default",
        "$.rules[0].use",
        "$.rules[0].when.message_matches",
        "$.rules[1].when.any_of[0].has_images",
        "$.rules[1].when.any_of[1].x",
        "$.rules[3].name",
    ]
    assert reported[-1] == "$.rules[3].name: 'c' is the name of $.rules[2]"


def test_one_rule_name_may_be_used_in_two_scopes() -> None:
    same = [rule({"has_images": True}, name="pictures")]
    assert policy(rules=same, workspaces={"/a": {"rules": same}}).for_workspace("/a").rules[0].name == "pictures"


def test_recursive_document_terminates() -> None:
    loop: dict[str, Any] = {}
    loop["not"] = loop
    assert read_problems({"schema_version": 1, "rules": [rule(loop)]})[0].endswith("nested deeper than 20 levels")
    wide: dict[str, Any] = {}
    wide["any_of"] = [wide] * 50
    assert any(
        "more than 1000 predicates" in problem
        for problem in read_problems({"schema_version": 1, "rules": [rule(wide)]})
    )


@given(st.recursive(plain, lambda inner: st.dictionaries(st.sampled_from([*PREDICATES, "rules", "when"]), inner)))
def test_any_document_is_a_policy_or_a_list_of_problems(document: Any) -> None:
    for candidate in (
        document,
        {"schema_version": 1, "rules": [rule(document)]},
        {"schema_version": 1, "workspaces": document},
    ):
        result = None
        with contextlib.suppress(PolicyError):
            result = read_policy(candidate, REGISTRY)
        if result is not None:
            assert decide(turn("hello"), result, REGISTRY).chain


def test_models_are_resolved_in_the_given_registry() -> None:
    registry = Registry(CATALOG, ["bolt"], aliases={"work": "quick"})
    assert read_policy({"schema_version": 1, "global_default": "work"}, registry).global_default == "bolt:quick"
