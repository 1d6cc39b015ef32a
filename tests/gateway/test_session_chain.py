"""The hash of a conversation covers its texts without white space, however they are split into blocks."""

from __future__ import annotations

import pytest

from dragoman.gateway.session_chain import extend_chain
from dragoman.message import Role, TextBlock

TEXTS = ["Hi.", " a\tb\n", "".join(map(chr, range(128))), "ä\u00a0b\u2003c", "\u3000", "😀 x", '"quoted" \\', ""]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("role", list(Role))
def test_one_text_has_the_hash_of_its_parts(role: Role, text: str) -> None:
    whole = extend_chain(b"before", role, (TextBlock(text),))
    for at in range(0, len(text) + 1, 7):
        assert extend_chain(b"before", role, (TextBlock(text[:at]), TextBlock(text[at:]))) == whole


@pytest.mark.parametrize("text", TEXTS)
def test_white_space_does_not_change_the_hash(text: str) -> None:
    words = "".join(text.split())
    expected = extend_chain(b"", Role.USER, (TextBlock(words),))
    assert extend_chain(b"", Role.USER, (TextBlock(text),)) == expected
    assert extend_chain(b"", Role.USER, (TextBlock(" \n".join(words)),)) == expected


def test_stored_hashes_stay_valid() -> None:
    chain = extend_chain(extend_chain(b"", Role.USER, (TextBlock("Hi there."),)), Role.ASSISTANT, (TextBlock("Grüße"),))
    assert chain.hex() == "b4e29a7fca3c0ea8df0a3904d4293c8a841e4f1bd317477bfa0b1513f8bafe46"
