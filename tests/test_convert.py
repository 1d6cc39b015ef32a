"""Tests of the conversion of files: output, losses and bad input."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from dragoman import codec, dialects, encode, formats, transcripts
from dragoman.cli.check import check_file, repair_file
from dragoman.cli.convert import convert
from dragoman.cli.tour import example_conversation
from dragoman.conversion import pipeline
from dragoman.errors import DragomanError, InputError
from dragoman.exchange import Request
from dragoman.message import Message, Role, ThinkingBlock, ToolResultBlock
from tests import recordings, strategies
from tests.conftest import CORPUS
from tests.test_cli import COMMAND, run, write_messages

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "A cat."},
    {"role": "assistant", "content": "I saw a cat."},
]
LOOK = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
BODY = {"model": "gpt-5", "messages": TALK, "tools": [LOOK], "temperature": 0.5, "logit_bias": {"1": 2}}


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def jsonl(file: Path, *values: Any) -> Path:
    file.write_text("".join(json.dumps(value) + "\n" for value in values), "utf-8")
    return file


def file_names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["canonical", "envelopes"])
@pytest.mark.parametrize("dialect", dialects.callable_names())
def test_requests_of_every_dialect_round_trip_through_own_formats(dialect: str, through: str, tmp_path: Path) -> None:
    bodies = [recordings.cassette(dialect, name).request.body for name in recordings.cassette_names(dialect)[:3]]
    source = jsonl(tmp_path / "in.jsonl", *bodies)
    assert convert(source, tmp_path / "middle.jsonl", source_format=dialect, to=through) == 0
    assert convert(tmp_path / "middle.jsonl", tmp_path / "out.jsonl", to=dialect) == 0
    assert lines_of(tmp_path / "out.jsonl") == bodies


@pytest.mark.parametrize("name", formats.readable())
def test_every_format_round_trips(name: str) -> None:
    first = formats.write(name, formats.restore_request(example_conversation()))
    pieces = [formats.Fragment(number, line) for number, line in enumerate(first.data.splitlines(), 1)]
    by_message = name == formats.CANONICAL
    again = formats.read(name, pieces, "sess_x", by_message=by_message)
    assert formats.write(name, again).data == first.data


@given(strategies.histories)
def test_envelopes_and_canonical_messages_are_lossless(history: list[Message]) -> None:
    request = Request(model=None, messages=tuple(history))
    text = formats.write("envelopes", request)
    again = formats.read("envelopes", [formats.Fragment(1, text.data)], "", by_message=False)
    assert [codec.encode(message) for message in again.messages] == [codec.encode(message) for message in history]


def test_request_fields_are_stored_in_the_first_message(tmp_path: Path) -> None:
    convert(jsonl(tmp_path / "in.jsonl", BODY), tmp_path / "messages.jsonl")
    first = lines_of(tmp_path / "messages.jsonl")[0]
    assert first["metadata"]["extra"]["dragoman.request"]["model"] == "gpt-5"
    convert(tmp_path / "messages.jsonl", tmp_path / "out.jsonl", to="openai_chat")
    assert lines_of(tmp_path / "out.jsonl") == [BODY]


def test_exchange_is_read_with_its_response(tmp_path: Path) -> None:
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Bye."}}
    ]}  # fmt: skip
    source = jsonl(tmp_path / "log.jsonl", {"request": {"model": "gpt-5", "messages": TALK}, "response": answer})
    convert(source, tmp_path / "out.jsonl", source_format="openai_chat")
    assert [message["content"][0].get("text") for message in lines_of(tmp_path / "out.jsonl")][-1] == "Bye."


def test_export_is_read_and_a_truncated_export_is_rejected(tmp_path: Path) -> None:
    store = tmp_path / "chats.db"
    assert (
        run("import", write_messages(tmp_path / "chat.jsonl", example_conversation()), "--store", store).returncode == 0
    )
    assert run("export", "last", "--to", tmp_path / "export.jsonl", "--store", store).returncode == 0
    convert(tmp_path / "export.jsonl", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "chat.jsonl").read_bytes()
    whole = (tmp_path / "export.jsonl").read_bytes().splitlines(keepends=True)
    for damaged in (whole[:-1], whole[:2] + whole[3:], whole[:-2]):
        (tmp_path / "cut.jsonl").write_bytes(b"".join(damaged))
        with pytest.raises(InputError, match=r"cut.jsonl, line") as caught:
            convert(tmp_path / "cut.jsonl", tmp_path / "never.jsonl")
        assert caught.value.code == "cut_export"
    assert not (tmp_path / "never.jsonl").exists()


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a request a line", json.dumps({"messages": TALK})),
        ("a message a line", "\n".join(json.dumps(message) for message in TALK)),
        ("a list of messages", json.dumps(TALK, indent=1)),
        ("a list on one line", json.dumps(TALK)),
        ("a request over many lines", json.dumps({"messages": TALK}, indent=2)),
        ("a list of requests", json.dumps([{"messages": TALK}], indent=2)),
        ("a list a line", json.dumps(TALK) + "\n\n"),
        ("a byte order mark and other line ends", "\ufeff" + json.dumps({"messages": TALK}) + "\r\n\r\n"),
    ],
)
def test_conversations_are_found_in_every_file_layout(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(text, "utf-8")
    convert(tmp_path / "in.json", tmp_path / "out.jsonl", to="openai_chat")
    assert lines_of(tmp_path / "out.jsonl") == [{"messages": TALK}]


def test_json_target_is_one_document(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "in.jsonl", {"messages": TALK}, {"messages": TALK[:2]})
    convert(source, tmp_path / "two.json", to="openai_chat")
    assert json.loads((tmp_path / "two.json").read_bytes()) == [{"messages": TALK}, {"messages": TALK[:2]}]
    convert(jsonl(source, {"messages": TALK}), tmp_path / "one.json", to="openai_chat")
    assert json.loads((tmp_path / "one.json").read_bytes()) == {"messages": TALK}
    convert(source, tmp_path / "messages.json")
    assert [message["role"] for message in json.loads((tmp_path / "messages.json").read_bytes())] == [
        m["role"] for m in TALK
    ]


def test_gzip_files_are_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(json.dumps({"messages": TALK}).encode()))
    convert(tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl.gz", to="openai_chat")
    assert json.loads(gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes())) == {"messages": TALK}


def test_folder_is_mirrored_and_invalid_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    jsonl(tmp_path / "in" / "a.jsonl", {"messages": TALK})
    jsonl(tmp_path / "in" / "deep" / "b.json", {"messages": TALK})
    (tmp_path / "in" / "bad.jsonl").write_text("{")
    (tmp_path / "in" / "notes.txt").write_text("not a conversation")
    assert convert(tmp_path / "in", tmp_path / "out", to="html") == 1
    assert "bad.jsonl" in capsys.readouterr().err
    assert file_names(tmp_path / "out") == ["a.html", "deep"]
    assert file_names(tmp_path / "out" / "deep") == ["b.html"]
    with pytest.raises(InputError, match="inside the input folder"):
        convert(tmp_path / "in", tmp_path / "in" / "out")


def test_standard_input_and_output_are_supported(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "convert", "-", "-", "--to", "anthropic"],
        input=json.dumps({"messages": TALK}).encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["system"] == "Be brief."
    assert b"standard input is openai_chat" in done.stderr


def test_file_is_never_converted_into_itself(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "in.jsonl", {"messages": TALK})
    (tmp_path / "link.jsonl").symlink_to(source)
    for target in (source, tmp_path / "link.jsonl"):
        with pytest.raises(InputError, match="the input file"):
            convert(source, target)
    assert lines_of(source) == [{"messages": TALK}]


def test_page_is_written_for_its_file_extension(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "in.jsonl", {"messages": TALK})
    convert(source, tmp_path / "page.html")
    convert(source, tmp_path / "page.md")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "**→ look**" in (tmp_path / "page.md").read_text()
    with pytest.raises(InputError, match="write-only"):
        convert(source, tmp_path / "out.jsonl", source_format="html")


# --- detection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", formats.readable())
def test_written_files_are_detected(name: str) -> None:
    data = formats.write(name, formats.restore_request(example_conversation())).data
    found = formats.detect([json.loads(line) for line in data.splitlines()])
    assert found.why
    assert found.format == name or found.why == f"{found.format} and {name} read it alike"


def test_undetectable_format_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"in.jsonl, line 1: .*--from") as caught:
        convert(jsonl(tmp_path / "in.jsonl", {"hello": "world"}), tmp_path / "out.jsonl")
    assert caught.value.code == "unknown_format"
    with pytest.raises(InputError, match="there is no format 'nonsense'"):
        convert(tmp_path / "in.jsonl", tmp_path / "out.jsonl", to="nonsense")


def test_convert_warns_about_violations_and_writes_messages_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "x", "content": "late"}]
    }
    source = jsonl(tmp_path / "in.jsonl", request)
    assert convert(source, tmp_path / "out.jsonl", source_format="openai_chat", to="openai_chat") == 0
    assert lines_of(tmp_path / "out.jsonl") == [request]
    assert "warning: result-has-call is violated 1 ×" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["openai_chat", None])
def test_skip_invalid_omits_and_reports_unreadable_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str | None
) -> None:
    good = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    source = jsonl(tmp_path / "in.jsonl", good, {"messages": [{"role": "nobody"}]}, good)
    with source.open("ab") as file:
        file.write(b'\xff\n{"messages": [\n' + json.dumps(good).encode() + b"\n")
    with pytest.raises(InputError, match="line 2"):
        convert(source, tmp_path / "out.jsonl", source_format="openai_chat", to="anthropic")
    assert convert(source, tmp_path / "out.jsonl", source_format=name, to="anthropic", skip_invalid=True) == 1
    assert len(lines_of(tmp_path / "out.jsonl")) == 3
    output = capsys.readouterr().err
    assert all(f"in.jsonl, line {number}" in output for number in (2, 4, 5))


def test_skip_invalid_omits_one_message_of_a_session(tmp_path: Path) -> None:
    lines = [encode(message) for message in example_conversation()]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join([*lines[:1], lines[1].replace(b'"content":[', b'"content":[5,', 1), *lines[2:], b""]))
    assert convert(source, tmp_path / "out.jsonl", skip_invalid=True) == 1
    assert (tmp_path / "out.jsonl").read_bytes().splitlines() == [lines[0], *lines[2:]]


@pytest.mark.parametrize(
    "value",
    [
        [{"type": "click"}],
        [{"id": "1", "type": "PushEvent", "content": "x"}],
        [{"type": "text", "text": "hi"}],
        {"input": [{"type": "click"}]},
        {"contents": [{}]},
        [{"parts": [{"a": 1}]}],
    ],
)
def test_json_without_role_or_known_content_is_not_a_conversation(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "clicks.json"
    file.write_text(json.dumps(value))
    with pytest.raises(InputError, match=r"no message has a role or known content.*--from") as caught:
        check_file(file)
    assert caught.value.code == "unknown_format"


def test_explicit_format_needs_no_role_or_known_content(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "clicks.jsonl", {"input": [{"type": "click"}]})
    assert check_file(file, source_format="openai_responses") in (0, 1)


def test_formats_with_different_readings_are_ambiguous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        NAME = "other"

        @staticmethod
        def looks_like(wire: Any) -> bool:
            return isinstance(wire, dict) and "messages" in wire

        @staticmethod
        def read_messages(wire: Any, **_: Any) -> tuple[Message, ...]:
            return example_conversation()[: len(wire["messages"])]

    monkeypatch.setitem(transcripts.FORMATS, "other", Other)
    text = {"messages": [{"role": "user", "content": "Hi"}]}
    with pytest.raises(InputError, match=r"it may be openai_chat or .*other") as caught:
        convert(jsonl(tmp_path / "in.jsonl", text), tmp_path / "out.jsonl")
    assert caught.value.code == "ambiguous_format"


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the recorded traffic is not here")
def test_recorded_requests_are_detected_or_read_identically() -> None:
    misread, count = [], 0
    for record in read_requests(every=40):
        count += 1
        try:
            found = formats.detect([record["request"]]).format
        except InputError:
            found = "unknown"
        if found != record["dialect"] and not _reads_same(record, found):
            misread.append((record["id"], found))
    assert count > 100
    assert len(misread) <= count // 50, misread


def read_requests(every: int) -> Iterator[dict[str, Any]]:
    for file in sorted(CORPUS.glob("*.jsonl.gz")):
        with gzip.open(file) as lines:
            for line in itertools.islice(lines, 0, None, every):
                record = json.loads(line)
                record["dialect"] = dialects.names_in_recordings()[record["dialect"]]
                if isinstance(record["request"], dict):
                    yield record


def _reads_same(record: dict[str, Any], found: str) -> bool:
    if found not in dialects.names():
        return False
    read = [dialects.load(name).read_request(record["request"]).messages for name in (record["dialect"], found)]
    return [(message.role, message.content) for message in read[0]] == [
        (message.role, message.content) for message in read[1]
    ]


# --- losses ----------------------------------------------------------------------------------------------------------


def test_losses_are_counted_listed_and_rejected_with_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thought = ThinkingBlock("Hm.", signature="abc")
    messages = [message.replace(content=(thought, *message.content)) if message.role is Role.ASSISTANT else message
            for message in example_conversation()]  # fmt: skip
    source = write_messages(tmp_path / "in.jsonl", tuple(messages))
    convert(source, tmp_path / "out.jsonl", to="openai_chat", losses=tmp_path / "lost.jsonl")
    assert "lost 3 × thinking" in capsys.readouterr().err
    lost = lines_of(tmp_path / "lost.jsonl")
    assert [message["block_type"] for message in lost] == ["thinking"] * 3
    assert (lost[0]["file"], lost[0]["line"], lost[0]["message_id"]) == (str(source), 1, messages[1].id)
    with pytest.raises(InputError, match=r"in.jsonl, line 1: openai_chat cannot carry thinking") as caught:
        convert(source, tmp_path / "never.jsonl", to="openai_chat", strict=True)
    assert caught.value.code == "would_lose"
    assert not (tmp_path / "never.jsonl").exists()


def test_loss_on_critical_message_fails(tmp_path: Path) -> None:
    first, second, *others = example_conversation()
    critical = second.replace(metadata=second.metadata.replace(critical=True))
    source = write_messages(tmp_path / "in.jsonl", (first, critical, *others))
    with pytest.raises(InputError, match="critical") as caught:
        convert(source, tmp_path / "out.jsonl", to="openai_chat")
    assert caught.value.code == "critical_loss"
    assert file_names(tmp_path) == ["in.jsonl"]


def test_summary_is_one_json_document(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = jsonl(tmp_path / "in.jsonl", BODY)
    assert convert(source, tmp_path / "out.jsonl", to="entries", json=True) == 0
    (file,) = json.loads(capsysbinary.readouterr().out)["files"]
    assert (file["format"], file["to"], file["summary"]["messages"]) == ("openai_chat", "entries", 5)
    assert {loss["what"] for loss in file["summary"]["losses"]} >= {"model", "tools", "options"}


# --- several processes -----------------------------------------------------------------------------------------------


def test_output_does_not_depend_on_process_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [{"messages": [*TALK, {"role": "user", "content": f"number {number}"}]} for number in range(400)]
    source = jsonl(tmp_path / "in.jsonl", *bodies)
    convert(source, tmp_path / "one.jsonl", processes=1)
    monkeypatch.setattr(pipeline, "_BATCH_BYTES", 2_000)
    convert(source, tmp_path / "two.jsonl", processes=2)
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    damaged = source.read_text().splitlines()
    damaged[300] = damaged[300][:-5]
    source.write_text("\n".join(damaged))
    with pytest.raises(InputError, match=r"in.jsonl, line 301 column \d+: not JSON"):
        convert(source, tmp_path / "never.jsonl", processes=2)
    assert file_names(tmp_path) == ["in.jsonl", "one.jsonl", "two.jsonl"]


# --- bad input -------------------------------------------------------------------------------------------------------

GOOD = json.dumps({"messages": TALK}).encode()
MESSAGE = encode(example_conversation()[0])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"[]", "the file is empty"),
        (b"hello", r"bad.jsonl, line 1 column \d+: not JSON"),
        (GOOD + b"\nhello", r"bad.jsonl, line 2 column \d+: not JSON"),
        (GOOD + b"\n" + GOOD[:-9] + b"\n", r"bad.jsonl, line 2 column \d+: not JSON"),
        (GOOD[:-9], r"bad.jsonl, line 1 column \d+: not JSON"),
        (b'[{"role": "user"', r"bad.jsonl, line 1 column \d+: not JSON"),
        (bytes(range(256)), r"bad.jsonl, line 1 column \d+: not JSON"),
        (b"\x00" * 1000, r"bad.jsonl, line 1 column \d+: not JSON"),
        (GOOD + b"\n\x00\n", r"bad.jsonl, line 2 column \d+: not JSON"),
        (b"\x89PNG\r\n\x1a\n", "bad.jsonl, line 1"),
        (b"\xff\xfe" + GOOD.decode().encode("utf-16-le"), "UTF-16"),
        (GOOD.replace(b"A cat.", b"\xff\xfe"), r"bad.jsonl, line 1, byte \d+: not UTF-8"),
        (GOOD.replace(b"A cat.", b"\\ud800"), "bad.jsonl.* a lone surrogate"),
        (GOOD + b"\n" + b"[" * 100_000, "bad.jsonl, line 2: nested deeper"),
        (b"[" * 100_000 + b"]" * 100_000, "bad.jsonl: nested deeper"),
        (GOOD.replace(b'{"at', b'{"at') + b'\n{"messages": [], "messages": []}', "line 2: the key 'messages' occurs twice"),
        (MESSAGE + b"\n" + MESSAGE.replace(b'"user"', b"7"), r"bad.jsonl, line 2: \$.role"),
        (MESSAGE + b'\n{"id": 1}', "bad.jsonl, line 2"),
        (GOOD + b'\n{"messages": 7}', r"bad.jsonl, line 2: \$.messages: expected a list"),
        (GOOD + b'\n{"other": 7}', "bad.jsonl, line 2: .*'messages'"),
        (GOOD + b"\n7", "bad.jsonl, line 2"),
        (gzip.compress(GOOD)[:-12], "incomplete"),
        (b"\x1f\x8bnot gzip at all", "incomplete"),
    ],
)  # fmt: skip
def test_bad_input_is_reported_with_its_location_and_nothing_is_written(
    data: bytes, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(data)
    (tmp_path / "out.jsonl").write_text("old content")
    with pytest.raises(InputError, match=expected):
        convert(
            tmp_path / "bad.jsonl", tmp_path / "out.jsonl", to="canonical" if data.startswith(MESSAGE) else "gemini"
        )
    assert file_names(tmp_path) == ["bad.jsonl", "out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "old content"


@contextlib.contextmanager
def require_file_name(name: str) -> Iterator[None]:
    try:
        yield
    except DragomanError as error:
        if name not in str(error):
            raise AssertionError(f"no file name in: {error}") from error
        raise


def test_bad_input_in_every_format_raises_dragoman_errors(tmp_path: Path) -> None:
    for name in formats.readable():
        for data in (b"7", b"{}", b'{"a": 1}', b"[7]", b"[[]]", b'[{"role": 7}]', b'"text"', b"null", b'{"role": "x"}'):
            (tmp_path / "bad.jsonl").write_bytes(data)
            with contextlib.suppress(InputError), require_file_name("bad.jsonl"):
                convert(tmp_path / "bad.jsonl", tmp_path / "out.jsonl", source_format=name)


def test_error_is_one_line_with_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(GOOD + b"\n{")
    done = run("convert", tmp_path / "bad.jsonl", tmp_path / "out.jsonl")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"dragoman: {tmp_path / 'bad.jsonl'}, line 2 column 2: not JSON")
    assert done.stderr.endswith("[invalid_json]\n")
    assert run("convert", tmp_path / "absent.jsonl", tmp_path / "out.jsonl").returncode == 2
    assert run("convert", tmp_path / "bad.jsonl", tmp_path / "bad.jsonl" / "x").returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs a file with a hole, and limits of a process")
@pytest.mark.parametrize("prefix", [b'{"messages": "', b"", GOOD + b"\n"])
def test_two_gigabyte_line_is_rejected_without_loading_it(prefix: bytes, tmp_path: Path) -> None:
    file = tmp_path / "huge.jsonl"
    with file.open("wb") as stream:
        stream.write(prefix)
        stream.truncate(2 * 1024**3)
    command = "ulimit -v 1200000; exec " + f"{COMMAND} convert {file} {tmp_path / 'out.jsonl'} --processes 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    number = prefix.count(b"\n") + 1
    assert f"huge.jsonl, line {number}: longer than 64 MB" in done.stderr
    assert file_names(tmp_path) == ["huge.jsonl"]


def test_limit_on_lines_is_configurable(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "in.jsonl", {"messages": [{"role": "user", "content": "x" * (1024 * 1024)}]})
    with pytest.raises(InputError, match="longer than 1 MB") as caught:
        convert(source, tmp_path / "out.jsonl", max_line_mb=1)
    assert caught.value.code == "too_large"
    assert convert(source, tmp_path / "out.jsonl", max_line_mb=2) == 0


# --- check and repair ------------------------------------------------------------------------------------------------

ORPHAN = {"role": "tool", "tool_call_id": "call_9", "content": "Nobody asked."}


def test_check_reports_the_line_of_every_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = example_conversation()
    source = write_messages(tmp_path / "broken.jsonl", (*messages[:2], messages[3]))
    assert check_file(source) == 1
    output = capsys.readouterr().out
    assert f"{source}:2: the call " in output
    assert "(call-is-answered, $.content[2], message " in output
    requests = jsonl(tmp_path / "requests.jsonl", {"messages": TALK}, {"messages": [*TALK, ORPHAN]})
    assert check_file(requests) == 1
    output = capsys.readouterr().out
    assert f"{requests}:2: no call before it has the id" in output
    assert "11 messages, 1 violation (openai_chat" in output


def test_repair_reports_its_changes_and_is_idempotent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = jsonl(tmp_path / "in.jsonl", {"messages": TALK}, {"messages": [*TALK, ORPHAN]})
    before = source.read_bytes()
    assert repair_file(source) == 1
    assert f"{source}:2: set aside: no call has the id" in capsys.readouterr().out
    assert repair_file(source, tmp_path / "out.jsonl") == 0
    assert source.read_bytes() == before
    assert lines_of(tmp_path / "out.jsonl") == [{"messages": TALK}, {"messages": TALK}]
    assert (tmp_path / "out.jsonl").read_bytes().startswith(before.splitlines()[0])
    assert repair_file(source, in_place=True) == 0
    assert source.read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    assert (tmp_path / "in.jsonl.bak").read_bytes() == before
    capsys.readouterr()
    assert repair_file(source, in_place=True) == 0
    assert "nothing to repair" in capsys.readouterr().out
    assert file_names(tmp_path) == ["in.jsonl", "in.jsonl.bak", "in.jsonl.set-aside.jsonl", "out.jsonl"]
    assert check_file(source) == 0


@pytest.mark.parametrize("name", formats.readable())
def test_repaired_files_of_every_format_need_no_second_repair(name: str, tmp_path: Path) -> None:
    messages = example_conversation()
    result = messages[2].content[0]
    assert isinstance(result, ToolResultBlock)
    orphan = messages[2].replace(id="x", content=(result.replace(tool_use_id="tu_9"),))
    broken = (messages[0], messages[1], messages[3], orphan)
    (tmp_path / "in.jsonl").write_bytes(formats.write(name, formats.restore_request(broken)).data)
    repair_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", source_format=name)
    assert check_file(tmp_path / "out.jsonl", source_format=name) == 0
    repair_file(tmp_path / "out.jsonl", tmp_path / "again.jsonl", source_format=name)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_repair_keeps_line_files_and_documents_in_their_layout(tmp_path: Path) -> None:
    lines = jsonl(tmp_path / "lines.jsonl", *TALK, ORPHAN)
    assert repair_file(lines, in_place=True) == 0
    assert lines_of(lines) == TALK
    document = tmp_path / "document.json"
    document.write_text(json.dumps([{"messages": TALK}, {"messages": [*TALK, ORPHAN]}], indent=1))
    assert repair_file(document, in_place=True) == 0
    assert json.loads(document.read_bytes()) == [{"messages": TALK}, {"messages": TALK}]


# --- export ----------------------------------------------------------------------------------------------------------


def test_session_is_exported_in_any_format(tmp_path: Path) -> None:
    store = tmp_path / "chats.db"
    run("import", write_messages(tmp_path / "chat.jsonl", example_conversation()), "--store", store)
    page = run("export", "last", "--to", "html", "--store", store)
    assert (page.returncode, page.stdout.startswith("<!doctype html>")) == (0, True)
    assert run("export", "last", "--to", tmp_path / "chat.md", "--store", store).returncode == 0
    assert "Summarize README.md" in (tmp_path / "chat.md").read_text()
    done = run("export", "last", "--to", "openai_chat", "--out", tmp_path / "chat.json", "--store", store)
    assert (done.returncode, "lost 1 × thinking" in done.stderr) == (0, True)
    assert json.loads((tmp_path / "chat.json").read_bytes())["messages"][0]["role"] == "user"
    result = run("export", "last", "--to", "envelopes", "--out", tmp_path / "e.jsonl", "--json", "--store", store)
    assert json.loads(result.stdout)["losses"] == []
    convert(tmp_path / "e.jsonl", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "chat.jsonl").read_bytes()
    for arguments in (
        ("--all", "--to", "html"),
        ("last", "--to", "nonsense"),
        ("last", "--to", "a.html", "--out", "b"),
    ):
        assert run("export", *arguments, "--store", store, cwd=tmp_path).returncode == 2


def test_input_file_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = jsonl(tmp_path / "in.jsonl", BODY)
    before = source.read_bytes()
    monkeypatch.chdir(tmp_path)
    for target, losses in (
        (Path(), None),
        (tmp_path, None),
        (Path("out.jsonl"), source),
        (Path("out.jsonl"), Path("out.jsonl")),
    ):
        with pytest.raises(InputError, match="the input file"):
            convert(Path("in.jsonl"), target, to="entries", losses=losses)
    with pytest.raises(InputError, match="it is a folder"):
        convert(source, Path("out.jsonl"), losses=Path())
    assert source.read_bytes() == before
    assert file_names(tmp_path) == ["in.jsonl"]
