"""Fill in the parts of the documentation that the code knows better: fields, enums, blocks, rules and fidelity.

A page holds markers; what stands between them is written by this script from the source, where every field is
explained in a comment beside it:

    <!-- fields of dragoman.message.Message -->
    …
    <!-- end -->

``python scripts/reference.py`` writes the pages, and ``--check`` only tells whether they are up to date.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import msgspec

from dragoman import dialects, fidelity, message, rules
from dragoman.fidelity import table

PAGES = Path(__file__).resolve().parent.parent / "docs"
MARKED = re.compile(
    r"(<!-- (?P<kind>fields|words|blocks|rules|summary|cells) of (?P<name>[\w.]+) -->\n)(?P<body>.*?)(<!-- end -->)",
    re.DOTALL,
)


def filled(text: str) -> str:
    """A page with everything between markers written anew."""
    return MARKED.sub(lambda match: f"{match[1]}\n{_body(match['kind'], match['name'])}\n\n{match[5]}", text)


def _body(kind: str, name: str) -> str:
    makers = {
        "fields": _fields,
        "words": _words,
        "blocks": _blocks,
        "rules": _rules,
        "summary": _summary,
        "cells": _cells,
    }
    return "\n".join(makers[kind](name))


def _fields(name: str) -> Iterable[str]:
    cls = _class(name)
    explained = _comments(cls)
    yield "| field | type | default | |"
    yield "|---|---|---|---|"
    tag = cls.__struct_config__.tag
    if tag is not None:
        yield f'| `type` | text | | always `"{tag}"` |'
    for field in msgspec.structs.fields(cls):
        if field.name == "unknown_fields":
            continue
        default = "" if field.required else f"`{_default(field.default)}`"
        yield f"| `{field.name}` | {_type(cls, field.name)} | {default} | {explained.get(field.name, '')} |"


def _words(name: str) -> Iterable[str]:
    cls = _class(name)
    explained = _comments(cls)
    yield "| word | |"
    yield "|---|---|"
    for member in cls:
        yield f"| `{member.value}` | {explained.get(member.name, '')} |"


def _blocks(_name: str) -> Iterable[str]:
    yield "| `type` | what it is |"
    yield "|---|---|"
    for cls in get_args(message.ContentBlock):
        if cls is not message.UnknownBlock:
            summary = (inspect.getdoc(cls) or "").split("\n")[0]
            yield f"| [`{cls.type}`](#{cls.__name__.lower()}) | {summary} |"


def _rules(_name: str) -> Iterable[str]:
    for rule in rules.RULES.values():
        origin = f"§{rule.section} of the specification" if rule.section else "this project"
        yield f"### {rule.id}\n\n{rule.statement}\n\n*Why:* {rule.reason} *From:* {origin}.\n"


def _summary(_name: str) -> Iterable[str]:
    return table.summary_of_cells(_measured())


def _cells(_name: str) -> Iterable[str]:
    return "\n".join(table.markdown_of_cells(_measured())).strip().split("\n")


@functools.cache
def _measured() -> tuple[fidelity.Cell, ...]:
    return fidelity.cells(dialects.load(name) for name in dialects.names())


def _class(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)


def _comments(cls: type) -> dict[str, str]:
    """The comment beside each field of a class and of those it inherits from."""
    found: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        if part.__module__.startswith("dragoman."):
            source = inspect.getsource(part)
            for line in source.split("\n"):
                match = re.match(r"    (\w+)(?:: | = ).*?  # (.*)$", line)
                if match:
                    found[match[1]] = match[2].replace("|", "\\|").replace("<", "&lt;")
    return found


def _type(cls: type, field: str) -> str:
    """The annotation as it is written, in words that need no Python."""
    for part in cls.__mro__:
        written = inspect.get_annotations(part).get(field)
        if written is not None:
            return _in_words(str(written))
    raise AssertionError(f"{cls.__name__}.{field} has no annotation")


def _in_words(annotation: str) -> str:
    if annotation.startswith("Annotated["):
        inner, _, rest = annotation.removeprefix("Annotated[").partition(",")
        annotation = inner + rest.rpartition("]")[2]
    words = {
        "str": "text",
        "int": "integer",
        "Count": "integer from 0",
        "float": "number",
        "bool": "true or false",
        "datetime": "time",
        "Decimal": "decimal, as text",
        "ProviderRaw": "object",
        "dict[str, Any]": "object",
        "dict[str, Count]": "object of integers from 0",
        "tuple[ContentBlock, ...]": "list of blocks",
        "tuple[str, ...]": "list of texts",
        "tuple[Attachment, ...]": "a list of these",
    }
    parts = [part.strip() for part in annotation.split(" | ")]
    literal = re.fullmatch(r"Literal\[(.*)\]", annotation)
    if literal:
        return " or ".join(f"`{word}`" for word in literal[1].replace("'", '"').split(", "))
    shown = [words.get(part, f"[{part}](#{part.lower()})") for part in parts if part != "None"]
    return " or ".join(shown)


def _default(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, enum.Enum):
        return f'"{value.value}"'
    return msgspec.json.encode(value).decode()


def main() -> int:
    """Write the pages, or tell which are not up to date."""
    stale = []
    for page in sorted(PAGES.rglob("*.md")):
        text = page.read_text("utf-8")
        new = filled(text)
        if new != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, "utf-8")
    if stale:
        print(f"{'not up to date' if '--check' in sys.argv else 'written'}: {', '.join(stale)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
