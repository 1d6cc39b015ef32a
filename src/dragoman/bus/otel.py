"""Exports turns as OpenTelemetry spans, by the conventions for generative AI (1.41, status "development").

    exporter = SpanExporter(otlp_provider("http://collector:4318"))      needs the extra "otel"
    exporter.listen(bus)
    …
    await exporter.close()

    invoke_agent              a turn
    ├── chat MODEL            a model call
    └── execute_tool NAME     a tool call

A span starts and ends at the times of its events. Counts of input tokens include cached tokens, as the conventions
require. Message content is exported only with ``content=True``, and then redacted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.bus.bus import Bus, Subscription
from dragoman.bus.event_types.routing_events import RouteDecided
from dragoman.bus.event_types.tool_events import ToolCalled, ToolCompleted, ToolFailed
from dragoman.bus.event_types.turn_events import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    TurnCancelled,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from dragoman.bus.types import Event
from dragoman.errors import SettingsError
from dragoman.redaction import Redactor

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

_SPAN_EVENTS: Final = (
    TurnStarted,
    TurnCompleted,
    TurnCancelled,
    TurnFailed,
    LlmCallStarted,
    LlmCallCompleted,
    LlmCallFailed,
    ToolCalled,
    ToolCompleted,
    ToolFailed,
    RouteDecided,
)
_MAX_OPEN: Final = 10_000
# Provider names of the conventions that differ from those of the catalog.
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
Attributes = dict[str, Any]


def otlp_provider(endpoint: str | None = None, *, headers: Mapping[str, str] | None = None) -> TracerProvider:
    """Return a provider that sends spans over HTTP. Without an endpoint, the variables of OpenTelemetry apply."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise _missing_package_error() from None
    url = None if endpoint is None else f"{endpoint.rstrip('/').removesuffix('/v1/traces')}/v1/traces"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "dragoman"}), shutdown_on_exit=False)
    sender = OTLPSpanExporter(endpoint=url, headers=None if headers is None else dict(headers))
    provider.add_span_processor(BatchSpanProcessor(sender))
    return provider


def _missing_package_error() -> SettingsError:
    return SettingsError(
        "the packages of OpenTelemetry are not installed",
        remedy="Run pip install 'dragoman[otel]'",
        code="missing_package",
    )


class SpanExporter:
    """Converts events to spans. ``agent`` is the name of the agent."""

    def __init__(
        self,
        provider: TracerProvider,
        *,
        agent: str | None = None,
        content: bool = False,
        redactor: Redactor | None = None,
    ) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415
        except ImportError:
            raise _missing_package_error() from None
        self._trace = trace
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("dragoman")
        self._agent = agent
        self._has_content = content
        self._redactor = redactor or Redactor()
        self._open: OrderedDict[str, Span] = OrderedDict()  # by the id of the start event, or by turn
        self._source: tuple[Bus, Subscription] | None = None

    def listen(self, bus: Bus) -> None:
        """Subscribe to a bus."""
        types = [payload.event_type for payload in _SPAN_EVENTS]
        self._source = bus, bus.subscribe("otel", self.handle, event_types=types, limit=_MAX_OPEN)

    async def close(self) -> None:
        """Handle the queued events, end open spans and send everything."""
        if self._source is not None:
            bus, subscription = self._source
            await bus.unsubscribe(subscription)
        for span in reversed(self._open.values()):
            span.end()
        self._open.clear()
        await asyncio.to_thread(self._provider.shutdown)  # waits until everything is sent

    def handle(self, event: Event) -> None:
        """Start, change or end a span."""
        turn = _turn_key(event)
        match event.payload:
            case TurnStarted() as payload:
                self._start_span(
                    turn, event, _span_name("invoke_agent", self._agent), self._turn_attributes(event, payload)
                )
            case RouteDecided() as payload:
                self._set_attributes(turn, _route_attributes(payload))
            case TurnCompleted() as payload:
                self._end_span(turn, event, _turn_end_attributes(payload))
            case TurnCancelled() as payload:
                self._end_span(turn, event, {"dragoman.cancelled": payload.reason}, error="cancelled")
            case TurnFailed() as payload:
                error, message = payload.error_class.value, payload.error_message_redacted
                self._end_span(turn, event, {}, error=error, message=message)
            case LlmCallStarted() as payload:
                name = _span_name("chat", _model_name(payload.model))
                self._start_span(event.id, event, name, _call_attributes(event, payload), is_client=True)
            case LlmCallCompleted() as payload:
                self._end_span(event.parent_event_id, event, _answer_attributes(payload))
            case LlmCallFailed() as payload:
                error, message = payload.error_class.value, payload.error_message_redacted
                self._end_span(event.parent_event_id, event, {}, error=error, message=message)
            case ToolCalled() as payload:
                name = _span_name("execute_tool", payload.tool_name)
                self._start_span(event.id, event, name, _tool_attributes(event, payload))
            case ToolCompleted() as payload:
                failure = None if payload.success else "tool_error"
                self._end_span(event.parent_event_id, event, self._result_attributes(payload), error=failure)
            case ToolFailed() as payload:
                error, message = payload.error_class, payload.error_message
                self._end_span(event.parent_event_id, event, {}, error=error, message=message)

    def _start_span(
        self, key: str, event: Event, name: str, attributes: Attributes, *, is_client: bool = False
    ) -> None:
        turn = self._open.get(_turn_key(event))
        context = self._trace.set_span_in_context(turn) if turn is not None else None
        kind = self._trace.SpanKind.CLIENT if is_client else self._trace.SpanKind.INTERNAL
        self._open[key] = self._tracer.start_span(
            name, context, kind, _drop_none(attributes), start_time=event.timestamp_us * 1_000
        )
        if len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)[1].end()

    def _set_attributes(self, key: str, attributes: Attributes) -> None:
        if (span := self._open.get(key)) is not None:
            span.set_attributes(_drop_none(attributes))

    def _end_span(
        self,
        key: str | None,
        event: Event,
        attributes: Attributes,
        *,
        error: str | None = None,
        message: str | None = None,
    ) -> None:
        span = self._open.pop(key or "", None)
        if span is None:
            return
        span.set_attributes(_drop_none(attributes))
        if error is not None:
            span.set_attribute("error.type", error)
            description = self._redactor.text(message) if message is not None and self._has_content else None
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, description))
        span.end(event.timestamp_us * 1_000)

    def _turn_attributes(self, event: Event, payload: TurnStarted) -> Attributes:
        text = payload.user_message_text_redacted
        messages = [{"role": "user", "parts": [{"type": "text", "content": text}]}]
        return {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": event.session_id,
            "gen_ai.agent.name": self._agent,
            "gen_ai.input.messages": self._to_json(messages) if text is not None and self._has_content else None,
            "dragoman.turn.id": event.turn_id,
        }

    def _result_attributes(self, payload: ToolCompleted) -> Attributes:
        if not self._has_content:
            return {}
        command = payload.command_executed
        return {
            "dragoman.tool.files_modified": payload.files_modified,
            "dragoman.tool.command": None if command is None else self._redactor.text(command),
        }

    def _to_json(self, value: Any) -> str:
        return msgspec.json.encode(self._redactor.value(value)).decode()


