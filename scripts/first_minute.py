"""Repeat the first minute of a new user and print the times: ``python -m scripts.first_minute [run] [test]``.

The user clones the repository to a machine with Python and ``make``: an empty environment (``env -i``), an empty home
folder, empty caches, and no compiler, uv or Node.js on ``PATH``. The user runs ``make run``, opens the page, asks the
embedded model a question, and runs ``make run`` again. A third run with filled caches and a new clone shows how much of
the first one is not download. Then the user runs ``make test``, here for a few tests.

Exits with 1 if a command fails or a time exceeds its target. The clone contains what is committed.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
_ABSENT: Final = re.compile(
    r"(.*-)?(cc|c\+\+|cpp|gcc|g\+\+|clang|clang\+\+|c89|c99|c89-gcc|c99-gcc|gcc-\d+|g\+\+-\d+|cpp-\d+)"
    r"|rustc|cargo|uv|uvx|node|nodejs|npm|npx|python.*|pip.*"
)
_TEST: Final = "tests/test_codec.py"
_QUESTION: Final = "What is the capital of France?"


class Start(NamedTuple):
    """The times of one ``make run``, in seconds."""

    page_s: float  # until the page answers
    token_s: float  # from the page to the first token of an answer
    cpu_s: float  # processor time of all programs, which does not depend on other programs of the machine


class Machine:
    """A machine of a new user, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "dragoman"
        self.home = folder / "home"
        self._tools = folder / "bin"
        self._began = 0.0
        self.home.mkdir()
        self._link_tools()

    def _link_tools(self) -> None:
        """Make a folder of programs without compilers, uv and Node.js, and with this Python as ``python3``."""
        self._tools.mkdir()
        for program in (*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()):
            link = self._tools / program.name
            if not _ABSENT.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)
        (self._tools / "python3").symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of the user's programs."""
        return {"HOME": str(self.home), "PATH": str(self._tools), "LANG": "C.UTF-8"}

    def make_clone(self) -> None:
        """Clone the repository anew, and forget the weights of the embedded model."""
        shutil.rmtree(self.clone, ignore_errors=True)
        shutil.rmtree(self.home / ".local", ignore_errors=True)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.clone)], check=True)

    def start(self) -> Start:
        """Run ``make run`` until the first token of an answer."""
        began, cpu_before = time.monotonic(), _cpu_of_children()
        self._began = began
        with self._make_run() as address:
            urllib.request.urlopen(address, timeout=60).read()
            page_at = time.monotonic()
            _wait_for_token(address)
            token_at = time.monotonic()
        return Start(page_at - began, token_at - page_at, _cpu_of_children() - cpu_before)

    @contextmanager
    def _make_run(self) -> Iterator[str]:
        """``make run`` while the block lasts. Gives the address that it prints."""
        command = ["make", "run"]
        with subprocess.Popen(
            command, cwd=self.clone, env=self.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    print(f"{time.monotonic() - self._began:6.1f} s  {line}", end="", flush=True)
                    if match := re.match(r"Dragoman runs at (\S+)", line):
                        yield match[1]
                        return
                raise SystemExit(f"make run ended before the page answered, with exit code {process.wait()}")
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)

    def test(self) -> float:
        """Run ``make test`` for a few tests, and return its time."""
        began = time.monotonic()
        command = ["make", "test", f"PYTEST_ARGS={_TEST}"]
        done = subprocess.run(command, cwd=self.clone, env=self.environment, check=False)
        if done.returncode:
            raise SystemExit(f"make test ended with exit code {done.returncode}")
        return time.monotonic() - began


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _wait_for_token(address: str) -> None:
    """Ask a question, and return when the first token of the answer arrives."""
    id_ = uuid.uuid4().hex
    run = {"threadId": id_, "runId": id_, "messages": [{"id": f"{id_}-1", "role": "user", "content": _QUESTION}]}
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    url = f"{address.rstrip('/')}/api/v1/agent/runs"
    request = urllib.request.Request(url, json.dumps(run).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as stream:
        for line in stream:
            if b"TEXT_MESSAGE_CONTENT" in line:
                return
    raise SystemExit("the embedded model did not answer")


def main(parts: list[str]) -> int:
    """Run the parts of the trial, print the times beside their targets, and return the exit code."""
    rows: list[tuple[str, float, float | None]] = []
    with tempfile.TemporaryDirectory(prefix="dragoman-first-minute-") as name:
        machine = Machine(Path(name))
        machine.make_clone()
        if "run" in parts:
            rows += _measure_run(machine)
        if "test" in parts:
            print("make test", flush=True)
            rows.append((f"make test PYTEST_ARGS={_TEST}, with the development lock", machine.test(), None))
    for label, seconds, target in rows:
        aim = "" if target is None else f"   target {target:.0f} s{'' if seconds <= target else ': missed'}"
        print(f"{label:<66}{seconds:7.1f} s{aim}")
    return int(any(target is not None and seconds > target for _, seconds, target in rows))


def _measure_run(machine: Machine) -> list[tuple[str, float, float | None]]:
    print("make run, with empty caches", flush=True)
    first = machine.start()
    print("make run, a second time", flush=True)
    again = machine.start()
    machine.make_clone()
    print("make run in a new clone, with filled caches", flush=True)
    cached = machine.start()
    for label, start in (("first", first), ("second", again), ("cached", cached)):
        print(f"processor time of the {label} make run: {start.cpu_s:.1f} s")
    return [
        ("make run until the page answers, with empty caches", first.page_s, 60.0),
        ("  of which not download: the same with filled caches", cached.page_s, 20.0),
        ("  then until the first token of the embedded model", first.token_s, 2.0),
        ("make run a second time until the page answers", again.page_s, 3.0),
        ("  then until the first token of the embedded model", again.token_s, 2.0),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["run", "test"]))
