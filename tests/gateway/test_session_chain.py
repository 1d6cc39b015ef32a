"""The hash of a conversation ignores white space and the division of text into blocks."""

from __future__ import annotations

import pytest

from dragoman.gateway.session_chain import extend_chain
from dragoman.message import Role, TextBlock

TEXTS = ["Hi.", " a\tb\n", "".join(map(chr, range(128))), "ä\u00a0b\u2003c", "\u3000", "😀 x", '"quoted" \\', ""]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("role", list(Role))
def test_hash_ignores_division_into_blocks(role: Role, text: str) -> None:
    whole = extend_chain(b"before", role, (TextBlock(text),))
    for at in range(0, len(text) + 1, 7):
        assert extend_chain(b"before", role, (TextBlock(text[:at]), TextBlock(text[at:]))) == whole


@pytest.mark.parametrize("text", TEXTS)
def test_hash_ignores_white_space(text: str) -> None:
    compact = "".join(text.split())
    expected = extend_chain(b"", Role.USER, (TextBlock(compact),))
    assert extend_chain(b"", Role.USER, (TextBlock(text),)) == expected
    assert extend_chain(b"", Role.USER, (TextBlock(" \n".join(compact)),)) == expected


def test_stored_hashes_stay_valid() -> None:
    chain = extend_chain(extend_chain(b"", Role.USER, (TextBlock("Hi there."),)), Role.ASSISTANT, (TextBlock("Grüße"),))
    assert chain.hex() == "b4e29a7fca3c0ea8df0a3904d4293c8a841e4f1bd317477bfa0b1513f8bafe46"