def _span_name(operation: str, subject: str | None) -> str:
    return f"{operation} {subject}" if subject else operation


def _turn_key(event: Event) -> str:
    return f"{event.session_id}/{event.turn_id}"


def _model_name(model: str) -> str:
    """Return the model name without the provider."""
    return model.partition(":")[2] or model


def _route_attributes(payload: RouteDecided) -> Attributes:
    provider, _, model = payload.chosen_model.rpartition(":")
    winner = payload.chain[payload.winner_index] if 0 <= payload.winner_index < len(payload.chain) else None
    return {
        "gen_ai.request.model": model or None,
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider) or None,
        "dragoman.route.policy": winner.policy if winner is not None else None,
        "dragoman.route.rule": winner.rule_name if winner is not None else None,
    }


def _turn_end_attributes(payload: TurnCompleted) -> Attributes:
    return {
        "gen_ai.response.finish_reasons": (payload.stop_reason.value,),
        "gen_ai.usage.input_tokens": payload.total_input_tokens,
        "gen_ai.usage.output_tokens": payload.total_output_tokens,
        "dragoman.cost_usd": None if payload.total_cost_usd is None else float(payload.total_cost_usd),
        "dragoman.unpriced_calls": payload.unpriced_calls or None,
        "dragoman.llm_calls": payload.llm_call_count,
        "dragoman.tool_calls": payload.tool_call_count,
        "dragoman.user_id": payload.user_id,
        "dragoman.team_id": payload.team_id,
    }


def _call_attributes(event: Event, payload: LlmCallStarted) -> Attributes:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(payload.provider, payload.provider),
        "gen_ai.request.model": _model_name(payload.model),
        "gen_ai.conversation.id": event.session_id,
        "dragoman.request_id": payload.request_id,
        "dragoman.is_worker": payload.is_worker or None,
    }


def _answer_attributes(payload: LlmCallCompleted) -> Attributes:
    first_ms = payload.time_to_first_token_ms
    return {
        "gen_ai.response.model": payload.response_model or _model_name(payload.model),
        "gen_ai.response.finish_reasons": (payload.stop_reason.value,),
        "gen_ai.response.time_to_first_chunk": None if first_ms is None else first_ms / 1_000,
        "gen_ai.usage.input_tokens": payload.input_tokens
        + payload.cached_input_tokens
        + payload.cache_creation_input_tokens,
        "gen_ai.usage.output_tokens": payload.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": payload.cached_input_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": payload.cache_creation_input_tokens or None,
        "dragoman.cost_usd": None if payload.cost_usd is None else float(payload.cost_usd),
        "dragoman.pricing_version": payload.pricing_version,
        "dragoman.retries": payload.retry_count or None,
    }


def _tool_attributes(event: Event, payload: ToolCalled) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": payload.tool_name,
        "gen_ai.tool.call.id": payload.tool_use_id,
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": event.session_id,
        "dragoman.tool.side_effects": payload.side_effects.value,
    }


def _drop_none(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
