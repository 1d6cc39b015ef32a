"""Strict fake providers: one per dialect. Each rejects the requests that the real provider rejects.

    refusals("anthropic", body)              the reasons for a rejection, with the texts of the provider; [] if it is accepted
    async with strict_provider("anthropic") as fake:
        fake.base_url, fake.bodies, fake.refusals, fake.issued
        fake.reply("…"); fake.call("tool", {…}, thinking="…")     scripted replies, in order; then a default reply
        fake.answer_with(thinking_part("…"), text_part("…"), call_part("tool", {…}), call_part("tool", {…}))
        fake.fail(429, "slow down", {"retry-after": "1"}); fake.cut(100, text_part("…"))

The tests in this folder prove that invalid bodies are rejected and recorded valid ones are accepted.
"""

from tests.fake_providers.script import (
    CallPart,
    IssuedSignatures,
    Part,
    TextPart,
    ThinkingPart,
    call_part,
    text_part,
    thinking_part,
)
from tests.fake_providers.server import ReceivedRequest, StrictProvider, fakes, refusals, strict_provider

__all__ = [
    "CallPart",
    "IssuedSignatures",
    "Part",
    "ReceivedRequest",
    "StrictProvider",
    "TextPart",
    "ThinkingPart",
    "call_part",
    "fakes",
    "refusals",
    "strict_provider",
    "text_part",
    "thinking_part",
]
