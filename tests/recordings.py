"""Recorded requests and responses of each dialect, and their canonical messages.

    SCENES              the questions, in canonical form; the same for every dialect
    cassette(…)         one recorded exchange, from ``tests/cassettes/<dialect>/<name>.json``
    make_request(…)     the request of a scene: the recorder sends it, the tests compare it with the recorded one
    read_answer(…)      the canonical message of the recorded answer
    golden(dialect)     the bytes of ``tests/golden/<dialect>.json``: every answer of a dialect as a canonical message

``scripts/record_cassettes.py`` writes the files; CONTRIBUTING.md describes when to run it. Invariant: this module contains
no name of a dialect, so a new dialect gets the same requests as the others.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from dragoman.adapter import Adapter, RequestContext
from dragoman.catalog import AdapterCapabilities, Model, Provider
from dragoman.codec import encode
from dragoman.event import StreamEvent, fold
from dragoman.exchange import Options, Reply, SideEffects, ToolDefinition
from dragoman.ids import ToolIds
from dragoman.message import (
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.pricing import PriceTable, price_usage, prices_from_mapping

CASSETTES: Final = Path(__file__).parent / "cassettes"
GOLDEN: Final = Path(__file__).parent / "golden"
STREAMED: Final = "-streamed"

SESSION: Final = "sess_01KE0000000000000000000000"
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
READ_FILE: Final = ToolDefinition(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    SideEffects.READ,
)
README: Final = "# Project Foo\n\nFoo is très bref. 😀"


# --- cassettes -------------------------------------------------------------------------------------------------------


class CassetteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request."""

    method: str
    path: str
    body: Any


class CassetteResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A response: a JSON value, the lines of a stream, or the frames of a binary stream."""

    status: int
    headers: dict[str, str]  # only those that a reader uses
    body: Any = None
    lines: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()  # base64, one for each frame
    payloads: tuple[str, ...] = ()  # the frames as text, for review

    @property
    def stream(self) -> bytes:
        """The bytes of a stream, as recorded."""
        return "".join(self.lines).encode() or b"".join(base64.b64decode(frame) for frame in self.frames)


class Cassette(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded exchange."""

    server: str
    request: CassetteRequest
    response: CassetteResponse


def cassette_names(dialect: str) -> tuple[str, ...]:
    """Return the names of the cassettes of a dialect."""
    return tuple(sorted(path.stem for path in (CASSETTES / dialect).glob("*.json")))


def cassette(dialect: str, name: str) -> Cassette:
    """Read the cassette of that name."""
    return msgspec.json.decode((CASSETTES / dialect / f"{name}.json").read_bytes(), type=Cassette)


# --- scenes ----------------------------------------------------------------------------------------------------------


def _message(number: int, role: Role, text: str) -> Message:
    return Message(f"01KE{number:022d}", SESSION, role, (TextBlock(text),), MessageMetadata(), NOON)


SYSTEM: Final = _message(0, Role.SYSTEM, "Be brief.")
QUESTION: Final = _message(1, Role.USER, "What is Foo? Qu’est-ce que c’est ? 😀")
TASK: Final = _message(1, Role.USER, "Summarize README.md.")
RIDDLE: Final = _message(1, Role.USER, "Please think: what is Foo?")
TOO_MUCH: Final = _message(1, Role.USER, "Repeat this. " * 100)

# The messages that each scene begins with. "result" continues after the end of "call".
SCENES: Final[dict[str, tuple[Message, ...]]] = {
    "text": (SYSTEM, QUESTION),
    "call": (SYSTEM, TASK),
    "result": (SYSTEM, TASK),
    "thinking": (SYSTEM, RIDDLE),
    "error": (SYSTEM, TOO_MUCH),
}
WITH_TOOLS: Final = ("call", "result")


def scene_of(name: str) -> str:
    """Return the scene of a cassette."""
    return name.removesuffix(STREAMED)


