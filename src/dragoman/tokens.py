"""Estimates of prompt tokens, by model family.

    estimate(messages, tools, model)            tokens of a prompt for a model
    estimate_with_history(messages, tools, model)  the same, corrected by the usage that the messages report
    make_estimate(model, history, tools)        a function for messages, corrected by the usage in a history
    find_ratio(model, history, tools)           the correction: what was counted by what is estimated
    estimate_content(blocks, model)             tokens of an answer
    measure(messages, tools) -> Measure         what is counted: parts of words, digits, signs, tools, images …
    family_of(model) -> Family                  the figures for a model

A tokenizer is not needed: the counts of a prompt are multiplied by figures that ``scripts/fit_tokens.py`` fits to the
usage in recorded traffic (``tokens.json``). A family is a tokenizer and the format in which a provider writes messages
and tools into the prompt. Invariants: an estimate is at least 1, and a text of any length is measured in bounded time.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib.resources
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import mul
from typing import Any, Final

import msgspec

from dragoman import message as msg
from dragoman.exchange import Options, ToolDefinition

Counts = tuple[float, ...]
Estimate = Callable[[Sequence[msg.Message]], int]
View = Callable[[Sequence[msg.Message]], Sequence[msg.Message]]

TEXT_COUNTS: Final = (
    "word",  # parts of words: camelCase and snake_case have several
    "long",  # letters of such a part from the seventh on
    "longer",  # from the eleventh on
    "upper",  # further letters of a part in capitals
    "digit",
    "number",  # groups of up to three digits
    "sign",  # runs of punctuation
    "sign_more",  # further signs of a run
    "line",  # runs of line ends
    "space",  # runs of spaces
    "han",  # Chinese and Japanese characters
    "hangul",
    "latin",  # letters with accents
    "cyrillic",  # also Greek, Armenian and Hebrew
    "letter",  # of other scripts
    "symbol",
    "astral",  # emoji and rare characters
)
FORMAT_COUNTS: Final = (
    "prompt",  # one
    "message",
    "system",
    "call",
    "result",
    "thought",  # estimate of the texts of reasoning
    "signature",  # characters of signatures of reasoning, in which some providers keep it
    "reasoning",  # one, if it is on
    "usual_reasoning",  # one, if the request leaves it to the model
    "no_system",  # one, if there is no system prompt: some providers add their own
    "forced",  # one, if the model has to call a tool
    "image",
    "tile",  # squares of 512 pixels
    "area",  # of images, in units of 750 pixels
    "tools",  # one, if there are any
    "tool",
    "tool_text",  # estimate of the texts in tool definitions
    "node",  # objects of a schema
    "property",
    "choice",  # values of enumerations
    "required",
    "keyword",  # other keywords of a schema
    "tool_json",  # estimate of tool definitions as JSON, which the templates of open models contain
)


def _class_table(classes: Mapping[str, str]) -> bytes:
    """Return a table for ``bytes.translate`` that keeps the characters of some classes; all others become spaces."""
    marks = {ord(character): ord(mark) for mark, characters in classes.items() for character in characters}
    return bytes(marks.get(byte, ord(" ")) for byte in range(256))


_LETTERS: Final = _class_table({"a": string.ascii_lowercase, "A": string.ascii_uppercase})
_DIGITS: Final = _class_table({"0": string.digits})
_SIGNS: Final = _class_table({".": string.punctuation})
_LINES: Final = _class_table({"n": "\n"})
_SPACES: Final = _class_table({"s": " \t"})
_SCRIPTS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        "[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]",
        "[\uac00-\ud7a3]",
        "[\u00a0-\u024f]",
        "[\u0370-\u05ff]",
        "[\u0600-\u1fff]",
        "[\u2000-\u2fff]",
        "[\U00010000-\U0010ffff]",
    )
)
_NO_SCRIPTS: Final = (0,) * len(_SCRIPTS)
_CACHED_TEXTS: Final = 4096
_CACHED_LENGTH: Final = 16_384  # characters of a text whose counts are kept
_SLICES: Final = 32  # of a long text
_SLICE_LENGTH: Final = 2048
_MAX_IMAGE_AREA: Final = 1600  # in units of 750 pixels; larger images are scaled down
_DEFAULT_SIZE: Final = (1024, 768)  # of an image whose size is not known
_HEAD_CHARACTERS: Final = 32_768  # of base64, in which the size of an image is found
_MIN_TOKENS: Final = 50  # of a prompt whose usage corrects the estimate
_RATIOS: Final = (0.6, 6.0)  # limits of the correction


# --- counts ----------------------------------------------------------------------------------------------------------


def measure_text(text: str) -> Counts:
    """Return the counts of a text, in the order of ``TEXT_COUNTS``. A long text is sampled: its cost is bounded."""
    if len(text) <= _SLICES * _SLICE_LENGTH:
        return _count(text)
    starts = range(0, len(text) - _SLICE_LENGTH + 1, (len(text) - _SLICE_LENGTH) // (_SLICES - 1))
    counts = _count("\n".join(text[start : start + _SLICE_LENGTH] for start in starts[:_SLICES]))
    return tuple(count * len(text) / (_SLICES * _SLICE_LENGTH) for count in counts)


def _count(text: str) -> Counts:
    return _count_short(text) if len(text) <= _CACHED_LENGTH else _count_characters(text)


def _count_characters(text: str) -> Counts:
    """Return the counts of a whole text.

    Each table leaves one class of characters and spaces. A run of the class begins where it follows a space.
    """
    data = b"\0" + text.encode("utf-8", "surrogatepass")
    camel_case = data.translate(_LETTERS)
    parts = Counter(camel_case.replace(b"aA", b"a A").replace(b"AAa", b"A Aa").split())
    digits, signs = data.translate(_DIGITS), data.translate(_SIGNS)
    sign_runs = signs.count(b" .")
    ascii_counts = (
        parts.total(),
        sum((len(part) - 6) * count for part, count in parts.items() if len(part) > 6),
        sum((len(part) - 10) * count for part, count in parts.items() if len(part) > 10),
        sum((len(part) - 1) * count for part, count in parts.items() if part.isupper()),
        digits.count(b"0"),
        digits.count(b"000") + digits.replace(b"000", b"").count(b" 0"),
        sign_runs,
        signs.count(b".") - sign_runs,
        data.translate(_LINES).count(b" n"),
        data.translate(_SPACES).count(b" ss"),
    )
    if text.isascii():
        return (*ascii_counts, *_NO_SCRIPTS)
    return (*ascii_counts, *(len(script.findall(text)) for script in _SCRIPTS))


_count_short: Final = functools.lru_cache(maxsize=_CACHED_TEXTS)(_count_characters)


class _Meter:
    """Adds up the counts of one prompt."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.tool_texts: list[str] = []
        self.tool_jsons: list[str] = []
        self.counts: dict[str, float] = dict.fromkeys(FORMAT_COUNTS, 0)

    def measure(self) -> Measure:
        text, thought, tool_text, tool_json = map(
            _sum_counts, (self.texts, self.thoughts, self.tool_texts, self.tool_jsons)
        )
        return Measure(text, thought, tool_text, tool_json, self.counts)

    def add_message(self, message: msg.Message) -> None:
        self.counts["message"] += 1
        self.counts["system"] += message.role is msg.Role.SYSTEM
        self.add_blocks(message.content)

    def add_blocks(self, content: Iterable[msg.ContentBlock]) -> None:
        for block in content:
            self._add_block(block)

    def _add_block(self, block: msg.ContentBlock) -> None:
        self.counts["signature"] += _signature_length(getattr(block, "provider_raw", None))
        match block:
            case msg.TextBlock(text):
                self.texts.append(text)
            case msg.ThinkingBlock(text, signature):
                self.thoughts.append(text)
                self.counts["signature"] += len(signature or "")
            case msg.RedactedThinkingBlock(data):
                self.counts["signature"] += len(data)
            case msg.ToolUseBlock(_, name, value):
                self.counts["call"] += 1
                self.texts += (name, msgspec.json.encode(value).decode())
            case msg.InvalidToolUseBlock(_, name, text):
                self.counts["call"] += 1
                self.texts += (name, text)
            case msg.ToolResultBlock(_, content):
                self.counts["result"] += 1
                for inner in content:
                    self._add_block(inner)
            case _ if isinstance(block, msg.MediaBlock):
                self._add_image(*(_image_size(block) if isinstance(block, msg.ImageBlock) else _DEFAULT_SIZE))

    def _add_image(self, width: int, height: int) -> None:
        self.counts["image"] += 1
        self.counts["tile"] += _count_tiles(width, height)
        self.counts["area"] += min(_MAX_IMAGE_AREA, width * height / 750)

    def add_options(self, options: Options) -> None:
        reasoning, choice = options.reasoning, options.tool_choice
        is_off = reasoning is None or reasoning.is_off
        self.counts["reasoning"] = not is_off
        self.counts["usual_reasoning"] = reasoning is None
        self.counts["forced"] = choice is not None and choice.mode in ("required", "tool")

    def add_tool(self, tool: ToolDefinition) -> None:
        self.counts["tools"] = 1
        self.counts["tool"] += 1
        self.tool_texts += (tool.name, tool.description)
        self.tool_jsons.append(_write_tool(tool))
        self._add_schema(tool.input_schema)

    def _add_schema(self, schema: Any) -> None:
        if isinstance(schema, list):
            for item in schema:
                self._add_schema(item)
        if not isinstance(schema, dict):
            return
        self.counts["node"] += 1
        for key, value in schema.items():
            match key:
                case "description" if isinstance(value, str):
                    self.tool_texts.append(value)
                case "properties" if isinstance(value, dict):
                    self.counts["property"] += len(value)
                    self.tool_texts.append(" ".join(value))
                    self._add_schema(list(value.values()))
                case "enum" if isinstance(value, list):
                    self.counts["choice"] += len(value)
                    self.tool_texts.append(" ".join(map(str, value)))
                case "required" if isinstance(value, list):
                    self.counts["required"] += len(value)
                case _ if isinstance(value, dict | list):
                    self._add_schema(value)
                case _ if key != "type":
                    self.counts["keyword"] += 1


