"""What a model is told of a picture that it cannot see, in one session: nothing, that it was there, or what it shows.

    described = await descriptions(agent, session, history)      what each picture shows, said by a model that can see
    await swap_to(store, session, model, policy, described)      the session goes on with another model, on these terms

The terms are kept with the session, so that every later turn holds to them, whoever runs it. The one rule: a picture
is described once, and what is stored of it stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from dragoman.adapter import RequestContext
from dragoman.catalog import Model
from dragoman.client import Call
from dragoman.errors import InputError, RemoteFaultError
from dragoman.exchange import Options
from dragoman.handoff import Describe, Medium, Policy
from dragoman.ids import ToolIds
from dragoman.message import ImageBlock, Message, MessageMetadata, Role, TextBlock, ToolResultBlock
from dragoman.turn.types import NO_TIME

if TYPE_CHECKING:
    from dragoman.store import Session, Store
    from dragoman.turn.agent import Agent

DESCRIPTIONS: Final = "descriptions"  # the keys in a session's metadata
POLICY: Final = "capability_policy"
_MAX_TOKENS: Final = 400
_ASK: Final = (
    "Describe this picture for somebody who cannot see it and will talk about it: what it shows, every text, number and"
    " name in it, and how its parts stand to each other. At most 150 words. Write only the description."
)


def image_policy(agent: Agent, session: Session) -> Policy:
    """What becomes of what the model cannot see: as the session was swapped, or else as the agent has it."""
    policy: Policy = session.metadata.get(POLICY, agent.capability_policy)
    return policy if policy in ("strict", "placeholder", "describe") else agent.capability_policy


def image_describer(agent: Agent, session: Session) -> Describe:
    """Who says what a picture shows: the agent's own way, or else what was found out when the session was swapped."""
    return agent.describe_image or describer_from(session.metadata.get(DESCRIPTIONS) or {})


def describer_from(descriptions: dict[str, str]) -> Describe:
    """Descriptions by the name of a picture; of one that has none, that it was there."""

    def describe(medium: Medium) -> str:
        kind = f"{medium.type} ({medium.media_type})"
        text = descriptions.get(media_key(medium))
        return f"[{kind}: {text}]" if text else f"[{kind}]"

    return describe


def media_key(medium: Medium) -> str:
    """The same for the same picture, wherever it stands."""
    return hashlib.sha256(f"{medium.media_type}\n{medium.source.data}".encode("utf-8", "replace")).hexdigest()[:32]


async def swap_model(
    store: Store, session: Session, model: str | None, policy: Policy, descriptions: dict[str, str] | None = None
) -> Session:
    """The session with another model, and what that is told of pictures from now on."""
    metadata = with_policy(session.metadata, policy, descriptions)
    if metadata == session.metadata:
        return await store.change_session(session.id, active_model=model)
    return await store.change_session(session.id, active_model=model, metadata=metadata)


def with_policy(metadata: dict[str, Any], policy: Policy, descriptions: dict[str, str] | None = None) -> dict[str, Any]:
    """The metadata of a session that goes on on these terms."""
    result = {key: value for key, value in metadata.items() if key != POLICY}
    if policy != "strict":
        result[POLICY] = policy
    if descriptions:
        result[DESCRIPTIONS] = {**(result.get(DESCRIPTIONS) or {}), **descriptions}
    return result


def images_without_text(session: Session, history: Iterable[Message]) -> dict[str, ImageBlock]:
    """The pictures of a history that nobody has described yet, by their names."""
    descriptions = session.metadata.get(DESCRIPTIONS) or {}
    images = {media_key(picture): picture for message in history for picture in _images(message.content)}
    return {name: picture for name, picture in images.items() if name not in descriptions}


def _images(content: Iterable[Any]) -> Iterable[ImageBlock]:
    for block in content:
        if isinstance(block, ImageBlock):
            yield block
        elif isinstance(block, ToolResultBlock):
            yield from _images(block.content)


async def describe_images(agent: Agent, session: Session, history: list[Message]) -> dict[str, str]:
    """What the pictures show that nobody has described yet, in the words of a model that can see them."""
    images = images_without_text(session, history)
    if not images:
        return {}
    model = _vision_model(agent, session, history)
    return {name: await _describe_image(agent, model, session, picture) for name, picture in images.items()}


def _vision_model(agent: Agent, session: Session, history: list[Message]) -> Model:
    """Who describes: the session's own model if it can see, one that has answered in it, or the first that can."""
    earlier_models = [message.metadata.model for message in reversed(history) if message.metadata.model]
    names = [session.active_model, *earlier_models, agent.default_model, *sorted(agent.registry.catalog.models)]
    for name in names:
        model = agent.registry.find(name) if name else None
        if model is not None and model.capabilities.supports_images and agent.registry.is_configured(model):
            return model
    raise InputError(
        "no model that can see is set up, so nobody can describe the pictures",
        remedy="Swap with policy 'placeholder', or set a provider up",
    )


async def _describe_image(agent: Agent, model: Model, session: Session, image: ImageBlock) -> str:
    adapter = agent.adapter(model, ToolIds())
    message = Message("", "", Role.USER, (image, TextBlock(_ASK)), MessageMetadata(), NO_TIME)
    call = Call(
        endpoint=await agent.endpoint(model.provider),
        adapter=adapter,
        wire=adapter.to_wire((message,), (), Options(max_output_tokens=_MAX_TOKENS)).wire,
        context=RequestContext(session_id=session.id, message_id=agent.store.new_id(), created_at=agent.clock()),
        timeouts=agent.timeouts,
        retries=agent.retries,
    )
    reply = await agent.client.send(call)
    if reply.fault is not None:
        raise RemoteFaultError(reply.fault)
    return " ".join(block.text for block in reply.content if isinstance(block, TextBlock)).strip()
