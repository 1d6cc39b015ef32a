"""Read the description of a function and of its parameters from its docstring, in Google, NumPy or Sphinx style."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

_SECTIONS: Final = "Args|Arguments|Parameters|Params|Returns|Return|Yields|Raises|Example|Examples|Note|Notes|See Also"
_PARAMETER_SECTIONS: Final = ("Args", "Arguments", "Parameters", "Params")
_GOOGLE: Final = re.compile(rf"^(?P<name>{_SECTIONS}):[ \t]*$", re.MULTILINE)
_NUMPY: Final = re.compile(rf"^(?P<name>{_SECTIONS})[ \t]*\n-{{3,}}[ \t]*$", re.MULTILINE)
_FIELD: Final = re.compile(r"^:(?P<kind>param|returns?|raises|rtype|type)\b", re.MULTILINE)
_SPHINX_PARAMETER: Final = re.compile(r":param\s+(?:[^:]*\s)?(?P<name>\w+):\s*(?P<text>(?:.|\n(?!:))*)")
_GOOGLE_PARAMETER: Final = re.compile(r"(?P<name>\*{0,2}\w+)(?:\s*\([^)]*\))?:\s*(?P<text>.*)", re.DOTALL)
_NUMPY_PARAMETER: Final = re.compile(r"(?P<name>\w+)(?:[ \t]*:[^\n]*)?(?:\n(?P<text>.*))?", re.DOTALL)


class Docstring(msgspec.Struct, frozen=True):
    """The parts of a docstring."""

    description: str
    parameters: dict[str, str]  # descriptions by name


def parse_docstring(text: str) -> Docstring:
    """Parse a docstring without indentation (``inspect.getdoc``)."""
    starts = [match.start() for pattern in (_GOOGLE, _NUMPY, _FIELD) if (match := pattern.search(text))]
    description = text[: min(starts)] if starts else text
    parameters: dict[str, str] = {}
    for section, pattern in ((_GOOGLE, _GOOGLE_PARAMETER), (_NUMPY, _NUMPY_PARAMETER)):
        for item in _items(text, section):
            if (match := pattern.fullmatch(item)) is not None:
                parameters[match["name"].lstrip("*")] = _join(match["text"] or "")
    parameters.update((match["name"], _join(match["text"])) for match in _SPHINX_PARAMETER.finditer(text))
    return Docstring(description.strip(), {name: words for name, words in parameters.items() if words})


def _items(text: str, section: re.Pattern[str]) -> Iterator[str]:
    """The items of the parameter sections: each begins at the indentation of the first."""
    headings = list(section.finditer(text))
    for number, heading in enumerate(headings):
        if heading["name"] not in _PARAMETER_SECTIONS:
            continue
        end = headings[number + 1].start() if number + 1 < len(headings) else len(text)
        body = text[heading.end() : end].strip("\n")
        indent = len(body) - len(body.lstrip(" "))
        if section is _GOOGLE and not indent:
            continue
        for item in re.split(rf"\n(?= {{{indent}}}\S)", body):
            yield item[indent:].rstrip()


def _join(text: str) -> str:
    return " ".join(text.split())
