"""Tests of export, import and backup on the command line, run as a user runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import dragoman
from dragoman.message import Role
from tests.cli_store import EXAMPLE, damage_first_message, expect_error, fill_store, run, run_json
from tests.store.messages import message, text_message
from tests.test_cli import COMMAND, write_messages

# --- export, import, backup ------------------------------------------------------------------------------------------


def test_export_is_equal_byte_for_byte_after_import(chats: Path, tmp_path: Path) -> None:
    done = run("export", "QQD", store=chats)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.encode().splitlines()
    assert lines[1:5] == [dragoman.encode(stored) for stored in EXAMPLE]
    (tmp_path / "chat.jsonl").write_text(done.stdout)
    result = run("import", tmp_path / "chat.jsonl", store=tmp_path / "other.db")
    assert (result.returncode, "What the README says" in result.stdout) == (0, True)
    assert run("export", "QQD", store=tmp_path / "other.db").stdout == done.stdout


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_whole_store_is_exported_and_imported_with_forks(chats: Path, tmp_path: Path, name: str) -> None:
    fork = run_json("fork", "QQD", "--at", "2", store=chats)
    report = run_json("export", "--all", "--to", tmp_path / name, store=chats)
    assert (report["sessions"], report["file"]) == (2, str(tmp_path / name))
    other = tmp_path / "other.db"
    for _ in range(2):  # a second import changes nothing
        assert len(run_json("import", tmp_path / name, store=other)["sessions"]) == 2
    assert run_json("show", fork["id"], store=other) == run_json("show", fork["id"], store=chats)
    assert not list(tmp_path.glob(".*.part"))


def test_plain_messages_are_imported_and_a_copy_has_the_requested_id(tmp_path: Path) -> None:
    file, store = write_messages(tmp_path / "bare.jsonl", EXAMPLE), tmp_path / "store.db"
    assert run_json("import", file, store=store)["sessions"][0]["id"] == EXAMPLE[0].session_id
    assert run_json("import", file, "--as", "sess_copy", store=store)["sessions"][0]["last_seq"] == 4
    script = f"'{COMMAND}' import - --as sess_piped --store '{store}' < '{file}'"
    subprocess.run(["bash", "-c", script], check=True, capture_output=True, timeout=60)
    assert len(run_json("sessions", store=store)["sessions"]) == 3


def test_truncated_or_changed_file_is_rejected_and_nothing_is_stored(chats: Path, tmp_path: Path) -> None:
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


def test_import_does_not_overwrite_another_session(chats: Path, tmp_path: Path) -> None:
    other = write_messages(tmp_path / "other.jsonl", EXAMPLE[:2])
    expect_error(run("import", other, store=chats), "session_exists")
    assert len(run_json("show", "QQD", store=chats)["messages"]) == 4


def test_export_rejects_conflicting_arguments_and_unwritable_targets(chats: Path, tmp_path: Path) -> None:
    expect_error(run("export", store=chats), "invalid_input")
    expect_error(run("export", "last", "--all", store=chats), "invalid_input")
    expect_error(run("export", "last", "--json", store=chats), "invalid_input")
    expect_error(run("export", "last", "--to", tmp_path / "no" / "folder", store=chats), "invalid_input")
    before = write_messages(tmp_path / "there.jsonl", EXAMPLE).read_bytes()
    damage_first_message(chats)
    assert run("export", "last", "--to", tmp_path / "there.jsonl", store=chats).returncode == 2
    assert (tmp_path / "there.jsonl").read_bytes() == before


def test_backup_is_a_store_and_is_not_overwritten(chats: Path, tmp_path: Path) -> None:
    image = dragoman.ImageBlock(dragoman.ImageSource("base64", "AAAA" * 10_000), "image/png")
    fill_store(chats, [message(Role.USER, [image])])
    copy = tmp_path / "copy.db"
    report = run_json("backup", copy, store=chats)
    assert (report["sessions"], report["messages"], report["blobs"], report["damage"]) == (2, 5, 1, [])
    assert report["bytes"] == copy.stat().st_size
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
def test_export_does_not_replace_a_store(chats: Path, arguments: tuple[str, ...]) -> None:
    before = chats.read_bytes()
    for target in (chats, chats.parent / "." / chats.name):
        result = run(*arguments, str(target), store=chats)
        assert (result.returncode, result.stdout) == (2, "")
        assert "it is a database" in result.stderr
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
def test_folder_in_place_of_a_file_is_one_error_line(chats: Path, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, store=None if "--store" in arguments else chats)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("dragoman: ")


def test_import_of_another_format_names_line_and_convert_command(tmp_path: Path) -> None:
    wire = tmp_path / "wire.jsonl"
    first = dragoman.encode(EXAMPLE[0]).decode()
    wire.write_text(first + '\n{"role": "user", "content": "hi"}\n', "utf-8")
    error = expect_error(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert f"{wire}: line 2, $.content: " in error
    assert "dragoman convert" in error


def test_import_reports_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    error = expect_error(run("import", tmp_path / "empty.jsonl", store=tmp_path / "store.db"), "cut_export")
    assert "empty.jsonl: it is empty" in error


def test_failed_import_creates_no_store(tmp_path: Path) -> None:
    (tmp_path / "store.db.txt").write_text("mine")
    wire = tmp_path / "wire.jsonl"
    wire.write_text('{"role": "user", "content": "hi"}\n', "utf-8")
    expect_error(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert {path.name for path in tmp_path.iterdir()} == {"store.db.txt", "wire.jsonl"}
    fill_store(tmp_path / "store.db", [text_message("hello")])
    expect_error(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert "1" in run("sessions", store=tmp_path / "store.db").stdout


def test_system_errors_have_stable_codes(tmp_path: Path) -> None:
    expect_error(run("letter", "validate", tmp_path), "is_a_directory")
    expect_error(run("letter", "validate", tmp_path / "none.json"), "file_not_found")
    expect_error(run("mail", "send", tmp_path, store=tmp_path / "store.db"), "is_a_directory")


def test_negative_duration_is_rejected(tmp_path: Path) -> None:
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
    error = expect_error(run("convert", lines, tmp_path / "out.jsonl"), "invalid_json")
    assert f"dragoman: {lines}, line 2 column {len(good)}: not JSON" in error


@pytest.mark.parametrize("length", ["9000y", "99999y", "99999999y", "99999999999d"])
@pytest.mark.parametrize("arguments", [("keys", "create", "--expires"), ("retain", "--dry-run", "--older-than")])
def test_duration_beyond_the_calendar_prints_no_traceback(chats: Path, arguments: tuple[str, ...], length: str) -> None:
    result = run(*arguments, length, store=chats)
    assert "Traceback" not in result.stderr
    assert result.returncode == 2 or result.stdout.startswith("would delete 0 sessions")
