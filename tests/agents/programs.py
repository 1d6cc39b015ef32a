"""Coding agents: the configuration of each for the gateway, and the tool that its model calls.

The settings are those of ``docs/coding-agents.md``. The others disable updates, telemetry and prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tests.fake_providers import CallPart, call_part

QUESTION = "Read note.txt and report what it says."
NOTE = "Marmalade comes from quinces."


class Place(msgspec.Struct, frozen=True):
    """Where an agent runs, and which gateway it calls."""

    base_url: str
    home: Path
    project: Path

    @property
    def note(self) -> str:
        """The path of the file that the agent reads."""
        return str(self.project / "note.txt")


class Start(msgspec.Struct, frozen=True):
    """A prepared program."""

    command: list[str]  # the first part is the name of a program of package.json
    environment: dict[str, str]
    choose: Callable[[Sequence[str]], CallPart | None]  # the call of the model, by the names of the tools


def start_claude_code(place: Place) -> Start:
    """Anthropic Messages."""
    environment = {
        "ANTHROPIC_BASE_URL": place.base_url,
        "ANTHROPIC_AUTH_TOKEN": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Start(
        ["claude", "-p", QUESTION, "--allowedTools", "Read"],
        environment,
        lambda names: call_part("Read", {"file_path": place.note}) if "Read" in names else None,
    )


def start_codex(place: Place) -> Start:
    """OpenAI Responses over HTTP."""
    settings = f"""
model = "gpt-5.5"
model_provider = "dragoman"
[model_providers.dragoman]
name = "Dragoman"
base_url = "{place.base_url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
    return _start_codex(place, settings)


def start_codex_on_websocket(place: Place) -> Start:
    """OpenAI Responses over a WebSocket, which the built-in provider of Codex uses."""
    start = _start_codex(place, f'model = "gpt-5.5"\nopenai_base_url = "{place.base_url}/v1"\n')
    (place.home / ".codex" / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": "any"}))
    return start


def _start_codex(place: Place, settings: str) -> Start:
    folder = place.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(settings)
    command = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", QUESTION]
    return Start(
        command,
        {"OPENAI_API_KEY": "any"},
        lambda names: call_part("exec_command", {"cmd": "cat note.txt"}) if "exec_command" in names else None,
    )


def start_codex_with_patch(place: Place) -> Start:
    """The model calls a tool with a text input, which edits the file."""
    lines = ("*** Begin Patch", "*** Update File: note.txt", "@@", f"-{NOTE}", "+Edited.", "*** End Patch")
    patch = {"input": "\n".join(lines)}
    start = start_codex(place)
    return msgspec.structs.replace(
        start, choose=lambda names: call_part("apply_patch", patch) if "apply_patch" in names else None
    )


def start_gemini_cli(place: Place) -> Start:
    """Gemini."""
    folder = place.home / ".gemini"
    folder.mkdir()
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    environment = {
        "GOOGLE_GEMINI_BASE_URL": place.base_url,
        "GEMINI_API_KEY": "any",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    return Start(
        ["gemini", "--yolo", "-p", QUESTION],
        environment,
        lambda names: call_part("read_file", {"file_path": place.note}) if "read_file" in names else None,
    )


def start_opencode(package: str) -> Callable[[Place], Start]:
    """Return the start of opencode with a provider package. Each package uses another API."""

    def start(place: Place) -> Start:
        provider = {
            "npm": package,
            "name": "Dragoman",
            "options": {"baseURL": f"{place.base_url}/v1", "apiKey": "any"},
            "models": {"any-model": {"tool_call": True}},
        }
        model = "dragoman/any-model"
        settings = {
            "autoupdate": False,
            "share": "disabled",
            "model": model,
            "small_model": model,
            "provider": {"dragoman": provider},
        }
        (place.project / "opencode.json").write_text(json.dumps(settings))
        return Start(
            ["opencode", "run", QUESTION],
            {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"},
            lambda names: call_part("read", {"filePath": place.note}) if "read" in names else None,
        )

    return start


def start_qwen_code(place: Place) -> Start:
    """OpenAI Chat Completions."""
    environment = {
        "OPENAI_BASE_URL": f"{place.base_url}/v1",
        "OPENAI_API_KEY": "any",
        "OPENAI_MODEL": "any-model",
        "QWEN_TELEMETRY_ENABLED": "false",
    }
    return Start(
        ["qwen", "--auth-type", "openai", "--yolo", "-p", QUESTION],
        environment,
        lambda names: call_part("read_file", {"file_path": place.note}) if "read_file" in names else None,
    )


def start_pi(api: str) -> Callable[[Place], Start]:
    """Return the start of pi with one of its APIs."""

    def start(place: Place) -> Start:
        folder = place.home / ".pi" / "agent"
        folder.mkdir(parents=True)
        provider = {
            "baseUrl": f"{place.base_url}/v1",
            "api": api,
            "apiKey": "any",
            "models": [{"id": "any-model"}],
        }
        (folder / "models.json").write_text(json.dumps({"providers": {"dragoman": provider}}))
        return Start(
            ["pi", "--provider", "dragoman", "--model", "any-model", "-p", QUESTION],
            {"PI_OFFLINE": "1"},
            lambda names: call_part("read", {"path": place.note}) if "read" in names else None,
        )

    return start


# By name: the dialect of the agent, and its start.
AGENTS: dict[str, tuple[str, Callable[[Place], Start]]] = {
    "claude-code": ("anthropic", start_claude_code),
    "codex": ("openai_responses", start_codex),
    "codex-websocket": ("openai_responses", start_codex_on_websocket),
    "gemini-cli": ("gemini", start_gemini_cli),
    "opencode-anthropic": ("anthropic", start_opencode("@ai-sdk/anthropic")),
    "opencode-openai": ("openai_responses", start_opencode("@ai-sdk/openai")),
    "opencode-compatible": ("openai_chat", start_opencode("@ai-sdk/openai-compatible")),
    "pi-chat": ("openai_chat", start_pi("openai-completions")),
    "pi-responses": ("openai_responses", start_pi("openai-responses")),
    "qwen-code": ("openai_chat", start_qwen_code),
}
