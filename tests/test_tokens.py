"""Tests of estimates of prompt tokens: counts, families, and the correction by reported usage."""

from __future__ import annotations

import base64
import re
import statistics
import struct

import pytest

from dragoman import tokens
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import (
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ToolUseBlock,
    Usage,
)
from scripts import fit_tokens
from tests.conftest import CORPUS
from tests.test_codec import NOW

MODEL = "openai:gpt-5"
CHINESE = "今天天气很好我们去公园散步吧" * 100
ENGLISH = "The weather is nice today, so let us take a walk in the park. " * 20
CODE = 'def read_file(path: str) -> bytes:\n    with open(path, "rb") as file:\n        return file.read()\n' * 10
TOOL = ToolDefinition(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string", "description": "The path."}}, "required": ["path"]},
    SideEffects.READ,
)


def message(role: Role, *blocks: object, **metadata: object) -> Message:
    return Message("01HZ001", "s", role, blocks, MessageMetadata(**metadata), NOW)  # type: ignore[arg-type]


def tokens_of(text: str, model: str | None = MODEL) -> int:
    return tokens.estimate([message(Role.USER, TextBlock(text))], (), model)


def png(width: int, height: int) -> ImageBlock:
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height) + bytes(20)
    return ImageBlock(ImageSource("base64", base64.b64encode(head).decode()), "image/png")


@pytest.mark.parametrize("family", tokens.families(), ids=lambda family: family.name)
def test_every_family_counts_more_for_longer_prompts(family: tokens.Family) -> None:
    def count(*blocks: object, tools: tuple[ToolDefinition, ...] = ()) -> float:
        return family.tokens(tokens.measure([message(Role.USER, *blocks)], tools))

    short = count(TextBlock("Hi."))
    assert 0 < short < count(TextBlock(ENGLISH)) < count(TextBlock(ENGLISH), TextBlock(CODE))
    assert len(CHINESE) * 0.3 < count(TextBlock(CHINESE)) - short < len(CHINESE) * 3
    assert len(ENGLISH) / 7 < count(TextBlock(ENGLISH)) - short < len(ENGLISH) / 2.5
    assert short <= count(TextBlock("Hi."), tools=(TOOL,))


def test_chinese_has_more_tokens_than_a_quarter_of_its_characters() -> None:
    assert tokens_of(CHINESE) > len(CHINESE) * 0.6
    assert tokens_of(ENGLISH) < len(ENGLISH) / 3


