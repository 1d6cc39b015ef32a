"""Tests of the exact cost of a turn: from the provider's usage to the message, the turn's end and the totals.

Each row of the table was computed by hand: tokens × dollars per million ÷ 1,000,000, bucket by bucket.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import settings
from dragoman.client import Retries
from dragoman.message import UNPRICED, Usage
from dragoman.pricing import prices_from_mapping
from dragoman.store import open_store
from dragoman.turn import Agent, AgentConfig
from tests.servers.faulty_server import FaultyServer, make_answer

PRICES = prices_from_mapping(
    {
        "pricing_version": "by-hand",
        "models": {
            "claude:model": {
                "input_per_mtok_usd": "3",
                "output_per_mtok_usd": "15",
                "cached_read_per_mtok_usd": "0.30",
                "cache_write_per_mtok_usd": "3.75",
                "cache_write_1h_per_mtok_usd": "6",
            },
            "gpt:model": [
                {
                    "input_per_mtok_usd": "1.25",
                    "output_per_mtok_usd": "10",
                    "cached_read_per_mtok_usd": "0.125",
                    "reasoning_per_mtok_usd": "12",
                },
                {
                    "input_per_mtok_usd": "2.50",
                    "output_per_mtok_usd": "20",
                    "cached_read_per_mtok_usd": "0.25",
                    "service_tier": "priority",
                },
            ],
            "free:model": {"input_per_mtok_usd": "0", "output_per_mtok_usd": "0"},
        },
    }
)
_SETTINGS = """
[providers.claude]
dialect = "anthropic"
base_url = "{address}"
[providers.gpt]
dialect = "openai_chat"
base_url = "{address}"
[providers.free]
dialect = "openai_chat"
base_url = "{address}"
[providers.odd]
dialect = "openai_chat"
base_url = "{address}"
[models."claude:model"]
max_context_tokens = 100000
[models."gpt:model"]
max_context_tokens = 100000
[models."free:model"]
max_context_tokens = 100000
[models."odd:model"]
max_context_tokens = 100000
"""


def claude(**usage: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "model",
        "content": [{"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }


def gpt(tier: str | None = None, **usage: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "model", "choices": [choice]}
    return {**body, "usage": usage, **({"service_tier": tier} if tier else {})}


TABLE = [
    # 1,000 × 3 + 200 × 15 = 3,000 + 3,000 → 6,000 / 10⁶
    ("claude", claude(input_tokens=1_000, output_tokens=200), "0.006"),
    # 10 × 3 + 5,000 × 0.30 + 7 × 15 = 30 + 1,500 + 105 → 1,635 / 10⁶
    ("claude", claude(input_tokens=10, cache_read_input_tokens=5_000, output_tokens=7), "0.001635"),
    # 1 × 3 + 300 × 3.75 + 100 × 6 + 1 × 15 = 3 + 1,125 + 600 + 15 → 1,743 / 10⁶
    (
        "claude",
        claude(
            input_tokens=1,
            cache_creation_input_tokens=400,
            cache_creation={"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 100},
            output_tokens=1,
        ),
        "0.001743",
    ),
    # (900 - 600) × 1.25 + 600 × 0.125 + (80 - 50) × 10 + 50 × 12 = 375 + 75 + 300 + 600 → 1,350 / 10⁶
    (
        "gpt",
        gpt(
            prompt_tokens=900,
            completion_tokens=80,
            total_tokens=980,
            prompt_tokens_details={"cached_tokens": 600},
            completion_tokens_details={"reasoning_tokens": 50},
        ),
        "0.00135",
    ),
    # 7 × 2.50 + 3 × 20 = 17.5 + 60 → 77.5 / 10⁶
    ("gpt", gpt("priority", prompt_tokens=7, completion_tokens=3, total_tokens=10), "0.0000775"),
    ("free", gpt(prompt_tokens=123_456, completion_tokens=7_890, total_tokens=131_346), "0"),
]


@pytest.mark.parametrize(("provider", "body", "dollars"), TABLE)
async def test_turn_has_the_hand_computed_cost(
    provider: str, body: dict[str, Any], dollars: str, tmp_path: Path
) -> None:
    usage, spent, total = await run_priced_turn(provider, body, tmp_path)
    assert (str(usage.cost_usd), usage.pricing_version, usage.estimated) == (dollars, "by-hand", False)
    assert spent == total == Decimal(dollars)


async def test_model_without_a_price_is_unpriced_and_not_free(tmp_path: Path) -> None:
    usage, spent, total = await run_priced_turn(
        "odd", gpt(prompt_tokens=1, completion_tokens=1, total_tokens=2), tmp_path
    )
    assert (usage.cost_usd, usage.pricing_version, usage.state) == (None, UNPRICED, "unpriced")
    assert (spent, total) == (None, 0)


@pytest.mark.parametrize("count", [2**63 - 1, 10**30, 10**12 - 1, 10**8 + 1, -5, 1.5, "5"])
async def test_impossible_usage_is_estimated_and_the_answer_is_stored(
    count: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for provider, body in (
        ("claude", claude(input_tokens=count, output_tokens=7)),
        ("gpt", gpt(prompt_tokens=3, completion_tokens=count, total_tokens=count)),
    ):
        folder = tmp_path / provider
        folder.mkdir()
        usage, spent, total = await run_priced_turn(provider, body, folder)
        assert usage.estimated
        assert 0 < usage.input_tokens < 1_000
        assert 0 < usage.output_tokens < 1_000
        assert spent == total == usage.cost_usd
        assert "impossible usage" in caplog.text
        caplog.clear()


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("claude", claude(input_tokens=1, output_tokens=2, output_tokens_details={"thinking_tokens": 5})),
        ("gpt", gpt(prompt_tokens=10, completion_tokens=5, prompt_tokens_details={"cached_tokens": 10**8})),
        ("gpt", gpt(prompt_tokens=10, completion_tokens=5, completion_tokens_details={"reasoning_tokens": 10**8})),
    ],
)
async def test_contradicting_counts_are_estimated_and_the_answer_is_stored(
    provider: str, body: dict[str, Any], tmp_path: Path
) -> None:
    usage, spent, total = await run_priced_turn(provider, body, tmp_path)
    assert usage.estimated
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (0, 0)
    assert 0 < usage.input_tokens < 1_000
    assert 0 < usage.output_tokens < 1_000
    assert spent == total == usage.cost_usd


async def test_answer_without_usage_is_estimated_and_marked(tmp_path: Path) -> None:
    body = claude()
    del body["usage"]
    usage, _, _ = await run_priced_turn("claude", body, tmp_path)
    assert usage.estimated
    assert usage.input_tokens > 0


async def run_priced_turn(provider: str, body: dict[str, Any], folder: Path) -> tuple[Usage, Decimal, Decimal]:
    """Return the usage of the message, and the costs of the turn's end and of the store's totals."""
    async with FaultyServer([make_answer(msgspec.json.encode(body))]) as server, open_store("memory:") as store:
        file = folder / "config.toml"
        file.write_text(_SETTINGS.format(address=server.address))
        file.chmod(0o600)
        loaded = settings.load(environment={}, file=file, keyring=lambda _: None)
        retries = Retries(max_retries=0)
        config = AgentConfig(price_table=PRICES, stream=False, retries=retries)
        async with Agent(store, settings=loaded, config=config) as agent:
            session = await store.create_session()
            ended = await agent.run(session.id, "Is it so?", model=f"{provider}:model")
            assert ended.fault is None
            (row,) = await store.tail(session.id, 1)
            assert row.message.metadata.usage is not None
            (totals,) = await store.costs.totals("session")
            return row.message.metadata.usage, ended.cost_usd, totals.cost_usd