def _write_tool(tool: ToolDefinition) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return msgspec.json.encode({"type": "function", "function": function}).decode()


def _signature_length(raw: msg.ProviderRaw | None) -> int:
    """Return the length of the signature that Gemini adds to other blocks."""
    residue = raw.get("residue") if raw is not None else None
    added = residue.get("set") if isinstance(residue, dict) else None
    signature = added.get("thoughtSignature") if isinstance(added, dict) else None
    return len(signature) if isinstance(signature, str) else 0


class Measure(msgspec.Struct, frozen=True):
    """The counts of a prompt: of its texts, its reasoning, the texts and the JSON of its tools, and everything else."""

    text: Counts
    thought: Counts
    tool_text: Counts
    tool_json: Counts
    format: dict[str, float]

    def format_counts(self, text_figures: Sequence[float]) -> list[float]:
        """Return the counts in the order of ``FORMAT_COUNTS``, with estimates of reasoning and of tools."""
        counts = dict(self.format)
        for name in ("thought", "tool_text", "tool_json"):
            counts[name] = sum(map(mul, text_figures, getattr(self, name)))
        return [counts[name] for name in FORMAT_COUNTS]


def measure(
    messages: Iterable[msg.Message], tools: Iterable[ToolDefinition] = (), options: Options | None = None
) -> Measure:
    """Return the counts of a prompt."""
    meter = _Meter()
    meter.counts["prompt"] = meter.counts["usual_reasoning"] = 1
    if options is not None:
        meter.add_options(options)
    for message in messages:
        meter.add_message(message)
    for tool in tools:
        if isinstance(tool, ToolDefinition):
            meter.add_tool(tool)
    meter.counts["no_system"] = not meter.counts["system"]
    return meter.measure()


