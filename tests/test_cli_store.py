"""The command line over the store, run as a user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

import dragoman
from dragoman.attachments import Owner, open_attachments
from dragoman.cli.options import default_path, mask_password, resolve_store_url
from dragoman.cli.parser import app
from dragoman.cli.totals import bar
from dragoman.cli.tour import example_conversation
from dragoman.message import Attachment, ContentBlock, Message, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.store import Session, Store
from tests import cli_runner
from tests.store.messages import answered, message, said
from tests.test_cli import COMMAND, written

EXAMPLE = example_conversation()


def run(*arguments: str | Path, store: Path | str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONUTF8": "1", **options.pop("env", {})}
    environment.pop("DRAGOMAN_STORE", None)
    if store is not None:
        environment["DRAGOMAN_STORE"] = str(store)
    return cli_runner.run_text(*arguments, environment=environment, **options)


def document(*arguments: str | Path, store: Path) -> Any:
    """Return the output of ``--json``, which is exactly one document."""
    done = run(*arguments, "--json", store=store)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def failed(done: subprocess.CompletedProcess[str], code: str) -> str:
    """The one line of an error."""
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert done.stderr.startswith("dragoman: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith(f"[{code}]\n"), done.stderr
    return done.stderr


def kept(file: Path, work: Callable[[Store], Any]) -> Any:
    """Do something with a store."""

    async def opened() -> Any:
        async with dragoman.open_store(resolve_store_url(str(file))) as store:
            return await work(store)

    return asyncio.run(opened())


def filled(file: Path, *talks: Iterable[Message], **about: Any) -> list[Session]:
    """A store with these conversations."""

    async def fill(store: Store) -> list[Session]:
        sessions = [await store.create_session(**about) for _ in talks]
        for session, messages in zip(sessions, talks, strict=True):
            await store.append(session.id, list(messages))
        return [await store.get_session(session.id) for session in sessions]

    made: list[Session] = kept(file, fill)
    return made


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """A store with the example in it, and a fork of that."""
    file = tmp_path / "chats.db"

    async def fill(store: Store) -> None:
        session = await store.create_session(EXAMPLE[0].session_id, title="What the README says", user_id="ada")
        await store.append(session.id, EXAMPLE)

    kept(file, fill)
    return file


# --- which store, which session --------------------------------------------------------------------------------------


def test_the_store_is_that_of_the_option_or_of_the_variable_or_one_in_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = tmp_path / "mine.db", tmp_path / "the ir%20s.db"
    filled(mine, [said("hello")], title="mine")
    filled(theirs, [said("hello")], title="theirs")
    assert "mine" in run("sessions", store=mine).stdout
    assert "theirs" in run("sessions", "--store", theirs, store=mine).stdout
    assert "mine" in run("sessions", "--store", f"sqlite:///{mine}").stdout
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    filled(default_path(), [said("hello")], title="the default")
    assert "the default" in run("sessions").stdout
    assert (tmp_path / "data" / "dragoman" / "store.db").is_file()


def test_a_name_that_was_mistyped_makes_nothing(tmp_path: Path) -> None:
    assert "the store does not exist" in failed(run("sessions", store=tmp_path / "typo.db"), "not_a_store")
    assert list(tmp_path.iterdir()) == []
    assert "sqlite:///" in failed(run("sessions", store="redis://localhost"), "not_a_store")


def test_what_is_no_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be taken for one" * 20)
    failed(run("sessions", store=tmp_path / "text.db"), "not_a_store")
    done = run("sessions", store="postgresql://nobody@127.0.0.1:1/none")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_password_is_never_shown() -> None:
    assert mask_password("postgresql://me:s3cret@host/db") == "postgresql://me:…@host/db"
    assert "s3cret" not in mask_password("postgresql://host/db?user=me&password=s3cret&x=1")
    assert mask_password("sqlite:///a@b:c.db") == "sqlite:///a@b:c.db"
    assert "s3cret" not in run("sessions", store="postgresql://me:s3cret@127.0.0.1:1/none").stderr


def test_a_session_is_named_by_its_id_a_beginning_an_end_or_as_the_last_one(chats: Path) -> None:
    (other,) = filled(chats, [said("something else")], title="newer")
    for name in (EXAMPLE[0].session_id, EXAMPLE[0].session_id[:12], "01KR3ER9E", "00QQD", "qqd"):
        assert document("show", name, store=chats)["session"]["id"] == EXAMPLE[0].session_id
    assert document("show", "last", store=chats)["session"]["id"] == other.id
    assert "'nobody'" in failed(run("show", "nobody", store=chats), "session_not_found")
    ambiguous = failed(run("show", "sess_", store=chats), "invalid_input")
    assert other.id in ambiguous
    assert EXAMPLE[0].session_id in ambiguous


def test_the_last_session_of_an_empty_store_is_a_clear_error(tmp_path: Path) -> None:
    filled(tmp_path / "empty.db")
    assert "no sessions" in failed(run("show", "last", store=tmp_path / "empty.db"), "session_not_found")
    assert run("sessions", store=tmp_path / "empty.db").stdout == "no sessions\n"


# --- sessions --------------------------------------------------------------------------------------------------------


def test_sessions_are_listed_newest_first_and_page_by_page(tmp_path: Path) -> None:
    file = tmp_path / "many.db"
    made = filled(file, *([said(f"number {number}")] for number in range(7)))
    newest_first = [session.id for session in reversed(made)]
    first = document("sessions", "--limit", "3", store=file)
    assert [session["id"] for session in first["sessions"]] == newest_first[:3]
    assert first["is_more"]
    rest = document("sessions", "--before", newest_first[2], "--limit", "5", store=file)
    assert [session["id"] for session in rest["sessions"]] == newest_first[3:]
    assert not rest["is_more"]
    shown = run("sessions", "--limit", "3", store=file).stdout
    assert shown.count("sess_") == 3
    assert f"--before {newest_first[2][-6:]}" in shown


def test_sessions_are_filtered(chats: Path) -> None:
    filled(chats, [said("hello")], user_id="bob", team_id="red")
    for arguments, count in [
        (("--user", "ada"), 1),
        (("--team", "red"), 1),
        (("--user", "ada", "--team", "red"), 0),
        (("--since", "2026-01-01"), 2),
        (("--since", "2126-01-01"), 0),
    ]:
        assert len(document("sessions", *arguments, store=chats)["sessions"]) == count


# --- show ------------------------------------------------------------------------------------------------------------


def test_a_conversation_is_shown_with_its_calls_results_thoughts_model_and_cost(chats: Path) -> None:
    shown = run("show", "QQD", store=chats).stdout
    for sign in (
        "What the README says",
        "4 messages",
        "$0.001308",
        "▌ assistant · 2 · anthropic:claude-sonnet-4-6",
        "8→42 tokens",
        "  The user wants a summary, so I need the file.",
        '→ read_file(path="README.md")',
        "← read_file\n  # Project Foo",
    ):
        assert sign in shown


def test_json_has_every_message_as_it_is_stored(chats: Path) -> None:
    done = run("show", "QQD", "--json", store=chats)
    for one in EXAMPLE:
        assert dragoman.encode(one).decode() in done.stdout
    assert [row["seq"] for row in json.loads(done.stdout)["messages"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "seqs"),
    [
        (("--tail", "2"), [3, 4]),
        (("--after", "1"), [2, 3, 4]),
        (("--after", "1", "--limit", "2"), [2, 3]),
        (("--limit", "1"), [1]),
        (("--tail", "9"), [1, 2, 3, 4]),
        (("--after", "4"), []),
    ],
)
def test_a_part_of_a_conversation_can_be_asked_for(chats: Path, arguments: Sequence[str], seqs: list[int]) -> None:
    assert [row["seq"] for row in document("show", "QQD", *arguments, store=chats)["messages"]] == seqs
    shown = run("show", "QQD", *arguments, store=chats).stdout
    assert shown.count("▌") == len(seqs)
    assert ("earlier message" in shown) == bool(seqs and seqs[0] > 1)
    assert ("later message" in shown) == bool(seqs and seqs[-1] < 4)


def test_long_results_are_folded_unless_everything_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "long.db"
    lines = "\n".join(f"line {number}" for number in range(100))
    call = message(Role.ASSISTANT, [ToolUseBlock("tu_1", "read_file", {"path": "x" * 1000})])
    result = message(Role.TOOL, [ToolResultBlock("tu_1", (TextBlock(lines),))])
    filled(file, [call, result])
    shown = run("show", "last", store=file).stdout
    assert "line 7\n" in shown
    assert "line 8\n" not in shown
    assert "… 92 more lines" in shown
    assert "more characters" in shown
    full = run("show", "last", "--full", store=file).stdout
    assert "line 99\n" in full
    assert "x" * 1000 in full


def test_control_characters_of_a_conversation_never_reach_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m \u202eabc [bold]kept[/bold]"
    blocks: list[ContentBlock] = [TextBlock(evil), ToolUseBlock("tu_1", evil, {evil: evil})]
    result = message(Role.TOOL, [ToolResultBlock("tu_1", (TextBlock(evil),), is_error=True)])
    file = tmp_path / "evil.db"
    filled(file, [said(evil), message(Role.ASSISTANT, blocks, model=evil), result], title=evil, user_id=evil)
    for arguments in (("sessions",), ("show", "last"), ("show", "last", "--full"), ("search", "kept")):
        shown = run(*arguments, store=file).stdout
        assert not set("\x1b\x07\x9b\u202e") & set(shown)
    assert "[bold]kept[/bold]" in run("show", "last", store=file).stdout


def test_every_kind_of_block_is_shown_as_something(tmp_path: Path) -> None:
    source = dragoman.ImageSource("base64", "AAAA" * 1000)
    blocks: list[ContentBlock] = [
        dragoman.ImageBlock(source, "image/png"),
        dragoman.DocumentBlock(dragoman.ImageSource("url", "https://example.com/a.pdf"), "application/pdf", "a.pdf"),
        dragoman.AudioBlock(source, "audio/wav"),
        dragoman.VideoBlock(source, "video/mp4"),
        dragoman.RedactedThinkingBlock("xyz"),
        dragoman.InvalidToolUseBlock("tu_1", "rm", '{"a":', "the input is not JSON"),
        dragoman.OpaqueBlock("anthropic", {"type": "server_tool_use"}),
    ]
    unknown = dragoman.encode(EXAMPLE[0]).replace(b'"content":[', b'"content":[{"type":"hologram"},')
    filled(tmp_path / "all.db", [message(Role.ASSISTANT, blocks, status="error")])
    newer = dragoman.decode(unknown).replace(session_id="", id="")
    filled(tmp_path / "newer.db", [newer])
    shown = run("show", "last", store=tmp_path / "all.db").stdout
    for sign in ("[image: image/png, 3.0 kB]", "a.pdf", "audio/wav", "video/mp4", "encrypted", "rm was not called"):
        assert sign in shown
    assert "[anthropic: server_tool_use]" in shown
    assert "· error" in shown
    assert "[hologram: from a newer version]" in run("show", "last", store=tmp_path / "newer.db").stdout


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "long.db"
    filled(file, [said("word " * 200) for _ in range(300)])
    script = f"'{COMMAND}' show last --store '{file}' | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.endswith("\n0\n")


# --- search ----------------------------------------------------------------------------------------------------------


def test_words_are_found_in_any_language_with_their_session_and_place(chats: Path) -> None:
    (other,) = filled(chats, [said("用令牌桶限流"), answered("A token bucket.", model="openai:gpt-5")], user_id="bob")
    (hit,) = document("search", "令牌桶", store=chats)["hits"]
    assert (hit["session_id"], hit["seq"], hit["role"]) == (other.id, 1, "user")
    assert [hit["snippet"][begin:end] for begin, end in hit["highlights"]] == ["令牌桶"]
    for arguments, count in [
        (("token", "buck"), 1),
        (("bucket", "--user", "bob"), 1),
        (("bucket", "--session", "last", "--role", "assistant", "--model", "openai:gpt-5"), 1),
    ]:
        assert len(document("search", *arguments, store=chats)["hits"]) == count
    shown = run("search", "readme", store=chats)
    assert (shown.returncode, EXAMPLE[0].session_id in shown.stdout) == (0, True)


def test_nothing_found_is_said_and_is_exit_code_1(chats: Path) -> None:
    done = run("search", "unicorn", store=chats)
    assert (done.returncode, done.stdout) == (1, "no messages found for 'unicorn'\n")
    done = run("search", "readme", "--user", "bob", "--json", store=chats)
    assert (done.returncode, json.loads(done.stdout)) == (1, {"hits": []})


# --- fork ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "shared"), [(None, 4), ("2", 2), (EXAMPLE[2].id, 3), ("0", 0)])
def test_a_fork_shares_a_history_up_to_a_message(chats: Path, at: str | None, shared: int) -> None:
    made = document("fork", "QQD", *(("--at", at) if at is not None else ()), "--title", "again", store=chats)
    assert (made["parent_seq"], made["title"]) == (shared, "again")
    found = document("show", made["id"], store=chats)
    assert len(found["messages"]) == shared
    if shared:
        assert f"forked from {EXAMPLE[0].session_id} at message {shared}" in run("show", made["id"], store=chats).stdout
        assert f"⑂ 000QQD at {shared}" in run("sessions", store=chats).stdout


def test_a_fork_at_what_is_not_there_makes_nothing(chats: Path) -> None:
    failed(run("fork", "QQD", "--at", "5", store=chats), "message_not_found")
    failed(run("fork", "QQD", "--at", "nothing", store=chats), "message_not_found")
    assert len(document("sessions", store=chats)["sessions"]) == 1


# --- stats -----------------------------------------------------------------------------------------------------------


def test_sizes_and_totals_are_shown_with_a_bar_for_each_day(chats: Path) -> None:
    shown = run("stats", store=chats).stdout
    for sign in ("1 session, 4 messages", "power-safe", "anthropic:claude-sonnet-4-6", "$0.001308", "2026-05-08  █"):
        assert sign in shown
    found = document("stats", "--by", "user", store=chats)
    assert found["sizes"]["messages"] == 4
    assert [(one["group"], one["cost_usd"]) for one in found["days"]] == [("2026-05-08", "0.001308")]
    assert document("stats", "--since", "2026-05-09", store=chats)["totals"] == []
    assert document("stats", "--model", "anthropic:claude-sonnet-4-6", store=chats)["totals"][0]["messages"] == 2


def test_a_store_in_which_nothing_was_consumed_has_no_plot(tmp_path: Path) -> None:
    filled(tmp_path / "quiet.db", [said("hello")])
    assert "no usage" in run("stats", store=tmp_path / "quiet.db").stdout


def test_a_bar_is_as_long_as_its_share() -> None:
    assert [bar(share, 4) for share in (0, 0.125, 0.5, 1)] == ["", "▌", "██", "████"]


# --- verify ----------------------------------------------------------------------------------------------------------


def flip_a_bit(file: Path) -> None:
    """Change one letter of a message that is stored."""
    connection = apsw.Connection(str(file))
    changed = "UPDATE messages SET content_json = replace(content_json, 'Summarize', 'Summarizd') WHERE seq = 1"
    connection.execute(changed)
    connection.close()


def test_what_is_sound_is_said_to_be_and_what_is_damaged_is_named(chats: Path) -> None:
    sound, marked = run("verify", store=chats).stdout.splitlines()
    assert sound == "intact: 1 session, 4 messages, 0 large objects"
    assert marked.startswith("the end of 1 session matches chats.db-mark, created 2")
    assert document("verify", "last", store=chats)["is_sound"]
    flip_a_bit(chats)
    done = run("verify", store=chats)
    assert done.returncode == 1
    assert f"{EXAMPLE[0].session_id}, message 1" in done.stdout
    assert "1 damaged" in done.stdout
    found = run("verify", "--json", store=chats)
    assert found.returncode == 1
    assert [(one["seq"], one["session_id"]) for one in json.loads(found.stdout)["damage"]] == [
        (1, EXAMPLE[0].session_id)
    ]


def test_what_is_damaged_is_never_shown(chats: Path) -> None:
    flip_a_bit(chats)
    done = run("show", "last", store=chats)
    assert done.returncode == 2
    assert "Summarizd" not in done.stdout
    assert done.stderr.endswith("[damaged]\n")
    assert run("show", "last", "--after", "1", store=chats).returncode == 0


# --- export, import, backup ------------------------------------------------------------------------------------------


def test_an_export_holds_every_message_byte_for_byte_and_comes_back_elsewhere(chats: Path, tmp_path: Path) -> None:
    done = run("export", "QQD", store=chats)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.encode().splitlines()
    assert lines[1:5] == [dragoman.encode(one) for one in EXAMPLE]
    (tmp_path / "chat.jsonl").write_text(done.stdout)
    shown = run("import", tmp_path / "chat.jsonl", store=tmp_path / "other.db")
    assert (shown.returncode, "What the README says" in shown.stdout) == (0, True)
    assert run("export", "QQD", store=tmp_path / "other.db").stdout == done.stdout


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_a_whole_store_is_carried_elsewhere_with_its_forks(chats: Path, tmp_path: Path, name: str) -> None:
    fork = document("fork", "QQD", "--at", "2", store=chats)
    told = document("export", "--all", "--to", tmp_path / name, store=chats)
    assert (told["sessions"], told["file"]) == (2, str(tmp_path / name))
    other = tmp_path / "other.db"
    for _ in range(2):  # the same again changes nothing
        assert len(document("import", tmp_path / name, store=other)["sessions"]) == 2
    assert document("show", fork["id"], store=other) == document("show", fork["id"], store=chats)
    assert not list(tmp_path.glob(".*.part"))


def test_messages_alone_are_imported_and_a_copy_gets_the_id_that_is_asked_for(tmp_path: Path) -> None:
    file, store = written(tmp_path / "bare.jsonl", EXAMPLE), tmp_path / "store.db"
    assert document("import", file, store=store)["sessions"][0]["id"] == EXAMPLE[0].session_id
    assert document("import", file, "--as", "sess_copy", store=store)["sessions"][0]["last_seq"] == 4
    script = f"'{COMMAND}' import - --as sess_piped --store '{store}' < '{file}'"
    subprocess.run(["bash", "-c", script], check=True, capture_output=True, timeout=60)
    assert len(document("sessions", store=store)["sessions"]) == 3


def test_a_file_that_was_cut_or_changed_is_refused_and_nothing_of_it_is_stored(chats: Path, tmp_path: Path) -> None:
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
        assert str(tmp_path / "bad") in failed(done, "cut_export")
        assert not store.exists()
    failed(run("import", tmp_path / "absent", store=store), "invalid_input")
    failed(run("import", tmp_path / "all.jsonl", "--as", "x", store=store), "invalid_input")


def test_a_session_of_the_same_id_and_another_content_is_not_overwritten(chats: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.jsonl", EXAMPLE[:2])
    failed(run("import", other, store=chats), "session_exists")
    assert len(document("show", "QQD", store=chats)["messages"]) == 4


def test_an_export_is_either_of_a_session_or_of_all_and_of_something_that_can_be_written(
    chats: Path, tmp_path: Path
) -> None:
    failed(run("export", store=chats), "invalid_input")
    failed(run("export", "last", "--all", store=chats), "invalid_input")
    failed(run("export", "last", "--json", store=chats), "invalid_input")
    failed(run("export", "last", "--to", tmp_path / "no" / "folder", store=chats), "invalid_input")
    before = written(tmp_path / "there.jsonl", EXAMPLE).read_bytes()
    flip_a_bit(chats)
    assert run("export", "last", "--to", tmp_path / "there.jsonl", store=chats).returncode == 2
    assert (tmp_path / "there.jsonl").read_bytes() == before


def test_a_backup_is_a_store_and_is_never_written_over(chats: Path, tmp_path: Path) -> None:
    picture = dragoman.ImageBlock(dragoman.ImageSource("base64", "AAAA" * 10_000), "image/png")
    filled(chats, [message(Role.USER, [picture])])
    copy = tmp_path / "copy.db"
    told = document("backup", copy, store=chats)
    assert (told["sessions"], told["messages"], told["blobs"], told["damage"]) == (2, 5, 1, [])
    assert told["bytes"] == copy.stat().st_size
    assert document("show", "QQD", store=copy) == document("show", "QQD", store=chats)
    assert run("verify", store=copy).returncode == 0
    failed(run("backup", copy, store=chats), "target_exists")


# --- delete, retain, erase -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [("delete", "last"), ("retain", "--older-than", "0s"), ("erase", "--user", "ada")]
)
def test_what_cannot_be_undone_is_not_done_where_nobody_can_be_asked(chats: Path, arguments: Sequence[str]) -> None:
    assert "--yes" in failed(run(*arguments, store=chats), "invalid_input")
    assert len(document("sessions", store=chats)["sessions"]) == 1
    assert run(*arguments, "--yes", store=chats).returncode == 0
    assert document("sessions", store=chats)["sessions"] == []


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0), ("yes\n", 0)])
def test_a_person_is_asked_and_only_yes_is_yes(chats: Path, answer: str, left: int) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "DRAGOMAN_STORE": str(chats)}
    with subprocess.Popen([COMMAND, "delete", "last"], env=environment, stdin=theirs, stderr=subprocess.PIPE) as asking:
        os.close(theirs)
        os.write(ours, answer.encode() or b"\x04")
        _, told = asking.communicate(timeout=60)
    os.close(ours)
    assert told.startswith(f"Delete {EXAMPLE[0].session_id} 'What the README says' with 4 messages? [y/N] ".encode())
    assert asking.returncode == (2 if left else 0)
    assert len(document("sessions", store=chats)["sessions"]) == left


def test_a_deleted_session_leaves_its_forks_whole(chats: Path) -> None:
    fork = document("fork", "QQD", "--at", "2", store=chats)
    assert document("delete", "QQD", "--yes", store=chats)["deleted"]["id"] == EXAMPLE[0].session_id
    assert [row["seq"] for row in document("show", fork["id"], store=chats)["messages"]] == [1, 2]
    failed(run("delete", "QQD", "--yes", store=chats), "session_not_found")


def test_old_sessions_are_named_before_they_are_deleted(chats: Path) -> None:
    shown = run("retain", "--older-than", "0s", "--dry-run", store=chats).stdout
    assert EXAMPLE[0].session_id in shown
    assert "would delete 1 session" in shown
    assert run("retain", "--older-than", "90d", "--yes", store=chats).stdout == "deleted 0 sessions\n"
    found = document("retain", "--older-than", "0s", "--user", "bob", "--yes", store=chats)
    assert found == {"dry_run": False, "sessions": [], "attachments": 0, "large_pieces": 0, "left": []}
    found = document("retain", "--older-than", "0s", "--user", "ada", "--yes", store=chats)
    assert [session["id"] for session in found["sessions"]] == [EXAMPLE[0].session_id]
    assert run("retain", "--older-than", "soon", store=chats).returncode == 2
    failed(run("retain", "--older-than=-1d", "--yes", store=chats), "invalid_input")


def test_an_erasure_gives_a_receipt(chats: Path) -> None:
    filled(chats, [said("hello")], user_id="bob")
    receipt = document("erase", "--user", "ada", "--yes", store=chats)
    assert (receipt["user_id"], receipt["sessions"], receipt["messages"], receipt["tool_calls"]) == ("ada", 1, 4, 1)
    assert [session["user_id"] for session in document("sessions", store=chats)["sessions"]] == ["bob"]
    assert b"Project Foo" not in chats.read_bytes()


def uploaded(place: str, *users: str) -> None:
    """Files that these users have uploaded."""

    async def put() -> None:
        async with open_attachments(place, base_url="http://127.0.0.1") as attachments:
            for user in users:
                for thread in ("t1", "t2"):
                    await attachments.put(Owner(user, "team"), thread, "r", b"hello", declared_type="text/plain")

    asyncio.run(put())


def left(folder: Path) -> set[str]:
    """Return the owners of the remaining files."""
    return {path.parts[-4] for path in folder.rglob("*.txt")}


def test_an_erasure_takes_the_files_beside_the_store(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    uploaded(folder.as_uri(), "ada", "bob")
    told = run("erase", "--user", "ada", "--yes", store=chats)
    assert (told.returncode, told.stderr) == (0, "")
    assert "1 session, 4 messages, 1 tool call, 0 large objects, 2 attachments\n" in told.stdout
    assert left(folder) == {"bob"}
    assert document("erase", "--user", "ada", "--yes", store=chats)["attachments"] == 0


def test_an_erasure_of_nobody_says_so(chats: Path) -> None:
    told = run("erase", "--user", "adda", "--yes", store=chats)
    assert told.stdout.startswith("no data of user 'adda' found; check the id\n")


@pytest.mark.parametrize("how", ["option", "variable", "file"])
def test_an_erasure_finds_files_where_the_server_keeps_them(chats: Path, tmp_path: Path, how: str) -> None:
    place = (tmp_path / "files of others").as_uri()
    uploaded(place, "ada", "bob")
    config = tmp_path / "config.toml"
    config.write_text(f'[serve]\nattachments = "{place if how == "file" else "file:///nowhere"}"\n')
    config.chmod(0o600)
    named = {"DRAGOMAN_SERVE_ATTACHMENTS": place} if how == "variable" else {}
    option = ("--attachments", place) if how == "option" else ()
    told = run(
        "erase", "--user", "ada", "--yes", "--json", *option, store=chats, env={"DRAGOMAN_CONFIG": str(config), **named}
    )
    assert json.loads(told.stdout)["attachments"] == 2
    assert left(tmp_path / "files of others") == {"bob"}


def test_an_erasure_that_leaves_files_says_so_and_is_finished_by_another(chats: Path, tmp_path: Path) -> None:
    closed = "s3://bucket?endpoint=http://127.0.0.1:1"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    told = run("erase", "--user", "ada", "--yes", "--json", "--attachments", closed, store=chats, env=keys)
    receipt = json.loads(told.stdout)
    assert (told.returncode, receipt["sessions"], receipt["attachments"]) == (2, 1, None)
    assert "cannot be reached" in receipt["attachments_fault"]
    assert told.stderr.startswith("dragoman: some attachments of 'ada' were not deleted")
    assert "Run the command again" in told.stderr
    place = (tmp_path / "files").as_uri()
    uploaded(place, "ada")
    again = document("erase", "--user", "ada", "--yes", "--attachments", place, store=chats)
    assert (again["sessions"], again["attachments"], again["attachments_fault"]) == (0, 2, None)


@pytest.mark.parametrize(
    "arguments", [("delete", "last"), ("retain", "--older-than", "0s"), ("erase", "--user", "ada")]
)
def test_nothing_is_deleted_if_attachments_cannot_be_where_somebody_says(chats: Path, arguments: Sequence[str]) -> None:
    failed(run(*arguments, "--yes", "--attachments", "ftp://x", store=chats), "not_a_store")
    assert len(document("sessions", store=chats)["sessions"]) == 1


def attached(place: str, file: Path, user_id: str | None, *, title: str | None = None, count: int = 1) -> str:
    """A session that names so many files that were uploaded for it; its id."""

    async def put(store: Store) -> str:
        session = await store.create_session(user_id=user_id, title=title)
        async with open_attachments(place, base_url="http://127.0.0.1") as attachments:
            owner = Owner(user_id or "local")
            files = [await attachments.put(owner, session.id, "r", b"hello") for _ in range(count)]
        named = tuple(Attachment(one.bucket, one.path, one.mime_type) for one in files)
        await store.append(session.id, said("look", user_message_attachments=named))
        return session.id

    session_id: str = kept(file, put)
    return session_id


def threads(folder: Path) -> set[str]:
    """Of which sessions files are still there."""
    return {path.parts[-3] for path in folder.rglob("*.txt")}


@pytest.mark.parametrize("user_id", ["ada", None])
def test_a_session_is_deleted_with_the_files_beside_the_store(chats: Path, user_id: str | None) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    first, second = (attached(folder.as_uri(), chats, user_id, title="Pictures", count=2) for _ in range(2))
    told = run("delete", first, "--yes", store=chats)
    assert (told.stdout, told.stderr) == (f"deleted {first} 'Pictures' with 1 message and 2 attachments\n", "")
    assert threads(folder) == {second}
    found = document("delete", second, "--yes", store=chats)
    assert (found["deleted"]["id"], found["attachments"]) == (second, 2)
    assert threads(folder) == set()


@pytest.mark.parametrize("how", ["option", "variable", "file"])
@pytest.mark.parametrize("command", [("delete", "last"), ("retain", "--older-than", "0s")])
def test_a_deletion_finds_files_where_the_server_keeps_them(
    chats: Path, tmp_path: Path, how: str, command: Sequence[str]
) -> None:
    place = (tmp_path / "files of others").as_uri()
    attached(place, chats, "ada")
    config = tmp_path / "config.toml"
    config.write_text(f'[serve]\nattachments = "{place if how == "file" else "file:///nowhere"}"\n')
    config.chmod(0o600)
    named = {"DRAGOMAN_SERVE_ATTACHMENTS": place} if how == "variable" else {}
    option = ("--attachments", place) if how == "option" else ()
    told = run(*command, "--yes", "--json", *option, store=chats, env={"DRAGOMAN_CONFIG": str(config), **named})
    assert json.loads(told.stdout)["attachments"] == 1
    assert threads(tmp_path / "files of others") == set()


@pytest.mark.parametrize("command", [("delete", "last"), ("retain", "--older-than", "0s")])
def test_a_deletion_makes_nothing_where_no_files_are(chats: Path, command: Sequence[str]) -> None:
    before = {path.name for path in chats.parent.iterdir()}
    assert document(*command, "--yes", store=chats)["attachments"] == 0
    assert {path.name for path in chats.parent.iterdir()} == before


def test_a_session_in_which_a_turn_runs_is_neither_deleted_nor_retained(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    session_id = attached(folder.as_uri(), chats, "ada")

    async def holding(store: Store) -> None:
        async with store.turns.lease(session_id):
            told = await asyncio.to_thread(run, "delete", session_id, "--yes", store=chats)
            assert "a turn is running" in failed(told, "turn_in_flight")
            told = await asyncio.to_thread(run, "retain", "--older-than", "0s", "--yes", store=chats)
            assert told.stdout.endswith("deleted 1 session with 0 attachments\n")

    kept(chats, holding)
    assert [one["id"] for one in document("sessions", store=chats)["sessions"]] == [session_id]
    assert threads(folder) == {session_id}


def test_a_session_whose_files_cannot_be_deleted_stays(chats: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    closed = "s3://bucket?endpoint=http://127.0.0.1:1"
    told = failed(run("delete", "last", "--yes", "--attachments", closed, store=chats, env=keys), "attachments_left")
    assert f"session {EXAMPLE[0].session_id}: cannot delete its attachments, so the session is kept" in told
    assert "cannot be reached" in told
    assert len(document("sessions", store=chats)["sessions"]) == 1


def test_old_sessions_are_deleted_with_their_files_and_what_is_only_told_is_not(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    adas, nobodys = (attached(folder.as_uri(), chats, user_id) for user_id in ("ada", None))
    told = run("retain", "--older-than", "0s", "--dry-run", store=chats).stdout
    assert told.endswith("would delete 3 sessions\n")
    assert threads(folder) == {adas, nobodys}
    assert document("retain", "--older-than", "0s", "--dry-run", store=chats)["attachments"] is None
    found = document("retain", "--older-than", "0s", "--user", "ada", "--yes", store=chats)
    assert (len(found["sessions"]), found["attachments"], found["left"]) == (2, 1, [])
    assert threads(folder) == {nobodys}
    told = run("retain", "--older-than", "0s", "--yes", store=chats).stdout
    assert told.endswith("deleted 1 session with 1 attachment\n")
    assert threads(folder) == set()


# --- errors and help -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("show",),
        ("show", "last", "--nonsense"),
        ("show", "last", "--tail", "-1"),
        ("sessions", "--limit", "0"),
        ("sessions", "--since", "soon"),
        ("stats", "--by", "colour"),
        ("retain",),
        ("erase",),
    ],
)
def test_a_wrong_argument_is_one_line_too(chats: Path, arguments: Sequence[str]) -> None:
    assert "See dragoman " in failed(run(*arguments, store=chats), "usage")


def _commands() -> Iterator[tuple[str, ...]]:
    """Every command, those of a family each with the family's name before it."""
    for name in app:
        if not name.startswith("-"):
            family = [other for other in app[name] if not other.startswith("-")]
            yield from ((name, other) for other in family) if family else [(name,)]


