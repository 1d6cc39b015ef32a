"""Tests of ``dragoman ask`` and ``dragoman swap``, run as a user runs them, against strict fake providers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.message import Message, MessageStatus, Role
from dragoman.store import open_store
from dragoman.tui.widgets import text_of
from tests import cli_runner
from tests.conftest import WEIGHTS_VARIABLE
from tests.fake_providers import StrictProvider, strict_provider
from tests.servers.faulty_server import SILENCE, FaultyServer, encode_chunk, make_head
from tests.tui.chat_fixture import PIXEL
from tests.turn.fake_agent import settings_for

COMMAND = Path(sys.executable).with_name("dragoman")
SLOW = """
default_model = "slow:model"
[providers.slow]
dialect = "ollama"
base_url = "{address}"
[models."slow:model"]
max_context_tokens = 100000
"""


class CommandResult(msgspec.Struct, frozen=True):
    """The result of a command."""

    code: int | None
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Home:
    """A user with a configuration, and a store in an empty home folder."""

    def __init__(self, folder: Path, fakes: dict[str, StrictProvider]) -> None:
        self.folder = folder
        self.fakes = fakes
        self.store = folder / "talk.db"
        if fakes:
            settings_for(folder, fakes, next(iter(fakes)))
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "LANG", "SYSTEMROOT", WEIGHTS_VARIABLE)
        }
        self.environment = {
            **inherited,
            "HOME": str(folder),
            "COLUMNS": "140",
            "NO_COLOR": "1",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
            "DRAGOMAN_STORE": str(self.store),
            "FAKE_KEY": "sk-fake",
            **({"DRAGOMAN_CONFIG": str(folder / "config.toml")} if fakes else {}),
        }

    async def start(self, *arguments: str | Path) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(COMMAND),
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
            cwd=self.folder,
        )

    async def run(self, *arguments: str | Path, stdin: str = "") -> CommandResult:
        """Run a command to its end, during which the fake providers answer in this loop."""
        options = {"environment": self.environment, "cwd": self.folder, "stdin": stdin.encode()}
        done = await asyncio.to_thread(cli_runner.run_text, *arguments, **options)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    async def read_conversations(self) -> list[list[Message]]:
        """Return the messages of every session, the newest first."""
        async with open_store(f"sqlite:///{self.store}") as store:
            sessions = await store.list_sessions()
            return [[row.message async for row in store.history(session.id)] for session in sessions]


@contextlib.asynccontextmanager
async def open_home(folder: Path, *names: str) -> AsyncIterator[Home]:
    async with contextlib.AsyncExitStack() as stack:
        yield Home(folder, {name: await stack.enter_async_context(strict_provider(name)) for name in names})


# --- ask -------------------------------------------------------------------------------------------------------------


async def test_only_the_answer_is_printed(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        home.fakes["anthropic"].reply("Three, **of course**.")
        done = await home.run("ask", "What is 1 + 2?")
        assert done == CommandResult(0, "Three, **of course**.\n", "")
        ((question, answer),) = await home.read_conversations()
        assert (text_of(question), text_of(answer)) == ("What is 1 + 2?", "Three, **of course**.")


async def test_piped_input_is_appended_to_the_question(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        await home.run("ask", "Review this", stdin="- old\n+ new\n")
        await home.run("ask", stdin="Only piped\n")
        second, first = await home.read_conversations()
        assert text_of(first[0]) == "Review this\n\n- old\n+ new"
        assert text_of(second[0]) == "Only piped"


async def test_missing_question_calls_no_provider_and_stores_nothing(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        done = await home.run("ask")
        assert (done.code, done.out) == (2, "")
        assert (
            done.err == "dragoman: no question. Pass it as an argument, or pipe it to standard input [invalid_input]\n"
        )
        assert home.fakes["anthropic"].received == []
        assert not home.store.exists()


async def test_continue_appends_to_the_last_conversation(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        home.fakes["anthropic"].reply("An interpreter.")
        await home.run("ask", "What is a dragoman?")
        done = await home.run("ask", "--continue", "And in one word?", "--verbose")
        assert done.code == 0
        assert "fake-anthropic:model" in done.err
        assert "session sess_" in done.err
        (messages,) = await home.read_conversations()
        assert [message.role for message in messages] == [Role.USER, Role.ASSISTANT] * 2
        assert len(home.fakes["anthropic"].bodies[-1]["messages"]) == 3


async def test_session_can_be_named(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        session = (await home.run("ask", "--json", "Hello")).document["session_id"]
        assert (await home.run("ask", "--session", session, "Again")).code == 0
        assert [len(messages) for messages in await home.read_conversations()] == [4]
        done = await home.run("ask", "--session", "nonsense", "Again")
        assert done.code == 2
        assert "[session_not_found]" in done.err


async def test_json_is_one_document_with_the_whole_answer(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        home.fakes["anthropic"].reply("Three.", thinking="A sum.")
        document = (await home.run("ask", "--json", "What is 1 + 2?")).document
        assert document["text"] == "Three."
        assert (document["model"], document["stop_reason"]) == ("fake-anthropic:model", "end_turn")
        assert [block["type"] for block in document["messages"][0]["content"]] == ["thinking", "text"]
        assert document["fault"] is None


async def test_model_can_be_named_for_one_question(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic", "gemini") as home:
        assert (await home.run("ask", "--model", "gemini", "Hello")).code == 0
        assert (await home.run("ask", "@gemini hello")).code == 0
        assert len(home.fakes["gemini"].received) == 2
        assert home.fakes["anthropic"].received == []


async def test_rejected_question_creates_no_session(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        done = await home.run("ask", "--model", "nonsense", "Hello")
        assert done.code == 2
        assert "nonsense" in done.err
        assert done.err.count("\n") == 1
        assert await home.read_conversations() == []


async def test_image_is_sent_with_the_question(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PIXEL)
    async with open_home(tmp_path, "anthropic") as home:
        assert (await home.run("ask", "What is this?", "--image", "picture.png")).code == 0
        assert [part["type"] for part in home.fakes["anthropic"].bodies[0]["messages"][0]["content"]] == [
            "text",
            "image",
        ]
        done = await home.run("ask", "What is this?", "--image", "notes.txt")
        assert (done.code, done.out) == (2, "")


async def test_schema_is_sent_to_the_model(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    (tmp_path / "schema.json").write_text(json.dumps({**schema, "additionalProperties": False}))
    (tmp_path / "broken.json").write_bytes(b'{"type": "\xff"}')
    async with open_home(tmp_path, "openai_chat") as home:
        home.fakes["openai_chat"].reply('{"sum": 3}')
        done = await home.run("ask", "--schema", "schema.json", "What is 1 + 2?", "--system", "Be brief.")
        assert (done.code, json.loads(done.out)) == (0, {"sum": 3})
        body = home.fakes["openai_chat"].bodies[0]
        assert body["response_format"]["json_schema"]["schema"]["required"] == ["sum"]
        assert body["messages"][0]["content"] == "Be brief."
        assert (await home.run("ask", "--schema", "broken.json", "What is 1 + 2?")).code == 2
        missing = await home.run("ask", "--schema", "missing.json", "What is 1 + 2?")
        assert "missing.json: cannot read the file (No such file or directory)" in missing.err


@pytest.mark.parametrize(
    ("answer", "problem"),
    [("Three.", "the answer is not JSON"), ('{"sum": "3"}', "$.sum"), ('{"total": 3}', '"sum" is a required property')],
)
async def test_answer_that_violates_the_schema_is_stored_with_exit_code_1(
    answer: str, problem: str, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    async with open_home(tmp_path, "openai_chat") as home:
        home.fakes["openai_chat"].reply(answer)
        home.fakes["openai_chat"].reply(answer)  # the model may correct it once
        done = await home.run("ask", "--schema", "schema.json", "What is 1 + 2?", "--json")
        assert done.code == 1
        assert done.document["fault"]["code"] == "output_invalid"
        assert problem in done.document["fault"]["message"]
        assert done.document["text"] == answer
        ((_, *answers),) = await home.read_conversations()
        assert [(text_of(message), message.metadata.status) for message in answers] == [
            (answer, MessageStatus.ERROR)
        ] * 2
        assert all(message.metadata.usage is not None for message in answers)


async def test_corrected_answer_is_printed_once(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    async with open_home(tmp_path, "openai_chat") as home:
        home.fakes["openai_chat"].reply("Three.")
        home.fakes["openai_chat"].reply('{"sum": 3}')
        done = await home.run("ask", "--schema", "schema.json", "What is 1 + 2?")
        assert (done.code, done.out) == (0, '{"sum": 3}\n')


async def test_model_delegates_to_the_tiers_of_a_policy(tmp_path: Path) -> None:
    tiers = dict.fromkeys(("fast", "balanced", "deep"), "openai_chat")
    (tmp_path / "policy.yaml").write_text(json.dumps({"schema_version": 1, "tiers": tiers}))
    async with open_home(tmp_path, "anthropic", "openai_chat") as home:
        home.fakes["anthropic"].call("delegate", {"tier": "fast", "task": "Add 1 and 2."})
        home.fakes["openai_chat"].reply("3")
        home.fakes["anthropic"].reply("It is 3.")
        done = await home.run("ask", "--delegate", "--summarize", "--policy", "policy.yaml", "What is 1 + 2?")
        assert (done.code, done.out) == (0, "It is 3.\n")
        assert "Add 1 and 2." in str(home.fakes["openai_chat"].bodies)


async def test_schema_reference_fetches_nothing(tmp_path: Path) -> None:
    async with open_home(tmp_path, "openai_chat") as home, FaultyServer([]) as other_server:
        (tmp_path / "schema.json").write_text(json.dumps({"type": "object", "$ref": f"{other_server.address}/x.json"}))
        done = await home.run("ask", "--schema", "schema.json", "Hello")
        assert (done.code, other_server.connections) == (2, 0)
        assert "the JSON Schema is not supported" in done.err


@pytest.mark.parametrize("schema", ["[]", "null", "42", '"x"', '{"type": "objekt"}', '{"$ref": "file:///etc/hosts"}'])
async def test_unusable_schema_is_rejected_before_a_model_is_called(schema: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(schema)
    async with open_home(tmp_path, "openai_chat") as home:
        done = await home.run("ask", "--schema", "schema.json", "Hello")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "schema.json" in done.err
        assert home.fakes["openai_chat"].received == []


async def test_input_that_is_not_utf_8_is_one_error_line(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        process = await home.start("ask", "Review this")
        out, err = await asyncio.wait_for(process.communicate(b"a\xffb"), 60)
        assert (process.returncode, out) == (2, b"")
        assert err.startswith(b"dragoman: standard input: byte 1 is not UTF-8. Convert it, ")
        done = await home.run("ask", os.fsdecode(b"a\xff"))
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "the argument is not UTF-8" in done.err


@pytest.mark.parametrize("question", ["", " ", "\n\t "])
async def test_question_of_white_space_is_rejected(question: str, tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        done = await home.run("ask", question)
        assert (done.code, done.out) == (2, "")
        assert "no question" in done.err
        assert home.fakes["anthropic"].received == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", "Hello", "--max-tokens", "0"),
        ("ask", "Hello", "--max-tokens", "-1"),
        ("models", "--min-context", "0"),
        ("price", "sonnet", "--input-tokens", "-5"),
        ("price", "sonnet", "--output-tokens", "9223372036854775808"),
    ],
)
async def test_number_out_of_range_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    async with open_home(tmp_path) as home:
        done = await home.run(*arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("dragoman: Invalid value")
        assert arguments[-2] in done.err


async def test_unknown_command_refers_to_the_help(tmp_path: Path) -> None:
    async with open_home(tmp_path) as home:
        done = await home.run("frobnicate")
        assert done.err == 'dragoman: Unknown command "frobnicate". See dragoman --help [usage]\n'


async def test_ready_lists_a_local_server_only_if_it_accepts_connections(tmp_path: Path) -> None:
    async with open_home(tmp_path) as home:
        async with FaultyServer([]) as server:
            home.environment["OLLAMA_HOST"] = server.address
            running = (await home.run("models", "--providers", "--ready", "--json")).document["providers"]
        stopped = (await home.run("models", "--providers", "--ready", "--json")).document["providers"]
        assert "ollama" in {provider["key"] for provider in running}
        assert "ollama" not in {provider["key"] for provider in stopped}


async def test_tool_without_side_effects_runs_and_others_need_approval(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the word is aubergine")
    write = {"path": "new.txt", "content": "hello"}
    async with open_home(tmp_path, "anthropic") as home:
        fake = home.fakes["anthropic"]
        fake.call("read_file", {"path": "notes.txt"})
        fake.call("write_file", write)
        fake.reply("I could not.")
        tools = ("--tool", "read_file", "--tool", "write_file")
        done = await home.run("ask", "Copy it", *tools)
        assert (done.code, done.out) == (0, "I could not.\n")
        assert "write_file was declined" in done.err
        assert "Use --yes to approve" in done.err
        assert not (tmp_path / "new.txt").exists()
        assert "aubergine" in json.dumps(fake.bodies[1])
        fake.call("write_file", write)
        fake.reply("Done.")
        done = await home.run("ask", "Copy it", "--yes", *tools)
        assert (done.code, done.out) == (0, "Done.\n")
        assert "write_file" in done.err
        assert (tmp_path / "new.txt").read_text() == "hello"
        assert fake.refusals == []


async def test_provider_error_is_exit_code_1_with_its_message(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        home.fakes["anthropic"].fail(401, "that key is not known here")
        done = await home.run("ask", "Hello?")
        assert (done.code, done.out) == (1, "")
        assert done.err == (
            "fake-anthropic:model: that key is not known here [unauthorized]\n"
            "Run dragoman login fake-anthropic, or set the variable that dragoman models --providers names.\n"
        )
        home.fakes["anthropic"].fail(401, "that key is not known here")
        done = await home.run("ask", "Hello?", "--json")
        assert done.code == 1
        assert done.document["fault"]["code"] == "unauthorized"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent otherwise there")
async def test_ctrl_c_stops_the_answer_and_stores_its_text(tmp_path: Path) -> None:
    chunk = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "done": False}
    line = msgspec.json.encode({**chunk, "message": {"role": "assistant", "content": "Once upon"}}) + b"\n"
    kind = {"content-type": "application/x-ndjson", "transfer-encoding": "chunked"}
    async with (
        FaultyServer([[make_head(200, **kind), encode_chunk(line), SILENCE]]) as server,
        open_home(tmp_path) as home,
    ):
        file = tmp_path / "config.toml"
        file.write_text(SLOW.format(address=server.address))
        file.chmod(0o600)
        home.environment["DRAGOMAN_CONFIG"] = str(file)
        process = await home.start("ask", "Tell me a story")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.stdout.readexactly(9), 60) == b"Once upon"
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 130
        assert err.decode() == "cancelled; the partial answer is stored\n"
        ((_, answer),) = await home.read_conversations()
        assert text_of(answer) == "Once upon"
        assert answer.metadata.status is MessageStatus.CANCELLED


async def test_local_model_answers_without_a_key(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    async with open_home(tmp_path) as home:
        done = await home.run("ask", "Say hello.", "--max-tokens", "8", "--json")
        assert done.code == 0, done.err
        assert done.document["model"] == "local:smollm2-135m"
        assert done.document["text"]


# --- swap ------------------------------------------------------------------------------------------------------------


async def test_swap_can_be_planned_made_and_reverted(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic", "gemini") as home:
        home.fakes["anthropic"].reply("An interpreter.", thinking="Hm.")
        await home.run("ask", "What is a dragoman?")
        planned = await home.run("swap", "last", "gemini", "--dry-run")
        assert planned.code == 0
        assert "What is a dragoman? → fake-gemini:model" in planned.out
        assert "fits the context window" in planned.out
        assert "Nothing is changed." in planned.out
        document = (await home.run("swap", "last", "gemini", "--json")).document
        assert (document["is_possible"], document["is_done"], document["model"]) == (True, True, "fake-gemini:model")
        await home.run("ask", "-c", "Who are you?")
        assert len(home.fakes["gemini"].received) == 1
        assert home.fakes["gemini"].refusals == []
        back = await home.run("swap", "last", "-")
        assert "the routing chooses the model" in back.out
        await home.run("ask", "-c", "And now?")
        assert len(home.fakes["anthropic"].received) == 2
        assert home.fakes["anthropic"].refusals == []


async def test_swap_to_a_model_without_vision_is_rejected_with_reasons(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PIXEL)
    async with open_home(tmp_path, "anthropic", "gemini") as home:
        await home.run("ask", "What is this?", "--image", "picture.png")
        rejected = await home.run("swap", "last", "blind-gemini")
        assert rejected.code == 1
        assert "Not possible:" in rejected.out
        trace = await home.run("trace", "last", "--type", "routing_constraint_failure", "--json")
        (event,) = trace.document["events"]
        assert (event["payload"]["source"], event["payload"]["validation_failure"]) == ("swap", "no_vision_support")
        allowed = await home.run("swap", "last", "blind-gemini", "--policy", "placeholder", "--dry-run", "--json")
        assert allowed.code == 0
        assert {block["outcome"] for block in allowed.document["blocks"]} == {"kept", "projected"}


@pytest.mark.parametrize(
    ("policy", "expected"), [("placeholder", "[image (image/png)]"), ("describe", "[image (image/png): a red pixel]")]
)
async def test_model_without_vision_gets_text_in_place_of_an_image(policy: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PIXEL)
    async with open_home(tmp_path, "anthropic", "gemini") as home:
        home.fakes["anthropic"].reply("A pixel.")
        home.fakes["anthropic"].reply("a red pixel")
        await home.run("ask", "What is this?", "--image", "picture.png")
        planned = await home.run("swap", "last", "blind-gemini", "--policy", policy, "--dry-run")
        assert (planned.code, len(home.fakes["anthropic"].received)) == (0, 1)
        done = await home.run("swap", "last", "blind-gemini", "--policy", policy)
        assert done.code == 0, done.err
        again = await home.run("swap", "last", "blind-gemini", "--policy", policy)
        assert again.code == 0
        assert len(home.fakes["anthropic"].received) == (2 if policy == "describe" else 1)
        answer = await home.run("ask", "-c", "And what colour?")
        assert answer.code == 0, answer.err
        assert expected in str(home.fakes["gemini"].bodies)
        await home.run("swap", "last", "anthropic")
        await home.run("ask", "-c", "Look again")
        assert expected not in str(home.fakes["anthropic"].bodies[-1])
        assert home.fakes["gemini"].refusals == home.fakes["anthropic"].refusals == []


@pytest.mark.parametrize(
    ("session", "model", "code"), [("nonsense", "gemini", "session_not_found"), ("last", "x", "invalid_input")]
)
async def test_swap_of_an_unknown_session_or_model_is_an_error(
    session: str, model: str, code: str, tmp_path: Path
) -> None:
    async with open_home(tmp_path, "anthropic", "gemini") as home:
        await home.run("ask", "Hello")
        done = await home.run("swap", session, model)
        assert (done.code, done.out) == (2, "")
        assert done.err.endswith(f"[{code}]\n")


async def test_swap_to_a_model_without_a_key_is_rejected_with_the_variable(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic") as home:
        await home.run("ask", "Hello")
        done = await home.run("swap", "last", "openai:gpt-5")
        assert done.code == 1
        assert "OPENAI_API_KEY" in done.out
        assert "[providers.openai]" in " ".join(done.out.split())
        async with open_store(f"sqlite:///{home.store}") as store:
            (session,) = await store.list_sessions()
        assert session.active_model is None
        done = await home.run("ask", "--continue", "--model", "openai:gpt-5", "Hello")
        assert done.code == 2
        assert "OPENAI_API_KEY" in done.err
