"""Count lines of code without blank lines, comments and docstrings: ``python -m scripts.code_lines [FOLDER …]``.

Prints the number per package of ``src/dragoman``, or of the named folders, and the sum.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_NO_CODE: Final = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def count_lines(source: str) -> int:
    """Return the number of lines of a module that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(source))


def docstring_lines(source: str) -> set[int]:
    """Return the lines of all docstrings of a module."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as text, *_]:
                    lines.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def main(folders: list[str]) -> None:
    """Print the number of code lines per package, and the sum."""
    counts: Counter[str] = Counter()
    for folder in folders or ["src/dragoman"]:
        root = ROOT / folder
        for file in sorted(root.rglob("*.py")):
            package = file.relative_to(root).parts[0] if file.parent != root else "."
            counts[f"{folder}/{package}"] += count_lines(file.read_text("utf-8"))
    for name, count in sorted(counts.items()):
        print(f"{count:7,}  {name}")
    print(f"{counts.total():7,}  in all")


if __name__ == "__main__":
    main(sys.argv[1:])
