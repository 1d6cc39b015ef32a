"""Whole calls of real servers: llama.cpp, aimock and the embedded model."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import catalog, dialects, settings
from dragoman.adapter import Adapter
from dragoman.client import Call, CallLog, Client
from dragoman.errors import SettingsError
from dragoman.event import TextDelta
from dragoman.exchange import Options, Reply, StopReason
from dragoman.local import LocalModel
from dragoman.message import Message, MessageMetadata, Role, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from tests import recorded
from tests.client.calls import CONTEXT, Unhurried, call_to, text_of, told
from tests.servers.fixtures import LLAMA_WORDS, THOUGHT, WORDS

OF_LLAMA = ("anthropic", "openai_chat", "openai_responses")
THINKING = (
    "anthropic",
    "bedrock_converse",
    "gemini",
    "openai_responses",
)  # of those that aimock gives as their providers do
of_llama = pytest.mark.parametrize("dialect", OF_LLAMA)
of_aimock = pytest.mark.parametrize("dialect", dialects.callable_names())
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def said(text: str) -> tuple[Message, ...]:
    message = Message(
        "01KE0000000000000000000001", recorded.SESSION, Role.USER, (TextBlock(text),), MessageMetadata(), recorded.NOON
    )
    return (recorded.SYSTEM, message)


async def answer(client: Client, call: Call, *, streamed: bool) -> Reply:
    return await told(client, call) if streamed else await client.send(call)


@of_llama
@both_ways
async def test_llama_answers_calls_and_thinks(dialect: str, streamed: bool, llama_server: str) -> None:
    async with Client() as client:
        plain = await answer(client, call_to(dialect, llama_server, streamed=streamed), streamed=streamed)
        assert (text_of(plain), plain.stop_reason, plain.fault) == (LLAMA_WORDS, StopReason.END_TURN, None)
        assert plain.usage is not None
        assert plain.usage.output_tokens > 5
        task = call_to(
            dialect, llama_server, streamed=streamed, messages=recorded.SCENES["call"], tools=[recorded.READ_FILE]
        )
        calling = await answer(client, task, streamed=streamed)
        (call,) = [block for block in calling.content if isinstance(block, ToolUseBlock)]
        assert (call.name, call.input, calling.stop_reason) == ("read_file", {"path": "README.md"}, StopReason.TOOL_USE)
        riddle = call_to(dialect, llama_server, streamed=streamed, messages=recorded.SCENES["thinking"])
        thought = await answer(client, riddle, streamed=streamed)
        assert [type(block) for block in thought.content] == [ThinkingBlock, TextBlock]


@of_llama
async def test_history_too_long_for_llama_is_an_overflow(dialect: str, llama_server: str) -> None:
    async with Client() as client:
        for streamed in (False, True):
            call = call_to(dialect, llama_server, streamed=streamed, messages=recorded.SCENES["error"])
            reply = await answer(client, call, streamed=streamed)
            assert reply.fault is not None
            assert (reply.fault.code, reply.fault.status) == ("context_overflow", 400)


@of_aimock
@both_ways
async def test_aimock_answers_in_every_dialect(dialect: str, streamed: bool, aimock_server: str) -> None:
    async with Client() as client:
        reply = await answer(client, call_to(dialect, aimock_server, streamed=streamed), streamed=streamed)
        assert (text_of(reply), reply.fault) == (WORDS, None)


@of_aimock
@both_ways
async def test_parallel_calls_and_results_round_trip(dialect: str, streamed: bool, aimock_server: str) -> None:
    first = call_to(dialect, aimock_server, streamed=streamed, messages=said("Compare."), tools=[recorded.READ_FILE])
    async with Client() as client:
        reply = await answer(client, first, streamed=streamed)
        message = first.adapter.make_message(reply, CONTEXT)
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        assert [call.input for call in calls] == [{"path": "README.md"}, {"path": "LICENSE"}]
        results = [result_of(number, call) for number, call in enumerate(calls)]
        second = call_to(
            dialect,
            aimock_server,
            streamed=streamed,
            messages=[*said("Compare."), message, *results],
            tools=[recorded.READ_FILE],
            adapter=first.adapter,
        )
        after = await answer(client, second, streamed=streamed)
        assert (text_of(after), after.fault) == (WORDS, None)


def result_of(number: int, call: ToolUseBlock) -> Message:
    content = (ToolResultBlock(call.id, (TextBlock("# Project Foo"),)),)
    metadata = MessageMetadata(parent_tool_use_id=call.id)
    return Message(f"01KE000000000000000000010{number}", recorded.SESSION, Role.TOOL, content, metadata, recorded.NOON)


@pytest.mark.parametrize("dialect", THINKING)
async def test_reasoning_arrives_before_text(dialect: str, aimock_server: str) -> None:
    async with Client() as client:
        reply = await told(client, call_to(dialect, aimock_server, streamed=True, messages=said("Please think.")))
    thought, words = reply.content
    assert isinstance(thought, ThinkingBlock)
    assert (thought.text, words) == (THOUGHT, TextBlock(WORDS))


@of_aimock
@both_ways
async def test_rate_limit_waits_for_retry_after_and_is_reported_at_last(
    dialect: str, streamed: bool, aimock_server: str
) -> None:
    async with Unhurried() as client:
        call = call_to(dialect, aimock_server, streamed=streamed, messages=said("limited"))
        reply = await answer(client, call, streamed=streamed)
    assert reply.fault is not None
    assert (reply.fault.code, reply.fault.status, reply.fault.retry_after_s) == ("rate_limited", 429, 7.0)
    assert reply.fault.provider == call.endpoint.provider.key
    assert client.waits == [7.0, 7.0]


@of_aimock
@both_ways
async def test_server_errors_are_retried_and_client_errors_are_not(
    dialect: str, streamed: bool, aimock_server: str
) -> None:
    async with Unhurried(random_source=lambda: 0.5) as client:
        broken = await answer(
            client, call_to(dialect, aimock_server, streamed=streamed, messages=said("broken")), streamed=streamed
        )
        assert broken.fault is not None
        assert (broken.fault.code, client.waits) == ("server_error", [1.0, 2.0])
        refused = await answer(
            client, call_to(dialect, aimock_server, streamed=streamed, messages=said("refused")), streamed=streamed
        )
        assert refused.fault is not None
        assert (refused.fault.code, refused.fault.status, len(client.waits)) == ("invalid_request", 400, 2)


@of_aimock
async def test_stream_cut_by_aimock_fails(dialect: str, aimock_server: str) -> None:
    async with Unhurried() as client:
        call = call_to(dialect, aimock_server, streamed=True, messages=said("cut"))
        reply = await told(client, call)
    assert reply.fault is not None
    assert reply.fault.code in ("stream_incomplete", "stream_broken")
    assert WORDS.startswith(text_of(reply))
    assert client.waits == []  # something had been given out


async def test_slow_stream_is_delivered_incrementally_and_closed_with_its_reader(aimock_server: str) -> None:
    async with Client() as client:
        events = client.stream(call_to("openai_chat", aimock_server, streamed=True, messages=said("slow")))
        async for event in events:
            if isinstance(event, TextDelta) and event.text:
                break
        await events.aclose()
        assert (await told(client, call_to("openai_chat", aimock_server, streamed=True))).fault is None


# --- the embedded model ----------------------------------------------------------------------------------------------


def call_of_local(base_url: str, *, streamed: bool) -> Call:
    found = settings.load(environment={}, keyring=lambda _: None)
    model = found.catalog.model("local")
    adapter = Adapter(found.catalog.provider(model.provider), model)
    options = Options(max_output_tokens=8, temperature=0, stream=streamed or None)
    wire = adapter.to_wire(recorded.SCENES["text"], options=options).wire
    return Call(endpoint=found.endpoint("local", base_url=base_url), adapter=adapter, wire=wire, context=CONTEXT)


async def test_local_model_answers_without_a_key() -> None:
    async with LocalModel(context_tokens=1024) as local, Client() as client:
        base_url, again = await asyncio.gather(local.base_url(), local.base_url())
        assert base_url == again
        journal = CallLog()
        whole = await client.send(call_of_local(base_url, streamed=False), journal)
        assert whole.fault is None
        assert text_of(whole)
        assert journal.attempts == 1
        streamed = await told(client, call_of_local(base_url, streamed=True))
        assert streamed.fault is None
        assert streamed.usage is not None
        assert streamed.usage.output_tokens == 8
        elsewhere = base_url.rsplit("/", 2)[0] + "/v1"
        lost = await client.send(call_of_local(elsewhere, streamed=False))
        assert lost.fault is not None
        assert lost.fault.code == "not_found"  # nobody finds it who does not know its address


async def test_local_model_is_restarted_after_a_crash() -> None:
    async with LocalModel(context_tokens=512) as local:
        first = await local.base_url()
        process = local._process
        assert process is not None
        process.kill()
        process.wait()
        assert await local.base_url() != first


async def test_local_model_is_shared_by_event_loops() -> None:
    async with LocalModel(context_tokens=512) as local:
        in_threads = [asyncio.to_thread(asyncio.run, local.base_url()) for _ in range(3)]
        addresses = await asyncio.gather(local.base_url(), *in_threads)
        assert len(set(addresses)) == 1


async def test_failed_start_reports_the_reason() -> None:
    local = LocalModel(context_tokens=-5)
    local._arguments = ["no number", "512"]
    with pytest.raises(SettingsError, match="invalid literal") as caught:
        await local.base_url()
    assert caught.value.code == "local_model_failed"
    await local.close()


def test_local_model_exits_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, signal\n"
        "from dragoman.local import LocalModel\n"
        "async def main():\n"
        "    local = LocalModel(context_tokens=512)\n"
        "    await local.base_url()\n"
        "    print(local._process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    child = int(done.stdout)
    for _ in range(200):
        if not is_running(child):
            break
        subprocess.run(["sleep", "0.05"], check=True)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to notice its end does not."""
    status = Path(f"/proc/{pid}/stat")
    if not Path("/proc").is_dir():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_catalog_row_of_the_local_model_is_correct() -> None:
    capabilities = catalog.builtin().model("local").capabilities
    assert not capabilities.supports_tools
    assert not capabilities.supports_images
    assert capabilities.max_context_tokens == 8192