@pytest.mark.parametrize("command", list(_commands()), ids=" ".join)
def test_help_teaches_with_examples_that_are_understood(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help").stdout
    examples = [line.strip() for line in shown.splitlines() if line.startswith("  dragoman ")]
    assert examples
    assert "Exit codes: 0" in shown
    for example in examples:
        part = next(part for part in reversed(example.split(" | ")) if part.startswith("dragoman "))  # of a pipe
        program, *arguments = shlex.split(re.sub(" [<>] .*", "", part))
        assert program == "dragoman"
        assert tuple(arguments[: len(command)]) == command
        app.parse_args(arguments, exit_on_error=False, print_error=False)


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
def test_an_export_replaces_no_store(chats: Path, arguments: tuple[str, ...]) -> None:
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
def test_a_folder_in_place_of_a_file_is_one_line(chats: Path, arguments: tuple[str, ...]) -> None:
    told = run(*arguments, store=None if "--store" in arguments else chats)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.count("\n") == 1
    assert told.stderr.startswith("dragoman: ")


def test_import_of_another_format_names_the_line_and_the_command_that_converts(tmp_path: Path) -> None:
    wire = tmp_path / "wire.jsonl"
    first = dragoman.encode(EXAMPLE[0]).decode()
    wire.write_text(first + '\n{"role": "user", "content": "hi"}\n', "utf-8")
    told = failed(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert f"{wire}: line 2, $.content: " in told
    assert "dragoman convert" in told


def test_import_says_that_a_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    told = failed(run("import", tmp_path / "empty.jsonl", store=tmp_path / "store.db"), "cut_export")
    assert "empty.jsonl: it is empty" in told


def test_a_failed_import_leaves_no_store_behind(tmp_path: Path) -> None:
    (tmp_path / "store.db.txt").write_text("mine")
    wire = tmp_path / "wire.jsonl"
    wire.write_text('{"role": "user", "content": "hi"}\n', "utf-8")
    failed(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert {path.name for path in tmp_path.iterdir()} == {"store.db.txt", "wire.jsonl"}
    filled(tmp_path / "store.db", [said("hello")])
    failed(run("import", wire, store=tmp_path / "store.db"), "invalid_message")
    assert "1" in run("sessions", store=tmp_path / "store.db").stdout


def test_errors_of_the_system_have_stable_codes(tmp_path: Path) -> None:
    failed(run("letter", "validate", tmp_path), "is_a_directory")
    failed(run("letter", "validate", tmp_path / "none.json"), "file_not_found")
    failed(run("mail", "send", tmp_path, store=tmp_path / "store.db"), "is_a_directory")


def test_a_negative_duration_is_refused_for_what_it_is(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    assert "--older-than is negative" in failed(run("retain", "--older-than", "-5d", store=store), "invalid_input")
    assert "--expires is not positive" in failed(
        run("keys", "create", "--expires", "-5d", store=store), "invalid_input"
    )


def test_json_that_cannot_be_read_is_named_with_file_line_and_column_once(tmp_path: Path) -> None:
    letter = tmp_path / "letter.json"
    letter.write_bytes(b'{"a":\xff}')
    assert f"dragoman: {letter}, byte 5: not UTF-8" in failed(
        run("mail", "send", letter, store=tmp_path / "a.db"), "invalid_json"
    )
    letter.write_bytes(b'{"NaN": "NaN",\n "a": NaN}')
    assert f"dragoman: {letter}, line 2 column 7: NaN is not JSON" in failed(
        run("mail", "send", letter, store=tmp_path / "a.db"), "invalid_json"
    )
    lines = tmp_path / "bad.jsonl"
    good = dragoman.encode(EXAMPLE[0]).decode()
    lines.write_text(f"{good}\n{good[:-1]}\n", "utf-8")
    told = failed(run("convert", lines, tmp_path / "out.jsonl"), "invalid_json")
    assert f"dragoman: {lines}, line 2 column {len(good)}: not JSON" in told


@pytest.mark.parametrize("length", ["9000y", "99999y", "99999999y", "99999999999d"])
@pytest.mark.parametrize("arguments", [("keys", "create", "--expires"), ("retain", "--dry-run", "--older-than")])
def test_a_length_of_time_beyond_the_calendar_is_no_traceback(
    chats: Path, arguments: tuple[str, ...], length: str
) -> None:
    told = run(*arguments, length, store=chats)
    assert "Traceback" not in told.stderr
    assert told.returncode == 2 or told.stdout.startswith("would delete 0 sessions")
