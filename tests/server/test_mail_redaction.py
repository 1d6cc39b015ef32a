"""Tests of the redaction of invalid letters."""

from __future__ import annotations

import json

import pytest

from dragoman.redaction import Redactor
from dragoman.server.mail.types import redact_invalid

SECRET = "tr0ub4dor-and-3-horses"
REDACTOR = Redactor()


def test_bytes_without_secrets_are_unchanged() -> None:
    raw = '{"type": "task_result", "wörds": [1, 2.50]}'.encode()
    assert redact_invalid(raw, REDACTOR) == raw.decode()


@pytest.mark.parametrize(
    "value",
    [
        {"payload": {"result": {"inputs": {"password": SECRET, "pin": 4711}}}},
        {"payload": {"result": {"inputs": [SECRET]}}},
        {"payload": {"requested_inputs": [{"id": "password", "sensitive": True, "default": SECRET}]}},
        {"deep": [{"inputs": {"a": {"b": SECRET}}}]},
    ],
)
def test_inputs_and_defaults_are_masked_at_any_depth(value: object) -> None:
    text = redact_invalid(json.dumps(value).encode(), REDACTOR)
    assert SECRET not in text
    assert "4711" not in text
    assert "***" in text


def test_text_after_the_first_secret_keyword_of_invalid_json_is_withheld() -> None:
    text = redact_invalid(
        f'{{"task_id": "T-1", "payload": {{"result": {{"inputs": {{"p": "{SECRET}"'.encode(), REDACTOR
    )
    assert text.startswith('{"task_id": "T-1"')
    assert SECRET not in text
    assert "withheld" in text


def test_api_keys_are_redacted_in_any_input() -> None:
    key = "sk-ant-" + "a1B2" * 8
    text = redact_invalid(f"not a letter, but {key} is in it".encode(), REDACTOR)
    assert "sk-ant" not in text
    assert "not a letter" in text


def test_binary_input_is_escaped_and_long_input_truncated() -> None:
    assert redact_invalid(b"\xff\xfe{", REDACTOR) == "\\xff\\xfe{"
    assert redact_invalid(b"x" * 50_000, REDACTOR) == "x" * 20_000 + "…"
