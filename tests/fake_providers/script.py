"""Scripted replies of a fake provider, and the signatures and ids that it has issued.

    text_part("…"), call_part("read_file", {…}), thinking_part("…")     the parts of one reply, in order
    IssuedSignatures                                     every signature and id that the fake has issued

A real provider verifies its own signatures, and rejects foreign signatures and changed reasoning. ``IssuedSignatures`` does the
same for a fake. Invariant: all ids are derived, so that a test produces the same bytes in every run.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Final

import msgspec

_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class TextPart(msgspec.Struct, frozen=True, tag=True):
    """A text."""

    text: str


class CallPart(msgspec.Struct, frozen=True, tag=True):
    """A tool call."""

    name: str
    input: dict[str, Any]


class ThinkingPart(msgspec.Struct, frozen=True, tag=True):
    """Reasoning. It is signed if the provider signs reasoning."""

    text: str


Part = TextPart | CallPart | ThinkingPart


def text_part(text: str) -> TextPart:
    """Return a text part of a reply."""
    return TextPart(text)


def call_part(name: str, input: dict[str, Any] | None = None) -> CallPart:  # noqa: A002  name of the field at the providers
    """Return a tool call of a reply."""
    return CallPart(name, input or {})


def thinking_part(text: str) -> ThinkingPart:
    """Return a reasoning part of a reply."""
    return ThinkingPart(text)


class IssuedSignatures:
    """The signatures and ids that a fake issued, each with its content."""

    def __init__(self, seed: str = "") -> None:
        self.seed = seed
        self.reply_count = 0  # number of replies, so that each has its own ids
        self.signatures: dict[str, str] = {}
        self.reasoning_ids: dict[str, str] = {}  # the id of an item, and of the reasoning item that it requires

    def next_answer(self) -> str:
        """Return a unique seed for the ids of the next reply."""
        self.reply_count += 1
        return f"{self.seed}/{self.reply_count}"

    def sign(self, content: str, *seeds: str) -> str:
        """Issue a signature of a text. Another fake issues a different signature."""
        digest = hashlib.sha512("\0".join((self.seed, content, *seeds)).encode()).digest()
        signature = base64.b64encode(digest + digest[::-1]).decode()
        self.signatures[signature] = content
        return signature

    def has_issued(self, signature: object) -> bool:
        """Return whether this fake issued the signature."""
        return signature in self.signatures

    def covers(self, signature: object, content: str) -> bool:
        """Return whether this fake issued the signature for this content."""
        return isinstance(signature, str) and self.signatures.get(signature) == content


def derive_id(prefix: str, length: int, *seeds: str) -> str:
    """Derive an id from seeds: a prefix and ``length`` characters."""
    digest = hashlib.shake_256("\0".join(seeds).encode()).digest(length)
    return prefix + "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


def split_text(text: str, size: int = 7) -> list[str]:
    """Split a text into the pieces of a stream."""
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def json_text(value: Any) -> str:
    """Return a value as compact JSON, as providers write it."""
    return msgspec.json.encode(value).decode()


def default_reply(text: str) -> TextPart:
    """Return the default reply of a fake, derived from the request."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return TextPart(f"You asked, and this is the answer {digest}.")
