"""Tests of the tool that runs a command: its result, and that no process remains."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dragoman.tools import Confirmation, ConfirmationRequest, ToolRegistry, Workspace, dispatch
from dragoman.tools.shell import environment_without_secrets, run_command
from tests.tools.tool_fixtures import EventLog, make_call, make_session, result_of, text_of


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def wait_for_exit(pids: list[int]) -> bool:
    for _ in range(500):
        if not any(is_alive(pid) for pid in pids):
            return True
        await asyncio.sleep(0.01)
    return False


async def read_pids(file: Path, count: int) -> list[int]:
    """Return the process ids in a file as soon as it contains so many."""
    while not file.is_file() or len(file.read_text().split()) < count:
        await asyncio.sleep(0.01)
    return [int(word) for word in file.read_text().split()]


async def test_command_returns_exit_code_and_output(root: Path, workspace: Workspace) -> None:
    (root / "sub").mkdir()
    good = await result_of(run_command, workspace, command="pwd; echo oops >&2", path="sub")
    assert (text_of(good), good.is_error) == (f"[exit code 0]\n{root}/sub\noops\n", False)
    bad = await result_of(run_command, workspace, command="exit 3")
    assert (text_of(bad), bad.is_error) == ("[exit code 3]", True)


async def test_program_runs_without_a_shell(workspace: Workspace) -> None:
    result = await result_of(run_command, workspace, argv=["printf", "%s|", "$HOME", "a b", ";"])
    assert text_of(result) == "[exit code 0]\n$HOME|a b|;|"


@pytest.mark.parametrize("arguments", [{}, {"command": "a", "argv": ["b"]}, {"command": "a\0b"}])
async def test_invalid_command_is_an_error(workspace: Workspace, arguments: dict[str, object]) -> None:
    assert (await result_of(run_command, workspace, **arguments)).is_error


async def test_missing_program_or_folder_is_an_error(workspace: Workspace) -> None:
    assert text_of(await result_of(run_command, workspace, argv=["no-such-program"])) == (
        "'no-such-program' does not exist"
    )
    assert (
        text_of(await result_of(run_command, workspace, command="true", path="missing")) == "'missing' does not exist"
    )


async def test_command_has_empty_standard_input(workspace: Workspace) -> None:
    assert text_of(await result_of(run_command, workspace, command="cat; echo end")) == "[exit code 0]\nend\n"


async def test_long_output_keeps_its_beginning_and_end(workspace: Workspace) -> None:
    text = text_of(await result_of(run_command, workspace, command="seq 1 200000"))
    assert text.startswith("[exit code 0]\n1\n2\n")
    assert text.endswith("199999\n200000\n")
    assert "bytes left out" in text
    assert len(text) < 33_000


async def test_command_does_not_inherit_secrets_and_cannot_print_them(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hidden-word@localhost/db")
    monkeypatch.setenv("HARMLESS", "shown")
    result = await result_of(run_command, workspace, command="env; echo sk-very-secret")
    text = text_of(result)
    assert "HARMLESS=shown" in text
    assert "SOME_API_KEY" not in text
    assert "hidden-word" not in text
    assert "sk-very-secret" not in text
    assert text.endswith("[redacted]\n")


def test_secrets_are_recognized_by_name_and_by_passwords_in_urls() -> None:
    secret = ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "ANTHROPIC_AUTH_TOKEN"]
    secret += ["GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK", "NPM_TOKENS", "my_secret", "SENTRY_DSN"]
    plain = ["PATH", "HOME", "PWD", "OLDPWD", "KEYBOARD", "MONKEY", "TOKENIZERS_PARALLELISM", "AUTHOR", "LANG"]
    remaining, values = environment_without_secrets({**dict.fromkeys(secret, "12345678"), **dict.fromkeys(plain, "x")})
    assert sorted(remaining) == sorted(plain)
    assert set(values) == {"12345678"}
    assert environment_without_secrets({"PROXY": "http://me:word@host", "PLAIN": "http://host:80"})[0] == {
        "PLAIN": "http://host:80"
    }


SECRETS = {
    "PGPASSWORD": "short",
    "MYSQL_PWD": "short",
    "DBPASSWORD": "short",
    "GITHUBTOKEN": "short",
    "KUBECONFIG": "/home/me/.kube/config",
    "DRAGOMAN_WORKSPACE": "/home/me",
    "PLAIN_1": "sk-ant-api03-" + "aB3x" * 20,
    "PLAIN_2": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
    "PLAIN_3": "f3b1c0a98d7e6f5a4b3c2d1e0f9a8b7c",
    "PLAIN_4": "https://hooks.example.org/services/T000/B000/x8Yz4KqLw0PmN3vB7tRc",
    "PLAIN_5": "https://a-token@git.example.org/x.git",
    "PLAIN_6": "AccountName=x;AccountKey=abcdEFGH1234567890abcdEFGH1234567890==;",
    "PLAIN_7": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "MY_TOKEN": "text-of-mine",
    "PLAIN_8": "X-Header: text-of-mine",
}
HARMLESS = {
    "PATH": "/usr/bin:/nix/store/3c8f1a9d0b7e6f5a4b3c2d1e0f9a8b7c-bash/bin",
    "VIRTUAL_ENV": "/home/me/.cache/virtualenvs/project-AbC123xy-py3.11",
    "GIT_AUTHOR_EMAIL": "me@example.org",
    "INDEX_URL": "https://pypi.example.org/simple/",
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
    "CI": "true",
}


def test_secrets_are_found_by_value_and_inside_other_values() -> None:
    assert environment_without_secrets({**SECRETS, **HARMLESS})[0] == HARMLESS


async def test_command_in_events_and_approval_has_no_secrets(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "very-secret-token")
    events = EventLog()
    call = make_call("run_command", command="echo very-secret-token")
    summaries: list[str | None] = []

    async def confirm(question: ConfirmationRequest) -> Confirmation:
        summaries.append(question.command_summary)
        return Confirmation(True)

    session = make_session(workspace, policy=None, confirm=confirm)
    await dispatch([call], ToolRegistry([run_command]), session, events=events)
    assert summaries == ["echo [redacted]"]
    assert events.payloads("tool.completed")[0]["command_executed"] == "echo [redacted]"


STARTS_CHILDREN = "echo $$ >> pids; (echo $BASHPID >/dev/null; sh -c 'echo $$ >> pids; exec sleep 600') & "


async def test_slow_command_ends_with_its_children(root: Path, workspace: Workspace) -> None:
    command = f"{STARTS_CHILDREN} echo begun; sleep 600"
    result = await result_of(run_command, workspace, command=command, timeout_s=1)
    assert text_of(result) == "[stopped after 1 s]\nbegun\n"
    assert result.is_error
    assert await wait_for_exit(await read_pids(root / "pids", 2))


async def test_command_that_ignores_sigterm_is_killed(root: Path, workspace: Workspace) -> None:
    command = "trap '' TERM; echo $$ >> pids; while :; do sleep 1; done"
    await result_of(run_command, workspace, command=command, timeout_s=1)
    assert await wait_for_exit(await read_pids(root / "pids", 1))


async def test_background_processes_of_a_command_end_with_it(root: Path, workspace: Workspace) -> None:
    result = await result_of(
        run_command, workspace, command=f"{STARTS_CHILDREN} while [ $(wc -l < pids) -lt 2 ]; do :; done"
    )
    assert not result.is_error
    assert await wait_for_exit(await read_pids(root / "pids", 2))


async def test_process_outside_of_the_group_does_not_block_the_result(root: Path, workspace: Workspace) -> None:
    result = await result_of(
        run_command,
        workspace,
        command="setsid sh -c 'echo $$ > pids; exec sleep 600' & while [ ! -s pids ]; do :; done",
    )
    (pid,) = await read_pids(root / "pids", 1)
    os.kill(pid, 9)  # only such a process remains
    assert text_of(result) == "[exit code 0]"


async def test_cancelled_command_ends_with_its_children(root: Path, workspace: Workspace) -> None:
    stop = asyncio.Event()
    call = make_call("run_command", command=f"{STARTS_CHILDREN} sleep 600")
    task = asyncio.create_task(dispatch([call], ToolRegistry([run_command]), make_session(workspace), stop=stop))
    pids = await read_pids(root / "pids", 2)
    stop.set()
    (result,) = await task
    assert result.is_error
    assert await wait_for_exit(pids)