def history(dialect: str, name: str, ids: ToolIds | None = None) -> tuple[Message, ...]:
    """Return the messages of a cassette's request. ``ids`` learns the tool ids of the answers among them."""
    scene = scene_of(name)
    if scene != "result":
        return SCENES[scene]
    answer = read_answer(dialect, name.replace("result", "call"), ids)
    call = next(block for block in answer.content if isinstance(block, ToolUseBlock))
    result = Message(
        "01KE0000000000000000000003",
        SESSION,
        Role.TOOL,
        (ToolResultBlock(call.id, (TextBlock(README),)),),
        MessageMetadata(parent_tool_use_id=call.id),
        NOON,
    )
    return (*SCENES[scene], answer, result)


def make_request(dialect: str, name: str) -> Any:
    """Return the request on the wire of the dialect."""
    options = Options(max_output_tokens=64, temperature=0, stream=name.endswith(STREAMED))
    tools = (READ_FILE,) if scene_of(name) in WITH_TOOLS else ()
    ids = ToolIds()
    written = adapter(dialect, ids).to_wire(history(dialect, name, ids), tools, options)
    assert written.losses == ()
    return written.wire


# --- answers ---------------------------------------------------------------------------------------------------------

MODEL_NAME: Final = "tiny"
CAPABILITIES: Final = AdapterCapabilities(supports_thinking=True, max_context_tokens=1024, max_output_tokens=64)


def adapter(dialect: str, ids: ToolIds | None = None) -> Adapter:
    """Return an adapter of a provider with the name of its dialect."""
    model_id = f"{dialect}:{MODEL_NAME}"
    provider = Provider(key=dialect, title=dialect, dialect=dialect, quirks=("usage_when_asked",))
    return Adapter(provider, Model(id=model_id, provider=dialect, name=MODEL_NAME, capabilities=CAPABILITIES), ids)


def prices(dialect: str) -> PriceTable:
    """Return the same prices for every dialect: 3, 15 and (cached input) 0.3 dollars per million tokens."""
    rates = {"input_per_mtok_usd": 3, "output_per_mtok_usd": 15, "cached_read_per_mtok_usd": "0.3"}
    return prices_from_mapping({"pricing_version": "2026-01-01", "models": {f"{dialect}:{MODEL_NAME}": rates}})


def events_of(dialect: str, *pieces: bytes) -> list[StreamEvent]:
    """Read the events of a stream that is fed in pieces."""
    reader = adapter(dialect).dialect.stream_reader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return [*events, *reader.close()]


def reply_of(dialect: str, name: str) -> Reply:
    """Read the recorded answer with its dialect."""
    response = cassette(dialect, name).response
    if name.endswith(STREAMED):
        return fold(events_of(dialect, response.stream))
    reply: Reply = adapter(dialect).dialect.read_reply(response.body)
    return reply


def read_answer(dialect: str, name: str, ids: ToolIds | None = None) -> Message:
    """Read the recorded answer as a canonical message."""
    source = adapter(dialect, ids)
    reply = reply_of(dialect, name)
    routing = RoutingDecisionRecord(RoutingMode.MANUAL, source.model.id, "it is the one that was recorded")
    context = RequestContext(
        session_id=SESSION,
        message_id="01KE0000000000000000000002",
        created_at=NOON,
        routing=routing,
        usage=usage_of(dialect, reply),
    )
    return source.make_message(reply, context)


def usage_of(dialect: str, reply: Reply) -> Usage:
    """Return the usage of the answer and its cost."""
    assert reply.usage is not None
    return price_usage(prices(dialect), f"{dialect}:{MODEL_NAME}", reply.usage, NOON, latency_ms=0)


def golden(dialect: str) -> bytes:
    """Return the bytes of the dialect's golden file: a JSON object with one canonical message per line."""
    names = [name for name in cassette_names(dialect) if cassette(dialect, name).response.status < 400]
    lines = [f'"{name}": '.encode() + encode(read_answer(dialect, name)) for name in names]
    return b"{\n" + b",\n".join(lines) + b"\n}\n"
