"""Constructed requests: one for each thing that a request can contain, in the format of each dialect.

    CASES                             the cases, each with a canonical request
    make_sample(dialect, case)        such a request on the dialect's wire; ``None`` if unsupported

The module of a dialect under ``samples`` may contain a wire for a case, and must for cases that no other dialect can
produce, such as its reasoning. Otherwise the canonical request is written in the dialect, if that is lossless and
keeps the order. Invariant: a sample contains the subject of its case when it is read.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from dragoman import exchange
from dragoman import message as msg
from dragoman.fidelity.comparison import JOINED, MOVED, compare_requests, request_kinds
from dragoman.fidelity.reply_comparison import reply_kinds


class Dialect(Protocol):
    """The required interface of a dialect: any module or object that reads and writes requests.

    ``IMPLIED_OPTIONS`` is optional. ``read_reply`` and ``write_reply`` are optional; with them, replies are measured. A
    dialect that supports only a part of a request has ``GROUPS``, its groups of cases, and ``message_part``.
    """

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of a module
        """The name of the dialect."""
        ...

    def read_request(self, wire: Any, /) -> exchange.Request:
        """Return the canonical request."""
        ...

    def write_request(self, request: exchange.Request, /) -> exchange.Written:
        """Return the wire and its losses."""
        ...


class Case(msgspec.Struct, frozen=True):
    """One thing that a request or reply can contain."""

    name: str
    group: str  # its heading
    kind: str  # the kind of finding with the result
    request: exchange.Request | None = None  # None: only a native sample contains it
    answer: exchange.Reply | None = None  # instead of a request


# --- requests --------------------------------------------------------------------------------------------------------

_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_CALL: Final = msg.ToolUseBlock("tu_01KR3ER9E00000000000000QQE", "read_file", {"path": "README.md", "limit": 1})
_INVALID_CALL: Final = msg.InvalidToolUseBlock(_CALL.id, "read_file", '{"path": ', "cut")
_TOOL: Final = exchange.ToolDefinition(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["path"]},
    exchange.SideEffects.EXECUTE,
)
_SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_PICTURE: Final = msg.ImageBlock(msg.ImageSource("base64", _PIXEL), "image/png")
_PDF: Final = msg.DocumentBlock(msg.ImageSource("base64", "JVBERi0xLjQK"), "application/pdf")
_SHOWN: Final = exchange.Reasoning(enabled=True, budget_tokens=2048, summary="auto")
_DOCUMENT_CITATION: Final = msg.Citation(
    title="report", cited_text="Rome", document=0, unit="char", source_start=0, source_end=4
)
_TEXT_DOCUMENT: Final = msg.DocumentBlock(msg.ImageSource("base64", "QSBub3RlLg=="), "text/plain")


def _message(role: msg.Role, *blocks: msg.ContentBlock) -> msg.Message:
    parent_id = next((block.tool_use_id for block in blocks if isinstance(block, msg.ToolResultBlock)), None)
    return msg.Message("0", "", role, blocks, msg.MessageMetadata(parent_tool_use_id=parent_id), _TIME)


def _request(
    *messages: msg.Message, tools: tuple[exchange.ToolDefinition, ...] = (), **options: Any
) -> exchange.Request:
    all_messages = messages or (_message(msg.Role.USER, msg.TextBlock("Hello.")),)
    numbered = tuple(msgspec.structs.replace(message, id=f"{at:026d}") for at, message in enumerate(all_messages))
    return exchange.Request(model="some-model", messages=numbered, tools=tools, options=exchange.Options(**options))


def _user_request(*blocks: msg.ContentBlock) -> exchange.Request:
    return _request(_message(msg.Role.USER, msg.TextBlock("Look."), *blocks))


def _result_request(*blocks: msg.ContentBlock, is_error: bool = False) -> exchange.Request:
    """Return a request with a call and its result."""
    result = msg.ToolResultBlock(_CALL.id, blocks, is_error)
    return _request(
        _message(msg.Role.USER, msg.TextBlock("Read it.")),
        _message(msg.Role.ASSISTANT, _CALL),
        _message(msg.Role.TOOL, result),
        tools=(_TOOL,),
    )


def _block_cases() -> dict[str, tuple[str, exchange.Request | None]]:
    """Return the cases about blocks: name, kind of finding, and request."""
    hello, system_text = msg.TextBlock("Hello."), msg.TextBlock("Be brief.")
    late_system = (
        _message(msg.Role.USER, hello),
        _message(msg.Role.ASSISTANT, msg.TextBlock("Hi.")),
        _message(msg.Role.SYSTEM, system_text),
    )
    invalid_call = (_message(msg.Role.USER, hello), _message(msg.Role.ASSISTANT, _INVALID_CALL))
    explanation = msg.ToolResultBlock(_CALL.id, (msg.TextBlock("It is not an object."),), is_error=False)
    return {
        "text": ("text", _request()),
        "two texts in one message": ("text", _user_request(hello)),
        "system prompt": ("system", _request(_message(msg.Role.SYSTEM, system_text), _message(msg.Role.USER, hello))),
        "system prompt later on": (
            "system",
            _request(*late_system, _message(msg.Role.USER, msg.TextBlock("And now?"))),
        ),
        "tool_use": ("tool_use", _result_request(msg.TextBlock("# Foo"))),
        "invalid_tool_use": (
            "invalid_tool_use",
            _request(*invalid_call, _message(msg.Role.TOOL, explanation), tools=(_TOOL,)),
        ),
        "tool_result": ("tool_result", _result_request(msg.TextBlock("# Foo"))),
        "text in a result": ("tool_result.text", _result_request(msg.TextBlock("# Foo"))),
        "two texts in a result": ("tool_result.text", _result_request(msg.TextBlock("# Foo"), msg.TextBlock("# Bar"))),
        "result that failed": ("tool_result.is_error", _result_request(msg.TextBlock("no such file"), is_error=True)),
        "image in a result": ("tool_result.image", _result_request(msg.TextBlock("Here."), _PICTURE)),
        "document in a result": ("tool_result.document", _result_request(msg.TextBlock("Here."), _PDF)),
        "image, base64": ("image", _user_request(_PICTURE)),
        "image, url": (
            "image",
            _user_request(msg.ImageBlock(msg.ImageSource("url", "https://example.com/a.png"), "image/png")),
        ),
        "document, base64": ("document", _user_request(_PDF)),
        "document, url": (
            "document",
            _user_request(_PDF.replace(source=msg.ImageSource("url", "https://example.com/a.pdf"))),
        ),
        "document, plain text": ("document", _user_request(_TEXT_DOCUMENT)),
        "name of a document": ("document.name", _user_request(_PDF.replace(name="report"))),
        "name of a plain text": ("document.name", _user_request(_TEXT_DOCUMENT.replace(name="note"))),
        "audio, base64": (
            "audio",
            _user_request(msg.AudioBlock(msg.ImageSource("base64", "UklGRiQAAABXQVZF"), "audio/wav")),
        ),
        "video, base64": (
            "video",
            _user_request(msg.VideoBlock(msg.ImageSource("base64", "AAAAGGZ0eXBtcDQy"), "video/mp4")),
        ),
        "video, url": (
            "video",
            _user_request(msg.VideoBlock(msg.ImageSource("url", "https://example.com/a.mp4"), "video/mp4")),
        ),
        "thinking": ("thinking", None),
        "signature of thinking": ("thinking.signature", None),
        "redacted_thinking": ("redacted_thinking", None),
        "opaque": ("opaque", None),
    }


def _option_cases() -> dict[str, tuple[str, exchange.Request | None]]:
    """Return the cases about tools and options."""
    response_format = exchange.ResponseFormat("json_schema", _SCHEMA, "place", strict=True)
    options: dict[str, tuple[str, Any]] = {
        "max_output_tokens": ("max_output_tokens", 100),
        "temperature": ("temperature", 0.5),
        "top_p": ("top_p", 0.9),
        "top_k": ("top_k", 40),
        "stop_sequences": ("stop_sequences", ("END",)),
        "seed": ("seed", 7),
        "presence_penalty": ("presence_penalty", 0.5),
        "frequency_penalty": ("frequency_penalty", 0.5),
        "any JSON": ("response_format", exchange.ResponseFormat("json")),
        "JSON of a schema": ("response_format.json_schema", exchange.ResponseFormat("json_schema", _SCHEMA)),
        "name of a schema": ("response_format.name", response_format),
        "strict schema": ("response_format.strict", response_format),
        "reasoning on": ("reasoning", exchange.Reasoning(enabled=True)),
        "reasoning off": ("reasoning", exchange.Reasoning(enabled=False)),
        "reasoning effort": ("reasoning.effort", exchange.Reasoning(effort="high")),
        "reasoning budget": ("reasoning.budget_tokens", exchange.Reasoning(enabled=True, budget_tokens=2048)),
        "effort and budget": ("reasoning.effort", exchange.Reasoning(enabled=True, effort="high", budget_tokens=2048)),
        "service_tier": ("service_tier", "priority"),
        "user": ("user", "user-1"),
        "stream": ("stream", True),
    }
    choices: dict[str, tuple[str, Any]] = {
        "no tool": ("tool_choice", exchange.ToolChoice("none")),
        "some tool": ("tool_choice", exchange.ToolChoice("required")),
        "this tool": ("tool_choice.name", exchange.ToolChoice("tool", "read_file")),
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


def _cases_of_shared_fields() -> dict[str, tuple[str, exchange.Request | None]]:
    """Return the cases about fields that several dialects share."""
    hello, hint = msg.TextBlock("Hello."), msg.CacheHint("1h")
    user = _message(msg.Role.USER, hello)
    cited = msg.TextBlock("Rome is in Italy.", citations=(_DOCUMENT_CITATION,))
    conversation = (_message(msg.Role.USER, hello), _message(msg.Role.ASSISTANT, cited), user)
    grammar = exchange.Grammar("lark", "start: /[0-9]+/")
    custom = exchange.ToolDefinition(
        "count",
        "Count.",
        dict(exchange.FREE_FORM_SCHEMA),
        exchange.SideEffects.EXECUTE,
        free_form=True,
        grammar=grammar,
    )
    custom_call = msg.ToolUseBlock(_CALL.id, "count", {"input": "42"}, free_form=True)
    custom_result = _message(msg.Role.TOOL, msg.ToolResultBlock(_CALL.id, (msg.TextBlock("done"),)))
    custom_turn = _request(user, _message(msg.Role.ASSISTANT, custom_call), custom_result, tools=(custom,))
    other = _TOOL.replace(name="write_file")
    second = _CALL.replace(id="tu_01KR3ER9E00000000000000QQF", input={"path": "b.md"})
    answers = (msg.ToolResultBlock(call.id, (msg.TextBlock("# Foo"),)) for call in (_CALL, second))
    parallel = _request(
        user,
        _message(msg.Role.ASSISTANT, _CALL, second),
        *(_message(msg.Role.TOOL, answer) for answer in answers),
        tools=(_TOOL,),
    )
    options: dict[str, Any] = {
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "verbosity": "low",
        "store": True,
        "metadata": {"team": "blue"},
        "safety_identifier": "person-1",
        "prompt_cache_key": "key-1",
    }
    outputs = {"image output": ("text", "image"), "audio output": ("text", "audio")}
    return {
        "parallel calls": ("tool_use", parallel),
        "strict tool": ("tool.strict", _request(tools=(_TOOL.replace(strict=True),))),
        "deferred tool": ("tool.defer_loading", _request(tools=(_TOOL.replace(defer_loading=True),))),
        "free-form tool": ("tool.free_form", _request(tools=(custom,))),
        "grammar of a tool": ("tool.grammar", _request(tools=(custom,))),
        "free-form call": ("tool_use.free_form", custom_turn),
        "allowed tools": (
            "options.tool_choice.allowed",
            _request(
                tools=(_TOOL, other), tool_choice=exchange.ToolChoice("required", allowed=("read_file", "write_file"))
            ),
        ),
        "cache hint on a text": (
            "block.cache_hint",
            _request(_message(msg.Role.USER, msg.TextBlock("Long.", cache_hint=hint), hello)),
        ),
        "cache hint on a system prompt": (
            "block.cache_hint",
            _request(_message(msg.Role.SYSTEM, msg.TextBlock("Be brief.", cache_hint=hint)), user),
        ),
        "cache hint on a tool": ("tool.cache_hint", _request(tools=(_TOOL.replace(cache_hint=hint),))),
        "cache hint on the prompt": ("options.cache_hint", _request(cache_hint=msg.CacheHint())),
        "citation of a document": ("text.citations", _request(*conversation)),
        "document to cite": ("document.cite", _user_request(_PDF.replace(name="report", cite=True))),
        "context of a document": ("document.context", _user_request(_PDF.replace(name="report", context="2026"))),
        "detail of an image": ("image.detail", _user_request(_PICTURE.replace(detail="low"))),
        "summary of reasoning": ("options.reasoning.summary", _request(reasoning=_SHOWN)),
        "description of a schema": (
            "options.response_format.description",
            _request(response_format=exchange.ResponseFormat("json_schema", _SCHEMA, "place", None, "A place.")),
        ),
        **{name: (f"options.{name}", _request(**{name: value})) for name, value in options.items()},
        **{name: ("options.modalities", _request(modalities=words)) for name, words in outputs.items()},
        "web search": ("server_tool.web_search", None),
        "code execution": ("server_tool.code_execution", None),
        "web page as context": ("server_tool.web_fetch", None),
        "file id": ("opaque", None),
    }


def _replies_of_shared_fields() -> dict[str, tuple[str, exchange.Reply]]:
    """Return the cases about replies with fields that several dialects share."""
    page = msg.Citation(start=0, end=4, url="https://example.com/rome", title="Rome")
    tokens = (msg.TokenLogprob("Hi", -0.25, (72, 105)), msg.TokenLogprob(".", -0.5, (46,)))
    second = msg.Alternative(content=(msg.TextBlock("Ho."),), stop_reason=exchange.StopReason.END_TURN)
    declined = msg.StopDetails(category="cyber", explanation="It is not allowed.")
    return {
        "answer: several": ("answer.alternatives", _make_reply().replace(alternatives=(second,))),
        "answer: citation of a page": (
            "answer.text.citations",
            _make_reply(msg.TextBlock("Rome is in Italy.", citations=(page,))),
        ),
        "answer: citation of a document": (
            "answer.text.citations",
            _make_reply(msg.TextBlock("Rome is in Italy.", citations=(_DOCUMENT_CITATION,))),
        ),
        "answer: token probabilities": (
            "answer.text.token_logprobs",
            _make_reply(msg.TextBlock("Hi.", token_logprobs=tokens)),
        ),
        "ended: why": (
            "answer.stop_details",
            _make_reply(stop_reason=exchange.StopReason.REFUSAL).replace(stop_details=declined),
        ),
        "answer: image": ("answer.image", _make_reply(msg.TextBlock("Here."), _PICTURE)),
    }


def _make_reply(
    *blocks: msg.ContentBlock, stop_reason: exchange.StopReason = exchange.StopReason.END_TURN, **counts: Any
) -> exchange.Reply:
    usage = msg.TokenUsage(**{"input_tokens": 100, "output_tokens": 50, **counts})
    stop_sequence = "END" if stop_reason is exchange.StopReason.STOP_SEQUENCE else None
    content = blocks or (msg.TextBlock("Hi."),)
    return exchange.Reply(
        content=content, stop_reason=stop_reason, stop_sequence=stop_sequence, usage=usage, model="some-model"
    )


def _reply_cases() -> dict[str, tuple[str, exchange.Reply]]:
    """Return the cases about replies: name, kind of finding, and reply."""
    kind, reasons = "answer.stop_reason", exchange.StopReason
    counts: dict[str, Any] = {
        "cached_input_tokens": 20,
        "cache_creation_input_tokens": 10,
        "reasoning_tokens": 5,
        "input_audio_tokens": 3,
        "output_audio_tokens": 2,
        "server_tool_calls": {"web_search": 1},
        "service_tier": "priority",
    }
    one_hour = _make_reply(cache_creation_input_tokens=10, cache_creation_1h_input_tokens=4)
    return {
        "answer: text": ("answer.text", _make_reply()),
        "answer: tool_use": (
            "answer.tool_use",
            _make_reply(msg.TextBlock("Reading."), _CALL, stop_reason=reasons.TOOL_USE),
        ),
        "answer: model": ("answer.model", _make_reply()),
        "ended: done": (kind, _make_reply()),
        "ended: waits for results": (kind, _make_reply(_CALL, stop_reason=reasons.TOOL_USE)),
        "ended: too long": (kind, _make_reply(stop_reason=reasons.MAX_TOKENS)),
        "ended: by a word": (kind, _make_reply(stop_reason=reasons.STOP_SEQUENCE)),
        "ended: which word": ("answer.stop_sequence", _make_reply(stop_reason=reasons.STOP_SEQUENCE)),
        "ended: declined": (kind, _make_reply(stop_reason=reasons.REFUSAL)),
        "ended: paused": (kind, _make_reply(stop_reason=reasons.PAUSED)),
        "count: input_tokens": ("answer.usage.input_tokens", _make_reply()),
        "count: output_tokens": ("answer.usage.output_tokens", _make_reply()),
        "count: input beside a cache": ("answer.usage.input_tokens", one_hour),
        **{f"count: {name}": (f"answer.usage.{name}", _make_reply(**{name: value})) for name, value in counts.items()},
        "count: cached for an hour": ("answer.usage.cache_creation_1h_input_tokens", one_hour),
    }


CASES: Final = (
    *(Case(name, "Blocks", kind, request) for name, (kind, request) in _block_cases().items()),
    *(Case(name, "Tools and options", kind, request) for name, (kind, request) in _option_cases().items()),
    *(Case(name, "Answers", kind, answer=answer) for name, (kind, answer) in _reply_cases().items()),
    *(Case(name, "Shared fields", kind, request) for name, (kind, request) in _cases_of_shared_fields().items()),
    *(Case(name, "Shared fields", kind, answer=answer) for name, (kind, answer) in _replies_of_shared_fields().items()),
)


# --- samples ---------------------------------------------------------------------------------------------------------


def make_sample(dialect: Dialect, case: Case) -> Any | None:
    """Return a request of this case on the dialect's wire; ``None`` if unsupported."""
    native = native_samples(dialect.NAME)
    if case.name in native:
        return native[case.name]
    if case.answer is not None:
        return _make_reply_sample(dialect, case.answer, case.kind)
    if case.request is None or not supports_case(dialect, case):
        return None
    message_part: Callable[[exchange.Request], exchange.Request] = getattr(dialect, "message_part", _whole_request)
    request = message_part(case.request)
    written = dialect.write_request(request)
    after = dialect.read_request(written.wire)
    findings = compare_requests(request, written, after, dialect.NAME)
    is_changed = any(
        note in finding.note for finding in findings for note in (JOINED, MOVED) if finding.kind == case.kind
    )
    if written.losses or is_changed or case.kind not in request_kinds(after):
        return None
    return written.wire


def supports_case(dialect: Dialect, case: Case) -> bool:
    """Return whether the subject of the case can be part of this wire format."""
    return case.group in getattr(dialect, "GROUPS", (case.group,))


def _whole_request(request: exchange.Request) -> exchange.Request:
    return request


def _make_reply_sample(dialect: Any, answer: exchange.Reply, kind: str) -> Any | None:
    if not hasattr(dialect, "write_reply"):
        return None
    written: exchange.Written = dialect.write_reply(answer)
    is_lost = kind.removeprefix("answer.") in {loss.block_type for loss in written.losses}
    return None if is_lost or kind not in reply_kinds(dialect.read_reply(written.wire)) else written.wire


def native_samples(name: str) -> Mapping[str, Any]:
    """Return the wires in the dialect's module under ``samples``, by case name."""
    module = f"{__package__}.samples.{name}"
    if importlib.util.find_spec(module) is None:
        return {}
    wires: Mapping[str, Any] = importlib.import_module(module).WIRES
    return wires
