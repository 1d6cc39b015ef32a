"""The model that a message names: ``@sonnet what is this?``

    read_override(content, registry, …) -> Override(model, content)

If the first text of a message starts with ``@``, a name and a space, the name is removed and selects the model. A
backslash before the ``@`` is removed and selects no model. Invariant: an unknown name raises an error and is never sent
to a model.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dragoman.errors import InputError, UnknownModelError
from dragoman.message import ContentBlock, TextBlock
from dragoman.routing.model_registry import Registry


class Override(msgspec.Struct, frozen=True):
    """The model that a message names, if any, and the message without the name."""

    model: str | None
    content: tuple[ContentBlock, ...]


def read_override(content: Iterable[ContentBlock], registry: Registry, explicit: str | None = None) -> Override:
    """Remove the ``@model`` from a message. ``explicit`` is a model for this turn and takes precedence."""
    blocks = tuple(content)
    chosen = _model_id(explicit, registry)
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
            f"@{name} says which model is meant, and nothing else",
            where="message",
            remedy=f"Write the message behind it, or keep to the model with /model {name}",
            code="empty_override",
        )
    return model, body


def _split(text: str) -> tuple[str, str]:
    """Return the name after a leading @ and the rest; an empty name if there is none."""
    if not text.startswith("@") or not text[1:2].strip():
        return "", text
    name, *rest = text[1:].split(maxsplit=1)
    return name, rest[0] if rest else ""


def _model_id(name: str | None, registry: Registry) -> str | None:
    """Return the id of the model with that name, or raise ``UnknownModelError``."""
    if name is None:
        return None
    model = registry.find(name)
    if model is None:
        raise UnknownModelError(
            f"no model is called {name!r}",
            where="message",
            remedy="Run dragoman models for the names; to send a message that starts with @, write \\@ instead",
        )
    return model.id
