"""Redaction removes secrets and nothing else; if it fails, the text is withheld.

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


def by_chance(length: int, alphabet: str = LETTERS, seed: int = 1) -> str:
    """Random signs, the same in every run, letters and digits among them."""
    made = random.Random(seed).choices(alphabet, k=length)
    return "".join(made[:-2]) + next(a for a in alphabet if a.isalpha()) + next(a for a in alphabet if a.isdigit())


HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits

KEYS = {
    "Anthropic": "sk-ant-api03-" + by_chance(95, LETTERS + "_-"),
    "OpenAI": "sk-" + by_chance(48),
    "OpenAI project": "sk-proj-" + by_chance(150, LETTERS + "_-"),
    "OpenRouter": "sk-or-v1-" + by_chance(64, HEX),
    "DeepSeek": "sk-" + by_chance(32, HEX),
    "Langfuse": "sk-lf-" + by_chance(36, HEX),
    "Gemini": "AIza" + by_chance(35, LETTERS + "_-"),
    "Google OAuth": "ya29." + by_chance(100, LETTERS + "_-"),
    "Groq": "gsk_" + by_chance(52),
    "xAI": "xai-" + by_chance(80),
    "Perplexity": "pplx-" + by_chance(48),
    "Cerebras": "csk-" + by_chance(48, HEX),
    "Fireworks": "fw_" + by_chance(24),
    "NVIDIA": "nvapi-" + by_chance(64, LETTERS + "_-"),
    "Replicate": "r8_" + by_chance(37),
    "Hugging Face": "hf_" + by_chance(34),
    "AWS": "AKIA" + by_chance(16, UPPER),
    "AWS for a while": "ASIA" + by_chance(16, UPPER),
    "Bedrock": "ABSK" + by_chance(120),
    "GitHub": "ghp_" + by_chance(36),
    "GitHub fine": "github_pat_" + by_chance(82, LETTERS + "_"),
    "GitLab": "glpat-" + by_chance(20, LETTERS + "_-"),
    "Slack": "xoxb-" + by_chance(50, LETTERS + "-"),
    "Stripe": "sk_live_" + by_chance(24),
    "SendGrid": f"SG.{by_chance(22)}.{by_chance(43)}",
    "npm": "npm_" + by_chance(36),
    "PyPI": "pypi-" + by_chance(160, LETTERS + "_-"),
    "Databricks": "dapi" + by_chance(32, HEX),
    "Vault": "hvs." + by_chance(90),
    "Telegram": "123456789:AA" + by_chance(33),
    "JSON Web Token": ".".join(
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=")
        for part in ('{"alg":"HS256","typ":"JWT"}', '{"sub":"1234567890","name":"Ada"}', by_chance(32))
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
def test_a_key_of_somebody_who_is_known_is_found_anywhere(name: str, around: str) -> None:
    made = redact(around.format(KEYS[name]))
    assert KEYS[name] not in made
    assert made.count("[redacted:") == 1
    assert redaction._MARKER.sub("{}", made) == around.format("{}")


SECRETS = [
    ("Authorization: Bearer {}", by_chance(20)),
    ("authorization: Basic {}", base64.b64encode(b"aladdin:opensesame1").decode()),
    ("-H 'x-api-key: {}'", by_chance(32)),
    ("curl -H 'Authorization: token {}'", by_chance(40, HEX)),
    ("bearer {}", by_chance(20)),
    ("MISTRAL_API_KEY={}", by_chance(32)),
    ("export COHERE_API_KEY='{}'", by_chance(40)),
    ('"api_key": "{}"', by_chance(32)),
    ('{{\\"apiKey\\": \\"{}\\"}}', by_chance(32)),
    ("aws_secret_access_key = {}", by_chance(40, LETTERS + "/+")),
    ("AccountKey={};EndpointSuffix=x", by_chance(86, LETTERS + "+/")),
    ("https://x.test/a?sig={}&b=1", by_chance(43)),
    ("https://x.test/a?access_token={}", by_chance(40)),
    ("https://x.test/a?X-Amz-Signature={}", by_chance(64, HEX)),
    ("password={}", "hunter2"),
    ('"password": "{}"', "correct horse battery staple"),
    ("DB_PASSWORD: {}", "s3cr3t!"),
    ("pwd={};", "geheim"),
    ("client_secret={}", by_chance(30)),
    ("postgresql://dragoman:{}@db.example/x", "p%40ss"),
    ("redis://:{}@cache:6379/0", "hunter2"),
    ("https://user:{}@github.test/x.git", "ghx_abc"),
    ("passphrase => '{}'", "open sesame"),
    ("token={}", by_chance(2_000)),
    ("password={}", by_chance(2_000)),
    ("key: sk-{}", by_chance(1_000)),
]


@pytest.mark.parametrize(("around", "secret"), SECRETS)
def test_what_stands_behind_a_name_that_says_so_is_found(around: str, secret: str) -> None:
    made = redact(f"before {around.format(secret)} after")
    assert secret not in made
    assert secret[-8:] not in made
    assert made.startswith("before ")
    assert made.endswith(" after")


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("end", ["\n-----END {}PRIVATE KEY-----\nafter", ""])
def test_a_private_key_is_found_whole_or_cut(kind: str, end: str) -> None:
    body = by_chance(400, LETTERS + "+/")
    made = redact(f"before\n-----BEGIN {kind}PRIVATE KEY-----\nDEK-Info: AES-128-CBC\n\n{body}{end.format(kind)}")
    assert made == "before\n[redacted:private_key]" + ("\nafter" if end else "")


SOUND = [
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


@pytest.mark.parametrize("text", SOUND, ids=range(len(SOUND)))
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_emails_are_taken_out_when_asked_for() -> None:
    text = "write to ada.lovelace+x@mail.example.test, not to @ada"
    assert redact(text) == text
    assert Redactor(emails=True).text(text) == "write to [redacted:email], not to @ada"


def test_an_application_has_rules_and_secrets_of_its_own() -> None:
    redactor = Redactor(rules=[Rule("badge", r"badge (\d+)"), Rule("code", r"X-\d+")], secrets=["open.sesame+é", "no"])
    assert redactor.text("badge 12, X-7, say open.sesame+é, no") == (
        "badge [redacted:badge], [redacted:code], say [redacted:secret], no"
    )
    assert redactor.text("openXsesame+é") == "openXsesame+é"


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_names_in_json_say_what_is_secret() -> None:
    key = KEYS["Groq"]
    assert redact_json(
        {
            "password": "hunter2",
            "db": {"userPassword": 1234, "client_secret": "abc def", "pwd": None, "secret": True},
            "x-api-key": by_chance(20),
            "Authorization": "Bearer " + by_chance(20),
            "token": "Hello",
            "credentials": {"user": "ada", "value": by_chance(20)},
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


def test_json_text_stays_json() -> None:
    text = json.dumps({"a": {"password": 'quo"te'}, "b": [KEYS["GitHub"]]}).encode()
    assert json.loads(Redactor().json(text)) == {
        "a": {"password": "[redacted:password]"},
        "b": ["[redacted:github_token]"],
    }


# --- when it fails ---------------------------------------------------------------------------------------------------


def test_several_json_texts_are_redacted_like_each_of_them() -> None:
    clean, secret, invalid = b'{"a": ["b", 1]}', json.dumps({"note": KEYS["Anthropic"]}).encode(), b"{"
    redactor = Redactor()
    for texts in ([], [clean], [clean, clean], [clean, secret, clean], [clean, invalid]):
        assert redactor.json_list(texts) == [redactor.json(text) for text in texts]


def test_what_cannot_be_redacted_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert redact_json(deep) == WITHHELD
    assert redact_json({"a": object()}) == WITHHELD
    assert json.loads(Redactor().json(b"not json " + KEYS["Groq"].encode())) == WITHHELD

    def broken() -> Any:
        raise RuntimeError(KEYS["Groq"])

    monkeypatch.setattr(redaction, "_patterns", broken)
    assert redact("anything") == WITHHELD
    assert redact_json({"a": "anything", "b": 1}) == {WITHHELD: WITHHELD, f"{WITHHELD} (2)": 1}


# --- logs ------------------------------------------------------------------------------------------------------------


def test_a_log_has_no_secrets_in_it() -> None:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
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
    text = said.getvalue()
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
def test_to_redact_twice_is_to_redact_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(PLAIN)
def test_json_keeps_its_shape(value: Any) -> None:
    made = redact_json(value)
    assert shape(made) == shape(value)
    assert redact_json(made) == made


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
def test_a_key_among_anything_never_passes(before: str, name: str, after: str) -> None:
    """Where it stands as a word of its own."""
    assert KEYS[name] not in redact(f"{before} {KEYS[name]} {after}")


@given(
    st.sampled_from(
        ["eyJ", "sk-", "token=", "token=a1b2c3d4 ", "://a:", "bearer ", "-----BEGIN PRIVATE KEY-----", "password='"]
    )
)
def test_a_text_made_to_be_slow_is_none(piece: str) -> None:
    """It ends at all: a pattern that tried every way would not, within the life of the machine."""
    made = redact(piece * 20_000)
    assert WITHHELD not in made
