"""The server as a process: how it is begun, how it is told to stop, and what it refuses to do."""

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
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.serve import config_from
from dragoman.errors import SettingsError
from dragoman.server.config import ServerConfig
from dragoman.server.server import attachments_url
from dragoman.settings import load
from tests.conftest import WEIGHTS_VARIABLE


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from dragoman.cli import main; main()", *arguments]


def make_environment(folder: Path, **more: str) -> dict[str, str]:
    """An environment that knows nothing of this machine's settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "VIRTUAL_ENV", WEIGHTS_VARIABLE) if name in os.environ}
    return {**kept, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder), **more}


@contextlib.contextmanager
def run_process(folder: Path, *arguments: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    with (folder / "log.jsonl").open("w") as log:
        begun = subprocess.Popen(
            command("serve", *arguments),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=make_environment(folder, **more),
        )
        try:
            assert begun.stdout is not None
            said = begun.stdout.readline()
            found = re.fullmatch(r"Dragoman runs at (http://\S+)\n", said)
            assert found is not None, said + (folder / "log.jsonl").read_text()
            yield begun, found[1]
        finally:
            begun.kill()
            begun.wait()
            begun.stdout.close()


def get_json(address: str, path: str = "/healthz") -> Any:
    with urllib.request.urlopen(f"{address}{path}", timeout=60) as answer:
        return json.loads(answer.read())


def wait_for_worker(address: str) -> int:
    """Which worker answers, once one does."""
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
    """The processes that a supervisor keeps."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in children if "spawn_main" in Path(f"/proc/{one}/cmdline").read_text()]


def run_command(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        env=make_environment(folder, **more),
        timeout=60,
        check=False,
    )


