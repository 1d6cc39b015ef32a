"""Limits for JSON Schemas from outside, checked before they are used.

    size = measure_schema(schema)        the size; ``SchemaSizeError`` with the path and the limit

A schema of 2 KB can expand to millions of values: nested references double at each step, and patterns compile to many
times their length. The measurement follows every reference at each use and stops at the first limit, so it visits at
most ``MAX_VALUES`` values. A recursive reference is followed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.errors import SchemaSizeError

MAX_VALUES: Final = 10_000  # objects, lists, texts, numbers
MAX_CHARACTERS: Final = 256 * 1024  # of keys and texts
MAX_DEPTH: Final = 128
MAX_PATTERNS: Final = 64
MAX_PATTERN_BYTES: Final = 512 * 1024  # of one compiled pattern
MAX_PATTERNS_BYTES: Final = 2 * 1024 * 1024  # of all patterns of a schema
_DEFINITIONS: Final = ("$defs", "definitions")
_DATA: Final = ("const", "default", "enum", "example", "examples")
_MAX_NAME_LENGTH: Final = 40  # characters of a name in a path


class SchemaSize(msgspec.Struct, frozen=True):
    """The size of a schema with expanded references."""

    values: int = 0
    patterns: int = 0
    is_recursive: bool = False

    @property
    def pattern_bytes(self) -> int:
        """The maximum size of each compiled pattern: an equal share."""
        return min(MAX_PATTERN_BYTES, MAX_PATTERNS_BYTES // max(self.patterns, 1))


def measure_schema(schema: Any) -> SchemaSize:
    """Return the size of a schema, or raise ``SchemaSizeError``."""
    measurement = _Measurement(schema)
    measurement.visit(schema, "$", 0, ())
    return SchemaSize(measurement.values, measurement.patterns, measurement.is_recursive)


def find_reference(root: Any, reference: str) -> Any:
    """Return the target of a reference within a schema; ``None`` if it is outside or missing."""
    if not reference.startswith("#"):
        return None
    target = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~").replace("%25", "%")
        target = target.get(name) if isinstance(target, Mapping) else None
    return target


def shorten_name(name: object) -> str:
    """Return a property name for a path."""
    text = str(name)
    return text if len(text) <= _MAX_NAME_LENGTH else f"{text[:_MAX_NAME_LENGTH]}…"


class _Measurement:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._characters = 0
        self.values = 0
        self.patterns = 0
        self.is_recursive = False

    def visit(self, value: Any, where: str, depth: int, references: tuple[str, ...] | None) -> None:
        """Count a value and its parts. ``references`` led to it; ``None`` disables following references."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise _size_error(where, f"more than {MAX_VALUES} values with expanded references")
        if depth > MAX_DEPTH:
            raise _size_error(where, f"nested deeper than {MAX_DEPTH} levels")
        match value:
            case str():
                self._count_text(value, where)
            case dict() | Mapping():
                self._visit_object(value, where, depth, references)
            case list():
                for index, item in enumerate(value):
                    self.visit(item, f"{where}[{index}]", depth + 1, references)

    def _visit_object(
        self, value: Mapping[str, Any], where: str, depth: int, references: tuple[str, ...] | None
    ) -> None:
        for key, inner in value.items():
            self._count_text(key, where)
            self._count_patterns(key, inner, where)
            is_data = key in _DATA or (key in _DEFINITIONS and value is self._root)
            self.visit(inner, f"{where}.{shorten_name(key)}", depth + 1, None if is_data else references)
        reference = value.get("$ref")
        if references is None or not isinstance(reference, str):
            return
        if reference in references:
            self.is_recursive = True
        else:
            self.visit(find_reference(self._root, reference), where, depth + 1, (*references, reference))

    def _count_text(self, text: str, where: str) -> None:
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise _size_error(where, f"more than {MAX_CHARACTERS} characters with expanded references")

    def _count_patterns(self, key: str, inner: Any, where: str) -> None:
        if key == "pattern" and isinstance(inner, str):
            self.patterns += 1
        elif key == "patternProperties" and isinstance(inner, dict):
            self.patterns += len(inner)
        if self.patterns > MAX_PATTERNS:
            raise _size_error(where, f"more than {MAX_PATTERNS} patterns")


def _size_error(where: str, what: str) -> SchemaSizeError:
    return SchemaSizeError(what, where=where)
