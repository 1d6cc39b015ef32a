"""Model families with a prompt: the paths of the prompt, the options, the text and the counts in their bodies.

Each body is arranged as one of Chat Completions with a single user message. A path is a tuple of keys and indexes.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec

from dragoman.wire.derivation import Arrangement, Wire

Path = tuple[str | int, ...]
_METRICS: Final = "amazon-bedrock-invocationMetrics"
_METRIC_PATHS: Final[tuple[Path, Path]] = ((_METRICS, "inputTokenCount"), (_METRICS, "outputTokenCount"))
GUARDRAIL: Final = "amazon-bedrock-guardrailAction"
TRACE: Final = "amazon-bedrock-trace"


class TextFamily(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of one family. ``reasons`` maps stop reasons to those of Chat Completions."""

    name: str
    prompt: str = "prompt"
    options: dict[str, Path]  # option of Chat Completions, and its path
    text: Path  # of a whole reply
    reason: Path
    reasons: dict[str, str] = msgspec.field(default_factory=lambda: {"stop": "stop", "length": "length"})
    counts: tuple[Path, Path] | None = None  # of the prompt and of the answer
    chunk_text: Path | None = None  # of an event of a stream, where it differs
    chunk_reason: Path | None = None
    chunk_counts: tuple[Path, Path] | None = None
    chunk_flag: str | None = None  # key that marks the last event of a stream

    def arrange_request(self) -> Arrangement:
        """Return the arrangement of requests."""
        return Arrangement(self._request_to_base, self._request_from_base)

    def arrange_reply(self) -> Arrangement:
        """Return the arrangement of replies."""
        return Arrangement(self._reply_to_base, self._reply_from_base)

    def _request_to_base(self, wire: Wire) -> Wire:
        base: Wire = {"messages": [{"role": "user", "content": wire.get(self.prompt) or ""}]}
        for option, path in self.options.items():
            value = _get(wire, path)
            if value is not None and not isinstance(value, dict):
                base[option] = value
        return base

    def _request_from_base(self, base: Wire) -> Wire:
        wire: Wire = {self.prompt: "".join(_text_of(message) for message in base["messages"])}
        if "max_completion_tokens" in base:
            base = {**base, "max_tokens": base["max_completion_tokens"]}
        for option, path in self.options.items():
            if base.get(option) is not None:
                _set(wire, path, base[option])
        return wire

    def _reply_to_base(self, wire: Wire) -> Wire:
        text, reason = _get(wire, self.text), _get(wire, self.reason)
        if not isinstance(text, str):
            return wire
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": self._reason_to_base(wire, reason)}
        return {"choices": [choice], **self._usage(wire, self.counts)}

    def _reply_from_base(self, base: Wire) -> Wire:
        choices = base.get("choices")
        if not choices:
            return base
        wire: Wire = {}
        _set(wire, self.text, choices[0]["message"].get("content") or "")
        _set(wire, self.reason, self._reason_from_base(choices[0].get("finish_reason")))
        usage = base.get("usage")
        if self.counts is not None and isinstance(usage, dict):
            _set(wire, self.counts[0], usage["prompt_tokens"])
            _set(wire, self.counts[1], usage["completion_tokens"])
        return wire

    def chunk_to_base(self, wire: Wire) -> Wire:
        """Return an event of a stream as a chunk of Chat Completions."""
        text, reason = self._chunk_text(wire), self._chunk_reason(wire)
        if reason is None and (_METRICS in wire or TRACE in wire):
            reason = "stop"  # the last event, without a reason
        delta = {"content": text} if isinstance(text, str) else {}
        finish_reason = self._reason_to_base(wire, reason)
        usage = _metrics_usage(wire) or self._usage(wire, self.chunk_counts or self.counts)
        index = _to_int(wire.get("index"))
        place = {} if index is None and finish_reason is not None else {"index": index or 0}  # one end for all answers
        base: Wire = {"choices": [{**place, "delta": delta, "finish_reason": finish_reason}]}
        return {**base, **usage} if finish_reason is not None else base

    def chunk_from_base(self, text: str | None, finish_reason: str | None, usage: tuple[int, int] | None) -> Wire:
        """Return an event of a stream: a text, or the end with its counts."""
        wire: Wire = {self.chunk_flag: finish_reason is not None} if self.chunk_flag is not None else {}
        _set(wire, self.chunk_text or self.text, text or "")
        if finish_reason is not None:
            _set(wire, self.chunk_reason or self.reason, self._reason_from_base(finish_reason))
            paths = self.chunk_counts or self.counts or _METRIC_PATHS
            for path, count in zip(paths, usage or (), strict=False):
                _set(wire, path, count)
        return wire

    def _chunk_text(self, wire: Wire) -> Any:
        text = _get(wire, self.chunk_text) if self.chunk_text is not None else None
        return text if text is not None else _get(wire, self.text)

    def _chunk_reason(self, wire: Wire) -> Any:
        reason = _get(wire, self.chunk_reason) if self.chunk_reason is not None else None
        return reason if reason is not None else _get(wire, self.reason)

    def _reason_to_base(self, wire: Wire, reason: Any) -> Any:
        if wire.get(GUARDRAIL) == "INTERVENED" and reason == "stop" and TRACE in wire:
            return "content_filter"
        return self.reasons.get(reason, reason) if isinstance(reason, str) else None

    def _reason_from_base(self, finish_reason: Any) -> Any:
        words = {meaning: word for word, meaning in reversed(self.reasons.items())}
        return words.get(finish_reason, words["stop"])

    def _usage(self, wire: Wire, paths: tuple[Path, Path] | None) -> Wire:
        return _usage_from(*(_get(wire, path) for path in paths)) if paths is not None else {}


