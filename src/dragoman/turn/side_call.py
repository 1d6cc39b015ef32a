"""One call of a model beside a conversation: a prompt, and the text of the answer. Nothing is stored."""

from __future__ import annotations

from dragoman.adapter import RequestContext
from dragoman.catalog import Model
from dragoman.client import Call
from dragoman.errors import RemoteFaultError
from dragoman.exchange import Options
from dragoman.ids import ToolIds
from dragoman.message import NO_TIME, Message, MessageMetadata, Role, TextBlock
from dragoman.turn.config import AgentConfig
from dragoman.turn.services import AgentServices


async def complete_text(
    services: AgentServices, config: AgentConfig, model: Model, prompt: str, *, max_tokens: int
) -> str:
    """The answer of a model to a prompt. A failed call raises ``RemoteFaultError``."""
    adapter = services.adapter(model, ToolIds())
    message = Message("", "", Role.USER, (TextBlock(prompt),), MessageMetadata(), NO_TIME)
    call = Call(
        endpoint=await services.endpoint(model.provider),
        adapter=adapter,
        wire=adapter.to_wire((message,), (), Options(max_output_tokens=max_tokens)).wire,
        context=RequestContext(session_id="", message_id=services.store.new_id(), created_at=services.clock()),
        timeouts=config.timeouts,
        retries=config.retries,
    )
    reply = await services.client.send(call)
    if reply.fault is not None:
        raise RemoteFaultError(reply.fault)
    return " ".join(block.text for block in reply.content if isinstance(block, TextBlock)).strip()