def test_it_says_where_it_is_and_ends_well_when_it_is_told_to(tmp_path: Path) -> None:
    with run_process(tmp_path, "--port", "0", "--store", str(tmp_path / "chats.db")) as (begun, address):
        assert get_json(address)["status"] == "ok"
        begun.send_signal(signal.SIGTERM)
        assert begun.wait(20) == 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["route"] for line in lines] == ["/healthz"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here to see processes in")
def test_workers_share_one_store_and_one_that_dies_is_begun_again(tmp_path: Path) -> None:
    with run_process(tmp_path, "--port", "0", "--workers", "2", "--store", str(tmp_path / "chats.db")) as (
        begun,
        address,
    ):
        worker = get_json(address)["worker"]
        assert worker != begun.pid
        os.kill(worker, signal.SIGKILL)
        assert wait_for_worker(address) != worker
        deadline = time.monotonic() + 60
        while len(list_workers(begun.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        workers = list_workers(begun.pid)
        assert len(workers) == 2
        begun.kill()  # whom the others do not survive
        begun.wait()
        while any(is_alive(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(is_alive(pid) for pid in workers)


def test_workers_end_well_when_they_are_told_to(tmp_path: Path) -> None:
    with run_process(tmp_path, "--port", "0", "--workers", "2", "--store", str(tmp_path / "chats.db")) as (
        begun,
        address,
    ):
        get_json(address)
        begun.send_signal(signal.SIGTERM)
        assert begun.wait(30) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_interrupt_ends_the_wait_for_a_call(tmp_path: Path, workers: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_provider:
        silent_provider.settimeout(60)
        port = silent_provider.getsockname()[1]
        file = tmp_path / "config.toml"
        file.write_text(
            f'[providers.up]\ndialect = "openai_chat"\nbase_url = "http://127.0.0.1:{port}/v1"\napi_key = "sk-x"\n'
        )
        file.chmod(0o600)
        options = ("--port", "0", "--workers", str(workers), "--grace-s", "3600", "--store", str(tmp_path / "chats.db"))
        with run_process(tmp_path, *options, DRAGOMAN_CONFIG=str(file)) as (begun, address):
            get_json(address)
            host, _, own_port = address.removeprefix("http://").partition(":")
            body = b'{"model":"up:m","messages":[{"role":"user","content":"hi"}]}'
            with socket.create_connection((host, int(own_port)), timeout=60) as client:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)
                call, _ = silent_provider.accept()  # the call is in progress
                begun.send_signal(signal.SIGINT)
                deadline = time.monotonic() + 60
                while "stopping; in progress: requests 1" not in (tmp_path / "log.jsonl").read_text():
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert begun.poll() is None
                begun.send_signal(signal.SIGINT)
                assert begun.wait(60) == 0
                call.close()


@pytest.mark.parametrize(
    "arguments", [("--host", "0.0.0.0"), ("--require-keys",), ("--base-url", "https://chat.example.org")]
)
def test_nobody_else_is_let_near_it_before_there_is_a_key(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    store = ("--store", str(tmp_path / "chats.db"))
    refused = run_command(tmp_path, "serve", "--port", "0", *store, *arguments)
    assert refused.returncode == 2
    assert "[no_keys]" in refused.stderr
    assert "dragoman keys create" in refused.stderr


def send_until_refused(request: urllib.request.Request) -> None:
    """Repeat a request until the server has read its key again and raises."""
    while True:
        urllib.request.urlopen(request, timeout=60).close()
        time.sleep(0.05)


def test_with_a_key_it_listens_everywhere_and_demands_it(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "chats.db"))
    made = json.loads(run_command(tmp_path, "keys", "create", "--user", "ada", "--json", *store).stdout)
    with run_process(tmp_path, "--host", "0.0.0.0", "--port", "0", *store) as (_, address):
        here = address.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get_json(here, "/api/v1/agent/me")
        request = urllib.request.Request(f"{here}/api/v1/agent/me", headers={"Authorization": f"Bearer {made['key']}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.loads(answer.read())["userId"] == "ada"
        assert run_command(tmp_path, "keys", "revoke", made["public_id"], *store).returncode == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            send_until_refused(request)


def test_a_port_that_is_taken_is_said_so(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "chats.db"))
    with run_process(tmp_path, "--port", "0", *store) as (_, address):
        refused = run_command(tmp_path, "serve", "--port", address.rpartition(":")[2], *store)
    assert refused.returncode == 2
    assert "[cannot_listen]" in refused.stderr


def test_an_unknown_default_model_is_an_error_at_the_start(tmp_path: Path) -> None:
    rejected = run_command(tmp_path, "serve", "--port", "0", "--model", "sonet", "--store", str(tmp_path / "chats.db"))
    assert rejected.returncode == 2
    assert "no model is called 'sonet'. Did you mean sonnet" in rejected.stderr


def test_options_come_from_the_command_line_then_variables_then_the_file(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[serve]\nport = 1\ngrace_s = 5\nmodel = "local"\nkeep_alive_s = 7.5\n')
    config.chmod(0o600)
    found = load(environment={}, file=config, keyring=lambda _: None)
    options = config_from({"port": 0}, "memory:", found)
    assert options == ServerConfig(store="memory:", port=0, grace_s=5, model="local", keep_alive_s=7.5)
    config.write_text(f"{config.read_text()}store = 'sqlite:///of-the-file.db'\n")
    assert config_from({}, None, load(environment={}, file=config, keyring=lambda _: None)).store.endswith(
        "of-the-file.db"
    )
    with run_process(
        tmp_path, "--store", str(tmp_path / "chats.db"), DRAGOMAN_CONFIG=str(config), DRAGOMAN_SERVE_PORT="0"
    ) as (_, address):
        assert not address.endswith(":1")


@pytest.mark.parametrize("said", ["prot = 1", "port = 70000", 'port = "8000"', 'log_level = "loud"', "grace_s = -1"])
def test_a_mistake_in_the_file_is_named(tmp_path: Path, said: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[serve]\n{said}\n")
    config.chmod(0o600)
    with pytest.raises(SettingsError, match=said.split(maxsplit=1)[0]):
        config_from({}, "memory:", load(environment={}, file=config, keyring=lambda _: None))


def test_attachments_lie_beside_a_file_and_are_named_for_a_server() -> None:
    beside = attachments_url(ServerConfig(store="sqlite:////srv/my chats.db"))
    assert beside == "file:///srv/my%20chats.db-attachments"
    with pytest.raises(SettingsError, match="--attachments"):
        attachments_url(ServerConfig(store="postgresql://localhost/chats"))
    named = ServerConfig(store="postgresql://localhost/chats", attachments="s3://files/here")
    assert attachments_url(named) == "s3://files/here"


@pytest.mark.parametrize(
    ("given", "demands"),
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
def test_keys_are_demanded_wherever_others_can_come_from(given: dict[str, Any], demands: bool) -> None:
    assert ServerConfig(store="memory:", **given).requires_keys is demands


def test_the_first_run_imports_no_library(tmp_path: Path) -> None:
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
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    assert not {name.partition(".")[0] for name in ast.literal_eval(done.stdout)} - {"_zoneinfo", "zoneinfo"}
