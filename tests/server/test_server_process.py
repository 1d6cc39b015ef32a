"""Tests of the server process: start, configuration, workers, signals and required keys."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from dragoman.cli.serve import config_from
from dragoman.errors import SettingsError
from dragoman.server.config import ServerConfig
from dragoman.server.server import attachments_url
from dragoman.settings import load
from tests.conftest import IS_FULL, WEIGHTS_VARIABLE
from tests.program_forks import Fork, ForkServer

PRELOAD = (
    "dragoman.cli",
    "dragoman.cli.keys",
    "dragoman.server.supervisor",
    "dragoman.store.engines.sqlite",
    # libraries that a server imports when it starts
    "genai_prices.data",
    "jsonschema_rs",
    "keyring.core",
    "re2",
    "uvloop",
    "websockets.server",
)


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer | None]:
    """A process that has imported the server, to fork commands from; none in the full run, which starts programs."""
    if IS_FULL:
        yield None
        return
    with ForkServer(*PRELOAD) as server:
        yield server


def make_environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment without the settings of this machine."""
    inherited = {
        name: os.environ[name] for name in ("PATH", "LANG", "VIRTUAL_ENV", WEIGHTS_VARIABLE) if name in os.environ
    }
    return {**inherited, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder), **more}


def start_command(
    forks: ForkServer | None, *arguments: str, environment: dict[str, str], stdout: IO[str], stderr: IO[str]
) -> Fork | subprocess.Popen[str]:
    """Start a command: as a fork, or without a server of forks as a program."""
    if forks is None:
        program = [sys.executable, "-c", "from dragoman.cli import main; main()", *arguments]
        return subprocess.Popen(program, stdout=stdout, stderr=stderr, text=True, env=environment)
    streams = (0, stdout.fileno(), stderr.fileno())
    return forks.start("dragoman.cli:main", "dragoman", *arguments, environment=environment, streams=streams)


@contextlib.contextmanager
def run_process(
    folder: Path, *arguments: str, forks: ForkServer | None = None, **more: str
) -> Iterator[tuple[Fork | subprocess.Popen[str], str]]:
    """Run a server in its own process, and yield the process, whose output can be read, and its address."""
    reader, writer = os.pipe()
    with open(reader) as output, (folder / "log.jsonl").open("w") as log:
        with open(writer, "w") as stdout:
            environment = make_environment(folder, **more)
            process = start_command(forks, "serve", *arguments, environment=environment, stdout=stdout, stderr=log)
        process.stdout = output
        try:
            line = output.readline()
            match = re.fullmatch(r"Dragoman runs at (http://\S+)\n", line)
            assert match is not None, line + (folder / "log.jsonl").read_text()
            yield process, match[1]
        finally:
            process.kill()
            process.wait()


def get_json(address: str, path: str = "/healthz") -> Any:
    with urllib.request.urlopen(f"{address}{path}", timeout=60) as response:
        return json.loads(response.read())


def wait_for_worker(address: str) -> int:
    """Wait until a worker responds, and return its process id."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return int(get_json(address)["worker"])
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def list_workers(pid: int) -> list[int]:
    """Return the worker processes of a supervisor."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def run_command(folder: Path, *arguments: str, forks: ForkServer | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = start_command(forks, *arguments, environment=make_environment(folder), stdout=stdout, stderr=stderr)
        try:
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())


