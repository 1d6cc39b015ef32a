"""The settings of one session: its system prompt, temperature, effort and tools.

    settings = settings_of(session)
    settings.options()                        for the options of a call
    settings.filter_tools(registry)           the tools without those that are switched off
    with_settings(session.metadata, settings) the metadata of a session with other settings

They are part of the session's metadata, so a fork has them as well. They apply to every turn of the session, after the
agent's own prompt and options, and before those of one request.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from dragoman.exchange import Reasoning
from dragoman.store import Session
from dragoman.tools import ToolRegistry

_KEY: Final = "settings"
ToolName = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Effort = Literal["none", "minimal", "low", "medium", "high"]


class SessionSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """The settings of a session. ``None``: as the server and the provider have it."""

    system_prompt: Annotated[str, msgspec.Meta(max_length=100_000, pattern="^[^\\x00]*$")] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    effort: Effort | None = None  # of reasoning
    disabled_tools: Annotated[tuple[ToolName, ...], msgspec.Meta(max_length=1_000)] = ()

    def options(self) -> dict[str, Any]:
        """The fields of ``Options`` that are set."""
        fields: dict[str, Any] = {}
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.effort == "none":
            fields["reasoning"] = Reasoning(enabled=False)
        elif self.effort is not None:
            fields["reasoning"] = Reasoning(effort=self.effort)
        return fields

    def filter_tools(self, tools: ToolRegistry) -> ToolRegistry:
        """The tools that are not switched off."""
        if not self.disabled_tools:
            return tools
        return ToolRegistry(tool for tool in tools if tool.name not in self.disabled_tools)


_NONE: Final = SessionSettings()


def settings_of(session: Session | None) -> SessionSettings:
    """The settings of a session. Values that are not valid are ignored: any program can write metadata."""
    stored = session.metadata.get(_KEY) if session is not None else None
    if not stored:
        return _NONE
    try:
        return msgspec.convert(stored, SessionSettings)
    except msgspec.ValidationError:
        return _NONE


def with_settings(metadata: dict[str, Any], settings: SessionSettings) -> dict[str, Any]:
    """The metadata of a session with these settings."""
    result = {key: value for key, value in metadata.items() if key != _KEY}
    fields = msgspec.to_builtins(settings)
    return {**result, _KEY: fields} if fields else result
