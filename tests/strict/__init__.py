"""Strict fake providers: one for each dialect, that refuses what the real one refuses.

    refusals("anthropic", body)              what would be refused, in the provider's words; [] if nothing
    async with strict_provider("anthropic") as fake:
        fake.base_url, fake.bodies, fake.refused, fake.issued
        fake.say("…"); fake.call("tool", {…}, thinking="…")       what it answers, in order; else a sentence of its own
        fake.answer_with(think("…"), say("…"), call("tool", {…}), call("tool", {…}))
        fake.fail(429, "slow down", {"retry-after": "1"}); fake.cut(100, say("…"))

``python -m pytest tests/strict`` shows that they are strict: bad bodies are refused, recorded good ones are not.
"""

from tests.strict.script import Call, Issued, Part, Say, Think, call, say, think
from tests.strict.server import Received, StrictProvider, fakes, refusals, strict_provider

__all__ = [
    "Call",
    "Issued",
    "Part",
    "Received",
    "Say",
    "StrictProvider",
    "Think",
    "call",
    "fakes",
    "refusals",
    "say",
    "strict_provider",
    "think",
]
