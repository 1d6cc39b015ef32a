"""One call of a model beside a conversation: a prompt, and the text of the answer.

The text is not stored. The call is priced, counted in ``store.costs`` for the user of the session, and emitted on the
bus like a call of a turn.
"""

from __future__ import annotations

from dragoman import tokens
from dragoman.adapter import RequestContext
from dragoman.bus import Payload
from dragoman.bus.event_types import turn_events
from dragoman.catalog import Model
from dragoman.client import Call, CallLog
from dragoman.errors import RemoteFaultError
from dragoman.exchange import Fault, Options, Reply
from dragoman.ids import ToolIds
from dragoman.message import NO_TIME, ContentBlock, Message, MessageMetadata, Role, TextBlock, TokenUsage
from dragoman.store import Session
from dragoman.turn.config import AgentConfig
from dragoman.turn.events import completion_event, failure_event
from dragoman.turn.services import AgentServices


async def complete_text(
    services: AgentServices,
    config: AgentConfig,
    session: Session,
    model: Model,
    *prompt: ContentBlock,
    max_tokens: int,
) -> str:
    """The answer of a model to a prompt. A failed call raises ``RemoteFaultError``."""
    adapter = services.adapter(model, ToolIds())
    message = Message("", "", Role.USER, prompt, MessageMetadata(), NO_TIME)
    record = _CallRecord(services, session, model, tokens.estimate((message,), (), model.id))
    call = Call(
        endpoint=await services.endpoint(model.provider),
        adapter=adapter,
        wire=adapter.to_wire((message,), (), Options(max_output_tokens=max_tokens)).wire,
        context=RequestContext(session_id=session.id, message_id=record.request_id, created_at=services.clock()),
        timeouts=config.timeouts,
        retries=config.retries,
    )
    record.emit_start()
    reply = await services.client.send(call, record.call_log)
    if reply.fault is not None:
        record.emit_failure(reply.fault)
        raise RemoteFaultError(reply.fault)
    await record.count(reply)
    return " ".join(block.text for block in reply.content if isinstance(block, TextBlock)).strip()


class _CallRecord:
    """The events and the cost of one call."""

    def __init__(self, services: AgentServices, session: Session, model: Model, input_tokens: int) -> None:
        self.request_id = services.store.new_id()
        self.call_log = CallLog()
        self._services = services
        self._session = session
        self._model = model
        self._input_tokens = input_tokens  # estimate

    def emit_start(self) -> None:
        self._emit(
            turn_events.LlmCallStarted(
                model=self._model.id,
                provider=self._model.provider,
                request_id=self.request_id,
                estimated_input_tokens=self._input_tokens,
            )
        )

    def emit_failure(self, fault: Fault) -> None:
        self._emit(failure_event(self._model, self.request_id, fault, self.call_log))

    async def count(self, reply: Reply) -> None:
        """Price the call, add it to the totals, and emit its end."""
        services, session, model = self._services, self._session, self._model
        counts = reply.usage
        if counts is None or counts.estimated:
            output_tokens = tokens.estimate_content(reply.content, model.id)
            counts = TokenUsage(input_tokens=self._input_tokens, output_tokens=output_tokens, estimated=True)
        usage = services.price_usage(model, counts, services.clock(), self.call_log.latency_ms or 0)
        await services.store.costs.add_call(
            usage, model=model.id, provider=model.provider, user_id=session.user_id, team_id=session.team_id
        )
        self._emit(completion_event(model, self.request_id, reply, usage, self.call_log, owner=session))

    def _emit(self, event: Payload) -> None:
        self._services.bus.try_emit(event, session_id=self._session.id)
