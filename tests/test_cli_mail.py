"""Tests of ``dragoman letter`` and ``dragoman mail``, run as a user runs them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.letters import answer_letter, letter_schema, needs_input_letter, task_result_letter, write_letter
from dragoman.mail import Mail
from dragoman.store import open_store
from tests import cli_runner
from tests.letters.examples import COMPLETE, EXAMPLES

COMMAND = Path(sys.executable).with_name("dragoman")
SECRET = "tr0ub4dor-and-3-horses"
WHEN = "2026-11-15T12:00:00Z"


class Home:
    """A user with a store in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "SYSTEMROOT")}
        self.environment = {
            **inherited,
            "HOME": str(folder),
            "COLUMNS": "200",
            "NO_COLOR": "1",
            "PYTHONUTF8": "1",
            "DRAGOMAN_STORE": self.url,
        }

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'mail.db'}"

    def run(self, *arguments: str | Path, stdin: bytes | str = b"") -> subprocess.CompletedProcess[bytes]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = cli_runner.run(*arguments, environment=self.environment, stdin=data)
        assert b"Traceback" not in done.stderr
        return done

    def json(self, *arguments: str | Path, stdin: bytes | str = b"") -> Any:
        return json.loads(self.run(*arguments, "--json", stdin=stdin).stdout)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


# --- letter ----------------------------------------------------------------------------------------------------------


def test_valid_letter_is_printed_with_its_id(home: Home) -> None:
    done = home.run("letter", "validate", "-", stdin=COMPLETE)
    assert done.returncode == 0
    assert done.stdout.startswith(b"valid: task_result 6601cdb4")


def test_every_error_of_a_letter_is_printed_with_its_location(home: Home) -> None:
    file = home.folder / "wrong.json"
    file.write_text(json.dumps({**EXAMPLES["complete"], "task_id": "task 1", "payload": {"status": "done"}}))
    done = home.run("letter", "validate", file)
    assert done.returncode == 1
    lines = done.stdout.decode().splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["$.task_id:", "$.payload.result:", "$.payload.status:"]
    assert lines[-1] == "not valid [invalid_letter]"
    report = home.json("letter", "validate", file)
    assert (report["valid"], report["letters"][0]["code"], len(report["letters"][0]["errors"])) == (
        False,
        "invalid_letter",
        3,
    )


def test_several_letters_are_one_per_line(home: Home) -> None:
    lines = [json.dumps(EXAMPLES["basic"]), "not JSON", json.dumps({**EXAMPLES["error"], "priority": 1})]
    done = home.run("letter", "validate", "-", stdin="\n".join(lines))
    assert done.returncode == 1
    out = done.stdout.decode()
    assert "error    -:2 " in out
    assert "warning  -:3 $.priority" in out
    assert out.endswith("3 letters, 1 of them not valid\n")


def test_missing_file_is_exit_code_2(home: Home) -> None:
    done = home.run("letter", "validate", home.folder / "nothing.json")
    assert (done.returncode, done.stdout) == (2, b"")


def test_schema_is_printed(home: Home) -> None:
    assert json.loads(home.run("letter", "schema").stdout) == letter_schema()


# --- mail ------------------------------------------------------------------------------------------------------------


def make_result(**fields: Any) -> bytes:
    values = {
        "sender_id": "CA",
        "recipient_id": "ARCH",
        "task_id": "T-1",
        "timestamp": WHEN,
        "output": "done",
        **fields,
    }
    return write_letter(task_result_letter(**values))


def test_letter_is_sent_once_and_listing_does_not_receive_it(home: Home) -> None:
    assert home.json("mail", "send", "-", stdin=make_result(message_id="m1"))["is_new"]
    again = home.run("mail", "send", "-", stdin=make_result(message_id="m1"))
    assert again.stdout == b"already sent to ARCH: m1\n"
    (box,) = home.json("mail", "inbox")["mailboxes"]
    assert (box["recipient_id"], box["ready"]) == ("ARCH", 1)
    (listed,) = home.json("mail", "inbox", "ARCH")["letters"]
    assert (listed["letter_id"], listed["state"], listed["letter"]["task_id"]) == ("m1", "ready", "T-1")
    assert home.json("mail", "inbox", "--task", "T-1")["letters"] == [listed]
    output = home.run("mail", "inbox", "ARCH").stdout.decode()
    assert "CA → ARCH  T-1  task_result  success: done" in output
    assert home.json("mail", "inbox", "--team", "other")["mailboxes"] == []


def test_invalid_letter_is_not_sent(home: Home) -> None:
    done = home.run("mail", "send", "-", stdin=json.dumps({**EXAMPLES["complete"], "type": "done"}))
    assert done.returncode == 2
    assert done.stderr.decode().rstrip().endswith("[unknown_letter_type]")
    assert home.run("mail", "inbox").stdout == b"no mail\n"


def test_dead_letter_is_listed_with_reason_and_resent(home: Home) -> None:
    async def reject_letter() -> None:
        async with open_store(home.url) as store:
            mail = Mail(store)
            await mail.send(make_result(message_id="m1"))
            (delivery,) = await mail.receive("ARCH")
            await delivery.nack("it cannot be done", error_class="not_retryable")

    asyncio.run(reject_letter())
    (dead,) = home.json("mail", "dead")["dead_letters"]
    assert (dead["letter_id"], dead["reason"], dead["error"]) == ("m1", "not_retryable", "it cannot be done")
    assert "raw" not in dead
    assert dead["id"] in home.run("mail", "dead").stdout.decode()
    assert home.json("mail", "resend", dead["id"])["letter_id"] == "m1"
    assert home.run("mail", "dead").stdout == b"no dead letters\n"
    missing = home.run("mail", "resend", "dead_nothing")
    assert missing.returncode == 2
    assert missing.stderr.decode().rstrip().endswith("[letter_not_found]")


def test_secret_is_masked_in_every_listing(home: Home) -> None:
    request = needs_input_letter(
        sender_id="CA",
        recipient_id="HUMAN",
        task_id="T-1",
        timestamp=WHEN,
        requested_inputs=[{"id": "api_key", "type": "string", "description": "the key", "sensitive": True}],
        message_id="ask",
    )
    answer = answer_letter(request, inputs={"api_key": SECRET}, output=f"it is {SECRET}", timestamp=WHEN)
    outputs = [home.run("mail", "send", "-", stdin=write_letter(letter)) for letter in (request, answer)]
    for arguments in (("inbox", "CA"), ("inbox", "--task", "T-1", "--json"), ("dead", "--json")):
        outputs.append(home.run("mail", *arguments))
    assert all(SECRET.encode() not in done.stdout + done.stderr for done in outputs)
    assert b'"api_key":"***"' in outputs[3].stdout
    for file in home.folder.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


def test_watch_prints_letters_on_arrival(home: Home) -> None:
    home.run("mail", "send", "-", stdin=make_result(message_id="before"))
    with subprocess.Popen(
        [COMMAND, "mail", "watch", "ARCH", "--json"], env=home.environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        seen: list[str] = []
        for number in range(200):
            home.run("mail", "send", "-", stdin=make_result(message_id=f"m{number}"))
            if os.get_blocking(process.stdout.fileno()):
                os.set_blocking(process.stdout.fileno(), False)
            lines = process.stdout.readlines()
            seen += [json.loads(line)["letter_id"] for line in lines]
            if len(seen) >= 2:
                break
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert "before" not in seen
    assert seen == [f"m{int(seen[0][1:]) + step}" for step in range(len(seen))]
    assert process.returncode == 130
