"""The types of AG-UI's RunAgentInput for the OpenAPI document, from which generators make typed messages.

``run_input`` parses requests. It is stricter in some places (the parts of a message, the roles that a caller may send),
and also accepts older spellings. It accepts every message that these types allow, apart from that.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from dragoman.server.runs import run_input

Id = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_.:-]{1,128}$")]
Metadata = dict[str, Any]


class DataSource(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="data"):
    """The bytes of a file."""

    value: str  # base64
    mime_type: str


class UrlSource(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="url"):
    """A signed URL of one of the caller's files."""

    value: str
    mime_type: str | None = None


class FileSource(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="file"):
    """The location of one of the caller's files, as bucket/path."""

    value: str
    provider: Literal["dragoman"] = "dragoman"
    mime_type: str | None = None


Source = DataSource | UrlSource | FileSource


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    """A picture."""

    source: Source
    metadata: Metadata | None = None


class AudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="audio"):
    """A recording."""

    source: Source
    metadata: Metadata | None = None


class VideoPart(msgspec.Struct, frozen=True, tag_field="type", tag="video"):
    """A film."""

    source: Source
    metadata: Metadata | None = None


class DocumentPart(msgspec.Struct, frozen=True, tag_field="type", tag="document"):
    """A PDF or a text file."""

    source: Source
    metadata: Metadata | None = None


class BinaryPart(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="binary"):
    """A file of clients before protocol 1.0: one of url, data and id."""

    mime_type: str
    url: str | None = None
    data: str | None = None
    id: str | None = None
    filename: str | None = None


Part = TextPart | ImagePart | AudioPart | VideoPart | DocumentPart | BinaryPart


class FunctionCall(msgspec.Struct, frozen=True):
    """The called function. The arguments are JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A tool call."""

    id: Id
    function: FunctionCall


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """A user message."""

    id: Id
    content: str | list[Part]
    name: str | None = None
    metadata: Metadata | None = None


class AssistantMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="role", tag="assistant"):
    """A model answer and its tool calls."""

    id: Id
    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    name: str | None = None
    metadata: Metadata | None = None


class ToolMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="role", tag="tool"):
    """A tool result."""

    id: Id
    tool_call_id: Id
    content: str | list[Part]
    error: str | None = None
    metadata: Metadata | None = None


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """System instructions."""

    id: Id
    content: str
    name: str | None = None
    metadata: Metadata | None = None


class DeveloperMessage(msgspec.Struct, frozen=True, tag_field="role", tag="developer"):
    """System instructions, as newer clients name them."""

    id: Id
    content: str
    name: str | None = None
    metadata: Metadata | None = None


class ReasoningMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="role", tag="reasoning"):
    """Thinking of the model."""

    id: Id
    content: str
    encrypted_value: str | None = None
    metadata: Metadata | None = None


class ActivityMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="role", tag="activity"):
    """Shown by the client; the server ignores it."""

    id: Id
    content: dict[str, Any]
    activity_type: str
    metadata: Metadata | None = None


RunMessage = (
    UserMessage | AssistantMessage | ToolMessage | SystemMessage | DeveloperMessage | ReasoningMessage | ActivityMessage
)


class RunAgentInput(run_input.RunAgentInput, frozen=True, rename="camel"):
    """The input of a run. The conversation may be complete: messages that the thread has are skipped."""

    thread_id: Id
    run_id: Id
    messages: list[RunMessage]  # type: ignore[assignment]  # they are read one by one, see given
