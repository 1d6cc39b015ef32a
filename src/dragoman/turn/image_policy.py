"""Images for a model without vision: reject the turn, replace the image by a note, or by a description.

    descriptions = await describe_images(services, config, session, history)    by a model with vision
    await swap_model(store, session, model, policy, descriptions)               continue with another model

The policy and the descriptions are stored with the session, so that every later turn applies them. Invariant: an image
is described once, and stored messages do not change.
"""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dragoman.catalog import Model
from dragoman.errors import InputError, ToolFailedError
from dragoman.handoff import Describe, Policy
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    MediaBlock,
    Message,
    TextBlock,
    ToolResultBlock,
)
from dragoman.store import Session, Store
from dragoman.tools import Workspace
from dragoman.turn.config import AgentConfig
from dragoman.turn.services import AgentServices
from dragoman.turn.side_call import complete_text

DESCRIPTIONS: Final = "descriptions"  # keys in the metadata of a session
POLICY: Final = "capability_policy"
_MAX_TOKENS: Final = 400
_MAX_FILE_BYTES: Final = 20 * 1024 * 1024  # of an image of the workspace
_PROMPT: Final = (
    "Describe this picture for somebody who cannot see it and will talk about it: what it shows, every text, number and"
    " name in it, and how its parts stand to each other. At most 150 words. Write only the description."
)


def image_policy(config: AgentConfig, session: Session) -> Policy:
    """The policy of the session, or else of the agent."""
    policy: Policy = session.metadata.get(POLICY, config.capability_policy)
    return policy if policy in ("strict", "placeholder", "describe") else config.capability_policy


def image_describer(config: AgentConfig, session: Session) -> Describe:
    """The agent's own describer, or else the stored descriptions of the session."""
    return config.describe_image or describer_from(session.metadata.get(DESCRIPTIONS) or {})


def describer_from(descriptions: dict[str, str]) -> Describe:
    """A describer that looks up descriptions by media key, with a placeholder for other media."""

    def describe(medium: MediaBlock) -> str:
        kind = f"{medium.type} ({medium.media_type})"
        text = descriptions.get(media_key(medium))
        return f"[{kind}: {text}]" if text else f"[{kind}]"

    return describe


def media_key(medium: MediaBlock) -> str:
    """A key that is equal for equal media."""
    return hashlib.sha256(f"{medium.media_type}\n{medium.source.data}".encode("utf-8", "replace")).hexdigest()[:32]


async def swap_model(
    store: Store, session: Session, model: str | None, policy: Policy, descriptions: dict[str, str] | None = None
) -> Session:
    """Set the active model of a session, with its image policy."""
    metadata = with_policy(session.metadata, policy, descriptions)
    if metadata == session.metadata:
        return await store.change_session(session.id, active_model=model)
    return await store.change_session(session.id, active_model=model, metadata=metadata)


def with_policy(metadata: dict[str, Any], policy: Policy, descriptions: dict[str, str] | None = None) -> dict[str, Any]:
    """The metadata of a session with an image policy."""
    result = {key: value for key, value in metadata.items() if key != POLICY}
    if policy != "strict":
        result[POLICY] = policy
    if descriptions:
        result[DESCRIPTIONS] = {**(result.get(DESCRIPTIONS) or {}), **descriptions}
    return result


def images_without_text(session: Session, history: Iterable[Message]) -> dict[str, ImageBlock]:
    """The images of a history that have no description, by media key."""
    descriptions = session.metadata.get(DESCRIPTIONS) or {}
    images = {media_key(image): image for message in history for image in _images(message.content)}
    return {key: image for key, image in images.items() if key not in descriptions}


def _images(content: Iterable[Any]) -> Iterable[ImageBlock]:
    for block in content:
        if isinstance(block, ImageBlock):
            yield block
        elif isinstance(block, ToolResultBlock):
            yield from _images(block.content)


async def describe_images(
    services: AgentServices, config: AgentConfig, session: Session, history: list[Message]
) -> dict[str, str]:
    """Descriptions of the images that have none, by a model with vision."""
    images = images_without_text(session, history)
    if not images:
        return {}
    model = _vision_model(services, session, history)
    prompt = TextBlock(_PROMPT)
    return {
        key: await complete_text(services, config, session, model, image, prompt, max_tokens=_MAX_TOKENS)
        for key, image in images.items()
    }


def _vision_model(services: AgentServices, session: Session, history: list[Message]) -> Model:
    """The active model if it has vision, else one that answered in the session, else any."""
    earlier_models = [message.metadata.model for message in reversed(history) if message.metadata.model]
    registry = services.registry
    for name in [session.active_model, *earlier_models, services.default_model, *sorted(registry.catalog.models)]:
        model = registry.find(name) if name else None
        if model is not None and model.capabilities.supports_images and registry.is_configured(model):
            return model
    raise InputError(
        "no model with vision is configured to describe the images",
        remedy="Swap with policy 'placeholder', or configure a provider",
    )


def load_workspace_images(messages: tuple[Message, ...], workspace: Workspace) -> tuple[Message, ...]:
    """The messages with the bytes of images that name a file of the workspace.

    An image that cannot be read stays a reference, which the dialect reports as a loss.
    """
    if not any(image.source.kind == "file_ref" for message in messages for image in _images(message.content)):
        return messages
    return tuple(message.replace(content=_load_images(message.content, workspace)) for message in messages)


def _load_images(content: Iterable[ContentBlock], workspace: Workspace) -> tuple[ContentBlock, ...]:
    blocks: list[ContentBlock] = []
    for block in content:
        match block:
            case ImageBlock(source=ImageSource(kind="file_ref", data=path)):
                blocks.append(_load_image(block, path, workspace))
            case ToolResultBlock(content=inner):
                blocks.append(block.replace(content=_load_images(inner, workspace)))
            case _:
                blocks.append(block)
    return tuple(blocks)


def _load_image(block: ImageBlock, path: str, workspace: Workspace) -> ImageBlock:
    try:
        data, size = workspace.read(path, _MAX_FILE_BYTES)
    except (OSError, ToolFailedError):
        return block
    if size > _MAX_FILE_BYTES:
        return block
    return block.replace(source=ImageSource("base64", base64.b64encode(data).decode()))


def image_from_file(path: Path | str) -> ImageBlock:
    """The image of a file."""
    path = Path(path)
    media_type = mimetypes.guess_type(path.name)[0] or ""
    if not media_type.startswith("image/"):
        raise InputError("not an image file", where=str(path), remedy="Name a .png, .jpg, .gif or .webp file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the file ({error.strerror})", where=str(path)) from None
    return ImageBlock(ImageSource("base64", base64.b64encode(data).decode()), media_type)
