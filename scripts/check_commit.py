"""Check the subject of a commit message: ``python -m scripts.check_commit FILE``, as the commit-msg hook calls it.

A subject starts with a scope and an imperative verb, has at most 72 characters and no period at its end:
"Store: commit appends from one writer thread". Subjects of merges, reverts and fix-ups are not checked.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

MAX_CHARACTERS: Final = 72
_SUBJECT: Final = re.compile(r"[A-Z][\w ./-]*: \S")
_UNCHECKED: Final = ("Merge ", "Revert ", "fixup! ", "squash! ")


def subject_problem(subject: str) -> str | None:
    """Return why a subject is not accepted; none if it is."""
    if subject.startswith(_UNCHECKED):
        return None
    if len(subject) > MAX_CHARACTERS:
        return f"has {len(subject)} characters; the limit is {MAX_CHARACTERS}"
    if subject.endswith("."):
        return "ends with a period"
    if not _SUBJECT.match(subject):
        return 'has no scope; write "Scope: imperative verb …"'
    return None


def main(arguments: list[str]) -> int:
    """Check the first line of a commit message file."""
    subject = Path(arguments[0]).read_text("utf-8").split("\n", 1)[0]
    problem = subject_problem(subject)
    if problem is not None:
        print(f"The commit subject {problem}: {subject}")
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
