"""Seeds of the fuzz tests: cassettes, samples of the fidelity table, examples and recorded traffic.

    wires(dialect, part)     requests, replies, errors, or streams as lists of [event name, object]
    conversations(format)    transcripts
    entries(), envelopes(), letters(), messages()

Recorded traffic is used in long runs only, if it is available, so that a short run is the same everywhere.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import zlib
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dragoman import codec, dialects, envelope
from dragoman.cli.prove import read_records
from dragoman.entries import entries_from_messages
from dragoman.errors import InputError
from dragoman.exchange import Request
from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.transcripts import get_format
from dragoman.wire.frames import make_splitter
from tests import recordings
from tests.conftest import CORPUS, scale
from tests.entries.examples import ALL_EXAMPLES
from tests.fuzz import synthetic_wires
from tests.letters.examples import EXAMPLES

FRAMING: Final = {  # other dialects use server-sent events
    "bedrock_converse": "aws-eventstream",
    "bedrock_invoke": "aws-eventstream",
    "cohere_v1": "ndjson",
    "ollama": "ndjson",
    "ollama_generate": "ndjson",
}
NOON: Final = datetime(2026, 5, 8, 12, tzinfo=UTC)
COUNT: Final = int(os.environ.get("DRAGOMAN_FUZZ_COUNT", scale(8, 40)))  # inputs of each subject
IS_LONG: Final = COUNT > 100
_MAX_SEEDS: Final = 40
_MAX_LENGTH: Final = 12_000  # characters; longer inputs are too slow


@functools.cache
def wires(dialect: str, part: str) -> tuple[Any, ...]:
    """Return the seeds of one part of a dialect: ``request``, ``reply``, ``stream`` or ``error``."""
    found = [*_from_cassettes(dialect, part), *synthetic_wires.wires(dialect, part), *_from_corpus(dialect, part)]
    if part == "request" and dialect in dialects.callable_names():
        found += importlib.import_module(f"dragoman.fidelity.samples.{dialect}").WIRES.values()
    return tuple(wire for wire in found if len(json.dumps(wire)) <= _MAX_LENGTH)


def _from_cassettes(dialect: str, part: str) -> list[Any]:
    found: list[Any] = []
    for name in recordings.cassette_names(dialect):
        cassette = recordings.cassette(dialect, name)
        is_streamed, is_error = name.endswith(recordings.STREAMED), cassette.response.status >= 400
        if part == "request":
            found.append(cassette.request.body)
        elif (part == "error" and is_error and cassette.response.body is not None) or (
            part == "reply" and not is_streamed and not is_error
        ):
            found.append(cassette.response.body)
        elif part == "stream" and is_streamed and not is_error:
            found.append(_frames(cassette.response.stream, FRAMING.get(dialect, "sse")))
    return found


def _frames(data: bytes, framing: str) -> list[Any]:
    """Return a stream as a list of [event name, object]."""
    splitter = make_splitter(framing)
    frames = [*splitter.feed(data), *splitter.close()]
    return [[frame.event, _value(frame.data)] for frame in frames]


def _value(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data.decode()  # [DONE]


@functools.cache
def _corpus() -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return a fixed sample of the recorded traffic by dialect and part."""
    found: dict[tuple[str, str], list[Any]] = {}
    dialect_names = {
        alias: name
        for name in dialects.names()
        for alias in (name.replace("_", "-"), *getattr(dialects.load(name), "RECORDING_NAMES", ()))
    }
    for file in sorted(CORPUS.glob("*.jsonl.gz")) if IS_LONG else ():
        for record in read_records(file):
            name = dialect_names.get(record["dialect"])
            if name is not None and zlib.crc32(record["id"].encode()) % 5 == 0:
                for part, wire in _parts(record, FRAMING.get(name, "sse")):
                    found.setdefault((name, part), []).append(wire)
    return {key: tuple(_sample(seeds)) for key, seeds in found.items()}


def _parts(record: dict[str, Any], framing: str) -> list[tuple[str, Any]]:
    is_error = (record.get("status") or 200) >= 400
    parts = [("request", record.get("request")), ("error" if is_error else "reply", record.get("response"))]
    if record.get("stream") and framing == "sse" and record.get("stream_format") in (None, "sse"):
        parts.append(("stream", _frames(record["stream"].encode("utf-8", "surrogatepass"), "sse")))
    return [(part, wire) for part, wire in parts if isinstance(wire, dict | list)]


def _sample(seeds: list[Any]) -> list[Any]:
    short = [seed for seed in seeds if len(json.dumps(seed)) <= _MAX_LENGTH]
    return short[:: max(1, len(short) // _MAX_SEEDS)]


def _from_corpus(dialect: str, part: str) -> tuple[Any, ...]:
    return _corpus().get((dialect, part), ())


@functools.cache
def requests() -> tuple[Request, ...]:
    """Return the requests of every dialect in canonical form."""
    found = []
    for name in dialects.names():
        for wire in wires(name, "request"):
            try:
                found.append(dialects.load(name).read_request(wire))
            except InputError:
                continue  # the provider rejected this recorded request
    return tuple(found)


@functools.cache
def messages() -> tuple[tuple[Message, ...], ...]:
    """Return histories of canonical messages, some with metadata of stored messages."""
    golden = [
        codec.decode(msgspec.json.encode(message))
        for name in dialects.callable_names()
        for message in json.loads((recordings.GOLDEN / f"{name}.json").read_bytes()).values()
    ]
    histories = [request.messages for request in requests()[::4] if request.messages]
    return (*((message,) for message in golden), *histories)


@functools.cache
def conversations(name: str) -> tuple[Any, ...]:
    """Return conversations of a transcript format."""
    module = get_format(name)
    samples = importlib.import_module(f"dragoman.fidelity.samples.{name}").WIRES.values()
    written = [module.write_messages(history).wire for history in messages()]
    return tuple(wire for wire in (*samples, *written) if len(json.dumps(wire)) <= _MAX_LENGTH)


@functools.cache
def entries() -> tuple[Any, ...]:
    """Return lists of trace entries."""
    written = [entries_from_messages(history).wire for history in messages()]
    return (
        [*ALL_EXAMPLES],
        *([entry] for entry in ALL_EXAMPLES),
        *(wire for wire in written if len(json.dumps(wire)) <= _MAX_LENGTH),
    )


@functools.cache
def envelopes() -> tuple[Any, ...]:
    """Return lists of envelopes in both shapes."""
    wires_of_histories = [envelope.envelopes_from_messages(history) for history in messages()]
    rows = [[envelope.to_provider_message(item) for item in wire] for wire in wires_of_histories[::3]]
    return tuple(wire for wire in itertools.chain(wires_of_histories, rows) if len(json.dumps(wire)) <= _MAX_LENGTH)


def letters() -> tuple[Any, ...]:
    """Letters between agents."""
    return tuple(EXAMPLES.values())


def canonical() -> tuple[Any, ...]:
    """Return canonical messages as JSON."""
    return tuple(json.loads(codec.encode(message)) for history in messages() for message in history[:2])


def question() -> Message:
    """Return a user message."""
    content = (TextBlock("What is this?"),)
    return Message("01KE0000000000000000000001", "sess_1", Role.USER, content, MessageMetadata(), NOON)
