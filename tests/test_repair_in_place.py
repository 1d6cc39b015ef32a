"""Tests of ``dragoman check`` and ``dragoman repair --in-place`` on files of several formats: locations, ids and layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.check import check_file, repair_file
from dragoman.cli.tour import example_conversation
from dragoman.errors import InputError
from tests.test_cli import run, write_messages

ORPHAN = "Nobody asked for this."

OPENAI = """{
    "temperature": 0.50,
    "model": "gpt-5",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"content": "Weather in Paris and Rome?", "role": "user", "name": "ann"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\\"at\\":  1}"}},
                {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            ],
            "content": null
        },
        {"role": "tool", "tool_call_id": "call_9", "content": "Nobody asked for this."},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "user", "content": "Thanks, café"}
    ],
    "x_custom": {"b": 1, "a": 2}
}
"""

ANTHROPIC = """{
  "system": "Be brief.",
  "model": "claude-sonnet-4-6",
  "max_tokens": 100,
  "messages": [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "Two calls.", "signature": "c2ln"},
      {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
      {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Rome"}}
    ]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
      {"type": "tool_result", "tool_use_id": "toolu_9", "content": "Nobody asked for this."}
    ]},
    {"role": "user", "content": "Thanks"}
  ]
}"""

AG_UI = """[
  {"id": "m1", "role": "user", "content": "Weather?"},
  {"id": "m2", "role": "assistant", "toolCalls": [
    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
    {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
  {"id": "m3", "role": "tool", "toolCallId": "call_9", "content": "Nobody asked for this."},
  {"id": "m4", "role": "tool", "toolCallId": "call_1", "content": "sunny"},
  {"id": "m5", "role": "user", "content": "Thanks"}
]
"""

LANGCHAIN = """[
\t{"type": "human", "data": {"content": "Weather?", "id": "h1", "type": "human"}},
\t{"type": "ai", "data": {"content": "", "type": "ai", "id": "a1", "tool_calls": [
\t\t{"name": "weather", "args": {}, "id": "call_1", "type": "tool_call"},
\t\t{"name": "weather", "args": {}, "id": "call_2", "type": "tool_call"}]}},
\t{"type": "tool", "data": {"content": "Nobody asked for this.", "id": "t0", "type": "tool", "tool_call_id": "call_9"}},
\t{"type": "tool", "data": {"content": "sunny", "type": "tool", "id": "t1", "tool_call_id": "call_1"}},
\t{"type": "human", "data": {"content": "Thanks", "id": "h2", "type": "human"}}
]
"""

CANONICAL = """\
{"id": "u1", "session_id": "s", "role": "user", "content": [{"type": "text", "text": "Hi"}], "metadata": {}, \
"created_at": "2026-05-08T09:30:00Z"}

{"session_id": "s", "id": "c1", "role": "assistant", "content": [{"type": "tool_use", "id": "tu_1", "name": "f", \
"input": {}}], "metadata": {"status": "cancelled"}, "created_at": "2026-05-08T09:30:01Z", "schema_version": 1}
{"id": "r9", "session_id": "s", "role": "tool", "content": [{"type": "tool_result", "tool_use_id": "tu_9", \
"content": [{"type": "text", "text": "Nobody asked for this."}]}], "metadata": {"parent_tool_use_id": "tu_9"}, \
"created_at": "2026-05-08T09:30:02Z"}
{"id": "u2", "session_id": "s", "role": "user", "content": [{"type": "text", "text": "Bye"}], "metadata": {}, \
"created_at": "2026-05-08T09:30:03Z"}
"""

# For each format: the file, its text, and how check reports the orphan result and the unanswered call.
FILES = {
    "openai_chat": ("a.json", OPENAI, ("'call_9' (result-has-call, $.messages[3])", "'call_2' has no result")),
    "anthropic": ("a.json", ANTHROPIC, ("'toolu_9' (result-has-call, $.messages[2])", "'toolu_2' has no result")),
    "ag_ui": ("a.json", AG_UI, ("'call_9' (result-has-call, $[2], message m3)", "'call_2' has no result")),
    "langchain": ("a.json", LANGCHAIN, ("'call_9' (result-has-call, $[2], message t0)", "'call_2' has no result")),
    "canonical": ("a.jsonl", CANONICAL, ("'tu_9' (result-has-call, $.content[0], message r9)", "'tu_1' has no result")),
}
EACH = pytest.mark.parametrize(("name", "text", "expected"), FILES.values(), ids=FILES.keys())


def write_file(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_bytes(text.encode())
    return file


def read_set_aside(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"{file}.set-aside.jsonl").read_text("utf-8").splitlines()]


@EACH
def test_check_reports_ids_and_locations_of_the_file(
    name: str, text: str, expected: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_file(write_file(tmp_path, name, text)) == 1
    printed = capsys.readouterr().out
    assert [violation for violation in expected if violation not in printed] == []
    assert "tu_0000" not in printed
    assert "message 0000" not in printed
    assert "2 violations" in printed


@EACH
def test_repair_in_place_changes_only_invalid_lines(
    name: str, text: str, expected: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del expected
    file = write_file(tmp_path, name, text)
    assert repair_file(file, in_place=True) == 0
    after = file.read_text("utf-8")
    unchanged = [line for line in text.splitlines() if ORPHAN not in line]
    added = [line for line in after.splitlines() if line not in unchanged]
    assert [line for line in after.splitlines() if line in unchanged] == unchanged
    assert len(added) == 1
    assert "cancelled: this call was never answered" in added[0]
    assert after.endswith("\n") == text.endswith("\n")
    printed = capsys.readouterr().out
    assert f"removed content is in {file}.set-aside.jsonl" in printed
    assert "tu_0000" not in printed
    assert Path(f"{file}.bak").read_text("utf-8") == text
    assert (check_file(file), repair_file(file)) == (0, 0)


@EACH
def test_removed_content_is_stored_in_a_file_beside(
    name: str, text: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    file = write_file(tmp_path, name, text)
    file.chmod(0o600)
    assert repair_file(file, in_place=True) == 0
    (removed,) = read_set_aside(file)
    assert removed["rule"] == "result-has-call"
    assert removed["what"] == f"set aside: no call has the id {expected[0].partition(' ')[0]}"
    assert ORPHAN in json.dumps(removed["message"])
    if name == "a.json":  # in the format of the file
        line = next(line for line in text.splitlines() if ORPHAN in line)
        found = json.loads(line.strip().removesuffix(","))
        assert removed["message"] in (found, {"role": "user", "content": [found]})
    assert Path(f"{file}.set-aside.jsonl").stat().st_mode & 0o777 == 0o600


def test_line_endings_and_empty_lines_are_preserved(tmp_path: Path) -> None:
    good = '{"messages":[{"role":"user","content":"a"}]}'
    bad = '{"messages":[{"role":"user","content":"b"},{"role":"tool","tool_call_id":"x","content":"?"}],"n":1.0}'
    file = tmp_path / "in.jsonl"
    file.write_bytes(f"\ufeff{good}\r\n\r\n  {bad}\r\n{good}\r\n\r\n".encode())
    assert repair_file(file, source_format="openai_chat", in_place=True) == 0
    repaired = '{"messages":[{"role":"user","content":"b"}],"n":1.0}'
    assert file.read_bytes() == f"\ufeff{good}\r\n\r\n  {repaired}\r\n{good}\r\n\r\n".encode()


def test_repaired_exchange_is_still_an_exchange(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Bye."}}
    ]}  # fmt: skip
    exchange = {"at": 7, "request": json.loads(OPENAI), "response": answer}
    file = write_file(tmp_path, "log.json", json.dumps(exchange, indent=2))
    assert repair_file(file, in_place=True) == 0
    repaired = json.loads(file.read_bytes())
    assert list(repaired) == ["at", "request", "response"]
    assert (repaired["at"], repaired["response"]) == (7, answer)
    assert [message.get("tool_call_id") for message in repaired["request"]["messages"]][3:5] == ["call_1", "call_2"]
    assert "(result-has-call, $.request.messages[3])" in capsys.readouterr().out


def test_indented_list_of_messages_keeps_its_layout(tmp_path: Path) -> None:
    before = [json.loads(line) for line in CANONICAL.splitlines() if line]
    file = write_file(tmp_path, "in.json", json.dumps(before, indent=3))
    assert repair_file(file, in_place=True) == 0
    after = json.loads(file.read_bytes())
    assert [message["id"] for message in after][:2] == ["u1", "c1"]
    assert file.read_text("utf-8") == json.dumps(after, indent=3)
    assert [message for message in after if message in before] == [before[0], before[1], before[3]]


def test_duplicate_and_empty_messages_are_set_aside(tmp_path: Path) -> None:
    body = json.loads(OPENAI)
    body["messages"][3]["tool_call_id"] = "call_2"
    body["messages"][4:5] *= 2
    body["messages"].insert(5, {"role": "assistant", "content": " "})
    file = write_file(tmp_path, "in.json", json.dumps(body))
    assert run("repair", file, "--in-place").returncode == 0
    rules = [row["rule"] for row in read_set_aside(file)]
    assert rules == ["text-says-something", "content-not-empty", "one-result-per-call"]
    body["messages"] = [*body["messages"][:5], body["messages"][-1]]
    assert json.loads(file.read_bytes()) == body


def test_second_repair_does_not_overwrite_removed_content(tmp_path: Path) -> None:
    file = write_file(tmp_path, "in.json", OPENAI)
    for _ in range(2):
        file.write_text(OPENAI, "utf-8")
        assert repair_file(file, in_place=True) == 0
    assert (tmp_path / "in.json.set-aside.jsonl").exists()
    assert (tmp_path / "in.json.set-aside1.jsonl").exists()


def test_export_is_not_repaired_in_place(tmp_path: Path) -> None:
    messages = example_conversation()
    store = tmp_path / "chats.db"
    assert (
        run("import", write_messages(tmp_path / "in.jsonl", (*messages[:2], messages[3])), "--store", store).returncode
        == 0
    )
    export = tmp_path / "export.jsonl"
    assert run("export", "last", "--to", export, "--store", store).returncode == 0
    before = export.read_bytes()
    with pytest.raises(InputError, match="is an export"):
        repair_file(export, in_place=True)
    assert export.read_bytes() == before
    assert repair_file(export, tmp_path / "out.jsonl") == 0


def test_link_stays_a_link_and_its_target_is_repaired(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(OPENAI, "utf-8")
    link = tmp_path / "link.json"
    link.symlink_to(file)
    assert repair_file(link, in_place=True) == 0
    assert link.is_symlink()
    assert ORPHAN not in file.read_text("utf-8")
    assert (tmp_path / "talk.json.bak").read_text("utf-8") == OPENAI
