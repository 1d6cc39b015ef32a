"""Export, import and backup on the command line, run as a user runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import dragoman
from dragoman.message import Role
from tests.cli_store import EXAMPLE, damage_first_message, expect_error, fill_store, run, run_json
from tests.store.messages import message, said
from tests.test_cli import COMMAND, written

# --- export, import, backup ------------------------------------------------------------------------------------------


def test_an_export_is_byte_for_byte_equal_after_an_import(chats: Path, tmp_path: Path) -> None:
    done = run("export", "QQD", store=chats)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.encode().splitlines()
    assert lines[1:5] == [dragoman.encode(one) for one in EXAMPLE]
    (tmp_path / "chat.jsonl").write_text(done.stdout)
    shown = run("import", tmp_path / "chat.jsonl", store=tmp_path / "other.db")
    assert (shown.returncode, "What the README says" in shown.stdout) == (0, True)
    assert run("export", "QQD", store=tmp_path / "other.db").stdout == done.stdout


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_a_whole_store_is_exported_and_imported_with_its_forks(chats: Path, tmp_path: Path, name: str) -> None:
    fork = run_json("fork", "QQD", "--at", "2", store=chats)
    told = run_json("export", "--all", "--to", tmp_path / name, store=chats)
    assert (told["sessions"], told["file"]) == (2, str(tmp_path / name))
    other = tmp_path / "other.db"
    for _ in range(2):  # the same again changes nothing
        assert len(run_json("import", tmp_path / name, store=other)["sessions"]) == 2
    assert run_json("show", fork["id"], store=other) == run_json("show", fork["id"], store=chats)
    assert not list(tmp_path.glob(".*.part"))


def test_plain_messages_are_imported_and_a_copy_gets_the_requested_id(tmp_path: Path) -> None:
    file, store = written(tmp_path / "bare.jsonl", EXAMPLE), tmp_path / "store.db"
    assert run_json("import", file, store=store)["sessions"][0]["id"] == EXAMPLE[0].session_id
    assert run_json("import", file, "--as", "sess_copy", store=store)["sessions"][0]["last_seq"] == 4
    script = f"'{COMMAND}' import - --as sess_piped --store '{store}' < '{file}'"
    subprocess.run(["bash", "-c", script], check=True, capture_output=True, timeout=60)
    assert len(run_json("sessions", store=store)["sessions"]) == 3


def test_a_truncated_or_changed_file_is_rejected_and_nothing_is_stored(chats: Path, tmp_path: Path) -> None:
    run("export", "--all", "--to", tmp_path / "all.jsonl", store=chats)
    run("export", "--all", "--to", tmp_path / "all.jsonl.gz", store=chats)
    whole, packed = (tmp_path / "all.jsonl").read_bytes(), (tmp_path / "all.jsonl.gz").read_bytes()
    store = tmp_path / "other.db"
    for data in (
        whole[: len(whole) // 2],
        whole.replace(b"Summarize", b"Summarizd"),
        whole.replace(b'"role":', b'"rolf":', 1),
        whole.rpartition(b'{"sessions"')[0],
        packed[: len(packed) // 2],
        packed[:200] + b"x" + packed[201:],
        b"",
        b"nonsense\n",
    ):
        (tmp_path / "bad").write_bytes(data)
        done = run("import", tmp_path / "bad", store=store)
        assert str(tmp_path / "bad") in expect_error(done, "cut_export")
        assert not store.exists()
    expect_error(run("import", tmp_path / "absent", store=store), "invalid_input")
    expect_error(run("import", tmp_path / "all.jsonl", "--as", "x", store=store), "invalid_input")


def test_an_import_does_not_overwrite_another_session(chats: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.jsonl", EXAMPLE[:2])
    expect_error(run("import", other, store=chats), "session_exists")
    assert len(run_json("show", "QQD", store=chats)["messages"]) == 4


def test_export_rejects_contradicting_arguments_and_unwritable_targets(chats: Path, tmp_path: Path) -> None:
    expect_error(run("export", store=chats), "invalid_input")
    expect_error(run("export", "last", "--all", store=chats), "invalid_input")
    expect_error(run("export", "last", "--json", store=chats), "invalid_input")
    expect_error(run("export", "last", "--to", tmp_path / "no" / "folder", store=chats), "invalid_input")
    before = written(tmp_path / "there.jsonl", EXAMPLE).read_bytes()
    damage_first_message(chats)
    assert run("export", "last", "--to", tmp_path / "there.jsonl", store=chats).returncode == 2
    assert (tmp_path / "there.jsonl").read_bytes() == before


def test_a_backup_is_a_store_and_is_not_overwritten(chats: Path, tmp_path: Path) -> None:
    picture = dragoman.ImageBlock(dragoman.ImageSource("base64", "AAAA" * 10_000), "image/png")
    fill_store(chats, [message(Role.USER, [picture])])
    copy = tmp_path / "copy.db"
    told = run_json("backup", copy, store=chats)
    assert (told["sessions"], told["messages"], told["blobs"], told["damage"]) == (2, 5, 1, [])
    assert told["bytes"] == copy.stat().st_size
    assert run_json("show", "QQD", store=copy) == run_json("show", "QQD", store=chats)
    assert run("verify", store=copy).returncode == 0
    expect_error(run("backup", copy, store=chats), "target_exists")


# --- files that are not replaced -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "--all", "--to"),
        ("export", "last", "--to"),
        ("export", "last", "--to", "openai_chat", "--out"),
        ("export", "last", "--to", "markdown", "--out"),
    ],
)
def test_an_export_does_not_replace_a_store(chats: Path, arguments: tuple[str, ...]) -> None:
    before = chats.read_bytes()
    for target in (chats, chats.parent / "." / chats.name):
        told = run(*arguments, str(target), store=chats)
        assert (told.returncode, told.stdout) == (2, "")
        assert "it is a database" in told.stderr
    assert chats.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("sessions", "--store", "."),
        ("sessions", "--store", "/"),
        ("backup", "."),
        ("backup", "/"),
        ("export", "last", "--to", "."),
        ("export", "last", "--to", "/"),
    ],
)
def test_a_folder_in_place_of_a_file_is_one_line_of_error(chats: Path, arguments: tuple[str, ...]) -> None:
    told = run(*arguments, store=None if "--store" in arguments else chats)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.count("\n") == 1
    assert told.stderr.startswith("dragoman: ")


def test_import_of_another_format_names_the_line_and_the_command_that_converts(tmp_path: Path) -> None:
    wire = tmp_path / "wire.jsonl"
    first = dragoman.encode(EXAMPLE[0]).decode()
    wire.write_text(first + '\n{"role": "user", "content": "hi"}\n', "utf-8")
    told = expect_error(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert f"{wire}: line 2, $.content: " in told
    assert "dragoman convert" in told


def test_import_reports_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    told = expect_error(run("import", tmp_path / "empty.jsonl", store=tmp_path / "store.db"), "cut_export")
    assert "empty.jsonl: it is empty" in told


def test_a_failed_import_leaves_no_store_behind(tmp_path: Path) -> None:
    (tmp_path / "store.db.txt").write_text("mine")
    wire = tmp_path / "wire.jsonl"
    wire.write_text('{"role": "user", "content": "hi"}\n', "utf-8")
    expect_error(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert {path.name for path in tmp_path.iterdir()} == {"store.db.txt", "wire.jsonl"}
    fill_store(tmp_path / "store.db", [said("hello")])
    expect_error(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert "1" in run("sessions", store=tmp_path / "store.db").stdout


def test_errors_of_the_system_have_stable_codes(tmp_path: Path) -> None:
    expect_error(run("letter", "validate", tmp_path), "is_a_directory")
    expect_error(run("letter", "validate", tmp_path / "none.json"), "file_not_found")
    expect_error(run("mail", "send", tmp_path, store=tmp_path / "store.db"), "is_a_directory")


def test_a_negative_duration_is_rejected(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    assert "--older-than is negative" in expect_error(
        run("retain", "--older-than", "-5d", store=store), "invalid_input"
    )
    assert "--expires is not positive" in expect_error(
        run("keys", "create", "--expires", "-5d", store=store), "invalid_input"
    )


def test_invalid_json_is_reported_with_file_line_and_column_once(tmp_path: Path) -> None:
    letter = tmp_path / "letter.json"
    letter.write_bytes(b'{"a":\xff}')
    assert f"dragoman: {letter}, byte 5: not UTF-8" in expect_error(
        run("mail", "send", letter, store=tmp_path / "a.db"), "invalid_json"
    )
    letter.write_bytes(b'{"NaN": "NaN",\n "a": NaN}')
    assert f"dragoman: {letter}, line 2 column 7: NaN is not JSON" in expect_error(
        run("mail", "send", letter, store=tmp_path / "a.db"), "invalid_json"
    )
    lines = tmp_path / "bad.jsonl"
    good = dragoman.encode(EXAMPLE[0]).decode()
    lines.write_text(f"{good}\n{good[:-1]}\n", "utf-8")
    told = expect_error(run("convert", lines, tmp_path / "out.jsonl"), "invalid_json")
    assert f"dragoman: {lines}, line 2 column {len(good)}: not JSON" in told


@pytest.mark.parametrize("length", ["9000y", "99999y", "99999999y", "99999999999d"])
@pytest.mark.parametrize("arguments", [("keys", "create", "--expires"), ("retain", "--dry-run", "--older-than")])
def test_a_duration_beyond_the_calendar_is_no_traceback(chats: Path, arguments: tuple[str, ...], length: str) -> None:
    told = run(*arguments, length, store=chats)
    assert "Traceback" not in told.stderr
    assert told.returncode == 2 or told.stdout.startswith("would delete 0 sessions")
