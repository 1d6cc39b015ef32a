"""The types of AG-UI's RunAgentInput, for the OpenAPI document: generators make typed messages from them.

A request is read by ``given``, which is stricter in some places (the parts of a message, who may send which role) and
takes older spellings besides. Every message that these types allow is one that ``given`` knows.
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
    """A signed URL of a file of the caller's."""

    value: str
    mime_type: str | None = None


class FileSource(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="file"):
    """The place of a file of the caller's, as bucket/path."""

    value: str
    provider: Literal["dragoman"] = "dragoman"
    mime_type: str | None = None


Source = DataSource | UrlSource | FileSource


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Words."""

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
    """A PDF or a text."""

    source: Source
    metadata: Metadata | None = None


class BinaryPart(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="binary"):
    """A file as clients before protocol 1.0 send it: one of url, data and id."""

    mime_type: str
    url: str | None = None
    data: str | None = None
    id: str | None = None
    filename: str | None = None


Part = TextPart | ImagePart | AudioPart | VideoPart | DocumentPart | BinaryPart


class FunctionCall(msgspec.Struct, frozen=True):
    """What is called. The arguments are the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A call of a tool."""

    id: Id
    function: FunctionCall


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """What the user says."""

    id: Id
    content: str | list[Part]
    name: str | None = None
    metadata: Metadata | None = None


class AssistantMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="role", tag="assistant"):
    """What the model says, and the tools that it calls."""

    id: Id
    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    name: str | None = None
    metadata: Metadata | None = None


class ToolMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="role", tag="tool"):
    """The result of a call."""

    id: Id
    tool_call_id: Id
    content: str | list[Part]
    error: str | None = None
    metadata: Metadata | None = None


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """What the model is told before everything else."""

    id: Id
    content: str
    name: str | None = None
    metadata: Metadata | None = None


class DeveloperMessage(msgspec.Struct, frozen=True, tag_field="role", tag="developer"):
    """The same, as newer clients call it."""

    id: Id
    content: str
    name: str | None = None
    metadata: Metadata | None = None


class ReasoningMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="role", tag="reasoning"):
    """What the model thinks."""

    id: Id
    content: str
    encrypted_value: str | None = None
    metadata: Metadata | None = None


class ActivityMessage(msgspec.Struct, frozen=True, rename="camel", tag_field="role", tag="activity"):
    """What a client shows to people. The server passes it over."""

    id: Id
    content: dict[str, Any]
    activity_type: str
    metadata: Metadata | None = None


RunMessage = (
    UserMessage | AssistantMessage | ToolMessage | SystemMessage | DeveloperMessage | ReasoningMessage | ActivityMessage
)


class RunAgentInput(run_input.RunAgentInput, frozen=True, rename="camel"):
    """What is asked for. The conversation may come whole: what the thread has already is passed over."""

    thread_id: Id
    run_id: Id
    messages: list[RunMessage]  # type: ignore[assignment]  # they are read one by one, see given
