"""Where keys, addresses and choices come from."""

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


def nothing(_: str) -> None:
    """A keyring without a key."""


def found(environment: dict[str, str] | None = None, file: Path | None = None, keyring: Any = nothing) -> Settings:
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
    endpoint = found({variable: KEY}).endpoint(provider, base_url="https://host.example")
    assert (endpoint.key, endpoint.key_origin) == (Secret(KEY), variable)
    carried = [name for name, value in build_headers(endpoint, stream=False).items() if KEY in value]
    assert carried == [header]


def test_first_source_with_a_key_wins(file: Path) -> None:
    everywhere = found({"OPENAI_API_KEY": OTHER}, file, lambda _: "sk-of-the-keyring")
    assert everywhere.endpoint("openai", api_key="sk-of-the-argument").key_origin == "argument"
    assert everywhere.endpoint("openai").key_origin == "OPENAI_API_KEY"
    assert found({}, file, lambda _: "sk-of-the-keyring").endpoint("openai").key_origin == str(file)
    asked: list[str] = []
    last = found({}, keyring=lambda name: asked.append(name) or "sk-of-the-keyring").endpoint("openai")
    assert (last.key_origin, asked) == ("keyring", ["openai"])


def test_keyring_is_not_queried_when_another_source_has_a_key() -> None:
    def refuse(_: str) -> str:
        raise AssertionError

    assert found({"OPENAI_API_KEY": KEY}, keyring=refuse).has_key("openai")
    assert found({}, keyring=refuse).has_key("ollama")


def test_missing_key_error_names_the_remedies() -> None:
    assert not found().has_key("anthropic")
    with pytest.raises(SettingsError, match="Set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN") as caught:
        found().endpoint("anthropic")
    assert caught.value.code == "missing_key"


