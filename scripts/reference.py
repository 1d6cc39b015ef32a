"""Write the generated parts of the documentation: fields, enums, blocks, rules, events, fidelity, command options.

A page contains markers. The script writes the content between them from the source, where a comment explains each
field:

    <!-- fields of dragoman.message.Message -->
    …
    <!-- end -->

``python -m scripts.reference`` writes the pages; ``--check`` only reports whether they are up to date.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from dragoman import dialects, exchange, fidelity, message, rules
from dragoman.bus import EVENT_TYPES, types
from dragoman.bus.event_types import turn_events
from dragoman.cli.parser import app
from dragoman.fidelity import table
from dragoman.routing import chain, pattern

PAGES = Path(__file__).resolve().parent.parent / "docs"
MARKER = re.compile(
    r"(<!-- (?P<kind>fields|words|blocks|rules|summary|cells|types|payloads|options|api) of (?P<name>[\w. -]+?) -->\n)"
    r"(?P<body>.*?)(<!-- end -->)",
    re.DOTALL,
)


def fill(text: str) -> str:
    """Return a page with the content of all markers generated."""
    return MARKER.sub(lambda match: f"{match[1]}\n{_body(match['kind'], match['name'])}\n\n{match[5]}", text)


def _body(kind: str, name: str) -> str:
    makers = {
        "fields": _fields,
        "words": _enum_values,
        "blocks": _blocks,
        "rules": _rules,
        "summary": _summary,
        "cells": _cells,
        "types": _event_types,
        "payloads": _payloads,
        "options": _options,
        "api": _api,
    }
    return "\n".join(makers[kind](name))


def _fields(name: str) -> Iterable[str]:
    cls = _class(name)
    comments = _comments(cls)
    yield "| field | type | default | |"
    yield "|---|---|---|---|"
    tag = cls.__struct_config__.tag
    if tag is not None:
        yield f'| `type` | text | | always `"{tag}"` |'
    for field in msgspec.structs.fields(cls):
        if field.name == "unknown_fields":
            continue
        default = "" if field.required else f"`{_default_text(field.default)}`"
        yield f"| `{field.name}` | {_type(cls, field.name)} | {default} | {comments.get(field.name, '')} |"


def _enum_values(name: str) -> Iterable[str]:
    cls = _class(name)
    comments = _comments(cls)
    yield "| value | |"
    yield "|---|---|"
    for member in cls:
        yield f"| `{member.value}` | {comments.get(member.name, '')} |"


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
    return table.cells_to_summary(_measure())


def _cells(_name: str) -> Iterable[str]:
    links = {name: dialects.load(name).SUPPORT.documentation for name in dialects.callable_names()}
    tables = "\n".join(table.cells_to_markdown(_measure(), links)).strip()
    return [*tables.split("\n"), "", *(f"[{name}]: {link}" for name, link in links.items())]


@functools.cache
def _measure() -> tuple[fidelity.Cell, ...]:
    modules = (dialects.load(name) for name in dialects.callable_names())
    return fidelity.make_cells((*modules, *fidelity.transcript_dialects()))


# --- events ----------------------------------------------------------------------------------------------------------


def _event_types(_name: str) -> Iterable[str]:
    yield "| type | actor | sensitivity | meaning |"
    yield "|---|---|---|---|"
    for name, payload in sorted(EVENT_TYPES.items()):
        page = f"event-types.md#{re.sub(r'[^a-z_]', '', name)}"
        summary = (inspect.getdoc(payload) or "").split("\n")[0]
        yield f"| [`{name}`]({page}) | {payload.actor.value} | {payload.floor.value} | {summary} |"


def _payloads(_name: str) -> Iterable[str]:
    for name, payload in sorted(EVENT_TYPES.items()):
        summary = " ".join((inspect.getdoc(payload) or "").split())
        retention = " The trace keeps it without limit." if payload.is_audit else ""
        yield f"## {name}\n\n{summary} Actor: {payload.actor.value}. Sensitivity: {payload.floor.value}.{retention}\n"
        yield from _payload_table(payload)
        yield ""
    for part in (chain.ChainEntry, pattern.PatternAlternative, turn_events.RetryRecord):
        yield f"## {part.__name__}\n\n{inspect.getdoc(part)}\n"
        yield from _payload_table(part)
        yield ""


def _payload_table(payload: type[msgspec.Struct]) -> Iterable[str]:
    comments = _comments(payload)
    hints = get_type_hints(payload, include_extras=True)
    yield "| field | type | |"
    yield "|---|---|---|"
    for field in msgspec.structs.fields(payload):
        optional = "" if field.required else ", may be left out"
        yield f"| `{field.name}` | {_type_text(hints[field.name])}{optional} | {comments.get(field.name, '')} |"


def _type_text(hint: Any) -> str:
    """Return a type in words."""
    names = {
        types.Sha256: "SHA-256",
        types.Count: "integer from 0",
        types.Seconds: "number from 0",
        types.Share: "number from 0 to 1",
        exchange.StopReason: "[why a model stopped](streams.md#why-a-model-stopped)",
        exchange.ErrorClass: "[kind of fault](errors.md#kinds-of-faults)",
        exchange.SideEffects: "[side effects](tools.md#side-effects)",
        chain.ChainEntry: "[ChainEntry](#chainentry)",
        turn_events.RetryRecord: "[RetryRecord](#retryrecord)",
        pattern.PatternAlternative: "[PatternAlternative](#patternalternative)",
        str: "text",
        int: "integer",
        float: "number",
        bool: "true or false",
        Decimal: "decimal, as text",
        datetime: "time",
    }
    if hint in names:
        return names[hint]
    arguments = get_args(hint)
    match get_origin(hint):
        case typing.Literal:
            return " or ".join(f"`{word}`" for word in arguments)
        case typing.Annotated:
            return _type_text(arguments[0])
        case origin if origin is tuple:
            return f"list of {_type_text(arguments[0])}"
        case origin if origin is dict:
            return "object"
        case _:
            return " or ".join(_type_text(part) for part in arguments if part is not type(None))


# --- commands --------------------------------------------------------------------------------------------------------


def _options(name: str) -> Iterable[str]:
    command = app
    for word in name.split():
        command = command[word]
    yield "| argument | meaning |"
    yield "|---|---|"
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if argument.children:  # a group of options; its options follow
            continue
        help_text = " ".join((argument.parameter.help or "").split()).replace("|", "\\|")
        default = argument.field_info.default
        if argument.show_default and default not in (None, (), False):
            help_text += f" Default: {default}."
        yield f"| `{_option_text(argument)}` | {help_text} |"
    yield ""
    yield str(command.help_epilogue).rpartition("\n")[2]


def _option_text(argument: Any) -> str:
    """Return the name of an option with its kind of value; the name of a positional argument in capitals."""
    name: str = argument.names[0]
    if "POSITIONAL" in argument.field_info.kind.name:
        return name.removeprefix("--").upper().replace("-", "_") if name.startswith("--") else name
    hint = next((part for part in get_args(argument.hint) if part is not type(None)), argument.hint)
    if get_origin(argument.hint) is typing.Literal or get_origin(hint) is typing.Literal:
        words = get_args(argument.hint if get_origin(argument.hint) is typing.Literal else hint)
        return f"{name} {{{'|'.join(words)}}}".replace("|", "\\|")
    return name if hint is bool else f"{name} {hint.__name__.upper()}"


# --- public names ----------------------------------------------------------------------------------------------------


def _api(name: str) -> Iterable[str]:
    package = importlib.import_module(name)
    members = {public: getattr(package, public) for public in package.__all__}
    kinds: dict[str, Callable[[Any], bool]] = {
        "Functions": inspect.isroutine,
        "Classes": inspect.isclass,
        "Modules": inspect.ismodule,
        "Types": lambda _: True,
    }
    for title, belongs in kinds.items():
        chosen = {public: member for public, member in members.items() if belongs(member)}
        members = {public: member for public, member in members.items() if public not in chosen}
        yield f"## {title}\n"
        for public, member in chosen.items():
            yield from _public_name(name, public, member)


def _public_name(package: str, name: str, member: Any) -> Iterable[str]:
    if inspect.ismodule(member) or not callable(member) or get_origin(member):
        text = f": {_summary_of(member)}" if inspect.ismodule(member) else ""
        yield f"- `{package}.{name}`{text}\n"
        return
    yield f"### {name}\n\n```text\n{_signature(name, member)}\n```\n\n{_summary_of(member)}\n"
    if not inspect.isclass(member):
        return
    attributes = [
        (public, attribute)
        for public, attribute in vars(member).items()
        if not public.startswith("_") and (inspect.isfunction(attribute) or isinstance(attribute, property))
    ]
    if attributes:
        yield "| attribute | |\n|---|---|"
        for public, attribute in attributes:
            text = public if isinstance(attribute, property) else _signature(public, attribute)
            yield f"| `{text}` | {_summary_of(attribute)} |".replace("|", "\\|").replace("\\|", "|", 2)[:-2] + "|"
        yield ""


def _signature(name: str, member: Any) -> str:
    """Return the names and the defaults of the parameters, without types."""
    try:
        parameters = inspect.signature(member).parameters.values()
    except (TypeError, ValueError):
        return name
    plain = [
        parameter.replace(annotation=parameter.empty)
        for parameter in parameters
        if parameter.name not in ("self", "unknown_fields")
    ]
    text = str(inspect.Signature(plain))
    return f"{name}{re.sub(r'<[^<>]*>', '…', text)}"


def _summary_of(member: Any) -> str:
    return " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split()).replace("|", "\\|")


def _class(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)


def _comments(cls: type) -> dict[str, str]:
    """Return the comment of each field of a class and its bases."""
    comments: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        if part.__module__.startswith("dragoman."):
            for line in _class_lines(inspect.getfile(part))[part.__qualname__]:
                match = re.match(r"    (\w+)(?:: | = ).*?  # (.*)$", line)
                if match:
                    comments[match[1]] = match[2].replace("|", "\\|").replace("<", "&lt;")
    return comments


@functools.cache
def _class_lines(file: str) -> dict[str, list[str]]:
    """Return the source lines of each top-level class of a file, which is parsed once for all of them."""
    text = Path(file).read_text("utf-8")
    lines = text.split("\n")
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {node.name: lines[node.lineno - 1 : node.end_lineno] for node in classes}


def _type(cls: type, field: str) -> str:
    """Return the annotation of a field in words."""
    for part in cls.__mro__:
        annotation = inspect.get_annotations(part).get(field)
        if annotation is not None:
            return _annotation_text(str(annotation))
    raise AssertionError(f"{cls.__name__}.{field} has no annotation")


def _annotation_text(annotation: str) -> str:
    if annotation.startswith("Annotated["):
        inner, _, rest = annotation.removeprefix("Annotated[").partition(",")
        annotation = inner + rest.rpartition("]")[2]
    names = {
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
        "tuple[int, ...]": "list of integers",
        "dict[str, str]": "object of texts",
        "tuple[Attachment, ...]": "a list of these",
    }
    parts = [part.strip() for part in annotation.split(" | ")]
    literal = re.fullmatch(r"Literal\[(.*)\]", parts[0])
    if literal:
        return " or ".join(f"`{word}`" for word in literal[1].replace("'", '"').split(", "))
    texts = [names.get(part) or _class_link(part) for part in parts if part != "None"]
    return " or ".join(texts)


def _class_link(annotation: str) -> str:
    """Return a link to the section of a class, or of the class of the items of a tuple."""
    item = re.fullmatch(r"tuple\[(\w+), \.\.\.\]", annotation)
    name = item[1] if item else annotation
    return f"list of [{name}](#{name.lower()})" if item else f"[{name}](#{name.lower()})"


def _default_text(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, enum.Enum):
        return f'"{value.value}"'
    return msgspec.json.encode(value).decode()


def main() -> int:
    """Write the pages, or report those that are not up to date."""
    stale = []
    for page in sorted(PAGES.rglob("*.md")):
        text = page.read_text("utf-8")
        new = fill(text)
        if new != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, "utf-8")
    if stale:
        print(f"{'not up to date' if '--check' in sys.argv else 'written'}: {', '.join(stale)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
