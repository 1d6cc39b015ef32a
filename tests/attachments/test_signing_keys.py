"""The keys that sign URLs are made once, shared, changed without breaking what was signed, and shown to nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.attachments import SigningKeys
from dragoman.errors import SettingsError

NOW = 1_800_000_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "somewhere" / "keys.json"


def test_a_key_is_made_when_it_is_first_needed_and_nobody_else_can_read_it(file: Path) -> None:
    keys = SigningKeys.in_file(file)
    assert not file.exists()
    made = keys.current
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(made.secret) >= 43
    assert SigningKeys.in_file(file).current == made
    assert os.listdir(file.parent) == ["keys.json"]


def test_processes_that_begin_together_share_one_key(file: Path) -> None:
    script = "import sys; from pathlib import Path; from dragoman.attachments import SigningKeys as K; input(); print(K.in_file(Path(sys.argv[1])).current.secret)"
    started = [
        subprocess.Popen([sys.executable, "-c", script, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = []
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in started:
        said.append(process.communicate(timeout=60)[0])
    assert len(set(said)) == 1
    assert said[0].strip()


def test_a_file_that_others_can_read_is_not_used(file: Path) -> None:
    SigningKeys.in_file(file).current  # noqa: B018  it makes the file
    file.chmod(0o644)
    with pytest.raises(SettingsError) as caught:
        SigningKeys.in_file(file).current  # noqa: B018
    assert caught.value.code == "unsafe_config"


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '[{"kid": "a"}]', "no"])
def test_a_file_without_keys_is_refused_and_left_as_it_is(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        SigningKeys.in_file(file).current  # noqa: B018
    assert caught.value.code == "invalid_key"
    assert file.read_text() == text


def test_a_rotation_is_seen_by_all_and_keeps_the_old_key_for_a_while(file: Path) -> None:
    keys, other = SigningKeys.in_file(file), SigningKeys.in_file(file)
    first = other.current
    keys.rotate(NOW)
    assert other.current.kid != first.kid
    kept = other.get(first.kid)
    assert kept is not None
    assert kept.can_have_signed(int(NOW) + 900)
    assert not kept.can_have_signed(int(NOW) + 901)
    keys.rotate(NOW + 899)
    assert other.get(first.kid) is not None
    keys.rotate(NOW + 1_000)
    assert other.get(first.kid) is None


def test_keys_can_be_forgotten_at_once(file: Path) -> None:
    keys = SigningKeys.in_file(file)
    first = keys.current
    keys.rotate(NOW, forget=True)
    assert keys.get(first.kid) is None
    assert len(json.loads(file.read_text())) == 1


def test_a_secret_does_not_show_itself(file: Path) -> None:
    key = SigningKeys.in_file(file).current
    assert key.secret not in repr(key)
    assert key.secret not in f"{key}"


def test_keys_may_come_as_a_text_and_the_first_one_signs() -> None:
    keys = SigningKeys.from_text(f"new:{'n' * 32}, old:{'o' * 40}")
    assert keys.current.kid == "new"
    assert keys.get("old") is not None
    with pytest.raises(SettingsError):
        keys.rotate(NOW)


@pytest.mark.parametrize("text", ["", "short:secret", "x" * 40, f"a:{'x' * 32},a:{'y' * 32}", f"a.b:{'x' * 32}"])
def test_a_text_that_is_no_list_of_keys_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SigningKeys.from_text(text)
    assert caught.value.code == "invalid_key"
    assert "x" * 32 not in str(caught.value)
