"""Tests of providers that an administrator adds at run time."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import SettingsError
from dragoman.settings import load, private_paths
from dragoman.settings.provider_file import provider_file, read_provider_file
from tests.fake_providers import StrictProvider, strict_provider
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import post_run, run_input, user
from tests.server.test_threads import API, read_json

ADMIN = "/api/v1/admin/providers"
KEY = "sk-a-key-that-works-1234"


@asynccontextmanager
async def provider_with_models(dialect: str, listed: Any) -> AsyncIterator[StrictProvider]:
    """Run a provider with a list of models that requires the key."""
    async with strict_provider(dialect) as fake:
        fake.listed, fake.good_key = listed, KEY
        yield fake


async def put_provider(server: ServerFixture, provider: str, body: dict[str, Any], status: int = 200) -> Any:
    return await read_json(server.client.put(f"{ADMIN}/{provider}", json=body), status)


async def probe_provider(server: ServerFixture, provider: str, body: dict[str, Any]) -> Any:
    return await read_json(server.client.post(f"{ADMIN}/{provider}/test", json=body))


async def test_added_provider_answers_without_restart(chat_server: ServerFixture) -> None:
    listed = {"object": "list", "data": [{"id": "llama", "max_model_len": 131072}, {"id": "tiny"}]}
    async with provider_with_models("openai_chat", listed) as fake:
        rejected = await probe_provider(
            chat_server, "my-llm", {"baseUrl": fake.base_url, "apiKey": "sk-a-wrong-key-of-mine"}
        )
        assert (rejected["isWorking"], rejected["code"], rejected["models"]) == (False, "unauthorized", [])
        assert "Incorrect API key provided" in rejected["message"]
        assert "sk-a-wrong-key-of-mine" not in rejected["message"]

        access = {"baseUrl": fake.base_url, "apiKey": KEY}
        accepted = await probe_provider(chat_server, "my-llm", access)
        assert (accepted["isWorking"], accepted["code"]) == (True, None)
        assert [(model["name"], model["contextTokens"]) for model in accepted["models"]] == [
            ("llama", 131072),
            ("tiny", None),
        ]
        row = await put_provider(chat_server, "my-llm", {**access, "models": ["llama"]})
        assert (row["keyHint"], row["isCustom"], row["isEditable"], row["models"]) == ("…1234", True, True, 1)
        models = (await read_json(chat_server.client.get(f"{API}/models")))["models"]
        (model,) = (model for model in models if model["provider"] == "my-llm")
        assert (model["id"], model["isConfigured"], model["contextTokens"]) == ("my-llm:llama", True, 131072)

        fake.reply("I am new here.")
        body = run_input(user("Hello", "m1"), forwardedProps={"model": "my-llm:llama"})
        assert "I am new here." in str(await post_run(chat_server, body))
        assert fake.received[-1].headers["authorization"] == f"Bearer {KEY}"

        async with chat_server.client.delete(f"{ADMIN}/my-llm") as response:
            assert response.status == 204
        models = (await read_json(chat_server.client.get(f"{API}/models")))["models"]
        assert not [model for model in models if model["provider"] == "my-llm"]


async def test_keys_are_stored_in_private_file_and_never_returned(
    chat_server: ServerFixture,
) -> None:
    await put_provider(chat_server, "openai", {"apiKey": KEY})
    settings = chat_server.agent.services.settings
    path = provider_file(Path(settings.file or ""))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path in private_paths(settings)
    assert msgspec.json.decode(path.read_bytes())["providers"] == {"openai": {"api_key": KEY}}
    text = await (await chat_server.client.get(ADMIN)).text()
    assert KEY not in text
    (row,) = (row for row in msgspec.json.decode(text)["providers"] if row["key"] == "openai")
    assert (row["keyHint"], row["isStored"], row["isCustom"]) == ("…1234", True, False)
    reloaded = load(environment={}, file=settings.file, keyring=lambda _: None)
    assert reloaded.endpoint("openai").key_origin == settings.file
    by_variable = load(environment={"OPENAI_API_KEY": "sk-other"}, file=settings.file, keyring=lambda _: None)
    assert by_variable.endpoint("openai").key_origin == "OPENAI_API_KEY"


async def test_change_is_used_by_another_process(chat_server: ServerFixture) -> None:
    settings = chat_server.state.provider_settings
    path = provider_file(Path(settings.settings.file or ""))
    path.write_bytes(msgspec.json.encode({"providers": {"openai": {"api_key": KEY}}}))
    os.chmod(path, 0o600)
    settings._checked_at = 0.0
    models = (await read_json(chat_server.client.get(f"{API}/models")))["models"]
    assert all(model["isConfigured"] for model in models if model["provider"] == "openai")


@pytest.mark.parametrize("content", [b'{"providers": {"\xff": {}}}', b"[" * 20_000, b"{"])
def test_damaged_file_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "providers.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="is not valid") as caught:
        read_provider_file(path)
    assert str(path) in str(caught.value)


async def test_ollama_lists_its_models_with_context_and_capabilities(chat_server: ServerFixture) -> None:
    async with strict_provider("ollama", needs_key=False) as fake:
        fake.listed = {"models": [{"name": "llava:7b", "model": "llava:7b"}, {"name": "old", "model": "old"}]}
        fake.shown["llava:7b"] = {
            "model_info": {"llama.context_length": 4096},
            "capabilities": ["vision", "completion"],
        }
        found = await probe_provider(chat_server, "ollama", {"baseUrl": fake.base_url})
        assert [(model["name"], model["contextTokens"]) for model in found["models"]] == [
            ("llava:7b", 4096),
            ("old", None),
        ]
        await put_provider(chat_server, "ollama", {"baseUrl": fake.base_url, "models": ["llava:7b", "old"]})
        models = (await read_json(chat_server.client.get(f"{API}/models")))["models"]
        by_id = {model["id"]: model for model in models}
        assert (by_id["ollama:llava:7b"]["images"], by_id["ollama:llava:7b"]["tools"]) == (True, False)


@pytest.mark.parametrize(
    ("dialect", "provider", "listed"),
    [
        ("anthropic", "anthropic", {"data": [{"id": "claude-x", "type": "model"}]}),
        ("gemini", "gemini", {"models": [{"name": "models/claude-x", "inputTokenLimit": 7}]}),
        ("cohere", "cohere", {"models": [{"name": "claude-x", "context_length": 7}]}),
        ("openai_responses", "openai", {"data": [{"id": "claude-x"}]}),
    ],
)
async def test_models_are_listed_for_every_dialect(
    chat_server: ServerFixture, dialect: str, provider: str, listed: Any
) -> None:
    async with provider_with_models(dialect, listed) as fake:
        found = await probe_provider(chat_server, provider, {"baseUrl": fake.base_url, "apiKey": KEY})
        assert [model["name"] for model in found["models"]] == ["claude-x"], found
        rejected = await probe_provider(
            chat_server, provider, {"baseUrl": fake.base_url, "apiKey": "sk-wrong-wrong-wrong"}
        )
        assert (rejected["isWorking"], rejected["code"]) == (False, "unauthorized")


async def test_unreachable_or_invalid_address_is_reported(chat_server: ServerFixture) -> None:
    unreachable = await probe_provider(chat_server, "my-llm", {"baseUrl": "http://127.0.0.1:9", "apiKey": KEY})
    assert (unreachable["isWorking"], unreachable["code"]) == (False, "unreachable")
    page = await probe_provider(chat_server, "my-llm", {"baseUrl": f"{chat_server.base_url}/nothing", "apiKey": KEY})
    assert page["isWorking"] is False
    invalid = await probe_provider(chat_server, "my-llm", {"baseUrl": "ftp://example", "apiKey": KEY})
    assert invalid["code"] == "invalid_base_url"
    await put_provider(chat_server, "my-llm", {"apiKey": KEY}, 422)  # a new provider requires its address
    await put_provider(chat_server, "Not A Name", {"baseUrl": "http://127.0.0.1:9"}, 422)
    await put_provider(chat_server, "openai", {"apiKey": "two words"}, 422)


async def test_providers_require_admin_scope(keyed_server: ServerFixture) -> None:
    user_key = await keyed_server.make_key("ann", ("chat", "tools", "mail", "history:write"))
    admin_key = await keyed_server.make_key("root", ("admin",))
    requests = (
        ("GET", ADMIN, None),
        ("PUT", f"{ADMIN}/openai", {"apiKey": KEY}),
        ("POST", f"{ADMIN}/openai/test", {"apiKey": KEY}),
        ("DELETE", f"{ADMIN}/openai", None),
    )
    for method, path, body in requests:
        error = await read_json(keyed_server.client.request(method, path, json=body, headers=user_key), 403)
        assert error["error"]["code"] == "missing_scope"
    assert not keyed_server.state.provider_settings.stored_row("openai")
    response = keyed_server.client.put(f"{ADMIN}/openai", json={"apiKey": KEY}, headers=admin_key)
    assert (await read_json(response))["source"] is not None
