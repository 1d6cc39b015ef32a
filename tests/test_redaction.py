"""Tests of redaction: it removes secrets and nothing else, and withholds the text if it fails.

The keys are generated, so that no file contains a text that looks like a key.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import random
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import redaction
from dragoman.ids import ulid
from dragoman.redaction import WITHHELD, Redactor, Rule, redact, redact_json, redact_record

LETTERS = string.ascii_letters + string.digits


def random_key(length: int, alphabet: str = LETTERS, seed: int = 1) -> str:
    """Return random characters, the same in every run, with at least one letter and one digit."""
    characters = random.Random(seed).choices(alphabet, k=length)
    return (
        "".join(characters[:-2]) + next(a for a in alphabet if a.isalpha()) + next(a for a in alphabet if a.isdigit())
    )


HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits

KEYS = {
    "Anthropic": "sk-ant-api03-" + random_key(95, LETTERS + "_-"),
    "OpenAI": "sk-" + random_key(48),
    "OpenAI project": "sk-proj-" + random_key(150, LETTERS + "_-"),
    "OpenRouter": "sk-or-v1-" + random_key(64, HEX),
    "DeepSeek": "sk-" + random_key(32, HEX),
    "Langfuse": "sk-lf-" + random_key(36, HEX),
    "Gemini": "AIza" + random_key(35, LETTERS + "_-"),
    "Google OAuth": "ya29." + random_key(100, LETTERS + "_-"),
    "Groq": "gsk_" + random_key(52),
    "xAI": "xai-" + random_key(80),
    "Perplexity": "pplx-" + random_key(48),
    "Cerebras": "csk-" + random_key(48, HEX),
    "Fireworks": "fw_" + random_key(24),
    "NVIDIA": "nvapi-" + random_key(64, LETTERS + "_-"),
    "Replicate": "r8_" + random_key(37),
    "Hugging Face": "hf_" + random_key(34),
    "AWS": "AKIA" + random_key(16, UPPER),
    "AWS temporary": "ASIA" + random_key(16, UPPER),
    "Bedrock": "ABSK" + random_key(120),
    "GitHub": "ghp_" + random_key(36),
    "GitHub fine": "github_pat_" + random_key(82, LETTERS + "_"),
    "GitLab": "glpat-" + random_key(20, LETTERS + "_-"),
    "Slack": "xoxb-" + random_key(50, LETTERS + "-"),
    "Stripe": "sk_live_" + random_key(24),
    "SendGrid": f"SG.{random_key(22)}.{random_key(43)}",
    "npm": "npm_" + random_key(36),
    "PyPI": "pypi-" + random_key(160, LETTERS + "_-"),
    "Databricks": "dapi" + random_key(32, HEX),
    "Vault": "hvs." + random_key(90),
    "Telegram": "123456789:AA" + random_key(33),
    "JSON Web Token": ".".join(
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=")
        for part in ('{"alg":"HS256","typ":"JWT"}', '{"sub":"1234567890","name":"Ada"}', random_key(32))
    ),
}
AROUND = [
    "{}",
    "the key is {}, keep it",
    '{{"key":"{}"}}',
    "?k={}&x=1",
    "\\n{}\\n",
    "%20{}",
    "é{}é",
    "({})",
    "KEY={}",
    "\n{}\n",
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", KEYS)
def test_key_of_a_known_provider_is_found_anywhere(name: str, around: str) -> None:
    redacted = redact(around.format(KEYS[name]))
    assert KEYS[name] not in redacted
    assert redacted.count("[redacted:") == 1
    assert redaction._MARKER.sub("{}", redacted) == around.format("{}")


SECRETS = [
    ("Authorization: Bearer {}", random_key(20)),
    ("authorization: Basic {}", base64.b64encode(b"aladdin:opensesame1").decode()),
    ("-H 'x-api-key: {}'", random_key(32)),
    ("curl -H 'Authorization: token {}'", random_key(40, HEX)),
    ("bearer {}", random_key(20)),
    ("MISTRAL_API_KEY={}", random_key(32)),
    ("export COHERE_API_KEY='{}'", random_key(40)),
    ('"api_key": "{}"', random_key(32)),
    ('{{\\"apiKey\\": \\"{}\\"}}', random_key(32)),
    ("aws_secret_access_key = {}", random_key(40, LETTERS + "/+")),
    ("AccountKey={};EndpointSuffix=x", random_key(86, LETTERS + "+/")),
    ("https://x.test/a?sig={}&b=1", random_key(43)),
    ("https://x.test/a?access_token={}", random_key(40)),
    ("https://x.test/a?X-Amz-Signature={}", random_key(64, HEX)),
    ("password={}", "hunter2"),
    ('"password": "{}"', "correct horse battery staple"),
    ("DB_PASSWORD: {}", "s3cr3t!"),
    ("pwd={};", "geheim"),
    ("client_secret={}", random_key(30)),
    ("postgresql://dragoman:{}@db.example/x", "p%40ss"),
    ("redis://:{}@cache:6379/0", "hunter2"),
    ("https://user:{}@github.test/x.git", "ghx_abc"),
    ("passphrase => '{}'", "open sesame"),
    ("token={}", random_key(2_000)),
    ("password={}", random_key(2_000)),
    ("key: sk-{}", random_key(1_000)),
]


@pytest.mark.parametrize(("around", "secret"), SECRETS)
def test_value_after_a_secret_name_is_found(around: str, secret: str) -> None:
    redacted = redact(f"before {around.format(secret)} after")
    assert secret not in redacted
    assert secret[-8:] not in redacted
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("end", ["\n-----END {}PRIVATE KEY-----\nafter", ""])
def test_private_key_is_found_whole_or_truncated(kind: str, end: str) -> None:
    body = random_key(400, LETTERS + "+/")
    redacted = redact(f"before\n-----BEGIN {kind}PRIVATE KEY-----\nDEK-Info: AES-128-CBC\n\n{body}{end.format(kind)}")
    assert redacted == "before\n[redacted:private_key]" + ("\nafter" if end else "")


WITHOUT_SECRETS = [
    "",
    "Nothing here.",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    f"sha256 {hashlib.sha256(b'x').hexdigest()}",
    f"message {ulid(1_700_000_000_000, 12345)} in sess_{ulid(1_700_000_000_000, 12345)}, call tu_{ulid(1, 2)}",
    "b7c9d2e4-1f3a-4b5c-8d6e-7f8091a2b3c4",
    "data:image/png;base64," + base64.b64encode(random.Random(1).randbytes(3_000)).decode(),
    base64.urlsafe_b64encode(random.Random(2).randbytes(300_000)).decode(),
    "max_tokens: 4096, input_tokens=12345678, token_count: 99999999",
    '{"token": "Hello", "logprob": -0.1}',
    "token: string\npassword: str\npassword=None, secret: null",
    "api_key=os.environ['OPENAI_API_KEY'], api_key=settings.api_key, password=config.password",
    "OPENAI_API_KEY=$OPENAI_API_KEY, password=${DB_PASSWORD}, api_key=<your key>, token=****************",
    "sk-learn-is-a-nice-library-to-use, risk-averse-people-like-scikit-learn",
    "the bearer certificates of authorization: everybody may read",
    "Password: required. The secret: patience. A token: appreciation",
    "https://example.test:8080/path?q=1 and ssh://git@example.test:22/x and mailto:ada@example.test",
    "eyJ is how base64 of an object begins; a.b.c is a version like 1.2.3",
    "PWD=/home/ada pwd: ~/src",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n-----BEGIN PUBLIC KEY-----",
    "idempotency key 01K4Q2, primary key: id, keyboard: qwerty, monkey=1",
    "half of a character \ud83d, NUL \0, and 中文 🎉",
]


@pytest.mark.parametrize("text", WITHOUT_SECRETS, ids=range(len(WITHOUT_SECRETS)))
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert redact(text) == text


def test_emails_are_redacted_if_configured() -> None:
    text = "write to ada.lovelace+x@mail.example.test, not to @ada"
    assert redact(text) == text
    assert Redactor(emails=True).text(text) == "write to [redacted:email], not to @ada"


def test_application_adds_rules_and_secrets() -> None:
    redactor = Redactor(rules=[Rule("badge", r"badge (\d+)"), Rule("code", r"X-\d+")], secrets=["open.sesame+é", "no"])
    assert redactor.text("badge 12, X-7, say open.sesame+é, no") == (
        "badge [redacted:badge], [redacted:code], say [redacted:secret], no"
    )
    assert redactor.text("openXsesame+é") == "openXsesame+é"


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_secret_names_in_json_redact_their_values() -> None:
    key = KEYS["Groq"]
    assert redact_json(
        {
            "password": "hunter2",
            "db": {"userPassword": 1234, "client_secret": "abc def", "pwd": None, "secret": True},
            "x-api-key": random_key(20),
            "Authorization": "Bearer " + random_key(20),
            "token": "Hello",
            "credentials": {"user": "ada", "value": random_key(20)},
            "secrets": ["hunter2", 5],
            "said": [f"use {key}", 3, 4.5, None, True],
            key: 1,
            key + "x": 2,
            "max_tokens": 4096,
        }
    ) == {
        "password": "[redacted:password]",
        "db": {
            "userPassword": "[redacted:password]",
            "client_secret": "[redacted:password]",
            "pwd": None,
            "secret": True,
        },
        "x-api-key": "[redacted:secret]",
        "Authorization": "[redacted:secret]",
        "token": "Hello",
        "credentials": {"user": "ada", "value": "[redacted:secret]"},
        "secrets": ["[redacted:password]", "[redacted:password]"],
        "said": ["use [redacted:groq_key]", 3, 4.5, None, True],
        "[redacted:groq_key]": 1,
        "[redacted:groq_key] (2)": 2,
        "max_tokens": 4096,
    }


def test_redacted_json_text_is_json() -> None:
    text = json.dumps({"a": {"password": 'quo"te'}, "b": [KEYS["GitHub"]]}).encode()
    assert json.loads(Redactor().json(text)) == {
        "a": {"password": "[redacted:password]"},
        "b": ["[redacted:github_token]"],
    }


# --- failures --------------------------------------------------------------------------------------------------------


def test_json_list_is_redacted_like_single_texts() -> None:
    clean, secret, invalid = b'{"a": ["b", 1]}', json.dumps({"note": KEYS["Anthropic"]}).encode(), b"{"
    redactor = Redactor()
    for texts in ([], [clean], [clean, clean], [clean, secret, clean], [clean, invalid]):
        assert redactor.json_list(texts) == [redactor.json(text) for text in texts]


def test_text_is_withheld_if_redaction_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert redact_json(deep) == WITHHELD
    assert redact_json({"a": object()}) == WITHHELD
    assert json.loads(Redactor().json(b"not json " + KEYS["Groq"].encode())) == WITHHELD

    def raise_error() -> Any:
        raise RuntimeError(KEYS["Groq"])

    monkeypatch.setattr(redaction, "_patterns", raise_error)
    assert redact("anything") == WITHHELD
    assert redact_json({"a": "anything", "b": 1}) == {WITHHELD: WITHHELD, f"{WITHHELD} (2)": 1}


# --- logs ------------------------------------------------------------------------------------------------------------


def test_log_contains_no_secrets() -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s %(where)s"))
    handler.addFilter(redact_record)
    log = logging.getLogger("dragoman.test_of_redaction")
    log.propagate = False
    log.addHandler(handler)
    log.warning("the key %s is wrong", KEYS["Groq"], extra={"where": KEYS["GitHub"]})
    try:
        raise RuntimeError(f"refused {KEYS['OpenAI']}")
    except RuntimeError:
        log.exception("it failed", extra={"where": "here"})
    log.warning("%s and %s", KEYS["Groq"], extra={"where": "there"})
    log.removeHandler(handler)
    text = output.getvalue()
    assert text.startswith("WARNING the key [redacted:groq_key] is wrong [redacted:github_token]\n")
    assert "RuntimeError: refused [redacted:api_key]" in text
    assert "test_redaction.py" in text
    assert text.endswith(f"WARNING {WITHHELD} there\n")
    assert [name for name, key in KEYS.items() if key in text] == []


# --- laws ------------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(), max_size=200) | st.text("sk-ant_AKIApwdtoken=:'\"\\ \n[]eyJ.xX019", max_size=200)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.sampled_from(["password", "token"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(TEXTS)
def test_redaction_is_idempotent(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(PLAIN)
def test_json_keeps_its_structure(value: Any) -> None:
    redacted = redact_json(value)
    assert shape(redacted) == shape(value)
    assert redact_json(redacted) == redacted


def shape(value: Any) -> Any:
    match value:
        case dict():
            return [shape(inner) for inner in value.values()]
        case list():
            return [shape(inner) for inner in value]
        case None | bool():
            return value
        case _:
            return "scalar"


@given(TEXTS, st.sampled_from(sorted(KEYS)), TEXTS)
def test_key_within_any_text_is_redacted(before: str, name: str, after: str) -> None:
    """The key is a separate word."""
    assert KEYS[name] not in redact(f"{before} {KEYS[name]} {after}")


@given(
    st.sampled_from(
        ["eyJ", "sk-", "token=", "token=a1b2c3d4 ", "://a:", "bearer ", "-----BEGIN PRIVATE KEY-----", "password='"]
    )
)
def test_redaction_of_adversarial_text_terminates(piece: str) -> None:
    """A pattern with exponential backtracking would not end."""
    redacted = redact(piece * 20_000)
    assert WITHHELD not in redacted
