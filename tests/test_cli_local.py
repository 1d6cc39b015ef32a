"""Tests of ``dragoman local`` and ``dragoman completion``, run as a user runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dragoman.local import find_weights
from tests import cli_runner
from tests.conftest import WEIGHTS_VARIABLE


def run(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environment.pop(WEIGHTS_VARIABLE, None)
    environment |= {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:1/"}
    environment |= {"UV_NO_CONFIG": "1", "UV_DEFAULT_INDEX": "http://127.0.0.1:1/", "UV_CACHE_DIR": str(folder / "uv")}
    environment |= variables
    return cli_runner.run_text(*arguments, environment=environment, cwd=folder)


def test_copied_weights_are_installed_verified_and_removed(tmp_path: Path) -> None:
    weights = find_weights()
    assert weights is not None, "run make setup"
    done = run("local", "install", "--from", str(weights), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "dragoman" / "models" / weights.name
    assert str(file) in done.stdout
    assert run("local", "status", folder=tmp_path).stdout.startswith("local:smollm2-135m is ready")
    file.write_bytes(b"damaged")
    done = run("local", "status", folder=tmp_path)
    assert (done.returncode, "[weights_damaged]" in done.stderr) == (2, True)
    assert "was deleted" in run("local", "remove", folder=tmp_path).stdout
    assert not file.exists()


def test_install_offline_explains_how_to_get_the_weights(tmp_path: Path) -> None:
    done = run("local", "install", "--force", folder=tmp_path)
    assert done.returncode == 2
    assert "there is no connection to it" in done.stderr
    assert "dragoman local install --from FILE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_every_command(shell: str, tmp_path: Path) -> None:
    done = run("completion", shell, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for command in ("serve", "ask", "local", "completion", "resend", "--store"):
        assert command.lstrip("-") in done.stdout
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed; the script is not parsed")
    script = tmp_path / "script"
    script.write_text(done.stdout)
    parsed = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, parsed.stderr


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(run("completion", "bash", folder=tmp_path).stdout)
    complete = 'source "$1"; COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2)); COMPREPLY=(); _dragoman; printf "%s\\n" "${COMPREPLY[@]}"'

    def complete_words(*words: str) -> set[str]:
        command = ["bash", "--norc", "-c", complete, "bash", str(script), *words]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    assert {"sessions", "search", "serve", "send"} & complete_words("dragoman", "se") == {"sessions", "search", "serve"}
    assert complete_words("dragoman", "local", "") >= {"install", "status", "remove"}
    assert "--log-level" in complete_words("dragoman", "serve", "--lo")


def test_completion_is_installed_in_the_home_folder(tmp_path: Path) -> None:
    done = run("completion", "fish", "--install", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".config" / "fish" / "completions" / "dragoman.fish").is_file() or (
        tmp_path / "fish" / "completions" / "dragoman.fish"
    ).is_file()
