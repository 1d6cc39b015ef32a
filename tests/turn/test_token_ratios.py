"""Tests of token estimates of a new session, which are corrected by the usage of other sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import open_store, tokens
from dragoman.message import Message, MessageMetadata, Role, TextBlock, Usage
from dragoman.store import Store
from dragoman.turn.services import HIGHEST_RATIO, LOWEST_RATIO, TokenRatios

MODEL = "openai:gpt-5"
QUESTION = "The weather is nice today, so let us take a walk in the park. " * 20


async def store_session(store: Store, factor: float, model: str = MODEL) -> None:
    """Store a session whose provider counted ``factor`` times the estimate."""
    session = await store.create_session()
    question = Message.user(QUESTION)
    usage = Usage(
        input_tokens=round(factor * tokens.estimate([question], (), model)),
        output_tokens=1,
        cost_usd=None,
        pricing_version="1",
        latency_ms=1,
    )
    answer = question.replace(
        role=Role.ASSISTANT, content=(TextBlock("Yes."),), metadata=MessageMetadata(model=model, usage=usage)
    )
    for message in (question, answer):
        await store.append(session.id, message.replace(session_id="", id=""))


@pytest.mark.parametrize(("factor", "ratio"), [(1.25, 1.25), (40, HIGHEST_RATIO), (0.3, LOWEST_RATIO)])
async def test_new_process_learns_from_the_newest_session_of_the_model(
    tmp_path: Path, factor: float, ratio: float
) -> None:
    store_url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with open_store(store_url) as store:
        await store_session(store, 0.8)
        await store_session(store, factor)
        await store_session(store, 1.0, "openai:gpt-4o")
    async with open_store(store_url) as store:
        ratios = TokenRatios(store)
        assert ratios.get(MODEL) == 1
        await ratios.load(MODEL, ())
        assert ratios.get(MODEL) == pytest.approx(ratio, rel=0.02)
        await ratios.load("openai:gpt-6", ())
        assert ratios.get("openai:gpt-6") == 1


async def test_store_is_read_once_per_model() -> None:
    async with open_store("memory:") as store:
        ratios = TokenRatios(store)
        await ratios.load(MODEL, ())
        await store_session(store, 1.25)
        await ratios.load(MODEL, ())
        assert ratios.get(MODEL) == 1
        ratios.learn(MODEL, 1.1)
        assert ratios.get(MODEL) == 1.1


def test_estimate_without_own_usage_uses_the_usual_ratio() -> None:
    question = Message.user(QUESTION)
    raw = tokens.estimate([question], (), MODEL)
    assert tokens.find_ratio(MODEL, [question]) is None
    assert tokens.make_estimate(MODEL, [question], usual_ratio=1.5)([question]) == pytest.approx(raw * 1.5, rel=0.01)
