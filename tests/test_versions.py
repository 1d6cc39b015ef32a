"""Tests of migrations and of messages of other versions."""

from __future__ import annotations

import logging

import pytest

import dragoman
from dragoman.errors import FormatError, NewerVersionError
from dragoman.message import SCHEMA_VERSION, TextBlock, UnknownBlock
from dragoman.versions import Format, PlainMessage
from tests.test_codec import HELLO_JSON

# A message of an imagined version 1: the field "text" of a text block has the name "words".
OLD = HELLO_JSON.replace(b'"text":"What', b'"words":"What')


@pytest.fixture
def version_2() -> Format:
    schema = Format(current=2)

    @schema.migration(from_version=1)
    def rename_words_to_text(message: PlainMessage) -> PlainMessage:
        content = [
            {("text" if key == "words" else key): value for key, value in block.items()} for block in message["content"]
        ]
        return {**message, "content": content}

    return schema


def test_decode_does_not_change_the_stored_text(version_2: Format) -> None:
    before = bytes(OLD)
    dragoman.decode(OLD, version_2)
    assert before == OLD


def test_failed_migration_raises_with_its_location(version_2: Format) -> None:
    with pytest.raises(FormatError, match=r"\$\.schema_version: not a message of version 1"):
        dragoman.decode(b'{"schema_version":1}', version_2)


def test_migrations_run_in_order() -> None:
    schema = Format(current=4)
    steps = []
    for version in (3, 1, 2):

        @schema.migration(from_version=version)
        def record_version(message: PlainMessage, version: int = version) -> PlainMessage:
            steps.append(version)
            return message

    assert dragoman.decode(HELLO_JSON, schema).schema_version == 4
    assert steps == [1, 2, 3]


def test_migration_preserves_unknown_parts(version_2: Format) -> None:
    extended = OLD.replace(b'"metadata":{}', b'"metadata":{"weather":[1]}').replace(
        b'"content":[', b'"content":[{"type":"smell"},'
    )
    message = dragoman.decode(extended, version_2)
    assert isinstance(message.content[0], UnknownBlock)
    assert message.metadata.unknown_fields["weather"] == b"[1]"


def test_version_without_migrations_is_an_error() -> None:
    with pytest.raises(FormatError, match="no migration to version") as caught:
        dragoman.decode(HELLO_JSON, Format(current=2))
    assert caught.value.code == "unknown_version"


@pytest.mark.parametrize("version", [0, 2, 3])
def test_migration_of_an_impossible_version_is_rejected(version: int) -> None:
    with pytest.raises(ValueError, match="no migration from"):
        Format(current=2).migration(from_version=version)(lambda message: message)


def test_second_migration_of_a_version_is_rejected(version_2: Format) -> None:
    with pytest.raises(ValueError, match="already"):
        version_2.migration(from_version=1)(lambda message: message)


NEWER = HELLO_JSON.replace(b'"schema_version":1', b'"schema_version":9')


def test_newer_version_is_read_partially_preserved_and_marked(caplog: pytest.LogCaptureFixture) -> None:
    # In version 9, texts are lists and the status is an object; the rest is unchanged.
    newer = NEWER.replace(b'"text":"What\'s a ULID?"', b'"text":["What"]').replace(
        b'"metadata":{}', b'"metadata":{"status":{"is":"done"},"model":"a:b"}'
    )
    message = dragoman.decode(newer)
    assert message.schema_version == 9 > SCHEMA_VERSION
    assert isinstance(message.content[0], UnknownBlock)
    assert message.metadata.model == "a:b"
    assert b'{"type":"text","text":["What"]}' in dragoman.encode(message)
    assert b'"status":{"is":"done"}' in dragoman.encode(message)
    assert dragoman.decode(dragoman.encode(message)) == message
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_newer_version_with_known_fields_is_marked_by_its_number() -> None:
    message = dragoman.decode(NEWER)
    assert message.schema_version == 9
    assert message.content == (TextBlock("What's a ULID?"),)
    assert dragoman.encode(message) == NEWER


def test_unreadable_newer_version_raises_with_its_data() -> None:
    newer = NEWER.replace(b'"id":"01HZ001"', b'"id":{"ulid":"01HZ001"}')
    with pytest.raises(NewerVersionError, match="schema version 9") as caught:
        dragoman.decode(newer)
    assert caught.value.data == newer
    assert caught.value.version == 9