def test_server_prints_address_and_exits_cleanly_on_sigterm(tmp_path: Path) -> None:
    with run_process(tmp_path, "--port", "0", "--store", str(tmp_path / "chats.db")) as (process, address):
        assert get_json(address)["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["route"] for line in lines] == ["/healthz"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="requires /proc")
def test_killed_worker_is_restarted_on_same_store(tmp_path: Path) -> None:
    with run_process(tmp_path, "--port", "0", "--workers", "2", "--store", str(tmp_path / "chats.db")) as (
        process,
        address,
    ):
        worker = get_json(address)["worker"]
        assert worker != process.pid
        os.kill(worker, signal.SIGKILL)
        assert wait_for_worker(address) != worker
        deadline = time.monotonic() + 60
        while len(list_workers(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        workers = list_workers(process.pid)
        assert len(workers) == 2
        process.kill()  # workers exit with their supervisor
        process.wait()
        while any(is_alive(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(is_alive(pid) for pid in workers)


def test_workers_exit_cleanly_on_sigterm(forks: ForkServer | None, tmp_path: Path) -> None:
    with run_process(tmp_path, "--port", "0", "--workers", "2", "--store", str(tmp_path / "chats.db"), forks=forks) as (
        process,
        address,
    ):
        get_json(address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_second_interrupt_ends_wait_for_active_call(forks: ForkServer | None, tmp_path: Path, workers: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_provider:
        silent_provider.settimeout(60)
        port = silent_provider.getsockname()[1]
        file = tmp_path / "config.toml"
        file.write_text(
            f'[providers.up]\ndialect = "openai_chat"\nbase_url = "http://127.0.0.1:{port}/v1"\napi_key = "sk-x"\n'
        )
        file.chmod(0o600)
        options = ("--port", "0", "--workers", str(workers), "--grace-s", "3600", "--store", str(tmp_path / "chats.db"))
        with run_process(tmp_path, *options, DRAGOMAN_CONFIG=str(file), forks=forks) as (process, address):
            get_json(address)
            host, _, own_port = address.removeprefix("http://").partition(":")
            body = b'{"model":"up:m","messages":[{"role":"user","content":"hi"}]}'
            with socket.create_connection((host, int(own_port)), timeout=60) as client:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)
                call, _ = silent_provider.accept()  # the call is in progress
                process.send_signal(signal.SIGINT)
                deadline = time.monotonic() + 60
                while "stopping; in progress: requests 1" not in (tmp_path / "log.jsonl").read_text():
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert process.poll() is None
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
                call.close()


@pytest.mark.parametrize(
    "arguments", [("--host", "0.0.0.0"), ("--require-keys",), ("--base-url", "https://chat.example.org")]
)
def test_public_server_requires_existing_key(
    forks: ForkServer | None, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    store = ("--store", str(tmp_path / "chats.db"))
    completed = run_command(tmp_path, "serve", "--port", "0", *store, *arguments, forks=forks)
    assert completed.returncode == 2
    assert "[no_keys]" in completed.stderr
    assert "dragoman keys create" in completed.stderr


def send_until_rejected(request: urllib.request.Request) -> None:
    """Repeat a request until the server has read its key again and raises."""
    while True:
        urllib.request.urlopen(request, timeout=60).close()
        time.sleep(0.05)


def test_server_on_all_interfaces_requires_key(forks: ForkServer | None, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "chats.db"))
    key = json.loads(run_command(tmp_path, "keys", "create", "--user", "ada", "--json", *store, forks=forks).stdout)
    with run_process(tmp_path, "--host", "0.0.0.0", "--port", "0", *store, forks=forks) as (_, address):
        local_address = address.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get_json(local_address, "/api/v1/agent/me")
        request = urllib.request.Request(
            f"{local_address}/api/v1/agent/me", headers={"Authorization": f"Bearer {key['key']}"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.loads(response.read())["userId"] == "ada"
        assert run_command(tmp_path, "keys", "revoke", key["public_id"], *store, forks=forks).returncode == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            send_until_rejected(request)


def test_port_in_use_is_reported(forks: ForkServer | None, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "chats.db"))
    with run_process(tmp_path, "--port", "0", *store, forks=forks) as (_, address):
        completed = run_command(tmp_path, "serve", "--port", address.rpartition(":")[2], *store, forks=forks)
    assert completed.returncode == 2
    assert "[cannot_listen]" in completed.stderr


def test_unknown_default_model_is_rejected_at_start(forks: ForkServer | None, tmp_path: Path) -> None:
    completed = run_command(
        tmp_path, "serve", "--port", "0", "--model", "sonet", "--store", str(tmp_path / "chats.db"), forks=forks
    )
    assert completed.returncode == 2
    assert "no model is called 'sonet'. Did you mean sonnet" in completed.stderr


def test_options_override_variables_and_file(forks: ForkServer | None, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[serve]\nport = 1\ngrace_s = 5\nmodel = "local"\nkeep_alive_s = 7.5\n')
    config.chmod(0o600)
    loaded = load(environment={}, file=config, keyring=lambda _: None)
    options = config_from({"port": 0}, "memory:", loaded)
    assert options == ServerConfig(store="memory:", port=0, grace_s=5, model="local", keep_alive_s=7.5)
    config.write_text(f"{config.read_text()}store = 'sqlite:///of-the-file.db'\n")
    assert config_from({}, None, load(environment={}, file=config, keyring=lambda _: None)).store.endswith(
        "of-the-file.db"
    )
    with run_process(
        tmp_path,
        "--store",
        str(tmp_path / "chats.db"),
        DRAGOMAN_CONFIG=str(config),
        DRAGOMAN_SERVE_PORT="0",
        forks=forks,
    ) as (_, address):
        assert not address.endswith(":1")


@pytest.mark.parametrize("line", ["prot = 1", "port = 70000", 'port = "8000"', 'log_level = "loud"', "grace_s = -1"])
def test_invalid_option_in_file_is_named(tmp_path: Path, line: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[serve]\n{line}\n")
    config.chmod(0o600)
    with pytest.raises(SettingsError, match=line.split(maxsplit=1)[0]):
        config_from({}, "memory:", load(environment={}, file=config, keyring=lambda _: None))


def test_attachments_default_to_folder_beside_database_file() -> None:
    default_url = attachments_url(ServerConfig(store="sqlite:////srv/my chats.db"))
    assert default_url == "file:///srv/my%20chats.db-attachments"
    with pytest.raises(SettingsError, match="--attachments"):
        attachments_url(ServerConfig(store="postgresql://localhost/chats"))
    explicit = ServerConfig(store="postgresql://localhost/chats", attachments="s3://files/here")
    assert attachments_url(explicit) == "s3://files/here"


@pytest.mark.parametrize(
    ("options", "is_required"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
        ({"host": "127.9.9.9"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "localhost.example.org"}, True),
        ({"host": "192.168.0.7"}, True),
        ({"require_keys": True}, True),
        ({"base_url": "https://chat.example.org"}, True),
        ({"base_url": "http://localhost:8000"}, False),
    ],
)
def test_keys_are_required_if_server_is_reachable_by_others(options: dict[str, Any], is_required: bool) -> None:
    assert ServerConfig(store="memory:", **options).requires_keys is is_required


def test_first_run_imports_no_library(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from dragoman.server.config import ServerConfig\n"
        "from dragoman.server.server import open_app_state\n"
        "async def main():\n"
        "    async with open_app_state(ServerConfig(store=f'sqlite:///{sys.argv[1]}/chats.db', port=0)) as state:\n"
        "        loaded = set(sys.modules)\n"
        "        await state.store.create_session('s1')\n"
        "        state.agent.services.price_usage(state.agent.services.get_model('sonnet'), TokenUsage(input_tokens=1, output_tokens=1), state.store.clock(), 1)\n"
        "        state.agent.services.policy()\n"
        "        print(sorted(name for name in set(sys.modules) - loaded if not name.startswith('dragoman')))\n"
        "from dragoman.message import TokenUsage\n"
        "asyncio.run(main())\n"
    )
    call = [sys.executable, "-c", program, str(tmp_path)]
    completed = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    assert not {name.partition(".")[0] for name in ast.literal_eval(completed.stdout)} - {"_zoneinfo", "zoneinfo"}
