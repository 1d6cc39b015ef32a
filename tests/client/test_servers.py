"""Tests of complete calls of real servers: llama.cpp, aimock and the embedded model."""

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
from tests import recordings
from tests.client.calls import CONTEXT, NoSleepClient, make_call, stream_reply, text_of
from tests.servers.fixtures import ANSWER_TEXT, LLAMA_TEXT, THOUGHT

LLAMA_DIALECTS = ("anthropic", "openai_chat", "openai_responses")
THINKING_DIALECTS = (
    "anthropic",
    "bedrock_converse",
    "gemini",
    "openai_responses",
)  # the dialects in which aimock sends reasoning like the provider
each_llama_dialect = pytest.mark.parametrize("dialect", LLAMA_DIALECTS)
each_aimock_dialect = pytest.mark.parametrize("dialect", dialects.callable_names())
both_modes = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def make_messages(text: str) -> tuple[Message, ...]:
    message = Message(
        "01KE0000000000000000000001",
        recordings.SESSION,
        Role.USER,
        (TextBlock(text),),
        MessageMetadata(),
        recordings.NOON,
    )
    return (recordings.SYSTEM, message)


async def get_reply(client: Client, call: Call, *, streamed: bool) -> Reply:
    return await stream_reply(client, call) if streamed else await client.send(call)


@each_llama_dialect
@both_modes
async def test_llama_answers_calls_and_thinks(dialect: str, streamed: bool, llama_server: str) -> None:
    async with Client() as client:
        text_reply = await get_reply(client, make_call(dialect, llama_server, streamed=streamed), streamed=streamed)
        assert (text_of(text_reply), text_reply.stop_reason, text_reply.fault) == (
            LLAMA_TEXT,
            StopReason.END_TURN,
            None,
        )
        assert text_reply.usage is not None
        assert text_reply.usage.output_tokens > 5
        task = make_call(
            dialect, llama_server, streamed=streamed, messages=recordings.SCENES["call"], tools=[recordings.READ_FILE]
        )
        call_reply = await get_reply(client, task, streamed=streamed)
        (call,) = [block for block in call_reply.content if isinstance(block, ToolUseBlock)]
        assert (call.name, call.input, call_reply.stop_reason) == (
            "read_file",
            {"path": "README.md"},
            StopReason.TOOL_USE,
        )
        riddle = make_call(dialect, llama_server, streamed=streamed, messages=recordings.SCENES["thinking"])
        thinking_reply = await get_reply(client, riddle, streamed=streamed)
        assert [type(block) for block in thinking_reply.content] == [ThinkingBlock, TextBlock]


@each_llama_dialect
async def test_history_too_long_for_llama_is_an_overflow(dialect: str, llama_server: str) -> None:
    async with Client() as client:
        for streamed in (False, True):
            call = make_call(dialect, llama_server, streamed=streamed, messages=recordings.SCENES["error"])
            reply = await get_reply(client, call, streamed=streamed)
            assert reply.fault is not None
            assert (reply.fault.code, reply.fault.status) == ("context_overflow", 400)


@each_aimock_dialect
@both_modes
async def test_aimock_answers_in_every_dialect(dialect: str, streamed: bool, aimock_server: str) -> None:
    async with Client() as client:
        reply = await get_reply(client, make_call(dialect, aimock_server, streamed=streamed), streamed=streamed)
        assert (text_of(reply), reply.fault) == (ANSWER_TEXT, None)


@each_aimock_dialect
@both_modes
async def test_parallel_calls_and_results_round_trip(dialect: str, streamed: bool, aimock_server: str) -> None:
    first = make_call(
        dialect, aimock_server, streamed=streamed, messages=make_messages("Compare."), tools=[recordings.READ_FILE]
    )
    async with Client() as client:
        reply = await get_reply(client, first, streamed=streamed)
        message = first.adapter.make_message(reply, CONTEXT)
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        assert [call.input for call in calls] == [{"path": "README.md"}, {"path": "LICENSE"}]
        results = [make_result(number, call) for number, call in enumerate(calls)]
        second = make_call(
            dialect,
            aimock_server,
            streamed=streamed,
            messages=[*make_messages("Compare."), message, *results],
            tools=[recordings.READ_FILE],
            adapter=first.adapter,
        )
        final = await get_reply(client, second, streamed=streamed)
        assert (text_of(final), final.fault) == (ANSWER_TEXT, None)


def make_result(number: int, call: ToolUseBlock) -> Message:
    content = (ToolResultBlock(call.id, (TextBlock("# Project Foo"),)),)
    metadata = MessageMetadata(parent_tool_use_id=call.id)
    return Message(
        f"01KE000000000000000000010{number}", recordings.SESSION, Role.TOOL, content, metadata, recordings.NOON
    )


