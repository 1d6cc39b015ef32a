"""The SDKs of Anthropic and OpenAI hear what other providers said, in their own dialect: whole, and streamed.

They are fed over a real socket. The recorded traffic is read where it lies, and never copied. The rest of what these
SDKs are asked stands in ``test_sdk``.
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
from tests.dialects.test_sdk import COMPARED, REPLIES, Loopback, plain
from tests.dialects.test_stream_writers import written

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")

NAMES = ("anthropic", "openai_chat")


@cache
def published() -> dict[str, TypeAdapter[Any]]:
    """Return the published types by dialect."""
    from anthropic.types import Message
    from openai.types.chat import ChatCompletion

    return {"anthropic": TypeAdapter(Message), "openai_chat": TypeAdapter(ChatCompletion)}


# The SDKs take their time, so one record in so many is looked at each time; all of them if asked. When all were
# (November 2026), nothing was different.


class Server(Loopback):
    """The same server, and the SDKs asked for a whole answer."""

    def told(self, name: str, body: bytes) -> dict[str, Any]:
        self.bodies["one"] = body
        headers = {"x-record": "one", "accept": "application/json"}
        asked: Any = [{"role": "user", "content": "Hi."}]
        if name == "anthropic":
            raw: Any = self.anthropic.messages.with_raw_response.create(
                model="m", max_tokens=1, messages=asked, extra_headers=headers
            )
        else:
            api = self.openai.chat.completions
            raw = api.with_raw_response.create(model="m", messages=asked, extra_headers=headers)
        return dict(published()[name].validate_json(raw.http_response.content).to_dict(mode="json"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def others(name: str) -> list[str]:
    return [source for source in dialects.callable_names() if source != name]


def is_heard_whole(name: str, reply: Reply, server: Server) -> str | None:
    """The first difference between a whole reply as we write it and as the SDK has it; and its types hold."""
    wire = dialects.load(name).write_reply(reply).wire
    published()[name].validate_python(wire)
    theirs = server.told(name, msgspec.json.encode(wire))
    return first_difference(*COMPARED[name](plain(wire), theirs))


def is_heard_streamed(dialect: ModuleType, events: list[StreamEvent], server: Server) -> str | None:
    """The first difference between what we hear of a stream of ours and what the SDK does."""
    data = b"".join(written(dialect, *events))
    ours = plain(dialect.write_reply(fold(events_of(dialect, [data]))).wire)
    theirs = server.heard(dialect.NAME, data)
    if dialect.NAME == "anthropic" and "service_tier" not in theirs["usage"]:
        ours["usage"].pop(
            "service_tier", None
        )  # another provider tells it late, and the SDK takes it from the start alone
    return first_difference(*COMPARED[dialect.NAME](ours, theirs))


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", NAMES)
def test_the_sdk_takes_a_whole_reply_of_ours(name: str, reply: str, server: Server) -> None:
    assert is_heard_whole(name, REPLIES[reply], server) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_sdk_takes_what_another_provider_answered(name: str, server: Server) -> None:
    differences, count = {}, 0
    for source, record in records(*others(name), part="response", sample=12):
        if record["status"] in (200, None):
            reply = dialects.load(source).read_reply(record["response"])
            if reply.fault is None:
                differences[record["id"]] = is_heard_whole(name, reply, server)
                count += 1
    assert {record: found for record, found in differences.items() if found is not None} == {}
    assert count > (1_000 if IS_FULL else 60)


@pytest.mark.parametrize("name", NAMES)
def test_the_sdk_hears_what_another_provider_streamed(name: str, server: Server) -> None:
    dialect = dialects.load(name)
    differences, count = {}, 0
    for source, record in records(*others(name), part="stream", sample=8):
        if record["status"] in (200, None):
            data = record["stream"].encode("utf-8", "surrogatepass")
            events = events_of(dialects.load(source), [data], record["stream_format"])
            if fold(events).fault is None:
                differences[record["id"]] = is_heard_streamed(dialect, events, server)
                count += 1
    assert {record: found for record, found in differences.items() if found is not None} == {}
    assert count > (500 if IS_FULL else 40)
