"""Tests of questions and answers of programs: ``ask``, ``stream``, their blocking forms, and structured output."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

import dragoman
from dragoman import Agent, AnswerError, Message, Options, TextDelta, TurnEnd
from dragoman.errors import FormatError, InputError, RoutingFailedError, UnknownModelError
from dragoman.local import find_weights
from dragoman.settings import Settings
from dragoman.turn import AgentConfig, TurnRequest
from dragoman.turn.types import TurnFields
from tests.conftest import WEIGHTS_VARIABLE
from tests.fake_providers import call_part, text_part
from tests.turn.fake_agent import DIALECTS, FakeAgent, open_fake_agent

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@dataclasses.dataclass
class City:
    name: str
    population: Annotated[int, msgspec.Meta(ge=0, description="People.")]


class CityStruct(msgspec.Struct):
    name: str
    population: int


class CityModel(pydantic.BaseModel):
    name: str
    population: int = pydantic.Field(ge=0)

    @pydantic.field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name.islower():
            raise ValueError("a name begins with a capital letter")
        return name


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["name", "population"],
    "additionalProperties": False,
}
BERN = '{"name": "Bern", "population": 146000}'
OUTPUTS: dict[str, tuple[Any, Any]] = {
    "dataclass": (City, City("Bern", 146000)),
    "struct": (CityStruct, CityStruct("Bern", 146000)),
    "pydantic": (CityModel, CityModel(name="Bern", population=146000)),
    "schema": (SCHEMA, {"name": "Bern", "population": 146000}),
}


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It rains in {city}."


# --- ask -------------------------------------------------------------------------------------------------------------


@every_dialect
async def test_answer_has_text_usage_and_all_messages_of_its_turn(dialect: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        harness.fakes[dialect].call("weather", {"city": "Bern"})
        harness.fakes[dialect].reply("It rains.")
        agent = await harness.agent(tools=[weather])
        answer = await agent.ask("Does it rain in Bern?")
        assert (answer.text, str(answer), answer.parsed, answer.pending) == ("It rains.", "It rains.", None, ())
        assert answer.model == f"fake-{dialect}:model"
        assert [message.role for message in answer.messages] == ["assistant", "tool", "assistant"]
        assert answer.messages[0].tool_calls[0].input == {"city": "Bern"}
        usages = [message.metadata.usage for message in answer.messages if message.metadata.usage]
        assert answer.usage.output_tokens == sum(usage.output_tokens for usage in usages)
        assert answer.cost is None
        stored = [row.message async for row in harness.store.history(answer.session_id)]
        assert stored[1:] == list(answer.messages)


async def test_question_starts_a_session_or_continues_one(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        first = await agent.ask("My name is Ada.")
        other = await agent.ask("What is my name?")
        again = await agent.ask("What is my name?", session=first.session_id)
        assert (again.session_id, other.session_id != first.session_id) == (first.session_id, True)
        assert [len(body["messages"]) for body in harness.fakes["anthropic"].bodies] == [1, 1, 3]
        assert (await harness.store.get_session(first.session_id)).title == "My name is Ada."


async def test_answer_can_be_passed_as_session(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        first = await agent.ask("My name is Ada.")
        again = await agent.ask("What is my name?", session=first)
        assert again.session_id == first.session_id


async def test_question_is_sent_after_its_history(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        earlier = await agent.ask("My name is Ada.")
        history = [Message.user("My name is Ada."), earlier.message]
        answer = await agent.ask("What is my name?", history=history)
        assert [turn["role"] for turn in harness.fakes["anthropic"].bodies[-1]["messages"]] == [
            "user",
            "assistant",
            "user",
        ]
        stored = [row.message async for row in harness.store.history(answer.session_id)]
        assert [message.text for message in stored[:3]] == ["My name is Ada.", earlier.text, "What is my name?"]
        assert answer.session_id != earlier.session_id


async def test_path_in_a_question_is_an_image(tmp_path: Path) -> None:
    image = tmp_path / "cat.png"
    image.write_bytes(b"\x89PNG")
    assert dragoman.image_from_file(str(image)) == dragoman.image_from_file(image)
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        answer = await (await harness.agent()).ask(["What is this?", image])
        stored = [row.message async for row in harness.store.history(answer.session_id)]
        assert stored[0].content[1] == dragoman.image_from_file(image)


@pytest.mark.parametrize(
    ("argument", "fields", "remedy"),
    [
        ("question", {"question": None}, "Pass a text"),
        ("question", {"question": [{"role": "user", "content": "Hello"}]}, "pass earlier messages as history"),
        ("options", {"options": {"temperature": 0.2}}, r"Pass dragoman.Options\("),
        ("model", {"model": ["sonnet", "gpt-4o"]}, "Pass one id or alias"),
        ("tools", {"tools": [weather]}, r"Pass functions to Agent\(tools="),
        ("history", {"history": [{"role": "user", "content": "Hello"}]}, "read_request"),
    ],
)
async def test_argument_of_a_wrong_type_is_rejected_with_a_remedy(
    argument: str, fields: dict[str, Any], remedy: str, tmp_path: Path
) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        with pytest.raises(FormatError, match=f"^{argument}: .*{remedy}"):
            await (await harness.agent()).ask(**{"question": "Hello", **fields})
        assert harness.fakes["anthropic"].bodies == []


def test_options_of_an_agent_must_be_options() -> None:
    with pytest.raises(FormatError, match=r"^options: a value of type dict"):
        Agent(options={"temperature": 0.2})  # type: ignore[arg-type]


async def test_fault_raises_with_the_answer_so_far(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        harness.fakes["anthropic"].fail(401, "bad key")
        with pytest.raises(AnswerError, match=r"bad key. Run dragoman login fake-anthropic, or set") as caught:
            await (await harness.agent()).ask("Hello?")
        assert (caught.value.code, caught.value.fault.status, caught.value.answer.text) == ("unauthorized", 401, "")


@pytest.mark.parametrize("question", ["", " \n", [], ["", " "]])
async def test_empty_question_is_rejected_before_a_provider_is_called(question: Any, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        with pytest.raises(FormatError, match="the question is empty"):
            await agent.ask(question)
        assert harness.fakes["anthropic"].bodies == []
        assert len(await harness.store.list_sessions()) == 1  # the session of the fixture


async def test_question_without_a_usable_model_creates_no_session(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(model="gpt-4o")
        with pytest.raises(
            RoutingFailedError, match=r"Set OPENAI_API_KEY, run dragoman login openai.*dragoman\[local\]"
        ):
            await agent.ask("Hello?")
        with pytest.raises(UnknownModelError, match="Did you mean claude-sonnet-5-5"):
            await agent.ask("Hello?", model="claude-sonet-5-5")
        assert len(await harness.store.list_sessions()) == 1


async def test_agent_opens_the_named_store(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        file = tmp_path / "chats.db"
        async with Agent(str(file), settings=harness.settings) as agent:
            answer = await agent.ask("Hello")
        async with dragoman.open_store(file) as store:
            assert len(await store.read(answer.session_id)) == 2
        with pytest.raises(UnknownModelError, match="no model is called 'nobody'"):
            Agent(model="nobody", settings=harness.settings)


@every_dialect
async def test_stream_yields_text_and_events_and_ends_with_the_answer(dialect: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        harness.fakes[dialect].reply("It rains in Bern.")
        harness.fakes[dialect].reply("It rains in Bern.")
        agent = await harness.agent()
        stream = agent.stream("Does it rain?")
        assert "".join([text async for text in stream]) == "It rains in Bern."
        assert (await stream.answer()).text == "It rains in Bern."
        events = [event async for event in agent.stream("Does it rain?").events()]
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It rains in Bern."
        assert isinstance(events[-1], TurnEnd)


async def test_truncated_stream_raises_after_its_text(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        harness.fakes["anthropic"].cut(
            900, text_part("It rains in Bern, and it rains in Basel, and everywhere else. " * 20)
        )
        texts: list[str] = []
        agent = await harness.agent()

        async def read() -> None:
            async for text in agent.stream("Does it rain?"):
                texts.append(text)

        with pytest.raises(AnswerError) as caught:
            await read()
        assert texts
        assert caught.value.answer.text == "".join(texts)


def test_keywords_of_a_turn_are_the_fields_of_its_request() -> None:
    assert {*TurnFields.__annotations__, "session_id", "content"} == set(TurnRequest.__struct_fields__)


# --- structured output -----------------------------------------------------------------------------------------------


@every_dialect
@pytest.mark.parametrize("kind", OUTPUTS)
async def test_answer_is_parsed(dialect: str, kind: str, tmp_path: Path) -> None:
    output, expected = OUTPUTS[kind]
    async with open_fake_agent(tmp_path, dialect) as harness:
        harness.fakes[dialect].reply(BERN)
        answer = await (await harness.agent()).ask("A city?", output=output)
        assert (answer.parsed, answer.text) == (expected, BERN)
        assert harness.fakes[dialect].refusals == []
        assert "population" in str(harness.fakes[dialect].bodies[0])


@every_dialect
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_model_without_structured_output_answers_with_a_tool(
    dialect: str, streamed: bool, tmp_path: Path
) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        fake = harness.fakes[dialect]
        fake.call("weather", {"city": "Bern"})
        fake.answer_with(text_part("Here it is:"), call_part("final_answer", {"name": "Bern", "population": 146000}))
        agent = await harness.agent(tools=[weather], stream=streamed)
        answer = await agent.ask("A city?", output=City, model=f"blind-{dialect}")
        assert answer.parsed == City("Bern", 146000)
        assert [message.role for message in answer.messages] == ["assistant", "tool", "assistant"]
        assert (answer.message.tool_calls, answer.stop_reason) == ((), "end_turn")
        assert fake.refusals == []
        fake.reply("Thank you.")
        assert (await agent.ask("Thanks", session=answer.session_id)).text == "Thank you."
        assert fake.refusals == []


@pytest.mark.parametrize("model", ["openai_chat", "blind-openai_chat"])
async def test_invalid_output_is_repaired_once(model: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        fake = harness.fakes["openai_chat"]
        fake.reply('{"name": "Bern"}')
        fake.reply(BERN)
        answer = await (await harness.agent()).ask("A city?", output=City, model=model)
        assert answer.parsed == City("Bern", 146000)
        assert answer.usage.output_tokens == sum(
            message.metadata.usage.output_tokens for message in answer.messages if message.metadata.usage
        )
        assert (len(answer.messages), answer.end.llm_calls) == (2, 2)
        last = fake.bodies[1]["messages"][-1]
        assert '"population" is a required property' in str(last["content"])
        stored = [row.message async for row in harness.store.history(answer.session_id)]
        assert [message.metadata.status for message in stored] == ["complete", "error", "complete"]


async def test_output_that_stays_invalid_is_a_fault_with_the_text(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        for text in ("Bern.", "Basel.", "Zug."):
            harness.fakes["openai_chat"].reply(text)
        agent = await harness.agent()
        with pytest.raises(AnswerError, match="the answer is not JSON") as caught:
            await agent.ask("A city?", output=City)
        assert (caught.value.code, caught.value.answer.text) == ("output_invalid", "Basel.")
        assert caught.value.answer.end.llm_calls == 2
        agent = await harness.agent(output_repairs=0)
        with pytest.raises(AnswerError):
            await agent.ask("A city?", output=City)
        assert len(harness.fakes["openai_chat"].bodies) == 3


async def test_pydantic_validator_counts_like_the_schema(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        harness.fakes["openai_chat"].reply('{"name": "bern", "population": 1}')
        harness.fakes["openai_chat"].reply('{"name": "Bern", "population": 1}')
        answer = await (await harness.agent()).ask("A city?", output=CityModel)
        assert answer.parsed == CityModel(name="Bern", population=1)
        assert "capital letter" in str(harness.fakes["openai_chat"].bodies[1]["messages"][-1])


@pytest.mark.parametrize(
    ("output", "text", "expected"),
    [
        (list[City], '{"value": [{"name": "Bern", "population": 1}]}', [City("Bern", 1)]),
        (bool, '{"value": true}', True),
        (Decimal, '{"value": "1.5"}', Decimal("1.5")),
        (dict[str, int], '{"Bern": 1}', {"Bern": 1}),
    ],
    ids=["list", "bool", "decimal", "dict"],
)
async def test_output_may_be_any_type(output: Any, text: str, expected: Any, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        harness.fakes["openai_chat"].reply(text)
        assert (await (await harness.agent()).ask("?", output=output)).parsed == expected


async def test_output_that_is_not_a_type_is_rejected_before_a_model_is_called(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        with pytest.raises(InputError, match="Use a dataclass"):
            await (await harness.agent()).ask("?", output=threading.Lock)  # type: ignore[call-overload]
        assert harness.fakes["openai_chat"].bodies == []


# --- without an event loop -------------------------------------------------------------------------------------------


def make_blocking_agent(harness: FakeAgent) -> Agent:
    return Agent(settings=harness.settings, tools=[weather], config=AgentConfig(output_repairs=0))


async def test_agent_works_without_an_event_loop(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        harness.fakes["anthropic"].call("weather", {"city": "Bern"})
        for text in ("It rains.", "It snows.", BERN):
            harness.fakes["anthropic"].reply(text)

        def script() -> None:
            with make_blocking_agent(harness) as agent:
                answer = agent.ask("Does it rain?")
                assert answer.text == "It rains."
                assert "".join(agent.stream("And now?", session=answer.session_id)) == "It snows."
                assert agent.ask("A city?", output=City).parsed == City("Bern", 146000)
                rows = agent.wait_for(agent.store.read(answer.session_id))
                assert [row.message.role for row in rows] == [
                    "user",
                    "assistant",
                    "tool",
                    "assistant",
                    "user",
                    "assistant",
                ]

        await asyncio.to_thread(script)


async def test_blocking_agent_works_inside_a_running_loop(tmp_path: Path) -> None:
    """A notebook runs a cell inside a loop. The provider is another process, because this loop is blocked."""
    with dragoman.Agent(model="local", options=Options(max_output_tokens=8)) as agent:
        assert agent.ask("Say hello.").text


async def test_end_of_a_blocking_stream_cancels_the_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        harness.fakes["anthropic"].reply("It rains in Bern. " * 200)

        def script() -> None:
            with make_blocking_agent(harness) as agent:
                for event in agent.stream("Does it rain?").events():
                    if isinstance(event, TextDelta):
                        break
                (session,) = agent.wait_for(agent.store.list_sessions())
                answer = agent.wait_for(agent.store.read(session.id))[-1].message
                assert answer.metadata.status in ("cancelled", "complete")

        await asyncio.to_thread(script)


async def test_blocking_call_from_the_loop_of_the_portal_is_rejected(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:

        async def nested(city: str) -> str:
            with Agent(settings=harness.settings) as inner:
                return inner.ask(f"The weather in {city}?").text

        harness.fakes["anthropic"].call("nested", {"city": "Bern"})
        harness.fakes["anthropic"].reply("Sorry.")

        def script() -> None:
            with Agent(settings=harness.settings, tools=[nested]) as agent:
                answer = agent.ask("Does it rain?")
                assert answer.messages[1].content[0].is_error  # type: ignore[union-attr]

        await asyncio.to_thread(script)


async def test_forked_process_gets_its_own_portal(tmp_path: Path) -> None:
    script = """
        import os, warnings, dragoman
        from dragoman.turn.portal import wait_for
        warnings.simplefilter("ignore")  # a fork of a process with threads
        async def two(): return 2
        assert wait_for(two()) == 2
        child = os.fork()
        if child == 0:
            os._exit(wait_for(two()))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = await asyncio.to_thread(_run, script)
    assert (done.stdout, done.stderr) == ("2\n", "")


