"""Turns as spans of OpenTelemetry, by its conventions for generative AI (1.41, which are still in development).

    spans = Spans(otlp_provider("http://collector:4318"))      needs the extra "otel"
    spans.listen(bus)
    …
    await spans.close()

    invoke_agent              a turn
    ├── chat MODEL            a call of a model
    └── execute_tool NAME     a call of a tool

A span begins and ends at the times of its events, so listening late changes nothing but what was missed. Counts of
input tokens include those of caches, as the conventions want it. The one rule: of what was said nothing leaves, unless
``content`` asks for it; and then without secrets.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.bus.bus import Bus, Subscription
from dragoman.bus.catalogue import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RouteDecided,
    ToolCalled,
    ToolCompleted,
    ToolFailed,
    TurnCancelled,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from dragoman.bus.values import Event
from dragoman.errors import SettingsError
from dragoman.redaction import Redactor

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

_LISTENS_TO: Final = (
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
_MOST_OPEN: Final = 10_000
# How the conventions spell providers that our catalog spells otherwise.
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
    """What sends spans to a collector over HTTP. Without an endpoint, the variables of OpenTelemetry say where."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise _missing() from None
    where = None if endpoint is None else f"{endpoint.rstrip('/').removesuffix('/v1/traces')}/v1/traces"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "dragoman"}), shutdown_on_exit=False)
    sender = OTLPSpanExporter(endpoint=where, headers=None if headers is None else dict(headers))
    provider.add_span_processor(BatchSpanProcessor(sender))
    return provider


def _missing() -> SettingsError:
    return SettingsError(
        "OpenTelemetry needs packages that are not installed",
        remedy="Install dragoman[otel]",
        code="missing_package",
    )


class Spans:
    """Makes spans of events. ``agent`` names the agent whose turns they are."""

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
            raise _missing() from None
        self._trace = trace
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("dragoman")
        self._agent = agent
        self._has_content = content
        self._redactor = redactor or Redactor()
        self._open: OrderedDict[str, Span] = OrderedDict()  # by the id of the event that began it, or of its turn
        self._listening: tuple[Bus, Subscription] | None = None

    def listen(self, bus: Bus) -> None:
        """Make spans of what this bus says."""
        types = [payload.event_type for payload in _LISTENS_TO]
        self._listening = bus, bus.subscribe("otel", self.take, event_types=types, limit=_MOST_OPEN)

    async def close(self) -> None:
        """Take what waits, end what is open, and send everything."""
        if self._listening is not None:
            bus, subscription = self._listening
            await bus.unsubscribe(subscription)
        for span in reversed(self._open.values()):
            span.end()
        self._open.clear()
        await asyncio.to_thread(self._provider.shutdown)  # which waits until everything is sent

    def take(self, event: Event) -> None:
        """Begin, change or end a span."""
        match event.payload:
            case TurnStarted() as said:
                self._begin(
                    _turn_key(event), event, self._name("invoke_agent", self._agent), self._of_turn(event, said)
                )
            case RouteDecided() as said:
                self._tell(_turn_key(event), _of_route(said))
            case TurnCompleted() as said:
                self._end(_turn_key(event), event, _of_turn_end(said))
            case TurnCancelled() as said:
                self._end(_turn_key(event), event, {"dragoman.cancelled": said.reason}, error="cancelled")
            case TurnFailed() as said:
                error, message = said.error_class.value, said.error_message_redacted
                self._end(_turn_key(event), event, {}, error=error, message=message)
            case LlmCallStarted() as said:
                name = self._name("chat", _bare(said.model))
                self._begin(event.id, event, name, _of_call(event, said), is_client=True)
            case LlmCallCompleted() as said:
                self._end(event.parent_event_id, event, _of_answer(said))
            case LlmCallFailed() as said:
                error, message = said.error_class.value, said.error_message_redacted
                self._end(event.parent_event_id, event, {}, error=error, message=message)
            case ToolCalled() as said:
                self._begin(event.id, event, self._name("execute_tool", said.tool_name), _of_tool(event, said))
            case ToolCompleted() as said:
                failed = None if said.success else "tool_error"
                self._end(event.parent_event_id, event, self._of_result(said), error=failed)
            case ToolFailed() as said:
                self._end(event.parent_event_id, event, {}, error=said.error_class, message=said.error_message)

    def _name(self, operation: str, of: str | None) -> str:
        return f"{operation} {of}" if of else operation

    def _begin(self, key: str, event: Event, name: str, attributes: Attributes, *, is_client: bool = False) -> None:
        turn = self._open.get(_turn_key(event))
        context = self._trace.set_span_in_context(turn) if turn is not None else None
        kind = self._trace.SpanKind.CLIENT if is_client else self._trace.SpanKind.INTERNAL
        self._open[key] = self._tracer.start_span(
            name, context, kind, _without_none(attributes), start_time=event.timestamp_us * 1_000
        )
        if len(self._open) > _MOST_OPEN:  # whoever began it has forgotten it
            self._open.popitem(last=False)[1].end()

    def _tell(self, key: str, attributes: Attributes) -> None:
        if (span := self._open.get(key)) is not None:
            span.set_attributes(_without_none(attributes))

    def _end(
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
        span.set_attributes(_without_none(attributes))
        if error is not None:
            span.set_attribute("error.type", error)
            said = self._redactor.text(message) if message is not None and self._has_content else None
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, said))
        span.end(event.timestamp_us * 1_000)

    def _of_turn(self, event: Event, said: TurnStarted) -> Attributes:
        text = said.user_message_text_redacted
        parts = [{"role": "user", "parts": [{"type": "text", "content": text}]}]
        return {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": event.session_id,
            "gen_ai.agent.name": self._agent,
            "gen_ai.input.messages": self._json(parts) if text is not None and self._has_content else None,
            "dragoman.turn.id": event.turn_id,
        }

    def _of_result(self, said: ToolCompleted) -> Attributes:
        if not self._has_content:
            return {}
        return {
            "dragoman.tool.files_modified": said.files_modified,
            "dragoman.tool.command": None
            if said.command_executed is None
            else self._redactor.text(said.command_executed),
        }

    def _json(self, value: Any) -> str:
        return msgspec.json.encode(self._redactor.value(value)).decode()