def _sum_counts(texts: list[str]) -> Counts:
    if not texts:
        return (0.0,) * len(TEXT_COUNTS)
    return tuple(map(sum, zip(*map(measure_text, texts), strict=True)))


# --- images ----------------------------------------------------------------------------------------------------------


def _image_size(block: msg.ImageBlock) -> tuple[int, int]:
    """Return width and height from the head of an image; a usual size if it has none."""
    if block.source.kind != "base64":
        return _DEFAULT_SIZE
    try:
        head = base64.b64decode(block.source.data[:_HEAD_CHARACTERS])
    except (binascii.Error, ValueError):
        return _DEFAULT_SIZE
    return _read_size(head) or _DEFAULT_SIZE


def _read_size(head: bytes) -> tuple[int, int] | None:
    if head.startswith(b"\x89PNG") and len(head) >= 24:
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    if head.startswith(b"GIF8") and len(head) >= 10:
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    at = 2 if head.startswith(b"\xff\xd8") else len(head)
    while at + 9 < len(head) and head[at] == 0xFF:  # the segments of a JPEG
        if 0xC0 <= head[at + 1] <= 0xCF and head[at + 1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7])
        at += 2 + int.from_bytes(head[at + 2 : at + 4])
    return None


def _count_tiles(width: int, height: int) -> int:
    """Return the squares of 512 pixels after the image is scaled to 2,048 pixels, and its short side to 768."""
    scale = min(1.0, 2048 / max(width, height, 1))
    scale = min(scale, 768 / max(1, min(width, height)))
    return max(1, -(-int(width * scale) // 512)) * max(1, -(-int(height * scale) // 512))


# --- families --------------------------------------------------------------------------------------------------------


class Family(msgspec.Struct, frozen=True):
    """The figures of a model family: tokens per count."""

    name: str
    pattern: str  # of ``provider:model``, in lower case
    text: tuple[float, ...]  # in the order of TEXT_COUNTS
    format: tuple[float, ...]  # in the order of FORMAT_COUNTS

    def tokens(self, counts: Measure) -> float:
        """Return the tokens of a prompt with these counts."""
        text: float = sum(map(mul, self.text, counts.text))
        format_tokens: float = sum(map(mul, self.format, counts.format_counts(self.text)))
        return text + format_tokens


@functools.cache
def families() -> tuple[Family, ...]:
    """Return all families; the last one fits every model."""
    data = importlib.resources.files("dragoman").joinpath("tokens.json").read_bytes()
    return tuple(msgspec.json.decode(data, type=list[Family]))


@functools.lru_cache(maxsize=1024)
def family_of(model: str | None) -> Family:
    """Return the family of a model, which is an id such as ``openai:gpt-5`` or a name."""
    name = (model or "").lower()
    return next((family for family in families()[:-1] if name and re.search(family.pattern, name)), families()[-1])


# --- estimates -------------------------------------------------------------------------------------------------------


def estimate(messages: Iterable[msg.Message], tools: Iterable[ToolDefinition] = (), model: str | None = None) -> int:
    """Return the tokens of a prompt; without a model, those of an average one."""
    return max(1, round(family_of(model).tokens(measure(messages, tools))))


def estimate_content(content: Iterable[msg.ContentBlock], model: str | None = None) -> int:
    """Return the tokens of the blocks of an answer, without a message around them."""
    meter = _Meter()
    meter.add_blocks(content)
    return round(family_of(model).tokens(meter.measure()))


def estimate_with_history(messages: Sequence[msg.Message], tools: Sequence[ToolDefinition], model: str) -> int:
    """Return the tokens of a prompt, corrected by the last usage of the model that its messages report."""
    ratio = find_ratio(model, messages, tools) or 1.0
    return max(1, round(ratio * family_of(model).tokens(measure(messages, tools))))


def make_estimate(
    model: str,
    history: Sequence[msg.Message],
    tools: Iterable[ToolDefinition] = (),
    *,
    view: View = tuple,
    usual_ratio: float = 1.0,
) -> Estimate:
    """Return an estimate of messages that is corrected by the last usage of the model that the history reports.

    ``usual_ratio`` is the correction for a history without such a usage.
    """
    ratio = find_ratio(model, history, tools, view=view) or usual_ratio
    family = family_of(model)

    def estimate_messages(messages: Sequence[msg.Message]) -> int:
        return max(1, round(ratio * family.tokens(measure(messages))))

    return estimate_messages


def find_ratio(
    model: str, history: Sequence[msg.Message], tools: Iterable[ToolDefinition] = (), *, view: View = tuple
) -> float | None:
    """Return the tokens that the provider counted for the last prompt of the model, by those that are estimated for it.

    ``view`` returns the messages that were sent of a history, such as those with a summary. ``None`` is returned for a
    history without such a prompt.
    """
    for at in range(len(history) - 1, 0, -1):
        tokens = _prompt_count(history[at], model)
        if tokens >= _MIN_TOKENS:
            lowest, highest = _RATIOS
            return min(highest, max(lowest, tokens / estimate(view(history[:at]), tuple(tools), model)))
    return None


def _prompt_count(message: msg.Message, model: str) -> int:
    """Return the tokens of the prompt of an answer that this model gave, as its provider counted them."""
    usage, metadata = message.metadata.usage, message.metadata
    if message.role is not msg.Role.ASSISTANT or usage is None or usage.estimated or metadata.model != model:
        return 0
    if metadata.extra and msg.OMITTED_MESSAGES in metadata.extra:  # its prompt is a part of the messages before it
        return 0
    return usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
