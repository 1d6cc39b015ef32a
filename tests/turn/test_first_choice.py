"""Tests of the default model if none is configured."""

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


def choose_model(**environment: str) -> str | None:
    loaded = settings.load(environment={"XDG_CONFIG_HOME": "/nowhere", **environment}, keyring=lambda _: None)
    return default_model(loaded, make_registry(loaded))


@pytest.mark.parametrize("model_id", FIRST_CHOICES)
def test_first_choice_is_in_the_catalog(model_id: str) -> None:
    assert builtin().model(model_id).id == model_id
    assert builtin().model(model_id).is_declared


@pytest.mark.parametrize("model_id", [name for name in FIRST_CHOICES if not name.startswith("local:")])
def test_key_selects_the_first_choice_of_its_provider(model_id: str) -> None:
    provider = model_id.partition(":")[0]
    assert choose_model(**{KEYS[provider]: "sk-not-a-real-key"}) == model_id
    assert builtin().model(model_id).capabilities.supports_tools


def test_first_provider_in_the_list_counts_if_several_have_keys() -> None:
    both = {KEYS["gemini"]: "sk-not-a-real-key", KEYS["anthropic"]: "sk-not-a-real-key"}
    assert choose_model(**both) == "anthropic:claude-sonnet-5-5"


def test_local_model_answers_without_a_key() -> None:
    pytest.importorskip("xllamacpp")
    assert choose_model() == "local:smollm2-135m"


async def test_embedded_model_without_its_package_is_skipped_with_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else known(name))
    assert choose_model() != "local:smollm2-135m"
    with pytest.raises(SettingsError, match=re.escape("pip install 'dragoman[local]'")):
        await LocalModel().base_url()


def test_configured_model_overrides_first_choices() -> None:
    assert choose_model(DRAGOMAN_MODEL="haiku", ANTHROPIC_API_KEY="sk-not-a-real-key") == "haiku"


def test_list_is_documented_in_order() -> None:
    page = (ROOT / "docs" / "routing.md").read_text("utf-8")
    places = [page.find(f"`{name}`") for name in FIRST_CHOICES]
    assert -1 not in places
    assert places == sorted(places)
