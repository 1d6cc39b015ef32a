"""Gates: whether a model can answer a turn.

    validation_failure(name, facts, registry, availability, allowed) -> the name of the first failed gate, or None

Gates are checked in a fixed order, and only if the turn requires the capability. Thinking is never a gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from dragoman.routing.availability import Availability
from dragoman.routing.facts import TurnFacts
from dragoman.routing.model_registry import Registry

if TYPE_CHECKING:
    from dragoman.catalog import AdapterCapabilities, Model

# In the order of the checks; the text follows "Cannot use <model>: ".
FAILURES: Final = {
    "not_configured": "no such model is set up here, or its provider has no key",
    "provider_unavailable": "its provider is failing at the moment",
    "no_vision_support": "session contains images that this model can't process",
    "exceeds_context_window": "the conversation is longer than this model takes",
    "no_tool_support": "session uses tools, and this model calls none",
    "no_system_prompt_support": "session has a system prompt, and this model takes none",
    "no_structured_output_support": "the answer has to fit a schema, and this model promises none",
    "no_audio_support": "session contains audio that this model can't process",
    "side_effects_not_allowed": "the policy lets only other models use tools with these side effects",
}


def validation_failure(
    name: str,
    facts: TurnFacts,
    registry: Registry,
    availability: Availability,
    allowed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str | None:
    """Return the first gate that the model fails, or ``None``.

    ``allowed`` are the only models that may use tools with a side effect, by side effect.
    """
    model = registry.find(name)
    if model is None or not registry.is_configured(model):
        return "not_configured"
    if not availability.is_available(model.provider, model.id, facts.now):
        return "provider_unavailable"
    return _missing_capability(model, facts) or _forbidden_effect(model, facts, allowed)


def _forbidden_effect(model: Model, facts: TurnFacts, allowed: Mapping[str, Sequence[str]]) -> str | None:
    is_forbidden = any(model.id not in allowed.get(effect, (model.id,)) for effect in facts.offered_side_effects)
    return "side_effects_not_allowed" if is_forbidden else None


def _missing_capability(model: Model, facts: TurnFacts) -> str | None:
    can, needs = model.capabilities, facts.needs
    gates = (
        (needs.images and not _takes_images(can, needs.image_types), "no_vision_support"),
        (facts.estimated_input_tokens > can.max_context_tokens, "exceeds_context_window"),
        (needs.tools and not can.supports_tools, "no_tool_support"),
        (needs.system_prompt and not can.supports_system_prompt, "no_system_prompt_support"),
        (needs.structured_output and not can.supports_structured_output, "no_structured_output_support"),
        (needs.audio and not can.supports_audio, "no_audio_support"),
    )
    return next((name for fails, name in gates if fails), None)


def _takes_images(can: AdapterCapabilities, types: tuple[str, ...]) -> bool:
    accepted = can.accepted_image_media_types
    return can.supports_images and (not accepted or set(types) <= {*accepted, "image/*"})
