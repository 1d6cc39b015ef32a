"""Tests of the server's tools: who may use them, and which files they never access."""

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


def tools_in_request(server: ServerFixture, index: int = -1) -> list[str]:
    """Return the names of the tools in a request to the model."""
    return [tool["name"] for tool in server.fake.bodies[index].get("tools", [])]


async def test_read_tools_never_show_own_files_of_server(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("tea at four")
    options: dict[str, Any] = {"tool": ("read_file", "list_files", "search_files"), "workspace": str(tmp_path)}
    async with run_test_server(tmp_path, **options, keys_file=str(tmp_path / "my-keys.json")) as server:
        await server.make_key("ann")
        await server.store.create_session("s")
        private = [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()]
        private.remove("notes.txt")
        assert {"chats.db", "chats.db-lock", "my-keys.json"} <= set(private)
        for path in private:
            server.fake.call("read_file", {"path": path})
            server.fake.reply("No.")
            events = await post_run(server, run_input("Read it."))
            (result,) = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
            assert "private file of Dragoman" in json.dumps(result["content"]), path
        server.fake.call("list_files", {"recursive": True})
        server.fake.reply("There.")
        events = await post_run(server, run_input("List them."))
        (result,) = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
        assert result["content"] == "notes.txt"


@pytest.mark.parametrize("tools", [("run_command",), ("read_file", "run_command")])
async def test_run_command_is_rejected_in_workspace_with_own_files(tmp_path: Path, tools: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError) as caught:
        async with run_test_server(tmp_path, tool=tools, workspace=str(tmp_path)):
            pass
    assert caught.value.code == "unsafe_workspace"
    (tmp_path / "work").mkdir()
    async with run_test_server(tmp_path, tool=tools, workspace=str(tmp_path / "work")) as server:
        assert server.agent.services.workspace is not None


def test_serve_rejects_unsafe_workspace(tmp_path: Path) -> None:
    store = ("--port", "0", "--store", str(tmp_path / "chats.db"))
    for arguments in (
        ("--tool", "run_command", "--workspace", str(tmp_path)),
        ("--tool", "read_file", "--workspace", str(tmp_path / "chats.db-blobs")),
    ):
        (tmp_path / "chats.db-blobs").mkdir(exist_ok=True)
        completed = run_command(tmp_path, "serve", *store, *arguments)
        assert (completed.returncode, completed.stdout) == (2, "")
        assert "unsafe_workspace" in completed.stderr
        assert "--workspace" in completed.stderr


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="only root on Linux can become another user"
)
@pytest.mark.parametrize(("hide", "read"), [("", "1"), ("supervisor.hide_environment()", "0")])
def test_command_cannot_read_environment_of_server_in_proc(hide: str, read: str) -> None:
    program = (
        "import ctypes, os, subprocess\n"
        "from dragoman.server import supervisor\n"
        "os.setgroups([]), os.setgid(61001), os.setuid(61001)\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"  # like a process that never changed its user
        f"{hide}\n"
        "subprocess.run(['/bin/sh', '-c', 'cat /proc/$PPID/environ 2>&1 | tr \\\\0 . | grep -c hush-hush'], cwd='/')\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SOMETHING": "hush-hush"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert completed.stdout.strip() == read


async def test_key_without_scope_runs_no_server_tool(keyed_server: ServerFixture) -> None:
    keyed_server.agent.tools = ToolRegistry([drop])
    chat_key, tools_key = (
        await keyed_server.make_key("ann"),
        await keyed_server.make_key("ann", scopes=("chat", "tools")),
    )
    keyed_server.fake.reply("Hello.")
    await post_run(keyed_server, run_input("Hi"), **chat_key)
    assert tools_in_request(keyed_server) == []
    keyed_server.fake.call("drop", {"name": "production"})  # the model calls a tool that was not offered
    keyed_server.fake.reply("Well.")
    events = await post_run(keyed_server, run_input("Drop it."), **chat_key)
    assert "is gone" not in json.dumps(events)
    keyed_server.fake.call("weather", {})
    events = await post_run(keyed_server, run_input("How warm?", tools=[CLIENT_TOOL]), **chat_key)
    assert tools_in_request(keyed_server) == ["weather"]
    assert events[-1]["outcome"]["pendingToolCallIds"]
    keyed_server.fake.reply("Hello.")
    await post_run(keyed_server, run_input("Hi"), **tools_key)
    assert tools_in_request(keyed_server) == ["drop"]


async def test_key_without_scope_cannot_approve_call(keyed_server: ServerFixture) -> None:
    keyed_server.agent.tools = ToolRegistry([drop])
    chat_key, tools_key = (
        await keyed_server.make_key("ann"),
        await keyed_server.make_key("ann", scopes=("chat", "tools")),
    )
    keyed_server.fake.call("drop", {"name": "production"})
    events = await post_run(keyed_server, run_input("Drop it.", threadId="t"), **tools_key)
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    decision = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
    resumed = run_input(threadId="t", resume=[decision])
    assert await post_error(keyed_server, resumed, **chat_key) == (403, "missing_scope")
    keyed_server.fake.reply("Done.")
    events = await post_run(keyed_server, resumed, **tools_key)
    assert "production is gone" in json.dumps(events)


def test_server_of_root_warns_about_run_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "work").mkdir()
    (tmp_path / "config.toml").touch(0o600)
    loaded = settings.load(environment={}, file=tmp_path / "config.toml", keyring=lambda _: None)
    store = open_store(f"sqlite:///{tmp_path / 'chats.db'}")
    options: dict[str, Any] = {"store": f"sqlite:///{tmp_path / 'chats.db'}", "workspace": str(tmp_path / "work")}
    make_workspace(ServerConfig(**options, tool=("read_file",)), store, loaded)
    assert caplog.text == ""
    make_workspace(ServerConfig(**options, tool=("run_command",)), store, loaded)
    assert "runs as root" in caplog.text
