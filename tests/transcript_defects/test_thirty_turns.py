"""A conversation that changes its provider in every turn: no request is rejected, and each provider receives its own
signatures and ids byte for byte.

Each turn is a question, the rounds of tools that the fake requests, and an answer, over real sockets, half of them
streamed. Requests are written by the adapter of a real model from the whole history, after the plan for a swap. The fakes
reject foreign reasoning, and calls without their own reasoning where it is required.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any

import pytest

from dragoman import check, decode, dialects, encode
from dragoman.adapter import Adapter, RequestContext
from dragoman.event import fold
from dragoman.exchange import Options
from dragoman.handoff import plan_swap
from dragoman.ids import ToolIds
from dragoman.message import Message, Role, RoutingDecisionRecord, RoutingMode, TextBlock, ToolUseBlock, Usage
from tests.fake_providers import Part, StrictProvider, call_part, strict_provider, text_part, thinking_part
from tests.fake_providers.test_fakes import ask
from tests.transcript_defects.valid_transcripts import (
    PICTURE,
    SESSION,
    TOOLS,
    Numbers,
    adapter,
    answered,
    calls_in,
    said,
    system,
)

TURNS = 30


class Talk:
    """One session with all of the fakes."""

    def __init__(self, fakes: dict[str, StrictProvider], chance: random.Random) -> None:
        self.fakes = fakes
        self.chance = chance
        self.numbers = Numbers()
        self.ids = ToolIds()
        self.history: list[Message] = [system(self.numbers)]

    async def turn(self, dialect: str) -> None:
        """A question to the provider of a dialect, with as many rounds of tools as it wants."""
        picture = (PICTURE,) if self.chance.random() < 0.4 else ()
        count = self.numbers.count
        self.history.append(said(self.numbers, Role.USER, TextBlock(f"Question {count}?"), *picture))
        for _ in range(self.chance.choice((0, 1, 1, 2))):
            await self.round(dialect, *self.calling())
            for block in calls_in(self.history[-1]):
                more = (PICTURE,) if self.chance.random() < 0.2 else ()
                self.history.append(answered(self.numbers, block, f"result {self.numbers.count}", *more))
        await self.round(dialect, *self.thinking(), text_part(f"Answer {count}."))

    def thinking(self) -> list[Part]:
        return [thinking_part(f"Thought {self.numbers.count}.")] if self.chance.random() < 0.7 else []

    def calling(self) -> list[Part]:
        calls = [call_part("read_file", {"path": f"{self.numbers.count}"}), call_part("list_files", {"deep": True})]
        words = [text_part("I look.")] if self.chance.random() < 0.5 else []
        return [*self.thinking(), *words, *calls[: self.chance.choice((1, 2))]]

    async def round(self, dialect: str, *parts: Part) -> None:
        """One request and its answer, which is stored and read again."""
        fake, is_streamed = self.fakes[dialect], self.chance.random() < 0.5
        speaking = adapter(dialect, self.ids)
        fake.answer_with(*parts)
        status, data = await ask(fake, self.wire(dialect, speaking), stream=is_streamed)
        assert status == 200, data
        reader = speaking.stream_response(_at_once(data), self.context(speaking)) if is_streamed else None
        context = self.context(speaking)
        if reader is None:
            message = speaking.from_wire_response(data, context)
        else:
            message = speaking.make_message(fold([event async for event in reader]), context)
        self.numbers.next()
        self.history.append(decode(encode(message)))

    def wire(self, dialect: str, speaking: Adapter | None = None) -> Any:
        """The whole history, as the provider of a dialect would be sent it now."""
        speaking = speaking or adapter(dialect, self.ids)
        shown = plan_swap(self.history, speaking, policy="placeholder", tools=TOOLS).messages
        return speaking.to_wire(shown, TOOLS, Options(max_output_tokens=64)).wire

    def context(self, speaking: Adapter) -> RequestContext:
        ahead = Numbers()
        ahead.count = self.numbers.count
        name, when = ahead.next()
        return RequestContext(
            session_id=SESSION,
            message_id=name,
            created_at=when,
            routing=RoutingDecisionRecord(RoutingMode.OVERRIDE, speaking.model.id, "its turn"),
            usage=Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal(0), pricing_version="v", latency_ms=1),
        )


async def _at_once(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 50):
        yield data[start : start + 50]


def marks(value: Any) -> list[str]:
    """Every signature and id that stands in a request, in order."""
    names = (
        "signature",
        "thoughtSignature",
        "encrypted_content",
        "id",
        "call_id",
        "tool_use_id",
        "toolUseId",
        "tool_call_id",
    )
    if isinstance(value, list):
        return [mark for item in value for mark in marks(item)]
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in names if isinstance(value.get(name), str)]
    return own + [mark for item in value.values() for mark in marks(item)]


async def conversation(stack: AsyncExitStack, seed: int) -> Talk:
    """Thirty turns, each with another provider than the one before."""
    fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in dialects.callable_names()}
    talk = Talk(fakes, random.Random(seed))
    order = list(fakes)
    before = ""
    for number in range(TURNS):
        if number % len(order) == 0:
            talk.chance.shuffle(order)
        name = order[number % len(order)]
        name = name if name != before else order[(number + 1) % len(order)]
        await talk.turn(name)
        before = name
    return talk


@pytest.mark.parametrize("seed", range(3))
async def test_thirty_turns_with_changing_providers_are_refused_by_none(seed: int) -> None:
    async with AsyncExitStack() as stack:
        talk = await conversation(stack, seed)
        assert [fake.refusals for fake in talk.fakes.values()] == [[]] * len(talk.fakes)
        assert check(talk.history) == ()
        assert {block.type for message in talk.history for block in message.content} >= {
            "text", "image", "thinking", "tool_use", "tool_result",
        }  # fmt: skip
        # Continued by each of them, from what was stored.
        talk.history = [decode(encode(message)) for message in talk.history]
        talk.history.append(said(talk.numbers, Role.USER, TextBlock("And now?")))
        for name, fake in talk.fakes.items():
            status, data = await ask(fake, talk.wire(name))
            assert (status, fake.refusals) == (200, []), data


@pytest.mark.parametrize("dialect", dialects.callable_names())
async def test_whoever_speaks_again_gets_back_what_it_said_byte_for_byte(dialect: str) -> None:
    """The first provider's own turn is sent again, after all others have spoken, exactly as it was sent before."""
    others = [name for name in dialects.callable_names() if name != dialect]
    async with AsyncExitStack() as stack:
        fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in dialects.callable_names()}
        talk = Talk(fakes, random.Random(dialect))
        talk.history.append(said(talk.numbers, Role.USER, TextBlock("Look."), PICTURE))
        await talk.round(
            dialect,
            thinking_part("Hm."),
            text_part("I look."),
            call_part("read_file", {"path": "a"}),
            call_part("list_files"),
        )
        for block in calls_in(talk.history[-1]):
            talk.history.append(answered(talk.numbers, block, "found"))
        await talk.round(dialect, thinking_part("So."), text_part("It is Foo."))
        talk.history.append(said(talk.numbers, Role.USER, TextBlock("Go on.")))
        at_home = talk.wire(dialect)
        given = marks(at_home)
        talk.history.pop()
        for name in others:
            await talk.turn(name)
        talk.history.append(said(talk.numbers, Role.USER, TextBlock("Go on.")))
        back = talk.wire(dialect, adapter(dialect, ToolIds(talk.ids.entries)))
        status, data = await ask(fakes[dialect], back)
        assert status == 200, data
    key = next(key for key in ("messages", "input", "contents") if key in back)
    count = len(at_home[key]) - 1  # all but the last question
    assert back[key][:count] == at_home[key][:count]
    assert marks(back)[: len(given)] == given
    if dialect != "ollama":  # which names no calls
        assert given
    if dialect in ("anthropic", "bedrock_converse", "gemini", "openai_responses"):  # which sign their reasoning
        assert len(set(given) & fakes[dialect].issued.signatures.keys()) >= 2
    own = [message for message in talk.history if message.metadata.provider == adapter(dialect).provider.key]
    assert any(isinstance(block, ToolUseBlock) for message in own for block in message.content)