def test_counts_equal_those_of_the_patterns() -> None:
    text = "HTMLParser reads camelCase, snake_case and 1234567 -> ABc\n\n\tüber 漢字  😀 internationalization"
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]", text)
    digits, signs = re.findall(r"[0-9]+", text), re.findall(r"[!-/:-@\[-`{-~]+", text)
    counts = dict(zip(tokens.TEXT_COUNTS, tokens.measure_text(text), strict=True))
    assert counts == {
        "word": len(parts),
        "long": sum(max(0, len(part) - 6) for part in parts),
        "longer": sum(max(0, len(part) - 10) for part in parts),
        "upper": sum(len(part) - 1 for part in parts if part.isupper()),
        "digit": sum(map(len, digits)),
        "number": sum(-(-len(number) // 3) for number in digits),
        "sign": len(signs),
        "sign_more": sum(len(run) - 1 for run in signs),
        "line": 1,
        "space": 1,
        "han": 2,
        "hangul": 0,
        "latin": 1,
        "cyrillic": 0,
        "letter": 0,
        "symbol": 0,
        "astral": 1,
    }


def test_long_text_is_sampled_and_not_cached() -> None:
    paragraph = "The quick brown fox jumps over 13 lazy dogs; internationalization, naïveté and HTMLParser.\n"
    single = sum(tokens.measure_text(paragraph))
    cached = tokens._count_short.cache_info().currsize
    assert sum(tokens.measure_text(paragraph * 20_000)) == pytest.approx(20_000 * single, rel=0.02)
    assert tokens._count_short.cache_info().currsize == cached


def test_first_family_with_a_matching_pattern_counts() -> None:
    families = {
        model: tokens.family_of(model).name
        for model in (
            "openai:gpt-4o",
            "gpt-4-turbo",
            "azure:gpt-5-mini",
            "anthropic:claude-opus-4-8",
            "claude-sonnet-4-6",
        )
    }
    assert list(families.values()) == ["gpt-4o", "gpt-4", "gpt-5", "claude-5", "claude-4.5"]
    assert tokens.family_of("acme:rocket").name == tokens.family_of(None).name == "other"


def test_tools_calls_and_results_are_counted() -> None:
    question = [message(Role.USER, TextBlock("Hi."))]
    call = message(Role.ASSISTANT, ToolUseBlock("tu_1", "read_file", {"path": "a/long/path/to/a/file.txt"}))
    plain = tokens.estimate(question, (), "anthropic:claude-sonnet-4-6")
    assert (
        tokens.estimate(question, [TOOL], "anthropic:claude-sonnet-4-6") > plain + 300
    )  # the provider adds a prompt about tools
    assert tokens.estimate([*question, call], (), "anthropic:claude-sonnet-4-6") > plain + 8
    assert tokens.estimate_content(call.content, MODEL) >= 8
    assert tokens.estimate_content((), MODEL) == 0


def test_large_image_has_more_tokens_than_a_small_image() -> None:
    small, large = (
        tokens.estimate([message(Role.USER, png(*size))], (), "openai:gpt-4o") for size in ((64, 64), (2000, 1500))
    )
    assert small + 300 < large
    unknown = ImageBlock(ImageSource("url", "https://example.com/a.png"), "image/png")
    assert tokens.estimate([message(Role.USER, unknown)], (), "openai:gpt-4o") > 100


def make_usage(prompt: int, *, estimated: bool = False, model: str = MODEL) -> dict[str, object]:
    usage = Usage(
        input_tokens=prompt, output_tokens=1, estimated=estimated, cost_usd=None, pricing_version="1", latency_ms=1
    )
    return {"usage": usage, "model": model}


def test_reported_usage_of_a_history_corrects_the_estimate() -> None:
    question = message(Role.USER, TextBlock(CHINESE))
    raw = tokens.estimate([question], (), MODEL)
    history = [question, message(Role.ASSISTANT, TextBlock("好"), **make_usage(raw * 3))]
    corrected = tokens.make_estimate(MODEL, history)
    assert corrected([question]) == pytest.approx(raw * 3, rel=0.01)
    again = [*history, message(Role.USER, TextBlock("还有呢"))]
    assert tokens.estimate_with_history(again, (), MODEL) == pytest.approx(
        3 * tokens.estimate(again, (), MODEL), rel=0.01
    )
    shortened = {**make_usage(raw * 3), "extra": {"omitted_messages": 2}}  # the provider counted a part of the messages
    for other in (make_usage(raw * 3, estimated=True), make_usage(raw * 3, model="openai:gpt-4o"), shortened, {}):
        unusable = [question, message(Role.ASSISTANT, TextBlock("好"), **other)]
        assert tokens.make_estimate(MODEL, unusable)([question]) == raw
    absurd = [question, message(Role.ASSISTANT, TextBlock("好"), **make_usage(raw * 1000))]
    assert tokens.make_estimate(MODEL, absurd)([question]) == pytest.approx(raw * 6, rel=0.01)
    summarized = [question, *history]  # with a summary, only the last question was sent
    assert tokens.make_estimate(MODEL, summarized, view=lambda sent: sent[1:])([question]) == corrected([question])


# The families whose median error is within 5 % on the half of the recorded traffic that was not fitted.
WITHIN_5_PERCENT = (
    "gpt-4o",
    "gpt-5",
    "gpt-4",
    "gpt-oss",
    "o-series",
    "claude-4.5",
    "claude-4",
    "claude-3",
    "gemini-2.5",
    "gemini-3",
    "gemini",
    "claude-5",
    "grok-3",
    "grok-4.3",
    "mistral-small",
    "qwen",
    "command-a",
    "nova-2",
    "gemini-3-vertex",
    "mistral-large",
    "llama-3.3",
    "llama-bare",
    "command",
    "venice",
    "nova",
)


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the recorded traffic is not here")
def test_median_error_is_within_5_percent_of_recorded_usage() -> None:
    samples = list(fit_tokens.read_samples(CORPUS, with_fitted=False))
    errors = fit_tokens.errors_by_family(samples, tokens.families())
    medians = {name: statistics.median(errors[name]) for name in WITHIN_5_PERCENT}
    assert {name: error for name, error in medians.items() if error > 0.05} == {}
    assert sum(len(errors[name]) for name in WITHIN_5_PERCENT) > 2000