def _turn_key(event: Event) -> str:
    return f"{event.session_id}/{event.turn_id}"


def _bare(model: str) -> str:
    """The model as its provider calls it."""
    return model.partition(":")[2] or model


def _provider(name: str) -> str:
    return _PROVIDERS.get(name, name)


def _of_route(said: RouteDecided) -> Attributes:
    provider, _, model = said.chosen_model.rpartition(":")
    chose = said.chain[said.winner_index] if 0 <= said.winner_index < len(said.chain) else None
    return {
        "gen_ai.request.model": model or None,
        "gen_ai.provider.name": _provider(provider) if provider else None,
        "dragoman.route.policy": chose.policy if chose is not None else None,
        "dragoman.route.rule": chose.rule_name if chose is not None else None,
    }


def _of_turn_end(said: TurnCompleted) -> Attributes:
    return {
        "gen_ai.response.finish_reasons": (said.stop_reason.value,),
        "gen_ai.usage.input_tokens": said.total_input_tokens,
        "gen_ai.usage.output_tokens": said.total_output_tokens,
        "dragoman.cost_usd": None if said.total_cost_usd is None else _number(said.total_cost_usd),
        "dragoman.unpriced_calls": said.unpriced_calls or None,
        "dragoman.llm_calls": said.llm_call_count,
        "dragoman.tool_calls": said.tool_call_count,
        "dragoman.user_id": said.user_id,
        "dragoman.team_id": said.team_id,
    }


def _of_call(event: Event, said: LlmCallStarted) -> Attributes:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _provider(said.provider),
        "gen_ai.request.model": _bare(said.model),
        "gen_ai.conversation.id": event.session_id,
        "dragoman.request_id": said.request_id,
        "dragoman.is_worker": said.is_worker or None,
    }


def _of_answer(said: LlmCallCompleted) -> Attributes:
    prompt = said.input_tokens + said.cached_input_tokens + said.cache_creation_input_tokens
    first = said.time_to_first_token_ms
    return {
        "gen_ai.response.model": said.response_model or _bare(said.model),
        "gen_ai.response.finish_reasons": (said.stop_reason.value,),
        "gen_ai.response.time_to_first_chunk": None if first is None else first / 1_000,
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": said.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": said.cached_input_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": said.cache_creation_input_tokens or None,
        "dragoman.cost_usd": None if said.cost_usd is None else _number(said.cost_usd),
        "dragoman.pricing_version": said.pricing_version,
        "dragoman.retries": said.retry_count or None,
    }


def _of_tool(event: Event, said: ToolCalled) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": said.tool_name,
        "gen_ai.tool.call.id": said.tool_use_id,
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": event.session_id,
        "dragoman.tool.side_effects": said.side_effects.value,
    }


def _number(amount: Decimal) -> float:
    return float(amount)


def _without_none(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