@pytest.mark.parametrize("dialect", THINKING_DIALECTS)
async def test_reasoning_arrives_before_text(dialect: str, aimock_server: str) -> None:
    async with Client() as client:
        reply = await stream_reply(
            client, make_call(dialect, aimock_server, streamed=True, messages=make_messages("Please think."))
        )
    thought, text = reply.content
    assert isinstance(thought, ThinkingBlock)
    assert (thought.text, text) == (THOUGHT, TextBlock(ANSWER_TEXT))


@each_aimock_dialect
@both_modes
async def test_rate_limit_is_reported_after_the_retry_after_delays(
    dialect: str, streamed: bool, aimock_server: str
) -> None:
    async with NoSleepClient() as client:
        call = make_call(dialect, aimock_server, streamed=streamed, messages=make_messages("limited"))
        reply = await get_reply(client, call, streamed=streamed)
    assert reply.fault is not None
    assert (reply.fault.code, reply.fault.status, reply.fault.retry_after_s) == ("rate_limited", 429, 7.0)
    assert reply.fault.provider == call.endpoint.provider.key
    assert client.waits == [7.0, 7.0]


@each_aimock_dialect
@both_modes
async def test_server_errors_are_retried_and_client_errors_are_not(
    dialect: str, streamed: bool, aimock_server: str
) -> None:
    async with NoSleepClient(random_source=lambda: 0.5) as client:
        broken = await get_reply(
            client,
            make_call(dialect, aimock_server, streamed=streamed, messages=make_messages("broken")),
            streamed=streamed,
        )
        assert broken.fault is not None
        assert (broken.fault.code, client.waits) == ("server_error", [1.0, 2.0])
        refused = await get_reply(
            client,
            make_call(dialect, aimock_server, streamed=streamed, messages=make_messages("refused")),
            streamed=streamed,
        )
        assert refused.fault is not None
        assert (refused.fault.code, refused.fault.status, len(client.waits)) == ("invalid_request", 400, 2)


@each_aimock_dialect
async def test_stream_cut_by_aimock_fails(dialect: str, aimock_server: str) -> None:
    async with NoSleepClient() as client:
        call = make_call(dialect, aimock_server, streamed=True, messages=make_messages("cut"))
        reply = await stream_reply(client, call)
    assert reply.fault is not None
    assert reply.fault.code in ("stream_incomplete", "stream_broken")
    assert ANSWER_TEXT.startswith(text_of(reply))
    assert client.waits == []  # an event was already emitted


async def test_slow_stream_is_incremental_and_closed_with_its_iterator(aimock_server: str) -> None:
    async with Client() as client:
        events = client.stream(make_call("openai_chat", aimock_server, streamed=True, messages=make_messages("slow")))
        async for event in events:
            if isinstance(event, TextDelta) and event.text:
                break
        await events.aclose()
        assert (await stream_reply(client, make_call("openai_chat", aimock_server, streamed=True))).fault is None


# --- the embedded model ----------------------------------------------------------------------------------------------


def make_local_call(base_url: str, *, streamed: bool) -> Call:
    loaded = settings.load(environment={}, keyring=lambda _: None)
    model = loaded.catalog.model("local")
    adapter = Adapter(loaded.catalog.provider(model.provider), model)
    options = Options(max_output_tokens=8, temperature=0, stream=streamed or None)
    wire = adapter.to_wire(recordings.SCENES["text"], options=options).wire
    return Call(endpoint=loaded.endpoint("local", base_url=base_url), adapter=adapter, wire=wire, context=CONTEXT)


async def test_local_model_answers_without_a_key() -> None:
    async with LocalModel(context_tokens=1024) as local, Client() as client:
        base_url, second_url = await asyncio.gather(local.base_url(), local.base_url())
        assert base_url == second_url
        journal = CallLog()
        whole = await client.send(make_local_call(base_url, streamed=False), journal)
        assert whole.fault is None
        assert text_of(whole)
        assert journal.attempts == 1
        streamed = await stream_reply(client, make_local_call(base_url, streamed=True))
        assert streamed.fault is None
        assert streamed.usage is not None
        assert streamed.usage.output_tokens == 8
        other_url = base_url.rsplit("/", 2)[0] + "/v1"
        rejected = await client.send(make_local_call(other_url, streamed=False))
        assert rejected.fault is not None
        assert rejected.fault.code == "not_found"  # the path contains a secret


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
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    child = int(completed.stdout)
    for _ in range(200):
        if not is_running(child):
            break
        subprocess.run(["sleep", "0.05"], check=True)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
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
