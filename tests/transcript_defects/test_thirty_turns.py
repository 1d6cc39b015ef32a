"""Tests of a conversation that changes its provider in every turn: no request is rejected, and each provider receives its
own signatures and ids byte for byte.

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
    IMAGE,
    SESSION,
    TOOLS,
    Numbers,
    adapter,
    calls_in,
    make_message,
    make_result,
    system,
)

TURNS = 30


class Conversation:
    """One session with all of the fakes."""

    def __init__(self, fakes: dict[str, StrictProvider], chance: random.Random) -> None:
        self.fakes = fakes
        self.chance = chance
        self.numbers = Numbers()
        self.ids = ToolIds()
        self.history: list[Message] = [system(self.numbers)]

    async def turn(self, dialect: str) -> None:
        """Send a question to the provider of a dialect, with a random number of rounds of tools."""
        images = (IMAGE,) if self.chance.random() < 0.4 else ()
        count = self.numbers.count
        self.history.append(make_message(self.numbers, Role.USER, TextBlock(f"Question {count}?"), *images))
        for _ in range(self.chance.choice((0, 1, 1, 2))):
            await self.round(dialect, *self.make_call_parts())
            for block in calls_in(self.history[-1]):
                result_images = (IMAGE,) if self.chance.random() < 0.2 else ()
                self.history.append(make_result(self.numbers, block, f"result {self.numbers.count}", *result_images))
        await self.round(dialect, *self.make_thinking_parts(), text_part(f"Answer {count}."))

    def make_thinking_parts(self) -> list[Part]:
        return [thinking_part(f"Thought {self.numbers.count}.")] if self.chance.random() < 0.7 else []

    def make_call_parts(self) -> list[Part]:
        calls = [call_part("read_file", {"path": f"{self.numbers.count}"}), call_part("list_files", {"deep": True})]
        texts = [text_part("I look.")] if self.chance.random() < 0.5 else []
        return [*self.make_thinking_parts(), *texts, *calls[: self.chance.choice((1, 2))]]

    async def round(self, dialect: str, *parts: Part) -> None:
        """Send one request, and store and read its answer."""
        fake, is_streamed = self.fakes[dialect], self.chance.random() < 0.5
        source = adapter(dialect, self.ids)
        fake.answer_with(*parts)
        status, data = await ask(fake, self.wire(dialect, source), stream=is_streamed)
        assert status == 200, data
        reader = source.stream_response(_split_stream(data), self.context(source)) if is_streamed else None
        context = self.context(source)
        if reader is None:
            message = source.from_wire_response(data, context)
        else:
            message = source.make_message(fold([event async for event in reader]), context)
        self.numbers.next()
        self.history.append(decode(encode(message)))

    def wire(self, dialect: str, source: Adapter | None = None) -> Any:
        """Return the request with the whole history for the provider of a dialect."""
        source = source or adapter(dialect, self.ids)
        planned = plan_swap(self.history, source, policy="placeholder", tools=TOOLS).messages
        return source.to_wire(planned, TOOLS, Options(max_output_tokens=64)).wire

    def context(self, source: Adapter) -> RequestContext:
        ahead = Numbers()
        ahead.count = self.numbers.count
        name, when = ahead.next()
        return RequestContext(
            session_id=SESSION,
            message_id=name,
            created_at=when,
            routing=RoutingDecisionRecord(RoutingMode.OVERRIDE, source.model.id, "its turn"),
            usage=Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal(0), pricing_version="v", latency_ms=1),
        )


async def _split_stream(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 50):
        yield data[start : start + 50]


def find_marks(value: Any) -> list[str]:
    """Return every signature and id in a request, in order."""
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
        return [mark for item in value for mark in find_marks(item)]
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in names if isinstance(value.get(name), str)]
    return own + [mark for item in value.values() for mark in find_marks(item)]


async def run_conversation(stack: AsyncExitStack, seed: int) -> Conversation:
    """Run thirty turns, each with another provider than the one before."""
    fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in dialects.callable_names()}
    conversation = Conversation(fakes, random.Random(seed))
    order = list(fakes)
    before = ""
    for number in range(TURNS):
        if number % len(order) == 0:
            conversation.chance.shuffle(order)
        name = order[number % len(order)]
        name = name if name != before else order[(number + 1) % len(order)]
        await conversation.turn(name)
        before = name
    return conversation


@pytest.mark.parametrize("seed", range(3))
async def test_thirty_turns_with_changing_providers_are_accepted(seed: int) -> None:
    async with AsyncExitStack() as stack:
        conversation = await run_conversation(stack, seed)
        assert [fake.refusals for fake in conversation.fakes.values()] == [[]] * len(conversation.fakes)
        assert check(conversation.history) == ()
        assert {block.type for message in conversation.history for block in message.content} >= {
            "text", "image", "thinking", "tool_use", "tool_result",
        }  # fmt: skip
        # Each provider continues the stored conversation.
        conversation.history = [decode(encode(message)) for message in conversation.history]
        conversation.history.append(make_message(conversation.numbers, Role.USER, TextBlock("And now?")))
        for name, fake in conversation.fakes.items():
            status, data = await ask(fake, conversation.wire(name))
            assert (status, fake.refusals) == (200, []), data


@pytest.mark.parametrize("dialect", dialects.callable_names())
async def test_own_turn_is_sent_again_byte_for_byte(dialect: str) -> None:
    """The turn of the first provider is sent again after turns of all others, exactly as before."""
    others = [name for name in dialects.callable_names() if name != dialect]
    async with AsyncExitStack() as stack:
        fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in dialects.callable_names()}
        conversation = Conversation(fakes, random.Random(dialect))
        conversation.history.append(make_message(conversation.numbers, Role.USER, TextBlock("Look."), IMAGE))
        await conversation.round(
            dialect,
            thinking_part("Hm."),
            text_part("I look."),
            call_part("read_file", {"path": "a"}),
            call_part("list_files"),
        )
        for block in calls_in(conversation.history[-1]):
            conversation.history.append(make_result(conversation.numbers, block, "found"))
        await conversation.round(dialect, thinking_part("So."), text_part("It is Foo."))
        conversation.history.append(make_message(conversation.numbers, Role.USER, TextBlock("Go on.")))
        at_home = conversation.wire(dialect)
        own_marks = find_marks(at_home)
        conversation.history.pop()
        for name in others:
            await conversation.turn(name)
        conversation.history.append(make_message(conversation.numbers, Role.USER, TextBlock("Go on.")))
        back = conversation.wire(dialect, adapter(dialect, ToolIds(conversation.ids.entries)))
        status, data = await ask(fakes[dialect], back)
        assert status == 200, data
    key = next(key for key in ("messages", "input", "contents") if key in back)
    count = len(at_home[key]) - 1  # all but the last question
    assert back[key][:count] == at_home[key][:count]
    assert find_marks(back)[: len(own_marks)] == own_marks
    if dialect != "ollama":  # its calls have no ids
        assert own_marks
    if dialect in ("anthropic", "bedrock_converse", "gemini", "openai_responses"):  # they sign their reasoning
        assert len(set(own_marks) & fakes[dialect].issued.signatures.keys()) >= 2
    own = [message for message in conversation.history if message.metadata.provider == adapter(dialect).provider.key]
    assert any(isinstance(block, ToolUseBlock) for message in own for block in message.content)
