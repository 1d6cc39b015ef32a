"""The constructed requests: one for each thing that can be said, as each dialect says it.

    CASES                        what is looked at, by name, each with a canonical request that holds it
    sample(dialect, case)        such a request on the dialect's own wire; ``None`` if it cannot be said there

A dialect's own words come first: the file of its name under ``samples`` may hold a wire for a case, and must for what
no other dialect can make it say, such as its reasoning. Without one, the canonical request is written in the dialect,
if it can be written without loss and stays in its order. The one rule: a sample, once read, says what its case is
about.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from dragoman.exchange import (
    Options,
    Reasoning,
    Reply,
    Request,
    ResponseFormat,
    SideEffects,
    StopReason,
    ToolChoice,
    ToolDefinition,
    Written,
)
from dragoman.fidelity.answers import kinds_answered
from dragoman.fidelity.comparison import JOINED, MOVED, compared, kinds_said
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)


class Dialect(Protocol):
    """What is needed of a dialect: any module or object that reads and writes requests.

    It may have ``UNSPOKEN``. If it reads and writes answers, as ``read_reply`` and ``write_reply``, these are measured.
    One that says only a part of a request has ``GROUPS``, the groups of cases that it is about, and ``said_of``.
    """

    NAME: Any

    def read_request(self, wire: Any) -> Request:
        """The canonical request."""
        ...

    def write_request(self, request: Request) -> Written:
        """The wire, and what it cannot carry."""
        ...


class Case(msgspec.Struct, frozen=True):
    """One thing that can be said."""

    name: str
    group: str  # under which heading it is shown
    kind: str  # the kind of finding that tells what became of it
    request: Request | None = None  # without one, only a dialect itself can say it
    answer: Reply | None = None  # in place of a request


# --- requests --------------------------------------------------------------------------------------------------------

_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_CALL: Final = ToolUseBlock("tu_01KR3ER9E00000000000000QQE", "read_file", {"path": "README.md", "limit": 1})
_BROKEN: Final = InvalidToolUseBlock(_CALL.id, "read_file", '{"path": ', "cut")
_TOOL: Final = ToolDefinition(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["path"]},
    SideEffects.EXECUTE,
)
_SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_PICTURE: Final = ImageBlock(ImageSource("base64", _PIXEL), "image/png")
_PDF: Final = DocumentBlock(ImageSource("base64", "JVBERi0xLjQK"), "application/pdf")
_NOTE: Final = DocumentBlock(ImageSource("base64", "QSBub3RlLg=="), "text/plain")


def _message(role: Role, *blocks: ContentBlock) -> Message:
    answered = next((block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock)), None)
    return Message("0", "", role, blocks, MessageMetadata(parent_tool_use_id=answered), _TIME)


def _request(*messages: Message, tools: tuple[ToolDefinition, ...] = (), **options: Any) -> Request:
    said = messages or (_message(Role.USER, TextBlock("Hello.")),)
    numbered = tuple(msgspec.structs.replace(message, id=f"{at:026d}") for at, message in enumerate(said))
    return Request(model="some-model", messages=numbered, tools=tools, options=Options(**options))


def _asked(*blocks: ContentBlock) -> Request:
    return _request(_message(Role.USER, TextBlock("Look."), *blocks))


def _answered(*blocks: ContentBlock, is_error: bool = False) -> Request:
    """A call and its result."""
    result = ToolResultBlock(_CALL.id, blocks, is_error)
    return _request(
        _message(Role.USER, TextBlock("Read it.")),
        _message(Role.ASSISTANT, _CALL),
        _message(Role.TOOL, result),
        tools=(_TOOL,),
    )


def _blocks() -> dict[str, tuple[str, Request | None]]:
    """Each case about a block: its name, the kind of its finding, and a request."""
    hello, again = TextBlock("Hello."), TextBlock("Be brief.")
    later = (_message(Role.USER, hello), _message(Role.ASSISTANT, TextBlock("Hi.")), _message(Role.SYSTEM, again))
    unread = (_message(Role.USER, hello), _message(Role.ASSISTANT, _BROKEN))
    explained = ToolResultBlock(_CALL.id, (TextBlock("It is not an object."),), is_error=False)
    return {
        "text": ("text", _request()),
        "two texts in one message": ("text", _asked(hello)),
        "system prompt": ("system", _request(_message(Role.SYSTEM, again), _message(Role.USER, hello))),
        "system prompt later on": ("system", _request(*later, _message(Role.USER, TextBlock("And now?")))),
        "tool_use": ("tool_use", _answered(TextBlock("# Foo"))),
        "invalid_tool_use": (
            "invalid_tool_use",
            _request(*unread, _message(Role.TOOL, explained), tools=(_TOOL,)),
        ),
        "tool_result": ("tool_result", _answered(TextBlock("# Foo"))),
        "text in a result": ("tool_result.text", _answered(TextBlock("# Foo"))),
        "two texts in a result": ("tool_result.text", _answered(TextBlock("# Foo"), TextBlock("# Bar"))),
        "result that failed": ("tool_result.is_error", _answered(TextBlock("no such file"), is_error=True)),
        "image in a result": ("tool_result.image", _answered(TextBlock("Here."), _PICTURE)),
        "document in a result": ("tool_result.document", _answered(TextBlock("Here."), _PDF)),
        "image, base64": ("image", _asked(_PICTURE)),
        "image, url": ("image", _asked(ImageBlock(ImageSource("url", "https://example.com/a.png"), "image/png"))),
        "document, base64": ("document", _asked(_PDF)),
        "document, url": ("document", _asked(_PDF.replace(source=ImageSource("url", "https://example.com/a.pdf")))),
        "document, plain text": ("document", _asked(_NOTE)),
        "name of a document": ("document.name", _asked(_PDF.replace(name="report"))),
        "name of a plain text": ("document.name", _asked(_NOTE.replace(name="note"))),
        "audio, base64": ("audio", _asked(AudioBlock(ImageSource("base64", "UklGRiQAAABXQVZF"), "audio/wav"))),
        "video, base64": ("video", _asked(VideoBlock(ImageSource("base64", "AAAAGGZ0eXBtcDQy"), "video/mp4"))),
        "video, url": ("video", _asked(VideoBlock(ImageSource("url", "https://example.com/a.mp4"), "video/mp4"))),
        "thinking": ("thinking", None),
        "signature of thinking": ("thinking.signature", None),
        "redacted_thinking": ("redacted_thinking", None),
        "opaque": ("opaque", None),
    }


def _beside() -> dict[str, tuple[str, Request | None]]:
    """Each case about what stands beside the conversation."""
    asked = ResponseFormat("json_schema", _SCHEMA, "place", strict=True)
    options: dict[str, tuple[str, Any]] = {
        "max_output_tokens": ("max_output_tokens", 100),
        "temperature": ("temperature", 0.5),
        "top_p": ("top_p", 0.9),
        "top_k": ("top_k", 40),
        "stop_sequences": ("stop_sequences", ("END",)),
        "seed": ("seed", 7),
        "presence_penalty": ("presence_penalty", 0.5),
        "frequency_penalty": ("frequency_penalty", 0.5),
        "any JSON": ("response_format", ResponseFormat("json")),
        "JSON of a schema": ("response_format.json_schema", ResponseFormat("json_schema", _SCHEMA)),
        "name of a schema": ("response_format.name", asked),
        "strict schema": ("response_format.strict", asked),
        "reasoning on": ("reasoning", Reasoning(enabled=True)),
        "reasoning off": ("reasoning", Reasoning(enabled=False)),
        "reasoning effort": ("reasoning.effort", Reasoning(effort="high")),
        "reasoning budget": ("reasoning.budget_tokens", Reasoning(enabled=True, budget_tokens=2048)),
        "effort and budget": ("reasoning.effort", Reasoning(enabled=True, effort="high", budget_tokens=2048)),
        "service_tier": ("service_tier", "priority"),
        "user": ("user", "user-1"),
        "stream": ("stream", True),
    }
    choices: dict[str, tuple[str, Any]] = {
        "no tool": ("tool_choice", ToolChoice("none")),
        "some tool": ("tool_choice", ToolChoice("required")),
        "this tool": ("tool_choice.name", ToolChoice("tool", "read_file")),
    }
    return {
        "tool": ("tool", _request(tools=(_TOOL,))),
        "opaque tool": ("opaque_tool", None),
        **{
            name: (f"options.{kind}", _request(tools=(_TOOL,), tool_choice=value))
            for name, (kind, value) in choices.items()
        },
        "one call at a time": ("options.parallel_tool_calls", _request(tools=(_TOOL,), parallel_tool_calls=False)),
        "model": ("options.model", _request()),
        **{
            name: (f"options.{kind}", _request(**{kind.partition(".")[0]: value}))
            for name, (kind, value) in options.items()
        },
        "in its own words": ("aside", None),
    }


def _answer(*blocks: ContentBlock, why: StopReason = StopReason.END_TURN, **counts: Any) -> Reply:
    usage = TokenUsage(**{"input_tokens": 100, "output_tokens": 50, **counts})
    word = "END" if why is StopReason.STOP_SEQUENCE else None
    said = blocks or (TextBlock("Hi."),)
    return Reply(content=said, stop_reason=why, stop_sequence=word, usage=usage, model="some-model")


def _answers() -> dict[str, tuple[str, Reply]]:
    """Each case about an answer: its name, the kind of its finding, and an answer."""
    why, ends = "answer.stop_reason", StopReason
    counts: dict[str, Any] = {
        "cached_input_tokens": 20,
        "cache_creation_input_tokens": 10,
        "reasoning_tokens": 5,
        "input_audio_tokens": 3,
        "output_audio_tokens": 2,
        "server_tool_calls": {"web_search": 1},
        "service_tier": "priority",
    }
    hour = _answer(cache_creation_input_tokens=10, cache_creation_1h_input_tokens=4)
    return {
        "answer: text": ("answer.text", _answer()),
        "answer: tool_use": ("answer.tool_use", _answer(TextBlock("Reading."), _CALL, why=ends.TOOL_USE)),
        "answer: model": ("answer.model", _answer()),
        "ended: done": (why, _answer()),
        "ended: waits for results": (why, _answer(_CALL, why=ends.TOOL_USE)),
        "ended: too long": (why, _answer(why=ends.MAX_TOKENS)),
        "ended: by a word": (why, _answer(why=ends.STOP_SEQUENCE)),
        "ended: which word": ("answer.stop_sequence", _answer(why=ends.STOP_SEQUENCE)),
        "ended: declined": (why, _answer(why=ends.REFUSAL)),
        "ended: paused": (why, _answer(why=ends.PAUSED)),
        "count: input_tokens": ("answer.usage.input_tokens", _answer()),
        "count: output_tokens": ("answer.usage.output_tokens", _answer()),
        "count: input beside a cache": ("answer.usage.input_tokens", hour),
        **{f"count: {name}": (f"answer.usage.{name}", _answer(**{name: value})) for name, value in counts.items()},
        "count: cached for an hour": ("answer.usage.cache_creation_1h_input_tokens", hour),
    }


CASES: Final = (
    *(Case(name, "Blocks", kind, request) for name, (kind, request) in _blocks().items()),
    *(Case(name, "Tools and options", kind, request) for name, (kind, request) in _beside().items()),
    *(Case(name, "Answers", kind, answer=answer) for name, (kind, answer) in _answers().items()),
)


# --- samples ---------------------------------------------------------------------------------------------------------


def sample(dialect: Dialect, case: Case) -> Any | None:
    """A request of this case on the dialect's own wire; ``None`` if it cannot be said there."""
    own = own_words(dialect.NAME)
    if case.name in own:
        return own[case.name]
    if case.answer is not None:
        return _answer_sample(dialect, case.answer, case.kind)
    if case.request is None or not is_about(dialect, case):
        return None
    said_of: Callable[[Request], Request] = getattr(dialect, "said_of", _whole)
    request = said_of(case.request)
    written = dialect.write_request(request)
    after = dialect.read_request(written.wire)
    found = compared(request, written, after, dialect.NAME)
    is_other = any(sign in finding.note for finding in found for sign in (JOINED, MOVED) if finding.kind == case.kind)
    if written.losses or is_other or case.kind not in kinds_said(after):
        return None
    return written.wire


def is_about(dialect: Dialect, case: Case) -> bool:
    """Whether what the case is about can be a part of this wire at all."""
    return case.group in getattr(dialect, "GROUPS", (case.group,))


def _whole(request: Request) -> Request:
    return request


def _answer_sample(dialect: Any, answer: Reply, kind: str) -> Any | None:
    if not hasattr(dialect, "write_reply"):
        return None
    written: Written = dialect.write_reply(answer)
    lost = kind.removeprefix("answer.") in {loss.block_type for loss in written.losses}
    return None if lost or kind not in kinds_answered(dialect.read_reply(written.wire)) else written.wire


def own_words(name: str) -> Mapping[str, Any]:
    """The wires that a dialect's file under ``samples`` holds, by the name of their case."""
    module = f"{__package__}.samples.{name}"
    if importlib.util.find_spec(module) is None:
        return {}
    wires: Mapping[str, Any] = importlib.import_module(module).WIRES
    return wires
