"""``dragoman ask`` and ``dragoman swap``, run as a user runs them, against providers that refuse what real ones refuse."""

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


class Done(msgspec.Struct, frozen=True):
    """The result of a command."""

    code: int | None
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Home:
    """A user with a configuration, and a store in an empty home."""

    def __init__(self, folder: Path, fakes: dict[str, StrictProvider]) -> None:
        self.folder = folder
        self.fakes = fakes
        self.store = folder / "talk.db"
        if fakes:
            settings_for(folder, fakes, next(iter(fakes)))
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "LANG", "SYSTEMROOT", WEIGHTS_VARIABLE)
        }
        self.environment = {
            **kept,
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

    async def run(self, *arguments: str | Path, piped: str = "") -> Done:
        """Run a command to its end, while the fake providers answer in this loop."""
        options = {"environment": self.environment, "cwd": self.folder, "stdin": piped.encode()}
        done = await asyncio.to_thread(cli_runner.run_text, *arguments, **options)
        return Done(done.returncode, done.stdout, done.stderr)

    async def kept(self) -> list[list[Message]]:
        """Every conversation, the newest first."""
        async with open_store(f"sqlite:///{self.store}") as store:
            sessions = await store.list_sessions()
            return [[row.message async for row in store.history(one.id)] for one in sessions]


@contextlib.asynccontextmanager
async def home(folder: Path, *names: str) -> AsyncIterator[Home]:
    async with contextlib.AsyncExitStack() as stack:
        yield Home(folder, {name: await stack.enter_async_context(strict_provider(name)) for name in names})


# --- ask -------------------------------------------------------------------------------------------------------------


async def test_the_answer_and_nothing_else_is_printed(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].reply("Three, **of course**.")
        done = await it.run("ask", "What is 1 + 2?")
        assert done == Done(0, "Three, **of course**.\n", "")
        ((question, answer),) = await it.kept()
        assert (text_of(question), text_of(answer)) == ("What is 1 + 2?", "Three, **of course**.")


async def test_what_is_piped_comes_behind_the_question(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        await it.run("ask", "Review this", piped="- old\n+ new\n")
        await it.run("ask", piped="Only piped\n")
        second, first = await it.kept()
        assert text_of(first[0]) == "Review this\n\n- old\n+ new"
        assert text_of(second[0]) == "Only piped"


async def test_without_a_question_nothing_is_asked_and_nothing_is_stored(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        done = await it.run("ask")
        assert (done.code, done.out) == (2, "")
        assert (
            done.err == "dragoman: no question. Pass it as an argument, or pipe it to standard input [invalid_input]\n"
        )
        assert it.fakes["anthropic"].received == []
        assert not it.store.exists()


async def test_continue_goes_on_with_the_last_conversation(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].reply("An interpreter.")
        await it.run("ask", "What is a dragoman?")
        done = await it.run("ask", "--continue", "And in one word?", "--verbose")
        assert done.code == 0
        assert "fake-anthropic:model" in done.err
        assert "session sess_" in done.err
        (messages,) = await it.kept()
        assert [one.role for one in messages] == [Role.USER, Role.ASSISTANT] * 2
        assert len(it.fakes["anthropic"].bodies[-1]["messages"]) == 3


async def test_a_session_can_be_named(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        session = (await it.run("ask", "--json", "Hello")).document["session_id"]
        assert (await it.run("ask", "--session", session, "Again")).code == 0
        assert [len(messages) for messages in await it.kept()] == [4]
        done = await it.run("ask", "--session", "nonsense", "Again")
        assert done.code == 2
        assert "[session_not_found]" in done.err


async def test_json_is_one_document_with_everything_that_was_said(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].reply("Three.", thinking="A sum.")
        document = (await it.run("ask", "--json", "What is 1 + 2?")).document
        assert document["text"] == "Three."
        assert (document["model"], document["stop_reason"]) == ("fake-anthropic:model", "end_turn")
        assert [block["type"] for block in document["messages"][0]["content"]] == ["thinking", "text"]
        assert document["fault"] is None


async def test_a_model_may_be_named_for_one_question(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic", "gemini") as it:
        assert (await it.run("ask", "--model", "gemini", "Hello")).code == 0
        assert (await it.run("ask", "@gemini hello")).code == 0
        assert len(it.fakes["gemini"].received) == 2
        assert it.fakes["anthropic"].received == []


async def test_a_question_that_cannot_be_asked_leaves_no_empty_conversation(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        done = await it.run("ask", "--model", "nonsense", "Hello")
        assert done.code == 2
        assert "nonsense" in done.err
        assert done.err.count("\n") == 1
        assert await it.kept() == []


async def test_a_picture_comes_with_the_question(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PIXEL)
    async with home(tmp_path, "anthropic") as it:
        assert (await it.run("ask", "What is this?", "--image", "picture.png")).code == 0
        assert [part["type"] for part in it.fakes["anthropic"].bodies[0]["messages"][0]["content"]] == ["text", "image"]
        done = await it.run("ask", "What is this?", "--image", "notes.txt")
        assert (done.code, done.out) == (2, "")


async def test_a_schema_goes_to_the_model(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    (tmp_path / "schema.json").write_text(json.dumps({**schema, "additionalProperties": False}))
    (tmp_path / "broken.json").write_bytes(b'{"type": "\xff"}')
    async with home(tmp_path, "openai_chat") as it:
        it.fakes["openai_chat"].reply('{"sum": 3}')
        done = await it.run("ask", "--schema", "schema.json", "What is 1 + 2?", "--system", "Be brief.")
        assert (done.code, json.loads(done.out)) == (0, {"sum": 3})
        body = it.fakes["openai_chat"].bodies[0]
        assert body["response_format"]["json_schema"]["schema"]["required"] == ["sum"]
        assert body["messages"][0]["content"] == "Be brief."
        assert (await it.run("ask", "--schema", "broken.json", "What is 1 + 2?")).code == 2
        missing = await it.run("ask", "--schema", "missing.json", "What is 1 + 2?")
        assert "missing.json: cannot read the file (No such file or directory)" in missing.err


@pytest.mark.parametrize(
    ("answer", "problem"),
    [("Three.", "the answer is not JSON"), ('{"sum": "3"}', "$.sum"), ('{"total": 3}', '"sum" is a required property')],
)
async def test_an_answer_that_does_not_fit_the_schema_is_kept_and_is_exit_code_1(
    answer: str, problem: str, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    async with home(tmp_path, "openai_chat") as it:
        it.fakes["openai_chat"].reply(answer)
        it.fakes["openai_chat"].reply(answer)  # the model may correct it once
        done = await it.run("ask", "--schema", "schema.json", "What is 1 + 2?", "--json")
        assert done.code == 1
        assert done.document["fault"]["code"] == "output_invalid"
        assert problem in done.document["fault"]["message"]
        assert done.document["text"] == answer
        ((_, *kept),) = await it.kept()
        assert [(text_of(message), message.metadata.status) for message in kept] == [(answer, MessageStatus.ERROR)] * 2
        assert all(message.metadata.usage is not None for message in kept)


async def test_an_answer_that_is_corrected_is_printed_once(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    async with home(tmp_path, "openai_chat") as it:
        it.fakes["openai_chat"].reply("Three.")
        it.fakes["openai_chat"].reply('{"sum": 3}')
        done = await it.run("ask", "--schema", "schema.json", "What is 1 + 2?")
        assert (done.code, done.out) == (0, '{"sum": 3}\n')


async def test_a_model_may_delegate_to_the_tiers_of_a_policy(tmp_path: Path) -> None:
    tiers = dict.fromkeys(("fast", "balanced", "deep"), "openai_chat")
    (tmp_path / "policy.yaml").write_text(json.dumps({"schema_version": 1, "tiers": tiers}))
    async with home(tmp_path, "anthropic", "openai_chat") as it:
        it.fakes["anthropic"].call("delegate", {"tier": "fast", "task": "Add 1 and 2."})
        it.fakes["openai_chat"].reply("3")
        it.fakes["anthropic"].reply("It is 3.")
        done = await it.run("ask", "--delegate", "--summarize", "--policy", "policy.yaml", "What is 1 + 2?")
        assert (done.code, done.out) == (0, "It is 3.\n")
        assert "Add 1 and 2." in str(it.fakes["openai_chat"].bodies)


async def test_a_schema_that_names_another_document_fetches_nothing(tmp_path: Path) -> None:
    async with home(tmp_path, "openai_chat") as it, FaultyServer([]) as elsewhere:
        (tmp_path / "schema.json").write_text(json.dumps({"type": "object", "$ref": f"{elsewhere.address}/x.json"}))
        done = await it.run("ask", "--schema", "schema.json", "Hello")
        assert (done.code, elsewhere.connections) == (2, 0)
        assert "the JSON Schema is not supported" in done.err


@pytest.mark.parametrize("schema", ["[]", "null", "42", '"x"', '{"type": "objekt"}', '{"$ref": "file:///etc/hosts"}'])
async def test_a_schema_that_cannot_be_used_is_refused_before_a_model_is_asked(schema: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(schema)
    async with home(tmp_path, "openai_chat") as it:
        done = await it.run("ask", "--schema", "schema.json", "Hello")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "schema.json" in done.err
        assert it.fakes["openai_chat"].received == []


async def test_what_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        process = await it.start("ask", "Review this")
        out, err = await asyncio.wait_for(process.communicate(b"a\xffb"), 60)
        assert (process.returncode, out) == (2, b"")
        assert err.startswith(b"dragoman: standard input: byte 1 is not UTF-8. Convert it, ")
        done = await it.run("ask", os.fsdecode(b"a\xff"))
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "the argument is not UTF-8" in done.err


@pytest.mark.parametrize("question", ["", " ", "\n\t "])
async def test_a_question_of_white_space_is_refused(question: str, tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        done = await it.run("ask", question)
        assert (done.code, done.out) == (2, "")
        assert "no question" in done.err
        assert it.fakes["anthropic"].received == []


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
async def test_a_number_out_of_range_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    async with home(tmp_path) as it:
        done = await it.run(*arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("dragoman: Invalid value")
        assert arguments[-2] in done.err


async def test_an_unknown_command_points_to_the_help(tmp_path: Path) -> None:
    async with home(tmp_path) as it:
        done = await it.run("frobnicate")
        assert done.err == 'dragoman: Unknown command "frobnicate". See dragoman --help [usage]\n'


async def test_ready_lists_a_local_server_only_while_it_accepts_connections(tmp_path: Path) -> None:
    async with home(tmp_path) as it:
        async with FaultyServer([]) as server:
            it.environment["OLLAMA_HOST"] = server.address
            running = (await it.run("models", "--providers", "--ready", "--json")).document["providers"]
        stopped = (await it.run("models", "--providers", "--ready", "--json")).document["providers"]
        assert "ollama" in {one["key"] for one in running}
        assert "ollama" not in {one["key"] for one in stopped}


async def test_a_tool_that_changes_nothing_runs_and_others_need_a_yes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the word is aubergine")
    write = {"path": "new.txt", "content": "hello"}
    async with home(tmp_path, "anthropic") as it:
        fake = it.fakes["anthropic"]
        fake.call("read_file", {"path": "notes.txt"})
        fake.call("write_file", write)
        fake.reply("I could not.")
        tools = ("--tool", "read_file", "--tool", "write_file")
        done = await it.run("ask", "Copy it", *tools)
        assert (done.code, done.out) == (0, "I could not.\n")
        assert "write_file was declined" in done.err
        assert "Use --yes to approve" in done.err
        assert not (tmp_path / "new.txt").exists()
        assert "aubergine" in json.dumps(fake.bodies[1])
        fake.call("write_file", write)
        fake.reply("Done.")
        done = await it.run("ask", "Copy it", "--yes", *tools)
        assert (done.code, done.out) == (0, "Done.\n")
        assert "write_file" in done.err
        assert (tmp_path / "new.txt").read_text() == "hello"
        assert fake.refusals == []


async def test_a_provider_that_fails_is_exit_code_1_and_its_words_are_told(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].fail(401, "that key is not known here")
        done = await it.run("ask", "Hello?")
        assert (done.code, done.out) == (1, "")
        assert done.err == (
            "fake-anthropic:model: that key is not known here [unauthorized]\n"
            "Run dragoman login fake-anthropic, or set the variable that dragoman models --providers names.\n"
        )
        it.fakes["anthropic"].fail(401, "that key is not known here")
        done = await it.run("ask", "Hello?", "--json")
        assert done.code == 1
        assert done.document["fault"]["code"] == "unauthorized"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent otherwise there")
async def test_ctrl_c_stops_the_answer_and_keeps_what_had_arrived(tmp_path: Path) -> None:
    told = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "done": False}
    line = msgspec.json.encode({**told, "message": {"role": "assistant", "content": "Once upon"}}) + b"\n"
    kind = {"content-type": "application/x-ndjson", "transfer-encoding": "chunked"}
    async with FaultyServer([[make_head(200, **kind), encode_chunk(line), SILENCE]]) as server, home(tmp_path) as it:
        file = tmp_path / "config.toml"
        file.write_text(SLOW.format(address=server.address))
        file.chmod(0o600)
        it.environment["DRAGOMAN_CONFIG"] = str(file)
        process = await it.start("ask", "Tell me a story")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.stdout.readexactly(9), 60) == b"Once upon"
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 130
        assert err.decode() == "cancelled; the partial answer is stored\n"
        ((_, answer),) = await it.kept()
        assert text_of(answer) == "Once upon"
        assert answer.metadata.status is MessageStatus.CANCELLED


async def test_the_local_model_answers_without_a_key(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    async with home(tmp_path) as it:
        done = await it.run("ask", "Say hello.", "--max-tokens", "8", "--json")
        assert done.code == 0, done.err
        assert done.document["model"] == "local:smollm2-135m"
        assert done.document["text"]


# --- swap ------------------------------------------------------------------------------------------------------------


async def test_a_swap_can_be_looked_at_made_and_taken_back(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic", "gemini") as it:
        it.fakes["anthropic"].reply("An interpreter.", thinking="Hm.")
        await it.run("ask", "What is a dragoman?")
        looked = await it.run("swap", "last", "gemini", "--dry-run")
        assert looked.code == 0
        assert "What is a dragoman? → fake-gemini:model" in looked.out
        assert "fits the context window" in looked.out
        assert "Nothing is changed." in looked.out
        document = (await it.run("swap", "last", "gemini", "--json")).document
        assert (document["is_possible"], document["is_done"], document["model"]) == (True, True, "fake-gemini:model")
        await it.run("ask", "-c", "Who are you?")
        assert len(it.fakes["gemini"].received) == 1
        assert it.fakes["gemini"].refusals == []
        back = await it.run("swap", "last", "-")
        assert "the routing chooses the model" in back.out
        await it.run("ask", "-c", "And now?")
        assert len(it.fakes["anthropic"].received) == 2
        assert it.fakes["anthropic"].refusals == []


async def test_a_swap_to_a_model_that_cannot_see_is_refused_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PIXEL)
    async with home(tmp_path, "anthropic", "gemini") as it:
        await it.run("ask", "What is this?", "--image", "picture.png")
        refused = await it.run("swap", "last", "blind-gemini")
        assert refused.code == 1
        assert "Not possible:" in refused.out
        traced = await it.run("trace", "last", "--type", "routing_constraint_failure", "--json")
        (event,) = traced.document["events"]
        assert (event["payload"]["source"], event["payload"]["validation_failure"]) == ("swap", "no_vision_support")
        allowed = await it.run("swap", "last", "blind-gemini", "--policy", "placeholder", "--dry-run", "--json")
        assert allowed.code == 0
        assert {block["outcome"] for block in allowed.document["blocks"]} == {"kept", "projected"}


@pytest.mark.parametrize(
    ("policy", "told"), [("placeholder", "[image (image/png)]"), ("describe", "[image (image/png): a red pixel]")]
)
async def test_a_model_that_cannot_see_goes_on_with_words_for_a_picture(policy: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PIXEL)
    async with home(tmp_path, "anthropic", "gemini") as it:
        it.fakes["anthropic"].reply("A pixel.")
        it.fakes["anthropic"].reply("a red pixel")
        await it.run("ask", "What is this?", "--image", "picture.png")
        looked = await it.run("swap", "last", "blind-gemini", "--policy", policy, "--dry-run")
        assert (looked.code, len(it.fakes["anthropic"].received)) == (0, 1)
        done = await it.run("swap", "last", "blind-gemini", "--policy", policy)
        assert done.code == 0, done.err
        again = await it.run("swap", "last", "blind-gemini", "--policy", policy)
        assert again.code == 0
        assert len(it.fakes["anthropic"].received) == (2 if policy == "describe" else 1)
        asked = await it.run("ask", "-c", "And what colour?")
        assert asked.code == 0, asked.err
        assert told in str(it.fakes["gemini"].bodies)
        await it.run("swap", "last", "anthropic")
        await it.run("ask", "-c", "Look again")
        assert told not in str(it.fakes["anthropic"].bodies[-1])
        assert it.fakes["gemini"].refusals == it.fakes["anthropic"].refusals == []


@pytest.mark.parametrize(
    ("session", "model", "code"), [("nonsense", "gemini", "session_not_found"), ("last", "x", "invalid_input")]
)
async def test_a_swap_of_what_is_not_there_is_an_error(session: str, model: str, code: str, tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic", "gemini") as it:
        await it.run("ask", "Hello")
        done = await it.run("swap", session, model)
        assert (done.code, done.out) == (2, "")
        assert done.err.endswith(f"[{code}]\n")


async def test_a_swap_to_a_model_without_a_key_is_rejected_and_names_the_variable(tmp_path: Path) -> None:
    async with home(tmp_path, "anthropic") as it:
        await it.run("ask", "Hello")
        done = await it.run("swap", "last", "openai:gpt-5")
        assert done.code == 1
        assert "OPENAI_API_KEY" in done.out
        assert "[providers.openai]" in " ".join(done.out.split())
        async with open_store(f"sqlite:///{it.store}") as store:
            (session,) = await store.list_sessions()
        assert session.active_model is None
        done = await it.run("ask", "--continue", "--model", "openai:gpt-5", "Hello")
        assert done.code == 2
        assert "OPENAI_API_KEY" in done.err