async def test_ctrl_c_cancels_the_question(tmp_path: Path) -> None:
    script = """
        import asyncio, os, signal, threading, dragoman
        from dragoman.turn.portal import wait_for
        async def wait():
            try:
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                await asyncio.Event().wait()
            finally:
                print("cancelled")
        try:
            wait_for(wait())
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = await asyncio.to_thread(_run, script)
    assert (done.stdout, done.stderr) == ("cancelled\ninterrupted\n", "")


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "PYTHONUTF8": "1"},
    )


# --- single questions ------------------------------------------------------------------------------------------------


async def test_single_question_needs_no_agent_and_stores_nothing(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        harness.fakes["anthropic"].reply("It rains.")
        harness.fakes["anthropic"].reply(BERN)
        assert (await dragoman.ask_async("Does it rain?", settings=harness.settings)).text == "It rains."
        answer = await asyncio.to_thread(ask_city, harness.settings)
        assert answer == City("Bern", 146000)
        assert {file.name for file in tmp_path.iterdir()} == {"config.toml"}


async def test_single_question_can_be_streamed(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        harness.fakes["anthropic"].reply("It rains.")
        harness.fakes["anthropic"].reply("It snows.")
        texts = [text async for text in dragoman.stream_async("Does it rain?", settings=harness.settings)]
        assert "".join(texts) == "It rains."
        texts = await asyncio.to_thread(lambda: list(dragoman.stream("And now?", settings=harness.settings)))
        assert "".join(texts) == "It snows."


def test_unknown_keyword_error_names_function_and_options() -> None:
    option = r"\(\) got an unexpected keyword argument 'temperature'. Pass options=dragoman.Options\(temperature=…\)$"
    with pytest.raises(TypeError, match="^ask" + option):
        dragoman.ask("Hello", temperature=0.2)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="^stream" + option):
        dragoman.stream("Hello", temperature=0.2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^stream\(\) got an unexpected keyword argument 'output'$"):
        dragoman.stream("Hello", output=City)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'question'"):
        dragoman.ask()  # type: ignore[call-overload]
    with Agent() as agent:
        with pytest.raises(TypeError, match=r"^Agent\.ask" + option):
            agent.ask("Hello", temperature=0.2)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"^Agent\.stream" + option):
            agent.stream("Hello", temperature=0.2)  # type: ignore[call-arg]
    assert dragoman.ask.__name__ == "ask"


async def test_questions_of_one_event_loop_share_a_connection(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        script = f"""
            import asyncio, logging, pathlib, dragoman
            from dragoman import settings
            logging.disable()  # the fake has no price
            given = settings.load(
                environment={{"FAKE_KEY": "k"}}, file=pathlib.Path({str(tmp_path / "config.toml")!r}), keyring=lambda _: None
            )
            for _ in range(3):
                dragoman.ask("Does it rain?", settings=given)
            async def ask():
                for _ in range(3):
                    await dragoman.ask_async("Does it rain?", settings=given)
            asyncio.run(ask())
            print("done")
        """
        done = await asyncio.to_thread(_run, script)
        assert (done.stdout, done.stderr) == ("done\n", "")
        assert len(harness.fakes["anthropic"].received) == 6
        assert len(harness.fakes["anthropic"].connections) == 2


def ask_city(settings: Settings) -> City:
    return dragoman.ask("A city?", output=City, settings=settings).parsed


def test_local_model_answers_in_two_lines(tmp_path: Path) -> None:
    script = 'import dragoman\nprint(dragoman.ask("Say hello.", model="local").text)'
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), WEIGHTS_VARIABLE: str(find_weights())},
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == []


# --- messages --------------------------------------------------------------------------------------------------------


def test_messages_are_created_from_texts_and_blocks() -> None:
    image = dragoman.ImageBlock(dragoman.ImageSource("base64", "aGk="), "image/png")
    message = Message.user("What is this?", image)
    assert (message.role, message.text, message.content[1]) == ("user", "What is this?", image)
    call = dragoman.ToolUseBlock("tu_01KR3V1C00000000000000000A", "weather", {"city": "Bern"})
    assert Message.assistant("Wait.", call).tool_calls == (call,)
    assert Message.system("Be brief.").role == "system"
    result = Message.tool(call.id, "It rains.")
    assert (result.metadata.parent_tool_use_id, result.role) == (call.id, "tool")
    history = (Message.user("Rain?"), Message.assistant(call), result, Message.assistant("Yes."))
    messages = [message.replace(id=f"m{number}", session_id="s") for number, message in enumerate(history)]
    assert [message.content for message in dragoman.repair(messages).messages] == [part.content for part in history]


def test_messages_and_blocks_are_escaped_in_notebooks() -> None:
    evil = "<script>alert('x')</script>"
    blocks = [
        dragoman.TextBlock(evil),
        dragoman.ThinkingBlock(evil),
        dragoman.ToolUseBlock("tu_1", evil, {evil: evil}),
        dragoman.InvalidToolUseBlock("tu_1", evil, evil, evil),
        dragoman.ToolResultBlock("tu_1", (dragoman.TextBlock(evil),)),
        dragoman.ImageBlock(dragoman.ImageSource("base64", f'"{evil}'), "image/png"),
        dragoman.ImageBlock(dragoman.ImageSource("base64", "aGk="), f'image/png" {evil}'),
        dragoman.ImageBlock(dragoman.ImageSource("url", evil), "image/png"),
        dragoman.OpaqueBlock("x", {"a": evil}),
    ]
    for block in blocks:
        text = block._repr_html_()
        assert text.startswith("<")
        assert "<script" not in text
    assert (
        'src="data:image/png;base64,aGk="'
        in dragoman.ImageBlock(dragoman.ImageSource("base64", "aGk="), "image/png")._repr_html_()
    )
    text = Message.assistant("a < b")._repr_html_()
    assert "<strong>assistant</strong>" in text
    assert "a &lt; b" in text
