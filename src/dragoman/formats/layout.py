"""Change a JSON text and keep its layout: indentation, key order and the spelling of unchanged values.

    rewrite(text, before, after) -> text              one JSON document
    rewrite_items(texts, before, after) -> items      the items of a list, such as the lines of a file

``before`` is the output of a writer for the original, ``after`` its output for the changed version. Only the
differences between the two are changed in the text. Invariant: if they are equal, the text is unchanged.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR: Final = re.compile(r"[^\s,\]}]+")
_INDENT: Final = re.compile(r"\n([ \t]+)\S")
_LOOK_AHEAD: Final = 32  # changed items that are compared with a new one


class _Node(msgspec.Struct):
    """A value in a text. The parts of an object are its members, each with its key; those of a list are its items."""

    start: int
    end: int
    parts: list[_Part] = []
    tail: str = ""  # the white space before the closing bracket


class _Part(msgspec.Struct):
    lead: str  # the white space before it
    key: str  # as a value; empty in a list
    head: str  # the key as it is spelled, with its colon
    node: _Node
    trail: str = ""  # the white space before the comma


class _Style(msgspec.Struct, frozen=True):
    """The spelling of a text, for added values."""

    indent: str
    comma: str
    colon: str
    is_ascii: bool


def rewrite(text: bytes, before: Any, after: Any) -> bytes:
    """Return the text with the differences between two values applied."""
    if _are_equal(before, after):
        return text
    return _Rewriter(text.decode()).rewrite(before, after).encode()


def rewrite_items(
    texts: Sequence[bytes], before: Sequence[Any], after: Sequence[Any]
) -> list[tuple[int | None, bytes]]:
    """Return the text of each item of ``after`` and its index in ``texts``; ``None`` if it is new."""
    if len(texts) != len(before):
        before = [json.loads(text) for text in texts]
    style = _detect_style(texts[0].decode() if texts else "")
    result: list[tuple[int | None, bytes]] = []
    for old, value in _pair_items(before, after):
        if old is None:
            result.append((old, _render(value, style, "", is_wide=False).encode()))
        else:
            result.append((old, rewrite(texts[old], before[old], value)))
    return result


class _Rewriter:
    def __init__(self, text: str) -> None:
        self._text = text
        self._style = _detect_style(text)

    def rewrite(self, before: Any, after: Any) -> str:
        start = _skip_space(self._text, 0)
        root = _parse(self._text, start)
        return self._text[:start] + self._merge(root, before, after, "") + self._text[root.end :]

    def _merge(self, node: _Node, before: Any, after: Any, margin: str) -> str:
        """Return the text of a node with the differences applied. ``margin`` is the indentation of its line."""
        raw = self._text[node.start : node.end]
        if _are_equal(before, after):
            return raw
        if raw.startswith("{") and isinstance(before, dict) and isinstance(after, dict):
            return self._merge_object(node, before, after, margin)
        if raw.startswith("[") and isinstance(before, list) and isinstance(after, list):
            return self._merge_list(node, before, after, margin)
        return _render(after, self._style, margin, is_wide="\n" in raw)

    def _merge_object(self, node: _Node, before: dict[str, Any], after: dict[str, Any], margin: str) -> str:
        inner = _line_margin(node.parts[0].lead, margin) if node.parts else margin
        parts: list[tuple[_Part | None, str]] = []
        for part in node.parts:
            if part.key in after:
                old = before[part.key] if part.key in before else json.loads(self._get_text(part.node))
                parts.append((part, part.head + self._merge(part.node, old, after[part.key], inner)))
            elif part.key not in before:  # the writer omits it in both
                parts.append((part, part.head + self._get_text(part.node)))
        existing_keys = {part.key for part in node.parts}
        for key, value in after.items():
            if key in existing_keys or (key in before and _are_equal(before[key], value)):
                continue
            name = json.dumps(key, ensure_ascii=self._style.is_ascii)
            text = _render(value, self._style, inner, is_wide=_is_wide(node.parts))
            parts.append((None, f"{name}{self._style.colon}{text}"))
        return self._join(node, parts, "{}")

    def _merge_list(self, node: _Node, before: list[Any], after: list[Any], margin: str) -> str:
        inner = _line_margin(node.parts[0].lead, margin) if node.parts else margin
        if len(before) != len(node.parts):
            before = json.loads(self._get_text(node))
        wide_count = sum("\n" in self._get_text(part.node) for part in node.parts)
        is_wide = 2 * wide_count > len(node.parts)
        parts: list[tuple[_Part | None, str]] = []
        for old, value in _pair_items(before, after):
            if old is None:
                parts.append((None, _render(value, self._style, inner, is_wide=is_wide)))
            else:
                part = node.parts[old]
                parts.append((part, self._merge(part.node, before[old], value, inner)))
        return self._join(node, parts, "[]")

    def _get_text(self, node: _Node) -> str:
        return self._text[node.start : node.end]

    def _join(self, node: _Node, members: list[tuple[_Part | None, str]], brackets: str) -> str:
        """Join parts with commas and the white space of the original."""
        if not members:
            return brackets
        parts = node.parts
        first = parts[0].lead if parts else ""
        other = parts[1].lead if len(parts) > 1 else first if "\n" in first else self._style.comma[1:]
        texts = []
        for place, (part, text) in enumerate(members):
            own_lead = part.lead if part is not None and part is not parts[0] else other
            trail = part.trail if part is not None and place + 1 < len(members) else ""
            texts.append(f"{own_lead if place else first}{text}{trail}")
        return f"{brackets[0]}{','.join(texts)}{node.tail}{brackets[1]}"


# --- matching items --------------------------------------------------------------------------------------------------


def _pair_items(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[int | None, Any]]:
    """Yield each item of ``after`` with its index in ``before``; ``None`` if it is new."""
    old, new = [_to_sorted_json(item) for item in before], [_to_sorted_json(item) for item in after]
    places: list[int | None] = [None] * len(new)
    changed: list[tuple[int, int, int, int]] = []
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            places[j1:j2] = range(i1, i2)
        else:
            changed.append((i1, i2, j1, j2))
    _match_moved(old, new, places)
    used = set(places)
    for i1, i2, j1, j2 in changed:
        unused, first = [place for place in range(i1, i2) if place not in used], 0
        for at in range(j1, j2):
            if places[at] is None:
                near = range(first, min(first + _LOOK_AHEAD, len(unused)))
                match = next((number for number in near if _are_similar(before[unused[number]], after[at])), None)
                if match is not None:
                    places[at], first = unused[match], match + 1
    yield from zip(places, after, strict=True)


def _match_moved(old: list[str], new: list[str], places: list[int | None]) -> None:
    """Match items that have moved."""
    used = set(places)
    unused: dict[str, list[int]] = {}
    for place, text in enumerate(old):
        if place not in used:
            unused.setdefault(text, []).append(place)
    for at, text in enumerate(new):
        if places[at] is None and unused.get(text):
            places[at] = unused[text].pop(0)


def _are_similar(old: Any, new: Any) -> bool:
    """Return whether one may be a later version of the other: at least half of their fields are equal."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return False
    same = sum(1 for key, value in old.items() if key in new and _are_equal(value, new[key]))
    return 2 * same >= min(len(old), len(new))


