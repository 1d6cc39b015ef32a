"""Fit the figures of ``src/dragoman/tokens.json`` to recorded traffic, and print the error per model family.

    python -m scripts.fit_tokens FOLDER            print the median error of the figures in the package
    python -m scripts.fit_tokens FOLDER --write    fit them again first

Half of the records (by a hash of their id) is fitted, the other half is measured. First the figures of texts are fitted
per tokenizer, to prompts without tools; then those of the format per family. Both fits minimize the relative errors
(iteratively reweighted least squares) with a small pull toward usual values, and no figure is negative.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from pathlib import Path
from typing import Any, Final

import msgspec

from dragoman import dialects, tokens
from dragoman.cli.prove import read_records
from dragoman.errors import DragomanError
from dragoman.event import fold
from dragoman.exchange import OpaqueTool, Reply, Request
from dragoman.message import ToolResultBlock
from dragoman.tokens import FORMAT_COUNTS, TEXT_COUNTS, Family, Measure

DATA: Final = Path(__file__).parent.parent / "src" / "dragoman" / "tokens.json"
MIN_RECORDS: Final = 5  # of the half that is fitted; models of a family with fewer belong to the next that matches
MIN_OWN_RECORDS: Final = 10  # a family with fewer is fitted with the narrower ones of its name: grok with grok-3
# Families, the first that matches: name, tokenizer, pattern of ``provider:model``.
FAMILIES: Final = (
    ("venice", "o200k", r"^venice"),
    ("gpt-4", "cl100k", r"gpt-3\.5|gpt-4(?![o.\d])"),
    ("gpt-oss", "o200k", r"gpt-oss"),
    ("gpt-5", "o200k", r"gpt-5|codex"),
    ("o-series", "o200k", r"\bo[134](-|$)"),
    ("gpt-4o", "o200k", r"gpt-4o|gpt-4\.[15]|chatgpt"),
    ("claude-opus-4.7", "claude-5", r"claude-opus-4[-.]7"),
    ("claude-5", "claude-5", r"claude-(sonnet|opus|haiku)-5|claude-opus-4[-.][789]"),
    ("claude-4.5", "claude", r"claude-(sonnet|opus|haiku)-4[-.][56]"),
    ("claude-4", "claude", r"claude-(sonnet|opus)-4|claude-3[-.]7"),
    ("claude-3", "claude", r"claude"),
    ("gemini-3-vertex", "gemini", r"^vertex.*gemini-3"),
    ("gemini-3", "gemini", r"gemini-3"),
    ("gemini-2.5", "gemini", r"gemini-2\.5"),
    ("gemini", "gemini", r"gemini|gemma|learnlm"),
    ("qwen-3.5", "o200k", r"qwen-?3[.-][56]"),
    ("qwen-ollama", "o200k", r"^ollama.*qwen"),
    ("qwen", "o200k", r"qwen|qwq"),
    ("deepseek-v4", "o200k", r"deepseek-v4|^deepseek"),  # DeepSeek serves its older names with newer models
    ("deepseek", "o200k", r"deepseek(?!.*llama)"),
    ("magistral", "o200k", r"magistral"),
    ("mistral-small", "o200k", r"mistral-small-latest"),
    ("ministral", "o200k", r"^mistral.*ministral"),
    ("mistral-large", "o200k", r"mistral-large"),
    ("mistral-medium", "o200k", r"mistral-medium"),
    ("mistral", "o200k", r"mistral|ministral|mixtral|codestral|pixtral|devstral"),
    ("grok-2", "o200k", r"grok-2"),
    ("grok-3", "o200k", r"grok-3"),
    ("grok-4.3", "o200k", r"grok-4\.3"),
    ("grok", "o200k", r"grok"),
    ("command-a", "o200k", r"command-(a|r7b)"),
    ("command", "o200k", r"command|^cohere"),
    ("nova-2", "o200k", r"nova-2"),
    ("nova", "o200k", r"nova"),
    ("sonar", "o200k", r"sonar"),
    ("llama-bare", "o200k", r"^(nvidia|cerebras|bedrock).*llama-?3|llama3\.1$"),  # without a date in the system prompt
    ("llama-3.3", "o200k", r"llama-?3[.-]?[123]"),
    ("llama", "o200k", r"llama"),
    ("palmyra", "o200k", r"palmyra"),
    ("titan", "o200k", r"titan"),
)
_USUAL_TEXT: Final = {
    "word": 1.0, "long": 0.1, "longer": 0.1, "upper": 0.2, "digit": 0.1, "number": 1.0, "sign": 0.8, "sign_more": 0.3,
    "line": 0.6, "space": 0.7, "han": 1.0, "hangul": 1.0, "latin": 0.7, "cyrillic": 0.5, "letter": 0.8, "symbol": 1.2,
    "astral": 2.5,
}  # fmt: skip
_USUAL_FORMAT: Final = {
    "prompt": 4, "message": 4, "system": 1, "call": 8, "result": 6, "thought": 0.3, "signature": 0.01, "reasoning": 1,
    "usual_reasoning": 0, "no_system": 0,
    "forced": 1, "image": 85, "tile": 170, "area": 0.05, "tools": 20,
    "tool": 10, "tool_text": 1.0, "node": 2, "property": 4, "choice": 1, "required": 1, "keyword": 2, "tool_json": 0,
}  # fmt: skip
# Chat templates of open models write tools as JSON. Their servers leave tools out if the request forbids calls.
_CLOSED: Final = re.compile("gpt|o-series|claude|gemini")
_USUAL_OPEN_FORMAT: Final = {
    **_USUAL_FORMAT, "tool_text": 0, "node": 0, "property": 0, "choice": 0, "required": 0, "keyword": 0, "tool_json": 1,
}  # fmt: skip
# Fields of a request after which the provider adds text of its own or of an earlier call.
_STATE: Final = frozenset(
    {
        "cachedContent",
        "cached_content",
        "connectors",
        "container",
        "context_management",
        "conversation",
        "documents",
        "mcp_servers",
        "plugins",
        "previous_interaction_id",
        "previous_response_id",
        "prompt",
        "search_parameters",
        "web_search_options",
    }
)


class Sample(msgspec.Struct):
    """A recorded prompt: its counts, and its tokens as the provider counted them."""

    model: str  # provider:model
    counts: Measure
    tokens: int
    is_fitted: bool  # belongs to the half that is fitted
    may_call: bool = True  # the request does not forbid calls of tools


def read_samples(folder: Path, *, with_fitted: bool = True) -> Iterator[Sample]:
    """Yield the recorded prompts whose tokens are known and that contain all that was counted.

    Without ``with_fitted``, yield only the half that is measured.
    """
    names = dialects.names_in_recordings()
    for file in sorted(folder.glob("*.jsonl.gz")):
        for record in read_records(file):
            is_fitted = hashlib.sha256(record["id"].encode()).digest()[-1] % 2 == 0
            if is_fitted and not with_fitted:
                continue
            exchange = _read_exchange(record, names)
            if exchange is None or not _is_whole(record, exchange[0]):
                continue
            request, reply = exchange
            usage = reply.usage
            assert usage is not None
            counted = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
            if counted <= 0:
                continue
            model = f"{record['provider']}:{request.model or reply.model or record['endpoint']}"
            counts = tokens.measure(request.messages, request.tools, request.options)  # type: ignore[arg-type]
            choice = request.options.tool_choice
            may_call = choice is None or choice.mode != "none"
            yield Sample(model, counts, counted, is_fitted, may_call)


def _read_exchange(record: dict[str, Any], names: dict[str, str]) -> tuple[Request, Reply] | None:
    is_success = record.get("status") in (200, None) and record.get("kind") != "doctored"
    if not is_success or not isinstance(record.get("request"), dict):
        return None
    dialect = dialects.load(names[record["dialect"]])
    try:
        request = dialect.read_request(record["request"])
        if record.get("stream"):
            reader = dialect.stream_reader(record["stream_format"])
            data = record["stream"].encode("utf-8", "surrogatepass")
            reply = fold([*reader.feed(data), *reader.close()])
        else:
            reply = dialect.read_reply(record["response"])
    except DragomanError:
        return None
    return (request, reply) if reply.usage is not None and not reply.usage.estimated else None


def _is_whole(record: dict[str, Any], request: Request) -> bool:
    """Return whether the provider counted only what the request contains."""
    blocks = [block for message in request.messages for block in message.content]
    inner = [part for block in blocks if isinstance(block, ToolResultBlock) for part in block.content]
    has_media = any(block.type in ("opaque", "document", "audio", "video") for block in (*blocks, *inner))
    has_schema = request.options.response_format is not None and request.options.response_format.kind != "text"
    is_trimmed = "media_trimmed" in (record.get("notes") or ())
    has_server_tools = any(isinstance(tool, OpaqueTool) for tool in request.tools) or _is_system(request.model)
    return not (has_media or has_schema or is_trimmed or has_server_tools or _STATE & record["request"].keys())


def _is_system(model: str | None) -> bool:
    """Return whether a model runs tools with prompts of its own, or stands for any other model."""
    return re.search(r"compound|/auto$", model or "") is not None


def find_families(samples: Sequence[Sample]) -> list[tuple[str, str, str]]:
    """Return the families with enough records, most specific first, and last the one of all models."""
    families = [*FAMILIES, ("other", "o200k", "")]
    while True:
        sizes = Counter(family_name(sample.model, families) for sample in samples)
        small = next((family for family in families[:-1] if sizes[family[0]] < MIN_RECORDS), None)
        if small is None:
            return families
        families.remove(small)


def family_name(model: str, families: Sequence[tuple[str, str, str]]) -> str:
    """Return the name of the family of a model."""
    return next(name for name, _, pattern in families if re.search(pattern, model.lower()))


# --- fit -------------------------------------------------------------------------------------------------------------


def fit(
    rows: Sequence[Sequence[float]], targets: Sequence[float], usual: Sequence[float], first_pull: float = 1.0
) -> list[float]:
    """Return figures, none negative, that minimize the sum of relative errors of ``rows`` times figures.

    Records with a large error count little: some providers do not count all of a prompt. ``first_pull`` is how much
    stronger the first figure is pulled toward its usual value than the others.
    """
    figures = list(usual)
    scaled = [[value / target for value in row] for row, target in zip(rows, targets, strict=True)]
    for _ in range(25):
        errors = [abs(sum(a * b for a, b in zip(row, figures, strict=True)) - 1) for row in scaled]
        weights = [1 / (max(error, 0.01) * (1 + error**2)) for error in errors]
        gram, right = _normal_equations(scaled, weights)
        pulls = [_PULL * row[at] * (1.0 if at else first_pull) + 1e-12 for at, row in enumerate(gram)]
        for _ in range(100):  # coordinate descent, which keeps every figure at 0 or above
            for at, row in enumerate(gram):
                rest = right[at] - sum(a * b for a, b in zip(row, figures, strict=True)) + row[at] * figures[at]
                figures[at] = max(0.0, (rest + pulls[at] * usual[at]) / (row[at] + pulls[at]))
    return figures


_PULL: Final = 0.003
_TOKENIZERS: Final = {  # the families whose texts are fitted together; other families differ by a factor
    "o200k": "gpt-(4o|5|oss)|o-series",
    "cl100k": "gpt-4$",
    "claude": "claude-[34]",
    "claude-5": "claude-5",
    "gemini": "gemini",
}


def _normal_equations(
    rows: Sequence[Sequence[float]], weights: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    size = len(rows[0])
    gram, right = [[0.0] * size for _ in range(size)], [0.0] * size
    for row, weight in zip(rows, weights, strict=True):
        present = [(at, value) for at, value in enumerate(row) if value]
        for at, value in present:
            right[at] += weight * value
            line = gram[at]
            for other, factor in present:
                line[other] += weight * value * factor
    return gram, right


_PLAIN: Final = (
    "prompt",
    "message",
    "system",
    "call",
    "result",
    "signature",
    "reasoning",
)  # the format of prompts without tools and images


def fit_text(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the figures of texts, from prompts without tools and images."""
    plain = [sample for sample in samples if not sample.counts.format["tools"] and not sample.counts.format["image"]]
    rows = [[*sample.counts.text, *(sample.counts.format[name] for name in _PLAIN)] for sample in plain]
    usual = [*_USUAL_TEXT.values(), *(_USUAL_FORMAT[name] for name in _PLAIN)]
    if not rows:
        return dict(_USUAL_TEXT)
    return dict(zip(TEXT_COUNTS, fit(rows, [sample.tokens for sample in plain], usual), strict=False))


