"""Tests of the file of a routing policy: location, reload, and the last valid policy."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from dragoman.errors import PolicyError
from dragoman.routing import Policy
from dragoman.settings.policy_file import MAX_BYTES, PolicyFile, parse_yaml, policy_from_file, policy_paths
from tests.routing.models import REGISTRY

GOOD = "schema_version: 1\nglobal_default: big\n"
OTHER = "schema_version: 1\nglobal_default: quick\n"
BAD = "schema_version: 1\nglobal_default: nobody\ntiers: {}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / ".dragoman" / "routing.yaml"
    path.parent.mkdir()
    return path


@pytest.fixture
def source(file: Path, tmp_path: Path) -> PolicyFile:
    return PolicyFile.for_workspace(tmp_path, REGISTRY, environment={"XDG_CONFIG_HOME": str(tmp_path / "config")})


def write(file: Path, text: str, age_s: int = 0) -> None:
    """Write the file with an earlier modification time, so that each version has another time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    os.utime(file, (1_800_000_000 - age_s, 1_800_000_000 - age_s))


def test_missing_file_is_an_empty_policy(source: PolicyFile) -> None:
    result = source.read()
    assert (result.policy, result.path, result.version, result.errors) == (Policy(), None, "", ())


def test_changed_file_is_reloaded_and_its_version_is_the_hash_of_its_text(source: PolicyFile, file: Path) -> None:
    write(file, GOOD, age_s=20)
    first = source.read()
    assert (first.policy.global_default, first.path, first.is_new) == ("acme:big", str(file), True)
    assert first.version == hashlib.sha256(GOOD.encode()).hexdigest()
    again = source.read()
    assert again.policy is first.policy
    assert not again.is_new
    write(file, OTHER)
    assert source.read().policy.global_default == "bolt:quick"


def test_invalid_file_keeps_the_last_valid_policy_and_reports_once(source: PolicyFile, file: Path) -> None:
    write(file, GOOD, age_s=20)
    good = source.read()
    write(file, BAD, age_s=10)
    invalid = source.read()
    assert (invalid.policy, invalid.version, invalid.is_new) == (good.policy, good.version, True)
    assert invalid.invalid_payload() == {
        "policy_path": str(file),
        "errors": [
            "$.global_default: no model 'nobody'",
            "$.tiers: all of fast, balanced, deep are needed; fast, balanced, deep is missing",
        ],
        "using_last_known_good": True,
    }
    again = source.read()
    assert (again.errors, again.is_new) == (invalid.errors, False)
    write(file, OTHER)
    mended = source.read()
    assert (mended.policy.global_default, mended.errors) == ("bolt:quick", ())


def test_file_that_was_never_valid_is_an_empty_policy(source: PolicyFile, file: Path) -> None:
    write(file, BAD)
    result = source.read()
    assert (result.policy, result.version, result.uses_last_good) == (Policy(), "", False)


def test_deleted_file_is_an_empty_policy(source: PolicyFile, file: Path) -> None:
    write(file, GOOD)
    source.read()
    file.unlink()
    assert source.read().policy == Policy()
    write(file, BAD)
    assert source.read().policy == Policy()


def test_first_existing_path_counts(source: PolicyFile, file: Path, tmp_path: Path) -> None:
    paths = policy_paths(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        ".dragoman/routing.yaml",
        ".metis/routing.yaml",
        "config/dragoman/routing.yaml",
    ]
    models = []
    for path, model in zip(reversed(paths), ("deep", "quick", "big"), strict=True):
        write(path, f"schema_version: 1\nglobal_default: {model}\n")
        models.append(source.read().policy.global_default)
    assert models == ["bolt:deep", "bolt:quick", "acme:big"]
    write(file, BAD, age_s=5)  # an invalid file is not skipped: the last valid policy of the same path stays
    assert source.read().policy.global_default == "acme:big"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schema_version: 1\nrules: [\n", "line 3, column 1"),
        ("schema_version: 1\nglobal_default: big\nglobal_default: quick\n", "the key 'global_default' occurs twice"),
        ("a: &x [1]\nb: *x\n", "references (*) are not supported"),
        ("a: !!python/object:os.system {}\n", "could not determine a constructor"),
        ("a: 2026-13-45\n", "month must be in"),
        ("[" * 100_000, "recursion"),
        ("a: \x00\n", "special characters"),
    ],
)
def test_invalid_yaml_is_rejected_with_its_location(text: str, expected: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_yaml(text.encode(), "routing.yaml")
    assert expected in str(caught.value)
    assert len(caught.value.problems) == 1


def test_large_binary_or_missing_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "routing.yaml"
    for content, expected in (
        (b"#" * (MAX_BYTES + 1), "larger than"),
        (b"a: \xff\xfe\xff", "not valid YAML"),
        (b"", "mapping"),
    ):
        file.write_bytes(content)
        with pytest.raises(PolicyError, match=expected):
            policy_from_file(file, REGISTRY)
    for path in (tmp_path, tmp_path / "nowhere.yaml"):
        with pytest.raises(PolicyError, match="does not exist"):
            policy_from_file(path, REGISTRY)


def test_pipe_in_place_of_a_file_does_not_block(source: PolicyFile, file: Path) -> None:
    os.mkfifo(file)
    assert source.read().errors == ("$: the file does not exist",)


def test_time_of_day_needs_no_quotes(tmp_path: Path) -> None:
    file = tmp_path / "routing.yaml"
    text = "schema_version: 1\nrules:\n- when: {time_of_day_between: [22:00, 06:00]}\n  use: big\n"
    file.write_text(text, "utf-8")
    assert policy_from_file(file, REGISTRY).rules[0].name == "rule_0"