def _are_equal(first: Any, second: Any) -> bool:
    return _to_sorted_json(first) == _to_sorted_json(second)


def _to_sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# --- spelling --------------------------------------------------------------------------------------------------------


def _detect_style(text: str) -> _Style:
    indent = _INDENT.search(text)
    colon = ": " if re.search(r'"\s*:[ ]', text) or not re.search(r'":', text) else ":"
    comma = ", " if re.search(r'[\]}"\w],[ ]', text) or (indent is not None and colon == ": ") else ","
    return _Style(indent[1] if indent else "", comma, colon, text.isascii() and "\\u" in text)


def _is_wide(parts: list[_Part]) -> bool:
    return any("\n" in part.lead for part in parts)


def _line_margin(lead: str, outer: str) -> str:
    """Return the indentation of a line from the white space before a part."""
    return lead.rpartition("\n")[2] if "\n" in lead else outer


def _render(value: Any, style: _Style, margin: str, *, is_wide: bool) -> str:
    """Format a new value; ``is_wide``: on several lines, like its neighbours."""
    if not is_wide or not style.indent:
        return json.dumps(value, ensure_ascii=style.is_ascii, separators=(style.comma, style.colon))
    text = json.dumps(value, ensure_ascii=style.is_ascii, indent=style.indent, separators=(",", style.colon))
    return text.replace("\n", f"\n{margin}")


# --- parsing ---------------------------------------------------------------------------------------------------------


def _skip_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _parse(text: str, at: int) -> _Node:
    """Parse the value at a position of a valid JSON text."""
    match text[at]:
        case "{" | "[":
            return _parse_parts(text, at, is_object=text[at] == "{")
        case '"':
            return _Node(at, _match_end(_STRING, text, at))
        case _:
            return _Node(at, _match_end(_SCALAR, text, at))


def _parse_parts(text: str, start: int, *, is_object: bool) -> _Node:
    node = _Node(start, start)
    at = start + 1
    while True:
        begin = _skip_space(text, at)
        if text[begin] in "]}":
            node.tail = text[at:begin]
            break
        value_at, key = begin, ""
        if is_object:
            key_end = _match_end(_STRING, text, begin)
            key = json.loads(text[begin:key_end])
            value_at = _skip_space(text, _skip_space(text, key_end) + 1)
        child = _parse(text, value_at)
        part = _Part(text[at:begin], key, text[begin:value_at], child)
        node.parts.append(part)
        begin = _skip_space(text, child.end)
        if text[begin] in "]}":
            node.tail = text[child.end : begin]
            break
        part.trail = text[child.end : begin]
        at = begin + 1
    node.end = begin + 1
    return node


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None
    return match.end()