def _usage_from(prompt: Any, answer: Any) -> Wire:
    if prompt is None and answer is None:
        return {}
    return {"usage": {"prompt_tokens": _to_int(prompt or 0), "completion_tokens": _to_int(answer or 0)}}


def _metrics_usage(wire: Wire) -> Wire:
    return _usage_from(*(_get(wire, path) for path in _METRIC_PATHS))


def _to_int(value: Any) -> Any:
    """Return a whole number that was written as a float as an integer."""
    return int(value) if type(value) is float and value.is_integer() else value


def _text_of(message: Wire) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else ""


def _get(wire: Any, path: Path) -> Any:
    for key in path:
        if isinstance(key, int):
            wire = wire[key] if isinstance(wire, list) and len(wire) > key else None
        else:
            wire = wire.get(key) if isinstance(wire, dict) else None
    return wire


def _set(wire: Any, path: Path, value: Any) -> None:
    for key, following in itertools.pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(key, int):
            if not wire:
                wire.append(empty)
            wire = wire[key]
        else:
            wire = wire.setdefault(key, empty)
    wire[path[-1]] = value


def _options(**keys: str) -> dict[str, Path]:
    return {option: tuple(path.split(".")) for option, path in keys.items()}


_TITAN: Final = TextFamily(
    name="titan",
    prompt="inputText",
    options=_options(
        max_tokens="textGenerationConfig.maxTokenCount",
        temperature="textGenerationConfig.temperature",
        top_p="textGenerationConfig.topP",
        stop="textGenerationConfig.stopSequences",
    ),
    text=("results", 0, "outputText"),
    reason=("results", 0, "completionReason"),
    reasons={
        "FINISH": "stop",
        "FINISHED": "stop",
        "STOP_CRITERIA_MET": "stop",
        "LENGTH": "length",
        "CONTENT_FILTERED": "content_filter",
    },
    counts=(("inputTextTokenCount",), ("results", 0, "tokenCount")),
    chunk_text=("outputText",),
    chunk_reason=("completionReason",),
    chunk_counts=(("inputTextTokenCount",), ("totalOutputTextTokenCount",)),
)
_LLAMA: Final = TextFamily(
    name="llama",
    options=_options(max_tokens="max_gen_len", temperature="temperature", top_p="top_p"),
    text=("generation",),
    reason=("stop_reason",),
    counts=(("prompt_token_count",), ("generation_token_count",)),
    chunk_counts=_METRIC_PATHS,
)
_CLAUDE_TEXT: Final = TextFamily(
    name="claude_text",
    options=_options(
        max_tokens="max_tokens_to_sample",
        temperature="temperature",
        top_p="top_p",
        top_k="top_k",
        stop="stop_sequences",
    ),
    text=("completion",),
    reason=("stop_reason",),
    reasons={"stop_sequence": "stop", "max_tokens": "length"},
)
_COMMAND: Final = TextFamily(
    name="command",
    options=_options(max_tokens="max_tokens", temperature="temperature", top_p="p", top_k="k", stop="stop_sequences"),
    text=("generations", 0, "text"),
    reason=("generations", 0, "finish_reason"),
    reasons={"COMPLETE": "stop", "MAX_TOKENS": "length", "ERROR_TOXIC": "content_filter"},
    chunk_text=("text",),
    chunk_reason=("finish_reason",),
    chunk_flag="is_finished",
)
_JURASSIC: Final = TextFamily(
    name="jurassic",
    options=_options(max_tokens="maxTokens", temperature="temperature", top_p="topP", stop="stopSequences"),
    text=("completions", 0, "data", "text"),
    reason=("completions", 0, "finishReason", "reason"),
    reasons={"endoftext": "stop", "stop": "stop", "length": "length"},
)
_MISTRAL: Final = TextFamily(
    name="mistral",
    options=_options(max_tokens="max_tokens", temperature="temperature", top_p="top_p", top_k="top_k", stop="stop"),
    text=("outputs", 0, "text"),
    reason=("outputs", 0, "stop_reason"),
)
_COMPLETION: Final = TextFamily(
    name="completion",
    options=_options(max_tokens="max_tokens", temperature="temperature", top_p="top_p", stop="stop"),
    text=("choices", 0, "text"),
    reason=("choices", 0, "finish_reason"),
    counts=(("usage", "prompt_tokens"), ("usage", "completion_tokens")),
)
TEXT_FAMILIES: Final = (_TITAN, _LLAMA, _CLAUDE_TEXT, _COMMAND, _JURASSIC, _MISTRAL, _COMPLETION)
