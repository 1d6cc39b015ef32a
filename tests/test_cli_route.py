"""Tests of ``dragoman route`` and ``dragoman models``, run as a user runs them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.catalog import builtin
from dragoman.message import ImageBlock, ImageSource, Message, MessageMetadata, Role, TextBlock
from dragoman.routing import collect_facts
from dragoman.store import open_store
from tests import cli_runner
from tests.routing.models import NOW

COMMAND = Path(sys.executable).with_name("dragoman")
KEY = "sk-ant-not-a-real-key-7777"
POLICY = """
schema_version: 1
global_default: haiku
rules:
  - name: bugs
    when: {message_matches: '(?i)\\bbug'}
    use: opus
"""


class Home:
    """A user with one key and an empty home folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "SYSTEMROOT")}
        self.environment = {
            **inherited,
            "HOME": str(folder),
            "COLUMNS": "140",
            "NO_COLOR": "1",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
            "ANTHROPIC_API_KEY": KEY,
        }

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = cli_runner.run_text(*arguments, environment=self.environment, cwd=self.folder)
        assert KEY not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str | Path) -> dict[str, Any]:
        return dict(json.loads(self.run(*arguments, "--json").stdout))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def home_with_policy(home: Home) -> Home:
    file = home.folder / ".dragoman" / "routing.yaml"
    file.parent.mkdir()
    file.write_text(POLICY, "utf-8")
    return home


def test_explain_prints_every_slot_up_to_the_decision(home_with_policy: Home) -> None:
    done = home_with_policy.run("route", "explain", "there is a bug")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["rule", "chose", "anthropic:claude-opus-5-5,", "matched", "rule", "'bugs'"] in lines
    assert ["manual_sticky", "–", "no", "sticky", "model", "set"] in lines
    assert ["global_default", "not", "reached"] in lines
    assert ["answers", "anthropic:claude-opus-5-5"] in lines
    assert ".dragoman/routing.yaml" in done.stdout


def test_explain_json_is_one_document(home_with_policy: Home) -> None:
    report = home_with_policy.json("route", "explain", "@sonnet there is a bug")
    assert (report["chosen_model"], report["winner_index"], report["text"]) == (
        "anthropic:claude-sonnet-5-5",
        0,
        "there is a bug",
    )
    assert report["record"] == {
        "mode": "override",
        "chosen_model": "anthropic:claude-sonnet-5-5",
        "reason": "per-message @model override",
    }
    assert report["refusal"] is None
    assert float(report["prompt_usd"]) > 0
    assert len(report["policy"]["version"]) == 64
    assert report["policy"]["warnings"] == []


def test_without_policy_a_provider_with_a_key_answers(home: Home) -> None:
    report = home.json("route", "explain", "hello")
    assert report["chosen_model"].startswith("anthropic:")
    home.environment["DRAGOMAN_MODEL"] = "haiku"
    assert home.json("route", "explain", "hello")["chosen_model"] == "anthropic:claude-haiku-5-5"


def test_choice_without_key_is_rejected_with_exit_code_1(home_with_policy: Home) -> None:
    done = home_with_policy.run("route", "explain", "hello", "--model", "gpt-5")
    assert done.returncode == 1
    assert "Cannot use openai:gpt-5: OpenAI: no API key is set. Set OPENAI_API_KEY" in done.stdout
    assert "[routing_constraint_failure]" in done.stdout
    report = home_with_policy.json("route", "explain", "@gpt-5 hello")
    assert report["refusal"]["details"] == {
        "source": "per_message_override",
        "model": "openai:gpt-5",
        "validation_failure": "not_configured",
        "would_fall_back_to": "anthropic:claude-haiku-5-5",
    }


def test_image_is_considered_in_the_decision(home_with_policy: Home) -> None:
    image = home_with_policy.folder / "chart.png"
    image.write_bytes(b"\x89PNG")
    done = home_with_policy.run("route", "explain", "look", "--image", image, "--model", "local")
    assert done.returncode == 1
    assert "session contains images that this model can't process" in done.stdout
    for wrong in ("nowhere.png", ".dragoman/routing.yaml"):
        assert home_with_policy.run("route", "explain", "look", "--image", wrong).returncode == 2


def test_unknown_model_is_one_error_line_with_exit_code_2(home: Home) -> None:
    done = home.run("route", "explain", "@nobody hello")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.endswith("[unknown_model]\n")
    assert home.run("route", "explain", "@sonnet").stderr.endswith("[empty_override]\n")


def test_invalid_policy_is_ignored_and_its_errors_are_printed(home_with_policy: Home) -> None:
    (home_with_policy.folder / ".dragoman" / "routing.yaml").write_text("schema_version: 3\n", "utf-8")
    done = home_with_policy.run("route", "explain", "hello")
    assert done.returncode == 0
    assert "$.schema_version: 1 is expected, not 3" in done.stdout


def test_next_message_uses_history_model_and_workspace_of_session(home_with_policy: Home) -> None:
    url = f"sqlite:///{home_with_policy.folder}/chats.db"

    async def fill() -> str:
        async with open_store(url) as store:
            session = await store.create_session(
                workspace_path=str(home_with_policy.folder), active_model="anthropic:claude-haiku-5-5"
            )
            image = ImageBlock(ImageSource("base64", "aGk="), "image/png")
            question = Message("01KA2Y1V000000000000000000", session.id, Role.USER, (image,), MessageMetadata(), NOW)
            await store.append(session.id, [question])
            return session.id

    session_id = asyncio.run(fill())
    report = home_with_policy.json("route", "explain", "a bug", "--session", session_id, "--store", url)
    assert report["chain"][1]["candidate_model"] == report["chosen_model"] == "anthropic:claude-haiku-5-5"
    assert report["needs"]["images"]
    assert report["workspace"] == str(home_with_policy.folder)