def fit_format(name: str, samples: Sequence[Sample], text: dict[str, float]) -> dict[str, float]:
    """Return the figures of the format of a family, with those of texts as they are."""
    is_closed = _CLOSED.match(name) is not None
    if not is_closed:
        samples = [sample for sample in samples if sample.may_call]
    figures = [text[name] for name in TEXT_COUNTS]
    rows = [[sum(map(mul, figures, sample.counts.text)), *sample.counts.format_counts(figures)] for sample in samples]
    if is_closed:
        rows = [[*row[:-1], 0.0] for row in rows]
    usual = (_USUAL_FORMAT if is_closed else _USUAL_OPEN_FORMAT).values()
    scale, *rest = fit(rows, [sample.tokens for sample in samples], [1.0, *usual], first_pull=10)
    return {"scale": scale, **dict(zip(FORMAT_COUNTS, rest, strict=True))}


def fit_families(samples: Sequence[Sample]) -> list[Family]:
    """Return the figures of every family with enough records, and last those of all records together."""
    fitted = [sample for sample in samples if sample.is_fitted]
    names = find_families(fitted)
    by_name: dict[str, list[Sample]] = {name: [] for name, _, _ in names}
    for sample in fitted:
        by_name[family_name(sample.model, names)].append(sample)
    texts = {
        tokenizer: fit_text([sample for name in by_name if re.match(pattern, name) for sample in by_name[name]])
        for tokenizer, pattern in _TOKENIZERS.items()
    }
    families = []
    for name, tokenizer, pattern in names:
        own = by_name[name] if pattern else fitted
        if len(own) < MIN_OWN_RECORDS:
            own = [*own, *(sample for other in by_name if other.startswith(f"{name}-") for sample in by_name[other])]
        form = fit_format(name, own, texts[tokenizer])
        text = {key: value * form["scale"] for key, value in texts[tokenizer].items()}
        for key in ("tool_text", "thought", "tool_json"):
            form[key] /= form["scale"] or 1
        families.append(_make_family(name, pattern, text, form))
    return families