@pytest.mark.parametrize("text", ["sk-two words", "sk-line\nend-123456", "sk-schlüssel-123456", "sk-nul\x00-1234567"])
def test_malformed_key_is_rejected_and_not_shown(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        found({"OPENAI_API_KEY": text}).endpoint("openai")
    assert caught.value.code == "invalid_key"
    assert caught.value.where == "OPENAI_API_KEY"
    assert text not in str(caught.value)


def test_newline_after_a_key_is_stripped() -> None:
    assert found({"OPENAI_API_KEY": f" {KEY}\n"}).endpoint("openai").key == Secret(KEY)


def test_empty_variable_is_ignored() -> None:
    assert not found({"OPENAI_API_KEY": ""}).has_key("openai")


def test_key_shows_at_most_four_characters_and_cannot_be_pickled(file: Path) -> None:
    secret = Secret(KEY)
    assert (repr(secret), str(secret), repr(Secret("short"))) == ("…cdef", "…cdef", "…")
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(secret)
    known = found({"ACME_KEY": OTHER}, file)
    for shown in (repr(known), repr(known.endpoint("openai")), str(known.endpoint("acme")), repr(known.accounts)):
        assert KEY not in shown
        assert OTHER not in shown


# --- addresses -------------------------------------------------------------------------------------------------------


def test_base_url_comes_from_argument_variable_file_or_row(file: Path) -> None:
    moved = {"OPENAI_BASE_URL": "https://moved.example/v1/", "OPENAI_API_KEY": KEY}
    asked = [
        found(moved, file).endpoint("openai", base_url="https://given.example/v1"),
        found(moved, file).endpoint("openai"),
        found({}, file).endpoint("openai"),
        found({"OPENAI_API_KEY": KEY}).endpoint("openai"),
    ]
    assert [(endpoint.base_url, endpoint.base_url_origin) for endpoint in asked] == [
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
    known = found({"OLLAMA_HOST": host})
    assert known.endpoint("ollama").base_url == native
    assert known.endpoint("ollama-openai").base_url == compatible
    assert known.endpoint("ollama").key is None


def test_path_is_appended_to_the_url_of_a_variable() -> None:
    for given in ("https://x.openai.azure.com/", "https://x.openai.azure.com/openai/v1"):
        known = found({"AZURE_OPENAI_ENDPOINT": given, "AZURE_OPENAI_API_KEY": KEY})
        assert known.endpoint("azure").base_url == "https://x.openai.azure.com/openai/v1"


def test_base_url_can_contain_a_variable() -> None:
    token = {"AWS_BEARER_TOKEN_BEDROCK": KEY}
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        where = found({**token, variable: "eu-west-1"}).endpoint("bedrock").base_url
        assert where == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    with pytest.raises(SettingsError, match="Set AWS_REGION") as caught:
        found(token).endpoint("bedrock")
    assert caught.value.code == "missing_base_url"


def test_missing_base_url_is_an_error() -> None:
    with pytest.raises(SettingsError, match="AZURE_OPENAI_ENDPOINT") as caught:
        found({"AZURE_OPENAI_API_KEY": KEY}).endpoint("azure")
    assert caught.value.code == "missing_base_url"
    with pytest.raises(SettingsError, match=r"base_url under \[providers.local\]"):
        found().endpoint("local")


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
        found({"OPENAI_API_KEY": KEY}).endpoint("openai", base_url=text)
    assert caught.value.code == "invalid_base_url"
    assert "secret" not in str(caught.value)


def test_every_provider_with_a_base_url_has_an_endpoint() -> None:
    for row in catalog.builtin().providers.values():
        if row.base_url and "{" not in row.base_url:
            assert found().endpoint(row, api_key=KEY).base_url == row.base_url


# --- the file --------------------------------------------------------------------------------------------------------


def test_file_defines_endpoints_and_choices(file: Path) -> None:
    known = found({"ACME_KEY": OTHER}, file)
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
    assert not found({}, file).has_key("acme")
    file.write_text('[providers.box]\nbase_url = "http://127.0.0.1:9/v1"\n', "utf-8")
    assert found({}, file).endpoint("box").key is None


def test_variable_overrides_the_file(file: Path) -> None:
    known = found({"DRAGOMAN_MODEL": "sonnet", "DRAGOMAN_STORE": "memory:"}, file)
    assert known.default_model == Setting("sonnet", "DRAGOMAN_MODEL")
    assert known.store == Setting("memory:", "DRAGOMAN_STORE")
    assert known.workspace.origin == str(file)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_file_readable_by_others_is_rejected_with_a_remedy(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod 600 {file}") as caught:
        found({}, file)
    assert caught.value.code == "unsafe_config"
    assert KEY not in str(caught.value)


def test_default_file_follows_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.default_file({}) == tmp_path / ".config" / "dragoman" / "config.toml"
    assert settings.default_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/dragoman/config.toml")
    assert found().file is None
    named = tmp_path / "mine.toml"
    named.write_text('default_model = "opus"', "utf-8")
    named.chmod(0o600)
    assert found({"DRAGOMAN_CONFIG": str(named)}).default_model.value == "opus"


@pytest.mark.parametrize(
    ("text", "says"),
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
def test_invalid_file_error_names_the_position(file: Path, text: str, says: str) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=says) as caught:
        found({}, file)
    assert caught.value.code == "invalid_config"
    assert caught.value.where == str(file)


def test_invalid_row_in_the_file_is_a_catalog_error(file: Path) -> None:
    file.write_text('[providers.openai]\nbase_ulr = "x"', "utf-8")
    with pytest.raises(FormatError, match="base_ulr") as caught:
        found({}, file)
    assert caught.value.code == "invalid_catalog"


def test_explicit_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        found({}, tmp_path / "none.toml")


# --- the keyring -----------------------------------------------------------------------------------------------------


def test_key_round_trips_through_the_system_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring
    from keyring.backend import KeyringBackend

    class InMemory(KeyringBackend):
        priority = 1
        kept: ClassVar[dict[tuple[str, str], str]] = {}

        def get_password(self, service: str, username: str) -> str | None:
            return self.kept.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            self.kept[service, username] = password

    before = keyring.get_keyring()
    keyring.set_keyring(InMemory())
    try:
        known = found({}, keyring=settings.system_keyring)
        assert not known.has_key("openai")
        settings.store_key(known.catalog.provider("openai"), KEY)
        assert known.endpoint("openai").key == Secret(KEY)
        assert InMemory.kept == {("dragoman", "openai"): KEY}
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
