"""Recorded traffic, read once per process and sampled in the default run.

    records("anthropic", part="stream", sample=40)   about 40 records with a stream; in the full run all of them

The files stay where they are and are never copied. Tests are skipped if they are absent. Invariant: a sample depends only
on the ids of the records, so every run and every process selects the same ones.
"""

from __future__ import annotations

import functools
import gzip
import json
import zlib
from collections.abc import Collection, Iterator
from typing import Any, Literal

import msgspec
import pytest

from dragoman import dialects
from tests.conftest import CORPUS, IS_FULL

Json = dict[str, Any]
Part = Literal["request", "response", "stream"]
_EMPTY = (b"null", b'""', b"")


class _Head(msgspec.Struct):
    """The fields that select a record."""

    id: str
    dialect: str
    kind: str = ""
    request: msgspec.Raw = msgspec.Raw(b"null")
    response: msgspec.Raw = msgspec.Raw(b"null")
    stream: msgspec.Raw = msgspec.Raw(b"null")


class _Entry(msgspec.Struct, frozen=True):
    id: str
    parts: frozenset[str]
    line: bytes

    def is_selected(self, ratio: int) -> bool:
        return zlib.crc32(self.id.encode()) % ratio == 0


def records(
    *names: str, part: Part | None = None, sample: int | None = None, always: Collection[str] = ()
) -> Iterator[tuple[str, Json]]:
    """Yield the unedited records of these dialects, each with the name of its dialect.

    ``part`` selects records that have it: a request or a response that is an object, or a stream. ``sample`` limits the
    default run to about so many records of each dialect, and to the records with an id in ``always``.
    """
    for name in names:
        entries = [entry for entry in _entries(name) if part is None or part in entry.parts]
        ratio = 1 if IS_FULL or sample is None else max(1, len(entries) // sample)
        for entry in entries:
            if entry.is_selected(ratio) or entry.id in always:
                yield name, json.loads(entry.line)


def dialect_names() -> list[str]:
    """Return the names of the dialects in recorded traffic."""
    return list(_index())


def _entries(name: str) -> list[_Entry]:
    index = _index()
    return [
        entry
        for alias, known in dialects.names_in_recordings().items()
        if known == name
        for entry in index.get(alias, ())
    ]


@functools.cache
def _index() -> dict[str, list[_Entry]]:
    files = sorted(CORPUS.glob("*.jsonl.gz"))
    if not files:
        pytest.skip(f"no recorded traffic at {CORPUS}; set DRAGOMAN_CORPUS to its folder")
    decoder = msgspec.json.Decoder(_Head)
    index: dict[str, list[_Entry]] = {}
    for file in files:
        with gzip.open(file) as lines:
            for line in lines:
                head = decoder.decode(line)
                if head.kind != "doctored":
                    index.setdefault(head.dialect, []).append(_Entry(head.id, _parts(head), line))
    return index


def _parts(head: _Head) -> frozenset[str]:
    found = {name for name in ("request", "response") if bytes(getattr(head, name)).startswith(b"{")}
    if bytes(head.stream) not in _EMPTY:
        found.add("stream")
    return frozenset(found)