def test_patterns_are_read_from_the_store(home: Home) -> None:
    url = f"sqlite:///{home.folder}/chats.db"
    fingerprint = collect_facts((), (TextBlock("translate this"),), now=NOW).fingerprint()

    async def fill() -> None:
        async with open_store(url) as store:
            session = await store.create_session()
            for number in range(6):
                await store.evaluations.record(
                    session.id,
                    turn_id=f"turn_{number}",
                    score=1.0,
                    model="anthropic:claude-haiku-5-5",
                    fingerprint=fingerprint,
                )

    asyncio.run(fill())
    report = home.json("route", "explain", "translate that", "--store", url)
    assert (report["chosen_model"], report["record"]["mode"]) == ("anthropic:claude-haiku-5-5", "pattern")
    assert report["chain"][3]["pattern_alternatives"][0]["sample_size"] == 6
    assert home.run("route", "explain", "hello", "--store", home.folder / "nowhere.db").returncode == 2


def test_delegated_task_uses_the_model_of_its_tier(home_with_policy: Home) -> None:
    policy = home_with_policy.folder / "tiers.yaml"
    policy.write_text("schema_version: 1\ntiers: {fast: haiku, balanced: sonnet, deep: opus}\n", "utf-8")
    report = home_with_policy.json("route", "explain", "hello", "--tier", "deep", "--policy", policy)
    assert (report["chosen_model"], report["record"]["mode"]) == ("anthropic:claude-opus-5-5", "delegate")


def test_check_accepts_valid_policy_and_prints_every_error(home_with_policy: Home) -> None:
    done = home_with_policy.run("route", "check", ".dragoman/routing.yaml")
    assert (done.returncode, done.stdout) == (0, "the policy is valid\n")
    invalid = home_with_policy.folder / "wrong.yaml"
    invalid.write_text("schema_version: 1\nglobal_default: nobody\nrules:\n- {when: {}, use: opus}\n", "utf-8")
    done = home_with_policy.run("route", "check", invalid)
    assert done.returncode == 1
    assert "$.global_default: no model 'nobody'" in done.stdout
    assert "2 errors, the policy is not used" in done.stdout
    report = home_with_policy.json("route", "check", invalid)
    assert (report["valid"], len(report["errors"]), report["warnings"]) == (False, 2, [])
    invalid.write_text("schema_version: 1\nglobal_default: gpt-5\n", "utf-8")
    assert home_with_policy.json("route", "check", invalid) == {
        "valid": True,
        "errors": [],
        "warnings": ["$.global_default: openai:gpt-5 cannot be called here: openai has no key"],
    }


def test_models_are_listed_with_capabilities_and_prices(home: Home) -> None:
    done = home.run("models", "claude-sonnet-4-6")
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()][1] == [
        *("●", "anthropic:claude-sonnet-4-6", "1M", "3.00", "15.00"),
        *("images", "documents", "tools", "thinking", "schema"),
    ]
    models = home.json("models")["models"]
    assert {model["id"] for model in models} == set(builtin().models)


def test_models_are_filtered(home: Home) -> None:
    ready = {model["id"].partition(":")[0] for model in home.json("models", "--ready")["models"]}
    assert "anthropic" in ready
    assert "openai" not in ready
    multimedia = home.json("models", "--can", "audio", "--can", "video", "--min-context", "1000000")["models"]
    assert multimedia
    assert all(model["capabilities"]["supports_audio"] for model in multimedia)
    assert all(model["capabilities"]["max_context_tokens"] >= 1_000_000 for model in multimedia)
    groq = home.json("models", "--provider", "groq")["models"]
    assert {model["id"].partition(":")[0] for model in groq} == {"groq"}
    assert home.run("models", "no-such-model").stdout.startswith("no matching models")
    assert home.run("models", "--provider", "nobody").returncode == 2


def test_providers_are_listed_with_key_origin_and_without_key(home: Home) -> None:
    home.environment["OPENAI_API_KEY"] = KEY
    rows = {row["key"]: row for row in home.json("models", "--providers")["providers"]}
    assert set(rows) == set(builtin().providers)
    assert rows["anthropic"]["key_origin"] == "ANTHROPIC_API_KEY"
    assert rows["openai"]["is_configured"]
    assert rows["ollama"]["key_origin"] == "this machine"
    for key in ("mistral", "vertex", "chatgpt-codex"):
        assert not rows[key]["is_configured"], key
    ready = home.run("models", "--providers", "--ready")
    assert "MISTRAL_API_KEY" not in ready.stdout
    assert "MISTRAL_API_KEY" in home.run("models", "mistral", "--providers").stdout


def test_own_endpoint_can_be_called_and_its_models_named(home: Home) -> None:
    config = home.folder / ".config" / "dragoman" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        '[providers.lab]\nbase_url = "http://lab.example:8000/v1"\n\n[models."lab:qwen"]\naliases = ["q"]\n'
    )
    config.chmod(0o600)
    assert home.json("models", "q", "--provider", "lab")["models"][0]["is_configured"]
    assert home.json("route", "explain", "@q hello")["chosen_model"] == "lab:qwen"
