"""Chunks that repeat the one before them but for a few words.

    decode_plain_chunk(data) -> chunk              a chunk of the shape that most have; any other is an error
    pop_text(delta, key) -> words          the words under a key; what remains can be compared
    Pattern.repeats(chunk, choice)          whether a chunk says nothing else than the one before
    Pattern.find_text(data) -> words         the same, seen by its bytes

Who answers stands in every chunk, and saying it twice is saying it once. So a chunk that says the same as the one
before adds words alone, and need not be put together key by key.

The one rule: whatever is recognised here is what the long way would have made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.event import StreamEvent, TextDelta, ThinkingDelta, ToolUseInputDelta

_Quiet = str | UnsetType | None


class _Arguments(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    arguments: str


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    index: int
    function: _Arguments


class _Delta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: _Quiet = UNSET
    role: _Quiet = UNSET
    reasoning_content: _Quiet = UNSET
    reasoning: _Quiet = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: tuple[_Call] | UnsetType | None = UNSET


class _Choice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    delta: _Delta
    index: int = 0
    finish_reason: UnsetType | None = UNSET
    logprobs: UnsetType | None = UNSET
    native_finish_reason: UnsetType | None = UNSET


class _Chunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk of one choice, which goes on and says nothing that is not known."""

    choices: tuple[_Choice]
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    system_fingerprint: _Quiet = UNSET
    service_tier: _Quiet = UNSET
    provider: _Quiet = UNSET
    usage: None = None
    obfuscation: str = ""  # padding of OpenAI's
    p: str = ""  # padding of Mistral's


decode_plain_chunk: Final = msgspec.json.Decoder(_Chunk).decode
EVENTS: Final[dict[str, Callable[[int, str], StreamEvent]]] = {
    "content": TextDelta,
    "reasoning_content": ThinkingDelta,
    "reasoning": ThinkingDelta,
    "tool_calls": ToolUseInputDelta,
}


class Pattern(msgspec.Struct):
    """What the last chunk said beside its words, and what those became. A chunk that says the same adds words alone.

    If even the bytes are the same but for the words, they need not be read again: ``before`` and ``after`` are what
    stood around the words, from one quote to the other. Some pad every chunk with letters at its end.
    """

    key: str
    chunk: _Chunk
    choice: _Choice  # without its words
    index: int  # of the events
    texts: list[str]
    event: Callable[[int, str], StreamEvent]
    before: bytes = b""
    after: bytes = b""
    is_padded: bool = False
    tries: int = 4  # at learning the bytes

    def matches(self, chunk: _Chunk, choice: _Choice) -> bool:
        """Whether a chunk, its words taken out, says nothing else than the last one."""
        last = self.chunk
        return (
            choice == self.choice
            and chunk.system_fingerprint == last.system_fingerprint
            and chunk.service_tier == last.service_tier
            and chunk.provider == last.provider
        )

    def find_text(self, data: bytes) -> str:
        """The words of a chunk that has the same bytes around them; nothing if it has others."""
        end = len(data)
        if self.is_padded:
            end = data.rfind(b'"', 0, -4) + 1
            if data[-4:] != _AFTER_PADDING or not data[end:-4].isalnum():
                return ""
        if not data.endswith(self.after, 0, end):
            return ""
        try:
            return _text_from(data[len(self.before) - 1 : end - len(self.after) + 1])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""

    def learn(self, data: bytes, frame: bytes, text: str) -> None:
        """See which bytes stand around the words, and prove it by other words in their place."""
        self.tries -= 1
        encoded = msgspec.json.encode(text)
        at = data.find(encoded)
        before, after = data[: at + 1], data[at + len(encoded) - 1 :]
        padding = decode_plain_chunk(frame).obfuscation.encode()
        is_padded = padding.isalnum() and after.endswith(padding + _AFTER_PADDING)
        if is_padded:
            after = after[: -len(padding) - len(_AFTER_PADDING)]
        probe = before + b"probe" + after + (b"padding" + _AFTER_PADDING if is_padded else b"")
        try:
            chunk = decode_plain_chunk(probe[data.find(frame) :])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        (choice,) = chunk.choices
        if pop_text(choice.delta, self.key) == "probe" and self.matches(chunk, choice):
            self.before, self.after, self.is_padded = before, after, is_padded


_AFTER_PADDING: Final = b'"}\n\n'
_text_from: Final = msgspec.json.Decoder(str).decode


def pop_text(delta: _Delta, key: str) -> str | None:
    """The words under a key, which are no longer there then: what remains can be compared."""
    text: _Quiet
    match key:
        case "content":
            text, delta.content = delta.content, None
        case "reasoning_content":
            text, delta.reasoning_content = delta.reasoning_content, None
        case "reasoning":
            text, delta.reasoning = delta.reasoning, None
        case _:
            if not delta.tool_calls:
                return None
            function = delta.tool_calls[0].function
            text, function.arguments = function.arguments, ""
    return text if isinstance(text, str) else None
