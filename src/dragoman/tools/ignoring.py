"""What a listing leaves out: the patterns of ``.gitignore`` files, in the part of their language that people use.

Comments, ``!``, a slash at the beginning, in the middle or at the end, ``*``, ``?``, ``[…]`` and ``**``. The last
pattern that fits decides. Patterns run on an engine that takes linear time, because anybody may have written them. The
one rule: ``.git`` is never listed, and nothing else is hidden that its owner did not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

_TOKEN: Final = re.compile(r"\*\*/|/\*\*$|\*+|\?|\[!?\]?[^\]]*\]|\\.|.", re.DOTALL)


def linear_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """A regular expression that takes linear time, or ``ValueError`` with what is wrong with it."""
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415  whoever searches pays for it

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        what = error.args[0] if error.args else "it cannot be read"
        raise ValueError(what.decode() if isinstance(what, bytes) else str(what)) from None


def glob_pattern(glob: str) -> Any:
    """A glob over whole paths: ``*.py`` at any depth, ``src/*.py`` from the beginning."""
    prefix = "" if "/" in glob.strip("/") or glob.startswith("/") else "(?:.*/)?"
    return linear_pattern(f"^{prefix}{_translated(glob.strip('/'))}$")


def _translated(glob: str) -> str:
    return "".join(_translated_token(token) for token in _TOKEN.findall(glob))


def _translated_token(token: str) -> str:
    match token:
        case "**/":
            return "(?:.*/)?"
        case "/**":
            return "/.*"
        case "?":
            return "[^/]"
        case _ if token.startswith("*"):
            return "[^/]*"
        case _ if len(token) > 2 and token.startswith("["):
            inner = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
        case _:
            return re.escape(token[-1])


class _Rule(msgspec.Struct, frozen=True):
    pattern: Any
    leaves_out: bool
    folders_only: bool


class Ignoring:
    """The patterns that hold in a folder: its own, and those of the folders above it."""

    def __init__(self, rules: Iterable[_Rule] = ()) -> None:
        self._rules = tuple(rules)

    def within(self, folder: str, text: str) -> Ignoring:
        """With those of a ``.gitignore`` in this folder, a path from the root; empty for the root."""
        made = (_rule(folder, line) for line in text.splitlines())
        return Ignoring((*self._rules, *(rule for rule in made if rule is not None)))

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether a path from the root is left out."""
        if path == ".git" or path.endswith("/.git"):
            return True
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders_only) and rule.pattern.search(path) is not None:
                return rule.leaves_out
        return False


def _rule(folder: str, line: str) -> _Rule | None:
    line = line.rstrip("\n\r")
    line = line if line.endswith("\\ ") else line.rstrip(" ")
    if not line or line.startswith("#"):
        return None
    leaves_out = not line.startswith("!")
    glob = line if leaves_out else line[1:]
    bare = glob.strip("/")
    anywhere = "" if glob.startswith("/") or "/" in bare else "(?:.*/)?"
    base = f"{re.escape(folder)}/" if folder else ""
    try:
        pattern = linear_pattern(f"^{base}{anywhere}{_translated(bare)}$")
    except ValueError:
        return None  # a pattern that makes no sense leaves nothing out
    return _Rule(pattern, leaves_out, glob.endswith("/"))
