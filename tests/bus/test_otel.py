"""Turns become spans: nested, timed by their events, named by the conventions, and silent about what was said."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from dragoman.bus import Bus, Scope
from dragoman.bus.event_types.routing_events import RouteDecided
from dragoman.bus.event_types.tool_events import ToolCalled, ToolCompleted, ToolFailed
from dragoman.bus.event_types.turn_events import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    TurnCancelled,
    TurnCompleted,
    TurnStarted,
)
from dragoman.bus.otel import SpanExporter, otlp_provider
from dragoman.exchange import ErrorClass, SideEffects, StopReason
from dragoman.routing import ChainEntry

HASH = "0" * 64
SAID = "my password=hunter2"


class Memory:
    """Spans that are kept in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = SpanExporter(provider, **options)

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return found


def begin(turn: Scope) -> None:
    turn.emit(
        TurnStarted(
            user_message_hash=HASH,
            user_message_text_redacted=SAID,
            estimated_input_tokens=9,
            has_images=False,
            has_tool_calls_in_history=False,
        )
    )


def play(turn: Scope) -> None:
    """A turn with two calls of a model and one of a tool."""
    begin(turn)
    step = ChainEntry(policy="rule", verdict="chose", candidate_model="gemini:flash", reason="r", rule_name="short")
    turn.emit(RouteDecided(chosen_model="gemini:flash", winner_index=0, elapsed_ms=0.1, chain=(step,)))
    turn.emit(LlmCallStarted(model="gemini:flash", provider="gemini", estimated_input_tokens=9, request_id="r1"))
    turn.emit(answer(StopReason.TOOL_USE))
    turn.emit(
        ToolCalled(
            tool_use_id="tu_1", tool_name="run", input_hash=HASH, input_size_bytes=2, side_effects=SideEffects.EXECUTE
        )
    )
    turn.emit(ToolCompleted(tool_use_id="tu_1", success=True, output_size_bytes=1, latency_ms=1, command_executed=SAID))
    turn.emit(LlmCallStarted(model="gemini:pro", provider="gemini", estimated_input_tokens=9, request_id="r2"))
    turn.emit(answer(StopReason.END_TURN, model="gemini:pro"))
    turn.emit(
        TurnCompleted(
            stop_reason=StopReason.END_TURN,
            llm_call_count=2,
            tool_call_count=1,
            total_input_tokens=206,
            total_output_tokens=40,
            total_cost_usd=Decimal("0.0026"),
            wall_time_seconds=1,
            user_id="usr_1",
        )
    )


def answer(stop_reason: StopReason, model: str = "gemini:flash") -> LlmCallCompleted:
    return LlmCallCompleted(
        model=model,
        provider="gemini",
        input_tokens=100,
        cached_input_tokens=2,
        cache_creation_input_tokens=1,
        output_tokens=20,
        cost_usd=Decimal("0.0013"),
        pricing_version="v1",
        latency_ms=12,
        time_to_first_token_ms=250,
        stop_reason=stop_reason,
    )


async def test_turn_is_a_span_that_contains_its_calls() -> None:
    memory = Memory(agent="scout")
    ticks = iter(range(1_000_000, 2_000_000, 1_000))
    async with Bus(strict=True, clock_us=ticks.__next__) as bus:
        memory.spans.listen(bus)
        play(bus.scope("sess_1", "turn_1"))
        await memory.spans.close()
    turn, call, tool = memory.named("invoke_agent scout"), memory.named("chat flash"), memory.named("execute_tool run")
    assert turn.parent is None
    assert call.parent == tool.parent == memory.named("chat pro").parent == turn.context
    assert (turn.kind, call.kind, tool.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL)
    assert turn.start_time is not None
    assert turn.end_time is not None
    assert (turn.end_time - turn.start_time) == 8_000_000  # nanoseconds: eight events later
    assert call.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "flash",
        "gen_ai.response.model": "flash",
        "gen_ai.conversation.id": "sess_1",
        "gen_ai.response.finish_reasons": ("tool_use",),
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 103,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.cache_creation.input_tokens": 1,
        "dragoman.request_id": "r1",
        "dragoman.cost_usd": 0.0013,
        "dragoman.pricing_version": "v1",
    }
    assert turn.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "scout",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "flash",
        "gen_ai.conversation.id": "sess_1",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": 206,
        "gen_ai.usage.output_tokens": 40,
        "dragoman.turn.id": "turn_1",
        "dragoman.route.policy": "rule",
        "dragoman.route.rule": "short",
        "dragoman.cost_usd": 0.0026,
        "dragoman.llm_calls": 2,
        "dragoman.tool_calls": 1,
        "dragoman.user_id": "usr_1",
    }
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "run",
        "gen_ai.tool.call.id": "tu_1",
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": "sess_1",
        "dragoman.tool.side_effects": "execute",
    }


