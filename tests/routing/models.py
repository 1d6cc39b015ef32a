"""Models and turns for the routing tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dragoman import catalog
from dragoman.message import ContentBlock, ImageBlock, ImageSource, TextBlock
from dragoman.routing import Policy, Registry, TurnFacts, collect_facts, read_policy

NOW = datetime(2026, 11, 15, 10, 30, tzinfo=UTC)
IMAGE = ImageBlock(ImageSource("base64", "aGk="), "image/png")
ROWS = """
[providers.acme]
title = "Acme"
dialect = "openai_chat"

[providers.bolt]
title = "Bolt"
dialect = "openai_chat"

[providers.ghost]
title = "Ghost"
dialect = "openai_chat"

[models."acme:big"]
aliases = ["big"]
supports_images = true
supports_structured_output = true
max_context_tokens = 100000

[models."acme:text"]
aliases = ["text"]
max_context_tokens = 1000

[models."acme:mute"]
aliases = ["mute"]
supports_images = true
supports_tools = false
supports_system_prompt = false
max_context_tokens = 100000

[models."bolt:quick"]
aliases = ["quick"]
supports_images = true
max_context_tokens = 50000

[models."bolt:deep"]
aliases = ["deep"]
supports_images = true
supports_thinking = true
supports_structured_output = true
max_context_tokens = 200000

[models."ghost:gone"]
aliases = ["gone"]
"""
CATALOG = catalog.Catalog(catalog.rows_from_toml(ROWS), "test")
REGISTRY = Registry(CATALOG, ["acme", "bolt"])


def turn(*parts: str | ContentBlock, **facts: Any) -> TurnFacts:
    """Return the facts of a turn with this message, in an empty session."""
    content = [TextBlock(part) if isinstance(part, str) else part for part in parts]
    return collect_facts((), content, **{"now": NOW, **facts})


def policy(document: Mapping[str, Any] | None = None, **keys: Any) -> Policy:
    """Return a policy with these keys."""
    return read_policy({"schema_version": 1, **(document or {}), **keys}, REGISTRY, home="/home/ada")
