"""The default model when none is configured."""

from __future__ import annotations

import importlib.util
import re

import pytest

from dragoman import settings
from dragoman.catalog import builtin
from dragoman.errors import SettingsError
from dragoman.local import LocalModel
from dragoman.turn import default_model, make_registry
from dragoman.turn.services import FIRST_CHOICES
from tests.conftest import ROOT

KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "groq": "GROQ_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}


def chosen(**environment: str) -> str | None:
    found = settings.load(environment={"XDG_CONFIG_HOME": "/nowhere", **environment}, keyring=lambda _: None)
    return default_model(found, make_registry(found))


@pytest.mark.parametrize("model_id", FIRST_CHOICES)
def test_a_first_choice_is_in_the_catalog(model_id: str) -> None:
    assert builtin().model(model_id).id == model_id
    assert builtin().model(model_id).is_declared


@pytest.mark.parametrize("model_id", [name for name in FIRST_CHOICES if not name.startswith("local:")])
def test_a_key_is_enough_for_the_first_choice_of_its_provider_to_answer(model_id: str) -> None:
    provider = model_id.partition(":")[0]
    assert chosen(**{KEYS[provider]: "sk-not-a-real-key"}) == model_id
    assert builtin().model(model_id).capabilities.supports_tools


def test_of_several_keys_the_first_in_the_list_counts() -> None:
    both = {KEYS["gemini"]: "sk-not-a-real-key", KEYS["anthropic"]: "sk-not-a-real-key"}
    assert chosen(**both) == "anthropic:claude-sonnet-5-5"


def test_without_a_key_the_local_model_answers() -> None:
    pytest.importorskip("xllamacpp")
    assert chosen() == "local:smollm2-135m"


async def test_without_its_package_the_embedded_model_is_not_chosen_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else known(name))
    assert chosen() != "local:smollm2-135m"
    with pytest.raises(SettingsError, match=re.escape("pip install 'dragoman[local]'")):
        await LocalModel().base_url()


def test_what_a_person_set_goes_before_every_first_choice() -> None:
    assert chosen(DRAGOMAN_MODEL="haiku", ANTHROPIC_API_KEY="sk-not-a-real-key") == "haiku"


def test_the_list_is_documented_in_its_order() -> None:
    page = (ROOT / "docs" / "routing.md").read_text("utf-8")
    places = [page.find(f"`{name}`") for name in FIRST_CHOICES]
    assert -1 not in places
    assert places == sorted(places)