async def test_attribute_names_follow_the_conventions() -> None:
    memory = Memory(agent="scout", content=True)
    async with Bus(strict=True) as bus:
        memory.spans.listen(bus)
        play(bus.scope("sess_1", "turn_1"))
        await memory.spans.close()
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    used = {name for span in memory.exporter.get_finished_spans() for name in span.attributes or {}}
    assert {name for name in used if not name.startswith("dragoman.")} <= known


@pytest.mark.parametrize("content", [False, True])
async def test_content_is_exported_only_on_request_and_redacted(content: bool) -> None:
    memory = Memory(content=content)
    async with Bus(strict=True) as bus:
        memory.spans.listen(bus)
        play(bus.scope("sess_1", "turn_1"))
        await memory.spans.close()
    everything = "".join(span.to_json() for span in memory.exporter.get_finished_spans())
    assert "hunter2" not in everything
    turn, tool = memory.named("invoke_agent"), memory.named("execute_tool run")
    assert turn.attributes is not None
    assert tool.attributes is not None
    if content:
        messages = json.loads(str(turn.attributes["gen_ai.input.messages"]))
        text = "my password=[redacted:password]"
        assert messages == [{"role": "user", "parts": [{"type": "text", "content": text}]}]
        assert tool.attributes["dragoman.tool.command"] == text
    else:
        assert "my password" not in everything


@pytest.mark.parametrize("content", [False, True])
async def test_failures_set_the_error_status(content: bool) -> None:
    memory = Memory(content=content)
    async with Bus(strict=True) as bus:
        memory.spans.listen(bus)
        turn = bus.scope("sess_1", "turn_1")
        begin(turn)
        turn.emit(LlmCallStarted(model="m", provider="p", estimated_input_tokens=1, request_id="r"))
        turn.emit(
            LlmCallFailed(
                model="m",
                provider="p",
                error_class=ErrorClass.RATE_LIMIT,
                error_message_redacted="slow down",
                retry_count=2,
                latency_ms=5,
            )
        )
        turn.emit(
            ToolCalled(
                tool_use_id="tu_1", tool_name="t", input_hash=HASH, input_size_bytes=2, side_effects=SideEffects.NONE
            )
        )
        turn.emit(ToolFailed(tool_use_id="tu_1", error_class="timeout", error_message="too long", latency_ms=5))
        turn.emit(TurnCancelled(reason="timeout", partial_llm_calls=0, partial_tool_calls=0))
        await memory.spans.close()
    errors = {span.name: (span.attributes or {}).get("error.type") for span in memory.exporter.get_finished_spans()}
    assert errors == {"chat m": "rate_limit", "execute_tool t": "timeout", "invoke_agent": "cancelled"}
    call = memory.named("chat m")
    assert call.status.status_code is StatusCode.ERROR
    assert call.status.description == ("slow down" if content else None)


async def test_close_ends_open_spans_and_ignores_unknown_ones() -> None:
    memory = Memory()
    async with Bus(strict=True) as bus:
        bus.subscribe("early", lambda _: None)
        memory.spans.listen(bus)
        turn = bus.scope("sess_1", "turn_1")
        turn.emit(answer(StopReason.END_TURN))
        turn.emit(TurnCancelled(reason="timeout", partial_llm_calls=0, partial_tool_calls=0))
        begin(turn)
        await memory.spans.close()
    assert [span.name for span in memory.exporter.get_finished_spans()] == ["invoke_agent"]


# --- over the wire ---------------------------------------------------------------------------------------------------


class Sink(http.server.ThreadingHTTPServer):
    """A collector that remembers what it was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        sink = self

        class Taker(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.requests.append((self.path, dict(self.headers), body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Taker)


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


async def test_spans_reach_a_collector_over_http(sink: Sink) -> None:
    provider = otlp_provider(f"http://127.0.0.1:{sink.server_port}", headers={"x-team": "blue"})
    spans = SpanExporter(provider)
    async with Bus(strict=True) as bus:
        spans.listen(bus)
        play(bus.scope("sess_1", "turn_1"))
        await spans.close()
    sent = ExportTraceServiceRequest()
    for path, headers, body in sink.requests:
        assert path == "/v1/traces"
        assert headers["x-team"] == "blue"
        sent.MergeFromString(body)
    (resource,) = sent.resource_spans
    assert [(a.key, a.value.string_value) for a in resource.resource.attributes if a.key == "service.name"] == [
        ("service.name", "dragoman")
    ]
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names == {"invoke_agent", "chat flash", "chat pro", "execute_tool run"}
