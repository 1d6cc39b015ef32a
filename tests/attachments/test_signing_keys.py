"""Tests of the keys that sign URLs: creation, sharing between processes, rotation and secrecy."""

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


def test_key_is_created_on_first_use_in_private_file(file: Path) -> None:
    keys = SigningKeys.in_file(file)
    assert not file.exists()
    key = keys.current
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(key.secret) >= 43
    assert SigningKeys.in_file(file).current == key
    assert os.listdir(file.parent) == ["keys.json"]


def test_concurrent_processes_share_one_key(file: Path) -> None:
    script = "import sys; from pathlib import Path; from dragoman.attachments import SigningKeys as K; input(); print(K.in_file(Path(sys.argv[1])).current.secret)"
    processes = [
        subprocess.Popen([sys.executable, "-c", script, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        outputs.append(process.communicate(timeout=60)[0])
    assert len(set(outputs)) == 1
    assert outputs[0].strip()


def test_file_readable_by_others_is_rejected(file: Path) -> None:
    SigningKeys.in_file(file).current  # noqa: B018  this creates the file
    file.chmod(0o644)
    with pytest.raises(SettingsError) as caught:
        SigningKeys.in_file(file).current  # noqa: B018
    assert caught.value.code == "unsafe_config"


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '[{"kid": "a"}]', "no"])
def test_file_without_keys_is_rejected_and_unchanged(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        SigningKeys.in_file(file).current  # noqa: B018
    assert caught.value.code == "invalid_key"
    assert file.read_text() == text


def test_rotation_is_shared_and_keeps_old_key_temporarily(file: Path) -> None:
    keys, other = SigningKeys.in_file(file), SigningKeys.in_file(file)
    first = other.current
    keys.rotate(NOW)
    assert other.current.kid != first.kid
    old_key = other.get(first.kid)
    assert old_key is not None
    assert old_key.can_have_signed(int(NOW) + 900)
    assert not old_key.can_have_signed(int(NOW) + 901)
    keys.rotate(NOW + 899)
    assert other.get(first.kid) is not None
    keys.rotate(NOW + 1_000)
    assert other.get(first.kid) is None


def test_rotation_can_forget_old_keys(file: Path) -> None:
    keys = SigningKeys.in_file(file)
    first = keys.current
    keys.rotate(NOW, forget=True)
    assert keys.get(first.kid) is None
    assert len(json.loads(file.read_text())) == 1


def test_repr_does_not_contain_secret(file: Path) -> None:
    key = SigningKeys.in_file(file).current
    assert key.secret not in repr(key)
    assert key.secret not in f"{key}"


def test_first_key_of_text_signs() -> None:
    keys = SigningKeys.from_text(f"new:{'n' * 32}, old:{'o' * 40}")
    assert keys.current.kid == "new"
    assert keys.get("old") is not None
    with pytest.raises(SettingsError):
        keys.rotate(NOW)


@pytest.mark.parametrize("text", ["", "short:secret", "x" * 40, f"a:{'x' * 32},a:{'y' * 32}", f"a.b:{'x' * 32}"])
def test_invalid_key_text_is_rejected_and_not_quoted(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SigningKeys.from_text(text)
    assert caught.value.code == "invalid_key"
    assert "x" * 32 not in str(caught.value)
