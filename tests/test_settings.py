"""Tests of the sources of keys, addresses and choices."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dragoman import catalog, settings
from dragoman.client.call import build_headers
from dragoman.errors import FormatError, SettingsError
from dragoman.settings import Secret, Setting, Settings

KEY = "sk-canary-0123456789abcdef"
OTHER = "sk-other-0123456789fedcba"
FILE = f"""
default_model = "acme:rocket"
store = "sqlite:///chats.db"
workspace = "~/work"

[providers.openai]
api_key = "{KEY}"
base_url = "https://relay.example/v1"

[providers.acme]
base_url = "https://llm.acme.example/v1"
api_key_env = "ACME_KEY"
quirks = ["max_tokens"]
headers = {{ "X-Team" = "blue" }}

[models."acme:rocket"]
aliases = ["rocket"]
max_context_tokens = 32000
"""


def no_key(_: str) -> None:
    """Return no key, as an empty keyring does."""


def load_settings(
    environment: dict[str, str] | None = None, file: Path | None = None, keyring: Any = no_key
) -> Settings:
    return settings.load(environment={"HOME": "/nowhere", **(environment or {})}, file=file, keyring=keyring)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE, "utf-8")
    path.chmod(0o600)
    return path


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "variable", "header"),
    [
        ("openai", "OPENAI_API_KEY", "authorization"),
        ("openai-chat", "OPENAI_API_KEY", "authorization"),
        ("anthropic", "ANTHROPIC_API_KEY", "x-api-key"),
        ("anthropic", "ANTHROPIC_AUTH_TOKEN", "authorization"),
        ("gemini", "GEMINI_API_KEY", "x-goog-api-key"),
        ("gemini", "GOOGLE_API_KEY", "x-goog-api-key"),
        ("openrouter", "OPENROUTER_API_KEY", "authorization"),
        ("mistral", "MISTRAL_API_KEY", "authorization"),
        ("groq", "GROQ_API_KEY", "authorization"),
        ("deepseek", "DEEPSEEK_API_KEY", "authorization"),
        ("cohere", "CO_API_KEY", "authorization"),
        ("xai", "XAI_API_KEY", "authorization"),
        ("azure", "AZURE_OPENAI_API_KEY", "api-key"),
        ("bedrock", "AWS_BEARER_TOKEN_BEDROCK", "authorization"),
    ],
)
def test_key_is_read_from_the_variable_of_the_providers_sdk(provider: str, variable: str, header: str) -> None:
    endpoint = load_settings({variable: KEY}).endpoint(provider, base_url="https://host.example")
    assert (endpoint.key, endpoint.key_origin) == (Secret(KEY), variable)
    headers = [name for name, value in build_headers(endpoint, stream=False).items() if KEY in value]
    assert headers == [header]


def test_first_source_with_a_key_wins(file: Path) -> None:
    everywhere = load_settings({"OPENAI_API_KEY": OTHER}, file, lambda _: "sk-of-the-keyring")
    assert everywhere.endpoint("openai", api_key="sk-of-the-argument").key_origin == "argument"
    assert everywhere.endpoint("openai").key_origin == "OPENAI_API_KEY"
    assert load_settings({}, file, lambda _: "sk-of-the-keyring").endpoint("openai").key_origin == str(file)
    queried: list[str] = []
    last = load_settings({}, keyring=lambda name: queried.append(name) or "sk-of-the-keyring").endpoint("openai")
    assert (last.key_origin, queried) == ("keyring", ["openai"])


def test_keyring_is_not_queried_when_another_source_has_a_key() -> None:
    def refuse(_: str) -> str:
        raise AssertionError

    assert load_settings({"OPENAI_API_KEY": KEY}, keyring=refuse).has_key("openai")
    assert load_settings({}, keyring=refuse).has_key("ollama")


def test_missing_key_error_names_the_remedies() -> None:
    assert not load_settings().has_key("anthropic")
    with pytest.raises(SettingsError, match="Set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN") as caught:
        load_settings().endpoint("anthropic")
    assert caught.value.code == "missing_key"


@pytest.mark.parametrize("text", ["sk-two words", "sk-line\nend-123456", "sk-schlüssel-123456", "sk-nul\x00-1234567"])
def test_malformed_key_is_rejected_and_not_shown(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"OPENAI_API_KEY": text}).endpoint("openai")
    assert caught.value.code == "invalid_key"
    assert caught.value.where == "OPENAI_API_KEY"
    assert text not in str(caught.value)


def test_newline_after_a_key_is_stripped() -> None:
    assert load_settings({"OPENAI_API_KEY": f" {KEY}\n"}).endpoint("openai").key == Secret(KEY)


def test_empty_variable_is_ignored() -> None:
    assert not load_settings({"OPENAI_API_KEY": ""}).has_key("openai")


def test_key_shows_at_most_four_characters_and_cannot_be_pickled(file: Path) -> None:
    secret = Secret(KEY)
    assert (repr(secret), str(secret), repr(Secret("short"))) == ("…cdef", "…cdef", "…")
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(secret)
    known = load_settings({"ACME_KEY": OTHER}, file)
    for text in (repr(known), repr(known.endpoint("openai")), str(known.endpoint("acme")), repr(known.accounts)):
        assert KEY not in text
        assert OTHER not in text


# --- addresses -------------------------------------------------------------------------------------------------------


def test_base_url_comes_from_argument_variable_file_or_row(file: Path) -> None:
    moved = {"OPENAI_BASE_URL": "https://moved.example/v1/", "OPENAI_API_KEY": KEY}
    endpoints = [
        load_settings(moved, file).endpoint("openai", base_url="https://given.example/v1"),
        load_settings(moved, file).endpoint("openai"),
        load_settings({}, file).endpoint("openai"),
        load_settings({"OPENAI_API_KEY": KEY}).endpoint("openai"),
    ]
    assert [(endpoint.base_url, endpoint.base_url_origin) for endpoint in endpoints] == [
        ("https://given.example/v1", "argument"),
        ("https://moved.example/v1", "OPENAI_BASE_URL"),
        ("https://relay.example/v1", str(file)),
        ("https://api.openai.com/v1", "catalog"),
    ]


@pytest.mark.parametrize(
    ("host", "native", "compatible"),
    [
        ("box", "http://box:11434", "http://box:11434/v1"),
        ("box:99", "http://box:99", "http://box:99/v1"),
        (":99", "http://127.0.0.1:99", "http://127.0.0.1:99/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434", "http://127.0.0.1:11434/v1"),
        ("http://0.0.0.0:99/", "http://127.0.0.1:99", "http://127.0.0.1:99/v1"),
        ("https://box.example:443/ollama", "https://box.example:443/ollama", "https://box.example:443/ollama/v1"),
    ],
)
def test_ollama_host_accepts_host_port_or_url(host: str, native: str, compatible: str) -> None:
    known = load_settings({"OLLAMA_HOST": host})
    assert known.endpoint("ollama").base_url == native
    assert known.endpoint("ollama-openai").base_url == compatible
    assert known.endpoint("ollama").key is None


def test_path_is_appended_to_the_url_of_a_variable() -> None:
    for url in ("https://x.openai.azure.com/", "https://x.openai.azure.com/openai/v1"):
        known = load_settings({"AZURE_OPENAI_ENDPOINT": url, "AZURE_OPENAI_API_KEY": KEY})
        assert known.endpoint("azure").base_url == "https://x.openai.azure.com/openai/v1"


def test_base_url_can_contain_a_variable() -> None:
    token = {"AWS_BEARER_TOKEN_BEDROCK": KEY}
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        where = load_settings({**token, variable: "eu-west-1"}).endpoint("bedrock").base_url
        assert where == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    with pytest.raises(SettingsError, match="Set AWS_REGION") as caught:
        load_settings(token).endpoint("bedrock")
    assert caught.value.code == "missing_base_url"


def test_missing_base_url_is_an_error() -> None:
    with pytest.raises(SettingsError, match="AZURE_OPENAI_ENDPOINT") as caught:
        load_settings({"AZURE_OPENAI_API_KEY": KEY}).endpoint("azure")
    assert caught.value.code == "missing_base_url"
    with pytest.raises(SettingsError, match=r"base_url under \[providers.local\]"):
        load_settings().endpoint("local")


@pytest.mark.parametrize(
    "text",
    [
        "ftp://x",
        "https://user:secret@host/v1",
        "https://host/v1?key=x",
        "host",
        "https://",
        "https://a b/",
        "file:///x",
    ],
)
def test_invalid_base_url_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"OPENAI_API_KEY": KEY}).endpoint("openai", base_url=text)
    assert caught.value.code == "invalid_base_url"
    assert "secret" not in str(caught.value)


def test_every_provider_with_a_base_url_has_an_endpoint() -> None:
    for row in catalog.builtin().providers.values():
        if row.base_url and "{" not in row.base_url:
            assert load_settings().endpoint(row, api_key=KEY).base_url == row.base_url


# --- the file --------------------------------------------------------------------------------------------------------


def test_file_defines_endpoints_and_choices(file: Path) -> None:
    known = load_settings({"ACME_KEY": OTHER}, file)
    model = known.catalog.model("rocket")
    assert (model.id, model.capabilities.max_context_tokens) == ("acme:rocket", 32000)
    endpoint = known.endpoint("acme")
    assert (endpoint.base_url, endpoint.key_origin) == ("https://llm.acme.example/v1", "ACME_KEY")
    assert (endpoint.provider.dialect, endpoint.provider.quirks) == ("openai_chat", ("max_tokens",))
    headers = build_headers(endpoint, stream=True)
    assert (headers["x-team"], headers["authorization"]) == ("blue", f"Bearer {OTHER}")
    assert known.default_model == Setting("acme:rocket", str(file))
    assert known.store == Setting("sqlite:///chats.db", str(file))
    assert known.workspace == Setting("~/work", str(file))


def test_custom_endpoint_needs_no_key_unless_configured(file: Path) -> None:
    assert not load_settings({}, file).has_key("acme")
    file.write_text('[providers.box]\nbase_url = "http://127.0.0.1:9/v1"\n', "utf-8")
    assert load_settings({}, file).endpoint("box").key is None


def test_variable_overrides_the_file(file: Path) -> None:
    known = load_settings({"DRAGOMAN_MODEL": "sonnet", "DRAGOMAN_STORE": "memory:"}, file)
    assert known.default_model == Setting("sonnet", "DRAGOMAN_MODEL")
    assert known.store == Setting("memory:", "DRAGOMAN_STORE")
    assert known.workspace.origin == str(file)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_file_readable_by_others_is_rejected_with_a_remedy(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod 600 {file}") as caught:
        load_settings({}, file)
    assert caught.value.code == "unsafe_config"
    assert KEY not in str(caught.value)


def test_default_file_follows_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.default_file({}) == tmp_path / ".config" / "dragoman" / "config.toml"
    assert settings.default_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/dragoman/config.toml")
    assert load_settings().file is None
    config = tmp_path / "mine.toml"
    config.write_text('default_model = "opus"', "utf-8")
    config.chmod(0o600)
    assert load_settings({"DRAGOMAN_CONFIG": str(config)}).default_model.value == "opus"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("default_model = 3", "default_model must be a string"),
        ("defualt_model = 'x'", "unknown key 'defualt_model'"),
        ("[providers]\nopenai = 3", "providers.openai must be a table"),
        ("[providers.openai]\napi_key = 3", "providers.openai.api_key must be a string"),
        ("[providers.openai]\nheaders = 3", "providers.openai"),
        ('[providers.openai]\nheaders = { x = "a\\nb" }', "header"),
        ("= 3", "is not TOML"),
    ],
)
def test_invalid_file_error_names_the_position(file: Path, text: str, expected: str) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=expected) as caught:
        load_settings({}, file)
    assert caught.value.code == "invalid_config"
    assert caught.value.where == str(file)


def test_invalid_row_in_the_file_is_a_catalog_error(file: Path) -> None:
    file.write_text('[providers.openai]\nbase_ulr = "x"', "utf-8")
    with pytest.raises(FormatError, match="base_ulr") as caught:
        load_settings({}, file)
    assert caught.value.code == "invalid_catalog"


def test_explicit_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load_settings({}, tmp_path / "none.toml")


# --- the keyring -----------------------------------------------------------------------------------------------------


def test_key_round_trips_through_the_system_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring
    from keyring.backend import KeyringBackend

    class InMemory(KeyringBackend):
        priority = 1
        keys: ClassVar[dict[tuple[str, str], str]] = {}

        def get_password(self, service: str, username: str) -> str | None:
            return self.keys.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            self.keys[service, username] = password

    before = keyring.get_keyring()
    keyring.set_keyring(InMemory())
    try:
        known = load_settings({}, keyring=settings.system_keyring)
        assert not known.has_key("openai")
        settings.store_key(known.catalog.provider("openai"), KEY)
        assert known.endpoint("openai").key == Secret(KEY)
        assert InMemory.keys == {("dragoman", "openai"): KEY}
    finally:
        keyring.set_keyring(before)


def test_missing_keyring_returns_and_stores_no_key() -> None:
    import keyring
    from keyring.backends.fail import Keyring

    before = keyring.get_keyring()
    keyring.set_keyring(Keyring())
    try:
        assert settings.system_keyring("openai") is None
        with pytest.raises(SettingsError) as caught:
            settings.store_key(catalog.builtin().provider("openai"), KEY)
        assert caught.value.code == "keyring_failed"
        assert KEY not in str(caught.value)
    finally:
        keyring.set_keyring(before)
