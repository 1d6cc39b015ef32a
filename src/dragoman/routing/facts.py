"""Facts about a turn before it starts: the message, the model that it names, the history and the requirements.

    collect_facts(history, content, …) -> TurnFacts
    read_override(content, registry, …) -> Override(model, content)      ``@sonnet what is this?``

An unknown fact is ``None`` and matches no rule. If the first text of a message starts with ``@``, a name and a space,
the name is removed and selects the model. A backslash before the ``@`` is removed and selects no model. Invariant: an
unknown name raises an error and is never sent to a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from dragoman.errors import InputError, UnknownModelError
from dragoman.exchange import ToolDefinition
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.routing.model_registry import Registry
from dragoman.routing.pattern import Fingerprint, make_fingerprint


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities that a turn requires. Only required capabilities are checked."""

    images: bool = False
    image_types: tuple[str, ...] = ()  # media types of these images
    audio: bool = False
    tools: bool = False
    system_prompt: bool = False
    structured_output: bool = False


class TurnFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A turn before it starts."""

    content: tuple[ContentBlock, ...]  # the user message, possibly with an @model
    now: datetime  # in the user's time zone, for rules about the time of day
    may_name_model: bool = (
        True  # whether a leading @ names a model; false for tasks written by a model, which choose a tier
    )
    override: str | None = None  # an explicit model for this turn; takes precedence over an @model
    sticky: str | None = None  # the model that /model set for the session
    delegate_tier: str | None = None  # of a delegated turn: fast, balanced or deep
    workspace_path: str = ""  # absolute
    estimated_input_tokens: int = 0
    least_input_tokens: int | None = None  # of the newest turn, if older turns may be left out
    may_omit_turns: bool = False  # set by ``decide`` if no candidate accepts the whole history
    has_images: bool = False  # in the message or the history
    has_tool_calls_in_history: bool = False
    needs: Requirements = Requirements()
    tool_names: tuple[str, ...] = ()  # called in the session
    side_effects: tuple[str, ...] = ()  # of those tools
    offered_side_effects: tuple[str, ...] = ()  # of the tools of this turn
    skills: tuple[str, ...] | None = None  # that match the message
    file_extensions: tuple[str, ...] | None = None  # of files in the context, with the dot
    cost_today_usd: Decimal | None = None  # cost since midnight in UTC
    team_budget_remaining_usd: Decimal | None = None

    @property
    def text(self) -> str:
        """The text of the user message."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def minimum_input_tokens(self) -> int:
        """The tokens that a model must accept."""
        if self.may_omit_turns and self.least_input_tokens is not None:
            return self.least_input_tokens
        return self.estimated_input_tokens

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of the turn, for the pattern slot and for its evaluation."""
        return make_fingerprint(
            self.text,
            estimated_input_tokens=self.estimated_input_tokens,
            has_images=self.has_images,
            tool_names=self.tool_names,
            side_effects=self.side_effects,
        )


def collect_facts(
    history: Iterable[Message],
    content: Iterable[ContentBlock],
    *,
    now: datetime,
    tools: Iterable[ToolDefinition] = (),
    output_schema: bool = False,
    shows_images: bool = True,
    **known: Any,
) -> TurnFacts:
    """Collect facts from a history and a new message. ``known`` are further fields of ``TurnFacts``.

    ``shows_images`` is false if images and audio are replaced with text for models that do not accept them.
    """
    blocks, messages, offered = tuple(content), tuple(history), tuple(tools)
    calls = [block for message in messages for block in message.content if isinstance(block, _CALLS)]
    tool_names = tuple(dict.fromkeys(call.name for call in calls))
    media = [block for content in (blocks, *(message.content for message in messages)) for block in _media(content)]
    image_types = tuple(dict.fromkeys(block.media_type for block in media if isinstance(block, ImageBlock)))
    has_images = bool(image_types)
    effects = {tool.name: str(tool.side_effects) for tool in offered}
    requirements = Requirements(
        images=has_images and shows_images,
        image_types=image_types if shows_images else (),
        audio=shows_images and any(isinstance(block, AudioBlock) for block in media),
        tools=bool(offered or calls),
        system_prompt=any(message.role is Role.SYSTEM and message.content for message in messages),
        structured_output=output_schema,
    )
    fields: dict[str, Any] = {
        "has_images": has_images,
        "has_tool_calls_in_history": bool(calls),
        "needs": requirements,
        "tool_names": tool_names,
        "offered_side_effects": tuple(dict.fromkeys(effects.values())),
        "side_effects": tuple(dict.fromkeys(effects[name] for name in tool_names if name in effects)),
        **known,
    }
    return TurnFacts(content=blocks, now=now, **fields)


_CALLS = (ToolUseBlock, InvalidToolUseBlock)


def _media(content: Iterable[ContentBlock]) -> Iterator[ImageBlock | AudioBlock]:
    """Yield the images and recordings of a message and of its results."""
    for block in content:
        if isinstance(block, ImageBlock | AudioBlock):
            yield block
        elif isinstance(block, ToolResultBlock):
            yield from _media(block.content)


# --- the model that a message names --------------------------------------------------------------------------------


class Override(msgspec.Struct, frozen=True):
    """The model that a message names, if any, and the message without the name."""

    model: str | None
    content: tuple[ContentBlock, ...]


def read_override(content: Iterable[ContentBlock], registry: Registry, explicit: str | None = None) -> Override:
    """Remove the ``@model`` from a message. ``explicit`` is a model for this turn and takes precedence."""
    blocks = tuple(content)
    chosen = _explicit_id(explicit, registry)
    for at, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            model, text = _read_text(block.text, registry, is_decided=chosen is not None, is_all=len(blocks) == 1)
            if text == block.text:
                return Override(chosen, blocks)
            rest = (block.replace(text=text),) if text else () if model else (block,)
            return Override(chosen or model, (*blocks[:at], *rest, *blocks[at + 1 :]))
    return Override(chosen, blocks)


def _read_text(text: str, registry: Registry, *, is_decided: bool, is_all: bool) -> tuple[str | None, str]:
    """Return the model that a text starts with, and the text without it."""
    if text.startswith("\\@"):
        return None, text[1:]
    name, body = _split(text)
    if not name or (is_decided and registry.find(name) is None):
        return None, text
    model = _model_id(name, registry)
    if is_all and not body:
        raise InputError(
            f"@{name} names a model, and the message has no other content",
            where="message",
            remedy=f"Write the message after it, or set the model with /model {name}",
            code="empty_override",
        )
    return model, body


def _split(text: str) -> tuple[str, str]:
    """Return the name after a leading @ and the rest; an empty name if there is none."""
    if not text.startswith("@") or not text[1:2].strip():
        return "", text
    name, *rest = text[1:].split(maxsplit=1)
    return name, rest[0] if rest else ""


def _explicit_id(name: str | None, registry: Registry) -> str | None:
    """Return the id of the model that the caller chose beside the message, or raise ``UnknownModelError``."""
    try:
        return None if name is None else registry.get(name).id
    except UnknownModelError as error:
        raise UnknownModelError(f"no model is called {name!r}", where="model", remedy=error.remedy) from None


def _model_id(name: str, registry: Registry) -> str:
    """Return the id of the model that a message names, or raise ``UnknownModelError``."""
    try:
        return registry.get(name).id
    except UnknownModelError as error:
        raise UnknownModelError(
            f"no model is called {name!r}",
            where="message",
            remedy=f"{error.remedy}; to send a message that starts with @, write \\@ instead",
        ) from None
