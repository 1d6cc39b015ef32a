"""Tests of the model that a message names, and of aliases."""

from __future__ import annotations

import pytest
from hypothesis import given

from dragoman.errors import FormatError, InputError, UnknownModelError
from dragoman.message import TextBlock
from dragoman.routing import Override, Registry, decide, read_override
from tests.routing.models import CATALOG, IMAGE, REGISTRY, policy, turn
from tests.strategies import texts


def read(text: str, explicit: str | None = None) -> tuple[str | None, str]:
    """Return the model and the remaining text."""
    override = read_override([TextBlock(text)], REGISTRY, explicit)
    return override.model, "".join(block.text for block in override.content if isinstance(block, TextBlock))


@pytest.mark.parametrize(
    ("text", "model", "rest"),
    [
        ("@big what is this?", "acme:big", "what is this?"),
        ("@acme:big what is this?", "acme:big", "what is this?"),
        ("@big\n\nwhat is\nthis?", "acme:big", "what is\nthis?"),
        ("@acme:unlisted hello", "acme:unlisted", "hello"),
        ("ask @big about it", None, "ask @big about it"),
        ("ada@big.example wrote", None, "ada@big.example wrote"),
        ("\\@big is a name", None, "@big is a name"),
        ("\\@nobody is a name", None, "@nobody is a name"),
        (" @big hello", None, " @big hello"),
        ("@ big", None, "@ big"),
        ("@", None, "@"),
        ("", None, ""),
        ("hello", None, "hello"),
    ],
)
def test_name_after_a_leading_at_sign_is_the_model(text: str, model: str | None, rest: str) -> None:
    assert read(text) == (model, rest)


@pytest.mark.parametrize("text", ["@nobody hello", "@nobody", "@big, hello", "@nowhere:model hello"])
def test_unknown_name_raises_and_explains_the_escape(text: str) -> None:
    with pytest.raises(UnknownModelError, match=r"write \\@ instead") as caught:
        read(text)
    assert caught.value.code == "unknown_model"


def test_unknown_explicit_model_is_not_an_error_of_the_message() -> None:
    with pytest.raises(UnknownModelError, match="model: no model is called 'nobody'") as caught:
        read_override((TextBlock("hello"),), REGISTRY, "nobody")
    assert "@" not in str(caught.value)


@pytest.mark.parametrize("text", ["@big", "@big ", "@big\n"])
def test_name_without_text_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="/model big") as caught:
        read(text)
    assert caught.value.code == "empty_override"


def test_image_after_the_name_is_content() -> None:
    assert read_override([TextBlock("@big"), IMAGE], REGISTRY) == Override("acme:big", (IMAGE,))
    assert read_override([IMAGE, TextBlock("@big look")], REGISTRY) == Override("acme:big", (IMAGE, TextBlock("look")))
    assert read_override([IMAGE], REGISTRY) == Override(None, (IMAGE,))


def test_only_the_first_text_can_name_a_model() -> None:
    content = (TextBlock("look"), TextBlock("@big at this"))
    assert read_override(content, REGISTRY) == Override(None, content)


def test_explicit_model_overrides_the_model_in_the_message() -> None:
    assert read("@big hello", explicit="quick") == ("bolt:quick", "hello")
    assert read("@nobody hello", explicit="quick") == ("bolt:quick", "@nobody hello")
    assert read("hello", explicit="quick") == ("bolt:quick", "hello")
    with pytest.raises(UnknownModelError):
        read("hello", explicit="nobody")


@given(texts)
def test_text_without_a_leading_at_sign_is_unchanged(text: str) -> None:
    if not text.startswith(("@", "\\@")):
        assert read(text) == (None, text)
    assert read("\\@" + text) == (None, "@" + text)


def test_rules_and_model_receive_the_message_without_the_name() -> None:
    rules = policy(rules=[{"when": {"message_contains_any": ["big"]}, "use": "deep"}])
    decision = decide(turn("@quick hello"), rules, REGISTRY)
    assert (decision.text, decision.content) == ("hello", (TextBlock("hello"),))
    assert decide(turn("\\@big"), rules, REGISTRY).chosen_model == "bolt:deep"


# --- aliases ---------------------------------------------------------------------------------------------------------


def test_own_alias_belongs_to_one_model() -> None:
    registry = Registry(CATALOG, [], aliases={"work": "quick"})
    found = registry.find("work")
    assert found is not None
    assert found.id == "bolt:quick"
    assert registry.aliases_of("bolt:quick") == ("quick", "work")
    with pytest.raises(FormatError, match="belongs to 'acme:big'"):
        Registry(CATALOG, [], aliases={"big": "quick"})
    with pytest.raises(FormatError, match="no model 'nobody'"):
        Registry(CATALOG, [], aliases={"work": "nobody"})
    assert Registry(CATALOG, [], aliases={"big": "acme:big"}).find("big") == CATALOG.model("acme:big")


def test_every_id_is_its_own_alias() -> None:
    for model_id in CATALOG.models:
        found = REGISTRY.find(model_id)
        assert found is not None
        assert found.id == model_id
