"""Patterns of ``.gitignore`` files and globs.

Supported: comments, ``!``, a slash at the start, in the middle or at the end, ``*``, ``?``, ``[…]`` and ``**``. The
last matching pattern decides. Patterns are untrusted, so they run on an engine with linear time. ``.git`` is always
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

_TOKEN: Final = re.compile(r"\*\*/|/\*\*$|\*+|\?|\[!?\]?[^\]]*\]|\\.|.", re.DOTALL)


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """Compile a regular expression that runs in linear time; ``ValueError`` if it is not supported."""
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415  slow to import

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        text = error.args[0] if error.args else "not a valid pattern"
        raise ValueError(text.decode() if isinstance(text, bytes) else str(text)) from None


def compile_glob(glob: str) -> Any:
    """Compile a glob over whole paths: ``*.py`` at any depth, ``src/*.py`` from the root."""
    prefix = "" if "/" in glob.strip("/") or glob.startswith("/") else "(?:.*/)?"
    return compile_pattern(f"^{prefix}{_translate(glob.strip('/'))}$")


def _translate(glob: str) -> str:
    return "".join(_translate_token(token) for token in _TOKEN.findall(glob))


def _translate_token(token: str) -> str:
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
    is_ignored: bool
    folders_only: bool


class GitIgnore:
    """The patterns of a folder and of its parent folders."""

    def __init__(self, rules: Iterable[_Rule] = ()) -> None:
        self._rules = tuple(rules)

    def extend(self, folder: str, text: str) -> GitIgnore:
        """Add the text of the ``.gitignore`` of a folder, which is a path from the root; empty for the root."""
        rules = (_parse_rule(folder, line) for line in text.splitlines())
        return GitIgnore((*self._rules, *(rule for rule in rules if rule is not None)))

    def is_ignored(self, path: str, *, is_folder: bool) -> bool:
        """Whether a path from the root is ignored."""
        if path == ".git" or path.endswith("/.git"):
            return True
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders_only) and rule.pattern.search(path) is not None:
                return rule.is_ignored
        return False


def _parse_rule(folder: str, line: str) -> _Rule | None:
    line = line.rstrip("\n\r")
    line = line if line.endswith("\\ ") else line.rstrip(" ")
    if not line or line.startswith("#"):
        return None
    is_ignored = not line.startswith("!")
    glob = line if is_ignored else line[1:]
    bare = glob.strip("/")
    prefix = "" if glob.startswith("/") or "/" in bare else "(?:.*/)?"
    base = f"{re.escape(folder)}/" if folder else ""
    try:
        pattern = compile_pattern(f"^{base}{prefix}{_translate(bare)}$")
    except ValueError:
        return None  # git ignores invalid patterns
    return _Rule(pattern, is_ignored, glob.endswith("/"))
