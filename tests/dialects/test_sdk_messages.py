"""The SDKs of Anthropic and OpenAI read converted replies of other providers, with and without a stream.

They are fed over a real socket. The recorded traffic is read where it lies, and never copied. The rest of what these
SDKs are messages stands in ``test_sdk``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from dragoman import dialects
from dragoman.cli.prove import first_difference
from dragoman.event import StreamEvent, fold
from dragoman.exchange import Reply
from tests.conftest import IS_FULL
from tests.corpus import records
from tests.dialects.stream_damage.case import events_of
from tests.dialects.test_sdk import NORMALIZERS, REPLIES, Loopback, plain
from tests.dialects.test_stream_writers import write_events

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")

NAMES = ("anthropic", "openai_chat")


@cache
def reply_types() -> dict[str, TypeAdapter[Any]]:
    """Return the published types by dialect."""
    from anthropic.types import Message
    from openai.types.chat import ChatCompletion

    return {"anthropic": TypeAdapter(Message), "openai_chat": TypeAdapter(ChatCompletion)}


class Server(Loopback):
    """The same server, with requests of the SDKs that are not streamed."""

    def read_reply(self, name: str, body: bytes) -> dict[str, Any]:
        self.bodies["one"] = body
        headers = {"x-record": "one", "accept": "application/json"}
        messages: Any = [{"role": "user", "content": "Hi."}]
        if name == "anthropic":
            raw: Any = self.anthropic.messages.with_raw_response.create(
                model="m", max_tokens=1, messages=messages, extra_headers=headers
            )
        else:
            api = self.openai.chat.completions
            raw = api.with_raw_response.create(model="m", messages=messages, extra_headers=headers)
        return dict(reply_types()[name].validate_json(raw.http_response.content).to_dict(mode="json"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def others(name: str) -> list[str]:
    return [source for source in dialects.callable_names() if source != name]


def compare_reply(name: str, reply: Reply, server: Server) -> str | None:
    """Return the first difference between a written reply and the reply of the SDK. Validate its types."""
    wire = dialects.load(name).write_reply(reply).wire
    reply_types()[name].validate_python(wire)
    theirs = server.read_reply(name, msgspec.json.encode(wire))
    return first_difference(*NORMALIZERS[name](plain(wire), theirs))


def compare_stream(dialect: ModuleType, events: list[StreamEvent], server: Server) -> str | None:
    """Return the first difference between a written stream as the dialect reads it and as the SDK reads it."""
    data = b"".join(write_events(dialect, *events))
    ours = plain(dialect.write_reply(fold(events_of(dialect, [data]))).wire)
    theirs = server.read_stream(dialect.NAME, data)
    if dialect.NAME == "anthropic" and "service_tier" not in theirs["usage"]:
        ours["usage"].pop("service_tier", None)  # the SDK reads it only from the start event
    return first_difference(*NORMALIZERS[dialect.NAME](ours, theirs))


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", NAMES)
def test_sdk_reads_written_reply(name: str, reply: str, server: Server) -> None:
    assert compare_reply(name, REPLIES[reply], server) is None


@pytest.mark.parametrize("name", NAMES)
def test_sdk_reads_converted_replies_of_other_providers(name: str, server: Server) -> None:
    differences, count = {}, 0
    for source, record in records(*others(name), part="response", sample=12):
        if record["status"] in (200, None):
            reply = dialects.load(source).read_reply(record["response"])
            if reply.fault is None:
                differences[record["id"]] = compare_reply(name, reply, server)
                count += 1
    assert {record: found for record, found in differences.items() if found is not None} == {}
    assert count > (1_000 if IS_FULL else 60)


@pytest.mark.parametrize("name", NAMES)
def test_sdk_reads_converted_streams_of_other_providers(name: str, server: Server) -> None:
    dialect = dialects.load(name)
    differences, count = {}, 0
    for source, record in records(*others(name), part="stream", sample=8):
        if record["status"] in (200, None):
            data = record["stream"].encode("utf-8", "surrogatepass")
            events = events_of(dialects.load(source), [data], record["stream_format"])
            if fold(events).fault is None:
                differences[record["id"]] = compare_stream(dialect, events, server)
                count += 1
    assert {record: found for record, found in differences.items() if found is not None} == {}
    assert count > (500 if IS_FULL else 40)
