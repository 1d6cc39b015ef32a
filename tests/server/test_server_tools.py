"""The server's tools: who may use them, and what they never touch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman import settings
from dragoman.errors import SettingsError
from dragoman.exchange import SideEffects
from dragoman.server.config import ServerConfig
from dragoman.server.server import make_workspace
from dragoman.store import open_store
from dragoman.tools import ToolRegistry, tool
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import post_error, post_run, run_input
from tests.server.test_server_process import run_command

CLIENT_TOOL = {"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}


@tool(side_effects=SideEffects.EXECUTE, requires_workspace=False)
async def drop(name: str) -> str:
    """Drop something."""
    return f"{name} is gone"


def offered_tools(server: ServerFixture, at: int = -1) -> list[str]:
    """The tools that the model was offered."""
    return [one["name"] for one in server.fake.bodies[at].get("tools", [])]


async def test_read_tools_never_show_the_servers_own_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("tea at four")
    named: dict[str, Any] = {"tool": ("read_file", "list_files", "search_files"), "workspace": str(tmp_path)}
    async with run_test_server(tmp_path, **named, keys_file=str(tmp_path / "my-keys.json")) as server:
        await server.make_key("ann")
        await server.store.create_session("s")
        private = [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()]
        private.remove("notes.txt")
        assert {"chats.db", "chats.db-lock", "my-keys.json"} <= set(private)
        for path in private:
            server.fake.call("read_file", {"path": path})
            server.fake.reply("No.")
            told = await post_run(server, run_input("Read it."))
            (came,) = [event for event in told if event["type"] == "TOOL_CALL_RESULT"]
            assert "private file of Dragoman" in json.dumps(came["content"]), path
        server.fake.call("list_files", {"recursive": True})
        server.fake.reply("There.")
        told = await post_run(server, run_input("List them."))
        (came,) = [event for event in told if event["type"] == "TOOL_CALL_RESULT"]
        assert came["content"] == "notes.txt"


@pytest.mark.parametrize("tools", [("run_command",), ("read_file", "run_command")])
async def test_commands_are_refused_in_a_workspace_with_the_servers_own_files(
    tmp_path: Path, tools: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as refusal:
        async with run_test_server(tmp_path, tool=tools, workspace=str(tmp_path)):
            pass
    assert refusal.value.code == "unsafe_workspace"
    (tmp_path / "work").mkdir()
    async with run_test_server(tmp_path, tool=tools, workspace=str(tmp_path / "work")) as server:
        assert server.agent.services.workspace is not None


def test_serve_refuses_to_start_where_it_cannot_keep_its_files_apart(tmp_path: Path) -> None:
    store = ("--port", "0", "--store", str(tmp_path / "chats.db"))
    for arguments in (
        ("--tool", "run_command", "--workspace", str(tmp_path)),
        ("--tool", "read_file", "--workspace", str(tmp_path / "chats.db-blobs")),
    ):
        (tmp_path / "chats.db-blobs").mkdir(exist_ok=True)
        done = run_command(tmp_path, "serve", *store, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "unsafe_workspace" in done.stderr
        assert "--workspace" in done.stderr


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="only root on Linux can become another user"
)
@pytest.mark.parametrize(("hide", "read"), [("", "1"), ("supervisor.hide_environment()", "0")])
def test_a_command_cannot_read_the_environment_of_the_server_in_proc(hide: str, read: str) -> None:
    program = (
        "import ctypes, os, subprocess\n"
        "from dragoman.server import supervisor\n"
        "os.setgroups([]), os.setgid(61001), os.setuid(61001)\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"  # as a process is that never was another user
        f"{hide}\n"
        "subprocess.run(['/bin/sh', '-c', 'cat /proc/$PPID/environ 2>&1 | tr \\\\0 . | grep -c hush-hush'], cwd='/')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SOMETHING": "hush-hush"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == read


async def test_a_key_without_the_scope_runs_no_tool_of_the_server(keyed_server: ServerFixture) -> None:
    keyed_server.agent.tools = ToolRegistry([drop])
    plain, able = await keyed_server.make_key("ann"), await keyed_server.make_key("ann", scopes=("chat", "tools"))
    keyed_server.fake.reply("Hello.")
    await post_run(keyed_server, run_input("Hi"), **plain)
    assert offered_tools(keyed_server) == []
    keyed_server.fake.call("drop", {"name": "production"})  # it was not offered, and is asked for all the same
    keyed_server.fake.reply("Well.")
    told = await post_run(keyed_server, run_input("Drop it."), **plain)
    assert "is gone" not in json.dumps(told)
    keyed_server.fake.call("weather", {})
    told = await post_run(keyed_server, run_input("How warm?", tools=[CLIENT_TOOL]), **plain)
    assert offered_tools(keyed_server) == ["weather"]
    assert told[-1]["outcome"]["pendingToolCallIds"]
    keyed_server.fake.reply("Hello.")
    await post_run(keyed_server, run_input("Hi"), **able)
    assert offered_tools(keyed_server) == ["drop"]


async def test_a_key_without_the_scope_cannot_approve_a_call(keyed_server: ServerFixture) -> None:
    keyed_server.agent.tools = ToolRegistry([drop])
    plain, able = await keyed_server.make_key("ann"), await keyed_server.make_key("ann", scopes=("chat", "tools"))
    keyed_server.fake.call("drop", {"name": "production"})
    told = await post_run(keyed_server, run_input("Drop it.", threadId="t"), **able)
    (interrupt,) = told[-1]["outcome"]["interrupts"]
    decided = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
    resumed = run_input(threadId="t", resume=[decided])
    assert await post_error(keyed_server, resumed, **plain) == (403, "missing_scope")
    keyed_server.fake.reply("Done.")
    told = await post_run(keyed_server, resumed, **able)
    assert "production is gone" in json.dumps(told)


def test_a_server_of_root_warns_about_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "work").mkdir()
    (tmp_path / "config.toml").touch(0o600)
    given = settings.load(environment={}, file=tmp_path / "config.toml", keyring=lambda _: None)
    store = open_store(f"sqlite:///{tmp_path / 'chats.db'}")
    options: dict[str, Any] = {"store": f"sqlite:///{tmp_path / 'chats.db'}", "workspace": str(tmp_path / "work")}
    make_workspace(ServerConfig(**options, tool=("read_file",)), store, given)
    assert caplog.text == ""
    make_workspace(ServerConfig(**options, tool=("run_command",)), store, given)
    assert "runs as root" in caplog.text
