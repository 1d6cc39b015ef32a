"""Tests of OpenTelemetry export: nesting, times, attribute names and redaction of spans."""

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
SECRET_TEXT = "my password=hunter2"


class MemoryExporter:
    """Stores finished spans in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = SpanExporter(provider, **options)

    def get_span(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return span


def start_turn(turn: Scope) -> None:
    turn.emit(
        TurnStarted(
            user_message_hash=HASH,
            user_message_text_redacted=SECRET_TEXT,
            estimated_input_tokens=9,
            has_images=False,
            has_tool_calls_in_history=False,
        )
    )


def emit_turn(turn: Scope) -> None:
    """Emit the events of a turn with two model calls and one tool call."""
    start_turn(turn)
    step = ChainEntry(policy="rule", verdict="chose", candidate_model="gemini:flash", reason="r", rule_name="short")
    turn.emit(RouteDecided(chosen_model="gemini:flash", winner_index=0, elapsed_ms=0.1, chain=(step,)))
    turn.emit(LlmCallStarted(model="gemini:flash", provider="gemini", estimated_input_tokens=9, request_id="r1"))
    turn.emit(create_call_end(StopReason.TOOL_USE))
    turn.emit(
        ToolCalled(
            tool_use_id="tu_1", tool_name="run", input_hash=HASH, input_size_bytes=2, side_effects=SideEffects.EXECUTE
        )
    )
    turn.emit(
        ToolCompleted(tool_use_id="tu_1", success=True, output_size_bytes=1, latency_ms=1, command_executed=SECRET_TEXT)
    )
    turn.emit(LlmCallStarted(model="gemini:pro", provider="gemini", estimated_input_tokens=9, request_id="r2"))
    turn.emit(create_call_end(StopReason.END_TURN, model="gemini:pro"))
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


def create_call_end(stop_reason: StopReason, model: str = "gemini:flash") -> LlmCallCompleted:
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
    memory = MemoryExporter(agent="scout")
    ticks = iter(range(1_000_000, 2_000_000, 1_000))
    async with Bus(strict=True, clock_us=ticks.__next__) as bus:
        memory.spans.listen(bus)
        emit_turn(bus.scope("sess_1", "turn_1"))
        await memory.spans.close()
    turn, call, tool = (
        memory.get_span("invoke_agent scout"),
        memory.get_span("chat flash"),
        memory.get_span("execute_tool run"),
    )
    assert turn.parent is None
    assert call.parent == tool.parent == memory.get_span("chat pro").parent == turn.context
    assert (turn.kind, call.kind, tool.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL)
    assert turn.start_time is not None
    assert turn.end_time is not None
    assert (turn.end_time - turn.start_time) == 8_000_000  # nanoseconds of eight events
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
    memory = MemoryExporter(agent="scout", content=True)
    async with Bus(strict=True) as bus:
        memory.spans.listen(bus)
        emit_turn(bus.scope("sess_1", "turn_1"))
        await memory.spans.close()
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    used = {name for span in memory.exporter.get_finished_spans() for name in span.attributes or {}}
    assert {name for name in used if not name.startswith("dragoman.")} <= known


@pytest.mark.parametrize("content", [False, True])
async def test_content_is_exported_only_on_request_and_redacted(content: bool) -> None:
    memory = MemoryExporter(content=content)
    async with Bus(strict=True) as bus:
        memory.spans.listen(bus)
        emit_turn(bus.scope("sess_1", "turn_1"))
        await memory.spans.close()
    exported = "".join(span.to_json() for span in memory.exporter.get_finished_spans())
    assert "hunter2" not in exported
    turn, tool = memory.get_span("invoke_agent"), memory.get_span("execute_tool run")
    assert turn.attributes is not None
    assert tool.attributes is not None
    if content:
        messages = json.loads(str(turn.attributes["gen_ai.input.messages"]))
        text = "my password=[redacted:password]"
        assert messages == [{"role": "user", "parts": [{"type": "text", "content": text}]}]
        assert tool.attributes["dragoman.tool.command"] == text
    else:
        assert "my password" not in exported


@pytest.mark.parametrize("content", [False, True])
async def test_failures_set_the_error_status(content: bool) -> None:
    memory = MemoryExporter(content=content)
    async with Bus(strict=True) as bus:
        memory.spans.listen(bus)
        turn = bus.scope("sess_1", "turn_1")
        start_turn(turn)
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
    call = memory.get_span("chat m")
    assert call.status.status_code is StatusCode.ERROR
    assert call.status.description == ("slow down" if content else None)


async def test_close_ends_open_spans_and_ignores_unknown_ones() -> None:
    memory = MemoryExporter()
    async with Bus(strict=True) as bus:
        bus.subscribe("early", lambda _: None)
        memory.spans.listen(bus)
        turn = bus.scope("sess_1", "turn_1")
        turn.emit(create_call_end(StopReason.END_TURN))
        turn.emit(TurnCancelled(reason="timeout", partial_llm_calls=0, partial_tool_calls=0))
        start_turn(turn)
        await memory.spans.close()
    assert [span.name for span in memory.exporter.get_finished_spans()] == ["invoke_agent"]


# --- OTLP over HTTP --------------------------------------------------------------------------------------------------


class Collector(http.server.ThreadingHTTPServer):
    """A collector that records the requests it receives."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append((self.path, dict(self.headers), body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_spans_reach_a_collector_over_http(collector: Collector) -> None:
    provider = otlp_provider(f"http://127.0.0.1:{collector.server_port}", headers={"x-team": "blue"})
    spans = SpanExporter(provider)
    async with Bus(strict=True) as bus:
        spans.listen(bus)
        emit_turn(bus.scope("sess_1", "turn_1"))
        await spans.close()
    received = ExportTraceServiceRequest()
    for path, headers, body in collector.requests:
        assert path == "/v1/traces"
        assert headers["x-team"] == "blue"
        received.MergeFromString(body)
    (resource,) = received.resource_spans
    assert [(a.key, a.value.string_value) for a in resource.resource.attributes if a.key == "service.name"] == [
        ("service.name", "dragoman")
    ]
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names == {"invoke_agent", "chat flash", "chat pro", "execute_tool run"}
