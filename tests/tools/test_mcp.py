"""Tests of MCP servers as sources of tools: own and published servers, over pipes and HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    SideEffects,
    TextBlock,
    ToolResultBlock,
)
from dragoman.errors import ToolSourceError
from dragoman.tools import ToolRegistry, dispatch
from dragoman.tools.mcp import McpServer, McpTools, servers_from, tool_name
from tests import program_forks
from tests.conftest import ROOT
from tests.program_forks import Fork, ForkServer
from tests.servers.processes import node, npm
from tests.tools.tool_fixtures import EventLog, make_call, make_session, text_of

TARGET = "tests.tools.mcp_server:main"


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkServer]:
    """A process that has imported the SDK, from which its servers are forked."""
    with ForkServer("tests.tools.mcp_server", "mcp.server.stdio", "uvicorn.protocols.http.auto") as server:
        yield server


def make_small_server(name: str = "probe", **options: Any) -> McpServer:
    """Return a server that starts immediately, for tests of its process."""
    program = Path(__file__).with_name("small_mcp_server.py")
    return McpServer(name=name, command=sys.executable, args=("-S", str(program)), **options)


class HttpServer:
    """The server over HTTP, in its own process, that can be restarted at the same address."""

    def __init__(self, programs: ForkServer) -> None:
        self._programs = programs
        self._process: Fork | None = None
        self.url = ""

    def start(self) -> None:
        match = re.search(r":(\d+)/", self.url)
        reader, writer = os.pipe()
        with open(os.devnull, "r+") as null, open(reader) as output:
            self._process = self._programs.start(
                TARGET,
                "mcp_server",
                "http",
                match[1] if match else "0",
                environment={**os.environ, "WORD": "sesame"},
                streams=(null.fileno(), writer, null.fileno()),
            )
            os.close(writer)
            self.url = output.readline().strip()

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@pytest.fixture
def http_server(programs: ForkServer) -> Iterator[HttpServer]:
    """A server that a test may stop."""
    running = HttpServer(programs)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def module_http_server(programs: ForkServer) -> Iterator[HttpServer]:
    """One server for all tests that do not stop it."""
    running = HttpServer(programs)
    running.start()
    yield running
    running.stop()


@pytest.fixture(params=["pipes", "http"])
def server(request: pytest.FixtureRequest, programs: ForkServer) -> McpServer:
    if request.param == "pipes":
        arguments = ("-S", program_forks.__file__, programs.path, TARGET, "mcp_server", "stdio")
        return McpServer(name="probe", command=sys.executable, args=arguments, cwd=str(ROOT))
    http_server: HttpServer = request.getfixturevalue("module_http_server")
    return McpServer(name="probe", url=http_server.url, headers={"Authorization": "Bearer sesame"})


@contextlib.asynccontextmanager
async def open_tools(*servers: McpServer) -> AsyncIterator[tuple[McpTools, ToolRegistry]]:
    async with McpTools(servers) as tools:
        yield tools, ToolRegistry(tools.tools)


async def call(registry: ToolRegistry, name: str, **arguments: Any) -> ToolResultBlock:
    (result,) = await dispatch([make_call(name, **arguments)], registry, make_session())
    return result


# --- registration ----------------------------------------------------------------------------------------------------


async def test_tool_names_contain_server_and_tool_on_every_page(server: McpServer) -> None:
    async with open_tools(server) as (tools, registry):
        assert {"probe__echo", "probe__every_kind_of_content", "probe__second_page_tool"} <= {t.name for t in registry}
        assert all(len(tool.name) <= 64 for tool in registry)
        echo = registry["probe__echo"].definition
        assert echo.description == "The tool echo."
        assert echo.input_schema["properties"]["to"] == {"type": ["string", "null"], "default": None}
        assert not echo.requires_workspace
        assert tools.failures == {}
        taken, bomb = tools.rejected
        assert (taken.server, taken.tool) == ("probe", "every_kind_of_content")
        assert "is the name of another" in taken.reasons[0]
        assert (bomb.server, bomb.tool) == ("probe", "bomb")
        assert "more than 10000 values" in bomb.reasons[0]


async def test_number_of_tools_of_a_server_is_limited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dragoman.tools.mcp._MAX_TOOLS", 2)
    async with open_tools(make_small_server()) as (_, registry):
        assert len(registry) == 2
    assert "more than 2 tools" in caplog.text


async def test_side_effects_are_configured_and_hints_need_trust() -> None:
    async with open_tools(make_small_server()) as (_, registry):
        assert {tool.definition.side_effects for tool in registry} == {SideEffects.EXECUTE}
    options: dict[str, Any] = {"trust_hints": True, "tool_side_effects": {"echo": SideEffects.NONE}}
    async with open_tools(make_small_server(side_effects=SideEffects.WRITE, **options)) as (_, registry):
        assert registry["probe__structured"].definition.side_effects is SideEffects.READ
        assert registry["probe__echo"].definition.side_effects is SideEffects.NONE
        assert registry["probe__fail"].definition.side_effects is SideEffects.WRITE


async def test_only_allowed_tools_are_registered() -> None:
    async with open_tools(make_small_server(allowed=("echo", "pid"))) as (_, registry):
        assert [tool.name for tool in registry] == ["probe__echo", "probe__pid"]


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("files", "readFile", "files__read_file"),
        ("My-Server", "getHTTPResponse", "my_server__get_http_response"),
        ("s", "a.b/c d", "s__a_b_c_d"),
        ("s", "v2-list", "s__v_2_list"),
        ("1st", "2nd", "n_1st__n_2nd"),
        ("s", "日本", "s__n"),
    ],
)
def test_tool_name_becomes_snake_case(server: str, tool: str, name: str) -> None:
    assert tool_name(server, tool) == name


def test_long_names_stay_distinct() -> None:
    first, second = tool_name("s", "x" * 200 + "a"), tool_name("s", "x" * 200 + "b")
    assert first != second
    assert len(first) == len(second) == 64


# --- calls -----------------------------------------------------------------------------------------------------------


async def test_every_content_type_becomes_a_block(server: McpServer) -> None:
    audio = base64.b64encode(b"RIFF....WAVE").decode()
    async with open_tools(server) as (_, registry):
        assert (await call(registry, "probe__every_kind_of_content")).content == (
            TextBlock("words"),
            ImageBlock(ImageSource("base64", "aGk="), "image/png"),
            AudioBlock(ImageSource("base64", audio), "audio/wav"),
            TextBlock("[notes](file:///notes.txt): Some notes."),
            TextBlock("file:///a.txt\nembedded"),
            DocumentBlock(ImageSource("base64", "aGk="), "application/pdf", "file:///a.pdf"),
        )
        assert text_of(await call(registry, "probe__structured")) == '{"degrees":21}'
        failed = await call(registry, "probe__fail")
        assert (text_of(failed), failed.is_error) == ("it rains", True)
        rejected = await call(registry, "probe__refuse")
        assert rejected.is_error
        assert text_of(rejected).startswith("The MCP server rejected the call: ")


async def test_input_is_validated_before_the_server_receives_it(server: McpServer) -> None:
    async with open_tools(server) as (_, registry):
        assert "was not run" in text_of(await call(registry, "probe__echo", text=7))
        assert text_of(await call(registry, "probe__echo", text="ä", to=None)) == "ä"


async def test_calls_run_concurrently_over_one_connection(server: McpServer) -> None:
    async with open_tools(server) as (_, registry):
        calls = [make_call("probe__echo", text=str(number)) for number in range(20)]
        results = await dispatch(calls, registry, make_session())
        assert [text_of(result) for result in results] == [str(number) for number in range(20)]


async def test_slow_call_times_out_and_the_next_call_works() -> None:
    async with open_tools(make_small_server(timeout_s=3)) as (_, registry):
        assert text_of(await call(registry, "probe__wait")) == "The tool 'probe__wait' took longer than 3 s"
        assert text_of(await call(registry, "probe__echo", text="still here")) == "still here"


async def test_call_can_be_cancelled(server: McpServer) -> None:
    async with open_tools(server) as (_, registry):
        stop, events = asyncio.Event(), EventLog()
        coroutine = dispatch([make_call("probe__wait")], registry, make_session(), stop=stop, events=events)
        task = asyncio.create_task(coroutine)
        while "tool.called" not in events.types:
            await asyncio.sleep(0)
        stop.set()
        (result,) = await task
        assert result.is_error
        assert text_of(await call(registry, "probe__echo", text="still here")) == "still here"


async def test_server_receives_configured_variables_and_no_other_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    monkeypatch.setenv("GIVEN", "word")
    async with open_tools(make_small_server(env={"TAKEN": "a ${GIVEN}"})) as (_, registry):
        assert text_of(await call(registry, "probe__environment", variable="TAKEN")) == "a word"
        assert text_of(await call(registry, "probe__environment", variable="SOME_API_KEY")) == ""


# --- failures --------------------------------------------------------------------------------------------------------


async def test_unreachable_server_is_reported_and_others_work(module_http_server: HttpServer) -> None:
    servers = [
        make_small_server("good", allowed=("echo",)),
        McpServer(name="missing", command="no-such-program-here"),
        McpServer(name="ends", command="/bin/sh", args=("-c", "echo no config >&2; exit 3")),
        McpServer(name="mute", command="/bin/sleep", args=("600",), connect_timeout_s=0.5),
        McpServer(name="babbles", command="/bin/sh", args=("-c", "echo hello; cat > /dev/null"), connect_timeout_s=2),
        McpServer(name="denied", url=module_http_server.url),
        McpServer(name="closed", url="http://127.0.0.1:9/mcp"),
        McpServer(name="unset", command="x", env={"A": "${NO_SUCH_VARIABLE}"}),
    ]
    async with open_tools(*servers) as (tools, registry):
        assert [tool.name for tool in registry] == ["good__echo"]
        assert sorted(tools.failures) == ["babbles", "closed", "denied", "ends", "missing", "mute", "unset"]
        assert "No such file" in str(tools.failures["missing"])
        assert "its output: no config" in str(tools.failures["ends"])
        assert "no response in 0.5 s" in str(tools.failures["mute"])
        assert "NO_SUCH_VARIABLE is not set" in str(tools.failures["unset"])
        assert text_of(await call(registry, "good__echo", text="hi")) == "hi"


async def test_server_that_dies_fails_the_call_and_is_restarted_for_the_next() -> None:
    async with open_tools(make_small_server()) as (_, registry):
        first = text_of(await call(registry, "probe__pid"))
        died = await call(registry, "probe__die")
        assert died.is_error
        assert "its effect is unknown" in text_of(died)
        second = text_of(await call(registry, "probe__pid"))
        assert second.isdigit()
        assert second != first


async def test_read_only_call_is_repeated_after_its_server_died(tmp_path: Path) -> None:
    harmless = make_small_server(tool_side_effects={"die-once": SideEffects.READ})
    async with open_tools(harmless) as (_, registry):
        result = await call(registry, "probe__die_once", path=str(tmp_path / "died"))
        assert (text_of(result), result.is_error) == ("done", False)


async def test_server_that_dies_repeatedly_is_not_restarted_for_a_while() -> None:
    async with open_tools(make_small_server()) as (_, registry):
        for _ in range(2):
            assert "was lost" in text_of(await call(registry, "probe__die"))
        assert "2 times in a row; next attempt in" in text_of(await call(registry, "probe__pid"))


async def test_restarted_http_server_is_used_again(http_server: HttpServer) -> None:
    server = McpServer(name="probe", url=http_server.url, headers={"Authorization": "Bearer sesame"})
    async with open_tools(server) as (_, registry):
        assert text_of(await call(registry, "probe__echo", text="a")) == "a"
        http_server.stop()
        assert (await call(registry, "probe__echo", text="b")).is_error
        http_server.start()
        assert text_of(await call(registry, "probe__echo", text="c")) == "c"


async def test_close_stops_the_servers_and_later_calls_fail() -> None:
    async with open_tools(make_small_server()) as (_, registry):
        pid = int(text_of(await call(registry, "probe__pid")))
    assert not Path(f"/proc/{pid}").exists()
    assert "the connection is closed" in text_of(await call(registry, "probe__echo", text="a"))


async def test_cancellation_during_start_stops_every_server(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    slow = McpServer(name="slow", command="/bin/sh", args=("-c", f"echo $$ > {file}; exec sleep 600"))
    start = asyncio.create_task(McpTools([slow]).__aenter__())
    while not file.is_file() or not file.read_text().strip():
        await asyncio.sleep(0.01)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not Path(f"/proc/{file.read_text().strip()}").exists()


# --- configuration ---------------------------------------------------------------------------------------------------


def test_servers_are_read_from_the_common_table_format() -> None:
    first, second = servers_from(
        {
            "files": {"type": "stdio", "command": "npx", "args": ["-y", "files"], "env": {"A": "b"}},
            "web": {"url": "https://example.org/mcp", "headers": {"X": "y"}, "side_effects": "read", "allowed": ["a"]},
        }
    )
    assert first == McpServer(name="files", command="npx", args=("-y", "files"), env={"A": "b"})
    assert (second.url, second.side_effects, second.allowed) == ("https://example.org/mcp", SideEffects.READ, ("a",))


@pytest.mark.parametrize(
    "entry", [{}, {"command": "a", "url": "b"}, {"command": 7}, {"command": "a", "autostart": True}], ids=str
)
def test_invalid_server_entry_is_rejected_with_its_name(entry: dict[str, Any]) -> None:
    with pytest.raises(ToolSourceError, match="MCP server 'odd'"):
        servers_from({"odd": entry})


def test_duplicate_server_names_are_rejected_and_keys_are_hidden() -> None:
    server = McpServer(name="a", url="https://example.org", headers={"Authorization": "Bearer secret"})
    assert "secret" not in repr(server)
    with pytest.raises(ToolSourceError, match="the same name"):
        McpTools([server, server])


# --- published servers -----------------------------------------------------------------------------------------------

PINS = Path(__file__).parent / "mcp_servers"
PACKAGES = ROOT / ".cache" / "mcp-servers"


@pytest.fixture(scope="session")
def published_servers() -> Path:
    """The pinned packages, installed once per checkout."""
    PACKAGES.mkdir(parents=True, exist_ok=True)
    pins = (PINS / "package-lock.json").read_bytes()
    stamp = PACKAGES / "installed.json"
    with (PACKAGES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.is_file() or stamp.read_bytes() != pins:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(PINS / name, PACKAGES)
            command = [*npm(), "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
            path = f"{Path(node()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=PACKAGES, env={**os.environ, "PATH": path}
            )
            if done.returncode:
                pytest.skip(f"the published servers cannot be installed: {done.stderr.strip()[-300:]}")
            stamp.write_bytes(pins)
    return PACKAGES / "node_modules" / "@modelcontextprotocol"


async def test_reference_server_works_over_pipes(published_servers: Path) -> None:
    program = published_servers / "server-everything" / "dist" / "index.js"
    async with open_tools(McpServer(name="everything", command=node(), args=(str(program), "stdio"))) as (
        tools,
        registry,
    ):
        assert tools.rejected == ()
        assert len(registry) > 10
        assert text_of(await call(registry, "everything__echo", message="hi")) == "Echo: hi"
        assert "5" in text_of(await call(registry, "everything__get_sum", a=2, b=3))
        image = await call(registry, "everything__get_tiny_image")
        assert any(isinstance(block, ImageBlock) and block.media_type == "image/png" for block in image.content)
        structured = await call(registry, "everything__get_structured_content", location="Chicago")
        assert "temperature" in text_of(structured)
        assert text_of(await call(registry, "everything__get_resource_links", count=2)).count("](demo://") == 2
        assert "was not run" in text_of(await call(registry, "everything__get_structured_content", location="Rome"))


async def test_reference_server_works_over_http_and_after_a_restart(published_servers: Path) -> None:
    program = published_servers / "server-everything" / "dist" / "index.js"
    port = free_port()

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [node(), str(program), "streamableHttp"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PORT": str(port)},
        )
        assert process.stderr is not None
        while "listening" not in process.stderr.readline():
            assert process.poll() is None
        return process

    with start() as first:
        async with open_tools(McpServer(name="everything", url=f"http://127.0.0.1:{port}/mcp")) as (tools, registry):
            assert tools.failures == {}
            assert text_of(await call(registry, "everything__echo", message="one")) == "Echo: one"
            first.kill()
            first.wait()
            with start() as second:
                assert text_of(await call(registry, "everything__echo", message="two")) == "Echo: two"
                second.kill()


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_published_file_server_works(published_servers: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("remember the milk")
    program = published_servers / "server-filesystem" / "dist" / "index.js"
    server = McpServer(name="files", command=node(), args=(str(program), str(tmp_path)), trust_hints=True)
    async with open_tools(server) as (tools, registry):
        assert tools.rejected == ()
        assert registry["files__read_text_file"].definition.side_effects is SideEffects.READ
        assert registry["files__write_file"].definition.side_effects is SideEffects.EXECUTE
        result = await call(registry, "files__read_text_file", path=str(tmp_path / "note.txt"))
        assert text_of(result) == "remember the milk"
        assert (await call(registry, "files__read_text_file", path="/etc/passwd")).is_error
