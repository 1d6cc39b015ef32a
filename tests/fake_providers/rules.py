"""Published rules on the values of a request, as data in ``rules.toml``, each with its source.

    find_violations("anthropic", body, model)     the rules that a request breaks

A rule that recorded traffic contradicts is wrong: ``test_fakes.py`` applies all rules to every recorded request that
was served.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

ANY: Final = "*"
NOT_PREFIX: Final = "not "


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule. Exactly one of the fields behind ``source`` is set, or ``min`` and ``max`` together."""

    api: str
    topic: str
    path: str
    source: str
    models: str = ""
    when: dict[str, Any] = {}
    min: float | None = None
    max: float | None = None
    values: list[Any] | None = None
    pattern: str | None = None
    absent: bool = False
    max_items: int | None = None
    max_length: int | None = None
    below: str | None = None
    needs: str | None = None
    word: str | None = None

    def applies_to(self, body: Any, model: str) -> bool:
        """Return whether the rule applies to a model and a request."""
        if self.models and not re.search(self.models, model):
            return False
        return all(_is_met(values_at(body, path), expected) for path, expected in self.when.items())

    def problem(self, value: Any, body: Any) -> str | None:
        """Return the problem of a value; ``None`` if there is none."""
        match self:
            case Rule(absent=True):
                return "is not supported"
            case Rule(values=list(values)) if value not in values:
                return f"must be one of {values}"
            case Rule(pattern=str(pattern)) if not re.fullmatch(pattern, str(value)):
                return f"must match {pattern}"
            case Rule(max_items=int(count)) if isinstance(value, list) and len(value) > count:
                return f"has more than {count} items"
            case Rule(max_length=int(count)) if len(str(value)) > count:
                return f"has more than {count} characters"
            case Rule(below=str(path)) if any(value >= limit for limit in values_at(body, path)):
                return f"must be less than {path}"
            case Rule(needs=str(path)) if not any(values_at(body, path)):
                return f"needs {path}"
            case Rule(word=str(word)) if word not in json.dumps(value).lower():
                return f"must contain the word {word!r}"
            case Rule(min=float() | int(), max=float() | int()) if not self._is_in_range(value):
                return f"must be between {self.min:g} and {self.max:g}"
        return None

    def _is_in_range(self, value: Any) -> bool:
        assert self.min is not None
        assert self.max is not None
        return type(value) in (int, float) and self.min <= value <= self.max


def _is_met(found: list[Any], expected: Any) -> bool:
    if isinstance(expected, str) and expected.startswith(NOT_PREFIX):
        return str(found[0]) != expected.removeprefix(NOT_PREFIX) if found else False
    return bool(found) and (expected == ANY or found[0] in expected)


def values_at(body: Any, path: str) -> list[Any]:
    """Return the values at a path that are not null."""
    found = [body]
    for key in path.split("."):
        if key == "*":
            found = [item for value in found if isinstance(value, list) for item in value]
        else:
            found = [value[key] for value in found if isinstance(value, dict) and value.get(key) is not None]
    return found


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule."""
    rows = tomllib.loads(Path(__file__).with_name("rules.toml").read_text("utf-8"))
    return msgspec.convert(rows["rules"], tuple[Rule, ...])


@functools.cache
def _rules_of(api: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in all_rules() if rule.api == api)


def find_violations(api: str, body: Any, model: str) -> Iterator[tuple[Rule, str]]:
    """Yield each rule that a request to a model breaks, with a text."""
    for rule in _rules_of(api):
        values = values_at(body, rule.path)
        if values and rule.applies_to(body, model):
            for value in values:
                problem = rule.problem(value, body)
                if problem is not None:
                    yield rule, f"{rule.topic}: {rule.path} {problem}, not {json.dumps(value)[:60]}"


def rule_problems(api: str, body: Any, model: str) -> list[str]:
    """Return the texts of the rules that a request breaks."""
    return [text for _, text in find_violations(api, body, model)]
