"""Scripted answers of a fake provider, and the signatures and ids that it has issued.

    say("…"), call("read_file", {…}), think("…")     the parts of one answer, in order
    Issued                                           every signature and id that the fake has issued

A real provider verifies its own signatures, and rejects foreign signatures and changed reasoning. ``Issued`` does the
same for a fake. Invariant: all ids are derived, so that a test produces the same bytes in every run.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Final

import msgspec

_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Say(msgspec.Struct, frozen=True, tag=True):
    """Words."""

    text: str


class Call(msgspec.Struct, frozen=True, tag=True):
    """A tool is called."""

    name: str
    input: dict[str, Any]


class Think(msgspec.Struct, frozen=True, tag=True):
    """Reasoning. Signed, where the provider signs it."""

    text: str


Part = Say | Call | Think


def say(text: str) -> Say:
    """Words of an answer."""
    return Say(text)


def call(name: str, input: dict[str, Any] | None = None) -> Call:  # noqa: A002  the word that every provider uses
    """A call in an answer."""
    return Call(name, input or {})


def think(text: str) -> Think:
    """Reasoning in an answer."""
    return Think(text)


class Issued:
    """The signatures and ids that a fake issued, each with its content."""

    def __init__(self, seed: str = "") -> None:
        self.seed = seed
        self.answers = 0  # how many there were, so that no two have the same ids
        self.signatures: dict[str, str] = {}
        self.beside: dict[str, str] = {}  # the id of a call, and that of the reasoning that must go with it

    def next_answer(self) -> str:
        """A word of its own for each answer, to derive its ids from."""
        self.answers += 1
        return f"{self.seed}/{self.answers}"

    def sign(self, what: str, *seeds: str) -> str:
        """A signature of these words, which nobody else would give."""
        digest = hashlib.sha512("\0".join((self.seed, what, *seeds)).encode()).digest()
        made = base64.b64encode(digest + digest[::-1]).decode()
        self.signatures[made] = what
        return made

    def knows(self, signature: object) -> bool:
        """Whether it was given by this fake."""
        return signature in self.signatures

    def fits(self, signature: object, what: str) -> bool:
        """Whether it was given for these words."""
        return isinstance(signature, str) and self.signatures.get(signature) == what


def made_id(prefix: str, length: int, *seeds: str) -> str:
    """An id with that many signs behind its prefix, always the same for the same seeds."""
    digest = hashlib.shake_256("\0".join(seeds).encode()).digest(length)
    return prefix + "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


def pieces_of(text: str, size: int = 7) -> list[str]:
    """A text as it would be streamed."""
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def json_text(value: Any) -> str:
    """A value as providers write it."""
    return msgspec.json.encode(value).decode()


def last_words(text: str) -> Say:
    """The default answer of a fake."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return Say(f"You asked, and this is the answer {digest}.")
