"""Tests of the commands over the store, run as a user runs them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import dragoman
from dragoman.cli.options import default_path, mask_password
from dragoman.cli.parser import app
from dragoman.cli.totals import bar
from dragoman.message import ContentBlock, Role, TextBlock, ToolResultBlock, ToolUseBlock
from tests.cli_store import EXAMPLE, damage_first_message, expect_error, fill_store, run, run_json
from tests.store.messages import answer_message, message, text_message
from tests.test_cli import COMMAND

# --- which store, which session --------------------------------------------------------------------------------------


def test_store_is_set_by_option_variable_or_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = tmp_path / "mine.db", tmp_path / "the ir%20s.db"
    fill_store(mine, [text_message("hello")], title="mine")
    fill_store(theirs, [text_message("hello")], title="theirs")
    assert "mine" in run("sessions", store=mine).stdout
    assert "theirs" in run("sessions", "--store", theirs, store=mine).stdout
    assert "mine" in run("sessions", "--store", f"sqlite:///{mine}").stdout
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    fill_store(default_path(), [text_message("hello")], title="the default")
    assert "the default" in run("sessions").stdout
    assert (tmp_path / "data" / "dragoman" / "store.db").is_file()


def test_mistyped_store_is_not_created(tmp_path: Path) -> None:
    assert "the store does not exist" in expect_error(run("sessions", store=tmp_path / "typo.db"), "not_a_store")
    assert list(tmp_path.iterdir()) == []
    assert "sqlite:///" in expect_error(run("sessions", store="redis://localhost"), "not_a_store")


def test_file_that_is_not_a_store_is_one_error_line(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be taken for one" * 20)
    expect_error(run("sessions", store=tmp_path / "text.db"), "not_a_store")
    done = run("sessions", store="postgresql://nobody@127.0.0.1:1/none")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_password_is_never_printed() -> None:
    assert mask_password("postgresql://me:s3cret@host/db") == "postgresql://me:…@host/db"
    assert "s3cret" not in mask_password("postgresql://host/db?user=me&password=s3cret&x=1")
    assert mask_password("sqlite:///a@b:c.db") == "sqlite:///a@b:c.db"
    assert "s3cret" not in run("sessions", store="postgresql://me:s3cret@127.0.0.1:1/none").stderr


def test_session_is_found_by_id_prefix_suffix_or_last(chats: Path) -> None:
    (other,) = fill_store(chats, [text_message("something else")], title="newer")
    for name in (EXAMPLE[0].session_id, EXAMPLE[0].session_id[:12], "01KR3ER9E", "00QQD", "qqd"):
        assert run_json("show", name, store=chats)["session"]["id"] == EXAMPLE[0].session_id
    assert run_json("show", "last", store=chats)["session"]["id"] == other.id
    assert "'nobody'" in expect_error(run("show", "nobody", store=chats), "session_not_found")
    ambiguous = expect_error(run("show", "sess_", store=chats), "invalid_input")
    assert other.id in ambiguous
    assert EXAMPLE[0].session_id in ambiguous


def test_last_session_of_empty_store_is_an_error(tmp_path: Path) -> None:
    fill_store(tmp_path / "empty.db")
    assert "no sessions" in expect_error(run("show", "last", store=tmp_path / "empty.db"), "session_not_found")
    assert run("sessions", store=tmp_path / "empty.db").stdout == "no sessions\n"


# --- sessions --------------------------------------------------------------------------------------------------------


def test_sessions_are_listed_newest_first_and_page_by_page(tmp_path: Path) -> None:
    file = tmp_path / "many.db"
    sessions = fill_store(file, *([text_message(f"number {number}")] for number in range(7)))
    newest_first = [session.id for session in reversed(sessions)]
    first = run_json("sessions", "--limit", "3", store=file)
    assert [session["id"] for session in first["sessions"]] == newest_first[:3]
    assert first["is_more"]
    rest = run_json("sessions", "--before", newest_first[2], "--limit", "5", store=file)
    assert [session["id"] for session in rest["sessions"]] == newest_first[3:]
    assert not rest["is_more"]
    output = run("sessions", "--limit", "3", store=file).stdout
    assert output.count("sess_") == 3
    assert f"--before {newest_first[2][-6:]}" in output


def test_sessions_are_filtered(chats: Path) -> None:
    fill_store(chats, [text_message("hello")], user_id="bob", team_id="red")
    for arguments, count in [
        (("--user", "ada"), 1),
        (("--team", "red"), 1),
        (("--user", "ada", "--team", "red"), 0),
        (("--since", "2026-01-01"), 2),
        (("--since", "2126-01-01"), 0),
    ]:
        assert len(run_json("sessions", *arguments, store=chats)["sessions"]) == count


# --- show ------------------------------------------------------------------------------------------------------------


def test_show_prints_calls_results_thinking_model_and_cost(chats: Path) -> None:
    output = run("show", "QQD", store=chats).stdout
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
        assert sign in output


def test_json_contains_every_message_as_stored(chats: Path) -> None:
    done = run("show", "QQD", "--json", store=chats)
    for stored in EXAMPLE:
        assert dragoman.encode(stored).decode() in done.stdout
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
def test_show_prints_a_part_of_a_conversation(chats: Path, arguments: Sequence[str], seqs: list[int]) -> None:
    assert [row["seq"] for row in run_json("show", "QQD", *arguments, store=chats)["messages"]] == seqs
    output = run("show", "QQD", *arguments, store=chats).stdout
    assert output.count("▌") == len(seqs)
    assert ("earlier message" in output) == bool(seqs and seqs[0] > 1)
    assert ("later message" in output) == bool(seqs and seqs[-1] < 4)


def test_long_results_are_folded_without_full(tmp_path: Path) -> None:
    file = tmp_path / "long.db"
    lines = "\n".join(f"line {number}" for number in range(100))
    call = message(Role.ASSISTANT, [ToolUseBlock("tu_1", "read_file", {"path": "x" * 1000})])
    result = message(Role.TOOL, [ToolResultBlock("tu_1", (TextBlock(lines),))])
    fill_store(file, [call, result])
    output = run("show", "last", store=file).stdout
    assert "line 7\n" in output
    assert "line 8\n" not in output
    assert "… 92 more lines" in output
    assert "more characters" in output
    full = run("show", "last", "--full", store=file).stdout
    assert "line 99\n" in full
    assert "x" * 1000 in full


def test_control_characters_never_reach_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m \u202eabc [bold]kept[/bold]"
    blocks: list[ContentBlock] = [TextBlock(evil), ToolUseBlock("tu_1", evil, {evil: evil})]
    result = message(Role.TOOL, [ToolResultBlock("tu_1", (TextBlock(evil),), is_error=True)])
    file = tmp_path / "evil.db"
    fill_store(
        file, [text_message(evil), message(Role.ASSISTANT, blocks, model=evil), result], title=evil, user_id=evil
    )
    for arguments in (("sessions",), ("show", "last"), ("show", "last", "--full"), ("search", "kept")):
        output = run(*arguments, store=file).stdout
        assert not set("\x1b\x07\x9b\u202e") & set(output)
    assert "[bold]kept[/bold]" in run("show", "last", store=file).stdout


def test_every_block_type_is_shown(tmp_path: Path) -> None:
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
    fill_store(tmp_path / "all.db", [message(Role.ASSISTANT, blocks, status="error")])
    newer = dragoman.decode(unknown).replace(session_id="", id="")
    fill_store(tmp_path / "newer.db", [newer])
    shown = run("show", "last", store=tmp_path / "all.db").stdout
    for sign in ("[image: image/png, 3.0 kB]", "a.pdf", "audio/wav", "video/mp4", "encrypted", "rm was not called"):
        assert sign in shown
    assert "[anthropic: server_tool_use]" in shown
    assert "· error" in shown
    assert "[hologram: from a newer version]" in run("show", "last", store=tmp_path / "newer.db").stdout


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    file = tmp_path / "long.db"
    fill_store(file, [text_message("word " * 200) for _ in range(300)])
    script = f"'{COMMAND}' show last --store '{file}' | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.endswith("\n0\n")


# --- search ----------------------------------------------------------------------------------------------------------


def test_search_matches_any_language_and_returns_positions(chats: Path) -> None:
    (other,) = fill_store(
        chats, [text_message("用令牌桶限流"), answer_message("A token bucket.", model="openai:gpt-5")], user_id="bob"
    )
    (hit,) = run_json("search", "令牌桶", store=chats)["hits"]
    assert (hit["session_id"], hit["seq"], hit["role"]) == (other.id, 1, "user")
    assert [hit["snippet"][begin:end] for begin, end in hit["highlights"]] == ["令牌桶"]
    for arguments, count in [
        (("token", "buck"), 1),
        (("bucket", "--user", "bob"), 1),
        (("bucket", "--session", "last", "--role", "assistant", "--model", "openai:gpt-5"), 1),
    ]:
        assert len(run_json("search", *arguments, store=chats)["hits"]) == count
    result = run("search", "readme", store=chats)
    assert (result.returncode, EXAMPLE[0].session_id in result.stdout) == (0, True)


def test_search_without_hits_has_exit_code_1(chats: Path) -> None:
    done = run("search", "unicorn", store=chats)
    assert (done.returncode, done.stdout) == (1, "no messages found for 'unicorn'\n")
    done = run("search", "readme", "--user", "bob", "--json", store=chats)
    assert (done.returncode, json.loads(done.stdout)) == (1, {"hits": []})


# --- fork ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "shared"), [(None, 4), ("2", 2), (EXAMPLE[2].id, 3), ("0", 0)])
def test_fork_shares_history_up_to_a_message(chats: Path, at: str | None, shared: int) -> None:
    fork = run_json("fork", "QQD", *(("--at", at) if at is not None else ()), "--title", "again", store=chats)
    assert (fork["parent_seq"], fork["title"]) == (shared, "again")
    report = run_json("show", fork["id"], store=chats)
    assert len(report["messages"]) == shared
    if shared:
        assert f"forked from {EXAMPLE[0].session_id} at message {shared}" in run("show", fork["id"], store=chats).stdout
        assert f"⑂ 000QQD at {shared}" in run("sessions", store=chats).stdout


def test_fork_at_missing_message_creates_nothing(chats: Path) -> None:
    expect_error(run("fork", "QQD", "--at", "5", store=chats), "message_not_found")
    expect_error(run("fork", "QQD", "--at", "nothing", store=chats), "message_not_found")
    assert len(run_json("sessions", store=chats)["sessions"]) == 1


# --- stats -----------------------------------------------------------------------------------------------------------


def test_stats_prints_sizes_totals_and_a_bar_per_day(chats: Path) -> None:
    output = run("stats", store=chats).stdout
    for sign in ("1 session, 4 messages", "power-safe", "anthropic:claude-sonnet-4-6", "$0.001308", "2026-05-08  █"):
        assert sign in output
    report = run_json("stats", "--by", "user", store=chats)
    assert report["sizes"]["messages"] == 4
    assert [(day["group"], day["cost_usd"]) for day in report["days"]] == [("2026-05-08", "0.001308")]
    assert run_json("stats", "--since", "2026-05-09", store=chats)["totals"] == []
    assert run_json("stats", "--model", "anthropic:claude-sonnet-4-6", store=chats)["totals"][0]["messages"] == 2


def test_store_without_usage_has_no_chart(tmp_path: Path) -> None:
    fill_store(tmp_path / "quiet.db", [text_message("hello")])
    assert "no usage" in run("stats", store=tmp_path / "quiet.db").stdout


def test_length_of_bar_is_proportional() -> None:
    assert [bar(share, 4) for share in (0, 0.125, 0.5, 1)] == ["", "▌", "██", "████"]


# --- verify ----------------------------------------------------------------------------------------------------------


def test_verify_reports_an_intact_store_and_names_damage(chats: Path) -> None:
    intact, marked = run("verify", store=chats).stdout.splitlines()
    assert intact == "intact: 1 session, 4 messages, 0 large objects"
    assert marked.startswith("the end of 1 session matches chats.db-mark, created 2")
    assert run_json("verify", "last", store=chats)["is_sound"]
    damage_first_message(chats)
    done = run("verify", store=chats)
    assert done.returncode == 1
    assert f"{EXAMPLE[0].session_id}, message 1" in done.stdout
    assert "1 damaged" in done.stdout
    result = run("verify", "--json", store=chats)
    assert result.returncode == 1
    assert [(damage["seq"], damage["session_id"]) for damage in json.loads(result.stdout)["damage"]] == [
        (1, EXAMPLE[0].session_id)
    ]


def test_damaged_message_is_not_printed(chats: Path) -> None:
    damage_first_message(chats)
    done = run("show", "last", store=chats)
    assert done.returncode == 2
    assert "Summarizd" not in done.stdout
    assert done.stderr.endswith("[damaged]\n")
    assert run("show", "last", "--after", "1", store=chats).returncode == 0


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
def test_invalid_argument_is_one_error_line(chats: Path, arguments: Sequence[str]) -> None:
    assert "See dragoman " in expect_error(run(*arguments, store=chats), "usage")


def _commands() -> Iterator[tuple[str, ...]]:
    """Yield every command; a command of a group has the name of the group before it."""
    for name in app:
        if not name.startswith("-"):
            subcommands = [other for other in app[name] if not other.startswith("-")]
            yield from ((name, other) for other in subcommands) if subcommands else [(name,)]


@pytest.mark.parametrize("command", list(_commands()), ids=" ".join)
def test_every_example_in_a_help_text_is_valid(command: tuple[str, ...]) -> None:
    output = run(*command, "--help").stdout
    examples = [line.strip() for line in output.splitlines() if line.startswith("  dragoman ")]
    assert examples
    assert "Exit codes: 0" in output
    for example in examples:
        part = next(part for part in reversed(example.split(" | ")) if part.startswith("dragoman "))  # of a pipe
        program, *arguments = shlex.split(re.sub(" [<>] .*", "", part))
        assert program == "dragoman"
        assert tuple(arguments[: len(command)]) == command
        app.parse_args(arguments, exit_on_error=False, print_error=False)
