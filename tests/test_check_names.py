"""Tests of the naming rules of ``scripts.check_names``."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_names


def find_words(path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    path.write_text(source, "utf-8")
    monkeypatch.setattr(check_names, "ROOT", path.parent)
    return [(finding.kind, finding.word) for finding in check_names.find_in_file(path)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def stored() -> None: ...", [("function", "stored")]),
        ("def read_stored() -> None: ...", []),
        ("class Stored: ...", [("class", "stored")]),
        ("def test_message_is_stored() -> None: ...", []),
        ("def test_client_is_told_the_result() -> None: ...", [("test", "told")]),
        ("async def test_model_says_hello() -> None: ...", [("test", "says")]),
        ("def tell_client() -> None: ...", [("function", "tell")]),
    ],
)
def test_names_of_functions_and_classes_are_checked(
    source: str, expected: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_words(tmp_path / "test_format.py", source, monkeypatch) == expected


def test_name_of_a_module_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_words(tmp_path / "test_reading.py", "", monkeypatch) == [("module", "reading")]


def test_pattern_selects_only_files_of_one_folder() -> None:
    files = {path.relative_to(check_names.ROOT).as_posix() for path in check_names.list_files("tests/*.py")}
    assert "tests/conftest.py" in files
    assert not any(name.count("/") > 1 for name in files)