def _make_family(name: str, pattern: str, text: Mapping[str, float], form: Mapping[str, float]) -> Family:
    return Family(
        name,
        pattern,
        tuple(round(text.get(key, 0), 4) for key in TEXT_COUNTS),
        tuple(round(form.get(key, 0), 4) for key in FORMAT_COUNTS),
    )


# --- report ----------------------------------------------------------------------------------------------------------


def errors_by_family(samples: Sequence[Sample], families: Sequence[Family]) -> dict[str, list[float]]:
    """Return the relative errors of the half that is measured, by family, of estimates as users receive them."""
    errors: dict[str, list[float]] = {}
    for sample in samples:
        if not sample.is_fitted:
            family = next(family for family in families if re.search(family.pattern, sample.model.lower()))
            error = abs(max(1, round(family.tokens(sample.counts))) - sample.tokens) / sample.tokens
            errors.setdefault(family.name, []).append(error)
    return errors


def main(arguments: Sequence[str]) -> int:
    """Fit the figures if asked to, and print the errors."""
    logging.disable(logging.WARNING)
    samples = list(read_samples(Path(arguments[0])))
    if "--write" in arguments[1:]:
        rows = [msgspec.to_builtins(family) for family in fit_families(samples)]
        DATA.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", "utf-8")
    errors = errors_by_family(samples, tokens.families())
    print(f"{'family':12} {'prompts':>7} {'median':>7} {'90 %':>7}")
    for name, values in sorted(errors.items(), key=lambda item: -len(item[1])):
        high = sorted(values)[int(len(values) * 0.9)]
        print(f"{name:12} {len(values):7} {statistics.median(values):7.1%} {high:7.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
